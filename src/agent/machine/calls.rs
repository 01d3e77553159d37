//! Dispatches and counts the calls of a reply.

use std::collections::BTreeMap;

use super::Machine;
use crate::agent::dispatch::{Dispatch, OpenCallOf, dispatch_calls};
use crate::domain::{CallId, Event, ToolCall, Turn};

impl Machine {
    /// Dispatches the calls of the last reply, except those in `settled`. Its values tell whether a
    /// call took a step number. Also returns the gate's decisions as events.
    pub(in crate::agent) fn dispatch_rest(
        &mut self,
        settled: &BTreeMap<CallId, bool>,
    ) -> (Vec<Dispatch>, Vec<Event>) {
        let Some(Turn::Assistant(turn)) = self.history.last() else {
            return (Vec::new(), Vec::new());
        };
        let mut steps_before = 0;
        let calls = turn.tool_calls.iter().enumerate().filter_map(|(place, call)| {
            match settled.get(&call.call_id) {
                Some(has_number) => {
                    steps_before += u64::from(*has_number);
                    None
                }
                None => Some(OpenCallOf { call, place, steps_before }),
            }
        });
        let calls: Vec<OpenCallOf<'_>> = calls.collect();
        let (dispatches, decisions) = dispatch_calls(
            &calls,
            turn.finish_reason,
            &self.rules,
            &self.toolbox,
            &self.counters.spent,
            &self.changes,
        );
        for dispatch in &dispatches {
            self.count_call(&dispatch.name, dispatch.accepted().is_some());
        }
        (dispatches, decisions)
    }

    pub(super) fn count_decided(&mut self, calls: &[ToolCall], decided: &BTreeMap<CallId, bool>) {
        for call in calls {
            if let Some(is_accepted) = decided.get(&call.call_id) {
                let name = self.toolbox.canonical(&call.name).to_owned();
                self.count_call(&name, *is_accepted);
            }
        }
    }

    fn count_call(&mut self, name: &str, is_accepted: bool) {
        if is_accepted {
            self.counters.spent.count_call();
            self.counters.tools_used.insert(name.to_owned());
        } else {
            self.calls_denied_by_budget |=
                self.counters.spent.calls >= self.rules.limits.max_tool_calls;
        }
    }
}
