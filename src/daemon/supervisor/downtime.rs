//! Decides at the start of the daemon the slots that came due earlier.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::carry_out::new_run_id;
use super::due::Held;
use super::slots::{DueFacts, Dues, JobEpoch};
use super::spans::merge;
use super::{CLAIM_BATCH, Input, SUPERSEDED, Supervisor};
use crate::config::Config;
use crate::daemon::disposition::Cause;
use crate::daemon::fold::{Due, fold};
use crate::daemon::recovery::{RecordedEnd, recorded_end};
use crate::daemon::views::starts_at;
use crate::domain::{JobName, Person, RunId, SlotKey, SlotTime, StopReason, Trigger};
use crate::schedule::{Expressions, Schedule};
use crate::store::{DbError, OpenSlot, Period, Slot, SlotRow, SlotState};

impl Supervisor {
    /// Decides every slot up to `now` that came due while the daemon was down. Decides again each slot
    /// whose run had not begun. Skips a schedule that the ledger holds in an invalid form; `audit`
    /// reports it.
    pub(super) async fn settle_downtime(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let mut left: HashMap<JobName, Vec<OpenSlot>> = HashMap::new();
        let mut dues = Dues::new();
        let people = self.people_of_backfills().await?;
        for slot in self.left_open(now).await? {
            let SlotKey { job, time } = slot.key.clone();
            if slot.is_backfill && has_due(&self.config.borrow(), &job, time.due_at) {
                let by = people.get(&slot.run_id).cloned();
                let facts = DueFacts { left: Some(slot.run_id), is_backfill: true, by, span: None };
                let of = dues.entry(JobEpoch { epoch: time.epoch, job }).or_default();
                of.insert(time.due_at, facts);
            } else {
                left.entry(job).or_default().push(slot);
            }
        }
        let epoch = self.due.epoch;
        let mut missed: Vec<Slot> = Vec::new();
        let periods = self.parts.ledger.read(|reader| reader.periods(None)).await?;
        let expressions = Expressions::default();
        for mut period in
            periods.into_iter().filter(|period| period.ended.is_none() && period.epoch == epoch)
        {
            let Some(schedule) = expressions.schedule(&period.schedule, &period.zone) else {
                continue;
            };
            let is_configured = self.has_schedule(&period);
            let recorded = self.parts.recovered.recorded_until.get(&period.job).copied();
            if let Some(until) = recorded.filter(|at| is_configured && *at > period.settled) {
                // A run of it would have a record; another run may have covered it.
                let why = "the ledger is older than the records, and they have no run of it";
                let until = until.min(now);
                let before = self.undecided(&period, &schedule, Some(until), until).await?;
                missed.extend(self.missed(&period, &schedule, &before, why));
                period.settled = until;
            }
            let too_late = if is_configured { self.too_late(&period.job, now) } else { Some(now) };
            let down = self.undecided(&period, &schedule, too_late, now).await?;
            if is_configured {
                let key = JobEpoch { epoch, job: period.job.clone() };
                for Due { due_at, span } in down {
                    if span.is_some() || !self.hold_until_start(&period.job, due_at, now) {
                        let of = dues.entry(key.clone()).or_default();
                        of.insert(due_at, DueFacts { span, ..DueFacts::default() });
                    }
                }
                // An open slot may lie in an earlier epoch.
                for slot in left.remove(&period.job).unwrap_or_default() {
                    let SlotKey { job, time } = slot.key;
                    let of = dues.entry(JobEpoch { epoch: time.epoch, job }).or_default();
                    let left = DueFacts { left: Some(slot.run_id), ..DueFacts::default() };
                    of.insert(time.due_at, left);
                }
                continue;
            }
            let why = "the daemon was down, and the schedule has changed since";
            missed.extend(self.missed(&period, &schedule, &down, why));
            self.claim_missed(&mut missed, CLAIM_BATCH, now).await?;
        }
        self.settle_ended(&mut missed, now).await?;
        self.claim_missed(&mut missed, 1, now).await?;
        self.parts.ledger.settle_ended().await?;
        let superseded = left.values().flatten().map(|slot| {
            let (state, reason) = (SlotState::Superseded, SUPERSEDED.to_owned());
            let row = self.row(slot.key.clone(), state, reason, &slot.zone);
            Slot { left: Some(slot.run_id.clone()), ..row }
        });
        let superseded: Vec<Slot> = superseded.collect();
        if !superseded.is_empty() {
            self.claim_slots(superseded, now).await?;
        }
        self.settle(&mut dues, Cause::DaemonDown, now).await
    }

