//! Where events go.

use async_trait::async_trait;

use crate::domain::{Event, LiveEvent};

/// The record could not be written; what it announces must not happen (LOG-6).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the transcript cannot be written: {0}")]
pub struct RecordError(pub String);

/// Takes the events of a session.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Writes an event; when this returns, the record holds it.
    ///
    /// *Errors*: [`RecordError`]; then nothing of it is in the record.
    async fn record(&self, event: Event) -> Result<(), RecordError>;

    /// Shows what is never written. Must not block.
    fn live(&self, event: LiveEvent);
}

/// Keeps no record, for a call without a run.
pub struct Unrecorded;

#[async_trait]
impl EventSink for Unrecorded {
    async fn record(&self, _event: Event) -> Result<(), RecordError> {
        Ok(())
    }

    fn live(&self, _event: LiveEvent) {}
}
