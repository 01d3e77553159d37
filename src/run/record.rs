//! The one way of a run's events: into the transcript, and to whoever watches.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::agent::{EventSink, RecordError};
use crate::domain::{Event, LiveEvent, RunId};
use crate::sinks::{Observed, Observers};
use crate::store::Transcript;
use crate::text::redact::{Redactor, StreamRedactor};

/// The one entry point of a run's events.
pub(super) struct RunSink {
    pub(super) transcript: Transcript,
    pub(super) observers: Observers,
    pub(super) run_id: RunId,
    pub(super) redactor: Redactor,
    /// Of the answer that is being made.
    pub(super) deltas: Mutex<StreamRedactor>,
}

#[async_trait]
impl EventSink for RunSink {
    async fn record(&self, event: Event) -> Result<(), RecordError> {
        self.transcript.append(event).await.map(drop).map_err(RecordError)
    }

    fn live(&self, event: LiveEvent) {
        self.observers
            .show(Observed::Live { run_id: self.run_id.clone(), event: self.redacted(event) });
    }
}

impl RunSink {
    /// Takes secrets out of text that is shown as it is made, also where they are split over pieces. What could be the beginning of one is
    /// held back; the whole text stands in `assistant_text_end`.
    fn redacted(&self, event: LiveEvent) -> LiveEvent {
        let mut deltas = self.deltas.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            LiveEvent::AssistantTextStart => {
                *deltas = self.redactor.stream();
                LiveEvent::AssistantTextStart
            }
            LiveEvent::AssistantTextDelta { text } => LiveEvent::AssistantTextDelta {
                text: String::from_utf8_lossy(&deltas.push(text.as_bytes())).into_owned(),
            },
        }
    }
}
