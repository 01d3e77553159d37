//! Checks that the ledger accounts for every due time: computes the due times of each schedule
//! again and compares them with the rows.
//!
//! A period is the time in which a schedule was in effect, according to the ledger. A period is
//! settled up to a time if every due time until then has its row.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::Epoch;
use crate::schedule::{Expressions, Schedule};
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

/// How long after its latest possible start time a slot may stay undecided.
const PATIENCE: TimeDelta = TimeDelta::minutes(1);

/// Undecided due times of a job are counted up to this number.
const COUNTED: usize = 1000;

/// A period with its schedule.
struct Audited {
    period: Period,
    schedule: Schedule,
}

/// Audits one job or all; `jitter` returns the longest jitter of a job.
///
/// *Errors*: SQLite fails, or a schedule in the ledger cannot be read.
pub fn audit(
    reader: &LedgerReader<'_>,
    job: Option<&str>,
    jitter: impl Fn(&str) -> std::time::Duration,
    now: DateTime<Utc>,
) -> rusqlite::Result<AuditReport> {
    let expressions = Expressions::default();
    let periods = reader.periods(job)?.into_iter().map(|period| audited(period, &expressions));
    let periods: Vec<Audited> = periods.collect::<Result<_, _>>()?;
    let slots = reader.slots(job, None, None)?;
    let restored_at = reader.restored_at()?;
    let mut rows = Rows::new(&slots);
    let (mut holes, mut undecided) = (Vec::new(), Vec::new());
    let mut epoch_starts: HashMap<Epoch, DateTime<Utc>> = HashMap::new();
    for Audited { period, .. } in &periods {
        let first = epoch_starts.entry(period.epoch).or_insert(period.began);
        *first = period.began.min(*first);
    }
    for audited in &periods {
        let period = &audited.period;
        let jitter = TimeDelta::from_std(jitter(period.job.as_str())).unwrap_or_default();
        let until = now - PATIENCE - jitter;
        // When the clock was set back, the daemon may have held due times of this period for their
        // jitter. It decides them in the next epoch.
        let stepped_at = epoch_starts.get(&period.epoch.next()).filter(|_| period.ended.is_some());
        let mut left = Vec::new();
        for due_at in rows.missing(audited) {
            match stepped_at.filter(|_| due_at > period.settled) {
                Some(_) => left.push(due_at),
                None => holes.push(AuditedSlot { job: period.job.to_string(), due_at }),
            }
        }
        if let Some(first_due_at) = left.first()
            && stepped_at.is_some_and(|stepped_at| *stepped_at <= until)
        {
            let (job, first_due_at, count) = (period.job.to_string(), *first_due_at, left.len());
            undecided.push(Undecided { job, first_due_at, count: count.min(COUNTED) });
        }
        undecided.extend(undecided_of(audited, &mut rows, until));
    }
    let mut open: HashMap<(&str, Epoch), Vec<&Audited>> = HashMap::new();
    for audited in periods.iter().filter(|audited| audited.period.ended.is_none()) {
        let period = &audited.period;
        open.entry((period.job.as_str(), period.epoch)).or_default().push(audited);
    }
    // A slot after the settled time of an open period is not an extra if the schedule has its due
    // time: it was decided while an earlier due time was still held for its jitter.
    let settled = |job: &str, epoch: Epoch, due_at: DateTime<Utc>| {
        let mut of_job = open.get(&(job, epoch)).into_iter().flatten();
        of_job.any(|Audited { period, schedule }| {
            period.settled < due_at
                && schedule.next_after(due_at - TimeDelta::milliseconds(1)) == Some(due_at)
        })
    };
    let extras: Vec<AuditedSlot> = rows
        .unexplained()
        // The schedule of a restored slot is lost.
        .filter(|slot| restored_at.is_none_or(|at| slot.due_at > at))
        .filter(|slot| !settled(&slot.job, slot.epoch, slot.due_at))
        .map(|slot| AuditedSlot { job: slot.job.clone(), due_at: slot.due_at })
        .collect();
    Ok(AuditReport {
        ok: holes.is_empty() && extras.is_empty() && undecided.is_empty(),
        slots: slots.iter().map(|slot| slot.count).sum(),
        holes,
        extras,
        undecided,
        last_decided_at: slots.iter().map(|slot| slot.decided_at).max(),
        valid_from: periods.iter().map(|audited| audited.period.began).min(),
        daemon: None,
    })
}

