//! Merges the slots of a long downtime, so that the ledger does not grow with its length.

use chrono::{DateTime, TimeDelta, Utc};

use super::{REPEAT_WINDOW, Supervisor};
use crate::config::Catchup;
use crate::daemon::disposition::ON_TIME;
use crate::daemon::fold::MOST_SINGLE;
use crate::domain::JobName;
use crate::schedule::Schedule;
use crate::store::{Slot, Span};

impl Supervisor {
    /// Returns the time up to which every due time of a job is too late to run, whatever its jitter, and
    /// none is a repeated one unless [`Self::may_repeat`] says so; `None` if no such time is known.
    pub(super) fn too_late(&self, job: &JobName, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let config = self.config.borrow();
        let job = config.jobs.get(job)?;
        let window = match job.catchup {
            Catchup::None => ON_TIME,
            Catchup::Latest | Catchup::All => job.catchup_window.max(ON_TIME),
        };
        let back = TimeDelta::from_std(window.saturating_add(job.jitter)).ok()?;
        let until = now.checked_sub_signed(back.checked_add(&TimeDelta::seconds(1))?)?;
        let ends = self.due.epoch_ends.values().filter(|ended| **ended >= now);
        Some(ends.map(|ended| *ended - REPEAT_WINDOW).fold(until, std::cmp::min))
    }

    /// Returns the times, in order, in which a due time later than `after` and up to `until` may be a
    /// repeated one: the hours before the end of each earlier epoch, without the first moment. They may
    /// overlap, and the last may end after `until`.
    pub(super) fn may_repeat(
        &self,
        after: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Vec<(DateTime<Utc>, DateTime<Utc>)> {
        let begin = |ended: DateTime<Utc>| ended - REPEAT_WINDOW - TimeDelta::milliseconds(1);
        let ends = self.due.epoch_ends.values().copied();
        let mut ends: Vec<DateTime<Utc>> =
            ends.filter(|ended| *ended > after && begin(*ended) < until).collect();
        ends.sort_unstable();
        ends.into_iter().map(|ended| (begin(ended), ended)).collect()
    }
}

/// Merges consecutive slots of a job that have the same disposition into spans. `slots` is sorted by
/// due time; all of them are of one job and one epoch.
pub(super) fn merge(slots: Vec<Slot>, schedule: &Schedule) -> Vec<Slot> {
    if slots.iter().map(count_of).sum::<usize>() <= MOST_SINGLE {
        return slots;
    }
    let last_of = |slot: &Slot| slot.span.map_or(slot.key.time.due_at, |span| span.until);
    let follows =
        |one: &Slot, next: &Slot| schedule.next_after(last_of(one)) == Some(next.key.time.due_at);
    let mut merged = Vec::new();
    for alike in slots.chunk_by(is_alike) {
        if alike.iter().map(count_of).sum::<usize>() <= MOST_SINGLE {
            merged.extend_from_slice(alike);
            continue;
        }
        for consecutive in alike.chunk_by(follows) {
            let count = consecutive.iter().map(count_of).sum::<usize>();
            match (consecutive, u32::try_from(count)) {
                ([first, .., last], Ok(of_span)) if count > MOST_SINGLE => {
                    let span = Some(Span { until: last_of(last), count: of_span });
                    merged.push(Slot { span, ..first.clone() });
                }
                (few, _) => merged.extend_from_slice(few),
            }
        }
    }
    merged
}

pub(super) fn count_of(slot: &Slot) -> usize {
    slot.span.map_or(1, |span| span.count as usize)
}

/// Tells whether two slots may be in one span.
fn is_alike(one: &Slot, next: &Slot) -> bool {
    let may_merge = |slot: &Slot| !slot.is_backfill && slot.left.is_none() && slot.queued.is_none();
    may_merge(one) && may_merge(next) && one.state == next.state && one.run_id == next.run_id
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Epoch, SlotKey};
    use crate::schedule::Expressions;
    use crate::store::SlotState;

    fn slot(minute: i64, state: SlotState) -> Slot {
        Slot {
            key: SlotKey::new(
                JobName::parse("j").unwrap(),
                Epoch::FIRST,
                DateTime::<Utc>::from_timestamp(minute * 60, 0).unwrap(),
            ),
            span: None,
            is_backfill: false,
            state,
            run_id: None,
            reason: "down".into(),
            zone: "UTC".into(),
            config_digest: String::new(),
            left: None,
            queued: None,
        }
    }

    proptest! {
        /// Parts of a downtime: how many slots, whether they are missed, and how many due times
        /// after them have a row already.
        #[test]
        fn spans_account_for_exactly_the_merged_slots(
            parts in prop::collection::vec((0i64..260, any::<bool>(), 0i64..3), 0..8),
        ) {
            let schedule = Expressions::default().schedule(r#"{"cron": ["* * * * *"]}"#, "UTC").unwrap();
            let mut slots = Vec::new();
            let mut minute = 0;
            for (count, is_missed, gap) in parts {
                let state = if is_missed { SlotState::Missed } else { SlotState::Paused };
                slots.extend((minute..minute + count).map(|minute| slot(minute, state)));
                minute += count + gap;
            }
            let merged = merge(slots.clone(), &schedule);
            let unmerged = merged.iter().flat_map(|row| {
                let until = row.span.map_or(row.key.time.due_at, |span| span.until);
                let minutes = row.key.time.due_at.timestamp() / 60..=until.timestamp() / 60;
                minutes.map(|minute| slot(minute, row.state))
            });
            prop_assert_eq!(unmerged.collect::<Vec<_>>(), slots.clone());
            let counted: u32 = merged.iter().map(|row| row.span.map_or(1, |span| span.count)).sum();
            prop_assert_eq!(counted as usize, slots.len());
            prop_assert!(merged.iter().all(|row| row.span.is_none_or(|span| span.count > 100)));
            let singles = merged.chunk_by(|a, b| {
                let follows = schedule.next_after(a.key.time.due_at) == Some(b.key.time.due_at);
                follows && a.span.is_none() && b.span.is_none() && a.state == b.state
            });
            prop_assert!(singles.into_iter().all(|alike| alike.len() <= 100));
        }
    }
}
