//! `dutyd run`

use std::collections::BTreeMap;
use std::process::ExitCode;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use serde_json::Value;

use super::approvals::Terminal;
use super::args::{OutputForm, RunArgs};
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::story::Story;
use crate::config::Trust;
use crate::daemon::RunRequest;
use crate::domain::{Outcome, StopReason, Trigger};
use crate::run::{Ended, RunSpec, TriggerFacts, execute};
use crate::sinks::{Observed, Observers};
use crate::store::{Index, ReadLine, RunRow, read_lines};

/// The exit code of a run that a person stopped.
pub(crate) const CANCELLED: u8 = 130;

/// The exit code of a run whose time was up.
const TIMED_OUT: u8 = 124;

pub(crate) async fn run(context: &Context, args: &RunArgs) -> Result<ExitCode, CliError> {
    if args.interactive && !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        return Err(CliError::usage(
            "--interactive asks at a terminal, and standard input is none",
        ));
    }
    // The person who is asked sits here, so that it runs here as well.
    if !args.interactive
        && let Some(client) = Client::find(context)?
    {
        return run_in_daemon(context, &client, args).await;
    }
    if args.detach {
        Client::require(context)?;
    }
    own_state(context)?;
    let config = context.config(Trust::Required)?;
    let job = context.job(&config, &args.job)?.clone();
    let vars = variables(&args.vars)?;
    let facts = TriggerFacts { trigger: Trigger::Manual, scheduled_for: None, attempt: 1 };
    let spec =
        RunSpec::new(context.new_run_id(), config.clone(), job, facts, &vars, args.prompt.clone())
            .map_err(|error| CliError::usage(error.to_string()))?
            .planned(args.plan);
    let spec = RunSpec { has_person: args.interactive, ..spec };
    crate::process::prepare_daemon()
        .map_err(|error| CliError::failed(format!("the process cannot be prepared: {error}")))?;

    let observers = Observers::default();
    let (stop, stopped) = watch::channel(None);
    let watcher = tokio::spawn(watch_run(observers.watch(), context.form, context.color));
    let signals = tokio::spawn(stop_on_signal(stop));
    let mut host = context.host(observers.clone());
    if args.interactive {
        host.approver = std::sync::Arc::new(Terminal::new());
    }
    let ended = execute(spec, host, stopped).await;
    drop(observers);
    let _ = watcher.await;
    signals.abort();
    let ended = ended.map_err(|error| CliError::failed(error.to_string()))?;
    take_in(context, &ended).await;
    conclude(context, &ended)
}

/// Puts the run into the index; without it the next `dutyd reindex` does.
pub(crate) async fn take_in(context: &Context, ended: &Ended) {
    let Some(run) = context.state().find_run(&ended.run_id) else { return };
    let taken = match Index::open(&context.dirs.state) {
        Ok((index, true)) => index.rebuild(context.state()).await.map(drop),
        Ok((index, false)) => index.refresh(run).await,
        Err(error) => Err(error),
    };
    if let Err(error) = taken {
        output::note(&format!("the run is not in the index: {error}"));
    }
}