    /// Records the due times of ended periods that no daemon decided: it held them for their jitter,
    /// or the clock was set back while it was down.
    async fn settle_ended(
        &mut self,
        missed: &mut Vec<Slot>,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let periods = self.parts.ledger.read(|reader| reader.periods(None)).await?;
        let expressions = Expressions::default();
        for period in periods {
            let Some(ended) = period.ended.filter(|ended| *ended > period.settled) else {
                continue;
            };
            let Some(schedule) = expressions.schedule(&period.schedule, &period.zone) else {
                continue;
            };
            let dues = self.undecided(&period, &schedule, Some(ended), ended).await?;
            let why = "the daemon stopped before it decided, and the clock was set back";
            missed.extend(self.missed(&period, &schedule, &dues, why));
            self.claim_missed(missed, CLAIM_BATCH, now).await?;
        }
        Ok(())
    }

    /// Returns the rows of due times of a period that were missed.
    fn missed(&self, period: &Period, schedule: &Schedule, dues: &[Due], why: &str) -> Vec<Slot> {
        let slots = dues.iter().map(|due| {
            let time = SlotTime { epoch: period.epoch, due_at: due.due_at };
            let key = SlotKey { job: period.job.clone(), time };
            let row = self.row(key, SlotState::Missed, why.to_owned(), &period.zone);
            Slot { span: due.span, ..row }
        });
        merge(slots.collect(), schedule)
    }

    /// Claims the collected missed slots in one transaction if there are at least `least` of them.
    async fn claim_missed(
        &mut self,
        missed: &mut Vec<Slot>,
        least: usize,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        if missed.len() < least {
            return Ok(());
        }
        self.claim_slots(std::mem::take(missed), now).await
    }

