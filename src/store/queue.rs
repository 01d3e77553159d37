//! The ledger's data on runs: the queued runs, and the ends of the records of ended runs. The end
//! of a record is its number of lines and the hash of its last line.
//!
//! A queued run has neither a directory nor a transcript yet. A run that ends while it is queued
//! keeps its row, so that its end can be queried.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::budgets::release;
use super::claim::{EndedRuns, end_runs, insert_queued};
use super::db::DbError;
use super::ledger::{Ledger, LedgerReader};
use super::messages::{hand_on_notice, keep_notice};
use super::request::{self, Asked};
use super::run_summary::{QueuedRun, RunSummary};
use super::slot_rows::{invalid, job_of, optional_time, run_id_of};
use super::tables::word;
use super::verify::RecordEnd;
use crate::domain::{Epoch, Origin, Person, RunId, RunNotice, SlotTime, StopReason, Trigger};

/// The columns that [`queued`] reads, in its order.
pub(super) const QUEUE_COLUMNS: &str = "run_id, job, trigger, scheduled_for, ended_at, stop_reason, reason, attempt, not_before, request, epoch";

/// Maximum number of rows of runs that ended while they were queued; the newest are kept.
const KEPT_ENDED: u32 = 1000;

/// The facts about an ended run that the ledger settles together with the end of its record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndFacts {
    /// The name of the job and the answer of the precheck, if the job has a precheck and the run
    /// succeeded or was planned.
    pub precheck: Option<(String, Option<String>)>,
    /// The cost in millionths of a US dollar; `None` if it is unknown.
    pub cost_micro_usd: Option<i64>,
    /// What notifications need; `None` for a run that is not told of.
    pub notice: Option<RunNotice>,
}

/// Why a run is over although its transcript has no end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenUp {
    /// The reason, for people.
    pub reason: String,
    /// `cancelled`, or `interrupted`.
    pub stop_reason: StopReason,
    /// The person who cancelled the run; `None` if no person did.
    pub by: Option<Person>,
}

impl GivenUp {
    /// Returns the end of a run that was not cancelled.
    #[must_use]
    pub fn interrupted(reason: String) -> Self {
        Self { reason, stop_reason: StopReason::Interrupted, by: None }
    }

    /// Returns the reason of a run that a person cancelled or a newer run replaced.
    #[must_use]
    pub fn cancelled(reason: String, by: Option<Person>) -> Self {
        Self { reason, stop_reason: StopReason::Cancelled, by }
    }
}

impl Ledger {
    /// Stores the end of the record of a run, and settles what else the ledger keeps about it.
    ///
    /// *Errors*: [`DbError`].
    pub async fn keep_record_end(
        &self,
        run_id: RunId,
        end: RecordEnd,
        facts: EndFacts,
    ) -> Result<(), DbError> {
        self.write(move |transaction| {
            let lines = i64::try_from(end.lines).unwrap_or(i64::MAX);
            let is_new = !transaction
                .prepare_cached("SELECT 1 FROM record_ends WHERE run_id = ?1")?
                .exists([run_id.as_str()])?;
            transaction
                .prepare_cached("INSERT OR REPLACE INTO record_ends VALUES (?1, ?2, ?3)")?
                .execute(params![run_id.as_str(), lines, end.hash])?;
            release(transaction, run_id.as_str(), facts.cost_micro_usd)?;
            match &facts.precheck {
                Some((job, Some(answer))) => transaction
                    .prepare_cached("INSERT OR REPLACE INTO prechecks VALUES (?1, ?2, ?3)")?
                    .execute(params![job, answer, run_id.as_str()])?,
                Some((job, None)) => transaction
                    .prepare_cached("DELETE FROM prechecks WHERE job = ?1")?
                    .execute([job])?,
                None => 0,
            };
            if let Some(notice) = &facts.notice {
                keep_notice(transaction, notice, is_new)?;
            }
            forget_given_up(transaction, &run_id)
        })
        .await
    }

