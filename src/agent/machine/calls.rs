//! Dispatches and counts the calls of a reply.

use std::collections::BTreeMap;

use super::Machine;
use crate::agent::dispatch::{Dispatch, Settled, dispatch_calls};
use crate::domain::{CallId, Event, ToolCall, Turn};

impl Machine {
    /// Dispatches the calls of the last reply, except those in `settled`, and counts all of them.
    /// Also returns the gate's decisions as events.
    pub(in crate::agent) fn dispatch_rest(
        &mut self,
        settled: &BTreeMap<CallId, Settled>,
    ) -> (Vec<Dispatch>, Vec<Event>) {
        let Some(Turn::Assistant(turn)) = self.history.last() else {
            return (Vec::new(), Vec::new());
        };
        let (dispatches, decisions) = dispatch_calls(
            &turn.tool_calls,
            settled,
            turn.finish_reason,
            &self.rules,
            &self.toolbox,
            &self.counters.spent,
            &self.changes,
        );
        let calls = turn.tool_calls.clone();
        let mut accepted = settled.clone();
        accepted.extend(dispatches.iter().map(|dispatch| {
            let is_accepted = dispatch.accepted().is_some();
            (dispatch.call_id.clone(), Settled { is_accepted, has_number: false })
        }));
        self.count_calls(&calls, &accepted);
        (dispatches, decisions)
    }

    /// Counts the calls of a reply that `settled` contains, in call order.
    pub(super) fn count_calls(&mut self, calls: &[ToolCall], settled: &BTreeMap<CallId, Settled>) {
        for call in calls {
            match settled.get(&call.call_id) {
                Some(Settled { is_accepted: true, .. }) => {
                    self.counters.spent.count_call();
                    let name = self.toolbox.canonical(&call.name);
                    self.counters.tools_used.insert(name.to_owned());
                }
                Some(Settled { is_accepted: false, .. }) => {
                    self.calls_denied_by_budget |=
                        self.counters.spent.calls >= self.rules.limits.max_tool_calls;
                }
                None => {}
            }
        }
    }
}
