//! `dutyd run`: runs a job in the daemon or in this process, and prints its events.

use std::collections::BTreeMap;
use std::process::ExitCode;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::access::check_state_owner;
use super::approvals::Terminal;
use super::args::{OutputForm, RunArgs, TriggerArgs};
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::live::LivePrinter;
use super::output;
use super::render::Renderer;
use super::source::{self, Daemon, Source, Wanted};
use super::time::later_moment;
use super::wrap::terminal_width;
use crate::config::Trust;
use crate::domain::{Event, Origin, Outcome, Person, RunRequest, SessionEnd, Stop, StopReason};
use crate::run::{Ended, RunExit, RunSpec, execute};
use crate::sinks::{Observed, Observers};
use crate::store::{ReadEvent, ReadLine, RunSummary};
use crate::text::escape::one_line;

pub(crate) async fn run(context: &Context, args: &RunArgs) -> Result<ExitCode, CliError> {
    if args.interactive && !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        return Err(CliError::usage(
            "--interactive needs a terminal, but standard input is not one",
        ));
    }
    if args.detach {
        Client::require(context)?;
    }
    // The approver is at this terminal, so the run must be in this process.
    if args.interactive {
        check_state_owner(&context.dirs)?;
    } else if let Source::Daemon(daemon) = source::find(context, Wanted::Start).await? {
        return run_in_daemon(context, &daemon, args).await;
    } else if args.detach {
        return Err(CliError::failed("the daemon has just stopped"));
    }
    let config = context.config(Trust::Required)?;
    let job = context.job(&config, &args.job)?.clone();
    if !job.enabled {
        output::note("warning: the job is disabled");
    }
    let origin = Origin::manual(request_of(args)?, Some(myself()));
    let run_id = context.new_run_id();
    let spec =
        RunSpec::new(run_id.clone(), config.clone(), job, origin).map_err(CliError::usage_by)?;
    let spec = RunSpec { has_person: args.interactive, ..spec };
    crate::process::prepare_daemon()
        .map_err(|error| CliError::failed("cannot prepare the process").because(&error))?;

    output::note(&format!("run {run_id}"));
    let observers = Observers::default();
    let (stop, stopped) = watch::channel(None);
    let watcher = tokio::spawn(watch_run(observers.watch(), context.form, context.color));
    let signals = tokio::spawn(stop_on_signal(stop));
    let mut host = context.host(observers.clone());
    if args.interactive {
        host.approver = std::sync::Arc::new(Terminal::new());
    }
    let ended = execute(spec, host, stopped.into()).await;
    drop(observers);
    // If the watcher failed, print the whole result.
    let on_screen = watcher.await.unwrap_or(None);
    signals.abort();
    let ended = ended.map_err(CliError::failed_by)?;
    conclude(context, &ended, on_screen.as_deref())
}

fn request_of(args: &RunArgs) -> Result<RunRequest, CliError> {
    Ok(RunRequest {
        vars: variables(&args.vars)?,
        prompt: args.prompt.clone(),
        plan: args.plan,
        model: args.model.clone(),
        effort: args.effort.clone(),
        max_iterations: args.max_iterations,
        newer: serde_json::Map::new(),
    })
}

