//! Rebuilds a session from its transcript, so that a run continues after the daemon died.
//!
//! The recorded replies and results are the inputs of the machine, which repeats what it did. The
//! events that it makes are in the transcript already, except for the last ones. The gate is not
//! asked again about calls that have a result. *Source*: `docs/design/loop.md`, "After a crash".

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::counters::{BrokenOff, Charge};
use super::dispatch::{CallOutcome, Planned, Settled};
use super::machine::{Action, Input, Machine, is_answer_correction};
use super::model::{ErrorClass, ModelError, ModelReply, RequestedCall};
use super::recorded::RecordedStart;
use super::rules::ModelFacts;
use super::stop::BUDGET;
use super::tool::CallOutput;
use super::untrusted::Marker;
use super::verify::Check;
use crate::catalogue::CacheWrites;
use crate::config::Mode;
use crate::domain::{
    CallEnd, CallId, CallStart, Category, DecisionKind, Event, Image, InputSource, PlanRead,
    PlanStep, PolicyDecision, ToolCall, Turn,
};

/// Codes of the warnings that the machine itself makes.
const MACHINE_WARNINGS: &[&str] = &["context_window"];

/// Why a session cannot be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// The loop had ended, or somebody had stopped it.
    #[error("the run was ending when the daemon died")]
    Ending,
    /// The machine does not repeat what the transcript says.
    #[error("the transcript does not match its own configuration: {expected} instead of {found}")]
    Diverged {
        expected: String,
        /// What the transcript has.
        found: String,
    },
}

/// The point from which a session continues.
#[derive(Debug)]
pub enum Rebuilt {
    /// Record these events, then perform the action.
    Act { events: Vec<Event>, action: Action },
    /// Some calls of the last reply have no result.
    Calls(CutCalls),
}

/// The calls of a reply, of which some have no result.
#[derive(Debug)]
pub struct CutCalls {
    /// The results that the transcript has.
    pub done: Vec<CallOutcome>,
    /// The write and admin calls that had started and have no result.
    pub started: Vec<CallStart>,
    /// The calls in `done` and `started`.
    pub settled: BTreeMap<CallId, Settled>,
}

/// The inputs of [`rebuild`].
pub struct Sources<'a> {
    /// The events of the transcript, in order.
    pub events: &'a [Event],
    pub marker: &'a Marker,
    /// Returns what the loop knows about the model with this name in the configuration.
    pub model: &'a dyn Fn(Option<&str>) -> ModelFacts,
    /// Loads an image of a result by its description in `tool_call_end`.
    pub image: &'a dyn Fn(&Value) -> Option<Image>,
    /// The task of a run whose transcript ends before its task.
    pub task: String,
}

