//! A run that continues after the death or the stop of the daemon cut it off.
//!
//! *Source*: `docs/design/loop.md`, "After a crash".

use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

use super::controls::Controls;
use super::ended::{Ended, ended_early};
use super::execute::{
    begin_work, conclude, leave_queue, marker, recall_text, repository_text, run_apart,
    session_parts, suspended, task,
};
use super::history::RunHistory;
use super::host::{Host, RunError};
use super::precheck::recorded_text;
use super::prompt::documents;
use super::scope::{Continued, RunScope};
use super::spec::RunSpec;
use super::temporary::with_room;
use crate::agent::{
    RebuildError, Rebuilt, RecordedStart, Session, SessionParts, SessionResult, Sources,
    SystemPrompt, WaitingTexts, last_model, rebuild,
};
use crate::config::SandboxMode;
use crate::domain::{Event, Image, StopReason};
use crate::store::{RunDir, RunLock, RunSummary};

/// What a run needs to continue.
#[derive(Debug)]
pub struct Resumption {
    /// The lock of the run, from before.
    pub lock: RunLock,
    pub history: RunHistory,
    /// How long it has worked.
    pub worked: Duration,
    /// Number of processes of the dead daemon that were killed.
    pub killed: u64,
    /// Number of bytes that were cut off because the last line was torn.
    pub cut_bytes: u64,
}

/// Continues a run to its end. Otherwise behaves like [`execute`](super::execute::execute).
///
/// *Errors*: [`RunError`]; the run then stays open. *Cancel*: through `controls`.
pub async fn resume(
    spec: RunSpec,
    host: Host,
    controls: Controls,
    resumption: Resumption,
) -> Result<Ended, RunError> {
    let Resumption { lock, history, worked, killed, cut_bytes } = resumption;
    let continued = Continued { lock, worked, history: &history };
    let (spec, little_space) = with_room(spec, &host.state);
    let mut scope = RunScope::begin(spec, host, controls, Some(continued)).await?;
    let resumed = Event::SessionResumed {
        from_seq: history.lines,
        count: history.resumptions + 1,
        killed,
        worked_ms: u64::try_from(worked.as_millis()).ok(),
    };
    scope.record(resumed).await?;
    if let Some(warning) = little_space {
        scope.record(warning).await?;
    }
    if cut_bytes > 0 {
        let message = format!("cut {cut_bytes} bytes of a torn last line");
        scope.record(Event::warning("torn_tail", message)).await?;
    }
    leave_queue(&scope.spec.run_id, &scope.host).await;
    scope.accept_texts(Some(&history)).await?;
    if let Some(stop) = scope.stop.given()
        && !scope.is_suspending()
    {
        let result = end_without_session(&scope, &history, stop.reason, None).await;
        return Ok(conclude(scope, result).await);
    }
    scope.start_servers().await?;
    if let Some(todos) = history.todos.clone() {
        scope.ctx.set_todos(todos);
    }
    let result = match (scope.spec.job.sandbox, crate::process::sandbox_support()) {
        // The servers may not have started.
        _ if scope.is_suspending() => suspended(),
        (SandboxMode::Enforce, Err(error)) => {
            let error = format!("the tools of the run can no longer be sandboxed: {error}");
            end_unresumable(&scope, &history, error).await
        }
        _ if let Some(error) = scope.hangs => {
            end_unresumable(&scope, &history, error.to_string()).await
        }
        _ if RecordedStart::find(&history.events).is_none() => {
            let documents = documents(&scope).await;
            begin_work(&mut scope, &documents.text, Some(&history)).await?
        }
        _ => {
            // The checklist was evaluated before; a host that does not answer fails its calls.
            let _ = scope.connect().await;
            continue_session(&scope, &history).await
        }
    };
    Ok(conclude(scope, result).await)
}

async fn continue_session(scope: &RunScope, history: &RunHistory) -> SessionResult {
    let Some(start) = RecordedStart::find(&history.events) else {
        return end_unresumable(scope, history, "the transcript has no start".to_owned()).await;
    };
    let marker = match marker(scope) {
        Ok(marker) => marker,
        Err(result) => return with_totals(result, history.summary()),
    };
    let repository = if start.lacks_repository() {
        repository_text(scope, &marker).await
    } else {
        start.repository.clone()
    };
    let recall =
        if start.lacks_recall() { recall_text(scope, &marker).await } else { start.recall.clone() };
    let system = SystemPrompt { text: start.system, stable: start.stable, repository, recall };
    let mut parts = match session_parts(scope, system, Some(history)).await {
        Ok(parts) => parts,
        Err(result) => return with_totals(result, history.summary()),
    };
    if history.precheck.found_work.is_some() {
        parts.machine.count_precheck();
    }
    let rebuilt = match rebuilt(scope, history, &mut parts) {
        Ok(rebuilt) => rebuilt,
        Err(error) => return end_unresumable(scope, history, error.to_string()).await,
    };
    let model = last_model(&history.events).map(str::to_owned);
    let session = Session::new(parts);
    let work = async move { session.resume(rebuilt, model.as_deref()).await };
    run_apart(scope, work).await
}

/// Ends a run that cannot continue. `why` is for the operator.
async fn end_unresumable(scope: &RunScope, history: &RunHistory, why: String) -> SessionResult {
    end_without_session(scope, history, StopReason::Interrupted, Some(why)).await
}

/// Ends a run that does not continue, after a warning for each call whose effect is unknown. `error`
/// is for the operator.
async fn end_without_session(
    scope: &RunScope,
    history: &RunHistory,
    stop_reason: StopReason,
    error: Option<String>,
) -> SessionResult {
    for warning in history.unknown_effects() {
        if let Err(error) = scope.record(warning).await {
            return ended_early(StopReason::RecordFailed, error.to_string());
        }
    }
    let mut result = with_totals(ended_early(stop_reason, String::new()), history.summary());
    result.end.error = error;
    result.counters.tools_used.clone_from(&history.tools_used);
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
    history: &RunHistory,
    parts: &mut SessionParts,
) -> Result<Rebuilt, RebuildError> {
    let models = &parts.models;
    let facts = |name: Option<&str>| {
        let named = models.iter().find(|model| Some(model.name.as_str()) == name);
        named.or(models.first()).map(|model| model.facts).unwrap_or_default()
    };
    let sources = Sources {
        events: &history.events,
        marker: &parts.marker,
        model: &facts,
        image: &|described| image(&scope.directory, described),
        task: task(scope, recorded_text(&scope.spec.job, &parts.marker, history)),
        waiting: WaitingTexts::of(&history.waiting_texts),
    };
    rebuild(&mut parts.machine, &sources)
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
