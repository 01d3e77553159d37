//! Notices that the disk cannot be written or that the state was moved away, and finds out when runs
//! may begin again (STATE-4, STATE-8).

use std::time::Duration;

use tokio::time::Instant;

use super::Supervisor;

/// The time between two attempts to write to a disk after a fault.
const PAUSE: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Records that `what` cannot be written. No run begins until [`Self::disk_is_writable`] finds out
    /// that the disk can be written again.
    pub(super) fn disk_failed(&mut self, what: &dyn std::fmt::Display) {
        // Log a fault once, even if many writes fail until it is over.
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

    /// Tells whether the state directory and the ledger are those that the daemon opened. If not, no run
    /// begins, as after a fault of the disk.
    pub(super) fn is_in_place(&mut self) -> bool {
        let Err(displaced) = self.parts.ledger.check_identity() else { return true };
        let fault = format!("no run begins: {displaced}");
        // Each tick finds it again.
        if self.disk_fault.as_ref() != Some(&fault) {
            tracing::error!(%displaced, "no run begins");
            self.disk_fault = Some(fault);
        }
        self.not_before = Some(Instant::now() + PAUSE);
        false
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
        // Do not write to a directory that replaced ours.
        if !self.is_in_place() {
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