/// Has the daemon run it, and shows what happens.
async fn run_in_daemon(
    context: &Context,
    client: &Client,
    args: &RunArgs,
) -> Result<ExitCode, CliError> {
    let request = RunRequest {
        job: args.job.clone(),
        vars: variables(&args.vars)?,
        prompt: args.prompt.clone(),
        plan: args.plan,
    };
    let answer = client.post(&format!("/jobs/{}/runs", path_segment(&args.job)), &request).await?;
    let run_id = answer.get("run_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    if args.detach {
        output::value(context.form, &answer, || format!("{run_id}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let story = Story::new(context.color);
    let mut end: Option<ReadLine> = None;
    let followed = client.follow(&run_id, |line| {
        if context.form == OutputForm::Jsonl {
            output::raw(format!("{line}\n").as_bytes());
        }
        let Ok(parsed) = serde_json::from_str::<ReadLine>(line) else { return };
        if context.form == OutputForm::Table {
            output::raw(story.tell(&parsed).as_bytes());
        }
        if parsed.event.get("type").and_then(Value::as_str) == Some("session_end") {
            end = Some(parsed);
        }
    });
    tokio::select! {
        followed = followed => followed?,
        _ = tokio::signal::ctrl_c() => {
            output::note("stopping; tools get 2 s");
            client.post(&format!("/runs/{run_id}/cancel"), &serde_json::json!({})).await?;
            return Ok(ExitCode::from(CANCELLED));
        }
    }
    let end = end.ok_or_else(|| {
        CliError::failed(format!(
            "the daemon went away; `dutyd show {run_id}` tells what became of the run"
        ))
    })?;
    match context.form {
        OutputForm::Table => output::raw(format!("\n{}", story.result(&end.event)).as_bytes()),
        OutputForm::Jsonl => {}
        form => output::value(
            form,
            &client.get::<Value>(&format!("/runs/{run_id}"), &()).await?,
            String::new,
        )?,
    }
    let word = |field: &str| end.event.get(field).cloned().unwrap_or_default();
    let outcome = serde_json::from_value(word("outcome")).unwrap_or(Outcome::Failed);
    let stop_reason =
        serde_json::from_value(word("stop_reason")).unwrap_or(StopReason::InternalError);
    Ok(ExitCode::from(exit_code(outcome, stop_reason)))
}

/// Returns a name as it stands in an address; what cannot be a job's name is not found there.
fn path_segment(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '~' })
        .collect()
}

fn conclude(context: &Context, ended: &Ended) -> Result<ExitCode, CliError> {
    let end = &ended.end;
    match context.form {
        OutputForm::Table => {
            let value = serde_json::to_value(end).unwrap_or_default();
            output::raw(format!("\n{}", Story::new(context.color).result(&value)).as_bytes());
            output::note(&format!("\nrun {}: dutyd show {}", ended.run_id, ended.run_id));
        }
        OutputForm::Jsonl => {}
        form => {
            let path = context.state().find_run(&ended.run_id).map(|run| run.transcript());
            let lines: Vec<ReadLine> = path
                .and_then(|path| read_lines(&path).ok())
                .into_iter()
                .flatten()
                .flatten()
                .collect();
            let mut row = RunRow::fold(&lines);
            if let Some(row) = row.as_mut().filter(|_| !ended.recorded) {
                // What could not be written down is said all the same.
                let at = context.clock.now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
                row.end(&serde_json::to_value(end).unwrap_or_default(), at);
            }
            output::value(form, &row, String::new)?;
        }
    }
    if !ended.recorded {
        output::note("the transcript could not be written to its end");
    }
    Ok(ExitCode::from(exit_code(end.outcome, end.stop_reason)))
}

/// Returns the exit code of a run that has ended.
pub(crate) fn exit_code(outcome: Outcome, stop_reason: StopReason) -> u8 {
    match (outcome, stop_reason) {
        (Outcome::Succeeded, _) => 0,
        (Outcome::Failed, StopReason::MaxDuration) => TIMED_OUT,
        (Outcome::Cancelled, _) => CANCELLED,
        (Outcome::Failed | Outcome::Interrupted | Outcome::Planned, _) => 1,
    }
}

/// Parses `K=V` pairs.
///
/// *Errors*: one is none, or a name stands twice.
pub(crate) fn variables(pairs: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let mut vars = BTreeMap::new();
    for pair in pairs {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| CliError::usage(format!("`--var {pair}` is not K=V")))?;
        if vars.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(CliError::usage(format!("`--var {name}` is given twice")));
        }
    }
    Ok(vars)
}

/// Refuses to write into somebody else's state directory, with the line that works.
pub(crate) fn own_state(context: &Context) -> Result<(), CliError> {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(meta) = std::fs::metadata(&context.dirs.state) else { return Ok(()) };
    if meta.uid() == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    let owner = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(meta.uid()))
        .ok()
        .flatten()
        .map_or_else(|| format!("#{}", meta.uid()), |user| user.name);
    let line: Vec<String> = std::env::args().skip(1).collect();
    Err(CliError::failed(format!(
        "{} belongs to {owner}, who alone may do this",
        context.dirs.state.display()
    ))
    .hint(format!("sudo -u {owner} dutyd {}", line.join(" "))))
}

/// Returns when this process is told to end.
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

async fn stop_on_signal(stop: watch::Sender<Option<StopReason>>) {
    wait_for_signal().await;
    output::note("stopping; tools get 2 s");
    stop.send_replace(Some(StopReason::Cancelled));
    // Kept, because a stop whose sender is gone is an interruption.
    std::future::pending::<()>().await;
}

/// Prints what happens, until nobody can make anything happen any more.
pub(crate) async fn watch_run(mut events: Receiver<Observed>, form: OutputForm, color: bool) {
    let story = Story::new(color);
    loop {
        match events.recv().await {
            Ok(Observed::Line { line, .. }) if form == OutputForm::Jsonl => {
                output::raw(format!("{line}\n").as_bytes())
            }
            Ok(Observed::Line { line, .. }) if form == OutputForm::Table => {
                if let Ok(line) = serde_json::from_str::<ReadLine>(&line) {
                    output::raw(story.tell(&line).as_bytes());
                }
            }
            Ok(_) => {}
            Err(RecvError::Lagged(missed)) => output::note(&format!(
                "{missed} events came too fast to be shown; the transcript has them"
            )),
            Err(RecvError::Closed) => return,
        }
    }
}
