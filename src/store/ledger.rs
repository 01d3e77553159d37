//! The slot ledger: the disposition of every due time.
//!
//! A slot `(job, epoch, due_at)` is claimed here, on disk, before anything of its run begins. An
//! existing slot is never claimed again (CRON-1), unless a previous daemon left it before its run
//! began. The epoch counts how often the clock was set back. The ledger also keeps the periods in
//! which each schedule was in effect, so that `audit` can recompute the slots. Of a lost ledger, only the
//! slots that ran and what restricts (`guards.rs`) can be restored.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::Notify;

use super::claim::{Claim, SlotState, decide, write_claim};
use super::db::{Db, DbError, Origin, failed, read_only};
use super::guards::{GuardsFile, LedgerFound, Life, Restrictions, has_past};
use super::identity::{Displaced, StateIdentity};
use super::lock::StateLock;
use super::reserve::Reserve;
use super::slot_rows::{
    AdoptedSchedule, OpenSlot, PERIOD_COLUMNS, Period, SLOT_COLUMNS, SlotRow, open_slot, period,
    slot_row, time,
};
use super::tables::SCHEMA;
use crate::domain::{Epoch, RunId};

/// The prefix of the name of a downtime in `meta`. Its start in milliseconds follows; the value is its
/// end.
const DOWN_SINCE: &str = "down_since_";

/// The ledger and its writer.
#[derive(Debug, Clone)]
pub struct Ledger {
    db: Db,
    guards: GuardsFile,
    identity: Arc<StateIdentity>,
    /// Wakes the sender of notifications.
    added: Arc<Notify>,
}

impl Ledger {
    /// Returns the path of the ledger in a state directory.
    #[must_use]
    pub fn path(state: &Path) -> PathBuf {
        state.join("ledger.db")
    }

    /// Opens the ledger. With `lock`, a damaged file is moved aside, and a lost ledger is replaced by a
    /// new one with the restrictions of `guards.json`.
    ///
    /// *Errors*: [`DbError`].
    pub fn open(state: &Path, lock: Option<&StateLock>) -> Result<(Self, LedgerFound), DbError> {
        let path = Self::path(state);
        let unreadable = |error| DbError::Unreadable { path: state.to_path_buf(), error };
        // Look for a past first: another process that makes a new ledger makes it before its first record.
        let has_past = has_past(state).map_err(unreadable)?;
        if lock.is_none() && has_past && read_only(&path, SCHEMA)?.is_none() {
            return Err(DbError::Lost(path));
        }
        let reserve = Reserve::open(state.join("ledger.reserve"));
        if let Err(error) = &reserve {
            tracing::warn!(%error, "failed to open the disk-space reserve of the ledger");
        }
        let guards = GuardsFile::of(state);
        let mut restrictions = Restrictions::Own;
        let mut begin = |ledger: &Connection, origin: Origin| -> rusqlite::Result<()> {
            let life = match origin {
                Origin::Kept => Life::Continued,
                Origin::Blank if !has_past => Life::New,
                Origin::Blank | Origin::Damaged => Life::Lost,
            };
            restrictions = guards.reconcile(ledger, life)?;
            Ok(())
        };
        let (db, aside) = Db::open(&path, SCHEMA, reserve.ok(), lock, &mut begin)?;
        let identity = Arc::new(StateIdentity::of(state, &path).map_err(unreadable)?);
        Ok((
            Self { db, guards, identity, added: Arc::default() },
            LedgerFound { aside, restrictions },
        ))
    }

    /// Notes that messages may have been added.
    pub(super) fn wake_notifier(&self) {
        self.added.notify_one();
    }

    /// Waits until messages may have been added since the last call.
    ///
    /// *Cancel*: safe.
    pub async fn await_messages(&self) {
        self.added.notified().await;
    }

    /// Checks that the state directory and the ledger are still those that were opened.
    ///
    /// *Errors*: which of them is not.
    pub fn check_identity(&self) -> Result<(), Displaced> {
        self.identity.check()
    }

