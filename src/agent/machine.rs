//! The loop as a pure machine: (state, input) → (events, action).
//!
//! The machine decides what to say, what to run and when to stop. The driver (`session.rs`)
//! performs the actions: it records the events *before* it performs the action, so the transcript
//! announces every action that takes effect. *Source*: `docs/design/loop.md`.

mod answer;
mod calls;
mod input;
mod limits;
mod malformed;
mod outcome;
mod reply;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::counters::{Charge, Counters};
use super::dispatch::{CallOutcome, Changes, Dispatch, Planned, Settled};
use super::inbox::WaitingTexts;
use super::model::{ModelError, ModelReply};
use super::prompt::SystemPrompt;
use super::repetition::Window;
use super::rules::{ModelFacts, Rules};
use super::tool::Toolbox;
use super::verify::Check;
use crate::catalogue::CacheWrites;
use crate::domain::{
    AssistantTurn, CallId, ErrorKind, Event, FinishReason, InputSource, StopReason, ToolResult,
    Turn,
};
use answer::AnswerFault;
pub(super) use outcome::is_answer_correction;
use reply::{ReplyFacts, Timing, assistant_event};

/// An input to the machine: something that happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// An input of the session: its task, or a follow-up.
    Submit(String, InputSource),
    /// A text that a person gave while the session worked.
    Steer(String),
    /// The correction of a malformed call, as an earlier version recorded it: without the reason.
    Corrected(String),
    Reply {
        reply: Box<ModelReply>,
        /// Milliseconds from the request to the last byte.
        latency_ms: u64,
        /// Milliseconds from the request to the first text.
        first_token_ms: Option<u64>,
        /// The model that answered.
        model: ModelFacts,
        /// The name of this model in the configuration.
        model_name: String,
        /// The cost in the transcript, if the reply is read from there. The price may have changed
        /// since then.
        recorded: Option<Charge>,
        /// How long the run has worked, in whole milliseconds.
        elapsed: Duration,
    },
    /// The model gave no reply, and the session will not retry.
    ModelFailed(ModelError),
    /// The results of every call of the last reply, in call order.
    Results(Vec<CallOutcome>),
    /// The results of every check of a round, in order.
    Verified(Vec<Check>),
    /// The run must end now.
    Stop(StopReason),
}

/// The action that the driver performs next.
#[derive(Debug, Clone)]
pub enum Action {
    /// Take the first steering text that waits; if none does, call the model with
    /// [`Machine::history`].
    CallModel,
    /// Take the first follow-up as the next input.
    NextInput,
    /// Run these calls, or answer them without running them.
    RunCalls(Vec<Dispatch>),
    /// Make the checks of this round, which counts from 1, except for those in `done`.
    Verify {
        round: u32,
        done: Vec<Check>,
    },
    End(End),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Why the loop stopped.
    pub stop_reason: StopReason,
    /// The last text of the session: from the model, or the message about the limit that ended it.
    pub result: Option<String>,
    /// The JSON value of the answer, if the job has an `output_schema` and the answer matches it.
    pub answer: Option<Value>,
    /// What went wrong, for the operator.
    pub error: Option<String>,
}

/// The events to record, and the action to perform afterwards.
#[derive(Debug, Clone)]
pub struct Step {
    /// The events, in order.
    pub events: Vec<Event>,
    /// The action, to be performed once the events are recorded.
    pub action: Action,
}

/// The state of the loop.
#[derive(Debug)]
pub struct Machine {
    rules: Rules,
    /// The model of the next request.
    model: ModelFacts,
    toolbox: Arc<Toolbox>,
    system: SystemPrompt,
    tools_bytes: usize,
    history: Vec<Turn>,
    counters: Counters,
    changes: Changes,
    call_ids: BTreeSet<CallId>,
    confirmed: bool,
    /// Whether the run may succeed: a call worked, the precheck answered, or the rules or the tools
    /// require no call.
    has_looked: bool,
    last_text: String,
    failed_in_a_row: u64,
    malformed_in_a_row: u32,
    /// The faults of the last answers that the loop has corrected.
    faults: BTreeSet<AnswerFault>,
    /// How often the model had to correct an answer that does not match `output_schema`.
    output_corrections: u32,
    /// The JSON value of the last answer that matches `output_schema`.
    answer: Option<Value>,
    /// The rounds of checks so far, and those of them in which a check failed.
    verify_rounds: u32,
    failed_rounds: u32,
    /// The texts that wait for the session.
    waiting: WaitingTexts,
    calls_denied_by_budget: bool,
    window: Option<Window>,
    detections: u64,
    over_window: bool,
    /// Whether a transcript shows that the next request was made.
    was_asked: bool,
    noticed: BTreeSet<&'static str>,
    /// Time from the start of the run to the last reply.
    elapsed: Duration,
}

