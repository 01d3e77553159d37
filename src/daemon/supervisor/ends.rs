//! Handles the ends of runs, and records them in the ledger.

use chrono::{DateTime, Utc};

use super::decisions::Decision;
use super::pauses::is_good;
use super::retries::FailedRun;
use super::unbegun::UnrecordedRun;
use super::{Active, Supervisor};
use crate::domain::{JobName, Outcome, RunId, SessionEnd, StopReason};
use crate::run::{Ended, RunError, RunExit};
use crate::store::{EndedRuns, RunEnd, SlotState};

impl Supervisor {
    /// Handles the end of the task of a run, and starts queued runs.
    pub(super) async fn on_ended(
        &mut self,
        joined: Result<(RunId, Result<Ended, RunError>), tokio::task::JoinError>,
    ) {
        let (run_id, result) = match joined {
            Ok(ended) => ended,
            Err(error) => {
                // `catch_unwind` catches a panic of the run itself, so the code around it panicked.
                tracing::error!(%error, "the task of a run panicked");
                return;
            }
        };
        let Some(active) = self.active.remove(&run_id) else {
            tracing::error!(%run_id, "the task of an inactive run ended");
            self.add_unrecovered(run_id, &"its task ended unexpectedly");
            return;
        };
        self.queue.ended(&active.job, active.is_caught_up);
        let is_replaceable = active.is_replaceable();
        // A stop of the daemon does not end the run for good.
        let stop = active.stop.borrow().clone();
        let stop = stop.filter(|stop| stop.reason != StopReason::Interrupted);
        let ended_id = run_id.clone();
        let Active { job, origin, is_caught_up, is_resumed, .. } = active;
        let now = self.parts.host.clock.now();
        match result {
            // Its slot stays `running`, and the next start continues it.
            Ok(Ended { exit: RunExit::Suspended, .. }) => {
                tracing::info!(job = job.as_str(), %run_id, "run suspended");
            }
            Ok(ended) => {
                self.unrecovered.forget(&run_id);
                let (outcome, stop_reason) = (ended.end.outcome, ended.end.stop_reason);
                self.note_end(&job, &run_id, &ended.end);
                let error = ended.end.error.as_deref().unwrap_or("unknown error");
                match &ended.exit {
                    RunExit::Suspended | RunExit::Complete => {
                        if stop_reason == StopReason::RecordFailed {
                            self.disk_failed(&format!("the record of a run: {error}"));
                        }
                    }
                    RunExit::OwesEnd(error) => {
                        self.disk_failed(&format!("the end of a run: {error}"));
                        self.add_unsettled(run_id.clone(), error);
                    }
                    RunExit::RecordFailed => {
                        self.disk_failed(&format!("the record of a run: {error}"));
                        self.add_unrecovered(run_id.clone(), &error);
                        self.give_up(vec![run_id.clone()], error).await;
                    }
                }
                let may_retry = outcome == Outcome::Failed
                    && !ended.has_started_change
                    && ended.exit != RunExit::RecordFailed
                    && stop.is_none();
                let failed = FailedRun { origin, stop_reason };
                if !(may_retry && self.retry(&job, &run_id, failed, now).await) {
                    self.record_end(job, run_id, outcome, stop_reason, now).await;
                }
            }
            Err(RunError::Panicked) => self.on_panic(job, run_id, now).await,
            // It has begun before, so its slot stays `running`.
            Err(error) if is_resumed => {
                tracing::error!(job = job.as_str(), %run_id, %error, "failed to continue a run");
                if error.is_disk_fault() {
                    self.disk_failed(&error);
                }
                self.add_unrecovered(run_id, &error);
            }
            Err(RunError::OverBudget(reason)) => {
                tracing::warn!(job = job.as_str(), %run_id, reason, "the run did not begin");
                let runs = vec![run_id];
                let (state, stop_reason) = (SlotState::OverBudget, StopReason::BudgetExceeded);
                self.end_waiting(EndedRuns { runs, state, stop_reason, reason }, now).await;
            }
            Err(error) => {
                let again = stop.is_none().then_some(origin);
                let run = UnrecordedRun { run_id, job, again, is_caught_up };
                self.on_unrecorded(run, &error, now).await;
            }
        }
        self.unrecovered.keep(&ended_id, is_replaceable, stop);
        self.fill().await;
    }

    /// Logs the end of a run, and keeps the state of its job for `status`.
    fn note_end(&mut self, job: &JobName, run_id: &RunId, end: &SessionEnd) {
        let SessionEnd { outcome, stop_reason, duration_ms, .. } = end;
        let error = end.error.as_deref();
        match outcome {
            Outcome::Failed | Outcome::Interrupted => {
                tracing::warn!(job = job.as_str(), %run_id, %outcome, %stop_reason, duration_ms, error, "run failed");
            }
            _ => {
                tracing::info!(job = job.as_str(), %run_id, %outcome, %stop_reason, duration_ms, "run ended")
            }
        }
        self.last_outcomes.extend(is_good(*outcome).map(|is_good| (job.clone(), is_good)));
    }

    /// Records the end of a run in the ledger, which may pause its job.
    pub(super) async fn record_end(
        &mut self,
        job: JobName,
        run_id: RunId,
        outcome: Outcome,
        stop_reason: StopReason,
        now: DateTime<Utc>,
    ) {
        let reason = format!("{outcome} ({stop_reason})");
        let end = self.end_of_run(job, run_id, outcome, stop_reason, reason);
        self.decide(Decision::EndRun(end, now)).await;
    }

    /// Returns the end of a run for the ledger. `reason` is for the rows of its slots.
    pub(super) fn end_of_run(
        &self,
        job: JobName,
        run_id: RunId,
        outcome: Outcome,
        stop_reason: StopReason,
        reason: String,
    ) -> RunEnd {
        let state = SlotState::of_ended(stop_reason);
        let config = self.config.borrow();
        let pause_after = config.jobs.get(&job).and_then(|job| job.pause_after_failures);
        RunEnd { run_id, job, outcome, state, reason, pause_after }
    }

    /// Records that a run begins or continues; returns whether the ledger could be written. Otherwise,
    /// the run must not begin.
    pub(super) async fn record_running(&mut self, run_id: RunId, now: DateTime<Utc>) -> bool {
        let (state, reason) = (SlotState::Running, "running".to_owned());
        let written = self.parts.ledger.decide(run_id, state, reason, now).await;
        written.inspect_err(|error| self.disk_failed(&format!("the ledger: {error}"))).is_ok()
    }
}
