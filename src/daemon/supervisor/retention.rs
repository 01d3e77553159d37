//! Applies `retention` once a day.

use chrono::{DateTime, TimeDelta, Utc};
use tokio_util::task::AbortOnDropHandle;

use super::Supervisor;
use crate::run::Host;
use crate::store::{PruneError, Pruned, Retention, prune};

/// The key in the table `meta` of the ledger for the time when the daemon last applied `retention`.
const LAST_PRUNED: &str = "last_pruned";

/// The state of the daily pruning.
#[derive(Default)]
pub(super) struct Pruning {
    /// When this daemon last checked whether pruning is due.
    looked_at: Option<DateTime<Utc>>,
    task: Option<AbortOnDropHandle<()>>,
}

impl Supervisor {
    /// Starts pruning, unless it is in progress or this daemon checked within the last day.
    pub(super) fn prune_daily(&mut self, now: DateTime<Utc>) {
        let is_due = |last: DateTime<Utc>| now < last || now - last >= TimeDelta::days(1);
        let is_active = self.pruning.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_active || !self.pruning.looked_at.is_none_or(is_due) {
            return;
        }
        self.pruning.looked_at = Some(now);
        let settings = &self.config.borrow().settings;
        let retention = Retention { keep_runs: settings.keep_runs, keep_days: settings.keep_days };
        let host = self.parts.host.clone();
        let work = async move {
            match prune_host(&host, retention, now).await {
                Ok(Pruned { runs: 0, slots: 0, .. }) => {}
                Ok(Pruned { runs, slots, bytes }) => {
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
    let pruned = prune(&host.state, (ledger, index), retention, now, false).await?;
    ledger.set_meta(LAST_PRUNED, now.timestamp_millis()).await?;
    Ok(pruned)
}
