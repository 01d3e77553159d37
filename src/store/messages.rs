//! The ledger's data on notifications: the ends of runs that are not told yet, the states of jobs, and
//! the messages that wait for delivery.
//!
//! The end of a record leaves a notice, in the same transaction. The decision about the run (its slot
//! closes, or its next attempt waits) takes the notice, moves the state of the job and adds the
//! messages, in one transaction too. So a crash in between neither
//! repeats nor loses the messages about a run.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rusqlite::types::{Type, Value as Cell};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::db::DbError;
use super::ledger::{Ledger, LedgerReader};
use super::message_rows::{insert, json, parsed};
use super::slot_rows::{run_id_of, time};
use crate::domain::{Acknowledgement, JobState, Message, NoticeRule, RunId, RunNotice};

/// The name in `meta` of the time since when the daemon is degraded, in milliseconds; 0 if it is not.
const DEGRADED: &str = "degraded_since";

/// A message that waits for delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingMessage {
    /// Ascends in the order of the messages.
    pub id: i64,
    pub created_at: DateTime<Utc>,
    /// The message; the reason if it cannot be read.
    pub message: Result<Message, String>,
}

/// The messages that a destination did not get within the time for which delivery is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// The name of the destination.
    pub destination: String,
    pub count: u32,
    pub last_at: DateTime<Utc>,
    /// Why the last one was not delivered.
    pub reason: String,
}

/// A run that is not told yet, with its notice if that can be read.
type PendingNotice = (RunId, Result<RunNotice, String>);

impl Ledger {
    /// Adds messages, each for the destination of this name.
    ///
    /// *Errors*: [`DbError`]; none is then added.
    pub async fn add_messages(&self, messages: Vec<(String, Message)>) -> Result<(), DbError> {
        if messages.is_empty() {
            return Ok(());
        }
        let written = self.write(move |transaction| insert(transaction, &messages)).await;
        self.wake_notifier();
        written
    }

    /// Returns since when destinations were told that the daemon is degraded; `None` if they were not.
    ///
    /// *Errors*: [`DbError`].
    pub async fn degraded_since(&self) -> Result<Option<DateTime<Utc>>, DbError> {
        let since = self.read(|reader| reader.meta(DEGRADED)).await?;
        Ok(since.filter(|since| *since > 0).and_then(DateTime::from_timestamp_millis))
    }

    /// Keeps since when the daemon is degraded, or that it is not, and adds the messages about it.
    ///
    /// *Errors*: [`DbError`]; nothing is then kept.
    pub async fn tell_of_daemon(
        &self,
        degraded_since: Option<DateTime<Utc>>,
        messages: Vec<(String, Message)>,
    ) -> Result<(), DbError> {
        let since = degraded_since.map_or(0, |since| since.timestamp_millis());
        let written = self
            .write(move |transaction| {
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?
                    .execute(params![DEGRADED, since])?;
                insert(transaction, &messages)
            })
            .await;
        self.wake_notifier();
        written
    }

