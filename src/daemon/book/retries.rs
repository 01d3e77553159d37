//! Repeats runs that failed before they changed anything.

use chrono::{DateTime, TimeDelta, Utc};

use super::effect::{Change, Effect, NextAttempt};
use super::{Book, Entry, Moment, Phase, Waiting};
use crate::daemon::rules::{attempt_waits_for, why_too_late};
use crate::domain::{JobName, Origin, RunId, StopReason};

/// A run that failed before it changed anything.
#[derive(Debug)]
pub(in crate::daemon) struct FailedRun {
    pub(in crate::daemon) origin: Origin,
    pub(in crate::daemon) stop_reason: StopReason,
}

impl Book {
    /// Delays the next attempt of a run that failed at `ended_at`. Returns what records it; `None` if
    /// its job allows no other attempt, or if it is too late for one. `next` is the id of the attempt.
    pub(in crate::daemon) fn repeat(
        &mut self,
        job: &JobName,
        run_id: &RunId,
        FailedRun { origin, stop_reason }: FailedRun,
        ended_at: DateTime<Utc>,
        next: RunId,
        moment: &Moment<'_>,
    ) -> Option<Effect> {
        let config = moment.config.jobs.get(job)?;
        let retry = config.retry.filter(|retry| origin.attempt < retry.max_attempts)?;
        let delay = TimeDelta::from_std(retry.delay_after(origin.attempt)).unwrap_or_default();
        // The end lies in the future if the clock was set back, or was wrong for a while.
        let begins_at = ended_at.min(moment.believed) + delay;
        if why_too_late(config, begins_at, moment.believed).is_some() {
            return None;
        }
        let reason = format!(
            "attempt {} failed ({stop_reason}); attempt {} begins at {}",
            origin.attempt,
            origin.attempt + 1,
            begins_at.format("%Y-%m-%d %H:%M:%S UTC")
        );
        tracing::info!(job = job.as_str(), %run_id, %next, reason, "queued the next attempt of a run");
        let waits_for = attempt_waits_for(Some(config));
        let (job, origin) = (job.clone(), origin.next_attempt());
        let attempt = Waiting { run_id: next, job, origin, waits_for, ignores_overlap: true };
        let queued = attempt.to_row(Some(begins_at));
        self.delay(attempt, begins_at);
        let next = NextAttempt { failed: run_id.clone(), queued, reason };
        Some(Effect::Keep(Change::Retry(Box::new(next))))
    }

    pub(super) fn delay(&mut self, attempt: Waiting, begins_at: DateTime<Utc>) {
        let (run_id, waits_for) = (attempt.run_id.clone(), attempt.waits_for);
        self.insert(run_id, Entry::new(attempt, Phase::Delayed { begins_at, waits_for }));
    }

    /// Queues the attempts whose time has come.
    pub(super) fn queue_attempts(&mut self, now: DateTime<Utc>) {
        while let Some((begins_at, run_id)) = self.delayed.first().cloned()
            && begins_at <= now
        {
            let Some(Phase::Delayed { waits_for, .. }) =
                self.runs.get(&run_id).map(|run| &run.phase)
            else {
                return;
            };
            let phase = Phase::Queued { waits_for: *waits_for, number: None, resumed: None };
            self.set_phase(&run_id, phase);
        }
    }
}