    /// Stores why a run is over although its transcript has no end, so that it is not resumed. The first
    /// reason stays. Does nothing if the run has ended meanwhile.
    ///
    /// *Errors*: [`DbError`].
    pub async fn give_up(&self, run_id: RunId, given_up: GivenUp) -> Result<(), DbError> {
        self.write(move |transaction| {
            let GivenUp { reason, stop_reason, by } = &given_up;
            let written = transaction
                .prepare_cached(
                    "INSERT OR IGNORE INTO given_up SELECT ?1, ?2
                     WHERE NOT EXISTS (SELECT 1 FROM record_ends WHERE run_id = ?1)",
                )?
                .execute(params![run_id.as_str(), reason])?;
            if written == 1 && *stop_reason == StopReason::Cancelled {
                let (uid, user) = by.as_ref().map(|by| (by.uid, by.user.as_str())).unzip();
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO cancelled_runs VALUES (?1, ?2, ?3)")?
                    .execute(params![run_id.as_str(), uid, user])?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets what the ledger keeps about a run that did not begin: that it was given up, and its part
    /// of the daily budgets.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn forget_unbegun(&self, run_id: RunId) -> Result<(), DbError> {
        self.write(move |transaction| {
            release(transaction, run_id.as_str(), Some(0))?;
            forget_given_up(transaction, &run_id)
        })
        .await
    }

    /// Adds a run to the queue.
    ///
    /// *Errors*: [`DbError`]; the run is then not added.
    pub async fn enqueue(&self, run: QueuedRun) -> Result<(), DbError> {
        self.write(move |transaction| insert_queued(transaction, &run)).await
    }

    /// Removes the queue row of a run that has a record, even if the row says that the run ended
    /// while it was queued.
    ///
    /// *Errors*: [`DbError`].
    pub async fn dequeue(&self, run_id: RunId) -> Result<(), DbError> {
        self.write(move |transaction| {
            transaction
                .prepare_cached("DELETE FROM queue WHERE run_id = ?1")?
                .execute([run_id.as_str()])
                .map(drop)
        })
        .await
    }

    /// Ends queued runs before they begin, in one transaction.
    ///
    /// *Errors*: [`DbError`]; no run is then ended.
    pub async fn end_waiting(&self, ended: EndedRuns, now: DateTime<Utc>) -> Result<(), DbError> {
        self.write(move |transaction| {
            end_runs(transaction, &ended, now)?;
            prune_ended(transaction)
        })
        .await
    }

    /// Queues the next attempt of a run that failed. Its slots, and those that it covers, wait for the
    /// attempt.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn retry(
        &self,
        failed: RunId,
        next: QueuedRun,
        reason: String,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        self.write(move |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE slots SET run_id = ?2, state = 'queued', reason = ?3, decided_at = ?4
                     WHERE run_id = ?1 AND state IN ('queued', 'running')",
                )?
                .execute(params![
                    failed.as_str(),
                    next.run_id.as_str(),
                    reason,
                    now.timestamp_millis()
                ])?;
            transaction
                .prepare_cached(
                    "UPDATE slots SET run_id = ?2 WHERE run_id = ?1 AND state = 'coalesced'",
                )?
                .execute(params![failed.as_str(), next.run_id.as_str()])?;
            hand_on_notice(transaction, &failed, &next.run_id)?;
            insert_queued(transaction, &next)
        })
        .await
    }

