//! Watchers, which receive the events of runs live.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::domain::{LiveEvent, RunId};

/// The number of items that a watcher may lag behind. A watcher that lags further loses the oldest
/// items and gets an error.
const QUEUE: usize = 1024;

/// An item that a watcher receives.
#[derive(Debug, Clone)]
pub enum Observed {
    /// A line that is already in the transcript.
    Line {
        /// The id of the run.
        run_id: RunId,
        /// The number of the line.
        seq: u64,
        /// The line without its newline.
        line: Arc<str>,
    },
    /// An event that is never written.
    Live {
        /// The id of the run.
        run_id: RunId,
        event: LiveEvent,
    },
}

/// The watchers of all runs of this process.
#[derive(Debug, Clone)]
pub struct Observers {
    sender: broadcast::Sender<Observed>,
}

impl Default for Observers {
    fn default() -> Self {
        Self { sender: broadcast::channel(QUEUE).0 }
    }
}

impl Observers {
    /// Returns a watcher that receives every item from now on.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<Observed> {
        self.sender.subscribe()
    }

    /// Sends an item to all watchers, if any.
    pub fn show(&self, observed: Observed) {
        let _ = self.sender.send(observed);
    }
}
