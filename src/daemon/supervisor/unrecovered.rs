//! Retries the recovery of open runs that could neither continue nor end, because the disk was full,
//! for example.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::Supervisor;
use super::queue::Waiting;
use crate::daemon::recovery::{Recovered, Recovery, end_panicked, recover};
use crate::domain::{Outcome, RunId, StopReason};
use crate::store::{EndedRuns, SlotState};
use crate::text::redact::Redactor;

/// The time between two attempts.
const PAUSE: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Records that a run is open and that no task works on it.
    pub(super) fn add_unrecovered(&mut self, run_id: RunId, why: &dyn std::fmt::Display) {
        self.unrecovered.insert(run_id, why.to_string());
        self.recover_after = Some(Instant::now() + PAUSE);
    }

    /// Continues or ends the open runs on which no task works, at most once per [`PAUSE`].
    pub(super) async fn retry_recovery(&mut self, now: DateTime<Utc>) {
        let is_early = self.recover_after.is_some_and(|after| Instant::now() < after);
        if self.unrecovered.is_empty() || is_early {
            return;
        }
        self.recover_after = Some(Instant::now() + PAUSE);
        let redactor = self.redactor();
        match recover(&self.parts.host, &redactor).await {
            Err(error) => tracing::error!(%error, "failed to read the locks of the open runs"),
            Ok(Recovery { ended, resumable, failed }) => {
                self.unrecovered = failed;
                for run in resumable {
                    tracing::info!(run_id = %run.spec.run_id, "queued an open run to continue");
                    self.queue.push(Waiting::resumed(run));
                }
                for Recovered { run_id, .. } in ended {
                    self.close_slot_of(run_id, now).await;
                }
            }
        }
    }

    /// Records the end of a run in its slot, unless the slot is decided already.
    async fn close_slot_of(&mut self, run_id: RunId, now: DateTime<Utc>) {
        let id = run_id.clone();
        let slot = self.parts.ledger.read(move |reader| reader.open_slot_of(id.as_str())).await;
        match slot {
            Ok(None) => {}
            Ok(Some(slot)) => match self.end_of(&run_id) {
                Some(end) => {
                    self.record_end(slot.job, run_id, (end.outcome, end.stop_reason), now).await;
                }
                None => {
                    let reason = "its run did not begin".to_owned();
                    let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
                    let runs = vec![run_id];
                    self.end_waiting(EndedRuns { runs, state, stop_reason, reason }, now).await;
                }
            },
            Err(error) => self.add_unrecovered(run_id, &error),
        }
    }

    /// Ends a run whose task panicked.
    pub(super) async fn on_panic(&mut self, job: String, run_id: RunId, now: DateTime<Utc>) {
        tracing::error!(job, %run_id, "a run panicked");
        self.last_outcomes.insert(job.clone(), false);
        let redactor = self.redactor();
        match end_panicked(&self.parts.host, &run_id, &redactor).await {
            Ok(false) => {
                let reason = "a bug in dutyd ended the run before it began; see its log".to_owned();
                let (state, stop_reason) = (SlotState::Missed, StopReason::InternalError);
                let runs = vec![run_id];
                return self.end_waiting(EndedRuns { runs, state, stop_reason, reason }, now).await;
            }
            Ok(true) => {}
            Err(error) => {
                self.disk_failed(&format!("the end of a run: {error}"));
                self.give_up(vec![run_id.clone()], "a bug in dutyd ended it").await;
                self.add_unrecovered(run_id.clone(), &error);
            }
        }
        let ended = (Outcome::Failed, StopReason::InternalError);
        self.record_end(job, run_id, ended, now).await;
    }

    /// Records in the ledger that these runs must not be resumed after a crash.
    pub(super) async fn give_up(&mut self, runs: Vec<RunId>, why: &str) {
        for run_id in runs {
            if let Err(error) = self.parts.ledger.give_up(run_id.clone(), why.to_owned()).await {
                tracing::error!(%run_id, %error, "failed to record that a run must not be resumed");
                self.disk_failed(&format!("the ledger: {error}"));
            }
        }
    }

    fn redactor(&self) -> Redactor {
        Redactor::new(&self.config.borrow().secrets)
    }
}
