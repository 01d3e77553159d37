//! The one way of a run's events: into the transcript, and to whoever watches.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::agent::{EventSink, RecordError};
use crate::domain::{Event, LiveEvent, RunId, SessionEnd};
use crate::sinks::{Observed, Observers};
use crate::store::{RecordEnd, RunSummary, Transcript};
use crate::text::redact::{Redacted, Redactor, StreamRedactor};

/// The one entry point of a run's events.
pub(super) struct RunSink {
    pub(super) transcript: Transcript,
    pub(super) observers: Observers,
    pub(super) run_id: RunId,
    pub(super) redactor: Redactor,
    /// Of the answer that is being made.
    pub(super) deltas: Mutex<StreamRedactor>,
    /// The run as it stands in lists, from its first line on.
    pub(super) row: Mutex<Option<RunSummary>>,
}

#[async_trait]
impl EventSink for RunSink {
    async fn record(&self, event: Event) -> Result<(), RecordError> {
        let (start, decision) = match &event {
            Event::SessionStart(start) => (Some(start.clone()), None),
            Event::PolicyDecision(decision) => (None, Some(decision.decision)),
            _ => (None, None),
        };
        let appended = self.transcript.append(event).await.map_err(RecordError)?;
        let mut row = self.row();
        if let Some(start) = start {
            *row = Some(RunSummary::begun(&self.run_id, &start, appended.ts));
        }
        if let (Some(row), Some(decision)) = (row.as_mut(), decision) {
            row.decided(decision);
        }
        Ok(())
    }

    fn live(&self, event: LiveEvent) {
        self.observers
            .show(Observed::Live { run_id: self.run_id.clone(), event: self.redacted(event) });
    }
}

impl RunSink {
    fn row(&self) -> MutexGuard<'_, Option<RunSummary>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the last line; returns where the record ends, and the run as it stands in lists.
    ///
    /// *Errors*: the line is not in the record.
    pub(super) async fn record_end(
        &self,
        end: &Redacted<SessionEnd>,
    ) -> Result<(RecordEnd, Option<RunSummary>), RecordError> {
        let event = Event::SessionEnd(Box::new(SessionEnd::clone(end)));
        let appended = self.transcript.append(event).await.map_err(RecordError)?;
        let row = self.row().clone().map(|mut row| {
            row.end(end, appended.ts);
            row
        });
        Ok((RecordEnd { lines: appended.seq + 1, hash: appended.hash }, row))
    }

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