    /// Runs `work` in the writer thread, in one transaction. Writes `guards.json` first if `work` changes
    /// what restricts.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DbError> {
        let (guards, identity) = (self.guards.clone(), self.identity.clone());
        self.db
            .write(move |transaction| {
                let displaced =
                    |error: Displaced| rusqlite::Error::ToSqlConversionFailure(error.into());
                identity.check().map_err(displaced)?;
                guards.follow(transaction, work)
            })
            .await
    }

    /// Makes a claim in one transaction; returns for each slot whether it is claimed. A slot is
    /// claimed if it is new, or if a previous daemon left it without a final disposition.
    ///
    /// *Errors*: [`DbError`]; the ledger is then unchanged.
    pub async fn claim(&self, claim: Claim, now: DateTime<Utc>) -> Result<Vec<bool>, DbError> {
        let has_messages = !claim.messages.is_empty();
        let claimed = self.write(move |transaction| write_claim(transaction, &claim, now)).await;
        if has_messages {
            self.wake_notifier();
        }
        claimed
    }

    /// Writes the disposition of a run's slots, unless it is final already.
    ///
    /// *Errors*: [`DbError`].
    pub async fn decide(
        &self,
        run_id: RunId,
        state: SlotState,
        reason: String,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        self.write(move |transaction| decide(transaction, &run_id, state, &reason, now)).await
    }

    /// Puts exactly these schedules into effect from `now` on, and
    /// makes a claim before. The open period of an unchanged schedule continues; every other open
    /// period ends.
    ///
    /// *Errors*: [`DbError`]; the ledger is then unchanged.
    pub async fn set_schedules(
        &self,
        epoch: Epoch,
        schedules: Vec<AdoptedSchedule>,
        claim: Claim,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        self.db
            .write(move |transaction| {
                write_claim(transaction, &claim, now)?;
                let open: Vec<(i64, String, String, String, i64)> = transaction
                    .prepare(
                        "SELECT rowid, job, schedule, zone, epoch FROM periods WHERE ended IS NULL",
                    )?
                    .query_map([], |row| {
                        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
                    })?
                    .collect::<rusqlite::Result<_>>()?;
                let new: HashMap<&str, &AdoptedSchedule> =
                    schedules.iter().map(|new| (new.job.as_str(), new)).collect();
                let goes_on_as = |job: &str, schedule: &str, zone: &str| {
                    new.get(job).is_some_and(|new| new.schedule == schedule && new.zone == zone)
                };
                let mut goes_on = HashSet::new();
                for (id, job, record, zone, of) in open {
                    if of == epoch.number() && goes_on_as(&job, &record, &zone) {
                        goes_on.insert(job);
                    } else {
                        transaction.execute(
                            "UPDATE periods SET ended = max(began, settled, ?2) WHERE rowid = ?1",
                            params![id, now.timestamp_millis()],
                        )?;
                    }
                }
                begin_periods(
                    transaction,
                    epoch,
                    schedules.iter().filter(|new| !goes_on.contains(new.job.as_str())),
                    now,
                )
            })
            .await
    }

    /// Begins an epoch at `now`, after the clock was set back from `ended`: every open period ends
    /// at `ended`, and for each of `schedules` a new period begins at `now`.
    ///
    /// *Errors*: [`DbError`]; the ledger is then unchanged.
    pub async fn begin_epoch(
        &self,
        epoch: Epoch,
        ended: DateTime<Utc>,
        schedules: Vec<AdoptedSchedule>,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        self.db
            .write(move |transaction| {
                let old = ended.timestamp_millis();
                transaction.execute(
                    "UPDATE periods SET ended = max(began, settled, ?1) WHERE ended IS NULL",
                    [old],
                )?;
                for (name, value) in [
                    ("epoch", epoch.number()),
                    ("epoch_ended", old),
                    ("last_seen", now.timestamp_millis()),
                ] {
                    keep_meta(transaction, name, value)?;
                }
                // The times from before the step do not compare with those after it.
                keep_meta(transaction, "started", now.timestamp_millis())?;
                forget_downtimes(transaction)?;
                begin_periods(transaction, epoch, schedules.iter(), now)
            })
            .await
    }

    /// Records that every due time of the periods that have ended has its row.
    ///
    /// *Errors*: [`DbError`].
    pub async fn settle_ended(&self) -> Result<(), DbError> {
        self.db
            .write(|transaction| {
                transaction
                    .execute("UPDATE periods SET settled = ended WHERE settled < ended", [])
                    .map(drop)
            })
            .await
    }

    /// Stores a downtime. Forgets the earlier ones unless `keeps_earlier`.
    ///
    /// *Errors*: [`DbError`].
    pub async fn add_downtime(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        keeps_earlier: bool,
    ) -> Result<(), DbError> {
        self.db
            .write(move |transaction| {
                if !keeps_earlier {
                    forget_downtimes(transaction)?;
                }
                let name = format!("{DOWN_SINCE}{}", from.timestamp_millis());
                keep_meta(transaction, &name, to.timestamp_millis())
            })
            .await
    }

    /// Stores a named number.
    ///
    /// *Errors*: [`DbError`].
    pub async fn set_meta(&self, name: &'static str, value: i64) -> Result<(), DbError> {
        self.write(move |transaction| keep_meta(transaction, name, value)).await
    }

    /// Runs a query in the writer thread, so that it sees everything written so far.
    ///
    /// *Errors*: [`DbError`].
    pub async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&LedgerReader<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DbError> {
        self.db.write(move |transaction| query(&LedgerReader { connection: transaction })).await
    }

    /// Runs a query on the ledger file, whether or not the daemon is running; `None` if there is no
    /// ledger yet.
    ///
    /// *Errors*: [`DbError`]; [`DbError::Lost`] if there was one.
    pub fn read_file<T>(
        state: &Path,
        query: impl FnOnce(&LedgerReader<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, DbError> {
        let path = Self::path(state);
        let unreadable = |error| DbError::Unreadable { path: state.to_path_buf(), error };
        let has_past = has_past(state).map_err(unreadable)?;
        let Some(reading) = read_only(&path, SCHEMA)? else {
            return if has_past { Err(DbError::Lost(path)) } else { Ok(None) };
        };
        query(&LedgerReader { connection: &reading.connection })
            .map(Some)
            .map_err(|error| failed(&path, error))
    }
}

/// Queries over the ledger.
#[derive(Debug)]
pub struct LedgerReader<'a> {
    connection: &'a Connection,
}

