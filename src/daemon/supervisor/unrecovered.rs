//! Retries the recovery of open runs that could neither continue nor end, because the disk was full,
//! for example.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::Supervisor;
use super::queue::Waiting;
use crate::daemon::recovery::{Recovered, Recovery, end_panicked, recover_again};
use crate::domain::{Outcome, RunId, StopReason};
use crate::store::{EndedRuns, SlotState};
use crate::text::redact::Redactor;

/// The time before the first retry; each further failure of a run doubles it.
const PAUSE: Duration = Duration::from_secs(5);

/// The longest time between two retries.
const MAX_PAUSE: Duration = Duration::from_mins(5);

/// After so many failures, a run does not continue any more; dutyd only tries to end it.
const MAX_FAILURES: u32 = 5;

/// The open runs on which no task works.
#[derive(Default)]
pub(super) struct Unrecovered {
    /// Each with the error.
    pub(super) runs: BTreeMap<RunId, String>,
    /// How often each failed. An entry stays until its run has ended.
    failures: HashMap<RunId, u32>,
    /// When to retry.
    after: Option<Instant>,
    /// The recovery in progress, at most one.
    pub(super) task: JoinSet<Recovery>,
}

impl Unrecovered {
    pub(super) fn new(runs: BTreeMap<RunId, String>) -> Self {
        Self { runs, ..Self::default() }
    }

    fn add(&mut self, run_id: RunId, why: String) {
        let failures = self.failures.entry(run_id.clone()).or_default();
        *failures += 1;
        let pause = PAUSE.saturating_mul(1 << (*failures - 1).min(16)).min(MAX_PAUSE);
        let at = Instant::now() + pause;
        self.after = Some(self.after.filter(|_| !self.runs.is_empty()).map_or(at, |of| of.min(at)));
        self.runs.insert(run_id, why);
    }
}

impl Supervisor {
    /// Records that a run is open and that no task works on it.
    pub(super) fn add_unrecovered(&mut self, run_id: RunId, why: &dyn std::fmt::Display) {
        self.unrecovered.add(run_id, why.to_string());
    }

    /// Begins to continue or to end the open runs on which no task works, once their pause is over.
    pub(super) fn retry_recovery(&mut self) {
        let Unrecovered { runs, failures, after, task } = &mut self.unrecovered;
        let is_early = after.is_some_and(|after| Instant::now() < after);
        if runs.is_empty() || is_early || !task.is_empty() {
            return;
        }
        let given_up = failures.iter().filter(|(_, count)| **count >= MAX_FAILURES);
        let given_up: BTreeSet<RunId> = given_up.map(|(run_id, _)| run_id.clone()).collect();
        let run_ids: BTreeSet<RunId> = runs.keys().cloned().collect();
        let (host, redactor) =
            (self.parts.host.clone(), Redactor::new(&self.config.borrow().secrets));
        let work = async move { recover_again(&host, run_ids, &given_up, &redactor).await };
        task.spawn(work);
    }

    /// Queues the runs that can continue now, and closes the slots of those that have ended.
    pub(super) async fn on_recovered(&mut self, recovery: Result<Recovery, JoinError>) {
        let tried = std::mem::take(&mut self.unrecovered.runs);
        self.unrecovered.after = None;
        let Recovery { ended, resumable, failed } = match recovery {
            Ok(recovery) => recovery,
            Err(error) => {
                tracing::error!(%error, "the recovery of open runs panicked");
                let failed = tried.into_keys().map(|run_id| (run_id, error.to_string()));
                Recovery { failed: failed.collect(), ..Recovery::default() }
            }
        };
        for (run_id, why) in failed {
            self.unrecovered.add(run_id, why);
        }
        for run in resumable {
            tracing::info!(run_id = %run.spec.run_id, "queued an open run to continue");
            self.queue.push(Waiting::resumed(run));
        }
        let now = self.parts.host.clock.now();
        for Recovered { run_id, .. } in ended {
            self.unrecovered.failures.remove(&run_id);
            self.close_slot_of(run_id, now).await;
        }
        self.fill().await;
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