impl Machine {
    /// Returns a machine that waits for [`Input::Submit`].
    #[must_use]
    pub fn new(
        rules: Rules,
        model: ModelFacts,
        toolbox: Arc<Toolbox>,
        system: SystemPrompt,
    ) -> Self {
        let tools_bytes = toolbox
            .offered()
            .iter()
            .map(|tool| tool.description.len() + tool.parameters.to_string().len())
            .sum();
        Self {
            confirmed: !rules.confirm || toolbox.offered().is_empty(),
            has_looked: !rules.needs_call || !can_look(&toolbox),
            window: rules.loop_window.map(Window::new),
            rules,
            model,
            toolbox,
            system,
            tools_bytes,
            history: Vec::new(),
            counters: Counters::default(),
            changes: Changes::default(),
            call_ids: BTreeSet::new(),
            last_text: String::new(),
            failed_in_a_row: 0,
            malformed_in_a_row: 0,
            faults: BTreeSet::new(),
            output_corrections: 0,
            answer: None,
            verify_rounds: 0,
            failed_rounds: 0,
            waiting: WaitingTexts::default(),
            calls_denied_by_budget: false,
            detections: 0,
            over_window: false,
            was_asked: false,
            noticed: BTreeSet::new(),
            elapsed: Duration::ZERO,
        }
    }

    /// Counts the precheck of the run, which gave an answer, as a call that worked.
    pub fn count_precheck(&mut self) {
        self.has_looked = true;
    }

    /// Returns the history so far.
    #[must_use]
    pub fn history(&self) -> &[Turn] {
        &self.history
    }

    /// Returns the system prompt.
    #[must_use]
    pub fn system(&self) -> &SystemPrompt {
        &self.system
    }

    /// Returns the tools of the run.
    #[must_use]
    pub fn toolbox(&self) -> &Arc<Toolbox> {
        &self.toolbox
    }

    /// Returns the rules of the run.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the change plan so far.
    #[must_use]
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns how many lines of files the run may still change.
    pub(super) fn lines_left(&self) -> u64 {
        self.rules.limits.max_lines_changed.saturating_sub(self.counters.spent.lines)
    }

    /// Returns what the run has used so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sets which texts wait for the session. Call it before each step.
    pub fn set_waiting(&mut self, waiting: WaitingTexts) {
        self.waiting = waiting;
    }

    /// Handles an input. Returns the events to record and the action to perform after them.
    pub fn step(&mut self, input: Input) -> Step {
        self.take(input, None)
    }

    /// Handles a reply of a transcript. Like [`Self::step`], but does not ask the gate about the
    /// calls: it counts those in `decided`, and the caller handles the others.
    pub(super) fn replay(&mut self, input: Input, decided: &BTreeMap<CallId, Settled>) -> Step {
        self.take(input, Some(decided))
    }

    fn take(&mut self, input: Input, decided: Option<&BTreeMap<CallId, Settled>>) -> Step {
        let mut events = Vec::new();
        let action = match input {
            Input::Submit(text, source) => self.on_submit(text, source, &mut events),
            Input::Steer(text) => self.on_steer(text, &mut events),
            Input::Corrected(text) => self.correct_call(text, None, &mut events),
            Input::Reply {
                reply,
                latency_ms,
                first_token_ms,
                model,
                model_name,
                recorded,
                elapsed,
            } => {
                self.elapsed = elapsed;
                self.counters.spent.refill(self.rules.gate.rate, elapsed);
                // The next request goes to the model that answered.
                self.model = model;
                let timing = Timing { latency_ms, first_token_ms, elapsed };
                self.on_reply(*reply, recorded, model_name, timing, decided, &mut events)
            }
            Input::ModelFailed(error) => self.on_failure(error, &mut events),
            Input::Results(results) => self.on_results(results, &mut events),
            Input::Verified(checks) => self.on_verified(&checks, &mut events),
            Input::Stop(reason) => self.on_stop(reason, &mut events),
        };
        Step { events, action }
    }

    fn on_reply(
        &mut self,
        mut reply: ModelReply,
        recorded: Option<Charge>,
        model_name: String,
        timing: Timing,
        decided: Option<&BTreeMap<CallId, Settled>>,
        events: &mut Vec<Event>,
    ) -> Action {
        let estimated = self.estimate();
        let (price, len) = (self.model.price, self.history.len() + 1);
        let charge = self.counters.answer(&reply, len, estimated, price, recorded);
        let explanation = reply.explanation.take();
        let cache_writes = reply.cache_writes;
        let turn = self.assistant_turn(reply);
        let facts = ReplyFacts { model: Some(model_name), charge, cache_writes, timing };
        events.push(assistant_event(&turn, &self.toolbox, facts));
        let (finish_reason, text) = (turn.finish_reason, turn.text.clone());
        let calls = turn.tool_calls.clone();
        self.history.push(Turn::Assistant(Box::new(turn)));
        if !text.trim().is_empty() {
            self.last_text.clone_from(&text);
        }
        if finish_reason != FinishReason::InvalidToolCall {
            self.malformed_in_a_row = 0;
        }
        if !calls.is_empty() {
            self.faults.clear();
        }
        match finish_reason {
            FinishReason::Refusal | FinishReason::ContentFilter => {
                let verb =
                    if finish_reason == FinishReason::Refusal { "refused" } else { "filtered" };
                let words = explanation.map(|words| format!(": {words}")).unwrap_or_default();
                let error = format!("the provider {verb} the content{words}");
                self.end(StopReason::Refused, Some(error), events)
            }
            FinishReason::InvalidToolCall => {
                self.leave_unanswered();
                self.on_malformed("the provider could not parse the call", events)
            }
            FinishReason::Pause if calls.is_empty() => self.ask_or_stop(events),
            _ if !calls.is_empty() => match decided {
                Some(decided) => {
                    self.count_calls(&calls, decided);
                    Action::RunCalls(Vec::new())
                }
                None => {
                    let (dispatches, decisions) = self.dispatch_rest(&BTreeMap::new());
                    events.extend(decisions);
                    Action::RunCalls(dispatches)
                }
            },
            _ => self.on_answer(&text, finish_reason, events),
        }
    }

