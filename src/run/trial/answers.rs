//! The recorded results of a run, as the tools and the checks of a trial.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::agent::{
    AgentTool, ApprovalAnswer, ApprovalRequest, Approver, CallContext, CallOutput, Check, Marker,
    PreparedCall, RecordError, ToolDefinition, ToolRunner, ToolSpec, Verifier,
};
use crate::argv::ArgumentConditions;
use crate::clock::Clock;
use crate::config::Job;
use crate::domain::{CallEnd, CallError, CallId, Category, ErrorKind, Stop, StopReason};
use crate::run::history::RunHistory;

/// A tool and its canonical arguments.
type Key = (String, String);

/// The recorded results of the calls of a run.
pub(super) struct Answers {
    calls: BTreeMap<Key, Vec<CallEnd>>,
    checks: BTreeMap<Key, (bool, String, CallEnd)>,
    state: Mutex<State>,
    /// Ends the trial.
    stop: watch::Sender<Option<Stop>>,
}

#[derive(Default)]
struct State {
    /// How often each call was made.
    made: BTreeMap<Key, usize>,
    answered: u64,
    unanswered: Option<String>,
}

fn key(tool: &str, arguments: &Map<String, Value>) -> Key {
    let sorted: BTreeMap<&String, &Value> = arguments.iter().collect();
    (tool.to_owned(), serde_json::json!(sorted).to_string())
}

impl Answers {
    /// Returns the results in a record. `stop` ends the trial when one is missing.
    pub(super) fn of(history: &RunHistory, stop: watch::Sender<Option<Stop>>) -> Self {
        let mut calls = BTreeMap::<Key, Vec<CallEnd>>::new();
        for (start, end) in history.ended_calls() {
            if !end.call_id.is_verify() {
                calls.entry(key(&start.name, &start.arguments)).or_default().push(end.clone());
            }
        }
        let checks = history.check_results().map(|(end, tool, arguments, ok, detail)| {
            (key(tool, arguments), (ok, detail.to_owned(), end.clone()))
        });
        Self { calls, checks: checks.collect(), state: Mutex::default(), stop }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the recorded result of a call, the first one first. A call that is made more often than
    /// in the record gets its last result again.
    fn call(&self, tool: &str, arguments: &Map<String, Value>) -> Option<CallEnd> {
        let key = key(tool, arguments);
        let mut state = self.state();
        let found = self.calls.get(&key).and_then(|ends| {
            let nth = state.made.get(&key).copied().unwrap_or(0);
            ends.get(nth).or(ends.last()).cloned()
        });
        match &found {
            Some(_) => {
                *state.made.entry(key).or_default() += 1;
                state.answered += 1;
            }
            None => self.end(&mut state, format!("{} {}", key.0, key.1)),
        }
        found
    }

    fn end(&self, state: &mut State, unanswered: String) {
        state.unanswered.get_or_insert(unanswered);
        // The session may have ended meanwhile.
        let _ = self.stop.send(Some(StopReason::Cancelled.into()));
    }

    /// Returns the number of answered calls, and the call that the record could not answer.
    pub(super) fn outcome(&self) -> (u64, Option<String>) {
        let state = self.state();
        (state.answered, state.unanswered.clone())
    }
}

/// A tool that answers from the record.
pub(super) struct RecordedTool {
    pub(super) tool: Arc<dyn AgentTool>,
    pub(super) answers: Arc<Answers>,
}

impl ToolSpec for RecordedTool {
    fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }

    fn category(&self) -> Category {
        self.tool.category()
    }

    fn destructive_when(&self) -> &[ArgumentConditions] {
        self.tool.destructive_when()
    }

    fn is_available(&self) -> bool {
        self.tool.is_available()
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        self.tool.prepare(arguments)
    }
}

#[async_trait]
impl ToolRunner for RecordedTool {
    async fn run(&self, call: &PreparedCall, _context: &CallContext) -> CallOutput {
        match self.answers.call(&self.tool.definition().name, &call.arguments) {
            Some(end) => output(&end),
            None => CallOutput::of_error(&CallError::new(
                ErrorKind::Interrupted,
                "The record has no result of this call, so the trial ends.",
            )),
        }
    }
}

fn output(end: &CallEnd) -> CallOutput {
    CallOutput {
        content: end.shown().to_owned(),
        error_kind: end.error_kind,
        output: end.output.clone(),
        output_bytes: end.output_bytes,
        truncated: end.truncated,
        exit_code: end.exit_code,
        signal: end.signal,
        timed_out: end.timed_out,
        digest: end.digest.clone(),
        modified: end.modified.iter().map(Into::into).collect(),
        lines_changed: end.lines_changed,
        ..CallOutput::default()
    }
}

/// The checks of `verify`, with their recorded results.
pub(super) struct RecordedChecks {
    pub(super) job: Arc<Job>,
    pub(super) vars: BTreeMap<String, String>,
    pub(super) marker: Marker,
    pub(super) answers: Arc<Answers>,
}

#[async_trait]
impl Verifier for RecordedChecks {
    async fn verify(
        &self,
        round: u32,
        mut done: Vec<Check>,
    ) -> Result<Option<Vec<Check>>, RecordError> {
        for (at, step) in self.job.verify.iter().enumerate().skip(done.len()) {
            let call_id = CallId::verify(round, at + 1);
            let (tool, arguments) = (step.call.tool.to_string(), step.call.arguments(&self.vars));
            let key = key(&tool, &arguments);
            let Some((ok, detail, end)) = self.answers.checks.get(&key) else {
                let unanswered = format!("verify: {} {}", key.0, key.1);
                self.answers.end(&mut self.answers.state(), unanswered);
                return Ok(None);
            };
            let shown = self.marker.wrap(&call_id, end.shown());
            done.push(Check { call_id, tool, ok: *ok, detail: detail.clone(), shown });
        }
        Ok(Some(done))
    }
}

/// Approves each call, because no call has an effect.
pub(super) struct ApprovesAll(pub(super) Arc<dyn Clock>);

#[async_trait]
impl Approver for ApprovesAll {
    fn expires_at(&self, timeout: std::time::Duration) -> DateTime<Utc> {
        self.0.now() + timeout
    }

    async fn ask(&self, _request: ApprovalRequest) -> ApprovalAnswer {
        ApprovalAnswer { approved: true, by: "trial".to_owned(), reason: None }
    }
}
