//! Notices that the disk cannot be written, and finds out when it can be written again (STATE-4).

use std::time::Duration;

use tokio::time::Instant;

use super::Supervisor;

/// The time between two attempts to write to a disk after a fault.
const PAUSE: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Records that `what` cannot be written. No run begins until [`Self::disk_is_writable`] finds out
    /// that the disk can be written again.
    pub(super) fn disk_failed(&mut self, what: &dyn std::fmt::Display) {
        // One line tells of a fault, however many writes fail until it is over.
        match &self.disk_fault {
            None => {
                tracing::error!(%what, "the disk cannot be written; no run begins until it can");
            }
            Some(_) => tracing::debug!(%what, "the disk still cannot be written"),
        }
        self.disk_fault =
            Some(format!("no run begins, because the disk cannot be written: {what}"));
        self.not_before = Some(Instant::now() + PAUSE);
    }

    /// Tells whether runs may begin. After a fault, writes to the state directory and to the ledger,
    /// at most once per [`PAUSE`].
    pub(super) async fn disk_is_writable(&mut self) -> bool {
        if self.disk_fault.is_none() {
            return true;
        }
        if self.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return false;
        }
        let state = self.parts.host.state.clone();
        let written = tokio::task::spawn_blocking(move || state.try_to_write()).await;
        let now = self.parts.host.clock.now().timestamp_millis();
        let fault = match written {
            Ok(Ok(())) => {
                self.parts.ledger.set_meta("last_seen", now).await.err().map(|e| e.to_string())
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        match fault {
            None => {
                tracing::info!("the disk can be written again");
                self.disk_fault = None;
                self.not_before = None;
            }
            Some(error) => {
                tracing::debug!(error, "the disk still cannot be written");
                self.not_before = Some(Instant::now() + PAUSE);
            }
        }
        self.disk_fault.is_none()
    }
}
