//! The runs that wait: for room among the active runs, or for the end of their job's other runs.

use std::collections::{BTreeMap, HashMap, VecDeque};

use chrono::{DateTime, Utc};

use crate::daemon::command::RunRequest;
use crate::domain::RunId;
use crate::run::TriggerFacts;
use crate::store::QueuedRun;

/// A run in the queue.
pub(super) struct Waiting {
    pub(super) run_id: RunId,
    pub(super) job: String,
    pub(super) facts: TriggerFacts,
    pub(super) request: RunRequest,
    /// Whether it waits until the job has no active run.
    pub(super) is_serial: bool,
}

impl Waiting {
    pub(super) fn as_queued(&self) -> QueuedRun {
        QueuedRun {
            run_id: self.run_id.clone(),
            job: self.job.clone(),
            trigger: self.facts.trigger,
            scheduled_for: self.facts.scheduled_for,
            ended: None,
        }
    }

    /// Returns the due time of its slot; `None` if a person asked for the run.
    pub(super) fn due_at(&self) -> Option<DateTime<Utc>> {
        self.facts.scheduled_for
    }
}

/// What the queue knows of a job.
#[derive(Debug, Default)]
struct JobRuns {
    waiting: usize,
    active: usize,
    /// Whether one of its serial runs is in `ready`.
    is_ready: bool,
}

/// The queue, oldest run first. Its operations on one run do not depend on the length of the queue,
/// except for [`Self::remove`].
#[derive(Default)]
pub(super) struct Queue {
    /// Runs that may start once there is room, by their number in the order of arrival. Of each
    /// job, at most one of them is serial.
    ready: BTreeMap<u64, Waiting>,
    /// Serial runs that wait for other runs of their job, by job, oldest first.
    behind: HashMap<String, VecDeque<(u64, Waiting)>>,
    jobs: HashMap<String, JobRuns>,
    arrived: u64,
    len: usize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns how many runs of a job are queued.
    pub(super) fn waiting_of(&self, job: &str) -> usize {
        self.jobs.get(job).map_or(0, |runs| runs.waiting)
    }

    /// Returns how many runs of a job are active.
    pub(super) fn active_of(&self, job: &str) -> usize {
        self.jobs.get(job).map_or(0, |runs| runs.active)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.ready.values().chain(self.behind.values().flatten().map(|(_, waiting)| waiting))
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        let number = self.arrived;
        self.arrived += 1;
        self.len += 1;
        let runs = self.jobs.entry(waiting.job.clone()).or_default();
        runs.waiting += 1;
        match waiting.is_serial {
            true => {
                let job = waiting.job.clone();
                self.behind.entry(job.clone()).or_default().push_back((number, waiting));
                self.advance(&job);
            }
            false => drop(self.ready.insert(number, waiting)),
        }
    }

    /// Takes the oldest run that may start, and counts it as active until [`Self::ended`].
    pub(super) fn start(&mut self) -> Option<Waiting> {
        loop {
            let (number, waiting) = self.ready.pop_first()?;
            let runs = self.jobs.entry(waiting.job.clone()).or_default();
            runs.is_ready &= !waiting.is_serial;
            // A run of the job that is not serial has started in the meantime.
            if waiting.is_serial && runs.active > 0 {
                let behind = self.behind.entry(waiting.job.clone()).or_default();
                behind.push_front((number, waiting));
                continue;
            }
            runs.waiting -= 1;
            runs.active += 1;
            self.len -= 1;
            return Some(waiting);
        }
    }

    /// Records that an active run of a job has ended.
    pub(super) fn ended(&mut self, job: &str) {
        if let Some(runs) = self.jobs.get_mut(job) {
            runs.active = runs.active.saturating_sub(1);
        }
        self.advance(job);
    }

    /// Removes a queued run.
    pub(super) fn remove(&mut self, run_id: &RunId) -> Option<Waiting> {
        self.take(|waiting| waiting.run_id == *run_id).pop()
    }

