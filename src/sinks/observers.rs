//! Those who watch runs as they happen.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::domain::{LiveEvent, RunId};

/// Events that a slow watcher may be behind; past that it loses the oldest and is told so.
const QUEUE: usize = 1024;

/// What a watcher sees.
#[derive(Debug, Clone)]
pub enum Observed {
    /// A line that is in the transcript.
    Line {
        /// The run.
        run_id: RunId,
        /// Its number.
        seq: u64,
        /// The line without its newline.
        line: Arc<str>,
    },
    /// What is never written.
    Live {
        /// The run.
        run_id: RunId,
        /// What happens.
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
    /// Returns a watcher that sees what happens from now on.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<Observed> {
        self.sender.subscribe()
    }

    /// Shows something to whoever watches; nobody need to.
    pub fn show(&self, observed: Observed) {
        let _ = self.sender.send(observed);
    }
}
