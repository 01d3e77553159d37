//! The progress of a long reading of records, on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Interval between updates.
const INTERVAL: Duration = Duration::from_millis(200);

/// Shows the number of records on stderr, if stderr is a terminal, until it is dropped.
pub(crate) struct Progress {
    is_terminal: bool,
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), shown: None }
    }

    pub(crate) fn show(&mut self, count: u64) {
        if self.is_terminal && self.shown.is_none_or(|at| at.elapsed() >= INTERVAL) {
            self.shown = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r{count} records");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
