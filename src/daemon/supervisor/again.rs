//! Runs slots again that were missed or whose runs failed, because a person requests it.

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::carry_out::new_run_id;
use super::slots::of_slot;
use super::{Input, Supervisor};
use crate::daemon::book::Waiting;
use crate::daemon::command::{BackfillRequest, CommandError};
use crate::daemon::disposition::Disposition;
use crate::domain::{Person, RunId, SlotKey, SlotTime};
use crate::schedule::Schedule;
use crate::store::{Again, DbError, Slot, SlotRow, SlotState, SpanPlace};

/// The shortest time between two moments of the ledger.
const MOMENT: TimeDelta = TimeDelta::milliseconds(1);

/// The row that has a due time.
struct Former<'a> {
    row: &'a SlotRow,
    /// The place of the due time, if the row is a span.
    place: Option<SpanPlace>,
}

impl Supervisor {
    /// Queues a run for each of `due_times` whose slot was missed, or whose run failed or was
    /// interrupted; returns their number. `rows` are the slots of the job in the period. A slot of
    /// another schedule than that in effect is not among `due_times`, so it stays unchanged.
    pub(super) async fn run_again(
        &mut self,
        request: BackfillRequest,
        due_times: Vec<DateTime<Utc>>,
        rows: Vec<SlotRow>,
        now: DateTime<Utc>,
    ) -> Result<usize, CommandError> {
        let BackfillRequest { job: name, from, to, by, .. } = request;
        let failed = self.failed_runs(&name, from, to).await;
        let failed = failed.map_err(|error| CommandError::NoIndex(error.to_string()))?;
        let config = self.config.borrow().clone();
        let of_name = config.jobs.get(name.as_str());
        let Some((job, schedule)) = of_name.and_then(|job| Some((job, job.schedule.as_ref()?)))
        else {
            return Err(CommandError::NoJob(name));
        };
        let mut wanted = former_rows(&due_times, &rows, schedule);
        wanted.retain(|_, former| is_wanted(former.row, &failed));
        self.check_room(&name, wanted.len(), "failed and missed slots")?;
        let mut run_ids: Vec<RunId> = wanted.iter().map(|_| new_run_id()).collect();
        // The ids of the runs have the order of their due times.
        run_ids.sort();
        let (mut slots, mut runs) = (Vec::new(), Vec::new());
        for ((due_at, Former { row, place }), run_id) in wanted.into_iter().zip(run_ids) {
            let time = SlotTime { epoch: row.epoch, due_at };
            let Some(run) = of_slot(job, time, Disposition::Backfill, by.clone(), run_id) else {
                continue;
            };
            let (key, why) = (SlotKey { job: job.name.clone(), time }, reason(row, by.as_ref()));
            let slot = self.row(key, SlotState::Queued, why, schedule.zone().name());
            let (run_id, queued) = (Some(run.run_id.clone()), Some(run.to_row(None)));
            // As the slot of a backfill, it stays in the queue over a restart.
            let slot = Slot { run_id, is_backfill: true, queued, ..slot };
            slots.push(Again { slot, state: row.state.clone(), place });
            runs.push(run);
        }
        let claimed = self.parts.ledger.claim_again(slots, now).await;
        let claimed = claimed.map_err(|error| CommandError::Unrecorded(error.to_string()))?;
        let runs = runs.into_iter().zip(claimed).filter(|(_, is_claimed)| *is_claimed);
        let runs: Vec<Waiting> = runs.map(|(run, _)| run).collect();
        let count = runs.len();
        self.act(Input::Queued(runs)).await;
        Ok(count)
    }

    async fn failed_runs(
        &self,
        job: &str,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
    ) -> Result<HashSet<String>, DbError> {
        self.parts.host.index.get().await?.failed_runs(job.to_owned(), from, to).await
    }
}

/// Returns the row of each due time that has one. `rows` is sorted by epoch. Of several, the newest
/// counts, unless it says only that an earlier one had run.
fn former_rows<'a>(
    due_times: &[DateTime<Utc>],
    rows: &'a [SlotRow],
    schedule: &Schedule,
) -> BTreeMap<DateTime<Utc>, Former<'a>> {
    let mut found = BTreeMap::new();
    for row in rows {
        for (due_at, place) in due_times_of(row, due_times, schedule) {
            let former = Former { row, place };
            if row.state == SlotState::Skipped {
                found.entry(due_at).or_insert(former);
            } else {
                found.insert(due_at, former);
            }
        }
    }
    found
}