    /// Silences the present state of a job. Returns that state; `None` if no run of the job has
    /// determined one.
    ///
    /// *Errors*: [`DbError`], also if the state cannot be read; nothing is then changed.
    pub async fn acknowledge(
        &self,
        job: String,
        acknowledgement: Acknowledgement,
    ) -> Result<Option<JobState>, DbError> {
        self.write(move |transaction| {
            let state: Option<Cell> = transaction
                .prepare_cached("SELECT state FROM job_states WHERE job = ?1")?
                .query_row([&job], |row| row.get(0))
                .optional()?;
            let Some(state) = state else { return Ok(None) };
            let state: JobState = parsed(state).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into())
            })?;
            let state = JobState { acknowledged: Some(acknowledgement), ..state };
            transaction
                .prepare_cached("UPDATE job_states SET state = ?2 WHERE job = ?1")?
                .execute(params![job, json(&state)?])?;
            Ok(Some(state))
        })
        .await
    }

    /// Adds the messages about runs whose notice is left although no decision about them is pending.
    /// `rules` returns who is told what of a job, and `None` for a notice that waits for a decision about
    /// this run: its own, or its next attempt.
    ///
    /// *Errors*: [`DbError`].
    pub async fn tell_of_left_runs(
        &self,
        rules: impl Fn(&RunId, &RunNotice) -> Option<Vec<NoticeRule>>,
    ) -> Result<(), DbError> {
        let left = self.read(|reader| reader.run_notices()).await?;
        let left: Vec<_> = left
            .into_iter()
            .filter_map(|(run_id, notice)| match notice {
                Ok(notice) => {
                    let rules = rules(&run_id, &notice)?;
                    Some((run_id, rules))
                }
                // Removes it, and logs that.
                Err(_) => Some((run_id, Vec::new())),
            })
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        let written = self
            .write(move |transaction| {
                left.iter().try_for_each(|(run_id, rules)| tell_of_run(transaction, run_id, rules))
            })
            .await;
        self.wake_notifier();
        written
    }

    /// Keeps the notice of a run whose record has no end of its own, because it is broken.
    ///
    /// *Errors*: [`DbError`].
    pub async fn keep_run_notice(&self, notice: RunNotice) -> Result<(), DbError> {
        self.write(move |transaction| keep_notice(transaction, &notice, true)).await
    }

    /// Removes a delivered message and resets the count of messages that its destination did not get.
    ///
    /// *Errors*: [`DbError`].
    pub async fn record_delivery(&self, destination: String, id: i64) -> Result<(), DbError> {
        self.write(move |transaction| {
            remove(transaction, id)?;
            transaction
                .prepare_cached("DELETE FROM undelivered WHERE destination = ?1")?
                .execute([destination])
                .map(drop)
        })
        .await
    }

    /// Gives a message up, and counts it for its destination.
    ///
    /// *Errors*: [`DbError`].
    pub async fn give_up_message(
        &self,
        destination: String,
        id: i64,
        reason: String,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        self.write(move |transaction| {
            remove(transaction, id)?;
            transaction
                .prepare_cached(
                    "INSERT INTO undelivered VALUES (?1, 1, ?2, ?3) ON CONFLICT (destination)
                     DO UPDATE SET count = count + 1, last_at = ?2, reason = ?3",
                )?
                .execute(params![destination, now.timestamp_millis(), reason])
                .map(drop)
        })
        .await
    }
}

impl LedgerReader<'_> {
    /// Returns who has silenced the present state of which job. A state that cannot be read is not
    /// silenced.
    ///
    /// *Errors*: SQLite's.
    pub fn acknowledgements(
        &self,
        now: DateTime<Utc>,
    ) -> rusqlite::Result<BTreeMap<String, Acknowledgement>> {
        let mut query = self.connection().prepare_cached("SELECT job, state FROM job_states")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, parsed::<JobState>(row.get(1)?))))?;
        let mut found = BTreeMap::new();
        for row in rows {
            let (job, state) = row?;
            let Ok(JobState { acknowledged: Some(of), .. }) = state else { continue };
            if of.until.is_none_or(|until| now < until) {
                found.insert(job, of);
            }
        }
        Ok(found)
    }

    /// Returns the notices of runs that are not told yet.
    ///
    /// *Errors*: SQLite's; the id of a run cannot be read.
    fn run_notices(&self) -> rusqlite::Result<Vec<PendingNotice>> {
        let mut query = self
            .connection()
            .prepare_cached("SELECT run_id, notice FROM run_notices ORDER BY run_id")?;
        let rows = query.query_map([], |row| Ok((run_id_of(row, 0)?, parsed(row.get(1)?))))?;
        rows.collect()
    }

    /// Returns the oldest message for a destination.
    ///
    /// *Errors*: SQLite's.
    pub fn next_message(&self, destination: &str) -> rusqlite::Result<Option<WaitingMessage>> {
        let mut query = self.connection().prepare_cached(
            "SELECT id, created_at, message FROM messages WHERE destination = ?1 ORDER BY id LIMIT 1",
        )?;
        query.query_row([destination], waiting).optional()
    }

    /// Returns the destinations for which messages wait. Reads one entry of the index for each, however
    /// many messages wait.
    ///
    /// *Errors*: SQLite's.
    pub fn waiting_destinations(&self) -> rusqlite::Result<Vec<String>> {
        let mut query = self.connection().prepare_cached(
            "WITH RECURSIVE found (name) AS (
                 SELECT min(destination) FROM messages
                 UNION ALL
                 SELECT (SELECT min(destination) FROM messages WHERE destination > name) FROM found WHERE name IS NOT NULL
             ) SELECT name FROM found WHERE name IS NOT NULL",
        )?;
        query.query_map([], |row| row.get(0))?.collect()
    }

    /// Returns the number of messages that each destination did not get, with the last reason.
    ///
    /// *Errors*: SQLite's.
    pub fn undelivered(&self) -> rusqlite::Result<Vec<Undelivered>> {
        let mut query = self.connection().prepare_cached(
            "SELECT destination, count, last_at, reason FROM undelivered ORDER BY destination",
        )?;
        let rows = query.query_map([], |row| {
            Ok(Undelivered {
                destination: row.get(0)?,
                count: row.get(1)?,
                last_at: time(row, 2)?,
                reason: row.get(3)?,
            })
        })?;
        rows.collect()
    }
}

