//! Makes the checks of `verify` after the final answer of a run, and judges them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;

use super::history::RunHistory;
use super::own_call::{Made, OwnCalls};
use super::scope::RunScope;
use super::sink::RunSink;
use crate::agent::{Check, EventSink as _, Marker, RecordError, Verifier};
use crate::config::{Expect, Job};
use crate::domain::{CallEnd, CallId, ErrorKind, Event};
use crate::store::RunDir;

/// Maximum bytes of an output that a check looks at.
const JUDGED_BYTES: u64 = 1 << 20;

/// The checks of a run.
pub(super) struct Checks {
    calls: OwnCalls,
    job: Arc<Job>,
    vars: BTreeMap<String, String>,
    sink: Arc<RunSink>,
    directory: RunDir,
    marker: Marker,
    /// The calls that have an end in the record of a resumed run.
    recorded: BTreeMap<CallId, CallEnd>,
}

impl Checks {
    /// Returns the checks of a run. `history` is that of a resumed run.
    pub(super) fn of(scope: &RunScope, marker: Marker, history: Option<&RunHistory>) -> Self {
        Self {
            calls: OwnCalls::of(scope),
            job: scope.spec.job.clone(),
            vars: scope.spec.vars.clone(),
            sink: scope.sink.clone(),
            directory: scope.directory.clone(),
            marker,
            recorded: history.map(|history| history.checks.clone()).unwrap_or_default(),
        }
    }

    /// Returns why a call does not meet what the job expects of it; `None` if it does.
    fn failure(&self, expect: &Expect, end: &CallEnd) -> Option<String> {
        let Some(code) = end.exit_code.filter(|_| !end.timed_out) else {
            // The output, which follows, comes from a tool.
            let kind = end.error_kind.map_or("unknown", ErrorKind::as_str);
            return Some(format!("the call reached no exit code ({kind})"));
        };
        match self.output(end) {
            Err(error) => Some(format!("the output of the call cannot be read: {error}")),
            Ok((output, is_whole)) => {
                let failure = expect.failure(code, !end.is_error, &output);
                let is_unknown = failure.is_none() && !is_whole && expect.needs_whole_output();
                failure.or_else(|| {
                    is_unknown.then(|| {
                        format!(
                            "the output is longer than the {JUDGED_BYTES} bytes that a check reads"
                        )
                    })
                })
            }
        }
    }

    /// Returns the output of a call, and whether that is all of it.
    fn output(&self, end: &CallEnd) -> io::Result<(String, bool)> {
        let Some(file) = &end.output_file else {
            return match &end.output {
                Some(output) => Ok((output.clone(), true)),
                None if end.output_bytes == 0 => Ok((String::new(), true)),
                None => Err(io::Error::other("the record does not have it")),
            };
        };
        let mut bytes = self.directory.read_output(file, JUDGED_BYTES + 1)?;
        let most = usize::try_from(JUDGED_BYTES).unwrap_or(usize::MAX);
        let is_whole = bytes.len() <= most && end.dropped_bytes == 0;
        bytes.truncate(most);
        Ok((String::from_utf8_lossy(&bytes).into_owned(), is_whole))
    }
}

#[async_trait]
impl Verifier for Checks {
    async fn verify(
        &self,
        round: u32,
        mut done: Vec<Check>,
    ) -> Result<Option<Vec<Check>>, RecordError> {
        for (at, step) in self.job.verify.iter().enumerate().skip(done.len()) {
            let call_id = CallId::verify(round, at + 1);
            let arguments = step.call.arguments(&self.vars);
            let end = match self.recorded.get(&call_id) {
                Some(end) => Box::new(end.clone()),
                None => {
                    match self.calls.make(&call_id, &step.call.tool, arguments.clone()).await? {
                        Made::Ended(end) => end,
                        Made::Stopped(_) | Made::Suspended => return Ok(None),
                    }
                }
            };
            let failure = self.failure(&step.expect, &end);
            let ok = failure.is_none();
            let detail = failure.unwrap_or_else(|| "the result is as expected".to_owned());
            let tool = step.call.tool.to_string();
            let event = Event::Verify {
                call_id: call_id.clone(),
                tool: tool.clone(),
                arguments,
                ok,
                detail: detail.clone(),
            };
            self.sink.record(event).await?;
            let shown = self.marker.wrap(&call_id, end.shown());
            done.push(Check { call_id, tool, ok, detail, shown });
        }
        Ok(Some(done))
    }
}