/// Returns those of `due_times` that a row has; none of a span whose slots are not those of the schedule.
fn due_times_of(
    row: &SlotRow,
    due_times: &[DateTime<Utc>],
    schedule: &Schedule,
) -> Vec<(DateTime<Utc>, Option<SpanPlace>)> {
    let Some(last) = row.until else {
        let is_due = due_times.binary_search(&row.due_at).is_ok();
        return is_due.then_some((row.due_at, None)).into_iter().collect();
    };
    let fold = |until| schedule.fold(row.due_at - MOMENT, until);
    let is_exact = fold(last)
        .is_some_and(|all| (all.first, all.last, all.count) == (row.due_at, last, row.count));
    if !is_exact {
        return Vec::new();
    }
    let begin = due_times.partition_point(|due_at| *due_at < row.due_at);
    let mut own =
        due_times.iter().copied().skip(begin).take_while(|due_at| *due_at <= last).peekable();
    let head = own.peek().and_then(|due_at| fold(*due_at - MOMENT));
    let Ok(mut before) = u32::try_from(head.map_or(0, |head| head.count)) else {
        return Vec::new();
    };
    let mut previous = head.map(|head| head.last);
    let mut places = Vec::new();
    while let Some(due_at) = own.next() {
        let next = own.peek().copied().or_else(|| schedule.next_after(due_at));
        places.push((due_at, Some(SpanPlace { first: row.due_at, before, previous, next })));
        (before, previous) = (before + 1, Some(due_at));
    }
    places
}

/// Tells whether a slot runs again. A run that is no longer in the index counts as good.
fn is_wanted(row: &SlotRow, failed: &HashSet<String>) -> bool {
    let has_failed = row.run_id.as_ref().is_some_and(|run_id| failed.contains(run_id));
    let has_run = row.state == SlotState::Ran || row.state == SlotState::Blocked;
    row.state == SlotState::Missed || has_run && has_failed
}

/// Returns the reason for the ledger.
fn reason(row: &SlotRow, by: Option<&Person>) -> String {
    let who = by.map_or("a person", |person| &person.user);
    let why = match row.run_id.as_ref().filter(|_| row.state != SlotState::Missed) {
        Some(run_id) => format!("the run {run_id} had failed"),
        None => "the slot had been missed".to_owned(),
    };
    format!("requested by {who} (backfill), because {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Expressions;

    fn at(hour: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::hours(hour)
    }

    fn row(value: serde_json::Value) -> SlotRow {
        let mut row = serde_json::json!({
            "job": "j", "state": "missed", "run_id": null, "decided_at": at(0), "reason": "r",
            "until": null, "count": 1, "epoch": 0
        });
        row.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn a_due_time_knows_its_place_in_a_span_of_the_same_schedule() {
        let schedule =
            Expressions::default().schedule(r#"{"cron": ["0 * * * *"]}"#, "UTC").unwrap();
        let span = row(serde_json::json!({"due_at": at(10), "until": at(209), "count": 200}));
        let due_times: Vec<_> = (13..16).map(at).collect();
        let places = due_times_of(&span, &due_times, &schedule);
        let expected = (3..6).map(|before: u32| {
            let hour = 10 + i64::from(before);
            let (previous, next) = (Some(at(hour - 1)), Some(at(hour + 1)));
            (at(hour), Some(SpanPlace { first: at(10), before, previous, next }))
        });
        assert_eq!(places, expected.collect::<Vec<_>>());
        let [(_, Some(first))] = due_times_of(&span, &[at(10)], &schedule)[..] else { panic!() };
        assert_eq!((first.before, first.previous), (0, None));
        // The slots of another schedule.
        let other = row(serde_json::json!({"due_at": at(10), "until": at(209), "count": 100}));
        assert_eq!(due_times_of(&other, &due_times, &schedule), []);
    }

    #[test]
    fn the_newest_row_of_a_due_time_counts() {
        let schedule =
            Expressions::default().schedule(r#"{"cron": ["0 * * * *"]}"#, "UTC").unwrap();
        let of = |hour, epoch, state: &str, run_id: &str| {
            row(
                serde_json::json!({"due_at": at(hour), "epoch": epoch, "state": state, "run_id": run_id}),
            )
        };
        let rows = [
            of(1, 0, "ran", "bad"),
            of(2, 0, "ran", "bad"),
            of(3, 0, "ran", "good"),
            of(4, 0, "queued", "bad"),
            of(5, 0, "blocked", "bad"),
            of(6, 0, "coalesced", "bad"),
            of(7, 0, "missed", "bad"),
            of(1, 1, "skipped", "-"),
            of(2, 1, "ran", "good"),
        ];
        let failed = HashSet::from(["bad".to_owned()]);
        let mut found = former_rows(&(1..9).map(at).collect::<Vec<_>>(), &rows, &schedule);
        found.retain(|_, former| is_wanted(former.row, &failed));
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [at(1), at(5), at(7)]);
    }
}
