//! The event sink of a run: appends events to the transcript, keeps the summary of the run, and
//! shows live events to watchers. A live event shows the start or a piece of the streamed answer
//! and is never written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::notices::Notices;
use crate::agent::{ADMIN_CALL, EventSink, RecordError};
use crate::domain::{Event, LiveEvent, RunId, SessionEnd};
use crate::sinks::{Observed, Observers};
use crate::store::{RecordEnd, RunSummary, Transcript};
use crate::text::redact::{Redacted, Redactor, StreamRedactor};

/// The only entry point for the events of a run.
pub(super) struct RunSink {
    pub(super) transcript: Transcript,
    pub(super) observers: Observers,
    pub(super) run_id: RunId,
    pub(super) redactor: Redactor,
    pub(super) notices: Notices,
    /// Redacts the answer that is being streamed.
    pub(super) deltas: Mutex<StreamRedactor>,
    /// Whether a write or admin call has started.
    pub(super) has_started_change: AtomicBool,
    /// The answer of the precheck, if the run made one; `None` inside if the precheck reached no
    /// exit code.
    pub(super) precheck: Mutex<Option<Option<String>>>,
    /// The summary of the run; `None` until its first line is written.
    pub(super) row: Mutex<Option<RunSummary>>,
}

#[async_trait]
impl EventSink for RunSink {
    async fn record(&self, event: Event) -> Result<(), RecordError> {
        if event.starts_change() {
            self.has_started_change.store(true, Ordering::Relaxed);
        }
        if let Some(answer) = event.precheck_answer() {
            *self.answer() = Some(Some(answer));
        }
        if let Event::Precheck { .. } = event {
            self.answer().get_or_insert(None);
        }
        let start = match &event {
            Event::SessionStart(start) => Some(start.clone()),
            _ => None,
        };
        let refused = event.refused_call().cloned();
        let admin = match &event {
            Event::Warning { code, message, .. } if code == ADMIN_CALL => Some(message.clone()),
            _ => None,
        };
        let appended =
            self.transcript.append(event).await.map_err(|error| RecordError(error.to_string()))?;
        if let Some(message) = admin {
            self.notices.tell_of_admin(&message).await;
        }
        let mut row = self.row();
        if let Some(start) = start {
            *row = Some(RunSummary::begun(&self.run_id, &start, appended.ts));
        }
        if let (Some(row), Some(call_id)) = (row.as_mut(), refused) {
            row.refuse(&call_id);
        }
        Ok(())
    }

    fn live(&self, event: LiveEvent) {
        self.observers
            .show(Observed::Live { run_id: self.run_id.clone(), event: self.redacted(event) });
    }
}

impl RunSink {
    fn answer(&self) -> MutexGuard<'_, Option<Option<String>>> {
        self.precheck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer of the precheck, if the run made one.
    pub(super) fn precheck_answer(&self) -> Option<Option<String>> {
        self.answer().clone()
    }

    fn row(&self) -> MutexGuard<'_, Option<RunSummary>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the last line. Returns where the record ends, and the summary of the run.
    ///
    /// *Errors*: the line cannot be written.
    pub(super) async fn record_end(
        &self,
        end: &Redacted<SessionEnd>,
    ) -> Result<(RecordEnd, Option<RunSummary>), RecordError> {
        let event = Event::SessionEnd(Box::new(SessionEnd::clone(end)));
        let appended =
            self.transcript.append(event).await.map_err(|error| RecordError(error.to_string()))?;
        let row = self.row().clone().map(|mut row| {
            row.end(end, appended.ts);
            row
        });
        Ok((RecordEnd { lines: appended.seq + 1, hash: appended.hash }, row))
    }

    /// Redacts text that is shown while it is streamed, including a secret that is split between
    /// pieces. Holds back text that may be the beginning of a secret; the later event
    /// `assistant_text_end` contains the whole text.
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
