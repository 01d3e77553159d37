//! Takes what happens to the runs: one place names every input. Cancels runs.

use super::effect::{Change, Effect, Input, effect_to_end_waiting};
use super::starts::model_of_run;
use super::{Admission, Book, Entry, Kind, Moment, Phase, Waiting};
use crate::domain::{JobName, RunId, Stop, StopReason};
use crate::store::{EndedRuns, GivenUp, SlotState};

impl Book {
    /// Takes what happens; returns what to do next, in this order.
    pub(in crate::daemon) fn step(&mut self, input: Input, moment: &Moment<'_>) -> Vec<Effect> {
        match input {
            Input::Queued(runs) => {
                runs.into_iter().for_each(|run| self.queue(run));
                Vec::new()
            }
            Input::Delayed { attempt, begins_at } => {
                self.delay(attempt, begins_at);
                Vec::new()
            }
            Input::Resumed(runs) => {
                for run in runs {
                    self.insert(run.spec.run_id.clone(), Entry::resumed(run));
                }
                Vec::new()
            }
            Input::Open { run_id, job, why } => {
                self.leave_open(&run_id, job, why, moment);
                Vec::new()
            }
            Input::Cancel { runs, stop, why } => self.cancel(runs, &stop, &why, moment),
            Input::Replace { job, at_once } => self.replace(&job, at_once, moment),
            Input::EndedUnbegun(runs) => {
                for run_id in runs {
                    self.remove(&run_id);
                }
                Vec::new()
            }
            Input::Tick => {
                self.queue_attempts(moment.now);
                self.tick_holds(moment)
            }
            Input::Recover => self.recover(moment),
            Input::Room { waiting } => self.start_next(&waiting, moment).into_iter().collect(),
            Input::Recorded { run_id, admission } => {
                self.start(run_id, admission).into_iter().collect()
            }
            Input::Begun { run_id, origin } => {
                if let Some(run) = self.runs.get_mut(&run_id) {
                    run.origin = Some(origin);
                }
                Vec::new()
            }
            Input::NotBegun { run_id, reason } => {
                self.remove(&run_id);
                let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
                vec![effect_to_end_waiting(run_id, state, stop_reason, reason)]
            }
            Input::Ended { run_id, result, has_begun, next } => {
                self.on_ended(run_id, result, has_begun, next, moment)
            }
            Input::ClearedAway { run_id, error, is_gone: true } => {
                self.wait_again(run_id, &error, moment)
            }
            Input::ClearedAway { run_id, error, is_gone: false } => {
                self.end_unrecorded(&run_id, &error, false, moment)
            }
            Input::PanicSettled { run_id, had_begun } => self.on_panic(run_id, had_begun, moment),
            Input::Recovered(recovery) => self.on_recovered(recovery, moment),
            Input::SlotOfEnded { run_id, slot } => self.close_slot(run_id, slot, moment),
            Input::FoundEnded { run_id, job, end, next } => {
                vec![self.on_found_ended(run_id, job, end, next, moment)]
            }
            Input::Heard(heard) => self.on_heard(heard, moment),
            Input::Reloaded => self.renew_holds(moment),
            Input::SetBack { before } => self.move_holds(before, moment.now),
            Input::StopAll(reason) => {
                let active = self.of_kind(Kind::Active).map(|(run_id, _)| run_id.clone());
                let active: Vec<RunId> = active.collect();
                active.into_iter().map(|run_id| self.stop(run_id, reason.into())).collect()
            }
        }
    }

    pub(super) fn queue(&mut self, run: Waiting) {
        let (run_id, waits_for) = (run.run_id.clone(), run.waits_for);
        let phase = Phase::Queued { waits_for, number: None, resumed: None };
        self.insert(run_id, Entry::new(run, phase));
    }

    /// Sets how an active run is to end.
    fn stop(&mut self, run_id: RunId, stop: Stop) -> Effect {
        if let Some(run) = self.runs.get_mut(&run_id) {
            run.stop = Some(stop.clone());
        }
        Effect::Stop(run_id, stop)
    }

    /// Cancels runs. Those that have not begun leave the book once the ledger has their ends.
    fn cancel(
        &mut self,
        runs: Vec<RunId>,
        stop: &Stop,
        why: &str,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let (mut effects, mut waiting) = (Vec::new(), Vec::new());
        for run_id in runs {
            match self.runs.get(&run_id).map(|run| &run.phase) {
                Some(Phase::Delayed { .. } | Phase::Queued { resumed: None, .. }) => {
                    waiting.push(run_id);
                }
                Some(
                    Phase::Queued { resumed: Some(_), .. }
                    | Phase::Active { .. }
                    | Phase::Open { .. },
                ) => {
                    effects.extend(self.cancel_begun(run_id, stop.clone(), why, moment));
                }
                Some(Phase::Settling(_)) | None => {}
            }
        }
        if !waiting.is_empty() {
            let by = stop.by.as_ref().map(|person| format!(" by {}", person.user));
            let reason = format!("cancelled{} before it started", by.unwrap_or_default());
            let (runs, state) = (waiting.clone(), SlotState::Skipped);
            let ended = EndedRuns { runs, state, stop_reason: StopReason::Cancelled, reason };
            effects.push(Effect::Try(
                Change::EndWaiting(ended),
                Box::new(Input::EndedUnbegun(waiting)),
            ));
        }
        effects
    }

    /// Cancels a run that has begun. One without a task starts again only to write its end, or recovery
    /// ends it soon.
    fn cancel_begun(
        &mut self,
        run_id: RunId,
        stop: Stop,
        why: &str,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let given_up = GivenUp::cancelled(why.to_owned(), stop.by.clone());
        let keep = Effect::Keep(Change::GiveUp(run_id.clone(), given_up));
        let Some(run) = self.runs.get_mut(&run_id) else { return Vec::new() };
        match &mut run.phase {
            Phase::Active { .. } => vec![self.stop(run_id, stop), keep],
            Phase::Queued { .. } => {
                run.stop = Some(stop);
                let admission = Admission::of_model(model_of_run(moment.config, run));
                [keep].into_iter().chain(self.start(run_id, admission)).collect()
            }
            Phase::Open { fault, .. } => {
                fault.after = moment.at;
                run.stop = Some(stop);
                vec![keep]
            }
            Phase::Delayed { .. } | Phase::Settling(_) => Vec::new(),
        }
    }

    /// Cancels the runs of a job that have begun and that a newer run of its schedule replaces.
    fn replace(&mut self, job: &JobName, at_once: bool, moment: &Moment<'_>) -> Vec<Effect> {
        let has_begun = |run: &Entry| match &run.phase {
            Phase::Queued { resumed, .. } => resumed.is_some(),
            Phase::Active { .. } => true,
            Phase::Open { is_given_up, .. } => !is_given_up,
            Phase::Delayed { .. } | Phase::Settling(_) => false,
        };
        let replaced =
            self.of_job(job.as_str()).filter(|(_, run)| has_begun(run) && run.is_replaceable());
        let replaced: Vec<(RunId, Stop)> = replaced
            .map(|(run_id, run)| {
                // A person who cancelled it stays known.
                let given = run.stop.clone().unwrap_or_else(|| StopReason::Cancelled.into());
                let at_once = given.at_once || at_once;
                (run_id.clone(), Stop { at_once, ..given })
            })
            .collect();
        let why = "a newer run took its place";
        replaced
            .into_iter()
            .flat_map(|(run_id, stop)| self.cancel_begun(run_id, stop, why, moment))
            .collect()
    }
}
