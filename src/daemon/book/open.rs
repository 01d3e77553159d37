//! The open runs on which no task works: recovery tries to continue or to end each of them again,
//! after a pause that grows.

use std::collections::BTreeMap;
use std::time::Duration;

use super::effect::{Effect, SlotEnd, effect_to_end_waiting};
use super::ends::{HowEnded, effect_to_give_up};
use super::{Admission, Book, Entry, Fault, Kind, Moment, Phase};
use crate::daemon::recovery::{Recovered, Recovery};
use crate::domain::{JobName, RunId, StopReason};
use crate::store::SlotState;

/// The time before the first retry; each further failure of a run doubles it.
const PAUSE: Duration = Duration::from_secs(5);

/// The longest time between two retries.
const MAX_PAUSE: Duration = Duration::from_mins(5);

/// After so many failures, whose pauses make an hour, a run no longer continues; dutyd only tries to
/// end it.
const MAX_FAILURES: u32 = 17;

/// Why such a run does not continue.
const GIVEN_UP: &str = "every attempt to continue it failed, for an hour; see the log of dutyd";

impl Entry {
    /// Counts a failure of the recovery; returns the pause before the next retry, which is short for a
    /// run that is to end.
    fn count_failure(&mut self) -> Duration {
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(MAX_PAUSE);
        self.failures += 1;
        if self.stop.is_some() { pause.min(PAUSE) } else { pause }
    }

    /// Tells whether recovery has failed so often that the run no longer continues.
    fn has_failed_too_often(&self) -> bool {
        self.failures >= MAX_FAILURES
    }
}

impl Book {
    /// Records that a run is open and that no task works on it. Its job is busy until the run has
    /// continued or ended. `job` is its job, if only the caller knows it.
    pub(super) fn leave_open(
        &mut self,
        run_id: &RunId,
        job: Option<JobName>,
        why: String,
        moment: &Moment<'_>,
    ) {
        let fault = self.record_fault(run_id, job, why, moment);
        self.set_phase(run_id, Phase::Open { fault, is_given_up: self.is_given_up(run_id) });
    }

    /// Records that a run that had not begun is open, so that recovery clears away what it left. Its job
    /// is not busy.
    pub(super) fn leave_unbegun(&mut self, run_id: &RunId, why: String, moment: &Moment<'_>) {
        let fault = self.record_fault(run_id, None, why, moment);
        self.set_phase(run_id, Phase::Open { fault, is_given_up: true });
    }

    /// Tells whether a run is open and will not continue.
    fn is_given_up(&self, run_id: &RunId) -> bool {
        match self.runs.get(run_id).map(|run| &run.phase) {
            Some(Phase::Open { is_given_up, .. }) => *is_given_up,
            Some(
                Phase::Delayed { .. }
                | Phase::Queued { .. }
                | Phase::Active { .. }
                | Phase::Settling(_),
            )
            | None => false,
        }
    }

    /// Records that a run has its last line, but that the ledger or the index lacks its end. Its job is
    /// not busy.
    pub(super) fn leave_settling(&mut self, run_id: &RunId, why: String, moment: &Moment<'_>) {
        let fault = self.record_fault(run_id, None, why, moment);
        self.set_phase(run_id, Phase::Settling(fault));
    }

    /// Counts a failure to recover a run; returns its fault. Adds a run that is unknown.
    fn record_fault(
        &mut self,
        run_id: &RunId,
        job: Option<JobName>,
        why: String,
        moment: &Moment<'_>,
    ) -> Fault {
        let mut fault = Fault { why, since: moment.now, after: moment.at };
        if !self.runs.contains_key(run_id) {
            let phase = Phase::Settling(fault.clone());
            let (origin, stop) = (None, None);
            let run = Entry {
                job,
                origin,
                ignores_overlap: false,
                phase,
                stop,
                held_since: None,
                failures: 0,
            };
            self.insert(run_id.clone(), run);
        } else if let Some(Phase::Open { fault: before, .. } | Phase::Settling(before)) =
            self.runs.get(run_id).map(|run| &run.phase)
        {
            fault.since = before.since;
        }
        if let Some(run) = self.runs.get_mut(run_id) {
            fault.after += run.count_failure();
        }
        fault
    }

