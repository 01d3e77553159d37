//! Ends a run whose temporary directory exceeds `limits.max_tmp_bytes`: a run must not fill the
//! file system, which also holds the ledger and the transcripts. A measurement that fails is not an
//! excess; it is repeated, and the log says once that it fails.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::domain::{RunId, Stop, StopReason};
use crate::store::StateDir;

/// Time between two checks of the free space; a check is one system call.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Number of checks after which the directory is measured even if the free space did not fall:
/// another process may have freed as much space as the run took.
const CHECKS_PER_MEASUREMENT: u32 = 30;

/// The directory is measured again once the free space has fallen by `limits.max_tmp_bytes` divided
/// by this number.
const REMEASURE_DIVISOR: u64 = 16;

/// Watches the temporary directory of a run until dropped.
pub(super) struct TemporaryWatch {
    task: AbortHandle,
    /// The reason to stop: from outside, or because the directory is too large.
    pub(super) stop: watch::Receiver<Option<Stop>>,
}

impl Drop for TemporaryWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TemporaryWatch {
    pub(super) fn new(
        state: StateDir,
        run_id: RunId,
        most: u64,
        mut outer: watch::Receiver<Option<Stop>>,
    ) -> Self {
        let (sender, stop) = watch::channel(outer.borrow().clone());
        let task = tokio::spawn(async move {
            let given = tokio::select! {
                given = outer.wait_for(Option::is_some) => match given {
                    Ok(stop) => stop.clone(),
                    // The sender is gone, and so is the daemon.
                    Err(_) => Some(StopReason::Interrupted.into()),
                },
                () = wait_until_over(state, run_id, most) => {
                    Some(StopReason::BudgetExceeded.into())
                }
            };
            // The receiver is gone if the run has ended.
            let _ = sender.send(given);
            // Keep the channel open as long as the run watches it.
            sender.closed().await;
        });
        Self { task: task.abort_handle(), stop }
    }
}

/// Returns once the directory exceeds `most` bytes.
async fn wait_until_over(state: StateDir, run_id: RunId, most: u64) {
    let (mut plan, mut has_failed) = (MeasurementPlan::new(most), false);
    let mut interval = tokio::time::interval(CHECK_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if !plan.is_due(free_bytes(state.root())) && !has_failed {
            continue;
        }
        let (state, run_id) = (state.clone(), run_id.clone());
        let id = run_id.clone();
        let measured =
            tokio::task::spawn_blocking(move || state.temporary_bytes(&run_id, most)).await;
        match measured {
            Ok(Ok(Some(_))) => has_failed = false,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(run_id = %id, %error, "failed to measure the temporary directory of a run");
                }
            }
            Err(error) => {
                tracing::error!(run_id = %id, %error, "the measurement of the temporary directory panicked");
            }
        }
    }
}

/// Decides when to measure a directory again: a measurement costs far more than a look at the free
/// space of its file system.
struct MeasurementPlan {
    /// The limit of the directory, in bytes.
    most: u64,
    /// The free bytes at the last measurement; none has happened at `u64::MAX`.
    free: u64,
    /// The checks since the last measurement.
    checks: u32,
}

impl MeasurementPlan {
    fn new(most: u64) -> Self {
        Self { most, free: u64::MAX, checks: 0 }
    }

    /// Tells whether to measure now, with `free` bytes left on the file system.
    fn is_due(&mut self, free: u64) -> bool {
        self.checks += 1;
        let has_room = self.free.saturating_sub(free) < self.most / REMEASURE_DIVISOR;
        if has_room && self.checks < CHECKS_PER_MEASUREMENT {
            return false;
        }
        (self.free, self.checks) = (free, 0);
        true
    }
}

fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |system| system.f_bfree.saturating_mul(system.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_measured_at_first_when_space_goes_and_now_and_then() {
        let mut plan = MeasurementPlan::new(1600);
        assert!(plan.is_due(10_000), "nothing is known at first");
        assert!(!plan.is_due(10_000) && !plan.is_due(9901));
        assert!(plan.is_due(9900), "a sixteenth of the limit is gone");
        assert!(!plan.is_due(9900) && !plan.is_due(20_000));
        for _ in 3..CHECKS_PER_MEASUREMENT {
            assert!(!plan.is_due(20_000));
        }
        assert!(plan.is_due(20_000), "a full file system may hide what the directory takes");
    }
}
