//! A run that continues after the death or the stop of the daemon cut it off.
//!
//! *Source*: `docs/design/loop.md`, "After a crash".

use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;
use tokio::sync::watch;

use super::ended::{Ended, ended_early, tools_used, unknown_effects};
use super::execute::{
    begin_work, conclude, leave_queue, repository_text, run_apart, session_parts, suspended, task,
};
use super::host::{Host, RunError};
use super::precheck::recorded_text;
use super::prompt::documents;
use super::scope::{Continued, RunScope};
use super::spec::RunSpec;
use super::temporary::with_room;
use crate::agent::{
    RebuildError, Rebuilt, RecordedStart, Session, SessionParts, SessionResult, Sources,
    SystemPrompt, last_model, rebuild,
};
use crate::config::SandboxMode;
use crate::domain::{Event, Image, Stop, StopReason};
use crate::store::{RunDir, RunLock, RunSummary};

/// What a run needs to continue.
#[derive(Debug)]
pub struct Resumption {
    /// The lock of the run, from before.
    pub lock: RunLock,
    /// The events of its transcript.
    pub events: Vec<Event>,
    /// Its summary so far.
    pub row: RunSummary,
    /// How long it has worked.
    pub worked: Duration,
    /// The number of lines in its transcript.
    pub lines: u64,
    /// How often it was resumed, this time included.
    pub count: u64,
    /// Number of processes of the dead daemon that were killed.
    pub killed: u64,
    /// Number of bytes that were cut off because the last line was torn.
    pub cut_bytes: u64,
}

/// Continues a run to its end. Otherwise behaves like [`execute`](super::execute::execute).
///
/// *Errors*: [`RunError`]; the run then stays open. *Cancel*: through `stop`.
pub async fn resume(
    spec: RunSpec,
    host: Host,
    stop: watch::Receiver<Option<Stop>>,
    resumption: Resumption,
) -> Result<Ended, RunError> {
    let Resumption { lock, events, row, worked, lines, count, killed, cut_bytes } = resumption;
    let has_started_change = events.iter().any(Event::starts_change);
    let has_precheck = events.iter().any(|event| matches!(event, Event::Precheck { .. }));
    let answer = events.iter().rev().find_map(Event::precheck_answer);
    let precheck = (has_precheck || answer.is_some()).then_some(answer);
    let continued = Continued { lock, row: row.clone(), worked, has_started_change, precheck };
    let (spec, little_space) = with_room(spec, &host.state);
    let mut scope = RunScope::begin(spec, host, stop, Some(continued)).await?;
    let worked_ms = u64::try_from(worked.as_millis()).ok();
    scope.record(Event::SessionResumed { from_seq: lines, count, killed, worked_ms }).await?;
    if let Some(warning) = little_space {
        scope.record(warning).await?;
    }
    if cut_bytes > 0 {
        let message = format!("cut {cut_bytes} bytes of a torn last line");
        scope.record(Event::warning("torn_tail", message)).await?;
    }
    leave_queue(&scope.spec.run_id, &scope.host).await;
    if let Some(stop) = scope.stop.given()
        && !scope.is_suspending()
    {
        let result = end_without_session(&scope, &events, (stop.reason, None), &row).await;
        return Ok(conclude(scope, result).await);
    }
    scope.start_servers().await?;
    if let Some(todos) = todos(&events) {
        scope.ctx.set_todos(todos);
    }
    let result = match (scope.spec.job.sandbox, crate::process::sandbox_support()) {
        // The servers may not have started.
        _ if scope.is_suspending() => suspended(),
        (SandboxMode::Enforce, Err(error)) => {
            let error = format!("the tools of the run can no longer be sandboxed: {error}");
            end_unresumable(&scope, &events, (error, &row)).await
        }
        _ if let Some(error) = scope.hangs => {
            end_unresumable(&scope, &events, (error.to_string(), &row)).await
        }
        _ if RecordedStart::find(&events).is_none() => {
            let documents = documents(&scope).await;
            begin_work(&mut scope, &documents.text, &events).await?
        }
        _ => {
            // The checklist was evaluated before; a host that does not answer fails its calls.
            let _ = scope.connect().await;
            continue_session(&scope, &events, &row).await
        }
    };
    Ok(conclude(scope, result).await)
}

