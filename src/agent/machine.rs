//! The loop as a pure machine: (state, input) → (events, action).
//!
//! It decides what is said, run and stopped, and never does any of it. The driver records the events *before* it does the action, so that the
//! record is ahead of the world. *Source*: `docs/design/loop.md`.

mod limits;
mod reply;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::dispatch::{CallOutcome, Changes, Dispatch, Planned, dispatch_calls};
use super::model::{ErrorClass, ModelError, ModelReply};
use super::prompt::SystemPrompt;
use super::repetition::Window;
use super::rules::{ModelFacts, Rules};
use super::tool::Toolbox;
use crate::domain::{
    AssistantTurn, CallId, ErrorKind, Event, FinishReason, InputSource, StopReason, ToolResult,
    Turn,
};
use reply::assistant_event;

/// Malformed calls in a row that the model is told about; the next one ends the run.
const MALFORMED_TOLD: u32 = 2;

const CONFIRMATION: &str = "Before this is accepted as the final answer: check that every part of the task is done and that each claim rests on what the tools returned. If something is left, go on working. If all is done, restate the final answer in full.";

/// What happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// The task.
    Start(String),
    /// The model answered.
    Reply {
        /// The answer.
        reply: Box<ModelReply>,
        /// From the request to the last byte.
        latency_ms: u64,
        /// From the request to the first text.
        first_token_ms: Option<u64>,
        /// The model that answered.
        model: ModelFacts,
        /// From the start of the run to now.
        elapsed: Duration,
    },
    /// It did not, after all retries.
    ModelFailed(ModelError),
    /// Every call of the last answer has its result, in call order.
    Results(Vec<CallOutcome>),
    /// The run is to end now.
    Stop(StopReason),
}

/// What is to be done next.
#[derive(Debug, Clone)]
pub enum Action {
    /// Ask the model, with [`Machine::history`].
    CallModel,
    /// Answer or run these calls.
    RunCalls(Vec<Dispatch>),
    /// Nothing more.
    End(End),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub stop_reason: StopReason,
    /// The final text.
    pub result: Option<String>,
    /// What went wrong, for the operator.
    pub error: Option<String>,
}

/// What is to be recorded, and then done.
#[derive(Debug, Clone)]
pub struct Step {
    /// In order.
    pub events: Vec<Event>,
    /// After they are recorded.
    pub action: Action,
}

/// The loop's state.
#[derive(Debug)]
pub struct Machine {
    rules: Rules,
    /// The model that is asked next.
    model: ModelFacts,
    toolbox: Arc<Toolbox>,
    system: SystemPrompt,
    tools_bytes: usize,
    history: Vec<Turn>,
    counters: Counters,
    changes: Changes,
    call_ids: BTreeSet<CallId>,
    confirmed: bool,
    last_text: String,
    failed_in_a_row: u64,
    malformed_in_a_row: u32,
    calls_denied_by_budget: bool,
    window: Option<Window>,
    detections: u64,
    over_window: bool,
    noticed: BTreeSet<&'static str>,
    /// From the start of the run to the last answer.
    elapsed: Duration,
}

