//! Settles at the start of the daemon what came due before it.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};

use super::slots::{Dues, new_run_id};
use super::{CLAIM_BATCH, Supervisor};
use crate::daemon::disposition::Cause;
use crate::domain::{Outcome, RunId, StopReason};
use crate::schedule::Schedule;
use crate::store::{DbError, Period, ReadLine, RunSummary, Slot, SlotRow, SlotState, read_lines};

impl Supervisor {
    /// Settles what the previous daemon left: decides every slot up to `now` that came due while the
    /// daemon was down, and again the slots whose runs had not begun. Skips a schedule that the
    /// ledger holds in an invalid form; `audit` reports it.
    pub(super) async fn settle_downtime(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let mut left: HashMap<String, Vec<SlotRow>> = HashMap::new();
        for slot in self.left_open(now).await? {
            left.entry(slot.job.clone()).or_default().push(slot);
        }
        let epoch = self.epoch;
        let periods = self.parts.ledger.read(|reader| reader.periods(None)).await?;
        let mut dues = Dues::new();
        for period in
            periods.into_iter().filter(|period| period.ended.is_none() && period.epoch == epoch)
        {
            let Some(schedule) = Schedule::from_record(&period.schedule, &period.zone) else {
                continue;
            };
            let down: Vec<DateTime<Utc>> =
                schedule.iter_after(period.settled).take_while(|due| *due <= now).collect();
            if self.has_schedule(&period) {
                let key = (epoch, period.job.clone());
                if !down.is_empty() {
                    let decided = self.decided_since(&period).await?;
                    let new = down.into_iter().filter(|due_at| !decided.contains(due_at));
                    dues.entry(key).or_default().extend(new.map(|due_at| (due_at, None)));
                }
                // An open slot may lie in an earlier epoch.
                for slot in left.remove(&period.job).unwrap_or_default() {
                    let of = dues.entry((slot.epoch, slot.job.clone())).or_default();
                    of.insert(slot.due_at, run_of(&slot));
                }
                continue;
            }
            for batch in down.chunks(CLAIM_BATCH) {
                let why = "the daemon was down, and the schedule has changed since";
                let slots = batch.iter().map(|due_at| {
                    let missed = (SlotState::Missed, why.to_owned(), None);
                    self.row((&period.job, epoch), *due_at, missed, &period.zone)
                });
                let slots: Vec<Slot> = slots.collect();
                self.claim(slots, now).await?;
            }
        }
        let superseded = left.values().flatten().map(|slot| {
            let why = "the schedule changed before its run began".to_owned();
            let state = (SlotState::Superseded, why, None);
            let row = self.row((&slot.job, slot.epoch), slot.due_at, state, &slot.zone);
            Slot { left: run_of(slot), ..row }
        });
        let superseded: Vec<Slot> = superseded.collect();
        if !superseded.is_empty() {
            self.claim(superseded, now).await?;
        }
        self.settle(&mut dues, Cause::DaemonDown, now).await
    }

    /// Returns the due times after the settled part of an open period that have a row: they were
    /// decided while an earlier one was still held for its jitter.
    async fn decided_since(&self, period: &Period) -> Result<HashSet<DateTime<Utc>>, DbError> {
        let (job, since, epoch) = (period.job.clone(), period.settled, period.epoch);
        let slots = self
            .parts
            .ledger
            .read(move |reader| reader.slots(Some(&job), Some(since), None))
            .await?;
        Ok(slots.into_iter().filter(|slot| slot.epoch == epoch).map(|slot| slot.due_at).collect())
    }

    /// Tells whether the configuration has the schedule of an open period.
    fn has_schedule(&self, period: &Period) -> bool {
        let config = self.config.borrow();
        let job = config.jobs.get(period.job.as_str()).filter(|job| job.enabled);
        job.and_then(|job| job.schedule.as_ref()).is_some_and(|schedule| {
            schedule.to_record() == period.schedule && schedule.zone().name() == period.zone
        })
    }

    /// Returns the slots that the previous daemon left before their runs began, with the ids that
    /// their runs would get. Settles the other open slots, and ends the queued runs that persons
    /// requested.
    async fn left_open(&mut self, now: DateTime<Utc>) -> Result<Vec<SlotRow>, DbError> {
        let mut left = Vec::new();
        for mut slot in self.parts.ledger.read(|reader| reader.open_slots()).await? {
            let Some(run_id) = run_of(&slot) else { continue };
            if let Some(reason) = self.end_of(&run_id) {
                let ends = (SlotState::Ran, StopReason::Interrupted);
                self.parts.ledger.end_waiting(vec![run_id], ends, reason, now).await?;
                continue;
            }
            // A directory without a transcript is not used again.
            if self.parts.host.state.find_run(&run_id).is_some() {
                let why = "the daemon stopped before its run began".to_owned();
                self.parts.ledger.end_queued(run_id, StopReason::Interrupted, why, now).await?;
                slot.run_id = Some(new_run_id().to_string());
            }
            left.push(slot);
        }
        let why = "the daemon stopped before its run began".to_owned();
        self.parts.ledger.end_requested((StopReason::Interrupted, why), now).await?;
        Ok(left)
    }

    /// Returns how the run of an open slot ended, for the row of the slot; `None` if its transcript
    /// does not exist or is empty, so that the run had not begun.
    fn end_of(&self, run_id: &RunId) -> Option<String> {
        let transcript = self.parts.host.state.find_run(run_id)?.transcript();
        let unreadable = |why: &dyn std::fmt::Display| {
            Some(format!("{} (its transcript cannot be read: {why})", Outcome::Interrupted))
        };
        let lines = match read_lines(&transcript) {
            Ok(lines) => lines,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return unreadable(&error),
        };
        let mut problem = None;
        let lines: Vec<ReadLine> =
            lines.map_while(|line| line.map_err(|error| problem = Some(error)).ok()).collect();
        match (RunSummary::fold(&lines), problem) {
            (Some(row), _) => {
                let outcome = row.outcome.unwrap_or(Outcome::Interrupted);
                let stop_reason = row.stop_reason.unwrap_or(StopReason::Interrupted);
                Some(format!("{outcome} ({stop_reason})"))
            }
            (None, Some(problem)) => unreadable(&problem),
            (None, None) if lines.is_empty() => None,
            (None, None) => unreadable(&"it does not begin with `session_start`"),
        }
    }
}

fn run_of(slot: &SlotRow) -> Option<RunId> {
    slot.run_id.as_deref().and_then(|id| RunId::parse(id).ok())
}
