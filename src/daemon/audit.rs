//! Does the ledger account for every due time? The schedules of its whole life are computed again and held against it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
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

/// What `audit` found.
///
/// *Shape*: `{"ok":true,"holes":[],"extras":[],"slots":60,"since":"…"}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Whether there is neither a hole nor an extra.
    pub ok: bool,
    /// Due times without a slot.
    pub holes: Vec<AuditedSlot>,
    /// Slots that no schedule asked for.
    pub extras: Vec<AuditedSlot>,
    /// Slots that were looked at.
    pub slots: u64,
    /// From when on the ledger can speak; null if it knows no schedule.
    pub since: Option<DateTime<Utc>>,
}

/// Audits one job or all.
///
/// Due times after the last moment that the ledger has settled are not holes: the next look of the daemon, or its next start, settles them.
/// *Errors*: SQLite's.
pub fn audit(reader: &LedgerReader<'_>, job: Option<&str>) -> rusqlite::Result<AuditReport> {
    let periods = reader.periods(job)?;
    let slots = reader.slots(job, None, None)?;
    let mut rows: BTreeMap<(&str, i64, DateTime<Utc>), &SlotRow> =
        slots.iter().map(|slot| ((slot.job.as_str(), slot.epoch, slot.due_at), slot)).collect();
    let mut holes = Vec::new();
    for period in &periods {
        for due_at in dues(period) {
            if rows.remove(&(period.job.as_str(), period.epoch, due_at)).is_none() {
                holes.push(AuditedSlot { job: period.job.clone(), due_at });
            }
        }
    }
    let extras: Vec<AuditedSlot> = rows
        .into_keys()
        .map(|(job, _, due_at)| AuditedSlot { job: job.to_owned(), due_at })
        .collect();
    Ok(AuditReport {
        ok: holes.is_empty() && extras.is_empty(),
        holes,
        extras,
        slots: slots.len() as u64,
        since: periods.iter().map(|period| period.began).min(),
    })
}

/// Returns the due times of a period as far as it is settled.
fn dues(period: &Period) -> Vec<DateTime<Utc>> {
    let until = period.ended.unwrap_or(period.settled);
    Schedule::from_record(&period.schedule, &period.zone)
        .map(|schedule| schedule.iter_after(period.began).take_while(|due| *due <= until).collect())
        .unwrap_or_default()
}
