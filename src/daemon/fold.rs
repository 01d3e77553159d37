//! Folds due times that are too late to run, so that neither the memory nor the time of a start grows
//! with the length of a downtime (CRON-8).

use chrono::{DateTime, TimeDelta, Utc};

use crate::schedule::Schedule;
use crate::store::Span;

/// Consecutive slots with the same disposition become a span if there are more than this.
pub(super) const MOST_SINGLE: usize = 100;

/// A due time; with a span, the first of many that are decided alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) due_at: DateTime<Utc>,
    pub(super) span: Option<Span>,
}

impl Due {
    pub(super) fn single(due_at: DateTime<Utc>) -> Self {
        Self { due_at, span: None }
    }
}

/// Returns the due times of a schedule later than `after`, up to `until`, as one value; `None` if they
/// are few. If they are more than a span counts, returns the first of them.
pub(super) fn fold(schedule: &Schedule, after: DateTime<Utc>, until: DateTime<Utc>) -> Option<Due> {
    // A schedule is due once a second at most.
    let most = after.checked_add_signed(TimeDelta::seconds(u32::MAX.into()));
    let folded = schedule.fold(after, most.map_or(until, |most| most.min(until)))?;
    let count = u32::try_from(folded.count).ok()?;
    let is_many = folded.count > MOST_SINGLE as u64;
    let span = Some(Span { until: folded.last, count });
    is_many.then_some(Due { due_at: folded.first, span })
}
