//! The ends of runs: what the ledger keeps of them, and whether a run begins again.

use std::collections::BTreeSet;

use super::effect::{Change, Effect, effect_to_end_waiting};
use super::holds::rules_for;
use super::retries::FailedRun;
use super::{Book, Entry, Moment, Phase, Waiting};
use crate::config::Config;
use crate::daemon::recovery::RecordedEnd;
use crate::daemon::rules::{WaitsFor, waits_for, window};
use crate::domain::{JobName, NoticeRule, Outcome, RunId, SessionEnd, StopReason};
use crate::run::{Ended, RunError, RunExit};
use crate::store::{GivenUp, RunEnd, SlotState};

/// Tells whether a run that ended so leaves its job in a good state; `None` if it leaves the state
/// of its job as it was.
pub(in crate::daemon) fn is_good(outcome: Outcome) -> Option<bool> {
    match outcome {
        Outcome::Succeeded | Outcome::Planned => Some(true),
        Outcome::Failed | Outcome::Cancelled | Outcome::Interrupted => Some(false),
        Outcome::Skipped => None,
    }
}

/// How a run ended, for its slot and its job.
pub(super) struct HowEnded {
    outcome: Outcome,
    stop_reason: StopReason,
    /// For the rows of the slots.
    reason: String,
    /// The models that failed the run; `None` if only its record is left.
    failed: Option<BTreeSet<String>>,
}

impl HowEnded {
    pub(super) fn new(outcome: Outcome, stop_reason: StopReason) -> Self {
        Self { outcome, stop_reason, reason: format!("{outcome} ({stop_reason})"), failed: None }
    }
}

impl Book {
    /// Returns the change that records the end of a run, which may pause its job.
    pub(super) fn change_to_end(
        &self,
        run_id: RunId,
        job: JobName,
        how: HowEnded,
        moment: &Moment<'_>,
    ) -> Change {
        let HowEnded { outcome, stop_reason, reason, failed } = how;
        let state = SlotState::of_ended(stop_reason);
        let holds = self.holds.of_failed(moment.config, &job, stop_reason, failed.as_ref());
        let notify = rules_for(moment.config, &job, &holds);
        // An outage is not the fault of the job.
        let counts = holds.is_empty();
        let pause_after = moment.config.jobs.get(&job).and_then(|job| job.pause_after_failures);
        Change::EndRun(RunEnd { run_id, job, outcome, state, reason, counts, pause_after, notify })
    }

    /// Returns who is told what of the end of a run that needs no further decision.
    pub(in crate::daemon) fn rules_for(
        &self,
        config: &Config,
        job: &JobName,
        stop_reason: StopReason,
    ) -> Vec<NoticeRule> {
        rules_for(config, job, &self.holds.of_failed(config, job, stop_reason, None))
    }

    /// Handles the end of the task of a run.
    pub(super) fn on_ended(
        &mut self,
        run_id: RunId,
        result: Result<Box<Ended>, RunError>,
        has_begun: bool,
        next: RunId,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let run = self.runs.get_mut(&run_id);
        let Some(Entry { job: Some(job), phase: Phase::Active { is_resumed, .. }, stop, .. }) = run
        else {
            tracing::error!(%run_id, "the task of an inactive run ended");
            let why = "its task ended unexpectedly".to_owned();
            self.leave_open(&run_id, None, why, moment);
            return Vec::new();
        };
        let (job, is_resumed) = (job.clone(), *is_resumed);
        // A stop of the daemon does not end the run for good.
        *stop = stop.take().filter(|stop| stop.reason != StopReason::Interrupted);
        match result {
            // Its slot stays `running`, and the next start continues it.
            Ok(ended) if ended.exit == RunExit::Suspended => {
                tracing::info!(job = job.as_str(), %run_id, "run suspended");
                self.remove(&run_id);
                Vec::new()
            }
            Ok(ended) => self.on_run_ended(run_id, job, *ended, next, moment),
            Err(RunError::Panicked) => {
                tracing::error!(job = job.as_str(), %run_id, "a run panicked");
                self.outcomes.insert(job, false);
                vec![Effect::EndPanicked(run_id)]
            }
            // It has begun before, so its slot stays `running`.
            Err(error) if is_resumed => {
                tracing::error!(job = job.as_str(), %run_id, %error, "failed to continue a run");
                self.leave_open(&run_id, None, error.to_string(), moment);
                let is_disk_fault = error.is_disk_fault();
                is_disk_fault.then(|| Effect::DiskFailed(error.to_string())).into_iter().collect()
            }
            Err(RunError::OverBudget(reason)) => {
                tracing::warn!(job = job.as_str(), %run_id, reason, "the run did not begin");
                self.remove(&run_id);
                let (state, stop_reason) = (SlotState::OverBudget, StopReason::BudgetExceeded);
                vec![effect_to_end_waiting(run_id, state, stop_reason, reason)]
            }
            Err(error) => {
                tracing::error!(job = job.as_str(), %run_id, %error, "failed to record a run");
                let failed = Effect::DiskFailed(error.to_string());
                if error.is_disk_fault()
                    && !has_begun
                    && self.waits_again(&run_id, moment).is_some()
                {
                    return vec![failed, Effect::ClearAway { run_id, error }];
                }
                let effects = self.end_unrecorded(&run_id, &error, has_begun, moment);
                [failed].into_iter().chain(effects).collect()
            }
        }
    }