impl LedgerReader<'_> {
    pub(super) fn connection(&self) -> &Connection {
        self.connection
    }

    /// Returns the slots of one job or of all jobs, ordered by epoch and due time, and the spans with
    /// a slot between the bounds. Both bounds are inclusive.
    ///
    /// *Errors*: SQLite's.
    pub fn slots(
        &self,
        job: Option<&str>,
        since: Option<DateTime<Utc>>,
        until: Option<DateTime<Utc>>,
    ) -> rusqlite::Result<Vec<SlotRow>> {
        // With a job, the query uses the primary key.
        let of_job = job.map_or("?1 IS NULL", |_| "job = ?1");
        let mut query = self.connection.prepare_cached(&format!(
            "SELECT {SLOT_COLUMNS} FROM slots
             WHERE {of_job} AND coalesce(until, due_at) >= ?2 AND due_at <= ?3
             ORDER BY epoch, due_at, job"
        ))?;
        let bound = |at: Option<DateTime<Utc>>, default: i64| {
            at.map_or(default, |at| at.timestamp_millis())
        };
        query
            .query_map(params![job, bound(since, i64::MIN), bound(until, i64::MAX)], slot_row)?
            .collect()
    }

    /// Returns the slots whose runs are queued or running, as far as the ledger knows.
    ///
    /// *Errors*: SQLite's.
    pub fn open_slots(&self) -> rusqlite::Result<Vec<OpenSlot>> {
        let mut query = self.connection.prepare(&format!(
            "SELECT {SLOT_COLUMNS} FROM slots WHERE state IN ('queued', 'running')"
        ))?;
        query.query_map([], open_slot)?.collect()
    }

    /// Returns the open slot of a run; `None` if the run has none.
    ///
    /// *Errors*: SQLite's.
    pub fn open_slot_of(&self, run_id: &RunId) -> rusqlite::Result<Option<OpenSlot>> {
        let mut query = self.connection.prepare_cached(&format!(
            "SELECT {SLOT_COLUMNS} FROM slots
             WHERE run_id = ?1 AND state IN ('queued', 'running')"
        ))?;
        query.query_row([run_id.as_str()], open_slot).optional()
    }

    /// Returns the last clock reading of each epoch that has ended, as far as a schedule was in effect
    /// then.
    ///
    /// *Errors*: SQLite's.
    pub fn epoch_ends(&self) -> rusqlite::Result<BTreeMap<Epoch, DateTime<Utc>>> {
        let mut query = self.connection.prepare(
            "SELECT epoch, max(ended) FROM periods WHERE epoch < coalesce((SELECT value FROM meta WHERE name = 'epoch'), 0)
             GROUP BY epoch HAVING max(ended) IS NOT NULL",
        )?;
        query.query_map([], |row| Ok((Epoch::new(row.get(0)?), time(row, 1)?)))?.collect()
    }

    /// Returns the periods of one job or of all jobs, oldest first.
    ///
    /// *Errors*: SQLite's.
    pub fn periods(&self, job: Option<&str>) -> rusqlite::Result<Vec<Period>> {
        let mut query = self.connection.prepare(&format!(
            "SELECT {PERIOD_COLUMNS} FROM periods WHERE ?1 IS NULL OR job = ?1 ORDER BY rowid"
        ))?;
        query.query_map(params![job], period)?.collect()
    }

    /// Returns the start and the end of each downtime that [`Ledger::add_downtime`] stored.
    ///
    /// *Errors*: SQLite's.
    pub fn downtimes(&self) -> rusqlite::Result<Vec<(DateTime<Utc>, DateTime<Utc>)>> {
        let mut query = self.connection.prepare(
            "SELECT CAST(substr(name, length(?1) + 1) AS INTEGER), value FROM meta WHERE name GLOB ?1 || '*'",
        )?;
        query.query_map([DOWN_SINCE], |row| Ok((time(row, 0)?, time(row, 1)?)))?.collect()
    }

    /// Returns a named number, as stored by [`Ledger::set_meta`].
    ///
    /// *Errors*: SQLite's.
    pub fn meta(&self, name: &str) -> rusqlite::Result<Option<i64>> {
        self.connection
            .query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0))
            .optional()
    }
}

