//! Answers where a run is. Code that acts on a run by its id matches on the [`Phase`], so that the
//! compiler names each such place if a phase is added.

use std::collections::HashMap;

use super::Supervisor;
use super::queue::Waiting;
use super::unrecovered::OpenRun;
use crate::domain::{JobName, RunId};

/// Where a run is that is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// An attempt that waits for its time.
    Delayed,
    /// It has not begun, and waits in the queue.
    Queued,
    /// It has begun under an earlier daemon, and waits in the queue to continue.
    Suspended,
    /// A task works on it.
    Active,
    /// It has begun and not ended, and no task works on it: recovery tries again.
    Open,
    /// It has its last line. The ledger or the index lacks its end: recovery tries again.
    Settling,
}

impl Phase {
    fn of_open(run: &OpenRun) -> Self {
        if run.has_ended { Self::Settling } else { Self::Open }
    }

    fn of_waiting(run: &Waiting) -> Self {
        if run.resumed.is_some() { Self::Suspended } else { Self::Queued }
    }
}

impl Supervisor {
    /// Returns where a run is; `None` if it is over or unknown. Searches the queue.
    pub(super) fn phase_of(&self, run_id: &RunId) -> Option<Phase> {
        if self.active.contains_key(run_id) {
            return Some(Phase::Active);
        }
        if let Some(open) = self.unrecovered.runs.get(run_id) {
            return Some(Phase::of_open(open));
        }
        if self.retries.keys().any(|(_, of)| of == run_id) {
            return Some(Phase::Delayed);
        }
        self.queue.iter().find(|waiting| waiting.run_id == *run_id).map(Phase::of_waiting)
    }

    /// Returns the phase of each run of a job, or of all jobs, that is not over.
    pub(super) fn phases(&self, job: Option<&str>) -> HashMap<RunId, Phase> {
        let is_wanted = |of: &JobName| job.is_none_or(|job| job == of.as_str());
        let active = self.active.iter().filter(|(_, run)| is_wanted(&run.job));
        let active = active.map(|(run_id, _)| (run_id, Phase::Active));
        let open = self.unrecovered.runs.iter();
        let open = open.filter(|(_, run)| run.job.as_ref().map_or(job.is_none(), is_wanted));
        let open = open.map(|(run_id, run)| (run_id, Phase::of_open(run)));
        let delayed = self.retries.values().filter(|run| is_wanted(&run.job));
        let delayed = delayed.map(|run| (&run.run_id, Phase::Delayed));
        let queued = self.queue.iter().filter(|run| is_wanted(&run.job));
        let queued = queued.map(|run| (&run.run_id, Phase::of_waiting(run)));
        let all = active.chain(open).chain(delayed).chain(queued);
        all.map(|(run_id, phase)| (run_id.clone(), phase)).collect()
    }
}