    /// Changes when waiting attempts may begin.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn set_not_before(
        &self,
        attempts: Vec<(DateTime<Utc>, RunId)>,
    ) -> Result<(), DbError> {
        self.write(move |transaction| {
            let mut update =
                transaction.prepare_cached("UPDATE queue SET not_before = ?2 WHERE run_id = ?1")?;
            for (not_before, run_id) in &attempts {
                update.execute(params![run_id.as_str(), not_before.timestamp_millis()])?;
            }
            Ok(())
        })
        .await
    }

    /// Ends the queued runs that do not belong to an open slot, except for attempts that wait and for
    /// requested runs.
    ///
    /// *Errors*: [`DbError`]; no run is then ended.
    pub async fn end_without_slot(
        &self,
        stop_reason: StopReason,
        reason: String,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        self.write(move |transaction| {
            transaction.execute(
                "UPDATE queue SET ended_at = ?1, stop_reason = ?2, reason = ?3 WHERE ended_at IS NULL AND trigger NOT IN ('retry', 'manual') AND run_id NOT IN
                 (SELECT run_id FROM slots WHERE state IN ('queued', 'running') AND run_id IS NOT NULL)",
                params![now.timestamp_millis(), stop_reason.as_str(), reason],
            )?;
            prune_ended(transaction)
        })
        .await
    }
}

fn forget_given_up(transaction: &Connection, run_id: &RunId) -> rusqlite::Result<()> {
    for query in
        ["DELETE FROM given_up WHERE run_id = ?1", "DELETE FROM cancelled_runs WHERE run_id = ?1"]
    {
        transaction.prepare_cached(query)?.execute([run_id.as_str()])?;
    }
    Ok(())
}

fn given_up(row: &Row<'_>) -> rusqlite::Result<GivenUp> {
    let reason: String = row.get(0)?;
    let is_cancelled: bool = row.get(1)?;
    if !is_cancelled {
        return Ok(GivenUp::interrupted(reason));
    }
    let (uid, user): (Option<u32>, Option<String>) = (row.get(2)?, row.get(3)?);
    Ok(GivenUp::cancelled(reason, uid.zip(user).map(|(uid, user)| Person { uid, user })))
}

/// Removes the rows of runs that ended while they were queued, except for the newest.
fn prune_ended(transaction: &Connection) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "DELETE FROM queue WHERE ended_at IS NOT NULL AND run_id <=
             (SELECT run_id FROM queue WHERE ended_at IS NOT NULL ORDER BY run_id DESC LIMIT 1 OFFSET ?1)",
        )?
        .execute([KEPT_ENDED])
        .map(drop)
}

