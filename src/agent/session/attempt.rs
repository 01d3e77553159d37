//! One attempt to get a reply, and the text that it streams.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::{locked, millis};
use crate::agent::counters::BrokenOff;
use crate::agent::model::DeltaSink;
use crate::agent::sink::EventSink;
use crate::agent::wait::ModelWait;
use crate::catalogue::Price;
use crate::domain::LiveEvent;

/// An attempt to get a reply. Unless `may_have_cost` is cleared, the attempt counts when it is
/// dropped, because the provider may charge for a reply that did not arrive in whole.
pub(super) struct Attempt<'a> {
    pub(super) input_tokens: u64,
    pub(super) price: Option<Price>,
    pub(super) deltas: &'a Deltas<'a>,
    pub(super) broken_off: &'a Mutex<BrokenOff>,
    pub(super) may_have_cost: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.may_have_cost {
            let bytes = self.deltas.bytes.load(Ordering::Relaxed);
            let mut broken_off = locked(self.broken_off);
            broken_off.count(self.input_tokens, bytes, self.price);
        }
    }
}

/// Forwards streamed text and remembers when the first piece arrived.
pub(super) struct Deltas<'a> {
    pub(super) sink: &'a dyn EventSink,
    pub(super) wait: &'a ModelWait,
    pub(super) started: Instant,
    pub(super) first_ms: AtomicU64,
    /// Bytes of the text so far.
    pub(super) bytes: AtomicU64,
    /// The unknown word for why the model stopped.
    pub(super) stopped: Mutex<Option<String>>,
}

impl DeltaSink for Deltas<'_> {
    fn begin_answer(&self) {
        self.wait.begin_answer();
    }

    fn stopped_unknown(&self, word: &str) {
        *locked(&self.stopped) = Some(word.to_owned());
    }

    fn delta(&self, text: &str) {
        self.bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        self.first_ms.fetch_min(millis(self.started.elapsed()), Ordering::Relaxed);
        self.sink.live(LiveEvent::AssistantTextDelta { text: text.to_owned() });
    }
}