/// Keeps the notice of a run whose record has ended. A record whose end was kept before (`is_new` is
/// false) has been told of, or its notice waits. That of a run with a next attempt is told only if the
/// attempt does not begin.
pub(super) fn keep_notice(
    transaction: &Connection,
    notice: &RunNotice,
    is_new: bool,
) -> rusqlite::Result<()> {
    if !is_new {
        return Ok(());
    }
    let next: Option<Cell> = transaction
        .prepare_cached("DELETE FROM repeated_runs WHERE run_id = ?1 RETURNING next")?
        .query_row([&notice.run_id], |row| row.get(0))
        .optional()?;
    let Some(next) = next else {
        return transaction
            .prepare_cached("INSERT OR REPLACE INTO run_notices VALUES (?1, ?2)")?
            .execute(params![notice.run_id, json(notice)?])
            .map(drop);
    };
    // An attempt that has ended told of itself.
    transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO run_notices SELECT ?1, ?2
             WHERE typeof(?1) = 'text' AND NOT EXISTS (SELECT 1 FROM record_ends WHERE run_id = ?1)",
        )?
        .execute(params![next, json(notice)?])
        .map(drop)
}

/// Gives the notice of a failed run to its next attempt: only the last attempt counts for the state of
/// the job. If the end of the record is not kept yet, [`keep_notice`] does so later.
pub(super) fn hand_on_notice(
    transaction: &Connection,
    failed: &RunId,
    next: &RunId,
) -> rusqlite::Result<()> {
    let ids = [failed.as_str(), next.as_str()];
    transaction
        .prepare_cached("UPDATE OR REPLACE run_notices SET run_id = ?2 WHERE run_id = ?1")?
        .execute(ids)?;
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO repeated_runs SELECT ?1, ?2
             WHERE NOT EXISTS (SELECT 1 FROM record_ends WHERE run_id = ?1)",
        )?
        .execute(ids)
        .map(drop)
}

/// Takes the notice of a run, moves the state of its job, and adds the messages that follow. Does
/// nothing for a run without a notice.
pub(super) fn tell_of_run(
    transaction: &Connection,
    run_id: &RunId,
    rules: &[NoticeRule],
) -> rusqlite::Result<()> {
    let notice: Option<Cell> = transaction
        .prepare_cached("DELETE FROM run_notices WHERE run_id = ?1 RETURNING notice")?
        .query_row([run_id.as_str()], |row| row.get(0))
        .optional()?;
    let Some(notice) = notice else { return Ok(()) };
    let notice: RunNotice = match parsed(notice) {
        Ok(notice) => notice,
        // The end of the run must be written even if its notice cannot be read.
        Err(error) => {
            tracing::error!(%run_id, %error, "failed to read the notice of a run; no notification is sent");
            return Ok(());
        }
    };
    let before: Option<Cell> = transaction
        .prepare_cached("SELECT state FROM job_states WHERE job = ?1")?
        .query_row([notice.job.as_str()], |row| row.get(0))
        .optional()?;
    let before = match before.map(parsed::<JobState>) {
        Some(Ok(state)) => Some(state),
        // Tell too much rather than too little: the run enters its state anew.
        Some(Err(error)) => {
            tracing::error!(job = notice.job.as_str(), %error, "the state of a job cannot be read");
            None
        }
        None => None,
    };
    let (after, messages) = JobState::after(before, &notice, rules);
    if let Some(after) = after {
        transaction
            .prepare_cached("INSERT OR REPLACE INTO job_states VALUES (?1, ?2)")?
            .execute(params![notice.job.as_str(), json(&after)?])?;
    }
    insert(transaction, &messages)
}