    /// Handles a run that has begun and ended.
    fn on_run_ended(
        &mut self,
        run_id: RunId,
        job: JobName,
        ended: Ended,
        next: RunId,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let (outcome, stop_reason) = (ended.end.outcome, ended.end.stop_reason);
        self.note_end(&job, &run_id, &ended);
        let Some(run) = self.runs.get_mut(&run_id) else { return Vec::new() };
        run.failures = 0;
        let is_stopped = run.stop.is_some();
        let origin = run.origin.clone();
        let error = ended.end.error.as_deref().unwrap_or("unknown error");
        // Its time may be over before its model has answered.
        let is_outage = matches!(
            stop_reason,
            StopReason::ProviderUnavailable | StopReason::ProviderAuth | StopReason::MaxDuration
        );
        let outages = if is_outage { ended.outages } else { Vec::new() };
        let models: BTreeSet<String> = outages.iter().map(|of| of.model.clone()).collect();
        let mut effects = self.note_outages(&run_id, outages, moment);
        match &ended.exit {
            RunExit::Suspended | RunExit::Complete => {
                if stop_reason == StopReason::RecordFailed {
                    effects.push(Effect::DiskFailed(format!("the record of a run: {error}")));
                }
                self.remove(&run_id);
            }
            RunExit::EndUnrecorded(error) => {
                effects.push(Effect::DiskFailed(format!("the end of a run: {error}")));
                self.leave_settling(&run_id, error.clone(), moment);
            }
            RunExit::RecordFailed => {
                effects.push(Effect::DiskFailed(format!("the record of a run: {error}")));
                effects.push(effect_to_give_up(&run_id, error));
                self.leave_open(&run_id, None, error.to_owned(), moment);
            }
        }
        let may_retry = outcome == Outcome::Failed
            && !ended.has_started_change
            && ended.exit != RunExit::RecordFailed
            && !is_stopped;
        let failed = origin.filter(|_| may_retry).map(|origin| FailedRun { origin, stop_reason });
        let attempt =
            failed.and_then(|failed| self.repeat(&job, &run_id, failed, moment.now, next, moment));
        effects.push(attempt.unwrap_or_else(|| {
            // A run that was cut off after its model had failed does not ask it again.
            let failed = Some(models).filter(|models| !models.is_empty());
            let how = HowEnded { failed, ..HowEnded::new(outcome, stop_reason) };
            Effect::Keep(self.change_to_end(run_id, job, how, moment))
        }));
        effects
    }

    /// Handles a run that has ended under the previous daemon, before its slot was closed.
    pub(super) fn on_found_ended(
        &mut self,
        run_id: RunId,
        job: JobName,
        end: RecordedEnd,
        next: RunId,
        moment: &Moment<'_>,
    ) -> Effect {
        let RecordedEnd { outcome, stop_reason, reason, ended_at, repeatable } = end;
        let failed = repeatable.map(|origin| FailedRun { origin, stop_reason }).zip(ended_at);
        let attempt = failed.and_then(|(failed, ended_at)| {
            self.repeat(&job, &run_id, failed, ended_at, next, moment)
        });
        attempt.unwrap_or_else(|| {
            let how = HowEnded { outcome, stop_reason, reason, failed: None };
            Effect::Keep(self.change_to_end(run_id, job, how, moment))
        })
    }

