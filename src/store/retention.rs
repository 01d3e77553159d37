//! Removes what is older than the operator wants to keep: runs, the configurations that only they
//! name, and rows of slots.

use std::collections::HashSet;
use std::io;
use std::time::SystemTime;

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Connection, params};

use super::db::DbError;
use super::index::Index;
use super::ledger::Ledger;
use super::measure::disk_bytes;
use super::reader::{known, read_lines};
use super::remove::remove_tree;
use super::run_dir::{StateDir, names};
use super::text_rows;
use crate::domain::{Event, PlanState, RunId};

/// How long a configuration stays although no run names it: a run that is about to begin may use it.
const CONFIG_GRACE: TimeDelta = TimeDelta::hours(1);

/// Rows of slots that one transaction looks at.
const SLOT_BATCH: u32 = 10_000;

/// The limits on what to keep of each job. [`prune`] removes the runs and merges the slots beyond them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The number of runs.
    pub keep_runs: u32,
    /// The age of runs and slots in days.
    pub keep_days: u32,
}

/// The amounts that [`prune`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pruned {
    /// Runs that are gone.
    pub runs: u64,
    /// Rows of slots that are gone because they became part of a span.
    pub slots: u64,
    /// Bytes on disk that the runs took.
    pub bytes: u64,
    /// Runs whose directory could not be removed; they keep their rows.
    pub failed: u64,
}

/// The error that stopped [`prune`].
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    #[error(transparent)]
    Database(#[from] DbError),
    #[error("the state directory cannot be read: {0}")]
    Read(io::Error),
}

/// Removes the runs and merges the slots beyond `retention`; only counts them if `is_dry`. Logs a run
/// directory that it cannot remove, and keeps it.
///
/// *Errors*: [`PruneError`]; the changes before the error remain.
pub async fn prune(
    state: &StateDir,
    ledger: &Ledger,
    index: &Index,
    retention: Retention,
    now: DateTime<Utc>,
    is_dry: bool,
) -> Result<Pruned, PruneError> {
    let oldest = now - TimeDelta::days(retention.keep_days.into());
    let waiting = ledger.read(|reader| {
        let found = reader.plans()?;
        let waiting = found.plans.into_iter().filter(|plan| plan.state == PlanState::Waiting);
        // A plan has the id of its run. One that cannot be read may wait.
        let unreadable = found.unreadable.into_iter().map(|plan| plan.plan_id);
        Ok(waiting.map(|plan| plan.run_id).chain(unreadable).collect::<HashSet<String>>())
    });
    let waiting = waiting.await?;
    let keep_runs = usize::try_from(retention.keep_runs).unwrap_or(usize::MAX);
    let old = index.expired(keep_runs, oldest).await?;
    let mut pruned = Pruned::default();
    for run_id in old {
        if waiting.contains(run_id.as_str()) || state.is_open(&run_id) {
            continue;
        }
        let bytes = state.run_bytes(&run_id).await;
        if !is_dry {
            if let Err(error) = state.remove_run(&run_id).await {
                tracing::warn!(%run_id, %error, "failed to remove the directory of an old run");
                pruned.failed += 1;
                continue;
            }
            // The rows go only with the directory. After a crash between these steps, the next call
            // removes the rest.
            ledger.forget_run(run_id.clone()).await?;
            index.forget(run_id).await?;
        }
        pruned.runs += 1;
        pruned.bytes += bytes;
    }
    pruned.slots = ledger.merge_slots(oldest, is_dry).await?;
    if !is_dry {
        remove_configs(state, index, now).await?;
    }
    Ok(pruned)
}

/// Removes the configurations that no run names. Removes none if an open run has no first line yet.
async fn remove_configs(
    state: &StateDir,
    index: &Index,
    now: DateTime<Utc>,
) -> Result<(), PruneError> {
    let mut named = index.config_digests().await?;
    let state = state.clone();
    let removed = tokio::task::spawn_blocking(move || {
        let Some(open) = state.open_digests()? else { return Ok(()) };
        named.extend(open);
        let is_unused = |digest: &str, changed: SystemTime| {
            !named.contains(digest) && now - DateTime::<Utc>::from(changed) > CONFIG_GRACE
        };
        state.remove_configs(is_unused)
    });
    let removed = removed.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    removed.map_err(PruneError::Read)
}

