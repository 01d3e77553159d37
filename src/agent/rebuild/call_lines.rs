//! The lines of a transcript about the calls of one reply.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use super::Sources;
use crate::agent::dispatch::{CallOutcome, Planned, Settled};
use crate::agent::machine::Machine;
use crate::agent::tool::CallOutput;
use crate::config::Mode;
use crate::domain::{
    CallEnd, CallId, CallStart, Category, DecisionKind, Event, Image, PlanRead, PlanStep,
    PolicyDecision, ToolCall,
};

/// The lines about the calls of one reply, by call.
#[derive(Default)]
pub(super) struct CallLines<'a> {
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
    pub(super) fn take<I: Iterator<Item = &'a Event>>(
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
    pub(super) fn have_ended(&self, reply: &Event) -> bool {
        let Event::AssistantTextEnd { tool_calls, .. } = reply else { return false };
        let id = |call: &'_ Value| call.get("call_id").and_then(Value::as_str).map(str::to_owned);
        let ended: BTreeSet<&str> = self.ends.keys().map(|id| id.as_str()).collect();
        tool_calls.iter().all(|call| id(call).is_some_and(|id| ended.contains(id.as_str())))
    }

    /// Returns the calls that are not dispatched again: those with a result, and those whose effect
    /// is unknown.
    pub(super) fn settled(&self, machine: &Machine) -> BTreeMap<CallId, Settled> {
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

    /// Returns the calls that started.
    pub(super) fn begun(&self) -> BTreeSet<CallId> {
        self.starts.keys().copied().cloned().collect()
    }

    /// Returns the write and admin calls that started and have no result.
    pub(super) fn started(&self, done: &[CallOutcome]) -> Vec<CallStart> {
        let is_open = |start: &&&CallStart| done.iter().all(|of| of.call_id != start.call_id);
        let starts = self.starts.values().filter(is_open);
        starts.filter(|start| is_write(start)).map(|start| (*start).clone()).collect()
    }

    /// Returns the recorded result of a call.
    pub(super) fn outcome(&self, call: &ToolCall, sources: &Sources<'_>) -> Option<CallOutcome> {
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
