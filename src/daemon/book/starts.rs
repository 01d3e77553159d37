//! Which queued run may begin beside the active ones.
//!
//! A run that waits for its model takes a place only from the runs of the same model (PROV-8). When the
//! model answers, its place counts again. More runs than `max_concurrent_runs` may then work for a
//! while, and no run begins until fewer do.

use std::collections::{BTreeSet, HashMap};

use super::effect::{Change, Effect, Input};
use super::queue::Place;
use super::{Admission, Book, Entry, Kind, Moment, Phase};
use crate::config::{Config, Job};
use crate::domain::RunId;

/// The most active runs, as a multiple of `max_concurrent_runs`, even if many models are silent.
const MOST_ACTIVE: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Works,
    WaitsForModel,
}

/// The places that the active runs take.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Places {
    /// `max_concurrent_runs`.
    most: usize,
    active: usize,
    /// The active runs that do not wait for their models.
    working: usize,
    /// The active runs by model.
    of_models: HashMap<String, usize>,
}

impl Places {
    fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    fn take(&mut self, model: &str, activity: Activity) {
        self.active += 1;
        self.working += usize::from(activity == Activity::Works);
        *self.of_models.entry(model.to_owned()).or_default() += 1;
    }

    fn most_active(&self) -> usize {
        self.most.saturating_mul(MOST_ACTIVE)
    }

    fn of_model(&self, model: &str) -> usize {
        self.of_models.get(model).map_or(0, |count| *count)
    }

    /// Tells whether no run of any model may begin.
    fn are_taken(&self) -> bool {
        self.working >= self.most || self.active >= self.most_active()
    }

    /// Tells whether a run of a model may begin.
    fn has_one_for(&self, model: &str) -> bool {
        !self.are_taken() && self.of_model(model) < self.most
    }

    /// Returns why no run of a model may begin; `None` if one may.
    pub(in crate::daemon) fn why_none_for(&self, model: &str) -> Option<String> {
        let (most, of_model) = (self.most, self.of_model(model));
        let why = match () {
            () if self.has_one_for(model) => return None,
            () if self.working >= most => format!("{} of {most} runs are active", self.working),
            () if of_model >= most => {
                format!("{of_model} of {most} runs of the model `{model}` are active")
            }
            () => format!(
                "{} of {} runs are active or wait for a model",
                self.active,
                self.most_active()
            ),
        };
        Some(why)
    }
}

/// Returns the name of the model of a job; empty if it has none.
pub(in crate::daemon) fn model_of<'a>(config: &'a Config, job: Option<&'a Job>) -> &'a str {
    job.and_then(|job| config.model_of(job)).map_or("", |model| model.name.as_str())
}

/// Returns the name of the model of a queued run; empty if it has none.
pub(super) fn model_of_run<'a>(config: &'a Config, run: &'a Entry) -> &'a str {
    let (config, job) = job_of(config, run);
    model_of(config, job)
}

/// Returns the job of a run and its configuration. A run that continues keeps its own.
pub(super) fn job_of<'a>(config: &'a Config, run: &'a Entry) -> (&'a Config, Option<&'a Job>) {
    match &run.phase {
        Phase::Queued { resumed: Some(run), .. } => (&run.spec.config, Some(&run.spec.job)),
        Phase::Delayed { .. }
        | Phase::Queued { resumed: None, .. }
        | Phase::Active { .. }
        | Phase::Open { .. }
        | Phase::Settling(_) => {
            let job = run.job.as_ref().and_then(|job| config.jobs.get(job));
            (config, job.map(AsRef::as_ref))
        }
    }
}

impl Book {
    /// Returns the places that the active runs take. Those in `waiting` wait for their models.
    pub(in crate::daemon) fn places(&self, waiting: &BTreeSet<String>, config: &Config) -> Places {
        let mut places = Places::new(config.settings.max_concurrent_runs);
        for (run_id, run) in self.of_kind(Kind::Active) {
            if let Phase::Active { admission, .. } = &run.phase {
                let is_waiting = waiting.contains(run_id.as_str());
                let activity = if is_waiting { Activity::WaitsForModel } else { Activity::Works };
                places.take(&admission.model, activity);
            }
        }
        places
    }

