//! The texts that people give to a run, until the run takes them.
//!
//! A text is recorded when it is accepted, so that a crash loses none. The session closes its inbox in
//! the step in which it ends, so that no text is accepted and then forgotten.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use super::sink::{EventSink, RecordError};
use crate::domain::{Event, QueuedText, TextError, TextKind};

/// Why a run does not take a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboxError {
    /// The run ends, or has ended.
    #[error("the run is over")]
    Over,
    /// The channel to the run is full.
    #[error("too many texts come at once")]
    Busy,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// A text on its way to a run.
pub struct GivenText {
    pub text: QueuedText,
    /// Is called once the text is recorded or refused. A run that ends first drops it.
    pub answer: Box<dyn FnOnce(Result<(), InboxError>) + Send>,
}

/// Which kinds of texts wait for a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitingTexts {
    pub steering: bool,
    pub follow_up: bool,
}

impl WaitingTexts {
    /// Returns the kinds of these texts.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a QueuedText>) -> Self {
        let mut waiting = Self::default();
        texts.into_iter().for_each(|text| waiting.add(text.kind));
        waiting
    }

    fn add(&mut self, kind: TextKind) {
        match kind {
            TextKind::Steering => self.steering = true,
            TextKind::FollowUp => self.follow_up = true,
        }
    }
}

#[derive(Default)]
enum Phase {
    /// The run has no first line yet.
    #[default]
    Unopened,
    Open(Arc<dyn EventSink>),
    /// The run ends.
    Closed,
}

#[derive(Default)]
struct State {
    phase: Phase,
    waiting: VecDeque<QueuedText>,
    /// The kind of the text that is being recorded.
    recording: Option<TextKind>,
    /// The steering texts so far. Of a session that continues, those that it had taken do not count.
    steering: usize,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes those who wait for a change of the state.
    changed: watch::Sender<()>,
}

/// The inbox of a run. Its clones share the texts.
#[derive(Clone)]
pub struct Inbox(Arc<Shared>);

impl Default for Inbox {
    fn default() -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), changed: watch::Sender::new(()) }))
    }
}

impl Inbox {
    /// Opens the inbox of a run that has its first line. `waiting` are the texts that the record has and
    /// that the run has not taken; `new` are those that came before the run began: they are recorded now.
    ///
    /// *Errors*: [`RecordError`].
    pub async fn open(
        &self,
        sink: Arc<dyn EventSink>,
        waiting: Vec<QueuedText>,
        new: Vec<QueuedText>,
    ) -> Result<(), RecordError> {
        for text in &new {
            sink.record(Event::input_queued(text)).await?;
        }
        self.change(|state| {
            state.waiting = waiting.into_iter().chain(new).collect();
            let is_steering = |text: &&QueuedText| text.kind == TextKind::Steering;
            state.steering = state.waiting.iter().filter(is_steering).count();
            if let Phase::Unopened = state.phase {
                state.phase = Phase::Open(sink);
            }
        });
        Ok(())
    }

    /// Accepts the texts that people give, one after another, for as long as the run works.
    pub async fn serve(&self, mut given: mpsc::Receiver<GivenText>) -> Infallible {
        while let Some(GivenText { text, answer }) = given.recv().await {
            answer(self.accept(text).await);
        }
        std::future::pending().await
    }

    /// Records a text, which the run then takes. Waits until the run has its first line.
    async fn accept(&self, text: QueuedText) -> Result<(), InboxError> {
        self.wait_while(|state| matches!(state.phase, Phase::Unopened)).await;
        let sink = self.change(|state| {
            let Phase::Open(sink) = &state.phase else { return Err(InboxError::Over) };
            if state.waiting.len() >= QueuedText::MOST_WAITING {
                return Err(TextError::Full.into());
            }
            state.recording = Some(text.kind);
            Ok(sink.clone())
        })?;
        let recorded = sink.record(Event::input_queued(&text)).await;
        self.change(|state| {
            state.recording = None;
            recorded?;
            state.steering += usize::from(text.kind == TextKind::Steering);
            state.waiting.push_back(text);
            match state.phase {
                Phase::Closed => Err(InboxError::Over),
                Phase::Unopened | Phase::Open(_) => Ok(()),
            }
        })
    }

