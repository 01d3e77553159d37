//! Merges the slots of a long downtime, so that the ledger does not grow with its length.

use crate::schedule::Schedule;
use crate::store::{Slot, Span};

/// Consecutive slots with the same disposition become a span if there are more than this.
const MOST_SINGLE: usize = 100;

/// Merges consecutive slots of a job that have the same disposition into spans. `slots` is sorted by
/// due time; all of them are of one job and one epoch.
pub(super) fn merge(slots: Vec<Slot>, schedule: &Schedule) -> Vec<Slot> {
    if slots.len() <= MOST_SINGLE {
        return slots;
    }
    let follows = |one: &Slot, next: &Slot| schedule.next_after(one.due_at) == Some(next.due_at);
    let mut merged = Vec::new();
    for alike in slots.chunk_by(is_alike) {
        if alike.len() <= MOST_SINGLE {
            merged.extend_from_slice(alike);
            continue;
        }
        for consecutive in alike.chunk_by(follows) {
            match consecutive {
                [first, .., last] if consecutive.len() > MOST_SINGLE => {
                    let count = u32::try_from(consecutive.len()).unwrap_or(u32::MAX);
                    let span = Some(Span { until: last.due_at, count });
                    merged.push(Slot { span, ..first.clone() });
                }
                few => merged.extend_from_slice(few),
            }
        }
    }
    merged
}

/// Tells whether two slots may be in one span.
fn is_alike(one: &Slot, next: &Slot) -> bool {
    let may_merge = |slot: &Slot| {
        !slot.is_backfill && slot.left.is_none() && slot.queued.is_none() && slot.span.is_none()
    };
    may_merge(one) && may_merge(next) && one.state == next.state && one.run_id == next.run_id
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use proptest::prelude::*;

    use super::*;
    use crate::store::SlotState;

    fn slot(minute: i64, state: SlotState) -> Slot {
        Slot {
            job: "j".into(),
            epoch: 0,
            due_at: DateTime::<Utc>::from_timestamp(minute * 60, 0).unwrap(),
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
            let schedule = Schedule::from_record(r#"{"cron": ["* * * * *"]}"#, "UTC").unwrap();
            let mut slots = Vec::new();
            let mut minute = 0;
            for (count, is_missed, gap) in parts {
                let state = if is_missed { SlotState::Missed } else { SlotState::Paused };
                slots.extend((minute..minute + count).map(|minute| slot(minute, state)));
                minute += count + gap;
            }
            let merged = merge(slots.clone(), &schedule);
            let unmerged = merged.iter().flat_map(|row| {
                let until = row.span.map_or(row.due_at, |span| span.until);
                let minutes = row.due_at.timestamp() / 60..=until.timestamp() / 60;
                minutes.map(|minute| slot(minute, row.state))
            });
            prop_assert_eq!(unmerged.collect::<Vec<_>>(), slots.clone());
            let counted: u32 = merged.iter().map(|row| row.span.map_or(1, |span| span.count)).sum();
            prop_assert_eq!(counted as usize, slots.len());
            prop_assert!(merged.iter().all(|row| row.span.is_none_or(|span| span.count > 100)));
            let singles = merged.chunk_by(|a, b| {
                let follows = schedule.next_after(a.due_at) == Some(b.due_at);
                follows && a.span.is_none() && b.span.is_none() && a.state == b.state
            });
            prop_assert!(singles.into_iter().all(|alike| alike.len() <= 100));
        }
    }
}
