//! The interface through which a session emits its events.

use async_trait::async_trait;

use crate::domain::{Event, LiveEvent};

/// An event could not be written to the transcript. The action that this event announces must not
/// happen (LOG-6).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the transcript cannot be written: {0}")]
pub struct RecordError(pub String);

/// Receives the events of a session.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Writes an event to the transcript. When this returns `Ok`, the transcript contains the
    /// event.
    ///
    /// *Errors*: [`RecordError`]; the transcript may then contain a part of the event, and accepts
    /// no later event.
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

/// A sink for tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Mutex;

    use serde_json::Value;

    use super::*;

    /// Stores the first `fail_at` events and refuses the rest. Without `fail_at`, stores all
    /// events.
    #[derive(Default)]
    pub(crate) struct Record {
        pub(crate) events: Mutex<Vec<Value>>,
        pub(crate) fail_at: Option<usize>,
    }

    #[async_trait]
    impl EventSink for Record {
        async fn record(&self, event: Event) -> Result<(), RecordError> {
            let mut events = self.events.lock().unwrap();
            if self.fail_at == Some(events.len()) {
                return Err(RecordError("no space left".into()));
            }
            events.push(serde_json::to_value(event).unwrap());
            Ok(())
        }
        fn live(&self, _: LiveEvent) {}
    }
}
