//! The end of a run: its last line, with secrets removed.

use std::time::Duration;

use serde_json::Value;

use crate::agent::{End, SessionResult};
use crate::domain::{Outage, Outcome, Person, RunId, SessionEnd, StopReason, Usage};
use crate::store::{RecordEnd, RunSummary};
use crate::text::answer::whole_object;
use crate::text::redact::{Redacted, Redactor};

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Ended {
    pub run_id: RunId,
    pub end: Redacted<SessionEnd>,
    pub exit: RunExit,
    /// Whether the run has started a write or admin call.
    pub has_started_change: bool,
    /// The summary of the run; `None` if its first or its last line was not written.
    pub row: Option<RunSummary>,
    /// The end of its record; `None` if it was not written.
    pub record_end: Option<RecordEnd>,
    /// The models that failed its last request.
    pub outages: Vec<Outage>,
}

/// How far the end of a run got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunExit {
    /// The last line is in the transcript, and the ledger and the index have the end.
    Complete,
    /// The last line is in the transcript. The ledger or the index lacks the end, for this reason.
    EndUnrecorded(String),
    /// The run is over, but its last line could not be written.
    RecordFailed,
    /// The run is not over: the next start of the daemon continues it.
    Suspended,
}

impl Ended {
    /// Returns the end of a run whose process died, with all counters at zero.
    #[must_use]
    pub fn interrupted_end(error: &str) -> SessionEnd {
        SessionEnd {
            outcome: Outcome::Interrupted,
            stop_reason: StopReason::Interrupted,
            result: None,
            verdict: None,
            iterations: 0,
            tool_calls: 0,
            tools_used: Vec::new(),
            usage: Usage::default(),
            cost_usd: None,
            cost_estimated: false,
            duration_ms: 0,
            survivors: 0,
            by: None,
            error: Some(error.to_owned()),
        }
    }
}

/// Returns the result of a run that has no session, or whose session panicked: all counters are
/// zero.
pub(super) fn ended_early(stop_reason: StopReason, error: String) -> SessionResult {
    SessionResult {
        end: End { stop_reason, result: None, answer: None, error: Some(error) },
        counters: Default::default(),
        changes: Default::default(),
        survivors: 0,
        is_suspended: false,
        outages: Vec::new(),
    }
}

/// Returns the last line of a run with secrets removed, because it is also printed and logged.
pub(super) fn session_end(
    result: &SessionResult,
    worked: Duration,
    by: Option<Person>,
    redactor: &Redactor,
) -> Redacted<SessionEnd> {
    let of_schema = result.end.answer.clone();
    let answer = of_schema.or_else(|| result.end.result.as_deref().map(answer_value));
    let verdict = answer
        .as_ref()
        .and_then(|answer| answer.get("status"))
        .and_then(Value::as_str)
        .map(str::to_owned);
    let end = SessionEnd {
        outcome: result.end.stop_reason.outcome(),
        stop_reason: result.end.stop_reason,
        result: answer,
        verdict,
        iterations: result.counters.iterations,
        tool_calls: result.counters.spent.calls,
        tools_used: result.counters.tools_used.iter().cloned().collect(),
        usage: result.counters.usage,
        cost_usd: result.counters.cost,
        cost_estimated: result.counters.cost_is_estimated,
        duration_ms: u64::try_from(worked.as_millis()).unwrap_or(u64::MAX),
        survivors: result.survivors,
        by: by.filter(|_| result.end.stop_reason == StopReason::Cancelled),
        error: result.end.error.clone(),
    };
    redactor.clean(end, |end, redactor| {
        let texts = end.error.iter_mut().chain(&mut end.verdict).chain(&mut end.tools_used);
        for text in texts {
            *text = redactor.text(text).into_owned();
        }
        if let Some(result) = &mut end.result {
            redactor.value(result, &[]);
        }
    })
}

/// Returns an answer as a JSON object if it is one, without a code fence around it; else as text.
fn answer_value(text: &str) -> Value {
    match whole_object(text) {
        Some(object) => Value::Object(object),
        None => Value::String(text.to_owned()),
    }
}
