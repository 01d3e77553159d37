//! The places of the active runs: which queued run may begin beside them, and which models give no
//! answer.
//!
//! A run that waits for its model takes a place only from the runs of the same model (PROV-8). When the
//! model answers, its place counts again. More runs than `max_concurrent_runs` may then work for a
//! while, and no run begins until fewer do.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use chrono::TimeDelta;

use super::Supervisor;
use super::queue::Waiting;
use crate::config::{Config, Provider};
use crate::daemon::views::StatusWait;

/// The most active runs, as a multiple of `max_concurrent_runs`, even if many models are silent.
const MOST_ACTIVE: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Works,
    WaitsForModel,
}

/// The places that the active runs take.
#[derive(Debug, Default)]
pub(super) struct Places {
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
    pub(super) fn why_none_for(&self, model: &str) -> Option<String> {
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

/// Returns the name of the model of a queued run; empty if it has none.
pub(super) fn model_of<'a>(config: &'a Config, waiting: &'a Waiting) -> &'a str {
    let (config, job) = match &waiting.resumed {
        Some(run) => (&*run.spec.config, Some(&run.spec.job)),
        None => (config, config.jobs.get(&waiting.job)),
    };
    job.and_then(|job| config.model_of(job)).map_or("", |model| model.name.as_str())
}

impl Supervisor {
    /// Returns the places that the active runs take.
    pub(super) fn places(&self) -> Places {
        let waits = self.parts.host.waits.all();
        let mut places = Places::new(self.config.borrow().settings.max_concurrent_runs);
        for (run_id, active) in &self.active {
            let activity = if waits.contains_key(run_id.as_str()) {
                Activity::WaitsForModel
            } else {
                Activity::Works
            };
            places.take(&active.model, activity);
        }
        places
    }

    /// Starts the queued runs for which there are places, oldest first. After a fault of the disk, does
    /// nothing until the disk can be written again (STATE-4).
    pub(super) async fn fill(&mut self) {
        while self.stopping.is_none() && self.disk_fault.is_none() {
            let (places, config) = (self.places(), self.config.borrow().clone());
            if places.are_taken() {
                return;
            }
            let has_place = |waiting: &Waiting| places.has_one_for(model_of(&config, waiting));
            let Some(waiting) = self.queue.start_where(has_place) else { return };
            match waiting.resumed {
                Some(_) => self.start_again(waiting, None).await,
                None => self.start(waiting).await,
            }
        }
    }

    /// Returns the models that give no answer now, with the runs that wait for each.
    pub(super) fn model_waits(&self) -> Vec<StatusWait> {
        let now = self.parts.host.clock.now();
        let mut waits: BTreeMap<String, StatusWait> = BTreeMap::new();
        for (run_id, wait) in self.parts.host.waits.all() {
            if !wait.is_silent() {
                continue;
            }
            let model = wait.model.clone();
            let since =
                TimeDelta::from_std(wait.since.elapsed()).map_or(now, |lasted| now - lasted);
            let row = waits.entry(model.clone());
            let row = row.or_insert_with(|| StatusWait { model, runs: Vec::new(), since });
            row.since = row.since.min(since);
            row.runs.push(run_id);
        }
        waits.into_values().collect()
    }

    /// Describes the models that have given no answer for half of the time that they may take.
    pub(super) fn silent_models(&self) -> Vec<String> {
        let (now, config) = (self.parts.host.clock.now(), self.config.borrow().clone());
        let is_late = |wait: &StatusWait| {
            let has_lasted =
                |limit: Duration| (now - wait.since).to_std().is_ok_and(|lasted| lasted >= limit);
            match config.models.get(&wait.model).map(|model| &model.provider) {
                Some(Provider::Remote(remote)) => has_lasted(remote.first_byte() / 2),
                Some(Provider::Scripted(_)) | None => false,
            }
        };
        let tell = |StatusWait { model, runs, since }: StatusWait| {
            let (since, runs) = (since.format("%Y-%m-%d %H:%M:%S UTC"), runs.len());
            format!("`{model}` has given no answer since {since}: {runs} run(s) wait for it")
        };
        self.model_waits().into_iter().filter(is_late).map(tell).collect()
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