    /// Holds a due time whose start time has not come; returns whether it did.
    fn hold_until_start(
        &mut self,
        job: &JobName,
        due_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> bool {
        let config = self.config.borrow().clone();
        let starts_at = config.jobs.get(job).map_or(due_at, |job| starts_at(job, due_at));
        let (job, epoch) = (job.clone(), self.due.epoch);
        let held = Held { starts_at, due_at, job, epoch, span: None };
        starts_at > now && self.due.held.insert(held)
    }

    /// Returns the due times of a period up to `until` that have no row. Folds those up to `too_late`
    /// into a span if they are many, because none of them runs.
    ///
    /// A few due times after the settled time may have a row: a daemon decided them while it held an
    /// earlier one for its jitter.
    async fn undecided(
        &self,
        period: &Period,
        schedule: &Schedule,
        too_late: Option<DateTime<Utc>>,
        until: DateTime<Utc>,
    ) -> Result<Vec<Due>, DbError> {
        if schedule.next_after(period.settled).is_none_or(|due| due > until) {
            return Ok(Vec::new());
        }
        let (job, since, epoch) = (period.job.clone(), period.settled, period.epoch);
        let slots = self
            .parts
            .ledger
            .read(move |reader| reader.slots(Some(job.as_str()), Some(since), None))
            .await?;
        let of_period = slots.into_iter().filter(|slot| slot.epoch == epoch);
        let decided: Vec<SlotRow> = of_period.collect();
        let last = decided.iter().map(|row| row.until.unwrap_or(row.due_at)).max();
        let single = |after: DateTime<Utc>, until: DateTime<Utc>| {
            schedule.iter_after(after).take_while(move |due| *due <= until)
        };
        // After this time, no due time has a row.
        let mut from = last.map_or(since, |last| last.max(since)).min(until);
        let mut before: Vec<DateTime<Utc>> = single(since, from).collect();
        remove_decided(&mut before, &decided);
        let mut dues: Vec<Due> = before.into_iter().map(Due::single).collect();
        // Fold nothing in the hours in which a due time may be a repeated one.
        let hours = self.may_repeat(from, until).into_iter();
        let parts = hours.flat_map(|(begin, end)| [(begin, too_late), (end, None)]);
        for (end, too_late) in parts.chain([(until, too_late)]) {
            let end = end.min(until);
            let late = |from| fold(schedule, from, too_late?.min(end));
            while let Some(due) = late(from) {
                from = due.span.map_or(due.due_at, |span| span.until);
                dues.push(due);
            }
            if from < end {
                dues.extend(single(from, end).map(Due::single));
                from = end;
            }
        }
        Ok(dues)
    }

    /// Tells whether the configuration has the schedule of an open period.
    fn has_schedule(&self, period: &Period) -> bool {
        let config = self.config.borrow();
        let job = config.jobs.get(&period.job).filter(|job| job.enabled);
        job.and_then(|job| job.schedule.as_ref()).is_some_and(|schedule| {
            schedule.to_record() == period.schedule && schedule.zone().name() == period.zone
        })
    }

    /// Returns who asked for the backfills in the queue, as far as the ledger tells.
    async fn people_of_backfills(&self) -> Result<HashMap<RunId, Person>, DbError> {
        let queue = self.parts.ledger.read(|reader| reader.waiting_runs()).await?;
        let backfills = queue.into_iter().filter(|run| run.origin.trigger == Trigger::Backfill);
        Ok(backfills.filter_map(|run| Some((run.run_id, run.origin.by?))).collect())
    }

    /// Returns the open slots whose runs had not begun. Records how the runs of the other open slots
    /// ended, and ends the queued runs without an open slot.
    async fn left_open(&mut self, now: DateTime<Utc>) -> Result<Vec<OpenSlot>, DbError> {
        let mut left = Vec::new();
        let open =
            self.parts.ledger.read(|reader| Ok((reader.open_slots()?, reader.queue_rows()?)));
        let (slots, queue) = open.await?;
        let queued: HashSet<String> = queue.into_iter().map(|run| run.run_id).collect();
        // Skip the slots whose run is queued, waits for its next attempt, or is not recovered yet.
        for slot in slots {
            let run_id = slot.run_id.clone();
            if self.book.get(&run_id).is_some() {
                continue;
            }
            let has_begun = slot.state == SlotState::Running && !queued.contains(run_id.as_str());
            let end = recorded_end(&self.parts.host, &run_id);
            let end = end.or_else(|| has_begun.then(RecordedEnd::lost));
            match end {
                Some(end) => {
                    let (job, next) = (slot.key.job, new_run_id());
                    self.act(Input::FoundEnded { run_id, job, end, next }).await;
                }
                None => left.push(slot),
            }
        }
        let why = "the daemon stopped before its run began".to_owned();
        self.parts.ledger.end_without_slot(StopReason::Interrupted, why, now).await?;
        Ok(left)
    }
}

/// Removes the due times that have a row or lie in a span. Both lists are sorted by due time.
pub(super) fn remove_decided(dues: &mut Vec<DateTime<Utc>>, decided: &[SlotRow]) {
    let mut rows = decided.iter().peekable();
    dues.retain(|due_at| {
        let last = |row: &SlotRow| row.until.unwrap_or(row.due_at);
        while rows.next_if(|row| last(row) < *due_at).is_some() {}
        rows.peek().is_none_or(|row| row.due_at > *due_at)
    });
}

/// Tells whether the schedule of a job has a due time, even if the job is disabled.
pub(super) fn has_due(config: &Config, job: &JobName, due_at: DateTime<Utc>) -> bool {
    let schedule = config.jobs.get(job).and_then(|job| job.schedule.as_ref());
    let before = due_at - TimeDelta::milliseconds(1);
    schedule.is_some_and(|schedule| schedule.next_after(before) == Some(due_at))
}