    /// Logs the end of a run, and keeps the state of its job for `status`. `verify --against` reads the
    /// line: `lines` and `head` stay its last fields.
    fn note_end(&mut self, job: &JobName, run_id: &RunId, ended: &Ended) {
        let SessionEnd { outcome, stop_reason, duration_ms, error, .. } = &*ended.end;
        let (job_name, error) = (job.as_str(), error.as_deref());
        let lines = ended.record_end.as_ref().map(|end| end.lines);
        let head = ended.record_end.as_ref().map(|end| tracing::field::display(&end.hash));
        match outcome {
            Outcome::Failed | Outcome::Interrupted => {
                tracing::warn!(job = job_name, %run_id, %outcome, %stop_reason, duration_ms, error, lines, head, "run ended");
            }
            _ => {
                tracing::info!(job = job_name, %run_id, %outcome, %stop_reason, duration_ms, lines, head, "run ended")
            }
        }
        self.outcomes.extend(is_good(*outcome).map(|is_good| (job.clone(), is_good)));
    }

    /// Ends a run that could not be recorded. Recovery clears away what it left.
    pub(super) fn end_unrecorded(
        &mut self,
        run_id: &RunId,
        error: &RunError,
        has_begun: bool,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let job = self.runs.get(run_id).and_then(|run| run.job.clone());
        self.outcomes.extend(job.map(|job| (job, false)));
        if has_begun {
            self.leave_open(run_id, None, error.to_string(), moment);
        } else {
            self.leave_unbegun(run_id, error.to_string(), moment);
        }
        let reason = format!("did not run to its end: {error}");
        let (state, stop_reason) = (SlotState::Missed, StopReason::RecordFailed);
        let end = effect_to_end_waiting(run_id.clone(), state, stop_reason, reason);
        let given_up = has_begun.then(|| effect_to_give_up(run_id, &error.to_string()));
        [end].into_iter().chain(given_up).collect()
    }

    /// Queues a run again that could not begin because the disk could not be written. While the disk
    /// cannot be written, such a run waits like the slots that come due (STATE-4): it is not the run's
    /// fault that another one filled the disk.
    pub(super) fn wait_again(
        &mut self,
        run_id: RunId,
        error: &RunError,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let Some(waiting) = self.waits_again(&run_id, moment) else {
            return self.end_unrecorded(&run_id, error, false, moment);
        };
        self.queue(waiting);
        vec![Effect::Keep(Change::WaitAgain(run_id, format!("waits for the disk: {error}")))]
    }

    /// Returns the run for the queue; `None` if it is to end, must not begin any more, or has waited for
    /// longer than its job catches up.
    fn waits_again(&self, run_id: &RunId, moment: &Moment<'_>) -> Option<Waiting> {
        let run = self.runs.get(run_id).filter(|run| run.stop.is_none())?;
        if moment.is_stopping {
            return None;
        }
        let (origin, job, ignores_overlap) =
            (run.origin.clone()?, run.job.clone()?, run.ignores_overlap);
        let config = moment.config.jobs.get(&job)?;
        let waited = (moment.now - run_id.made_at()?).to_std();
        if waited.is_ok_and(|waited| waited > window(config)) {
            return None;
        }
        let waits_for = match origin.slot {
            Some(_) => waits_for(config, origin.trigger, ignores_overlap),
            None => WaitsFor::Nothing,
        };
        Some(Waiting { run_id: run_id.clone(), job, origin, waits_for, ignores_overlap })
    }

    /// Handles what recovery did with a run whose task panicked.
    pub(super) fn on_panic(
        &mut self,
        run_id: RunId,
        had_begun: Result<bool, String>,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let Some(job) = self.runs.get(&run_id).and_then(|run| run.job.clone()) else {
            return Vec::new();
        };
        let stop_reason = StopReason::InternalError;
        let how = HowEnded::new(Outcome::Failed, stop_reason);
        let end = Effect::Keep(self.change_to_end(run_id.clone(), job, how, moment));
        match had_begun {
            Ok(true) => {
                self.remove(&run_id);
                vec![end]
            }
            Ok(false) => {
                self.remove(&run_id);
                let reason = "a bug in dutyd ended the run before it began; see its log".to_owned();
                vec![effect_to_end_waiting(run_id, SlotState::Missed, stop_reason, reason)]
            }
            Err(error) => {
                let failed = Effect::DiskFailed(format!("the end of a run: {error}"));
                let given_up = effect_to_give_up(&run_id, "a bug in dutyd ended it");
                self.leave_open(&run_id, None, error, moment);
                vec![failed, given_up, end]
            }
        }
    }
}

/// Returns the effect that records that a run must not be resumed after a crash.
pub(super) fn effect_to_give_up(run_id: &RunId, why: &str) -> Effect {
    let given_up = GivenUp::interrupted(why.to_owned());
    Effect::Keep(Change::GiveUp(run_id.clone(), given_up))
}
