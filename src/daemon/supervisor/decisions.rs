//! Writes decisions about runs to the ledger. Keeps a decision that cannot be written, and writes it
//! later.

use chrono::{DateTime, Utc};

use super::Supervisor;
use crate::domain::{Person, RunId};
use crate::store::{EndedRuns, GivenUp, Pause, QueuedRun, RunEnd};

/// The error of a command that must wait for unwritten decisions.
pub(super) const EARLIER_UNWRITTEN: &str = "dutyd could not write earlier decisions yet";

/// A decision about runs and their slots, and when it was made.
pub(super) enum Decision {
    EndRun(RunEnd, DateTime<Utc>),
    /// The runs did not begin, or did not run to their ends.
    EndWaiting(EndedRuns, DateTime<Utc>),
    /// The run must not be resumed, for this reason.
    GiveUp(RunId, GivenUp),
    Retry(Box<NextAttempt>, DateTime<Utc>),
}

/// The next attempt of a run, for the ledger.
pub(super) struct NextAttempt {
    pub(super) failed: RunId,
    pub(super) queued: QueuedRun,
    /// The reason for the row of the slot.
    pub(super) reason: String,
}

impl Supervisor {
    /// Records the end of queued runs, and of their slots.
    pub(super) async fn end_waiting(&mut self, ended: EndedRuns, now: DateTime<Utc>) {
        self.decide(Decision::EndWaiting(ended, now)).await;
    }

    /// Writes a decision to the ledger. If that fails, or an older decision is not written yet, keeps it
    /// in memory for [`Self::write_again`]. If the daemon dies before, its next start decides.
    pub(super) async fn decide(&mut self, decision: Decision) {
        if !self.unwritten.is_empty() || !self.write(&decision).await {
            self.unwritten.push_back(decision);
        }
    }

    /// Writes the decisions that could not be written to the ledger; returns whether none is left.
    pub(super) async fn write_again(&mut self) -> bool {
        while let Some(decision) = self.unwritten.pop_front() {
            if !self.write(&decision).await {
                self.unwritten.push_front(decision);
                return false;
            }
        }
        true
    }

    /// Writes a decision to the ledger; returns whether it worked.
    async fn write(&mut self, decision: &Decision) -> bool {
        let ledger = &self.parts.ledger;
        let written = match decision {
            Decision::EndRun(end, at) => ledger.end_run(end.clone(), *at).await,
            Decision::EndWaiting(ended, at) => {
                ledger.end_waiting(ended.clone(), *at).await.map(|()| None)
            }
            Decision::GiveUp(run_id, given_up) => {
                ledger.give_up(run_id.clone(), given_up.clone()).await.map(|()| None)
            }
            Decision::Retry(next, at) => {
                let NextAttempt { failed, queued, reason } = &**next;
                let queued = queued.clone();
                ledger.retry(failed.clone(), queued, reason.clone(), *at).await.map(|()| None)
            }
        };
        match written {
            Ok(pause) => {
                pause.into_iter().for_each(|pause| self.paused(pause));
                true
            }
            Err(error) => {
                tracing::error!(%error, "failed to record a decision about a run; dutyd tries again");
                self.disk_failed(&format!("the ledger: {error}"));
                false
            }
        }
    }

    /// Tells whether the end of a run is decided, but not written to the ledger yet.
    pub(super) fn is_unwritten(&self, run_id: &RunId) -> bool {
        self.unwritten.iter().any(|decision| match decision {
            Decision::EndRun(end, _) => end.run_id == *run_id,
            Decision::EndWaiting(ended, _) => ended.runs.contains(run_id),
            Decision::Retry(next, _) => next.failed == *run_id,
            Decision::GiveUp(..) => false,
        })
    }

    /// Records in the ledger that these runs must not be resumed after a crash.
    pub(super) async fn give_up(&mut self, runs: Vec<RunId>, why: &str) {
        for run_id in runs {
            let given_up = GivenUp::interrupted(why.to_owned());
            self.decide(Decision::GiveUp(run_id, given_up)).await;
        }
    }

    /// Records in the ledger that these runs were cancelled, so that they end as such also after a
    /// crash. `by` is the person, if one cancelled them.
    pub(super) async fn keep_cancelled(
        &mut self,
        runs: Vec<RunId>,
        by: Option<&Person>,
        why: &str,
    ) {
        for run_id in runs {
            let given_up = GivenUp::cancelled(why.to_owned(), by.cloned());
            self.decide(Decision::GiveUp(run_id, given_up)).await;
        }
    }

    /// Applies the pause of a job whose runs failed too often.
    pub(super) fn paused(&mut self, Pause { job, note, .. }: Pause) {
        tracing::warn!(job, note, "the job is paused");
        self.pauses.insert(job);
    }
}