impl StateDir {
    /// Removes the kept configurations for which `is_unused` holds; it gets the digest and the time of
    /// the last change.
    ///
    /// *Errors*: the directory cannot be read.
    fn remove_configs(&self, is_unused: impl Fn(&str, SystemTime) -> bool) -> io::Result<()> {
        let entries = match std::fs::read_dir(self.root().join("configs")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let digest = name.to_str().and_then(|name| name.strip_suffix(".json"));
            let changed = entry.metadata().and_then(|meta| meta.modified());
            if let (Some(digest), Ok(changed)) = (digest, changed)
                && is_unused(digest, changed)
                && let Err(error) = std::fs::remove_file(entry.path())
            {
                tracing::warn!(digest, %error, "failed to remove a configuration that no run names");
            }
        }
        Ok(())
    }

    /// Returns the digests of the configurations of the open runs; `None` if a run has no first line
    /// yet.
    ///
    /// *Errors*: the lock files cannot be read.
    fn open_digests(&self) -> io::Result<Option<Vec<String>>> {
        let mut digests = Vec::new();
        for name in names(std::fs::read_dir(self.run_locks())?)? {
            let run = RunId::parse(&name).ok().and_then(|run_id| self.find_run(&run_id));
            let first = run.and_then(|run| read_lines(&run.transcript()).ok()?.next()?.ok());
            match first.as_ref().and_then(known) {
                Some(Event::SessionStart(start)) => digests.push(start.config_digest.clone()),
                _ => return Ok(None),
            }
        }
        Ok(Some(digests))
    }

    /// Returns the bytes that the directory of a run takes, as far as they can be measured.
    async fn run_bytes(&self, run_id: &RunId) -> u64 {
        let Some(run) = self.find_run(run_id) else { return 0 };
        let measured = tokio::task::spawn_blocking(move || disk_bytes(run.path(), u64::MAX));
        measured.await.ok().and_then(Result::ok).flatten().unwrap_or(0)
    }

    /// Removes the directory of a run, and the directories of its day, month and year if they are then
    /// empty. A run without a directory is not an error.
    ///
    /// *Errors*: as [`remove_tree`].
    pub async fn remove_run(&self, run_id: &RunId) -> io::Result<()> {
        let Some(run) = self.find_run(run_id) else { return Ok(()) };
        let removed = tokio::task::spawn_blocking(move || {
            remove_tree(run.path())?;
            for above in run.path().ancestors().skip(1).take(3) {
                // The directory still holds other runs.
                if std::fs::remove_dir(above).is_err() {
                    break;
                }
            }
            Ok(())
        });
        removed.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

impl Ledger {
    /// Removes what the ledger keeps about an ended run.
    async fn forget_run(&self, run_id: RunId) -> Result<(), DbError> {
        self.write(move |transaction| {
            let id = run_id.as_str();
            transaction.execute("DELETE FROM record_ends WHERE run_id = ?1", [id])?;
            text_rows::forget(transaction, &run_id)?;
            transaction
                .execute("DELETE FROM plans WHERE plan_id = ?1 AND state <> 'waiting'", [id])?;
            Ok(())
        })
        .await
    }

    /// Merges consecutive rows of a job that were due before `until` and have the same final state into
    /// spans. Returns how many rows are gone; changes nothing if `is_dry`.
    async fn merge_slots(&self, until: DateTime<Utc>, is_dry: bool) -> Result<u64, DbError> {
        let (mut after, mut merged) = (RowKey::default(), 0);
        loop {
            let from = after.clone();
            let batch = move |transaction: &rusqlite::Transaction<'_>| {
                merge_batch(transaction, &from, until, is_dry)
            };
            let (last, count) = self.write(batch).await?;
            merged += count;
            match last {
                Some(last) => after = last,
                None => return Ok(merged),
            }
        }
    }
}

/// The key of a row of slots.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    job: String,
    epoch: i64,
    due_at: i64,
}

/// A row of slots that may become part of a span.
struct Row {
    key: RowKey,
    state: String,
    zone: String,
    until: i64,
    count: i64,
    is_mergeable: bool,
}

