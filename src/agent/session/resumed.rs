//! Finishes the calls of a reply that the death of the daemon cut off.

use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::Session;
use crate::agent::dispatch::{CallOutcome, Planned};
use crate::agent::executor::CallExecutor;
use crate::agent::machine::Input;
use crate::agent::rebuild::CutCalls;
use crate::agent::sink::RecordError;
use crate::agent::tool::{CallContext, CallOutput};
use crate::domain::{CallId, CallStart, ErrorKind, Event, ToolCall, Turn};

/// The result of a write call that was cut off and whose effect is unknown.
const UNKNOWN: &str = "dutyd stopped while this call ran, so its effect is unknown: it may have happened, in part or in whole. Find out with read calls before you act.";

/// Follows [`UNKNOWN`] if a probe gave no answer.
const NO_ANSWER: &str = "The probe of the tool does not tell either. Its output:";

/// The results of a write call that was cut off, according to the probe of its tool.
const DONE: &str = "dutyd stopped while this call ran, and the probe of the tool says that the call took effect. Do not make it again. Output of the probe:";
const NOT_DONE: &str = "dutyd stopped while this call ran, and the probe of the tool says that the call took no effect. Output of the probe:";

impl Session {
    /// Runs the calls of the last reply that have no result. Does not run those again that had
    /// started as write calls: their effects are unknown.
    pub(super) async fn finish_calls(&mut self, cut: CutCalls) -> Result<Input, RecordError> {
        let CutCalls { mut done, started, settled, begun, seen } = cut;
        self.seen = seen;
        let calls = self.last_calls();
        let (dispatches, decisions) = self.parts.machine.dispatch_rest(&settled);
        for decision in decisions {
            self.parts.sink.record(decision).await?;
        }
        for start in &started {
            let shown_as = calls.iter().find(|call| call.call_id == start.call_id);
            let name = shown_as.map_or(&start.name, |call| &call.name);
            done.push(self.cut_off(start, name.clone()).await?);
        }
        match self.run_calls(dispatches, &begun).await? {
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

    /// Records the result of a write call that was cut off: the answer of its probe, or that its
    /// effect is unknown.
    async fn cut_off(
        &self,
        start: &CallStart,
        shown_as: String,
    ) -> Result<CallOutcome, RecordError> {
        let executor = CallExecutor::new(self.parts.sink.clone(), CancellationToken::new())
            .with_lines(self.parts.machine.lines_left());
        let open = executor.open(&start.call_id, &start.name);
        let probed = self.probe(start, executor.cancel()).await?;
        let (text, error_kind) = match &probed {
            Some((said, Some(true))) => (format!("done: {DONE}\n{said}"), None),
            Some((said, Some(false))) => {
                (format!("not done: {NOT_DONE}\n{said}"), Some(ErrorKind::Interrupted))
            }
            Some((said, None)) => {
                (format!("{UNKNOWN} {NO_ANSWER}\n{said}"), Some(ErrorKind::Interrupted))
            }
            None => (UNKNOWN.to_owned(), Some(ErrorKind::Interrupted)),
        };
        // Charge what the call may have changed.
        let tool = self.parts.machine.toolbox().find(&start.name);
        let prepared = tool.and_then(|tool| tool.prepare(&start.arguments).ok());
        let gate = &self.parts.machine.rules().gate;
        let (modified, lines_changed) = match &prepared {
            Some(prepared) => (gate.written(&prepared.resources).collect(), prepared.lines),
            None => (Vec::new(), 0),
        };
        let output = CallOutput {
            content: text.clone(),
            modified: modified.clone(),
            lines_changed,
            error_kind,
            output_bytes: text.len() as u64,
            output: Some(text.clone()),
            ..CallOutput::default()
        };
        // The next start asks the probe again.
        if !self.is_suspending() {
            open.end(output).await?;
        }
        Ok(CallOutcome {
            call_id: start.call_id.clone(),
            name: shown_as,
            // The same text that a later resumption builds from the transcript.
            content: self.parts.marker.wrap(&start.call_id, &text),
            images: Vec::new(),
            error_kind,
            modified,
            lines_changed,
            planned: Planned::Changed,
        })
    }

    /// Runs the probe of a call and records it. Returns what the model sees of its output, and
    /// whether the call took effect; `None` if the tool has no probe.
    async fn probe(
        &self,
        start: &CallStart,
        cancel: &CancellationToken,
    ) -> Result<Option<(String, Option<bool>)>, RecordError> {
        let tool = self.parts.machine.toolbox().find(&start.name);
        let Some((tool, probe)) =
            tool.and_then(|tool| Some((tool, tool.probe_of(&start.arguments)?)))
        else {
            return Ok(None);
        };
        // Keep the output file of the call itself.
        let own_id = CallId::parse(&format!("probe_{}", start.call_id));
        let call_id = own_id.unwrap_or_else(|_| start.call_id.clone());
        let context = CallContext { call_id, cancel: cancel.clone(), lines_left: 0 };
        let work = tool.probe(&probe, &context);
        tokio::pin!(work);
        let (output, done) = tokio::select! {
            biased;
            _ = self.parts.stop.reason() => {
                cancel.cancel();
                work.await
            }
            probed = &mut work => probed,
        };
        self.survivors.fetch_add(output.survivors, Ordering::Relaxed);
        let recorded = Event::Probe {
            call_id: start.call_id.clone(),
            name: start.name.clone(),
            argv: probe.argv.clone(),
            exit_code: output.exit_code,
            done,
            output: output.output,
            output_file: output.output_file,
        };
        self.parts.sink.record(recorded).await?;
        Ok(Some((output.content, done)))
    }
}
