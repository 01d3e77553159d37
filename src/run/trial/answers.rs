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
use crate::text::redact::Redactor;

/// A tool and its canonical arguments.
type Key = (String, String);

/// The recorded results of the calls of a run.
pub(super) struct Answers {
    calls: BTreeMap<Key, Vec<CallEnd>>,
    /// The results of each check, in the order of the rounds.
    checks: BTreeMap<Key, Vec<(bool, String, CallEnd)>>,
    /// The outputs of the dry runs.
    dry_runs: BTreeMap<Key, String>,
    redactor: Redactor,
    state: Mutex<State>,
    /// Ends the trial.
    stop: watch::Sender<Option<Stop>>,
}

#[derive(Default)]
struct State {
    /// How often each call was made.
    made: BTreeMap<Key, usize>,
    /// How often each check was made.
    checked: BTreeMap<Key, usize>,
    answered: u64,
    unanswered: Option<String>,
}

fn key(tool: &str, arguments: &Map<String, Value>) -> Key {
    (tool.to_owned(), canonical(&Value::Object(arguments.clone())).to_string())
}

/// Returns a value with sorted keys, and with whole numbers in one spelling.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, Value> =
                map.iter().map(|(key, value)| (key, canonical(value))).collect();
            serde_json::json!(sorted)
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Number(number) => match number.as_f64() {
            Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
                serde_json::json!(format!("{number:.0}"))
            }
            _ => value.clone(),
        },
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

impl Answers {
    /// Returns the results in a record. `stop` ends the trial when one is missing. `redactor` removes the
    /// secrets from the arguments of calls, as the record has them.
    pub(super) fn of(
        history: &RunHistory,
        redactor: Redactor,
        stop: watch::Sender<Option<Stop>>,
    ) -> Self {
        let mut calls = BTreeMap::<Key, Vec<CallEnd>>::new();
        for (start, end) in history.asked_calls() {
            calls.entry(key(&start.name, &start.arguments)).or_default().push(end.clone());
        }
        let mut checks = BTreeMap::<Key, Vec<_>>::new();
        for (end, tool, arguments, ok, detail) in history.check_results() {
            let check = (ok, detail.to_owned(), end.clone());
            checks.entry(key(tool, arguments)).or_default().push(check);
        }
        let dry_runs = history.planned_steps().filter_map(|step| {
            Some((key(&step.name, &step.arguments), step.dry_run_output.clone()?))
        });
        let dry_runs = dry_runs.collect();
        Self { calls, checks, dry_runs, redactor, state: Mutex::default(), stop }
    }

    fn key(&self, tool: &str, arguments: &Map<String, Value>) -> Key {
        let mut arguments = Value::Object(arguments.clone());
        self.redactor.value(&mut arguments, &[]);
        arguments.as_object().map_or_else(|| key(tool, &Map::new()), |clean| key(tool, clean))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the recorded result of a call, the first one first. A call that is made more often than
    /// in the record gets its last result again.
    fn call(&self, tool: &str, arguments: &Map<String, Value>) -> Option<CallEnd> {
        let key = self.key(tool, arguments);
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

    fn dry_run(&self, tool: &str, arguments: &Map<String, Value>) -> Option<&String> {
        self.dry_runs.get(&self.key(tool, arguments))
    }

    /// Returns the recorded result of a check, in the order of the rounds; the last one again.
    fn check(&self, key: &Key) -> Option<&(bool, String, CallEnd)> {
        let results = self.checks.get(key)?;
        let mut state = self.state();
        let made = state.checked.entry(key.clone()).or_default();
        *made += 1;
        results.get(*made - 1).or(results.last())
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

    fn dry_run_of(&self, call: &PreparedCall) -> Option<PreparedCall> {
        let recorded = self.answers.dry_run(&self.tool.definition().name, &call.arguments);
        recorded.and_then(|_| self.tool.dry_run_of(call))
    }
}

#[async_trait]
impl ToolRunner for RecordedTool {
    async fn dry_run(&self, call: &PreparedCall, _context: &CallContext) -> CallOutput {
        let recorded = self.answers.dry_run(&self.tool.definition().name, &call.arguments);
        let output = recorded.cloned().unwrap_or_default();
        CallOutput { content: output.clone(), output: Some(output), ..CallOutput::default() }
    }

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
            let key = self.answers.key(&tool, &arguments);
            let Some((ok, detail, end)) = self.answers.check(&key) else {
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
