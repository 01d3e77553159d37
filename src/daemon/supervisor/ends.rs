//! Records in the ledger how runs and their slots end.

use chrono::{DateTime, Utc};

use super::Supervisor;
use crate::domain::{Outcome, RunId, StopReason};
use crate::store::{DbError, EndedRuns, Pause, RunEnd, SlotState};

impl Supervisor {
    /// Records the end of a run in the ledger, which may pause its job.
    pub(super) async fn record_end(
        &mut self,
        job: String,
        run_id: RunId,
        (outcome, stop_reason): (Outcome, StopReason),
        now: DateTime<Utc>,
    ) {
        let reason = format!("{outcome} ({stop_reason})");
        let end = self.end_of_run(job, run_id, (outcome, stop_reason), reason);
        match self.parts.ledger.end_run(end, now).await {
            Ok(pause) => pause.into_iter().for_each(|pause| self.paused(pause)),
            Err(error) => self.end_failed(&error),
        }
    }

    /// Returns the end of a run for the ledger. `reason` is for the rows of its slots.
    pub(super) fn end_of_run(
        &self,
        job: String,
        run_id: RunId,
        (outcome, stop_reason): (Outcome, StopReason),
        reason: String,
    ) -> RunEnd {
        let state = match stop_reason {
            StopReason::PreflightFailed => SlotState::Blocked,
            StopReason::NotNeeded => SlotState::NotNeeded,
            _ => SlotState::Ran,
        };
        let config = self.config.borrow();
        let pause_after = config.jobs.get(job.as_str()).and_then(|job| job.pause_after_failures);
        RunEnd { run_id, job, outcome, state, reason, pause_after }
    }

    /// Applies the pause of a job whose runs failed too often.
    pub(super) fn paused(&mut self, Pause { job, note, .. }: Pause) {
        tracing::warn!(job, note, "the job is paused");
        self.pauses.insert(job);
    }

    /// Records the end of queued runs, and of their slots.
    pub(super) async fn end_waiting(&mut self, ended: EndedRuns, now: DateTime<Utc>) {
        let count = ended.runs.len();
        if let Err(error) = self.parts.ledger.end_waiting(ended, now).await {
            tracing::error!(count, %error, "failed to record the end of queued runs; the next start settles them");
            self.disk_failed(&format!("the ledger: {error}"));
        }
    }

    /// Writes the disposition of a run's slots, unless it is final already.
    pub(super) async fn decide(
        &mut self,
        run_id: RunId,
        state: SlotState,
        reason: String,
        now: DateTime<Utc>,
    ) {
        if let Err(error) = self.parts.ledger.decide(run_id, state, reason, now).await {
            self.end_failed(&error);
        }
    }

    fn end_failed(&mut self, error: &DbError) {
        tracing::error!(%error, "failed to record the state of a slot; the next start settles it");
        self.disk_failed(&format!("the ledger: {error}"));
    }
}
