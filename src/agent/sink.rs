//! The interface through which a session emits its events.

use async_trait::async_trait;

use crate::domain::{Event, LiveEvent};

/// The transcript could not be written. The action that the event announces must not happen
/// (LOG-6).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the transcript cannot be written: {0}")]
pub struct RecordError(pub String);

/// Receives the events of a session.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Writes an event to the transcript. When this returns, the transcript contains the event.
    ///
    /// *Errors*: [`RecordError`]; the transcript then contains no part of the event.
    async fn record(&self, event: Event) -> Result<(), RecordError>;

    /// Publishes an event that is shown live but never written. Must not block.
    fn live(&self, event: LiveEvent);
}

/// Discards every event, for a call outside a run.
pub struct Unrecorded;

#[async_trait]
impl EventSink for Unrecorded {
    async fn record(&self, _event: Event) -> Result<(), RecordError> {
        Ok(())
    }

    fn live(&self, _event: LiveEvent) {}
}
