//! Retries the recovery of open runs that could neither continue nor end, because the disk was full,
//! for example.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::Supervisor;
use super::queue::Waiting;
use crate::daemon::recovery::{Recovered, Recovery, end_panicked, recorded_end, recover_again};
use crate::domain::{JobName, Outcome, RunId, Stop, StopReason};
use crate::store::{EndedRuns, SlotState};
use crate::text::redact::Redactor;

/// The time before the first retry; each further failure of a run doubles it.
const PAUSE: Duration = Duration::from_secs(5);

/// The longest time between two retries.
const MAX_PAUSE: Duration = Duration::from_mins(5);

/// After so many failures, whose pauses make an hour, a run no longer continues; dutyd only tries to
/// end it.
const MAX_FAILURES: u32 = 17;

/// Why such a run does not continue.
const GIVEN_UP: &str = "every attempt to continue it failed, for an hour; see the log of dutyd";

/// An open run on which no task of a run works.
pub(super) struct OpenRun {
    /// Why it could neither continue nor end.
    pub(super) why: String,
    /// Its job, which counts as busy; `None` if the run will not continue.
    pub(super) job: Option<JobName>,
    /// Whether it belongs to the schedule, so that a newer run may replace it. True if unknown.
    is_replaceable: bool,
    /// Whether its transcript has its last line.
    pub(super) has_ended: bool,
    /// How it ends if it could continue: a person or a newer run cancelled it.
    stop: Option<Stop>,
    /// When its task ended, or when this daemon started if the run is older.
    since: DateTime<Utc>,
    /// When to retry.
    after: Instant,
}

/// The open runs on which no task of a run works.
#[derive(Default)]
pub(super) struct Unrecovered {
    pub(super) runs: BTreeMap<RunId, OpenRun>,
    /// How often each run failed. An entry stays until its run ends, because a run that continues may
    /// fail again.
    failures: HashMap<RunId, u32>,
    /// The runs that the task tries to recover.
    trying: BTreeSet<RunId>,
    /// The recovery in progress, at most one.
    pub(super) task: JoinSet<Recovery>,
}

impl Unrecovered {
    /// Counts a failure of a run; returns when to retry.
    fn count(&mut self, run_id: &RunId) -> Instant {
        let failures = self.failures.entry(run_id.clone()).or_default();
        let pause = PAUSE.saturating_mul(1 << (*failures).min(16)).min(MAX_PAUSE);
        *failures += 1;
        Instant::now() + pause
    }

    /// Tells whether a run has failed so often that it no longer continues.
    fn is_given_up(&self, run_id: &RunId) -> bool {
        self.failures.get(run_id).is_some_and(|failures| *failures >= MAX_FAILURES)
    }

    /// Keeps what the task of a run knew about it, if the run is open. `stop` is how the run was to
    /// end, if it was cancelled.
    pub(super) fn keep(&mut self, run_id: &RunId, is_replaceable: bool, stop: Option<Stop>) {
        if let Some(run) = self.runs.get_mut(run_id) {
            run.is_replaceable = is_replaceable;
            run.stop = stop.or(run.stop.take());
            if run.stop.is_some() {
                run.after = run.after.min(Instant::now() + PAUSE);
            }
        }
    }

    /// Returns the runs of a job that may continue and that a newer run of its schedule replaces.
    pub(super) fn replaced_in(&self, job: &str) -> Vec<RunId> {
        let of_job = |run: &OpenRun| run.job.as_ref().is_some_and(|of| of.as_str() == job);
        let replaced = self.runs.iter().filter(|(_, run)| run.is_replaceable && of_job(run));
        replaced.map(|(run_id, _)| run_id.clone()).collect()
    }

    /// Forgets the failures of a run that has ended.
    pub(super) fn forget(&mut self, run_id: &RunId) {
        self.failures.remove(run_id);
    }
}

