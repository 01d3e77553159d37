//! The time from which a start reads runs: each earlier run has ended and has its rows in the ledger
//! and in the index. So the cost of a start does not grow with the history.

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::RunId;
use crate::run::Host;
use crate::store::DbError;
pub(super) use crate::store::first_id;

/// The key in the table `meta` for the bound.
const CLEAN_SINCE: &str = "clean_since";

/// How much the clock may have been wrong when the bound was kept.
const MARGIN: TimeDelta = TimeDelta::days(1);

/// Returns a day before the stored bound or before now, whichever is earlier; 1970 if none is stored.
///
/// *Errors*: the ledger fails.
pub(super) async fn read_bound(host: &Host) -> Result<DateTime<Utc>, DbError> {
    let kept = host.ledger.get().await?.read(|reader| reader.meta(CLEAN_SINCE)).await?;
    let kept = kept.and_then(DateTime::from_timestamp_millis);
    Ok(kept.map_or(DateTime::<Utc>::UNIX_EPOCH, |kept| kept.min(host.clock.now()) - MARGIN))
}

/// Stores the bound: the beginning of the oldest run that is queued, open or `active`; now if there is
/// none.
///
/// *Errors*: the ledger fails, or the lock files cannot be read.
pub(crate) async fn store_bound(host: &Host, active: Option<RunId>) -> Result<(), DbError> {
    let ledger = host.ledger.get().await?;
    // A run that begins leaves the queue after it has its lock file, so look at the queue first.
    let queued = ledger.read(|reader| reader.oldest_queued()).await?;
    let queued = queued.and_then(|id| RunId::parse(&id).ok());
    let unreadable =
        |error| DbError::Unreadable { path: host.state.root().join("runs/open"), error };
    let open = host.state.oldest_open().map_err(unreadable)?;
    let now = host.clock.now();
    let begun = [queued, open, active].into_iter().flatten().filter_map(|run_id| run_id.made_at());
    let since = begun.chain([now]).min().unwrap_or(now);
    ledger.set_meta(CLEAN_SINCE, since.timestamp_millis()).await
}