impl LedgerReader<'_> {
    /// Returns the answer of the precheck in the last run of a job that succeeded or was planned, and the
    /// id of that run; an earlier version did not keep the id.
    ///
    /// *Errors*: SQLite's.
    pub fn precheck(&self, job: &str) -> rusqlite::Result<Option<(String, Option<String>)>> {
        self.connection()
            .prepare_cached("SELECT answer, run_id FROM prechecks WHERE job = ?1")?
            .query_row([job], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
    }

    /// Returns the end of the record of a run; `None` if the ledger does not have it.
    ///
    /// *Errors*: SQLite's.
    pub fn record_end(&self, run_id: &str) -> rusqlite::Result<Option<RecordEnd>> {
        let mut query = self
            .connection()
            .prepare_cached("SELECT lines, hash FROM record_ends WHERE run_id = ?1")?;
        query.query_row([run_id], record_end).optional()
    }

    /// Returns why a run is over although its transcript has no end; `None` if it is not.
    ///
    /// *Errors*: SQLite's.
    pub fn given_up(&self, run_id: &str) -> rusqlite::Result<Option<GivenUp>> {
        let mut query = self.connection().prepare_cached(
            "SELECT reason, cancelled.run_id IS NOT NULL, uid, user
             FROM given_up LEFT JOIN cancelled_runs AS cancelled ON cancelled.run_id = given_up.run_id
             WHERE given_up.run_id = ?1",
        )?;
        query.query_row([run_id], given_up).optional()
    }

    /// Calls `take` with the id of each run whose record has an end in the ledger, in the order of
    /// the ids, from the id `since` on (inclusive).
    ///
    /// *Errors*: SQLite's.
    pub fn each_record_end(&self, since: &str, mut take: impl FnMut(&str)) -> rusqlite::Result<()> {
        let mut query = self
            .connection()
            .prepare("SELECT run_id FROM record_ends WHERE run_id >= ?1 ORDER BY run_id")?;
        let mut rows = query.query([since])?;
        while let Some(row) = rows.next()? {
            take(row.get_ref(0)?.as_str()?);
        }
        Ok(())
    }

    /// Returns the highest id of a run before `id` (exclusive) whose record has an end in the ledger.
    ///
    /// *Errors*: SQLite's.
    pub fn last_record_end_before(&self, id: &str) -> rusqlite::Result<Option<String>> {
        let query = "SELECT max(run_id) FROM record_ends WHERE run_id < ?1";
        self.connection().query_row(query, [id], |row| row.get(0))
    }

    /// Returns the lowest id of a run that waits in the queue.
    ///
    /// *Errors*: SQLite's.
    pub fn oldest_queued(&self) -> rusqlite::Result<Option<String>> {
        let query = "SELECT min(run_id) FROM queue WHERE ended_at IS NULL";
        self.connection().query_row(query, [], |row| row.get(0))
    }

    /// Returns the runs that wait in the queue, newest first.
    ///
    /// *Errors*: SQLite's; a row cannot be read.
    pub fn waiting_runs(&self) -> rusqlite::Result<Vec<QueuedRun>> {
        let mut query = self.connection().prepare_cached(&format!(
            "SELECT {QUEUE_COLUMNS} FROM queue WHERE ended_at IS NULL ORDER BY run_id DESC"
        ))?;
        query.query_map([], queued)?.collect()
    }

    /// Returns the runs that people requested for a time after `now`.
    ///
    /// *Errors*: SQLite's; a row cannot be read.
    pub fn runs_requested_for_later(&self, now: DateTime<Utc>) -> rusqlite::Result<Vec<QueuedRun>> {
        let is_later = |run: &QueuedRun| {
            run.origin.trigger == Trigger::Manual && run.not_before.is_some_and(|at| at > now)
        };
        Ok(self.waiting_runs()?.into_iter().filter(is_later).collect())
    }

    /// Returns the queued runs, and those that ended while they were queued, newest first, as lists
    /// show them.
    ///
    /// *Errors*: SQLite's; a cell that a list shows cannot be read.
    pub fn queue_rows(&self) -> rusqlite::Result<Vec<RunSummary>> {
        let mut query = self
            .connection()
            .prepare_cached(&format!("SELECT {QUEUE_COLUMNS} FROM queue ORDER BY run_id DESC"))?;
        query.query_map([], queue_row)?.collect()
    }

    /// Tells whether a run has a row in the queue. The row is removed after the first line of the run
    /// is on disk.
    ///
    /// *Errors*: SQLite's.
    pub fn is_queued(&self, run_id: &str) -> rusqlite::Result<bool> {
        let mut query = self
            .connection()
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM queue WHERE run_id = ?1)")?;
        query.query_row([run_id], |row| row.get(0))
    }

    /// Tells whether the ledger has any schedule or slot of this job, or a run of it that is queued
    /// or ended while it was queued.
    ///
    /// *Errors*: SQLite's.
    pub fn knows_job(&self, job: &str) -> rusqlite::Result<bool> {
        self.connection().query_row(
            "SELECT EXISTS (SELECT 1 FROM periods WHERE job = ?1) OR EXISTS (SELECT 1 FROM slots WHERE job = ?1)
             OR EXISTS (SELECT 1 FROM queue WHERE job = ?1) OR EXISTS (SELECT 1 FROM pauses WHERE job = ?1)",
            [job],
            |row| row.get(0),
        )
    }
}

pub(super) fn record_end(row: &Row<'_>) -> rusqlite::Result<RecordEnd> {
    let lines: i64 = row.get(0)?;
    let lines =
        u64::try_from(lines).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, lines))?;
    Ok(RecordEnd { lines, hash: row.get(1)? })
}