/// Examines at most [`SLOT_BATCH`] rows from `from` on, so that a claim does not wait long. Merges
/// those that are older than `until`. Returns where the next batch begins and how many rows are gone.
fn merge_batch(
    connection: &Connection,
    from: &RowKey,
    until: DateTime<Utc>,
    is_dry: bool,
) -> rusqlite::Result<(Option<RowKey>, u64)> {
    let rows: Vec<Row> = connection
        .prepare_cached(
            "SELECT job, epoch, due_at, state, zone, COALESCE(until, due_at), count, is_backfill FROM slots
             WHERE (job, epoch, due_at) >= (?1, ?2, ?3) ORDER BY job, epoch, due_at LIMIT ?4",
        )?
        .query_map(
            params![from.job, from.epoch, from.due_at, SLOT_BATCH],
            |row| {
                let (state, last): (String, i64) = (row.get(3)?, row.get(5)?);
                let is_final = !matches!(state.as_str(), "queued" | "running");
                let is_old = last < until.timestamp_millis();
                Ok(Row {
                    key: RowKey { job: row.get(0)?, epoch: row.get(1)?, due_at: row.get(2)? },
                    zone: row.get(4)?,
                    until: last,
                    count: row.get(6)?,
                    is_mergeable: is_old && is_final && !row.get::<_, bool>(7)?,
                    state,
                })
            },
        )?
        .collect::<rusqlite::Result<_>>()?;
    let is_alike = |one: &Row, next: &Row| {
        let of =
            |row: &Row| (row.key.job.clone(), row.key.epoch, row.state.clone(), row.zone.clone());
        one.is_mergeable && next.is_mergeable && of(one) == of(next)
    };
    let is_full = rows.len() == SLOT_BATCH as usize;
    let groups: Vec<&[Row]> = rows.chunk_by(is_alike).collect();
    // The last group may go on in the next batch.
    let (whole, next) = match groups.as_slice() {
        [whole @ .., last] if is_full && !whole.is_empty() => (whole, last.first()),
        [only] if is_full && is_dry => (groups.as_slice(), only.last()),
        [only] if is_full => (groups.as_slice(), only.first()),
        all => (all, None),
    };
    let mut merged = 0;
    for group in whole {
        let ([first, _, ..], Some(last)) = (*group, group.last()) else { continue };
        merged += group.len() as u64 - 1;
        if is_dry {
            continue;
        }
        let count: i64 = group.iter().map(|row| row.count).sum();
        let RowKey { job, epoch, due_at } = &first.key;
        connection
            .prepare_cached(
                "DELETE FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at > ?3 AND due_at <= ?4",
            )?
            .execute(params![job, epoch, due_at, last.key.due_at])?;
        connection
            .prepare_cached(
                "UPDATE slots SET until = ?4, count = ?5, run_id = NULL WHERE job = ?1 AND epoch = ?2 AND due_at = ?3",
            )?
            .execute(params![job, epoch, due_at, last.until, count])?;
    }
    Ok((next.map(|row| row.key.clone()), merged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn old_slots_with_the_same_state_share_a_row() {
        use crate::domain::{Epoch, JobName, SlotKey};
        use crate::store::{Claim, SharedLedger, Slot, SlotState};
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let ledger = SharedLedger::of(home.path());
        let ledger = ledger.get().await.unwrap();
        let state = |minute: i64| match minute {
            200..300 => SlotState::Missed,
            250_000 => SlotState::Queued,
            _ => SlotState::Ran,
        };
        let slot = |minute: i64| Slot {
            key: SlotKey::new(
                JobName::parse("j").unwrap(),
                Epoch::FIRST,
                at(0) + TimeDelta::minutes(minute),
            ),
            span: None,
            is_backfill: minute == 310,
            state: state(minute),
            run_id: None,
            reason: "due".into(),
            zone: "UTC".into(),
            config_digest: String::new(),
            left: None,
            queued: None,
        };
        let slots: Vec<Slot> = (0..25_000).map(slot).collect();
        ledger.claim(Claim { slots, ..Claim::default() }, at(1)).await.unwrap();
        let until = at(0) + TimeDelta::minutes(24_000);
        assert_eq!(ledger.merge_slots(until, true).await.unwrap(), 24_000 - 5);
        assert_eq!(ledger.merge_slots(until, false).await.unwrap(), 24_000 - 5);
        let rows = ledger.read(|reader| reader.slots(Some("j"), None, None)).await.unwrap();
        let counts: Vec<u64> = rows.iter().take(6).map(|row| row.count).collect();
        assert_eq!(counts, [200, 100, 10, 1, 24_000 - 311, 1]);
        assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 25_000);
        assert_eq!(rows[4].until, Some(until - TimeDelta::minutes(1)));
        // The next day, the span grows.
        let later = at(0) + TimeDelta::minutes(24_500);
        assert_eq!(ledger.merge_slots(later, false).await.unwrap(), 500);
        assert_eq!(ledger.merge_slots(later, false).await.unwrap(), 0);
    }

    fn at(day: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(day * 86_400, 0).unwrap()
    }
}
