//! The rows of slots and periods as the ledger stores them, and the cells that other tables share.

use chrono::{DateTime, Utc};
use rusqlite::Row;

use super::claim::StateWord;
use crate::domain::{Epoch, JobName, RunId, SlotKey, SlotTime};

/// The columns that [`slot_row`] reads, in its order, and `config_digest`.
pub(super) const SLOT_COLUMNS: &str = "job, due_at, state, run_id, decided_at, reason, epoch, zone, until, count, is_backfill, config_digest";

/// The columns that [`period`] reads, in its order.
pub(super) const PERIOD_COLUMNS: &str = "rowid, job, epoch, schedule, zone, began, settled, ended";

/// The times that a row may hold, in milliseconds: of the years 1970 to 9999. Arithmetic with them
/// does not overflow.
const TIMES: std::ops::RangeInclusive<i64> = 0..=253_402_300_799_999;

/// A slot that was read from the ledger.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SlotRow {
    /// The name of the job.
    pub job: String,
    /// When it was due; of a span, the first due time.
    pub due_at: DateTime<Utc>,
    pub state: StateWord,
    /// The run for this slot, or another run that covers it.
    pub run_id: Option<String>,
    /// When the disposition was written.
    pub decided_at: DateTime<Utc>,
    /// The reason for the disposition, as a sentence for the operator.
    pub reason: String,
    /// The last due time of a span, inclusive; null for a single slot.
    pub until: Option<DateTime<Utc>>,
    /// The number of slots in the row: 1, except for a span.
    pub count: u64,
    /// How often the clock had been set back before this slot.
    pub epoch: Epoch,
    /// Whether a person requested the slot, which `slots` does not print.
    #[serde(skip)]
    pub is_backfill: bool,
    /// The time zone of the schedule, which `slots` does not print.
    #[serde(skip)]
    pub zone: String,
}

/// A slot whose run has not ended, as far as the ledger knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSlot {
    pub key: SlotKey,
    pub run_id: RunId,
    /// `queued` or `running`.
    pub state: StateWord,
    /// Whether a person requested the slot.
    pub is_backfill: bool,
    /// The time zone of the schedule.
    pub zone: String,
}

/// A schedule as the ledger stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedSchedule {
    pub job: JobName,
    /// The schedule as JSON: `{"cron": […]}` or `{"every_ms": …}`.
    pub schedule: String,
    /// The time zone of the schedule.
    pub zone: String,
}

/// A period in which a schedule was in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Period {
    pub id: i64,
    pub job: JobName,
    pub epoch: Epoch,
    /// The schedule as JSON: `{"cron": […]}` or `{"every_ms": …}`.
    pub schedule: String,
    /// The time zone of the schedule.
    pub zone: String,
    /// The start of the period, exclusive.
    pub began: DateTime<Utc>,
    /// Every slot up to this time, inclusive, has its row.
    pub settled: DateTime<Utc>,
    /// The end of the period, inclusive; `None` while the schedule is in effect.
    pub ended: Option<DateTime<Utc>>,
}

/// *Errors*: the cell is not a time in [`TIMES`].
pub(super) fn time(row: &Row<'_>, at: usize) -> rusqlite::Result<DateTime<Utc>> {
    moment_of(row.get(at)?, at)
}

/// *Errors*: the cell is neither null nor a time in [`TIMES`].
pub(super) fn optional_time(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<DateTime<Utc>>> {
    row.get::<_, Option<i64>>(at)?.map(|millis| moment_of(millis, at)).transpose()
}

/// *Errors*: the number in column `at` is not a time in [`TIMES`].
pub(super) fn moment_of(millis: i64, at: usize) -> rusqlite::Result<DateTime<Utc>> {
    let plausible = TIMES.contains(&millis).then_some(millis);
    plausible
        .and_then(DateTime::from_timestamp_millis)
        .ok_or(rusqlite::Error::IntegralValueOutOfRange(at, millis))
}

pub(super) fn period(row: &Row<'_>) -> rusqlite::Result<Period> {
    Ok(Period {
        id: row.get(0)?,
        job: job_of(row, 1)?,
        epoch: Epoch::new(row.get(2)?),
        schedule: row.get(3)?,
        zone: row.get(4)?,
        began: time(row, 5)?,
        settled: time(row, 6)?,
        ended: optional_time(row, 7)?,
    })
}

/// *Errors*: the cell is not the name of a job.
pub(super) fn job_of(row: &Row<'_>, at: usize) -> rusqlite::Result<JobName> {
    JobName::parse(row.get_ref(at)?.as_str()?).map_err(|error| invalid(at, error))
}

/// *Errors*: the cell is not the id of a run.
pub(super) fn run_id_of(row: &Row<'_>, at: usize) -> rusqlite::Result<RunId> {
    RunId::parse(row.get_ref(at)?.as_str()?).map_err(|error| invalid(at, error))
}

pub(super) fn invalid(
    at: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, error.into())
}

pub(super) fn open_slot(row: &Row<'_>) -> rusqlite::Result<OpenSlot> {
    let SlotRow { due_at, state, epoch, is_backfill, zone, .. } = slot_row(row)?;
    let key = SlotKey { job: job_of(row, 0)?, time: SlotTime { epoch, due_at } };
    Ok(OpenSlot { key, run_id: run_id_of(row, 3)?, state, is_backfill, zone })
}

pub(super) fn slot_row(row: &Row<'_>) -> rusqlite::Result<SlotRow> {
    Ok(SlotRow {
        job: row.get(0)?,
        due_at: time(row, 1)?,
        state: StateWord::new(row.get(2)?),
        run_id: row.get(3)?,
        decided_at: time(row, 4)?,
        reason: row.get(5)?,
        epoch: Epoch::new(row.get(6)?),
        zone: row.get(7)?,
        until: optional_time(row, 8)?,
        count: row.get::<_, u32>(9)?.into(),
        is_backfill: row.get(10)?,
    })
}