    /// Removes the calls of the last reply from the history: they are not run, so they get no
    /// results.
    fn leave_unanswered(&mut self) {
        if let Some(Turn::Assistant(turn)) = self.history.last_mut() {
            turn.tool_calls.clear();
            turn.provider_data = None;
        }
    }

    fn on_results(&mut self, results: Vec<CallOutcome>, events: &mut Vec<Event>) -> Action {
        let counted = || {
            results
                .iter()
                .filter(|result| result.error_kind.is_none_or(ErrorKind::counts_as_failure))
        };
        if counted().any(|result| result.error_kind.is_none()) {
            self.failed_in_a_row = 0;
        } else if counted().next().is_some() {
            self.failed_in_a_row += 1;
        }
        self.has_looked |= results
            .iter()
            .any(|result| result.error_kind.is_none() && looks(&result.name, &self.toolbox));
        for result in &results {
            match &result.planned {
                Planned::Nothing => {}
                Planned::Changed => self.changes.reads.clear(),
                Planned::Read(read) => self.changes.reads.push(read.clone()),
                Planned::Step(step) => self.changes.steps.push(step.as_ref().clone()),
            }
            self.counters.spent.files.extend(result.modified.iter().cloned());
            self.counters.spent.lines += result.lines_changed;
        }
        let turn = results
            .into_iter()
            .map(|result| ToolResult {
                call_id: result.call_id,
                name: result.name,
                is_error: result.error_kind.is_some(),
                content: result.content,
                images: result.images,
            })
            .collect();
        self.history.push(Turn::ToolResults(turn));
        if self.failed_in_a_row >= self.rules.limits.error_threshold {
            events.push(Event::TurnLimit {
                limit: "error_threshold".to_owned(),
                value: self.rules.limits.error_threshold.into(),
            });
            let error = match self.failed_in_a_row {
                1 => "every call of the last response failed".to_owned(),
                count => format!("every call failed in {count} responses in a row"),
            };
            return self.close(
                StopReason::ErrorThreshold,
                "Stopped: every call of the last responses failed.",
                Some(error),
                events,
            );
        }
        match self.detect_repetition(events) {
            Some(action) => action,
            None => self.ask_or_stop(events),
        }
    }

    /// Ends the run at a limit, with `message` as the final assistant turn.
    fn close(
        &mut self,
        stop_reason: StopReason,
        message: &str,
        error: Option<String>,
        events: &mut Vec<Event>,
    ) -> Action {
        let turn = AssistantTurn {
            text: message.to_owned(),
            reasoning: None,
            tool_calls: Vec::new(),
            finish_reason: FinishReason::Stop,
            stop_reason: None,
            usage: None,
            response_id: None,
            provider_data: None,
        };
        let timing = Timing { latency_ms: 0, first_token_ms: None, elapsed: self.elapsed };
        let facts = ReplyFacts {
            model: None,
            charge: Charge { usd: Some(0.0), is_estimated: false },
            cache_writes: CacheWrites::default(),
            timing,
        };
        events.push(assistant_event(&turn, &self.toolbox, facts));
        self.history.push(Turn::Assistant(Box::new(turn)));
        message.clone_into(&mut self.last_text);
        self.end(stop_reason, error, events)
    }

    fn end(
        &mut self,
        stop_reason: StopReason,
        error: Option<String>,
        events: &mut Vec<Event>,
    ) -> Action {
        events.push(Event::ProcessingEnd { iterations: self.counters.iterations });
        let result = Some(self.last_text.clone()).filter(|text| !text.is_empty());
        Action::End(End { stop_reason, result, answer: None, error })
    }
}

/// The built-in tools that look at nothing outside the run.
const LOOK_AT_NOTHING: &[&str] = &["todo_read", "todo_write", "skill"];

fn looks(name: &str, toolbox: &Toolbox) -> bool {
    !LOOK_AT_NOTHING.contains(&toolbox.canonical(name))
}

/// Tells whether a tool of the run looks at something outside the run.
fn can_look(toolbox: &Toolbox) -> bool {
    toolbox.offered().iter().any(|tool| looks(&tool.name, toolbox))
}

#[cfg(test)]
mod tests;
