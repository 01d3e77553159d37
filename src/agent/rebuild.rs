//! Rebuilds a session from its transcript, so that a run continues after the daemon died.
//!
//! The recorded replies and results are the inputs of the machine, which repeats what it did. The
//! events that it makes are in the transcript already, except for the last ones. The gate is not
//! asked again about calls that have a result. *Source*: `docs/design/loop.md`, "After a crash".

mod call_lines;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::time::Duration;

use serde_json::Value;

use super::counters::{BrokenOff, Charge};
use super::dispatch::{CallOutcome, Settled};
use super::inbox::WaitingTexts;
use super::machine::{Action, Input, Machine, is_answer_correction};
use super::model::{ErrorClass, ModelError, ModelReply, RequestedCall};
use super::recorded::RecordedStart;
use super::rules::ModelFacts;
use super::stop::{BUDGET, PERSON};
use super::untrusted::Marker;
use super::verify::Check;
use crate::catalogue::CacheWrites;
use crate::domain::{CallId, CallStart, Event, Image, InputSource, TextKind, ToolCall, Turn};
use call_lines::CallLines;

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
    Act {
        events: Vec<Event>,
        action: Action,
        /// Whether the action repeats a request that the model had not answered. The texts that wait came
        /// meanwhile, so they are taken with the next one.
        is_repeated: bool,
    },
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
    /// The calls that had started, with and without a result.
    pub begun: BTreeSet<CallId>,
    /// How many of the steering texts that wait had come before the reply.
    pub seen: usize,
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
    /// The texts that the transcript has and that the session has not taken.
    pub waiting: WaitingTexts,
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
    let task = start.unwrap_or_else(|| sources.task.clone());
    let mut step = machine.step(Input::Submit(task, InputSource::Job));
    loop {
        let missing = pass_made(machine, std::mem::take(&mut step.events), &mut events)?;
        machine.set_was_asked(false);
        if !missing.is_empty() {
            return Ok(Rebuilt::Act { events: missing, action: step.action, is_repeated: false });
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
                    let (begun, seen) = (lines.begun(), seen_before_reply(sources.events));
                    return Ok(Rebuilt::Calls(CutCalls { done, started, settled, begun, seen }));
                }
            }
            (Action::Verify { round, .. }, Some(Event::Verify { .. }) | None) => {
                let mut done = Vec::new();
                while let Some(check) = events.peek().and_then(|event| check(event, sources)) {
                    done.push(check);
                    events.next();
                }
                if done.len() == machine.rules().checks {
                    machine.set_waiting(taken_by(events.peek().copied(), sources));
                    Input::Verified(done)
                } else if events.peek().is_some() {
                    return Err(RebuildError::Ending);
                } else {
                    let action = Action::Verify { round: *round, done };
                    return Ok(Rebuilt::Act { events: missing, action, is_repeated: false });
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
            (_, None) => {
                let (action, is_repeated) = (step.action, is_request_open(sources.events));
                return Ok(Rebuilt::Act { events: missing, action, is_repeated });
            }
            (Action::CallModel, Some(next @ Event::AssistantTextEnd { .. })) => {
                let next = *next;
                let Some(input) = reply(next, sources) else { return Err(RebuildError::Ending) };
                let decided = decided_calls(machine, next, events.clone());
                machine.set_was_asked(events.clone().skip(1).any(is_past_limits));
                machine.set_waiting(taken_by(events.clone().nth(1), sources));
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
            (Action::CallModel, Some(event)) if let Some(text) = steering_of_person(event) => {
                Input::Steer(text.to_owned())
            }
            (
                Action::NextInput,
                Some(Event::UserInput { text, source: InputSource::FollowUp, .. }),
            ) => Input::Submit(text.clone(), InputSource::FollowUp),
            (Action::CallModel, Some(Event::Error { code, message, reason })) => {
                let class = ErrorClass::parse(code).ok_or(RebuildError::Ending)?;
                let message = reason.as_ref().unwrap_or(message);
                Input::ModelFailed(ModelError::new(class, message))
            }
            _ => return Err(RebuildError::Ending),
        };
        // The event of a failed request, and that of a text, is still to come.
        let own = usize::from(matches!(
            input,
            Input::ModelFailed(_) | Input::Corrected(_) | Input::Submit(..) | Input::Steer(_)
        ));
        machine.set_was_asked(events.clone().skip(own).any(is_past_limits));
        step = machine.step(input);
    }
}

/// Returns the text of a steering turn that a person gave.
fn steering_of_person(event: &Event) -> Option<&str> {
    match event {
        Event::SteeringInjected { text, source } if source == PERSON => Some(text),
        _ => None,
    }
}

