//! Queues the runs again that people requested and that the previous daemon left before they began.
//! Like the run of a slot, such a run is not lost with the daemon (STATE-1).

use chrono::{DateTime, Utc};

use super::Supervisor;
use super::queue::{Waiting, WaitsFor};
use crate::domain::{StopReason, Trigger};
use crate::store::{DbError, EndedRuns, QueuedRun, SlotState};

impl Supervisor {
    /// Loads the requested runs that the previous daemon left in the queue, the oldest first. Ends those
    /// that are too late by the rule for slots (CRON-4).
    pub(super) async fn load_requested(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let queue = self.parts.ledger.read(|reader| reader.waiting_runs()).await?;
        let mut left: Vec<QueuedRun> = queue.into_iter().filter(is_left).collect();
        left.sort_by(|one, other| one.run_id.cmp(&other.run_id));
        for run in left {
            // Recovery ends a run that it could not clear away.
            if self.unrecovered.runs.contains_key(&run.run_id) {
                continue;
            }
            // A run that began has left the queue, unless the daemon died in between.
            if self.parts.host.state.has_begun(&run.run_id) {
                self.parts.ledger.dequeue(run.run_id).await?;
                continue;
            }
            // The ledger has the time of each request.
            let requested_at = run.not_before.unwrap_or(now);
            if let Some(why) = self.is_too_late(&run.job, requested_at, now) {
                let (job, run_id) = (run.job, run.run_id);
                tracing::error!(job = job.as_str(), %run_id, why, "a requested run does not begin");
                let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
                let reason = format!("the run did not begin: {why}");
                let ended = EndedRuns { runs: vec![run_id], state, stop_reason, reason };
                self.parts.ledger.end_waiting(ended, now).await?;
                continue;
            }
            let QueuedRun { run_id, job, origin, .. } = run;
            self.queue.push(Waiting::new(run_id, job, origin, WaitsFor::Nothing, false));
        }
        Ok(())
    }
}

fn is_left(run: &QueuedRun) -> bool {
    run.origin.trigger == Trigger::Manual
}
