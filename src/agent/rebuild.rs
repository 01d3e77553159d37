//! Rebuilds a session from its transcript, so that a run continues after the daemon died.
//!
//! The recorded replies and results are the inputs of the machine, which repeats what it did. The
//! events that it makes are in the transcript already, except for the last ones. The gate is not
//! asked again about calls that have a result. *Source*: `docs/design/loop.md`, "After a crash".

mod call_lines;

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::time::Duration;

use serde_json::Value;

use super::counters::{BrokenOff, Charge};
use super::dispatch::{CallOutcome, Settled};
use super::machine::{Action, Input, Machine, is_answer_correction};
use super::model::{ErrorClass, ModelError, ModelReply, RequestedCall};
use super::recorded::RecordedStart;
use super::rules::ModelFacts;
use super::stop::BUDGET;
use super::untrusted::Marker;
use super::verify::Check;
use crate::catalogue::CacheWrites;
use crate::domain::{CallId, CallStart, Event, Image, InputSource, ToolCall, Turn};
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
        let missing = pass_made(machine, std::mem::take(&mut step.events), &mut events)?;
        machine.set_was_asked(false);
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
        Event::SteeringInjected { source, .. } => source == BUDGET,
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