/// Reads a row of the queue as lists show it. They do not show the request.
pub(super) fn queue_row(row: &Row<'_>) -> rusqlite::Result<RunSummary> {
    let (run_id, due_at) = (run_id_of(row, 0)?, optional_time(row, 3)?);
    let attempt: u32 = row.get(7)?;
    let shown = RunSummary::queued(&run_id, row.get(1)?, word(row, 2)?, due_at, attempt.into());
    Ok(match optional_time(row, 4)? {
        Some(at) => shown.ended_unbegun(at, word::<StopReason>(row, 5)?, row.get(6)?),
        None => shown,
    })
}

/// Reads the row of a run that waits in the queue.
pub(super) fn queued(row: &Row<'_>) -> rusqlite::Result<QueuedRun> {
    let (run_id, job) = (run_id_of(row, 0)?, job_of(row, 1)?);
    let trigger: Trigger = word(row, 2)?;
    let slot = match optional_time(row, 3)? {
        Some(due_at) => Some(SlotTime { epoch: Epoch::new(row.get(10)?), due_at }),
        None => None,
    };
    let attempt = row.get(7)?;
    let not_before = optional_time(row, 8)?;
    let text: Option<String> = row.get(9)?;
    let Asked { request, by } =
        request::of_column(trigger, text.as_deref()).map_err(|error| invalid(9, error))?;
    if matches!(trigger, Trigger::Retry | Trigger::Manual) && not_before.is_none() {
        return Err(invalid(8, "the ledger lacks its time"));
    }
    let origin = Origin { trigger, slot, attempt, request, by };
    Ok(QueuedRun { run_id, job, origin, not_before })
}

/// Reads a row of the queue as far as the daemon acts on it.
pub(super) fn check_queue_row(row: &Row<'_>) -> rusqlite::Result<()> {
    let shown = queue_row(row)?;
    if shown.outcome.is_none() {
        queued(row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tables::SCHEMA;
    use super::*;
    use crate::domain::{JobName, SlotKey};
    use crate::store::{Claim, Slot, SlotState};

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    #[tokio::test]
    async fn a_queued_run_of_an_earlier_version_is_in_the_epoch_of_its_slot() {
        let temp = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
        let job = JobName::parse("j").unwrap();
        let run_id = RunId::from_ulid(ulid::Ulid::from_parts(1, 1));
        let key = SlotKey::new(job.clone(), Epoch::new(2), at(60));
        let origin = Origin::of_slot(Trigger::Schedule, key.time, None);
        let slot = Slot {
            key,
            state: SlotState::Queued,
            run_id: Some(run_id.clone()),
            reason: "due".into(),
            zone: "UTC".into(),
            config_digest: "d".into(),
            span: None,
            is_backfill: false,
            left: None,
            queued: Some(QueuedRun { run_id, job, origin: origin.clone(), not_before: None }),
        };
        ledger.claim(Claim { slots: vec![slot], ..Claim::default() }, at(60)).await.unwrap();
        let before = SCHEMA
            .migrations
            .iter()
            .position(|step| step.contains("queue ADD COLUMN epoch"))
            .unwrap();
        let sql = format!(
            "ALTER TABLE queue DROP COLUMN epoch; DROP TABLE run_notices; DROP TABLE job_states;
             DROP TABLE messages; DROP TABLE undelivered; DROP TABLE holds; DROP TABLE repeated_runs; DROP TABLE queued_texts; ALTER TABLE pauses DROP COLUMN until;
             ALTER TABLE prechecks DROP COLUMN run_id; PRAGMA user_version = {before}"
        );
        ledger.write(move |transaction| transaction.execute_batch(&sql)).await.unwrap();
        drop(ledger);
        let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
        let queue = ledger.read(|reader| reader.waiting_runs()).await.unwrap();
        assert_eq!(queue[0].origin, origin);
    }
}
