//! Does the ledger account for every due time? The schedules of its whole life are computed again and held against it.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;
use crate::store::{LedgerReader, Period, SlotRow};

/// A due time that stands out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuditedSlot {
    /// The job.
    pub job: String,
    /// The due time.
    pub due_at: DateTime<Utc>,
}

/// Due times of a job that nothing was decided about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undecided {
    /// The job.
    pub job: String,
    /// The oldest.
    pub first_due_at: DateTime<Utc>,
    /// How many, counted to 1,000.
    pub count: usize,
}

/// What `audit` found.
///
/// *Shape*: `{"ok":true,"slots":60,"holes":[],"extras":[],"undecided":[],"last_decided_at":"…","valid_from":"…","daemon":4711}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Whether every due time is accounted for.
    pub ok: bool,
    /// Slots that were looked at.
    pub slots: u64,
    /// Due times without a slot.
    pub holes: Vec<AuditedSlot>,
    /// Slots that no schedule asked for.
    pub extras: Vec<AuditedSlot>,
    /// Jobs whose slots nobody decides: the daemon is down, or stuck.
    pub undecided: Vec<Undecided>,
    /// When the last slot was decided.
    pub last_decided_at: Option<DateTime<Utc>>,
    /// From when on the ledger can speak; null if it knows no schedule.
    pub valid_from: Option<DateTime<Utc>>,
    /// The daemon that answered; null if none runs.
    pub daemon: Option<u32>,
}

/// How long after its start a slot may be undecided.
const PATIENCE: TimeDelta = TimeDelta::minutes(1);

/// Undecided slots of a job that are counted.
const COUNTED: usize = 1000;

/// Audits one job or all; `jitter` gives how long after its due time a slot of a job may start.
///
/// *Errors*: SQLite's.
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
    // A slot after the settled time is one whose neighbours still wait for their jitter.
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

/// Returns the due times of a period that should have been decided by `until`.
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

/// Returns the due times of a period as far as it is settled.
fn dues(period: &Period) -> Vec<DateTime<Utc>> {
    let until = period.ended.unwrap_or(period.settled);
    Schedule::from_record(&period.schedule, &period.zone)
        .map(|schedule| schedule.iter_after(period.began).take_while(|due| *due <= until).collect())
        .unwrap_or_default()
}