impl Machine {
    /// Returns a machine that waits for its task.
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
            calls_denied_by_budget: false,
            detections: 0,
            over_window: false,
            noticed: BTreeSet::new(),
            elapsed: Duration::ZERO,
        }
    }

    /// Returns the history as it stands.
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

    /// Returns what was planned.
    #[must_use]
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns what has been used up.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes what happened; returns what is to be recorded and then done.
    pub fn step(&mut self, input: Input) -> Step {
        let mut events = Vec::new();
        let action = match input {
            Input::Start(text) => {
                events.push(Event::SystemPrompt { text: self.system.text.clone() });
                let repository = self.system.repository.take();
                if let Some(text) = &repository {
                    let source = InputSource::Repository;
                    events.push(Event::UserInput { text: text.clone(), source });
                }
                let source = InputSource::Job;
                events.push(Event::UserInput { text: text.clone(), source });
                // One turn: some servers refuse two messages of the user in a row.
                let before = repository.map(|text| format!("{text}\n\n")).unwrap_or_default();
                self.history.push(Turn::User(before + &text));
                self.ask_or_stop(&mut events)
            }
            Input::Reply { reply, latency_ms, first_token_ms, model, elapsed } => {
                self.elapsed = elapsed;
                self.counters.spent.refill(self.rules.gate.rate, elapsed);
                // The one that answered is asked next.
                self.model = model;
                self.on_reply(*reply, (latency_ms, first_token_ms), &mut events)
            }
            Input::ModelFailed(error) => self.on_failure(error, &mut events),
            Input::Results(results) => self.on_results(results, &mut events),
            Input::Stop(reason) => self.on_stop(reason, &mut events),
        };
        Step { events, action }
    }

    fn on_reply(
        &mut self,
        mut reply: ModelReply,
        latency: (u64, Option<u64>),
        events: &mut Vec<Event>,
    ) -> Action {
        let estimated = self.counters.estimate(&self.system.text, self.tools_bytes, &self.history);
        let cost =
            self.counters.answer(&reply, self.history.len() + 1, estimated, self.model.price);
        let explanation = reply.explanation.take();
        let turn = self.assistant_turn(reply);
        events.push(assistant_event(&turn, &self.toolbox, latency, cost));
        let finish_reason = turn.finish_reason;
        let calls = turn.tool_calls.clone();
        let text = turn.text.clone();
        self.history.push(Turn::Assistant(Box::new(turn)));
        if !text.trim().is_empty() {
            self.last_text.clone_from(&text);
        }
        if finish_reason != FinishReason::InvalidToolCall {
            self.malformed_in_a_row = 0;
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
                self.on_malformed("the provider could not read the call", events)
            }
            FinishReason::Pause if calls.is_empty() => self.ask_or_stop(events),
            _ if !calls.is_empty() => {
                let (dispatches, decisions) = dispatch_calls(
                    &calls,
                    finish_reason,
                    &self.rules,
                    &self.toolbox,
                    &self.counters.spent,
                    &self.changes,
                );
                self.count_calls(&dispatches);
                events.extend(decisions);
                Action::RunCalls(dispatches)
            }
            _ if !self.confirmed => {
                self.confirmed = true;
                self.say(CONFIRMATION.to_owned(), InputSource::Confirmation, events);
                self.ask_or_stop(events)
            }
            _ => {
                if text.trim().is_empty() {
                    events
                        .push(Event::warning("empty_answer", "the run ends with an empty answer"));
                } else if finish_reason == FinishReason::Length {
                    events.push(Event::warning(
                        "answer_cut",
                        "the final answer was cut by the token limit",
                    ));
                }
                let is_planned = !self.changes.steps.is_empty();
                let reason = if is_planned { StopReason::Planned } else { StopReason::Completed };
                self.end(reason, None, events)
            }
        }
    }

    /// Takes the calls of the last answer back: none is run, and none may wait for a result.
    fn leave_unanswered(&mut self) {
        if let Some(Turn::Assistant(turn)) = self.history.last_mut() {
            turn.tool_calls.clear();
            turn.provider_data = None;
        }
    }

    fn on_failure(&mut self, error: ModelError, events: &mut Vec<Event>) -> Action {
        if error.class == ErrorClass::BadToolGeneration {
            return self.on_malformed(&error.message, events);
        }
        events.push(Event::Error {
            code: error.class.as_str().to_owned(),
            message: error.message.clone(),
        });
        self.end(error.class.stop_reason(), Some(error.message), events)
    }

    fn on_malformed(&mut self, reason: &str, events: &mut Vec<Event>) -> Action {
        self.malformed_in_a_row += 1;
        if self.malformed_in_a_row > MALFORMED_TOLD {
            let message = format!(
                "the model wrote a malformed call {} times in a row: {reason}",
                self.malformed_in_a_row
            );
            events.push(Event::Error {
                code: ErrorClass::BadToolGeneration.as_str().to_owned(),
                message: message.clone(),
            });
            return self.end(StopReason::ProviderUnavailable, Some(message), events);
        }
        let text = format!(
            "Your last tool call was malformed and was not run: {reason}. Send it again with a known tool name and arguments that match its schema."
        );
        self.say(text, InputSource::Correction, events);
        self.ask_or_stop(events)
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
                value: self.rules.limits.error_threshold,
            });
            let error =
                format!("{} responses in a row had only calls that failed", self.failed_in_a_row);
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

    fn count_calls(&mut self, dispatches: &[Dispatch]) {
        for dispatch in dispatches {
            if dispatch.accepted().is_some() {
                self.counters.spent.count_call();
                self.counters.tools_used.insert(dispatch.name.clone());
            } else {
                self.calls_denied_by_budget |=
                    self.counters.spent.calls >= self.rules.limits.max_tool_calls;
            }
        }
    }

    fn say(&mut self, text: String, source: InputSource, events: &mut Vec<Event>) {
        events.push(Event::UserInput { text: text.clone(), source });
        self.history.push(Turn::User(text));
    }

    fn steer(&mut self, text: String, source: &str, events: &mut Vec<Event>) {
        events.push(Event::SteeringInjected { text: text.clone(), source: source.to_owned() });
        self.history.push(Turn::Steering(text));
    }

    /// Ends at a limit, with the closing assistant message.
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
        events.push(assistant_event(&turn, &self.toolbox, (0, None), Some(0.0)));
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
        Action::End(End { stop_reason, result, error })
    }
}

#[cfg(test)]
mod tests;