impl Supervisor {
    /// Records that a run is open and that no task works on it. Its job is busy until the run has
    /// continued or ended.
    pub(super) fn add_unrecovered(&mut self, run_id: RunId, why: &dyn std::fmt::Display) {
        let job = self.parts.host.state.job_of_open(&run_id);
        let job = job.and_then(|job| JobName::parse(&job).ok());
        self.add_open(run_id, why, job, false);
    }

    /// Records that a run has its last line, but that the ledger or the index lacks its end. Its job is
    /// not busy.
    pub(super) fn add_unsettled(&mut self, run_id: RunId, why: &dyn std::fmt::Display) {
        self.add_open(run_id, why, None, true);
    }

    /// Adds a run, and counts a failure to recover it. Its `job` counts as busy, if any.
    fn add_open(
        &mut self,
        run_id: RunId,
        why: &dyn std::fmt::Display,
        job: Option<JobName>,
        has_ended: bool,
    ) {
        let after = self.unrecovered.count(&run_id);
        let why = why.to_string();
        if let Some(run) = self.unrecovered.runs.get_mut(&run_id) {
            // A cancelled run ends soon.
            let latest = run.stop.as_ref().map_or(after, |_| Instant::now() + PAUSE);
            (run.why, run.after) = (why, after.min(latest));
            return;
        }
        if let Some(job) = &job {
            self.queue.hold(job);
        }
        let since = self.parts.host.clock.now();
        let run = OpenRun { why, job, is_replaceable: true, has_ended, stop: None, since, after };
        self.unrecovered.runs.insert(run_id, run);
    }

    /// Forgets that a run is open.
    fn remove_unrecovered(&mut self, run_id: &RunId) {
        let job = self.unrecovered.runs.remove(run_id).and_then(|run| run.job);
        job.into_iter().for_each(|job| self.queue.release(&job));
    }

    /// Cancels an open run on which no task works; returns whether it is one. Recovery ends it soon.
    pub(super) async fn cancel_unrecovered(
        &mut self,
        run_id: &RunId,
        stop: &Stop,
        why: &str,
    ) -> bool {
        let run = self.unrecovered.runs.get_mut(run_id).filter(|run| !run.has_ended);
        let Some(run) = run else { return false };
        run.stop = Some(stop.clone());
        run.after = Instant::now();
        self.keep_cancelled(vec![run_id.clone()], stop.by.as_ref(), why).await;
        true
    }

    /// Begins to continue or to end the open runs on which no task works, once their pause is over.
    pub(super) async fn retry_recovery(&mut self) {
        if !self.unrecovered.task.is_empty() {
            return;
        }
        let now = Instant::now();
        let ready = self.unrecovered.runs.iter().filter(|(_, run)| run.after <= now);
        let run_ids: BTreeSet<RunId> = ready.map(|(run_id, _)| run_id.clone()).collect();
        if run_ids.is_empty() {
            return;
        }
        for run_id in &run_ids {
            if self.unrecovered.is_given_up(run_id) {
                let job = self.unrecovered.runs.get_mut(run_id).and_then(|run| run.job.take());
                job.into_iter().for_each(|job| self.queue.release(&job));
                self.give_up(vec![run_id.clone()], GIVEN_UP).await;
            }
        }
        if !self.unwritten.is_empty() {
            return;
        }
        let since =
            |run_id: &RunId| Some((run_id.clone(), self.unrecovered.runs.get(run_id)?.since));
        let runs: BTreeMap<_, _> = run_ids.iter().filter_map(since).collect();
        self.unrecovered.trying = run_ids;
        let (host, redactor) =
            (self.parts.host.clone(), Redactor::new(&self.config.borrow().secrets));
        self.unrecovered.task.spawn(async move { recover_again(&host, runs, &redactor).await });
    }