async fn continue_session(scope: &RunScope, events: &[Event], row: &RunSummary) -> SessionResult {
    let Some(start) = RecordedStart::find(events) else {
        return end_unresumable(scope, events, ("the transcript has no start".to_owned(), row))
            .await;
    };
    let repository = match start.lacks_repository() {
        true => repository_text(scope).await,
        false => start.repository,
    };
    let system = SystemPrompt { text: start.system, stable: start.stable, repository };
    let mut parts = match session_parts(scope, system, events).await {
        Ok(parts) => parts,
        Err(result) => return with_totals(result, row),
    };
    if events.iter().any(|event| matches!(event, Event::Precheck { .. })) {
        parts.machine.count_precheck();
    }
    let rebuilt = match rebuilt(scope, events, &mut parts) {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            return end_unresumable(scope, events, (error.to_string(), row)).await;
        }
    };
    let model = last_model(events).map(str::to_owned);
    let session = Session::new(parts);
    let work = async move { session.resume(rebuilt, model.as_deref()).await };
    run_apart(scope, work).await
}

/// Ends a run that cannot continue. `why` is for the operator.
async fn end_unresumable(
    scope: &RunScope,
    events: &[Event],
    (why, row): (String, &RunSummary),
) -> SessionResult {
    end_without_session(scope, events, (StopReason::Interrupted, Some(why)), row).await
}

/// Ends a run that does not continue, after a warning for each call whose effect is unknown. `error`
/// is for the operator.
async fn end_without_session(
    scope: &RunScope,
    events: &[Event],
    (stop_reason, error): (StopReason, Option<String>),
    row: &RunSummary,
) -> SessionResult {
    for warning in unknown_effects(events.iter()) {
        if let Err(error) = scope.record(warning).await {
            return ended_early(StopReason::RecordFailed, error.to_string());
        }
    }
    let mut result = with_totals(ended_early(stop_reason, String::new()), row);
    result.end.error = error;
    result.counters.tools_used = tools_used(events.iter());
    result
}

/// Returns the result of a run that ends without its session, with what the run had used.
fn with_totals(mut result: SessionResult, row: &RunSummary) -> SessionResult {
    result.counters.iterations = row.iterations;
    result.counters.usage = row.usage;
    result.counters.cost = row.cost_usd;
    result.counters.cost_is_estimated = row.cost_estimated;
    result.counters.spent.calls = row.tool_calls;
    result
}

/// Brings the machine of a session to the point where its transcript ends.
fn rebuilt(
    scope: &RunScope,
    events: &[Event],
    parts: &mut SessionParts,
) -> Result<Rebuilt, RebuildError> {
    let models = &parts.models;
    let facts = |name: Option<&str>| {
        let named = models.iter().find(|model| Some(model.name.as_str()) == name);
        named.or(models.first()).map(|model| model.facts).unwrap_or_default()
    };
    let sources = Sources {
        events,
        marker: &parts.marker,
        model: &facts,
        image: &|described| image(&scope.directory, described),
        task: task(scope, recorded_text(scope, &parts.marker, events)),
    };
    rebuild(&mut parts.machine, &sources)
}

/// Returns the todo list of the last call that wrote one.
fn todos(events: &[Event]) -> Option<Vec<Value>> {
    let has_worked = |id: &str| {
        events.iter().any(|event| match event {
            Event::ToolCallEnd(end) => end.call_id.as_str() == id && !end.is_error,
            _ => false,
        })
    };
    events.iter().rev().find_map(|event| match event {
        Event::ToolCallStart(start)
            if start.name == "todo_write" && has_worked(start.call_id.as_str()) =>
        {
            start.arguments.get("todos").and_then(Value::as_array).cloned()
        }
        _ => None,
    })
}

/// Loads an image by its description in `tool_call_end`; `None` if it is gone.
fn image(directory: &RunDir, described: &Value) -> Option<Image> {
    /// The images of a result are scaled down before they are kept.
    const MOST_BYTES: u64 = 64 << 20;
    const TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    let text = |key: &str| described.get(key).and_then(Value::as_str);
    let size = |key: &str| described.get(key).and_then(Value::as_u64)?.try_into().ok();
    let media_type = TYPES.into_iter().find(|known| text("media_type") == Some(known))?;
    let bytes = directory.read_output(text("file")?, MOST_BYTES).ok()?;
    Some(Image {
        media_type,
        width: size("width")?,
        height: size("height")?,
        base64: base64::engine::general_purpose::STANDARD.encode(bytes).into(),
    })
}