/// Brings a new machine to the point where the transcript ends.
///
/// *Errors*: [`RebuildError`].
pub fn rebuild(machine: &mut Machine, sources: &Sources<'_>) -> Result<Rebuilt, RebuildError> {
    // The calls that dutyd itself makes are not of the loop: the precheck, and those of the checks.
    let of_loop = sources.events.iter().filter(|event| is_of_loop(event) && !is_of_own_call(event));
    let mut events = of_loop.peekable();
    let start = RecordedStart::find(sources.events).and_then(|start| start.task);
    machine.set_was_asked(events.clone().any(is_past_limits));
    let mut step = machine.step(Input::Start(start.unwrap_or_else(|| sources.task.clone())));
    loop {
        let mut made = std::mem::take(&mut step.events).into_iter();
        while let (Some(event), Some(recorded)) = (made.as_slice().first(), events.peek()) {
            match (is_same_kind(event, recorded), is_of_window(event), is_of_window(recorded)) {
                (true, ..) => drop((made.next(), events.next())),
                // The window, or what is known of it, has changed since.
                (false, true, _) => drop(made.next()),
                (false, false, true) => drop(events.next()),
                (false, false, false) => return Err(diverged(event, recorded)),
            }
        }
        events.next_if(|recorded| made.as_slice().is_empty() && is_of_window(recorded));
        machine.set_was_asked(false);
        let missing: Vec<Event> = made.collect();
        if !missing.is_empty() {
            return Ok(Rebuilt::Act { events: missing, action: step.action });
        }
        let input = match (&step.action, events.peek()) {
            (Action::RunCalls(_), _) => {
                let (lines, rest) = CallLines::take(events);
                events = rest;
                let calls = last_calls(machine);
                let done: Vec<CallOutcome> =
                    calls.iter().filter_map(|call| lines.outcome(call, sources)).collect();
                if done.len() == calls.len() {
                    Input::Results(done)
                } else if events.peek().is_some() {
                    return Err(RebuildError::Ending);
                } else {
                    let (started, settled) = (lines.started(&done), lines.settled(machine));
                    return Ok(Rebuilt::Calls(CutCalls { done, started, settled }));
                }
            }
            (Action::Verify { round, .. }, Some(Event::Verify { .. }) | None) => {
                let mut done = Vec::new();
                while let Some(check) = events.peek().and_then(|event| check(event, sources)) {
                    done.push(check);
                    events.next();
                }
                if done.len() == machine.rules().checks {
                    Input::Verified(done)
                } else if events.peek().is_some() {
                    return Err(RebuildError::Ending);
                } else {
                    let action = Action::Verify { round: *round, done };
                    return Ok(Rebuilt::Act { events: missing, action });
                }
            }
            (_, Some(Event::Warning { usage: Some(usage), cost_usd, .. })) => {
                let price = (sources.model)(None).price;
                let is_estimated = price.is_some_and(|price| price.is_estimated);
                machine.charge(&BrokenOff { usage: *usage, cost: *cost_usd, is_estimated });
                events.next();
                step.events = Vec::new();
                continue;
            }
            (_, None) => return Ok(Rebuilt::Act { events: missing, action: step.action }),
            (Action::CallModel, Some(next @ Event::AssistantTextEnd { .. })) => {
                let next = *next;
                let Some(input) = reply(next, sources) else { return Err(RebuildError::Ending) };
                // The machine repeats this event. The lines about the calls follow it.
                let mut after = events.clone();
                after.next();
                let (lines, _) = CallLines::take(after);
                // The calls of the last reply are counted once the rest is dispatched.
                let settled = lines.settled(machine);
                let decided = if lines.have_ended(next) { settled } else { BTreeMap::new() };
                machine.set_was_asked(events.clone().skip(1).any(is_past_limits));
                step = machine.replay(input, &decided);
                continue;
            }
            (
                Action::CallModel,
                Some(Event::UserInput { text, source: InputSource::Correction, reason }),
            ) => match reason {
                Some(reason) => {
                    Input::ModelFailed(ModelError::new(ErrorClass::BadToolGeneration, reason))
                }
                None => Input::Corrected(text.clone()),
            },
            (Action::CallModel, Some(Event::Error { code, message, reason })) => {
                let class = ErrorClass::parse(code).ok_or(RebuildError::Ending)?;
                let message = reason.as_ref().unwrap_or(message);
                Input::ModelFailed(ModelError::new(class, message))
            }
            _ => return Err(RebuildError::Ending),
        };
        // The event of a failed request is still to come.
        let own = usize::from(matches!(input, Input::ModelFailed(_) | Input::Corrected(_)));
        machine.set_was_asked(events.clone().skip(own).any(is_past_limits));
        step = machine.step(input);
    }
}

/// Tells whether an event shows that the limits allowed the next request, or that it was made.
fn is_past_limits(event: &Event) -> bool {
    is_of_window(event)
        || match event {
            Event::SteeringInjected { source, .. } => source == BUDGET,
            Event::Error { code, .. } => ErrorClass::parse(code).is_some(),
            // The loop corrects an answer before it checks the limits.
            Event::UserInput { source: InputSource::Correction, reason, .. } => {
                reason.as_deref().is_none_or(|reason| !is_answer_correction(reason))
            }
            event => matches!(
                event,
                Event::AssistantTextEnd { .. } | Event::Warning { usage: Some(_), .. }
            ),
        }
}

/// Tells whether an event is a warning about the context window.
fn is_of_window(event: &Event) -> bool {
    matches!(event, Event::Warning { code, usage: None, .. } if code == "context_window")
}

/// Tells whether an event belongs to a call that dutyd itself makes.
fn is_of_own_call(event: &Event) -> bool {
    let call_id = match event {
        Event::PolicyDecision(decision) => &decision.call_id,
        Event::ToolCallStart(start) => &start.call_id,
        Event::ToolCallEnd(end) => &end.call_id,
        _ => return false,
    };
    call_id.as_str() == CallId::PRECHECK || call_id.is_verify()
}

/// Tells whether an event is a step of the loop. The others say what happened around it.
fn is_of_loop(event: &Event) -> bool {
    match event {
        Event::SystemPrompt { .. }
        | Event::UserInput { .. }
        | Event::AssistantTextEnd { .. }
        | Event::PolicyDecision(_)
        | Event::ToolCallStart(_)
        | Event::ToolCallEnd(_)
        | Event::PlanStep(_)
        | Event::SteeringInjected { .. }
        | Event::TurnLimit { .. }
        | Event::LoopDetection { .. }
        | Event::Verify { .. }
        | Event::Error { .. }
        | Event::ProcessingEnd { .. } => true,
        Event::Warning { code, usage, .. } => {
            usage.is_some() || MACHINE_WARNINGS.contains(&code.as_str())
        }
        Event::SessionStart(_)
        | Event::SessionSuspended { .. }
        | Event::SessionResumed { .. }
        | Event::McpServerStart { .. }
        | Event::McpServerReady { .. }
        | Event::Precheck { .. }
        | Event::Probe { .. }
        | Event::ApprovalRequested { .. }
        | Event::ApprovalResolved { .. }
        | Event::Preflight { .. }
        | Event::SessionEnd(_) => false,
    }
}