    /// Closes the inbox; returns how many texts the run has not taken.
    pub async fn close(&self) -> usize {
        self.change(|state| state.phase = Phase::Closed);
        self.wait_while(|state| state.recording.is_some()).await;
        self.state().waiting.len()
    }

    /// Returns how many steering texts have come so far.
    pub(super) fn steering(&self) -> usize {
        self.state().steering
    }

    /// Takes the first text of this kind. Waits for one that is being recorded.
    pub(super) async fn take(&self, kind: TextKind) -> Option<String> {
        let at = |state: &State| state.waiting.iter().position(|text| text.kind == kind);
        self.wait_while(|state| at(state).is_none() && state.recording == Some(kind)).await;
        let mut state = self.state();
        let at = at(&state)?;
        state.waiting.remove(at).map(|text| text.text)
    }

    /// Decides with the texts that wait, and with the number of steering texts so far; no text comes while
    /// `decide` runs. Closes the inbox if `decide` returns true beside its result.
    pub(super) fn decide<T>(&self, decide: impl FnOnce(WaitingTexts, usize) -> (T, bool)) -> T {
        self.change(|state| {
            let mut waiting = WaitingTexts::of(&state.waiting);
            state.recording.iter().for_each(|kind| waiting.add(*kind));
            let recording = usize::from(state.recording == Some(TextKind::Steering));
            let (decided, closes) = decide(waiting, state.steering + recording);
            if closes {
                state.phase = Phase::Closed;
            }
            decided
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.0.changed.send_replace(());
        changed
    }

    async fn wait_while(&self, waits: impl Fn(&State) -> bool) {
        let mut changed = self.0.changed.subscribe();
        while waits(&self.state()) {
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Record;

    fn text(kind: TextKind) -> QueuedText {
        QueuedText::new("id".into(), kind, "look".into(), None).unwrap()
    }

    #[tokio::test]
    async fn a_text_waits_until_the_run_has_its_first_line() {
        let (inbox, record) = (Inbox::default(), Arc::new(Record::default()));
        let accepting = inbox.accept(text(TextKind::Steering));
        tokio::pin!(accepting);
        assert!(futures_util::poll!(&mut accepting).is_pending());
        inbox.open(record.clone(), Vec::new(), Vec::new()).await.unwrap();
        assert_eq!(accepting.await, Ok(()));
        assert_eq!(record.events.lock().unwrap().len(), 1);
        assert_eq!(inbox.take(TextKind::FollowUp).await, None);
        assert_eq!(inbox.take(TextKind::Steering).await.as_deref(), Some("look"));
    }

    #[tokio::test]
    async fn a_closed_inbox_refuses_texts_and_records_none() {
        let (inbox, record) = (Inbox::default(), Arc::new(Record::default()));
        inbox.open(record.clone(), vec![text(TextKind::FollowUp)], Vec::new()).await.unwrap();
        inbox.decide(|waiting, _| (assert!(waiting.follow_up), true));
        assert_eq!(inbox.accept(text(TextKind::Steering)).await, Err(InboxError::Over));
        assert_eq!((inbox.close().await, record.events.lock().unwrap().len()), (1, 0));
        // Nor does a run that never began.
        let unopened = Inbox::default();
        let accepting = unopened.accept(text(TextKind::Steering));
        let (accepted, left) = tokio::join!(accepting, unopened.close());
        assert_eq!((accepted, left), (Err(InboxError::Over), 0));
    }

    #[tokio::test]
    async fn a_text_that_cannot_be_recorded_is_not_taken() {
        let record = Arc::new(Record { fail_at: Some(0), ..Record::default() });
        let inbox = Inbox::default();
        inbox.open(record, Vec::new(), Vec::new()).await.unwrap();
        let refused = inbox.accept(text(TextKind::Steering)).await;
        assert!(matches!(refused, Err(InboxError::Record(_))), "{refused:?}");
        assert_eq!(inbox.take(TextKind::Steering).await, None);
    }
}
