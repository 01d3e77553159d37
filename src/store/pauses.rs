//! The ledger's data on paused jobs, and on their consecutive failures.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::claim::{SlotState, decide};
use super::db::DbError;
use super::ledger::{Ledger, LedgerReader};
use super::messages::tell_of_run;
use super::slot_rows::time;
use crate::domain::{JobName, NoticeRule, Outcome, RunId};

/// A paused job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// The name of the job; [`Pause::ALL`] for all jobs.
    pub job: String,
    pub paused_at: DateTime<Utc>,
    /// Why it is paused.
    pub note: Option<String>,
    /// When the pause ends by itself.
    pub until: Option<DateTime<Utc>>,
}

impl Pause {
    /// Stands for all jobs, also those that are added later. The name of a job has no asterisk.
    pub const ALL: &'static str = "*";

    /// Tells whether the pause is in effect at a moment.
    #[must_use]
    pub fn is_in_effect(&self, at: DateTime<Utc>) -> bool {
        self.until.is_none_or(|until| at < until)
    }
}

/// The columns that [`pause`] reads.
pub(super) const PAUSE_COLUMNS: &str = "job, paused_at, note, until";

/// Reads a row with [`PAUSE_COLUMNS`].
pub(super) fn pause(row: &Row<'_>) -> rusqlite::Result<Pause> {
    let until: Option<i64> = row.get(3)?;
    Ok(Pause {
        job: row.get(0)?,
        paused_at: time(row, 1)?,
        note: row.get(2)?,
        until: until.map(|_| time(row, 3)).transpose()?,
    })
}

/// The end of a run, for the ledger.
#[derive(Debug, Clone)]
pub struct RunEnd {
    pub run_id: RunId,
    pub job: JobName,
    pub outcome: Outcome,
    /// The disposition of the run's slots.
    pub state: SlotState,
    /// The reason for the disposition, as a sentence for the operator.
    pub reason: String,
    /// Whether a failure counts for the pause of the job.
    pub counts: bool,
    /// The number of consecutive failures that pauses the job; `None` if failures do not pause it.
    pub pause_after: Option<u32>,
    /// Who is told what of the job.
    pub notify: Vec<NoticeRule>,
}

impl Ledger {
    /// Pauses a job. If the job is already paused, replaces its note.
    ///
    /// *Errors*: [`DbError`].
    pub async fn pause(&self, pause: Pause) -> Result<(), DbError> {
        self.write(move |transaction| keep(transaction, &pause)).await
    }

    /// Removes pauses that have ended by themselves.
    ///
    /// *Errors*: [`DbError`]; none is then removed.
    pub async fn end_pauses(&self, jobs: Vec<String>) -> Result<(), DbError> {
        self.write(move |transaction| {
            let mut query = transaction.prepare_cached("DELETE FROM pauses WHERE job = ?1")?;
            for job in &jobs {
                forget_failures(transaction, job)?;
                query.execute([job])?;
            }
            Ok(())
        })
        .await
    }

    /// Ends the pause of a job and sets its count of failures to 0; returns whether it was paused.
    ///
    /// *Errors*: [`DbError`].
    pub async fn unpause(&self, job: String) -> Result<bool, DbError> {
        self.write(move |transaction| {
            forget_failures(transaction, &job)?;
            let removed = transaction.execute("DELETE FROM pauses WHERE job = ?1", [job])?;
            Ok(removed > 0)
        })
        .await
    }

    /// Records the end of a run: writes the disposition of its slots, unless that is final already,
    /// and counts the failures of its job. Returns the pause if this failure pauses the job.
    ///
    /// *Errors*: [`DbError`]; nothing is then recorded.
    pub async fn end_run(&self, end: RunEnd, now: DateTime<Utc>) -> Result<Option<Pause>, DbError> {
        let ended = self.write(move |transaction| {
            decide(transaction, &end.run_id, end.state, &end.reason, now)?;
            tell_of_run(transaction, &end.run_id, &end.notify)?;
            match end.outcome {
                Outcome::Succeeded | Outcome::Planned => {
                    forget_failures(transaction, end.job.as_str()).map(|()| None)
                }
                Outcome::Failed if end.counts => count_failure(transaction, end, now),
                Outcome::Failed | Outcome::Cancelled | Outcome::Interrupted | Outcome::Skipped => {
                    Ok(None)
                }
            }
        });
        let paused = ended.await?;
        self.wake_notifier();
        Ok(paused)
    }
}

impl LedgerReader<'_> {
    /// Returns the paused jobs by name, also those whose pause has just ended by itself.
    ///
    /// *Errors*: SQLite's.
    pub fn pauses(&self) -> rusqlite::Result<Vec<Pause>> {
        let sql = format!("SELECT {PAUSE_COLUMNS} FROM pauses ORDER BY job");
        let mut query = self.connection().prepare(&sql)?;
        query.query_map([], pause)?.collect()
    }
}

pub(super) fn keep(transaction: &Connection, pause: &Pause) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT OR REPLACE INTO pauses VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            pause.job,
            pause.paused_at.timestamp_millis(),
            pause.note,
            pause.until.map(|until| until.timestamp_millis())
        ])
        .map(drop)
}

fn forget_failures(transaction: &Connection, job: &str) -> rusqlite::Result<()> {
    transaction.prepare_cached("DELETE FROM failures WHERE job = ?1")?.execute([job]).map(drop)
}

fn count_failure(
    transaction: &Connection,
    end: RunEnd,
    now: DateTime<Utc>,
) -> rusqlite::Result<Option<Pause>> {
    let count: u32 = transaction
        .prepare_cached(
            "INSERT INTO failures VALUES (?1, 1) ON CONFLICT (job) DO UPDATE SET count = count + 1
             RETURNING count",
        )?
        .query_row([end.job.as_str()], |row| row.get(0))?;
    let is_paused = transaction
        .prepare_cached("SELECT 1 FROM pauses WHERE job = ?1 AND (until IS NULL OR until > ?2)")?
        .query_row(params![end.job.as_str(), now.timestamp_millis()], |_| Ok(()))
        .optional()?
        .is_some();
    if is_paused || end.pause_after.is_none_or(|limit| count < limit) {
        return Ok(None);
    }
    let RunEnd { run_id, reason, .. } = end;
    let note = format!("consecutive failures: {count}; the last run was {run_id}: {reason}");
    let pause = Pause { job: end.job.into(), paused_at: now, note: Some(note), until: None };
    keep(transaction, &pause)?;
    Ok(Some(pause))
}
