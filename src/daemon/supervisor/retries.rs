//! Repeats runs that failed before they changed anything.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::Supervisor;
use super::decisions::{Decision, NextAttempt};
use super::queue::{Waiting, WaitsFor};
use super::request;
use super::slots::{new_run_id, waits_for};
use crate::config::Catchup;
use crate::daemon::command::RunRequest;
use crate::daemon::disposition::ON_TIME;
use crate::domain::{RunId, StopReason, Trigger};
use crate::run::TriggerFacts;
use crate::store::{DbError, EndedRuns, QueuedRun, SlotState};

/// Why an attempt that the previous daemon left does not begin.
enum NoAttempt {
    TooLate(String),
    /// Its row lacks a part, or a part cannot be read. A default could act where a plan was asked for.
    Unreadable(String),
}

/// A run that failed before it changed anything.
pub(super) struct FailedRun {
    pub(super) facts: TriggerFacts,
    pub(super) request: RunRequest,
    pub(super) stop_reason: StopReason,
}

impl Supervisor {
    /// Queues the next attempt of a run that failed at `ended_at`, if its job allows another one and it
    /// is not too late for that. Returns whether there is another attempt.
    pub(super) async fn retry(
        &mut self,
        job: &str,
        run_id: &RunId,
        FailedRun { facts, request, stop_reason }: FailedRun,
        ended_at: DateTime<Utc>,
    ) -> bool {
        let retry = self.config.borrow().jobs.get(job).and_then(|job| job.retry);
        let Some(retry) = retry else { return false };
        if facts.attempt >= retry.max_attempts {
            return false;
        }
        let delay = retry.delay_after(facts.attempt);
        let delay = TimeDelta::from_std(delay).unwrap_or_default();
        let shown = self.parts.host.clock.now();
        // The delay counts from the last time that is believed (CRON-8).
        let now = if self.is_in_doubt(shown) { self.last_seen } else { shown };
        // The end lies in the future if the clock was set back, or was wrong for a while.
        let begins_at = ended_at.min(now) + delay;
        if self.is_too_late(job, begins_at, now).is_some() {
            return false;
        }
        let waiting = Waiting {
            run_id: new_run_id(),
            job: job.to_owned(),
            facts: TriggerFacts {
                trigger: Trigger::Retry,
                attempt: facts.attempt + 1,
                ..facts.clone()
            },
            request,
            waits_for: self.attempt_waits_for(job),
            is_caught_up: true,
            resumed: None,
            arrival: None,
        };
        let queued = QueuedRun { not_before: Some(begins_at), ..waiting.as_queued() };
        let reason = format!(
            "attempt {} failed ({stop_reason}); attempt {} begins at {}",
            facts.attempt,
            facts.attempt + 1,
            begins_at.format("%Y-%m-%d %H:%M:%S UTC")
        );
        tracing::info!(job, %run_id, next = %waiting.run_id, reason, "queued the next attempt of a run");
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
    /// daemon was down begins now, unless it is too late by the rule for slots (CRON-4). An attempt that
    /// cannot be read ends (STATE-7); its row stays in the queue unchanged.
    pub(super) async fn load_retries(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let rows = self.parts.ledger.read(|reader| Ok((reader.queue()?, reader.open_slots()?)));
        let (queue, slots) = rows.await?;
        let epochs = slots.into_iter().filter_map(|slot| Some((slot.run_id?, slot.epoch)));
        let epochs: HashMap<String, i64> = epochs.collect();
        let left =
            queue.into_iter().filter(|run| run.trigger == Trigger::Retry && run.ended.is_none());
        // Recovery ends an attempt that it could not clear away.
        let left = left.filter(|run| !self.unrecovered.runs.contains_key(&run.run_id));
        let left: Vec<QueuedRun> = left.collect();
        for run in left {
            // A run that began has left the queue, unless the daemon died in between.
            if self.parts.host.state.has_begun(&run.run_id) {
                self.parts.ledger.dequeue(run.run_id).await?;
                continue;
            }
            let epoch = epochs.get(run.run_id.as_str()).copied();
            match self.left_attempt(&run, epoch, now) {
                Ok((begins_at, waiting)) => {
                    self.retries.insert((begins_at, run.run_id), waiting);
                }
                Err(why) => self.end_left_attempt(run, why, now).await?,
            }
        }
        Ok(())
    }

    /// Returns an attempt that the previous daemon left, and when it begins.
    fn left_attempt(
        &self,
        run: &QueuedRun,
        epoch: Option<i64>,
        now: DateTime<Utc>,
    ) -> Result<(DateTime<Utc>, Waiting), NoAttempt> {
        let unreadable = |why: &str| NoAttempt::Unreadable(why.to_owned());
        let begins_at = run.not_before.ok_or_else(|| unreadable("the ledger lacks its time"))?;
        let request = request::read(run.request.as_deref()).map_err(|why| unreadable(&why))?;
        if let Some(why) = self.is_too_late(&run.job, begins_at, now) {
            return Err(NoAttempt::TooLate(why));
        }
        let facts = TriggerFacts {
            trigger: Trigger::Retry,
            scheduled_for: run.scheduled_for,
            epoch,
            attempt: run.attempt,
            by: request.by.clone(),
        };
        let waiting = Waiting {
            run_id: run.run_id.clone(),
            job: run.job.clone(),
            facts,
            request,
            waits_for: self.attempt_waits_for(&run.job),
            is_caught_up: true,
            resumed: None,
            arrival: None,
        };
        Ok((begins_at, waiting))
    }

    /// Ends an attempt that the previous daemon left and that does not begin.
    async fn end_left_attempt(
        &mut self,
        run: QueuedRun,
        why: NoAttempt,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let QueuedRun { run_id, job, attempt, .. } = run;
        let reason = match why {
            NoAttempt::TooLate(why) => format!("attempt {attempt} did not begin: {why}"),
            NoAttempt::Unreadable(why) => {
                let reason = format!("attempt {attempt} did not begin: {why}");
                tracing::error!(job, %run_id, reason, "a waiting attempt cannot be read");
                let degraded = format!("the run {run_id} of the job `{job}` has ended: {reason}");
                self.parts.degraded.push(degraded);
                reason
            }
        };
        let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
        let ended = EndedRuns { runs: vec![run_id], state, stop_reason, reason };
        self.parts.ledger.end_waiting(ended, now).await
    }

    /// Returns which runs of its job an attempt waits for.
    fn attempt_waits_for(&self, job: &str) -> WaitsFor {
        let config = self.config.borrow();
        let job = config.jobs.get(job);
        job.map_or(WaitsFor::AllRuns, |job| waits_for(job, Trigger::Retry, true))
    }

    /// Tells why an attempt that should have begun at `begins_at` is too late; `None` if it
    /// is not, or if its job is not configured.
    pub(super) fn is_too_late(
        &self,
        job: &str,
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