fn forget_downtimes(transaction: &Connection) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM meta WHERE name GLOB ?1 || '*'", [DOWN_SINCE]).map(drop)
}

pub(super) fn keep_meta(transaction: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    transaction
        .execute(
            "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2",
            params![name, value],
        )
        .map(drop)
}

fn begin_periods<'a>(
    transaction: &Connection,
    epoch: Epoch,
    schedules: impl Iterator<Item = &'a AdoptedSchedule>,
    now: DateTime<Utc>,
) -> rusqlite::Result<()> {
    let mut insert =
        transaction.prepare_cached("INSERT INTO periods VALUES (?1, ?2, ?3, ?4, ?5, ?5, NULL)")?;
    for AdoptedSchedule { job, schedule, zone } in schedules {
        let began = now.timestamp_millis();
        insert.execute(params![job.as_str(), epoch.number(), schedule, zone, began])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{JobName, SlotKey};
    use crate::store::{Slot, StateDir};

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn slot(due: i64, state: SlotState) -> Slot {
        let run_id =
            Some(RunId::from_ulid(ulid::Ulid::from_parts(1, u128::try_from(due).unwrap())));
        Slot {
            key: SlotKey::new(JobName::parse("j").unwrap(), Epoch::FIRST, at(due)),
            state,
            run_id,
            reason: "due".into(),
            zone: "UTC".into(),
            config_digest: "d".into(),
            span: None,
            is_backfill: false,
            left: None,
            queued: None,
        }
    }

    fn claim(slots: Vec<Slot>) -> Claim {
        Claim { slots, ..Claim::default() }
    }

    #[tokio::test]
    async fn earlier_downtimes_stay_on_request_until_the_clock_is_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(dir.path(), None).unwrap();
        let kept = async || ledger.read(|reader| reader.downtimes()).await.unwrap();
        let add = |(from, to), keeps_earlier| ledger.add_downtime(from, to, keeps_earlier);
        let downtimes = [(at(100), at(500)), (at(600), at(700)), (at(800), at(1000))];
        add(downtimes[0], true).await.unwrap();
        add(downtimes[1], true).await.unwrap();
        assert_eq!(kept().await, downtimes[..2]);
        add(downtimes[2], false).await.unwrap();
        assert_eq!(kept().await, downtimes[2..]);
        ledger.begin_epoch(Epoch::new(1), at(1000), Vec::new(), at(300)).await.unwrap();
        assert_eq!(kept().await, []);
    }

    // proves CRON-1
    #[tokio::test]
    async fn a_slot_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, found) = Ledger::open(dir.path(), None).unwrap();
        assert_eq!(found.aside, None);
        let claimed = ledger
            .claim(claim(vec![slot(60, SlotState::Queued), slot(120, SlotState::Queued)]), at(60))
            .await
            .unwrap();
        assert_eq!(claimed, [true, true]);
        assert_eq!(
            ledger.claim(claim(vec![slot(60, SlotState::Queued)]), at(61)).await.unwrap(),
            [false]
        );
        drop(ledger);
        let (ledger, _) = Ledger::open(dir.path(), None).unwrap();
        assert_eq!(
            ledger.claim(claim(vec![slot(120, SlotState::Queued)]), at(200)).await.unwrap(),
            [false]
        );
        let run_id = slot(60, SlotState::Queued).run_id.unwrap();
        ledger.decide(run_id, SlotState::Ran, "ran".into(), at(70)).await.unwrap();
        let open = ledger.read(|reader| reader.open_slots()).await.unwrap();
        assert_eq!(open.iter().map(|slot| slot.key.time.due_at).collect::<Vec<_>>(), [at(120)]);
        let all = Ledger::read_file(dir.path(), |reader| reader.slots(Some("j"), None, None))
            .unwrap()
            .unwrap();
        assert_eq!(
            all.iter().map(|slot| slot.state.as_str()).collect::<Vec<_>>(),
            ["ran", "queued"]
        );
    }

    #[tokio::test]
    async fn a_schedule_that_stays_the_same_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(dir.path(), None).unwrap();
        let set = |record: Option<&str>, now: i64| {
            let schedules = record
                .map(|record| AdoptedSchedule {
                    job: JobName::parse("j").unwrap(),
                    schedule: record.to_owned(),
                    zone: "UTC".to_owned(),
                })
                .into_iter()
                .collect();
            ledger.set_schedules(Epoch::FIRST, schedules, Claim::default(), at(now))
        };
        set(Some("a"), 10).await.unwrap();
        set(Some("a"), 20).await.unwrap();
        set(Some("b"), 30).await.unwrap();
        set(None, 40).await.unwrap();
        let periods = ledger.read(|reader| reader.periods(None)).await.unwrap();
        let seen: Vec<_> =
            periods.iter().map(|p| (p.schedule.as_str(), p.began, p.ended)).collect();
        assert_eq!(seen, [("a", at(10), Some(at(30))), ("b", at(30), Some(at(40)))]);
    }

    // proves STATE-3, STATE-5
    #[tokio::test]
    async fn a_damaged_ledger_is_set_aside_and_a_newer_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            Ledger::path(dir.path()),
            "this is not a database, and it is long enough to be looked at".repeat(100),
        )
        .unwrap();
        assert!(matches!(Ledger::open(dir.path(), None), Err(DbError::Damaged(_))));
        let lock = StateDir::new(dir.path()).lock().unwrap().unwrap();
        let (ledger, found) = Ledger::open(dir.path(), Some(&lock)).unwrap();
        assert!(found.is_lost() && found.aside.unwrap().exists());
        assert_eq!(
            ledger.claim(claim(vec![slot(60, SlotState::Queued)]), at(60)).await.unwrap(),
            [true]
        );
        drop(ledger);
        let other = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(other.path(), None).unwrap();
        ledger
            .db
            .write(|transaction| transaction.pragma_update(None, "user_version", 99))
            .await
            .unwrap();
        drop(ledger);
        assert!(matches!(Ledger::open(other.path(), None), Err(DbError::Newer { found: 99, .. })));
    }
}
