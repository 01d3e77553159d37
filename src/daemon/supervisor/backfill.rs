//! Runs a job for due times of the past.

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};

use super::Supervisor;
use super::downtime::remove_decided;
use super::slots::{DueFacts, Dues, JobEpoch};
use crate::daemon::command::{BackfillRequest, BackfillScope, CommandError};
use crate::daemon::disposition::Cause;
use crate::domain::JobName;
use crate::store::SlotRow;

/// The maximum number of slots of a job that may wait after a backfill.
const MAX_SLOTS: usize = 1000;

/// The maximum number of due times in the period of a backfill.
const MAX_DUE_TIMES: usize = 100_000;

impl Supervisor {
    /// Queues a run for each due time that a request takes; returns their number.
    pub(super) async fn backfill(
        &mut self,
        request: BackfillRequest,
    ) -> Result<usize, CommandError> {
        if self.stopping.is_some() {
            return Err(CommandError::Stopping);
        }
        // Now every due time has its row, or waits for its jitter.
        self.tick().await;
        let now = self.parts.host.clock.now();
        let (job, from, to) = (request.job.clone(), request.from, request.to);
        let due_times = self.due_times(&job, from, to, now)?;
        let rows =
            self.parts.ledger.read(move |reader| reader.slots(Some(&job), Some(from), Some(to)));
        let rows = rows.await.map_err(|error| CommandError::Unrecorded(error.to_string()))?;
        let count = match request.scope {
            BackfillScope::WithoutSlot => self.run_undecided(request, due_times, rows, now).await?,
            BackfillScope::FailedOrMissed => self.run_again(request, due_times, rows, now).await?,
        };
        self.fill().await;
        Ok(count)
    }

    /// Queues a run for each due time that has no slot; returns their number.
    async fn run_undecided(
        &mut self,
        request: BackfillRequest,
        due_times: Vec<DateTime<Utc>>,
        mut rows: Vec<SlotRow>,
        now: DateTime<Utc>,
    ) -> Result<usize, CommandError> {
        let BackfillRequest { job, by, .. } = request;
        let of = JobName::parse(&job).map_err(|_| CommandError::NoJob(job.clone()))?;
        rows.sort_by_key(|row| row.due_at);
        let mut open = due_times;
        remove_decided(&mut open, &rows);
        let held = self.due.held.iter().filter(|held| held.job.as_str() == job);
        let held: HashSet<DateTime<Utc>> = held.map(|held| held.due_at).collect();
        open.retain(|due_at| !held.contains(due_at));
        let count = open.len();
        self.check_room(&job, count, "due times without a slot")?;
        if count == 0 {
            return Ok(0);
        }
        let facts = DueFacts { is_backfill: true, by, ..DueFacts::default() };
        let of_job = open.into_iter().map(|due_at| (due_at, facts.clone())).collect();
        let mut dues = Dues::from([(JobEpoch { epoch: self.due.epoch, job: of }, of_job)]);
        let settled = self.settle(&mut dues, Cause::DaemonDown, now).await;
        settled.map_err(|error| CommandError::Unrecorded(error.to_string()))?;
        Ok(count)
    }

    /// Checks that the job may have `count` more slots in the queue; `what` names them.
    ///
    /// *Errors*: they are too many.
    pub(super) fn check_room(
        &self,
        job: &str,
        count: usize,
        what: &str,
    ) -> Result<(), CommandError> {
        if count > MAX_SLOTS {
            return Err(CommandError::Invalid(format!(
                "the period has {count} {what}, and a backfill takes at most {MAX_SLOTS}"
            )));
        }
        let waiting = self.book.slots_of(job);
        if waiting + count > MAX_SLOTS {
            return Err(CommandError::Full(waiting));
        }
        Ok(())
    }

    /// Returns the due times of a job in a period, whose bounds are inclusive.
    fn due_times(
        &self,
        job: &str,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Vec<DateTime<Utc>>, CommandError> {
        let config = self.config.borrow().clone();
        let found = config.jobs.get(job).ok_or_else(|| CommandError::NoJob(job.to_owned()))?;
        let invalid = |why: String| Err(CommandError::Invalid(why));
        let Some(schedule) = &found.schedule else {
            return invalid(format!("the job `{job}` has no schedule"));
        };
        if to > now {
            return invalid(format!("the period ends in the future: {}", to.to_rfc3339()));
        }
        if from > to {
            return invalid("the period ends before it begins".to_owned());
        }
        let before = from.checked_sub_signed(TimeDelta::milliseconds(1)).unwrap_or(from);
        let due_times = schedule.iter_after(before).take_while(|due_at| *due_at <= to);
        let due_times: Vec<_> = due_times.take(MAX_DUE_TIMES + 1).collect();
        if due_times.len() > MAX_DUE_TIMES {
            return invalid(format!("the period has more than {MAX_DUE_TIMES} due times"));
        }
        Ok(due_times)
    }
}
