//! Applies `retention` once a day.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Kind, Supervisor};
use crate::daemon::recovery::store_bound;
use crate::run::Host;
use crate::store::{PruneError, Pruned, Retention, prune};

/// The key in the table `meta` of the ledger for the time when the daemon last applied `retention`.
const LAST_PRUNED: &str = "last_pruned";

/// If the clock is set forward by more than this, nothing is pruned for [`DISTRUST`].
const STEP_FORWARD: TimeDelta = TimeDelta::hours(1);

/// How long the clock is not trusted after it was set forward: a wrong date must not remove runs.
const DISTRUST: Duration = Duration::from_hours(24);

/// The state of the daily pruning.
#[derive(Default)]
pub(super) struct Pruning {
    /// When this daemon last checked whether pruning is due.
    looked_at: Option<DateTime<Utc>>,
    task: Option<AbortOnDropHandle<()>>,
    /// When the machine started, by the clock at the last check.
    booted_at: Option<DateTime<Utc>>,
    /// Until when the clock is not trusted.
    not_before: Option<Instant>,
}

impl Pruning {
    /// Tells whether the clock was not set forward lately.
    fn trusts_clock(&mut self, now: DateTime<Utc>) -> bool {
        let booted_at = now - uptime();
        let before = self.booted_at.replace(booted_at);
        if before.is_some_and(|before| booted_at - before > STEP_FORWARD) {
            tracing::warn!(%now, "the clock was set forward; old runs are kept for another day");
            self.not_before = Some(Instant::now() + DISTRUST);
        }
        self.not_before.is_none_or(|not_before| Instant::now() >= not_before)
    }
}

/// Returns how long the machine has been up, with the time that it was suspended.
fn uptime() -> TimeDelta {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    TimeDelta::seconds(time.tv_sec) + TimeDelta::nanoseconds(time.tv_nsec)
}

impl Supervisor {
    /// Starts pruning, unless it is in progress or this daemon checked within the last day.
    pub(super) fn prune_daily(&mut self, now: DateTime<Utc>) {
        let is_due = |last: DateTime<Utc>| now < last || now - last >= TimeDelta::days(1);
        let is_active = self.pruning.task.as_ref().is_some_and(|task| !task.is_finished());
        if !self.pruning.trusts_clock(now)
            || is_active
            || !self.pruning.looked_at.is_none_or(is_due)
        {
            return;
        }
        self.pruning.looked_at = Some(now);
        let settings = &self.config.borrow().settings;
        let retention = Retention { keep_runs: settings.keep_runs, keep_days: settings.keep_days };
        let host = self.parts.host.clone();
        let active = self.book.of_kind(Kind::Active).next().map(|(run_id, _)| run_id.clone());
        let work = async move {
            // The next start looks only at runs from then on.
            if let Err(error) = store_bound(&host, active).await {
                tracing::warn!(%error, "failed to store the time from which the next start reads runs");
            }
            match prune_host(&host, retention, now).await {
                Ok(Pruned { runs: 0, slots: 0, .. }) => {}
                Ok(Pruned { runs, slots, bytes, .. }) => {
                    tracing::info!(runs, slots, bytes, "removed old runs and merged old slots");
                }
                Err(error) => tracing::error!(%error, "failed to apply `retention`"),
            }
        };
        self.pruning.task = Some(AbortOnDropHandle::new(tokio::spawn(work)));
    }
}

async fn prune_host(
    host: &Host,
    retention: Retention,
    now: DateTime<Utc>,
) -> Result<Pruned, PruneError> {
    let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
    let last = ledger.read(|reader| reader.meta(LAST_PRUNED)).await?;
    let last = last.and_then(DateTime::from_timestamp_millis);
    if last.is_some_and(|last| last <= now && now - last < TimeDelta::days(1)) {
        return Ok(Pruned::default());
    }
    let pruned = prune(&host.state, ledger, index, retention, now, false).await?;
    ledger.set_meta(LAST_PRUNED, now.timestamp_millis()).await?;
    Ok(pruned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock};

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_forward_removes_nothing_for_a_day() {
        let (mut pruning, now) = (Pruning::default(), SystemClock.now());
        assert!(pruning.trusts_clock(now));
        assert!(pruning.trusts_clock(now + TimeDelta::minutes(50)));
        let later = now + TimeDelta::days(400);
        assert!(!pruning.trusts_clock(later));
        assert!(!pruning.trusts_clock(now), "the clock was corrected");
        tokio::time::advance(DISTRUST).await;
        assert!(pruning.trusts_clock(now));
    }
}
