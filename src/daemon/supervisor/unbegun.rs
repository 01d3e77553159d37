//! Runs whose first line could not be written. While the disk cannot be written, such a run waits like
//! the slots that come due (STATE-4): it is not the run's fault that another one filled the disk.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Supervisor;
use super::queue::{Waiting, WaitsFor};
use super::slots::waits_for;
use crate::config::{Catchup, Job};
use crate::daemon::disposition::ON_TIME;
use crate::domain::{JobName, Origin, RunId, StopReason};
use crate::run::RunError;
use crate::store::{EndedRuns, SlotState};

/// A run that could not be recorded.
pub(super) struct UnrecordedRun {
    pub(super) run_id: RunId,
    pub(super) job: JobName,
    /// The origin with which the run can begin again; `None` if it was cancelled.
    pub(super) again: Option<Origin>,
    pub(super) is_caught_up: bool,
}

impl Supervisor {
    /// Queues a run again that could not begin because the disk could not be written. Ends a run that
    /// has begun, and one for which it is too late.
    pub(super) async fn on_unrecorded(
        &mut self,
        run: UnrecordedRun,
        error: &RunError,
        now: DateTime<Utc>,
    ) {
        tracing::error!(job = run.job.as_str(), run_id = %run.run_id, %error, "failed to record a run");
        self.disk_failed(error);
        if error.is_disk_fault()
            && let Some(waiting) = self.waiting_again(&run, now)
            && self.clear_away(&run.run_id).await
        {
            let (state, reason) = (SlotState::Queued, format!("waits for the disk: {error}"));
            // If this fails, the slot stays `running`, and the run is in the queue of the ledger.
            let written = self.parts.ledger.decide(run.run_id, state, reason, now).await;
            if let Err(error) = written {
                self.disk_failed(&format!("the ledger: {error}"));
            }
            self.queue.push(waiting);
            return;
        }
        let UnrecordedRun { run_id, job, .. } = run;
        self.add_unrecovered(run_id.clone(), error);
        self.last_outcomes.insert(job, false);
        let state = SlotState::Missed;
        let reason = format!("did not run to its end: {error}");
        let (runs, stop_reason) = (vec![run_id.clone()], StopReason::RecordFailed);
        self.end_waiting(EndedRuns { runs, state, stop_reason, reason }, now).await;
        if self.parts.host.state.has_begun(&run_id) {
            self.give_up(vec![run_id], &error.to_string()).await;
        }
    }

    /// Returns the run for the queue; `None` if it has begun, must not begin any more, or has waited for
    /// longer than its job catches up.
    fn waiting_again(&self, run: &UnrecordedRun, now: DateTime<Utc>) -> Option<Waiting> {
        let origin = run.again.clone()?;
        if self.stopping.is_some() || self.parts.host.state.has_begun(&run.run_id) {
            return None;
        }
        let config = self.config.borrow();
        let job = config.jobs.get(&run.job)?;
        let waited = (now - run.run_id.made_at()?).to_std();
        if waited.is_ok_and(|waited| waited > window(job)) {
            return None;
        }
        let waits_for = match origin.slot {
            Some(_) => waits_for(job, origin.trigger, run.is_caught_up),
            None => WaitsFor::Nothing,
        };
        let (run_id, job) = (run.run_id.clone(), run.job.clone());
        Some(Waiting::new(run_id, job, origin, waits_for, run.is_caught_up))
    }

    /// Removes what a run left that did not begin; returns whether it is gone.
    async fn clear_away(&self, run_id: &RunId) -> bool {
        let (state, id) = (self.parts.host.state.clone(), run_id.clone());
        let removed = tokio::task::spawn_blocking(move || state.remove_unbegun(&id)).await;
        match removed {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%run_id, %error, "failed to remove a run that did not begin");
                false
            }
            Err(error) => {
                tracing::error!(%run_id, %error, "the removal of a run that did not begin panicked");
                false
            }
        }
    }
}

/// Returns how long a run may wait for the disk.
fn window(job: &Job) -> Duration {
    match job.catchup {
        Catchup::None => ON_TIME,
        Catchup::Latest | Catchup::All => job.catchup_window.max(ON_TIME),
    }
}
