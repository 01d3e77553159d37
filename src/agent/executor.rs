//! Runs calls. Sessions, `apply` and `dutyd call` all run their calls here, so that each call is
//! recorded before it starts and has exactly one end. Only `dutyd call` passes a sink that discards
//! these records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dispatch::AcceptedCall;
use super::sink::{EventSink, RecordError};
use super::tool::{CallContext, CallOutput, PreparedCall};
use crate::domain::{CallId, CallStart, Category, Event};

/// Runs calls and records them.
pub struct CallExecutor {
    sink: Arc<dyn EventSink>,
    cancel: CancellationToken,
    lines_left: AtomicU64,
}

impl CallExecutor {
    /// Returns an executor that records to `sink`. Cancelling `cancel` ends the running calls
    /// within 3 s.
    #[must_use]
    pub fn new(sink: Arc<dyn EventSink>, cancel: CancellationToken) -> Self {
        Self { sink, cancel, lines_left: AtomicU64::new(u64::MAX) }
    }

    /// Limits how many lines of files all calls together change.
    #[must_use]
    pub fn with_lines(mut self, most: u64) -> Self {
        self.lines_left = AtomicU64::new(most);
        self
    }

    /// Returns the token that ends the calls of this executor.
    #[must_use]
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Opens a call; its duration counts from now.
    pub fn open(&self, call_id: &CallId, name: &str) -> OpenCall<'_> {
        let (call_id, name) = (call_id.clone(), name.to_owned());
        OpenCall { executor: self, call_id, name, started: Instant::now() }
    }
}

/// A call whose end is not recorded yet; [`OpenCall::end`] records the end.
#[must_use]
pub struct OpenCall<'a> {
    executor: &'a CallExecutor,
    call_id: CallId,
    name: String,
    started: Instant,
}

impl OpenCall<'_> {
    /// Returns the id of the call.
    #[must_use]
    pub fn id(&self) -> &CallId {
        &self.call_id
    }

    /// Returns the tool's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records the start of the tool, then runs the tool to its end. The output reports a failure
    /// of the tool.
    ///
    /// *Errors*: the start cannot be recorded; the tool is then not started. *Cancel*: through the
    /// executor's token only.
    pub async fn run(&self, call: &AcceptedCall) -> Result<CallOutput, RecordError> {
        self.start(call.category, &call.prepared).await?;
        Ok(call.tool.run(&call.prepared, &self.context()).await)
    }

    /// Records the start of a dry run, then runs it with the rights of a read tool. Otherwise
    /// behaves like [`Self::run`].
    ///
    /// *Errors* and *cancel*: as [`Self::run`].
    pub async fn dry_run(
        &self,
        call: &AcceptedCall,
        dry: &PreparedCall,
    ) -> Result<CallOutput, RecordError> {
        self.start(Category::Read, dry).await?;
        Ok(call.tool.dry_run(dry, &self.context()).await)
    }

    /// Records the end of the call.
    ///
    /// *Errors*: the end cannot be recorded.
    pub async fn end(self, output: CallOutput) -> Result<(), RecordError> {
        let duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let left = &self.executor.lines_left;
        // Calls that change files run one at a time.
        left.store(
            left.load(Ordering::Relaxed).saturating_sub(output.lines_changed),
            Ordering::Relaxed,
        );
        let end = output.end(&self.call_id, &self.name, duration_ms);
        self.executor.sink.record(Event::ToolCallEnd(Box::new(end))).await
    }

    async fn start(&self, category: Category, prepared: &PreparedCall) -> Result<(), RecordError> {
        let start = CallStart {
            call_id: self.call_id.clone(),
            name: self.name.clone(),
            category,
            arguments: prepared.arguments.clone(),
            argv: prepared.argv.clone(),
            working_dir: prepared.working_dir.clone(),
            sandboxed: prepared.sandboxed,
        };
        self.executor.sink.record(Event::ToolCallStart(start)).await
    }

    fn context(&self) -> CallContext {
        CallContext {
            call_id: self.call_id.clone(),
            cancel: self.executor.cancel.clone(),
            lines_left: self.executor.lines_left.load(Ordering::Relaxed),
        }
    }
}