    /// Queues the runs that can continue now, and closes the slots of those that have ended.
    pub(super) async fn on_recovered(&mut self, recovery: Result<Recovery, JoinError>) {
        let tried = std::mem::take(&mut self.unrecovered.trying);
        let Recovery { ended, resumable, failed, .. } = match recovery {
            Ok(recovery) => recovery,
            Err(error) => {
                tracing::error!(%error, "the recovery of open runs panicked");
                let failed = tried.into_iter().map(|run_id| (run_id, error.to_string()));
                Recovery { failed: failed.collect(), ..Recovery::default() }
            }
        };
        for (run_id, why) in failed {
            self.add_unrecovered(run_id, &why);
        }
        for run in resumable {
            let run = Waiting::resumed(run);
            // The run was cancelled while recovery decided that it continues.
            let stop = self.unrecovered.runs.get(&run.run_id).and_then(|open| open.stop.clone());
            let run_id = run.run_id.clone();
            if stop.is_some() {
                self.queue.started(&run);
                self.start_again(run, stop).await;
            } else {
                tracing::info!(%run_id, "queued an open run to continue");
                self.queue.push(run);
            }
            self.remove_unrecovered(&run_id);
        }
        let now = self.parts.host.clock.now();
        for Recovered { run_id, began, .. } in ended {
            self.remove_unrecovered(&run_id);
            self.unrecovered.forget(&run_id);
            if began {
                self.close_slot_of(run_id, now).await
            } else {
                self.end_unbegun(run_id, now).await
            }
        }
        self.fill().await;
    }

    /// Records the end of a run in its slot, unless the slot is decided already.
    async fn close_slot_of(&mut self, run_id: RunId, now: DateTime<Utc>) {
        if self.is_unwritten(&run_id) {
            return;
        }
        let id = run_id.clone();
        let slot = self.parts.ledger.read(move |reader| reader.open_slot_of(&id)).await;
        match slot {
            Ok(None) => {}
            Ok(Some(slot)) => match recorded_end(&self.parts.host, &run_id) {
                Some(end) => {
                    self.record_end(slot.key.job, run_id, end.outcome, end.stop_reason, now).await;
                }
                None => self.end_unbegun(run_id, now).await,
            },
            Err(error) => self.add_unrecovered(run_id, &error),
        }
    }

    /// Records that a run did not begin, in its slot and in the queue.
    async fn end_unbegun(&mut self, run_id: RunId, now: DateTime<Utc>) {
        let reason = "its run did not begin".to_owned();
        let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
        self.end_waiting(EndedRuns { runs: vec![run_id], state, stop_reason, reason }, now).await;
    }

    /// Ends a run whose task panicked.
    pub(super) async fn on_panic(&mut self, job: JobName, run_id: RunId, now: DateTime<Utc>) {
        tracing::error!(job = job.as_str(), %run_id, "a run panicked");
        self.last_outcomes.insert(job.clone(), false);
        let redactor = self.redactor();
        match end_panicked(&self.parts.host, &run_id, &redactor).await {
            Ok(false) => {
                let reason = "a bug in dutyd ended the run before it began; see its log".to_owned();
                let (state, stop_reason) = (SlotState::Missed, StopReason::InternalError);
                let runs = vec![run_id];
                return self.end_waiting(EndedRuns { runs, state, stop_reason, reason }, now).await;
            }
            Ok(true) => self.unrecovered.forget(&run_id),
            Err(error) => {
                self.disk_failed(&format!("the end of a run: {error}"));
                self.give_up(vec![run_id.clone()], "a bug in dutyd ended it").await;
                self.add_unrecovered(run_id.clone(), &error);
            }
        }
        let (outcome, stop_reason) = (Outcome::Failed, StopReason::InternalError);
        self.record_end(job, run_id, outcome, stop_reason, now).await;
    }

    fn redactor(&self) -> Redactor {
        Redactor::new(&self.config.borrow().secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_five_minutes_and_a_run_is_given_up_after_an_hour() {
        let mut unrecovered = Unrecovered::default();
        let run_id = RunId::from_ulid(ulid::Ulid::from_parts(1, 1));
        let mut pauses = Vec::new();
        while !unrecovered.is_given_up(&run_id) {
            let pause = unrecovered.count(&run_id) - Instant::now();
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses[..8], [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(pauses.iter().sum::<u64>(), 3615);
        unrecovered.forget(&run_id);
        assert!(!unrecovered.is_given_up(&run_id));
    }
}
