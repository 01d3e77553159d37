//! Checks that the ledger accounts for every due time: evaluates the schedules of its whole life
//! again and compares the result with its rows.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;
use crate::store::{LedgerReader, Period, SlotRow};

/// A due time without a slot, or a slot without a due time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuditedSlot {
    pub job: String,
    pub due_at: DateTime<Utc>,
}

/// The undecided due times of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undecided {
    pub job: String,
    /// The oldest of them.
    pub first_due_at: DateTime<Utc>,
    /// Their number, at most 1,000.
    pub count: usize,
}

/// The report of `audit`.
///
/// *Shape*:
/// `{"ok":true,"slots":60,"holes":[],"extras":[],"undecided":[],"last_decided_at":"…","valid_from":"…","daemon":4711}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Whether every due time is accounted for.
    pub ok: bool,
    /// Slots that were examined.
    pub slots: u64,
    /// Due times without a slot.
    pub holes: Vec<AuditedSlot>,
    /// Slots without a due time in any schedule.
    pub extras: Vec<AuditedSlot>,
    /// Jobs with undecided due times: the daemon is down, or stuck.
    pub undecided: Vec<Undecided>,
    /// When the last slot was decided.
    pub last_decided_at: Option<DateTime<Utc>>,
    /// Start of the oldest schedule in the ledger; null if it has none.
    pub valid_from: Option<DateTime<Utc>>,
    /// The process id of the daemon that answered; null if none is running.
    pub daemon: Option<u32>,
}

/// How long after its start time a slot may stay undecided.
const PATIENCE: TimeDelta = TimeDelta::minutes(1);

/// Undecided due times of a job are counted up to this number.
const COUNTED: usize = 1000;

/// Audits one job or all; `jitter` returns the longest jitter of a job.
///
/// *Errors*: SQLite fails.
pub fn audit(
    reader: &LedgerReader<'_>,
    job: Option<&str>,
    jitter: impl Fn(&str) -> std::time::Duration,
    now: DateTime<Utc>,
) -> rusqlite::Result<AuditReport> {
    let periods = reader.periods(job)?;
    let slots = reader.slots(job, None, None)?;
    let mut rows: BTreeMap<(&str, i64, DateTime<Utc>), &SlotRow> =
        slots.iter().map(|slot| ((slot.job.as_str(), slot.epoch, slot.due_at), slot)).collect();
    let (mut holes, mut undecided) = (Vec::new(), Vec::new());
    for period in &periods {
        for due_at in dues(period) {
            if rows.remove(&(period.job.as_str(), period.epoch, due_at)).is_none() {
                holes.push(AuditedSlot { job: period.job.clone(), due_at });
            }
        }
        let jitter = TimeDelta::from_std(jitter(&period.job)).unwrap_or_default();
        undecided.extend(waits_for_decision(period, now - PATIENCE - jitter));
    }
    // A slot after the settled time is not an extra: an earlier due time still waits for its
    // jitter.
    let settled = |job: &str, epoch: i64, due_at: DateTime<Utc>| {
        let mut open = periods.iter().filter(|period| period.ended.is_none());
        open.any(|period| {
            period.job == job
                && period.epoch == epoch
                && period.settled < due_at
                && is_due(period, due_at)
        })
    };
    let extras: Vec<AuditedSlot> = rows
        .keys()
        .filter(|(job, epoch, due_at)| !settled(job, *epoch, *due_at))
        .map(|(job, _, due_at)| AuditedSlot { job: (*job).to_owned(), due_at: *due_at })
        .collect();
    Ok(AuditReport {
        ok: holes.is_empty() && extras.is_empty() && undecided.is_empty(),
        slots: slots.len() as u64,
        holes,
        extras,
        undecided,
        last_decided_at: slots.iter().map(|slot| slot.decided_at).max(),
        valid_from: periods.iter().map(|period| period.began).min(),
        daemon: None,
    })
}

/// Returns the due times of an open period that should have been decided by `until`.
fn waits_for_decision(period: &Period, until: DateTime<Utc>) -> Option<Undecided> {
    if period.ended.is_some() {
        return None;
    }
    let schedule = Schedule::from_record(&period.schedule, &period.zone)?;
    let mut dues = schedule.iter_after(period.settled).take_while(|due| *due <= until);
    let first_due_at = dues.next()?;
    let count = 1 + dues.take(COUNTED - 1).count();
    Some(Undecided { job: period.job.clone(), first_due_at, count })
}

fn is_due(period: &Period, due_at: DateTime<Utc>) -> bool {
    Schedule::from_record(&period.schedule, &period.zone).is_some_and(|schedule| {
        schedule.next_after(due_at - TimeDelta::milliseconds(1)) == Some(due_at)
    })
}

/// Returns the due times of a period, up to its end or as far as it is settled.
fn dues(period: &Period) -> Vec<DateTime<Utc>> {
    let until = period.ended.unwrap_or(period.settled);
    Schedule::from_record(&period.schedule, &period.zone)
        .map(|schedule| schedule.iter_after(period.began).take_while(|due| *due <= until).collect())
        .unwrap_or_default()
}