/// A due time of a job in an epoch.
type Due<'a> = (&'a str, Epoch, DateTime<Utc>);

/// The rows of the ledger, and how many of their due times are not in any schedule.
struct Rows<'a> {
    /// Each row with the number of its due times that were not found in a schedule so far.
    rows: BTreeMap<Due<'a>, (&'a SlotRow, u64)>,
}

impl<'a> Rows<'a> {
    fn new(slots: &'a [SlotRow]) -> Self {
        let rows = slots
            .iter()
            .map(|slot| ((slot.job.as_str(), slot.epoch, slot.due_at), (slot, slot.count)));
        Self { rows: rows.collect() }
    }

    /// Tells whether a due time of a schedule has a row of its own or lies in a span.
    fn has(&mut self, due: Due<'a>) -> bool {
        let Some(((job, epoch, _), (slot, left))) = self.rows.range_mut(..=due).next_back() else {
            return false;
        };
        let last = slot.until.unwrap_or(slot.due_at);
        let is_of = (*job, *epoch) == (due.0, due.1) && due.2 <= last && *left > 0;
        *left -= u64::from(is_of);
        is_of
    }

    /// Returns the due times of a period without a row, up to its end or as far as it is settled.
    fn missing(&mut self, Audited { period, schedule }: &'a Audited) -> Vec<DateTime<Utc>> {
        let until = period.ended.unwrap_or(period.settled);
        let mut missing = Vec::new();
        let mut next = schedule.next_after(period.began);
        while let Some(due_at) = next.filter(|due| *due <= until) {
            let due = (period.job.as_str(), period.epoch, due_at);
            let last = self.pass_span(due, schedule, until);
            if last.is_none() && !self.has(due) {
                missing.push(due_at);
            }
            next = schedule.next_after(last.unwrap_or(due_at));
        }
        missing
    }

    /// Finds all due times of the span that begins with `due` at once, if it ends by `until` and has as
    /// many slots as the schedule has due times; returns the last. A span may cover years.
    fn pass_span(
        &mut self,
        due: Due<'a>,
        schedule: &Schedule,
        until: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let (job, epoch, first) = due;
        let (slot, left) = *self.rows.get(&due)?;
        let last = slot.until.filter(|last| (first..=until).contains(last))?;
        let inside = (Bound::Excluded(due), Bound::Included((job, epoch, last)));
        let is_exact = left == slot.count
            && self.rows.range(inside).next().is_none()
            && schedule.count(first - TimeDelta::milliseconds(1), last) == slot.count;
        if !is_exact {
            return None;
        }
        self.rows.insert(due, (slot, 0));
        Some(last)
    }

    /// Returns the rows with due times that were not found in any schedule. Leaves out the rows of
    /// backfills, which need no schedule.
    fn unexplained(&self) -> impl Iterator<Item = &'a SlotRow> {
        let rows = self.rows.values().filter(|(slot, left)| *left > 0 && !slot.is_backfill);
        rows.map(|(slot, _)| *slot)
    }
}

/// Reads the schedule of a period.
///
/// *Errors*: it is invalid. Without it, we cannot tell whether a due time was missed.
fn audited(period: Period, expressions: &Expressions) -> rusqlite::Result<Audited> {
    let Some(schedule) = expressions.schedule(&period.schedule, &period.zone) else {
        let Period { job, schedule, zone, .. } = period;
        let why = format!("the schedule of job `{job}` is invalid: {schedule} in {zone}");
        let kind = rusqlite::types::Type::Text;
        return Err(rusqlite::Error::FromSqlConversionFailure(0, kind, why.into()));
    };
    Ok(Audited { period, schedule })
}

/// Returns the undecided due times of an open period up to `until`; `None` if there are none. A due
/// time may have its row although an earlier one is still held for its jitter.
fn undecided_of<'a>(
    Audited { period, schedule }: &'a Audited,
    rows: &mut Rows<'a>,
    until: DateTime<Utc>,
) -> Option<Undecided> {
    if period.ended.is_some() {
        return None;
    }
    let dues = schedule.iter_after(period.settled).take_while(|due| *due <= until);
    let mut left = dues.filter(|due_at| !rows.has((period.job.as_str(), period.epoch, *due_at)));
    let first_due_at = left.next()?;
    let count = 1 + left.take(COUNTED - 1).count();
    Some(Undecided { job: period.job.to_string(), first_due_at, count })
}

#[cfg(test)]
mod tests;
