//! Finishes the calls of a reply that the death of the daemon cut off.

use tokio_util::sync::CancellationToken;

use super::Session;
use crate::agent::dispatch::{CallOutcome, Planned};
use crate::agent::executor::CallExecutor;
use crate::agent::machine::Input;
use crate::agent::rebuild::CutCalls;
use crate::agent::sink::RecordError;
use crate::agent::tool::CallOutput;
use crate::domain::{CallError, CallStart, ErrorKind, ToolCall, Turn};

/// The result of a write call that was cut off.
const UNKNOWN: &str = "dutyd stopped while this call ran, so its effect is unknown: it may have happened, in part or in whole. Find out with read calls before you act.";

impl Session {
    /// Runs the calls of the last reply that have no result. Does not run those again that had
    /// started as write calls: their effects are unknown.
    pub(super) async fn finish_calls(&mut self, cut: CutCalls) -> Result<Input, RecordError> {
        let CutCalls { mut done, started, numbered } = cut;
        let calls = self.last_calls();
        let results = done.iter().map(|outcome| &outcome.call_id);
        let settled = results.chain(started.iter().map(|start| &start.call_id));
        let settled = settled.map(|id| (id.clone(), numbered.contains(id))).collect();
        let (dispatches, decisions) = self.parts.machine.dispatch_rest(&settled);
        for decision in decisions {
            self.parts.sink.record(decision).await?;
        }
        for start in &started {
            let shown_as = calls.iter().find(|call| call.call_id == start.call_id);
            let name = shown_as.map_or(&start.name, |call| &call.name);
            done.push(self.unknown(start, name.clone()).await?);
        }
        match self.run_calls(dispatches).await? {
            Input::Results(rest) => {
                done.extend(rest);
                let place = |of: &CallOutcome| calls.iter().position(|c| c.call_id == of.call_id);
                done.sort_by_key(place);
                Ok(Input::Results(done))
            }
            stopped => Ok(stopped),
        }
    }

    fn last_calls(&self) -> Vec<ToolCall> {
        match self.parts.machine.history().last() {
            Some(Turn::Assistant(turn)) => turn.tool_calls.clone(),
            _ => Vec::new(),
        }
    }

    /// Records the result of a call whose effect is unknown.
    async fn unknown(
        &self,
        start: &CallStart,
        shown_as: String,
    ) -> Result<CallOutcome, RecordError> {
        let executor = CallExecutor::new(self.parts.sink.clone(), CancellationToken::new());
        let error = CallError::new(ErrorKind::Interrupted, UNKNOWN);
        let output = CallOutput::of_error(&error);
        executor.open(&start.call_id, &start.name).end(output).await?;
        Ok(CallOutcome {
            call_id: start.call_id.clone(),
            name: shown_as,
            // The same text that a later resumption builds from the transcript.
            content: self.parts.marker.wrap(&start.call_id, UNKNOWN),
            images: Vec::new(),
            error_kind: Some(ErrorKind::Interrupted),
            modified: Vec::new(),
            lines_changed: 0,
            planned: Planned::Changed,
        })
    }
}