/// Tells whether every steering text that waits came after the last step of the loop, while a request was
/// open.
fn is_request_open(events: &[Event]) -> bool {
    let is_step = |event: &Event| is_of_loop(event) && !matches!(event, Event::Warning { .. });
    let last = events.iter().rposition(is_step).map_or(0, |at| at + 1);
    waiting_steering(events.iter().take(last)) == 0
}

/// Returns how many steering texts wait after these events.
fn waiting_steering<'a>(events: impl Iterator<Item = &'a Event>) -> usize {
    let mut waiting = 0;
    for event in events {
        match event {
            Event::InputQueued { kind: TextKind::Steering, .. } => waiting += 1,
            event if steering_of_person(event).is_some() => waiting -= 1,
            _ => {}
        }
    }
    waiting
}

/// Returns how many steering texts came after the last request and before its reply.
fn seen_before_reply(events: &[Event]) -> usize {
    let is_reply = |event: &Event| matches!(event, Event::AssistantTextEnd { .. });
    let reply = events.iter().rposition(is_reply).unwrap_or_default();
    waiting_steering(events.iter().take(reply))
}

/// Returns which texts waited when the session decided about an answer: those that it took as its next
/// event, or those that wait still if the answer is its last event.
fn taken_by(next: Option<&Event>, sources: &Sources<'_>) -> WaitingTexts {
    match next {
        Some(event) => WaitingTexts {
            steering: steering_of_person(event).is_some(),
            follow_up: matches!(event, Event::UserInput { source: InputSource::FollowUp, .. }),
        },
        None => sources.waiting,
    }
}

/// Returns the calls of a reply that the transcript has decided. `events` begins with the reply, which the
/// machine repeats; the lines about the calls follow it.
fn decided_calls<'a>(
    machine: &Machine,
    reply: &Event,
    mut events: Peekable<impl Iterator<Item = &'a Event>>,
) -> BTreeMap<CallId, Settled> {
    events.next();
    let (lines, _) = CallLines::take(events);
    // The calls of the last reply are counted once the rest is dispatched.
    if lines.have_ended(reply) { lines.settled(machine) } else { BTreeMap::new() }
}

/// Passes the recorded events that the machine has made too. Returns those that the transcript lacks.
///
/// *Errors*: the machine does not repeat what the transcript says.
fn pass_made<'a>(
    machine: &mut Machine,
    made: Vec<Event>,
    recorded: &mut Peekable<impl Iterator<Item = &'a Event>>,
) -> Result<Vec<Event>, RebuildError> {
    let mut made = made.into_iter().peekable();
    while let Some(next) = recorded.peek() {
        if let Event::Compaction { call_ids, .. } = next {
            machine.compact(call_ids);
            made.next_if(|event| matches!(event, Event::Compaction { .. }));
            recorded.next();
            continue;
        }
        let Some(event) = made.peek() else {
            if recorded.next_if(|event| is_of_window(event)).is_some() {
                continue;
            }
            break;
        };
        match (is_same_kind(event, next), is_of_window(event), is_of_window(next)) {
            (true, ..) => drop((made.next(), recorded.next())),
            // The window, or what is known of it, has changed since.
            (false, true, _) => drop(made.next()),
            (false, false, true) => drop(recorded.next()),
            (false, false, false) => return Err(diverged(event, next)),
        }
    }
    Ok(made.collect())
}

/// Tells whether an event shows that the limits allowed the next request, or that it was made.
fn is_past_limits(event: &Event) -> bool {
    match event {
        // The loop checks the limits before it takes texts.
        Event::SteeringInjected { source, .. } => source == BUDGET || source == PERSON,
        Event::Error { code, .. } => ErrorClass::parse(code).is_some(),
        // The loop corrects an answer before it checks the limits.
        Event::UserInput { source: InputSource::Correction, reason, .. } => {
            reason.as_deref().is_none_or(|reason| !is_answer_correction(reason))
        }
        // The message with which the loop ends the run has no model.
        Event::AssistantTextEnd { model, .. } => model.is_some(),
        event => matches!(event, Event::Warning { usage: Some(_), .. }),
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
        | Event::Compaction { .. }
        | Event::Verify { .. }
        | Event::Error { .. }
        | Event::ProcessingEnd { .. } => true,
        Event::Warning { code, usage, .. } => {
            usage.is_some() || MACHINE_WARNINGS.contains(&code.as_str())
        }
        Event::SessionStart(_)
        | Event::SessionSuspended { .. }
        | Event::SessionResumed { .. }
        | Event::InputQueued { .. }
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
