//! Repeats runs that failed before they changed anything.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::Supervisor;
use super::decisions::{Decision, NextAttempt};
use super::queue::{Waiting, WaitsFor};
use super::slots::{new_run_id, waits_for};
use crate::config::Catchup;
use crate::daemon::disposition::ON_TIME;
use crate::domain::{JobName, Origin, RunId, StopReason, Trigger};
use crate::store::{DbError, EndedRuns, QueuedRun, SlotState};

/// A run that failed before it changed anything.
pub(super) struct FailedRun {
    pub(super) origin: Origin,
    pub(super) stop_reason: StopReason,
}

impl Supervisor {
    /// Queues the next attempt of a run that failed at `ended_at`, if its job allows another one and it
    /// is not too late for that. Returns whether there is another attempt.
    pub(super) async fn retry(
        &mut self,
        job: &JobName,
        run_id: &RunId,
        FailedRun { origin, stop_reason }: FailedRun,
        ended_at: DateTime<Utc>,
    ) -> bool {
        let retry = self.config.borrow().jobs.get(job).and_then(|job| job.retry);
        let Some(retry) = retry else { return false };
        if origin.attempt >= retry.max_attempts {
            return false;
        }
        let delay = retry.delay_after(origin.attempt);
        let delay = TimeDelta::from_std(delay).unwrap_or_default();
        let shown = self.parts.host.clock.now();
        // The delay counts from the last time that is believed (CRON-8).
        let now = if self.is_in_doubt(shown) { self.last_seen } else { shown };
        // The end lies in the future if the clock was set back, or was wrong for a while.
        let begins_at = ended_at.min(now) + delay;
        if self.is_too_late(job, begins_at, now).is_some() {
            return false;
        }
        let next = origin.next_attempt();
        let waits_for = self.attempt_waits_for(job);
        let waiting = Waiting::new(new_run_id(), job.clone(), next, waits_for, true);
        let queued = waiting.to_row(Some(begins_at));
        let reason = format!(
            "attempt {} failed ({stop_reason}); attempt {} begins at {}",
            origin.attempt,
            waiting.origin.attempt,
            begins_at.format("%Y-%m-%d %H:%M:%S UTC")
        );
        tracing::info!(job = job.as_str(), %run_id, next = %waiting.run_id, reason, "queued the next attempt of a run");
        let next = NextAttempt { failed: run_id.clone(), queued, reason };
        self.decide(Decision::Retry(Box::new(next), now)).await;
        self.retries.insert((begins_at, waiting.run_id.clone()), waiting);
        true
    }

    /// Queues the attempts whose time has come.
    pub(super) fn begin_retries(&mut self, now: DateTime<Utc>) {
        while self.retries.first_key_value().is_some_and(|((at, _), _)| *at <= now)
            && let Some((_, waiting)) = self.retries.pop_first()
        {
            self.queue.push(waiting);
        }
    }

    /// Keeps the delay of each waiting attempt when the clock is set back from `before` to `now`.
    pub(super) async fn move_retries(
        &mut self,
        before: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let waiting = std::mem::take(&mut self.retries).into_iter();
        let moved = waiting.map(|((begins_at, run_id), waiting)| {
            let delay = (begins_at - before).max(TimeDelta::zero());
            ((begins_at.min(now + delay), run_id), waiting)
        });
        self.retries = moved.collect();
        self.parts.ledger.set_not_before(self.retries.keys().cloned().collect()).await
    }

    /// Loads the attempts that the previous daemon left. An attempt that should have begun while the
    /// daemon was down begins now, unless it is too late by the rule for slots (CRON-4).
    pub(super) async fn load_retries(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let queue = self.parts.ledger.read(|reader| reader.waiting_runs()).await?;
        let left = queue.into_iter().filter(|run| run.origin.trigger == Trigger::Retry);
        // Recovery ends an attempt that it could not clear away.
        let left = left.filter(|run| !self.unrecovered.runs.contains_key(&run.run_id));
        let left: Vec<QueuedRun> = left.collect();
        for QueuedRun { run_id, job, origin, not_before, .. } in left {
            // A run that began has left the queue, unless the daemon died in between.
            if self.parts.host.state.has_begun(&run_id) {
                self.parts.ledger.dequeue(run_id).await?;
                continue;
            }
            // The ledger has the time of each attempt.
            let begins_at = not_before.unwrap_or(now);
            if let Some(why) = self.is_too_late(&job, begins_at, now) {
                let reason = format!("attempt {} did not begin: {why}", origin.attempt);
                let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
                let ended = EndedRuns { runs: vec![run_id], state, stop_reason, reason };
                self.parts.ledger.end_waiting(ended, now).await?;
                continue;
            }
            let waits_for = self.attempt_waits_for(&job);
            let waiting = Waiting::new(run_id.clone(), job, origin, waits_for, true);
            self.retries.insert((begins_at, run_id), waiting);
        }
        Ok(())
    }

    /// Returns which runs of its job an attempt waits for.
    fn attempt_waits_for(&self, job: &JobName) -> WaitsFor {
        let config = self.config.borrow();
        let job = config.jobs.get(job);
        job.map_or(WaitsFor::AllRuns, |job| waits_for(job, Trigger::Retry, true))
    }

    /// Tells why an attempt that should have begun at `begins_at` is too late; `None` if it
    /// is not, or if its job is not configured.
    pub(super) fn is_too_late(
        &self,
        job: &JobName,
        begins_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Option<String> {
        let config = self.config.borrow();
        let job = config.jobs.get(job)?;
        let late = (now - begins_at).to_std().unwrap_or_default();
        let window = match job.catchup {
            Catchup::None => ON_TIME,
            Catchup::Latest | Catchup::All => job.catchup_window.max(ON_TIME),
        };
        let text = |of: Duration| humantime::format_duration(Duration::from_secs(of.as_secs()));
        (late > window).then(|| {
            let rule = match job.catchup {
                Catchup::None => "and the job does not catch up".to_owned(),
                Catchup::Latest | Catchup::All => {
                    format!("outside the catch-up window of {}", text(window))
                }
            };
            format!("the daemon was down; decided {} late, {rule}", text(late))
        })
    }

    /// Removes an attempt that waits for its time; returns whether it did.
    pub(super) fn forget_retry(&mut self, run_id: &RunId) -> bool {
        let before = self.retries.len();
        self.retries.retain(|(_, of), _| of != run_id);
        self.retries.len() < before
    }
}