    /// Begins to continue or to end the open runs whose pause is over.
    pub(super) fn recover(&mut self, moment: &Moment<'_>) -> Vec<Effect> {
        let is_ready = |fault: &Fault| fault.after <= moment.at;
        let mut ready = BTreeMap::new();
        let mut given_up = Vec::new();
        for (run_id, run) in self.of_kind(Kind::Open).chain(self.of_kind(Kind::Settling)) {
            if let Phase::Open { fault, .. } | Phase::Settling(fault) = &run.phase
                && is_ready(fault)
            {
                ready.insert(run_id.clone(), fault.since);
                if run.has_failed_too_often() {
                    given_up.push(run_id.clone());
                }
            }
        }
        let mut effects = Vec::new();
        for run_id in given_up {
            if let Some(Phase::Open { fault, .. }) = self.runs.get(&run_id).map(|run| &run.phase) {
                let fault = fault.clone();
                self.set_phase(&run_id, Phase::Open { fault, is_given_up: true });
            }
            effects.push(effect_to_give_up(&run_id, GIVEN_UP));
        }
        if !ready.is_empty() {
            effects.push(Effect::Recover(ready));
        }
        effects
    }

    /// Queues the runs that can continue now, and closes the slots of those that have ended.
    pub(super) fn on_recovered(&mut self, recovery: Recovery, moment: &Moment<'_>) -> Vec<Effect> {
        let Recovery { ended, resumable, failed, .. } = recovery;
        for (run_id, why) in failed {
            match self.runs.get(&run_id).map(|run| &run.phase) {
                Some(Phase::Settling(_)) => self.leave_settling(&run_id, why, moment),
                Some(
                    Phase::Delayed { .. }
                    | Phase::Queued { .. }
                    | Phase::Active { .. }
                    | Phase::Open { .. },
                )
                | None => self.leave_open(&run_id, None, why, moment),
            }
        }
        let mut effects = Vec::new();
        for run in resumable {
            let run_id = run.spec.run_id.clone();
            let (stop, failures) = match self.runs.get(&run_id) {
                Some(open) => (open.stop.clone(), open.failures),
                None => (None, 0),
            };
            let model = super::starts::model_of(&run.spec.config, Some(&run.spec.job));
            let admission = Admission::of_model(model);
            // The run was cancelled while recovery decided that it continues.
            let is_cancelled = stop.is_some();
            self.insert(run_id.clone(), Entry { stop, failures, ..Entry::resumed(run) });
            if is_cancelled {
                effects.extend(self.start(run_id, admission));
            } else {
                tracing::info!(%run_id, "queued an open run to continue");
            }
        }
        for Recovered { run_id, began, .. } in ended {
            self.remove(&run_id);
            effects.push(if began {
                Effect::FindSlot(run_id)
            } else {
                effect_to_end_unbegun(run_id)
            });
        }
        effects
    }

    /// Records in the slot of a run how recovery ended it.
    pub(super) fn close_slot(
        &mut self,
        run_id: RunId,
        slot: Result<Option<SlotEnd>, String>,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        match slot {
            Ok(None) => Vec::new(),
            Ok(Some(SlotEnd { job, end: Some(end) })) => {
                let how = HowEnded::new(end.outcome, end.stop_reason);
                let end = self.change_to_end(run_id, job, how, moment);
                vec![Effect::Keep(end)]
            }
            Ok(Some(SlotEnd { end: None, .. })) => vec![effect_to_end_unbegun(run_id)],
            Err(why) => {
                self.leave_open(&run_id, None, why, moment);
                Vec::new()
            }
        }
    }
}

/// Returns the effect that records that a run did not begin, in its slot and in the queue.
fn effect_to_end_unbegun(run_id: RunId) -> Effect {
    let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
    effect_to_end_waiting(run_id, state, stop_reason, "its run did not begin".to_owned())
}
