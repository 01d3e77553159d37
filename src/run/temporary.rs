//! Ends a run whose temporary directory exceeds `limits.max_tmp_bytes`, or its share of a disk with
//! little space: a run must not fill the file system, which also holds the ledger and the transcripts.
//! A measurement that fails is not an excess; it is repeated, and the log says once that it fails.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::spec::RunSpec;
use crate::domain::{Event, RunId, Stop, StopReason};
use crate::process::Spawner;
use crate::store::StateDir;

/// Time between two checks of the free space; a check is one system call. A tool can write a gigabyte
/// a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Number of checks after which the directory is measured even if the free space did not fall:
/// another process may have freed as much space as the run took.
const CHECKS_PER_MEASUREMENT: u32 = 150;

/// Number of checks after which a failed measurement is repeated.
const CHECKS_AFTER_FAILURE: u32 = 5;

/// Bytes that a run leaves to the rest of the host, or half of the free space if that is less.
const LEFT_FREE: u64 = 256 << 20;

/// The least room of a run, in bytes.
const LEAST_ROOM: u64 = 1 << 20;

/// Lowers `max_tmp_bytes` of a run to its share of the free space of the state directory. Returns the
/// run, with a warning if the limit is lower now.
pub(super) fn with_room(mut spec: RunSpec, state: &StateDir) -> (RunSpec, Option<Event>) {
    let most = spec.job.limits.max_tmp_bytes;
    let room = free_bytes(state.root()).map_or(most, |free| room_of(most, free));
    if room == most {
        return (spec, None);
    }
    Arc::make_mut(&mut spec.job).limits.max_tmp_bytes = room;
    let message = format!(
        "the file system of the state directory has little free space: the temporary directory of the run may take {room} bytes instead of the {most} of `max_tmp_bytes`"
    );
    (spec, Some(Event::warning("little_space", message)))
}

fn room_of(most: u64, free: u64) -> u64 {
    let share = (free / 2).max(free.saturating_sub(LEFT_FREE));
    most.min(share.max(LEAST_ROOM))
}

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
    /// Once the directory exceeds `most` bytes, or a stop asks for it, `spawner` kills the processes of
    /// the run without a grace period, in which they could write more.
    pub(super) fn new(
        state: StateDir,
        run_id: RunId,
        most: u64,
        spawner: Spawner,
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
                    Some(Stop { at_once: true, ..StopReason::BudgetExceeded.into() })
                }
            };
            // Kill before the run learns of the stop and asks its calls to end: a shim that has begun
            // a grace period takes no further order.
            if given.as_ref().is_some_and(|stop| stop.at_once) {
                spawner.kill();
            }
            // The receiver is gone if the run has ended.
            let _ = sender.send(given);
            // Keep the channel open as long as the run watches it.
            tokio::select! {
                () = sender.closed() => return,
                stop = outer.wait_for(|stop| stop.as_ref().is_some_and(|stop| stop.at_once)) => {
                    if stop.is_ok() {
                        spawner.kill();
                    }
                }
            }
            sender.closed().await;
        });
        Self { task: task.abort_handle(), stop }
    }
}

/// Returns once the directory exceeds `most` bytes, or its share of what it and the others have left.
async fn wait_until_over(state: StateDir, run_id: RunId, most: u64) {
    let (mut plan, mut has_failed, mut before) = (MeasurementPlan::new(most), false, 0);
    let root = state.root().to_path_buf();
    let mut interval = tokio::time::interval(CHECK_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if free_bytes(state.root()).is_some_and(|free| !plan.is_due(free)) {
            continue;
        }
        let (state, run_id) = (state.clone(), run_id.clone());
        let id = run_id.clone();
        let measured =
            tokio::task::spawn_blocking(move || state.temporary_bytes(&run_id, most)).await;
        match measured {
            Ok(Ok(Some(bytes))) => {
                // Other runs may have taken since the start what was free then.
                let room = free_bytes(&root).map(|free| room_of(most, free.saturating_add(bytes)));
                let has_grown = bytes > std::mem::replace(&mut before, bytes);
                if let Some(room) = room.filter(|room| has_grown && bytes > *room) {
                    tracing::warn!(run_id = %id, bytes, room, "ended a run whose temporary directory takes more than its share of the free space");
                    return;
                }
                has_failed = false;
            }
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                plan.repeat();
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

    /// Makes a measurement due soon, after one that failed.
    fn repeat(&mut self) {
        self.checks = CHECKS_PER_MEASUREMENT - CHECKS_AFTER_FAILURE;
    }
}

/// Returns the bytes that this process can still write to the file system of `path`; `None` if unknown.
fn free_bytes(path: &Path) -> Option<u64> {
    let Ok(system) = rustix::fs::statvfs(path) else { return None };
    let blocks =
        if rustix::process::geteuid().is_root() { system.f_bfree } else { system.f_bavail };
    Some(blocks.saturating_mul(system.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_leaves_room_to_the_rest_of_the_host() {
        const MIB: u64 = 1 << 20;
        for (most, free, expected) in [
            (1024, 100_000, 1024),
            (1024, 1280, 1024),
            (1024, 1279, 1023),
            (1024, 512, 256),
            (1024, 8, 4),
            (1024, 0, 1),
            (8, 100_000, 8),
            (8, 8, 4),
        ] {
            assert_eq!(room_of(most * MIB, free * MIB), expected * MIB, "{most} {free}");
        }
    }

    #[test]
    fn a_measurement_that_fails_is_repeated_soon() {
        let mut plan = MeasurementPlan::new(1600);
        assert!(plan.is_due(10_000));
        plan.repeat();
        for _ in 1..CHECKS_AFTER_FAILURE {
            assert!(!plan.is_due(10_000));
        }
        assert!(plan.is_due(10_000));
    }

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