/// Starts the run in the daemon and, unless `--detach` is given, prints its events until it ends.
async fn run_in_daemon(
    context: &Context,
    daemon: &Daemon,
    args: &RunArgs,
) -> Result<ExitCode, CliError> {
    let client = &daemon.client;
    let request = request_of(args)?;
    let (answer, run_id) = start(daemon, &args.job, &request, None).await?;
    if args.detach {
        output::value(context.form, &answer, || format!("{run_id}\n"))?;
        tell_warnings(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    output::note(&format!("run {run_id}"));
    tell_warnings(&answer);
    if let Some(waits) = answer.get("waits").and_then(Value::as_str) {
        output::note(&format!("waits: {waits}"));
    }
    let mut shown = LivePrinter::new(context.form, context.color);
    let mut end: Option<Box<SessionEnd>> = None;
    let followed = client.follow(&run_id, |line| {
        shown.line(line);
        if let Ok(ReadLine { event: ReadEvent::Known(event), .. }) = serde_json::from_str(line)
            && let Event::SessionEnd(ended) = *event
        {
            end = Some(ended);
        }
    });
    tokio::select! {
        followed = followed => followed?,
        _ = tokio::signal::ctrl_c() => {
            output::note("stopping; running tools have 2 s to exit");
            let _: Value =
                client.post(&format!("/runs/{run_id}/cancel"), &serde_json::json!({})).await?;
            return Ok(Exit::Cancelled.into());
        }
    }
    let row = || async { client.get::<RunSummary>(&format!("/runs/{run_id}"), &()).await };
    let Some(end) = end else {
        // The run may have ended in the queue, without a transcript.
        let row = row().await.ok().filter(|row| row.outcome.is_some());
        let (Some(outcome), Some(stop_reason), Some(error)) =
            row.map_or((None, None, None), |row| (row.outcome, row.stop_reason, row.error))
        else {
            return Err(CliError::failed(format!(
                "lost the connection to the daemon; `dutyd show {run_id}` shows the run"
            )));
        };
        output::note(&format!("{outcome}: {}", one_line(&error)));
        return Ok(exit_of(outcome, stop_reason).into());
    };
    match context.form {
        OutputForm::Table => {
            let on_screen = shown.into_answer();
            output::raw(told(context, &end, on_screen.as_deref()).as_bytes());
        }
        OutputForm::Jsonl => {}
        form => output::value(form, &row().await?, String::new)?,
    }
    tell_plan(&run_id, end.outcome);
    Ok(exit_of(end.outcome, end.stop_reason).into())
}

/// The body of a request to start a run.
#[derive(serde::Serialize)]
struct StartBody<'a> {
    #[serde(flatten)]
    request: &'a RunRequest,
    /// When the run begins; now if absent.
    at: Option<DateTime<Utc>>,
}

/// Starts a run in the daemon; returns the response and the id of the run.
async fn start(
    daemon: &Daemon,
    job: &str,
    request: &RunRequest,
    at: Option<DateTime<Utc>>,
) -> Result<(Value, String), CliError> {
    let path = format!("/jobs/{}/runs", path_segment(job));
    let body = StartBody { request, at };
    let answer: Value =
        daemon.client.post(&path, &body).await.map_err(|error| daemon.explained(error))?;
    let run_id = answer.get("run_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((answer, run_id))
}

fn tell_warnings(answer: &Value) {
    let warnings = answer.get("warnings").and_then(Value::as_array).into_iter().flatten();
    for warning in warnings.filter_map(Value::as_str) {
        output::note(&format!("warning: {warning}"));
    }
}

/// `dutyd trigger`: has the daemon run a job, and prints the id of the run.
pub(crate) async fn trigger(context: &Context, args: &TriggerArgs) -> Result<ExitCode, CliError> {
    let request = RunRequest { vars: variables(&args.vars)?, ..RunRequest::default() };
    let now = context.clock.now();
    let at = args.delay.as_ref().or(args.at.as_ref());
    let at = at.map(|text| later_moment(text, now)).transpose()?;
    Client::require(context)?;
    let Source::Daemon(daemon) = source::find(context, Wanted::Start).await? else {
        return Err(CliError::failed("the daemon has just stopped"));
    };
    let (answer, run_id) = start(&daemon, &args.job, &request, at).await?;
    output::value(context.form, &answer, || format!("{run_id}\n"))?;
    tell_warnings(&answer);
    if let Some(at) = at {
        output::note(&format!("the run begins at {}", at.format("%Y-%m-%d %H:%M:%S UTC")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the outcome with the result, or without it if the result is on the screen.
fn told(context: &Context, end: &SessionEnd, on_screen: Option<&str>) -> String {
    let value = serde_json::to_value(end).unwrap_or_default();
    let renderer = Renderer::new(context.color, terminal_width());
    let is_shown = on_screen.is_some_and(|text| match &end.result {
        Some(Value::String(result)) => result.trim() == text.trim(),
        Some(result) => serde_json::from_str::<Value>(text).is_ok_and(|value| value == *result),
        None => false,
    });
    format!("\n{}", if is_shown { renderer.outcome(&value) } else { renderer.result(&value) })
}

/// Tells how to show and apply the plan of a run that ended as `planned`.
fn tell_plan(run_id: &str, outcome: Outcome) {
    if outcome == Outcome::Planned {
        output::note(&format!(
            "plan {run_id} is waiting: dutyd plan {run_id}, dutyd apply {run_id}"
        ));
    }
}

/// Returns the real user of this process.
pub(crate) fn myself() -> Person {
    crate::process::person(nix::unistd::getuid().as_raw())
}

/// Makes a name safe for a URL path, and returns a valid job name unchanged. Any other name becomes
/// an invalid job name, for which the daemon reports that the job does not exist.
pub(super) fn path_segment(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '~' })
        .collect()
}

fn conclude(
    context: &Context,
    ended: &Ended,
    on_screen: Option<&str>,
) -> Result<ExitCode, CliError> {
    let (end, run_id) = (&ended.end, &ended.run_id);
    match context.form {
        OutputForm::Table => {
            output::raw(told(context, end, on_screen).as_bytes());
            output::note(&format!("\nrun {run_id}: dutyd show {run_id}"));
        }
        OutputForm::Jsonl => {}
        // A run whose first transcript line was never written has no row. Print its end instead.
        form => match &ended.row {
            Some(row) => output::value(form, row, String::new)?,
            None => output::value(form, &**end, String::new)?,
        },
    }
    match &ended.exit {
        RunExit::Complete | RunExit::Suspended => {}
        RunExit::EndUnrecorded(error) => output::note(&format!(
            "warning: the ledger or the index lacks the end of the run: {error}"
        )),
        RunExit::RecordFailed => {
            output::note("the transcript is incomplete: its last line could not be written");
        }
    }
    tell_plan(run_id.as_str(), end.outcome);
    Ok(exit_of(end.outcome, end.stop_reason).into())
}

/// Maps the end of a run to the exit code.
pub(crate) fn exit_of(outcome: Outcome, stop_reason: StopReason) -> Exit {
    match (outcome, stop_reason) {
        (Outcome::Succeeded | Outcome::Planned | Outcome::Skipped, _) => Exit::Success,
        (Outcome::Failed, StopReason::MaxDuration) => Exit::TimedOut,
        (Outcome::Cancelled, _) => Exit::Cancelled,
        (Outcome::Failed | Outcome::Interrupted, _) => Exit::Failed,
    }
}

/// Parses `K=V` pairs.
///
/// *Errors*: an item has no `=`, or a name is given twice.
pub(crate) fn variables(pairs: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let mut vars = BTreeMap::new();
    for pair in pairs {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| CliError::usage(format!("`--var {pair}` is not K=V")))?;
        if vars.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(CliError::usage(format!("duplicate `--var {name}`")));
        }
    }
    Ok(vars)
}

/// Waits for SIGINT, SIGTERM or SIGHUP.
pub(crate) async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

async fn stop_on_signal(stop: watch::Sender<Option<Stop>>) {
    wait_for_signal().await;
    output::note("stopping; running tools have 2 s to exit");
    stop.send_replace(Some(Stop { by: Some(myself()), ..StopReason::Cancelled.into() }));
    // Keep the sender: a run whose stop channel is closed counts as interrupted.
    std::future::pending::<()>().await;
}

/// Prints events until all senders are dropped. Returns the text of the last reply, if all of it is
/// on the screen.
async fn watch_run(
    mut events: Receiver<Observed>,
    form: OutputForm,
    color: bool,
) -> Option<String> {
    let mut shown = LivePrinter::new(form, color);
    loop {
        match events.recv().await {
            Ok(Observed::Line { line, .. }) => shown.line(&line),
            Ok(Observed::Live { event, .. }) => {
                shown.line(&serde_json::to_string(&event).unwrap_or_default());
            }
            Err(RecvError::Lagged(missed)) => output::note(&format!(
                "skipped {missed} events that came too fast; the transcript has them"
            )),
            Err(RecvError::Closed) => return shown.into_answer(),
        }
    }
}