    /// Removes the queued runs that `is_wanted` selects, and returns them oldest first.
    pub(super) fn take(&mut self, is_wanted: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut taken: BTreeMap<u64, Waiting> =
            self.ready.extract_if(.., |_, waiting| is_wanted(waiting)).collect();
        for waiting in taken.values().filter(|waiting| waiting.is_serial) {
            self.jobs.entry(waiting.job.clone()).or_default().is_ready = false;
        }
        for behind in self.behind.values_mut() {
            let all = std::mem::take(behind).into_iter();
            let (wanted, rest): (VecDeque<_>, _) = all.partition(|(_, waiting)| is_wanted(waiting));
            *behind = rest;
            taken.extend(wanted);
        }
        self.len -= taken.len();
        for waiting in taken.values() {
            self.jobs.entry(waiting.job.clone()).or_default().waiting -= 1;
            self.advance(&waiting.job);
        }
        taken.into_values().collect()
    }

    /// Makes the oldest serial run of a job ready if nothing of the job precedes it. Forgets a job
    /// without runs.
    fn advance(&mut self, job: &str) {
        let Some(runs) = self.jobs.get_mut(job) else { return };
        if runs.active == 0
            && !runs.is_ready
            && let Some(behind) = self.behind.get_mut(job)
        {
            if let Some((number, waiting)) = behind.pop_front() {
                self.ready.insert(number, waiting);
                runs.is_ready = true;
            }
            if behind.is_empty() {
                self.behind.remove(job);
            }
        }
        if runs.waiting == 0 && runs.active == 0 {
            self.jobs.remove(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(number: u64, job: &str, is_serial: bool) -> Waiting {
        let run_id = RunId::from_ulid(ulid::Ulid::from_parts(number, 0));
        let facts = TriggerFacts::manual(None);
        let request = RunRequest::default();
        Waiting { run_id, job: job.to_owned(), facts, request, is_serial }
    }

    /// A queue whose every operation searches the whole of it.
    #[derive(Default)]
    struct Model {
        waiting: Vec<(String, String, bool)>,
        active: Vec<String>,
    }

    impl Model {
        fn start(&mut self) -> Option<String> {
            let at = self
                .waiting
                .iter()
                .position(|(_, job, is_serial)| !is_serial || !self.active.contains(job))?;
            let (run_id, job, _) = self.waiting.remove(at);
            self.active.push(job);
            Some(run_id)
        }
    }

    proptest! {
        #[test]
        fn the_oldest_run_that_may_start_starts(
            steps in prop::collection::vec((0u8..5, 0usize..3, any::<bool>(), any::<prop::sample::Index>()), 0..60),
        ) {
            const JOBS: [&str; 3] = ["a", "b", "c"];
            let (mut queue, mut model) = (Queue::default(), Model::default());
            for (number, (step, job, is_serial, at)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => {
                        let waiting = run(number as u64, JOBS[job], is_serial);
                        model.waiting.push((waiting.run_id.to_string(), waiting.job.clone(), is_serial));
                        queue.push(waiting);
                    }
                    2 => {
                        let started = queue.start().map(|waiting| waiting.run_id.to_string());
                        prop_assert_eq!(started, model.start());
                    }
                    3 if !model.active.is_empty() => {
                        let job = model.active.remove(at.index(model.active.len()));
                        queue.ended(&job);
                    }
                    4 if !model.waiting.is_empty() => {
                        let (run_id, ..) = model.waiting.remove(at.index(model.waiting.len()));
                        let removed = queue.remove(&RunId::parse(&run_id).unwrap());
                        prop_assert_eq!(removed.map(|waiting| waiting.run_id.to_string()), Some(run_id));
                    }
                    _ => {}
                }
                prop_assert_eq!(queue.len(), model.waiting.len());
                for job in JOBS {
                    let waiting = model.waiting.iter().filter(|(_, of, _)| of == job).count();
                    let active = model.active.iter().filter(|of| *of == job).count();
                    prop_assert_eq!((queue.waiting_of(job), queue.active_of(job)), (waiting, active));
                }
            }
        }
    }
}