    /// Returns why a queued run has not begun; `None` if it is about to.
    pub(in crate::daemon) fn why_not_begun(
        &self,
        run: &Entry,
        places: &Places,
        config: &Config,
    ) -> Option<String> {
        let Phase::Queued { number: Some(number), .. } = &run.phase else { return None };
        if self.queue.is_behind(*number) {
            return Some("another run of the job".to_owned());
        }
        places.why_none_for(model_of_run(config, run))
    }

    /// Returns the effect that starts the oldest queued run with a place.
    pub(super) fn start_next(
        &mut self,
        waiting: &BTreeSet<String>,
        moment: &Moment<'_>,
    ) -> Option<Effect> {
        let (config, places) = (moment.config, self.places(waiting, moment.config));
        if places.are_taken() {
            return None;
        }
        let Self { queue, runs, holds, .. } = self;
        let place_of = |run_id: &RunId| {
            let run = runs.get(run_id);
            match run.map(|run| holds.admission(config, run)) {
                Some(Some(admission)) if places.has_one_for(&admission.model) => Place::Free,
                Some(None) => Place::OnHold,
                Some(Some(_)) | None => Place::Taken,
            }
        };
        let (next, set_aside) = queue.next(place_of);
        self.set_deadlines(set_aside, moment);
        let run_id = next?;
        let admission = self.holds.admission(config, self.runs.get(&run_id)?)?;
        Some(Effect::Try(
            Change::Running(run_id.clone()),
            Box::new(Input::Recorded { run_id, admission }),
        ))
    }

    /// Makes a queued run active.
    pub(super) fn start(&mut self, run_id: RunId, admission: Admission) -> Option<Effect> {
        let run = self.runs.get(&run_id)?;
        let Phase::Queued { resumed, .. } = &run.phase else { return None };
        let (is_resumed, stop) = (resumed.is_some(), run.stop.clone());
        self.holds.begin_probe(&admission, &run_id);
        let old = self.set_phase(&run_id, Phase::Active { admission, is_resumed })?;
        let Phase::Queued { resumed, .. } = old else { return None };
        Some(match resumed {
            Some(run) => Effect::Continue { run, stop },
            None => Effect::Begin(run_id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(most: usize, runs: &[(&str, Activity, usize)]) -> Places {
        let mut places = Places::new(most);
        for (model, activity, count) in runs {
            (0..*count).for_each(|_| places.take(model, *activity));
        }
        places
    }

    // proves PROV-8
    #[test]
    fn a_run_that_waits_for_its_model_holds_up_no_other_model() {
        use Activity::{WaitsForModel, Works};
        let check = |runs: &[(&str, Activity, usize)], model: &str, expected: Option<&str>| {
            let why = places(8, runs).why_none_for(model);
            assert_eq!(why.as_deref(), expected, "{runs:?} {model}");
        };
        check(&[], "a", None);
        check(&[("a", Works, 8)], "b", Some("8 of 8 runs are active"));
        check(&[("a", WaitsForModel, 8)], "b", None);
        let full = Some("8 of 8 runs of the model `a` are active");
        check(&[("a", WaitsForModel, 8)], "a", full);
        check(&[("a", WaitsForModel, 7), ("a", Works, 1)], "a", full);
        check(&[("a", WaitsForModel, 7)], "a", None);
        check(&[("a", WaitsForModel, 8), ("b", Works, 7)], "b", None);
        check(&[("a", WaitsForModel, 8), ("b", Works, 8)], "c", Some("8 of 8 runs are active"));
        let models: Vec<String> = (0..8).map(|at| format!("m{at}")).collect();
        let all: Vec<_> = models.iter().map(|model| (model.as_str(), WaitsForModel, 8)).collect();
        check(&all, "b", Some("64 of 64 runs are active or wait for a model"));
        assert!(places(0, &[]).why_none_for("a").is_some());
    }
}