fn is_same_kind(one: &Event, other: &Event) -> bool {
    match (one, other) {
        (Event::Warning { code: one, .. }, Event::Warning { code: other, .. }) => one == other,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

fn diverged(made: &Event, recorded: &Event) -> RebuildError {
    let kind = |event: &Event| match serde_json::to_value(event) {
        Ok(value) => value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned(),
        Err(_) => String::new(),
    };
    // A run that is stopped records the end of the loop at any point.
    match recorded {
        Event::TurnLimit { .. } | Event::ProcessingEnd { .. } => RebuildError::Ending,
        _ => RebuildError::Diverged { expected: kind(made), found: kind(recorded) },
    }
}

/// Returns a recorded check; `None` for another event.
fn check(event: &Event, sources: &Sources<'_>) -> Option<Check> {
    let Event::Verify { call_id, tool, ok, detail, .. } = event else { return None };
    let end = sources.events.iter().find_map(|event| match event {
        Event::ToolCallEnd(end) if end.call_id == *call_id => Some(end),
        _ => None,
    })?;
    let shown = sources.marker.wrap(call_id, end.shown());
    let (call_id, tool, detail) = (call_id.clone(), tool.clone(), detail.clone());
    Some(Check { call_id, tool, ok: *ok, detail, shown })
}

fn last_calls(machine: &Machine) -> Vec<ToolCall> {
    match machine.history().last() {
        Some(Turn::Assistant(turn)) => turn.tool_calls.clone(),
        _ => Vec::new(),
    }
}

/// Returns a recorded reply as an input of the machine.
fn reply(event: &Event, sources: &Sources<'_>) -> Option<Input> {
    let Event::AssistantTextEnd {
        text,
        reasoning,
        tool_calls,
        finish_reason,
        stop_reason,
        usage,
        cache_write_tokens,
        cache_write_long_tokens,
        cost_usd,
        cost_estimated,
        model,
        elapsed_ms,
        latency_ms,
        first_token_ms,
        response_id,
        provider_data,
        ..
    } = event
    else {
        return None;
    };
    let reply = ModelReply {
        text: text.clone(),
        reasoning: reasoning.clone(),
        calls: tool_calls.iter().map(requested).collect::<Option<_>>()?,
        finish_reason: *finish_reason,
        stop_reason: stop_reason.clone(),
        explanation: None,
        usage: *usage,
        cache_writes: CacheWrites { all: *cache_write_tokens, long: *cache_write_long_tokens },
        response_id: response_id.clone(),
        provider_data: provider_data.clone(),
    };
    Some(Input::Reply {
        reply: Box::new(reply),
        latency_ms: *latency_ms,
        first_token_ms: *first_token_ms,
        model: (sources.model)(model.as_deref()),
        model_name: model.clone().unwrap_or_default(),
        recorded: Some(Charge { usd: *cost_usd, is_estimated: *cost_estimated }),
        elapsed: Duration::from_millis(*elapsed_ms),
    })
}

/// Returns a recorded call as the model wrote it.
fn requested(call: &Value) -> Option<RequestedCall> {
    let text = |key: &str| call.get(key).and_then(Value::as_str);
    let arguments = call.get("shown_arguments").or_else(|| call.get("arguments"));
    Some(RequestedCall {
        id: Some(text("call_id")?.to_owned()),
        name: text("shown_as").or_else(|| text("name"))?.to_owned(),
        arguments: match text("arguments_text") {
            Some(text) => text.to_owned(),
            None => arguments?.to_string(),
        },
    })
}

/// The lines about the calls of one reply, by call.
#[derive(Default)]
struct CallLines<'a> {
    /// The last decision on each call.
    decisions: BTreeMap<&'a CallId, &'a PolicyDecision>,
    /// The calls about which a person was asked.
    asked: BTreeSet<&'a CallId>,
    starts: BTreeMap<&'a CallId, &'a CallStart>,
    steps: BTreeMap<&'a CallId, &'a PlanStep>,
    ends: BTreeMap<&'a CallId, &'a CallEnd>,
}

impl<'a> CallLines<'a> {
    /// Takes the lines about calls from the front of `events`; also returns the other events.
    fn take<I: Iterator<Item = &'a Event>>(
        mut events: std::iter::Peekable<I>,
    ) -> (Self, std::iter::Peekable<I>) {
        let mut lines = Self::default();
        while let Some(event) = events.peek() {
            match event {
                Event::PolicyDecision(decision) => {
                    match decision.decision {
                        DecisionKind::Ask => _ = lines.asked.insert(&decision.call_id),
                        DecisionKind::Deny => _ = lines.starts.remove(&decision.call_id),
                        DecisionKind::Allow => {}
                    }
                    // A call that is decided again is not a step any more.
                    lines.steps.remove(&decision.call_id);
                    _ = lines.decisions.insert(&decision.call_id, decision);
                }
                Event::ToolCallStart(start) => {
                    // A step that was approved after all is not a step any more.
                    lines.steps.remove(&start.call_id);
                    _ = lines.starts.insert(&start.call_id, start);
                }
                Event::PlanStep(step) => _ = lines.steps.insert(&step.call_id, step),
                Event::ToolCallEnd(end) => _ = lines.ends.insert(&end.call_id, end),
                _ => break,
            }
            events.next();
        }
        (lines, events)
    }

    /// Tells whether every call of a reply has its end.
    fn have_ended(&self, reply: &Event) -> bool {
        let Event::AssistantTextEnd { tool_calls, .. } = reply else { return false };
        let id = |call: &'_ Value| call.get("call_id").and_then(Value::as_str).map(str::to_owned);
        let ended: BTreeSet<&str> = self.ends.keys().map(|id| id.as_str()).collect();
        tool_calls.iter().all(|call| id(call).is_some_and(|id| ended.contains(id.as_str())))
    }

    /// Returns the calls that are not dispatched again: those with a result, and those whose effect
    /// is unknown.
    fn settled(&self, machine: &Machine) -> BTreeMap<CallId, Settled> {
        let is_unknown = |id: &&CallId| self.starts.get(*id).is_some_and(|start| is_write(start));
        let unknown = self.starts.keys().copied().filter(is_unknown);
        let of = |id: &CallId| {
            let decision = self.decisions.get(id).filter(|of| of.decision != DecisionKind::Deny);
            let is_planned = machine.rules().mode == Mode::Plan
                && decision.is_some_and(|of| of.category != Category::Read);
            Settled {
                is_accepted: decision.is_some(),
                has_number: is_planned || self.asked.contains(id),
            }
        };
        self.ends.keys().copied().chain(unknown).map(|id| (id.clone(), of(id))).collect()
    }

    /// Returns the write and admin calls that started and have no result.
    fn started(&self, done: &[CallOutcome]) -> Vec<CallStart> {
        let is_open = |start: &&&CallStart| done.iter().all(|of| of.call_id != start.call_id);
        let starts = self.starts.values().filter(is_open);
        starts.filter(|start| is_write(start)).map(|start| (*start).clone()).collect()
    }

    /// Returns the recorded result of a call.
    fn outcome(&self, call: &ToolCall, sources: &Sources<'_>) -> Option<CallOutcome> {
        let end = *self.ends.get(&call.call_id)?;
        let (start, step) = (self.starts.get(&call.call_id), self.steps.get(&call.call_id));
        let text = end.view.as_ref().or(end.output.as_ref()).cloned().unwrap_or_default();
        // What a program printed is untrusted. The text about a planned step has its own delimiters.
        let content = if start.is_some() && step.is_none() {
            sources.marker.wrap(&call.call_id, &text)
        } else {
            text
        };
        let images = end.details.get("images").and_then(Value::as_array).into_iter().flatten();
        let images: Vec<Image> = images.filter_map(sources.image).collect();
        let category = self.decisions.get(&call.call_id).map(|decision| decision.category);
        let planned = match (step, start) {
            (Some(step), _) => Planned::Step(Box::new((*step).clone())),
            (None, Some(start)) if is_write(start) => Planned::Changed,
            (None, Some(start)) if category == Some(Category::Read) => {
                read(start, end, &images).map_or(Planned::Nothing, Planned::Read)
            }
            _ => Planned::Nothing,
        };
        let (modified, lines_changed) = match step {
            Some(step) => (&step.would_modify, step.would_change_lines),
            None => (&end.modified, end.lines_changed),
        };
        Some(CallOutcome {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            content,
            images,
            error_kind: end.error_kind,
            modified: modified.iter().map(PathBuf::from).collect(),
            lines_changed,
            planned,
        })
    }
}

fn is_write(start: &CallStart) -> bool {
    start.category != Category::Read
}

/// Returns a recorded read on which steps of a plan may rest; `None` if it gave no answer.
fn read(start: &CallStart, end: &CallEnd, images: &[Image]) -> Option<PlanRead> {
    let output = CallOutput {
        error_kind: end.error_kind,
        exit_code: end.exit_code,
        digest: end.digest.clone(),
        output: end.output.clone(),
        images: images.to_vec(),
        ..CallOutput::default()
    };
    Some(PlanRead {
        call_id: start.call_id.clone(),
        name: start.name.clone(),
        arguments: start.arguments.clone(),
        digest: output.read_digest()?,
    })
}