fn remove(transaction: &Connection, id: i64) -> rusqlite::Result<()> {
    transaction.prepare_cached("DELETE FROM messages WHERE id = ?1")?.execute([id]).map(drop)
}

fn waiting(row: &Row<'_>) -> rusqlite::Result<WaitingMessage> {
    let (created_at, message) = match time(row, 1) {
        Ok(created_at) => (created_at, parsed(row.get(2)?)),
        Err(error) => (DateTime::UNIX_EPOCH, Err(error.to_string())),
    };
    Ok(WaitingMessage { id: row.get(0)?, created_at, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{JobName, NoticeEvent, NoticeEvents, Outcome, StopReason};
    use crate::store::{EndFacts, RecordEnd, RunEnd, SlotState};

    fn run_id(nth: u128) -> RunId {
        RunId::from_ulid(ulid::Ulid::from_parts(1, nth))
    }

    fn facts(nth: u128) -> EndFacts {
        let notice = RunNotice {
            run_id: run_id(nth).to_string(),
            job: JobName::parse("j").unwrap(),
            outcome: Outcome::Failed,
            stop_reason: StopReason::NoAnswer,
            verdict: None,
            cause: "c".into(),
            at: DateTime::from_timestamp(60, 0).unwrap(),
        };
        EndFacts { notice: Some(notice), ..EndFacts::default() }
    }

    fn rules() -> Vec<NoticeRule> {
        let on = NoticeEvents::Listed(vec![NoticeEvent::Failed, NoticeEvent::Changed]);
        vec![NoticeRule { to: "ops".into(), on, knows_outage: false }]
    }

    fn end(nth: u128) -> RunEnd {
        RunEnd {
            counts: true,
            run_id: run_id(nth),
            job: JobName::parse("j").unwrap(),
            outcome: Outcome::Failed,
            state: SlotState::Ran,
            reason: "failed".into(),
            pause_after: None,
            notify: rules(),
        }
    }

    async fn waiting(ledger: &Ledger) -> usize {
        let count = "SELECT count(*) FROM messages";
        let count = ledger.read(move |r| r.connection().query_row(count, [], |row| row.get(0)));
        let count: u32 = count.await.unwrap();
        count as usize
    }

    async fn keep_end(ledger: &Ledger, nth: u128) {
        let record_end = RecordEnd { lines: 1, hash: "h".into() };
        ledger.keep_record_end(run_id(nth), record_end, facts(nth)).await.unwrap();
    }

    #[tokio::test]
    async fn a_run_is_told_of_once_however_often_its_end_is_recorded() {
        let temp = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
        let now = DateTime::from_timestamp(61, 0).unwrap();
        keep_end(&ledger, 1).await;
        assert_eq!(waiting(&ledger).await, 0, "an attempt may follow");
        for _ in 0..2 {
            ledger.end_run(end(1), now).await.unwrap();
            keep_end(&ledger, 1).await;
            assert_eq!(waiting(&ledger).await, 1);
        }
        let message = ledger.read(|reader| reader.next_message("ops")).await.unwrap().unwrap();
        assert_eq!(message.message.unwrap().event, "failed");
        assert_eq!(ledger.read(|r| r.waiting_destinations()).await.unwrap(), ["ops"]);
        ledger.record_delivery("ops".into(), message.id).await.unwrap();
        assert_eq!(waiting(&ledger).await, 0);
        keep_end(&ledger, 2).await;
        ledger.end_run(end(2), now).await.unwrap();
        assert_eq!(waiting(&ledger).await, 0, "the state was told");
    }

    #[tokio::test]
    async fn a_run_whose_end_no_decision_follows_is_told_of_later() {
        let temp = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
        keep_end(&ledger, 1).await;
        ledger.tell_of_left_runs(|_, _| None).await.unwrap();
        assert_eq!(waiting(&ledger).await, 0, "a decision is to come");
        for _ in 0..2 {
            ledger.tell_of_left_runs(|_, _| Some(rules())).await.unwrap();
            assert_eq!(waiting(&ledger).await, 1);
        }
    }

    #[tokio::test]
    async fn a_failure_is_told_if_its_next_attempt_does_not_begin() {
        let now = DateTime::from_timestamp(61, 0).unwrap();
        let attempt = |nth| {
            let origin = crate::domain::Origin::manual(Default::default(), None);
            let (run_id, job) = (run_id(nth), JobName::parse("j").unwrap());
            crate::store::QueuedRun { run_id, job, origin, not_before: Some(now) }
        };
        // The end of the record is kept before the decision, or after it, as after a fault of the disk.
        for is_late in [false, true] {
            let temp = tempfile::tempdir().unwrap();
            let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
            if !is_late {
                keep_end(&ledger, 1).await;
            }
            ledger.retry(run_id(1), attempt(2), "again".into(), now).await.unwrap();
            keep_end(&ledger, 1).await;
            let waits_for_attempt = |of: &RunId, _: &RunNotice| (*of != run_id(2)).then(rules);
            ledger.tell_of_left_runs(waits_for_attempt).await.unwrap();
            assert_eq!(waiting(&ledger).await, 0, "its attempt is to come");
            ledger.tell_of_left_runs(|_, _| Some(rules())).await.unwrap();
            let message = ledger.read(|reader| reader.next_message("ops")).await.unwrap().unwrap();
            let expected = Some(run_id(1).to_string());
            assert_eq!(message.message.unwrap().run_id, expected, "the attempt did not begin");
        }
        // Only the last attempt is told of, whatever the order.
        for is_late in [false, true] {
            let temp = tempfile::tempdir().unwrap();
            let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
            if !is_late {
                keep_end(&ledger, 1).await;
            }
            ledger.retry(run_id(1), attempt(2), "again".into(), now).await.unwrap();
            keep_end(&ledger, 2).await;
            ledger.end_run(end(2), now).await.unwrap();
            keep_end(&ledger, 1).await;
            ledger.tell_of_left_runs(|_, _| Some(rules())).await.unwrap();
            assert_eq!(waiting(&ledger).await, 1);
            let message = ledger.read(|reader| reader.next_message("ops")).await.unwrap().unwrap();
            assert_eq!(message.message.unwrap().run_id, Some(run_id(2).to_string()));
        }
    }

    #[tokio::test]
    async fn an_unreadable_notice_or_state_does_not_hold_up_the_end_of_a_run() {
        let temp = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
        let now = DateTime::from_timestamp(61, 0).unwrap();
        keep_end(&ledger, 1).await;
        let sql = "UPDATE run_notices SET notice = '{'; INSERT INTO job_states VALUES ('j', '[]')";
        ledger.write(move |transaction| transaction.execute_batch(sql)).await.unwrap();
        ledger.end_run(end(1), now).await.unwrap();
        assert_eq!(waiting(&ledger).await, 0);
        keep_end(&ledger, 2).await;
        ledger.end_run(end(2), now).await.unwrap();
        assert_eq!(waiting(&ledger).await, 1, "an unreadable state is entered anew");
        keep_end(&ledger, 3).await;
        let sql = "UPDATE run_notices SET notice = x'ff00'; UPDATE job_states SET state = x'ff00';
            UPDATE messages SET created_at = 'noon', message = x'ff'";
        ledger.write(move |transaction| transaction.execute_batch(sql)).await.unwrap();
        ledger.end_run(end(3), now).await.unwrap();
        ledger.tell_of_left_runs(|_, _| Some(rules())).await.unwrap();
        let next = ledger.read(|reader| reader.next_message("ops")).await.unwrap().unwrap();
        assert!(next.message.is_err(), "{next:?}");
    }

    #[tokio::test]
    async fn a_message_that_is_given_up_is_counted() {
        let temp = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
        let now = DateTime::from_timestamp(61, 0).unwrap();
        for nth in 1..=2 {
            ledger.give_up_message("ops".into(), nth, format!("e{nth}"), now).await.unwrap();
        }
        let undelivered = ledger.read(|reader| reader.undelivered()).await.unwrap();
        assert_eq!((undelivered[0].count, undelivered[0].reason.as_str()), (2, "e2"));
    }
}
