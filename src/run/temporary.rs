//! Ends a run whose temporary directory takes more than `limits.max_tmp_bytes`: it lies on the file system of the state.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::domain::{RunId, Stop, StopReason};
use crate::store::StateDir;

/// How often the free space is looked at, a single system call.
const LOOK: Duration = Duration::from_secs(1);

/// Looks after which the directory is counted, whatever the free space is: others may have freed some.
const MOST_LOOKS: u32 = 30;

/// Part of the limit by which the free space must have become less before the directory is counted again.
const PARTS: u64 = 16;

/// Watches a run until it is dropped.
pub(super) struct TemporaryWatch {
    task: AbortHandle,
    /// The reason to stop: that of the run, or the directory.
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
                given = outer.wait_for(Option::is_some) => given.ok().and_then(|stop| stop.clone()),
                () = is_over(state, run_id, most) => Some(StopReason::BudgetExceeded.into()),
            };
            // Nobody listens to a run that has ended.
            let _ = sender.send(given);
            // The channel stays open as long as the run looks at it.
            sender.closed().await;
        });
        Self { task: task.abort_handle(), stop }
    }
}

/// Returns as soon as the directory takes more than `most` bytes.
async fn is_over(state: StateDir, run_id: RunId, most: u64) {
    let (mut counted_at, mut looks) = (u64::MAX, 0);
    let mut interval = tokio::time::interval(LOOK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let free = free_bytes(state.root());
        looks += 1;
        if counted_at.saturating_sub(free) < most / PARTS && looks < MOST_LOOKS {
            continue;
        }
        (counted_at, looks) = (free, 0);
        let (state, run_id) = (state.clone(), run_id.clone());
        let id = run_id.clone();
        let counted =
            tokio::task::spawn_blocking(move || state.temporary_bytes(&run_id, most)).await;
        match counted {
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                tracing::warn!(run_id = %id, %error, "the temporary directory of a run cannot be counted");
            }
            Err(error) => tracing::error!(run_id = %id, %error, "counting a directory panicked"),
        }
    }
}

fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |system| system.f_bfree.saturating_mul(system.f_frsize))
}
