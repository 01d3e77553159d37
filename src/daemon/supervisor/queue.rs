//! The runs that wait: for room among the active runs, or for the end of their job's other runs.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use chrono::{DateTime, Utc};

use crate::daemon::recovery::Resumable;
use crate::domain::{JobName, Origin, RunId, Trigger};
use crate::store::QueuedRun;

/// Which active runs of its job a queued run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitsFor {
    Nothing,
    /// Those that run because of `catchup: all`.
    CaughtUp,
    AllRuns,
}

/// A run in the queue.
pub(super) struct Waiting {
    pub(super) run_id: RunId,
    pub(super) job: JobName,
    pub(super) origin: Origin,
    pub(super) waits_for: WaitsFor,
    /// Whether it runs because of `catchup: all` or a backfill, so that `overlap` does not apply to
    /// it.
    pub(super) is_caught_up: bool,
    /// What the run needs to continue, if the previous daemon left it.
    pub(super) resumed: Option<Box<Resumable>>,
    /// Its number in the order of arrival; `None` until it enters the queue. A run that returns to the
    /// queue keeps its number.
    pub(super) arrival: Option<u64>,
}

impl Waiting {
    /// Returns a run that has not begun.
    pub(super) fn new(
        run_id: RunId,
        job: JobName,
        origin: Origin,
        waits_for: WaitsFor,
        is_caught_up: bool,
    ) -> Self {
        Self { run_id, job, origin, waits_for, is_caught_up, resumed: None, arrival: None }
    }

    /// Returns the row of the run for the ledger.
    pub(super) fn to_row(&self, not_before: Option<DateTime<Utc>>) -> QueuedRun {
        let Self { run_id, job, origin, .. } = self;
        QueuedRun { run_id: run_id.clone(), job: job.clone(), origin: origin.clone(), not_before }
    }

    /// Tells whether the run is that of a slot; a person requested any other run.
    pub(super) fn is_slot(&self) -> bool {
        self.origin.slot.is_some()
    }

    /// Tells whether a newer run of the schedule may replace it once it has begun.
    pub(super) fn is_replaceable(&self) -> bool {
        is_replaceable(self.is_caught_up, self.origin.trigger)
    }

    /// Tells whether the run is that of a slot and has not begun.
    pub(super) fn is_new_slot(&self) -> bool {
        self.is_slot() && self.resumed.is_none()
    }
}

/// Tells whether a newer run of the schedule may replace a run that has begun. The first attempt of a
/// backfill or of `catchup: all` runs beside the schedule.
pub(super) fn is_replaceable(is_caught_up: bool, trigger: Trigger) -> bool {
    !is_caught_up || trigger == Trigger::Retry
}

/// The runs of a job.
#[derive(Default)]
struct JobRuns {
    /// Its runs in [`Queue::ready`].
    ready: BTreeSet<u64>,
    /// Whether one of these waits for other runs of the job.
    has_serial: bool,
    /// Its other queued runs, oldest first.
    behind: VecDeque<(u64, Waiting)>,
    /// The number of queued runs of slots that have not begun.
    slots: usize,
    active: usize,
    /// The number of active runs that run because of `catchup: all`, or that may do so ([`Queue::hold`]).
    caught_up: usize,
}

impl JobRuns {
    fn may_start(&self, waiting: &Waiting) -> bool {
        match waiting.waits_for {
            WaitsFor::Nothing => true,
            WaitsFor::CaughtUp => self.caught_up == 0,
            WaitsFor::AllRuns => self.active == 0,
        }
    }
}

/// The queue, oldest run first. Starting, adding and ending a run do not search the queue.
#[derive(Default)]
pub(super) struct Queue {
    /// Runs that may start once there is room, by their number in the order of arrival. Of the runs
    /// of a job that wait for other runs, at most one is here.
    ready: BTreeMap<u64, Waiting>,
    jobs: HashMap<JobName, JobRuns>,
    arrived: u64,
    len: usize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of queued runs that wait only for room.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns the queued runs of a job.
    pub(super) fn of_job(&self, job: &str) -> impl Iterator<Item = &Waiting> {
        let runs = self.jobs.get(job).into_iter();
        runs.flat_map(|runs| {
            let ready = runs.ready.iter().filter_map(|number| self.ready.get(number));
            ready.chain(runs.behind.iter().map(|(_, waiting)| waiting))
        })
    }

    /// Tells whether a run of a job is queued or active.
    pub(super) fn is_busy(&self, job: &str) -> bool {
        self.jobs.contains_key(job)
    }

    /// Returns how many slots of a job are queued.
    pub(super) fn slots_of(&self, job: &str) -> usize {
        self.jobs.get(job).map_or(0, |runs| runs.slots)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        let behind = self.jobs.values().flat_map(|runs| &runs.behind);
        self.ready.values().chain(behind.map(|(_, waiting)| waiting))
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        let number = waiting.arrival.unwrap_or(self.arrived);
        let waiting = Waiting { arrival: Some(number), ..waiting };
        self.arrived = self.arrived.max(number + 1);
        self.len += 1;
        let job = waiting.job.clone();
        let runs = self.jobs.entry(job.clone()).or_default();
        runs.slots += usize::from(waiting.is_new_slot());
        match waiting.waits_for {
            WaitsFor::Nothing => {
                runs.ready.insert(number);
                self.ready.insert(number, waiting);
            }
            WaitsFor::CaughtUp | WaitsFor::AllRuns => {
                let at = runs.behind.partition_point(|(of, _)| *of < number);
                runs.behind.insert(at, (number, waiting));
                self.advance(&job);
            }
        }
    }

    /// Takes the oldest run that may start.
    #[cfg(test)]
    pub(super) fn start(&mut self) -> Option<Waiting> {
        self.start_where(|_| true)
    }

    /// Takes the oldest run that may start and has a place. It counts as active until [`Self::ended`].
    /// Passes over the ready runs without a place, which are few unless a model gives no answer.
    pub(super) fn start_where(&mut self, has_place: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        loop {
            let number = *self.ready.iter().find(|(_, waiting)| has_place(waiting))?.0;
            let waiting = self.ready.remove(&number)?;
            let runs = self.jobs.entry(waiting.job.clone()).or_default();
            runs.ready.remove(&number);
            runs.has_serial &= waiting.waits_for == WaitsFor::Nothing;
            // Another run of the job has started in the meantime.
            if !runs.may_start(&waiting) {
                runs.behind.push_front((number, waiting));
                continue;
            }
            runs.slots -= usize::from(waiting.is_new_slot());
            runs.active += 1;
            runs.caught_up += usize::from(waiting.is_caught_up);
            self.len -= 1;
            self.advance(&waiting.job);
            return Some(waiting);
        }
    }

    /// Puts a run that [`Self::start`] took back at its old place.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        let (job, is_caught_up) = (waiting.job.clone(), waiting.is_caught_up);
        // Push first: `ended` may let a younger run start.
        self.push(waiting);
        self.ended(&job, is_caught_up);
    }

    /// Counts a run that [`Self::remove`] removed as active until [`Self::ended`].
    pub(super) fn started(&mut self, waiting: &Waiting) {
        let runs = self.jobs.entry(waiting.job.clone()).or_default();
        runs.active += 1;
        runs.caught_up += usize::from(waiting.is_caught_up);
    }

    /// Counts an open run of a job as active until [`Self::release`]. `catchup: all` may have started
    /// it, so the next run of that kind waits for it too.
    pub(super) fn hold(&mut self, job: &JobName) {
        let runs = self.jobs.entry(job.clone()).or_default();
        runs.active += 1;
        runs.caught_up += 1;
    }

    /// Ends what [`Self::hold`] began.
    pub(super) fn release(&mut self, job: &JobName) {
        self.ended(job, true);
    }

    /// Records that an active run of a job has ended.
    pub(super) fn ended(&mut self, job: &JobName, is_caught_up: bool) {
        if let Some(runs) = self.jobs.get_mut(job) {
            runs.active -= 1;
            runs.caught_up -= usize::from(is_caught_up);
        }
        self.advance(job);
    }

    /// Removes a queued run; searches the queue.
    pub(super) fn remove(&mut self, run_id: &RunId) -> Option<Waiting> {
        let job = self.iter().find(|waiting| waiting.run_id == *run_id)?.job.clone();
        self.take(Some(job.as_str()), |waiting| waiting.run_id == *run_id).pop()
    }

    /// Removes those queued runs of one job or of all jobs that `is_wanted` selects, and returns
    /// them oldest first.
    pub(super) fn take(
        &mut self,
        job: Option<&str>,
        is_wanted: impl Fn(&Waiting) -> bool,
    ) -> Vec<Waiting> {
        let jobs = match job {
            Some(job) => {
                self.jobs.get_key_value(job).map(|(job, _)| job.clone()).into_iter().collect()
            }
            None => self.jobs.keys().cloned().collect::<Vec<_>>(),
        };
        let mut taken = BTreeMap::new();
        for job in jobs {
            let Some(runs) = self.jobs.get_mut(&job) else { continue };
            let mut own = Vec::new();
            for number in std::mem::take(&mut runs.ready) {
                if !self.ready.get(&number).is_some_and(&is_wanted) {
                    runs.ready.insert(number);
                } else if let Some(waiting) = self.ready.remove(&number) {
                    runs.has_serial &= waiting.waits_for == WaitsFor::Nothing;
                    own.push((number, waiting));
                }
            }
            for (number, waiting) in std::mem::take(&mut runs.behind) {
                if is_wanted(&waiting) {
                    own.push((number, waiting))
                } else {
                    runs.behind.push_back((number, waiting))
                }
            }
            runs.slots -= own.iter().filter(|(_, waiting)| waiting.is_new_slot()).count();
            self.len -= own.len();
            taken.extend(own);
            self.advance(&job);
        }
        taken.into_values().collect()
    }

    /// If the job's oldest run that waits for others may start, makes it ready. Forgets a job without
    /// runs.
    fn advance(&mut self, job: &JobName) {
        let Some(runs) = self.jobs.get_mut(job) else { return };
        let is_next = runs.behind.front().is_some_and(|(_, waiting)| runs.may_start(waiting));
        if is_next
            && !runs.has_serial
            && let Some((number, waiting)) = runs.behind.pop_front()
        {
            runs.ready.insert(number);
            runs.has_serial = true;
            self.ready.insert(number, waiting);
        }
        if runs.active == 0 && runs.ready.is_empty() && runs.behind.is_empty() {
            self.jobs.remove(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Epoch, RunRequest, SlotTime};

    fn run(number: u64, job: &str, waits_for: WaitsFor) -> Waiting {
        let time = SlotTime { epoch: Epoch::FIRST, due_at: DateTime::default() };
        let slot = (waits_for != WaitsFor::Nothing).then_some(time);
        let origin = Origin { slot, ..Origin::manual(RunRequest::default(), None) };
        let run_id = RunId::from_ulid(ulid::Ulid::from_parts(number, 0));
        let job = JobName::parse(job).unwrap();
        Waiting::new(run_id, job, origin, waits_for, waits_for == WaitsFor::CaughtUp)
    }

    /// A queue whose every operation searches the whole of it.
    #[derive(Default)]
    struct Model {
        waiting: Vec<(String, &'static str, WaitsFor)>,
        active: Vec<(&'static str, WaitsFor)>,
    }

    impl Model {
        fn start(&mut self) -> Option<String> {
            let may_start = |at: usize, (_, job, waits_for): &(String, &str, WaitsFor)| {
                let mut earlier = self.waiting[..at].iter();
                let waits_behind =
                    |of: &(String, &str, WaitsFor)| of.1 == *job && of.2 != WaitsFor::Nothing;
                match waits_for {
                    WaitsFor::Nothing => true,
                    _ if earlier.any(waits_behind) => false,
                    WaitsFor::CaughtUp => !self.active.contains(&(*job, WaitsFor::CaughtUp)),
                    WaitsFor::AllRuns => !self.active.iter().any(|of| of.0 == *job),
                }
            };
            let mut waiting = self.waiting.iter().enumerate();
            let (at, _) = waiting.find(|(at, run)| may_start(*at, run))?;
            let (run_id, job, waits_for) = self.waiting.remove(at);
            self.active.push((job, waits_for));
            Some(run_id)
        }
    }

    #[test]
    fn a_run_that_returns_to_the_queue_keeps_its_place() {
        let mut queue = Queue::default();
        queue.push(run(1, "a", WaitsFor::AllRuns));
        let first = queue.start().unwrap();
        queue.push(run(2, "a", WaitsFor::AllRuns));
        let run_id = first.run_id.clone();
        queue.put_back(first);
        assert_eq!(queue.start().unwrap().run_id, run_id);
    }

    const KINDS: [WaitsFor; 3] = [WaitsFor::Nothing, WaitsFor::CaughtUp, WaitsFor::AllRuns];

    proptest! {
        #[test]
        fn the_oldest_run_that_may_start_starts(
            steps in prop::collection::vec((0u8..6, 0usize..3, 0usize..3, any::<prop::sample::Index>()), 0..60),
        ) {
            const JOBS: [&str; 3] = ["a", "b", "c"];
            let (mut queue, mut model) = (Queue::default(), Model::default());
            for (number, (step, job, kind, at)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => {
                        let waiting = run(number as u64, JOBS[job], KINDS[kind]);
                        model.waiting.push((waiting.run_id.to_string(), JOBS[job], KINDS[kind]));
                        queue.push(waiting);
                    }
                    2 => {
                        let started = queue.start().map(|waiting| waiting.run_id.to_string());
                        prop_assert_eq!(started, model.start());
                    }
                    3 if !model.active.is_empty() => {
                        let (job, kind) = model.active.remove(at.index(model.active.len()));
                        queue.ended(&JobName::parse(job).unwrap(), kind == WaitsFor::CaughtUp);
                    }
                    4 if !model.waiting.is_empty() => {
                        let (run_id, ..) = model.waiting.remove(at.index(model.waiting.len()));
                        let removed = queue.remove(&RunId::parse(&run_id).unwrap());
                        prop_assert_eq!(removed.map(|waiting| waiting.run_id.to_string()), Some(run_id));
                    }
                    5 => {
                        model.active.push((JOBS[job], WaitsFor::CaughtUp));
                        queue.hold(&JobName::parse(JOBS[job]).unwrap());
                    }
                    _ => {}
                }
                prop_assert_eq!(queue.len(), model.waiting.len());
                for job in JOBS {
                    let mut waiting = model.waiting.iter().filter(|run| run.1 == job);
                    let is_busy = waiting.clone().count() > 0 || model.active.iter().any(|run| run.0 == job);
                    let slots = waiting.by_ref().filter(|run| run.2 != WaitsFor::Nothing).count();
                    prop_assert_eq!((queue.is_busy(job), queue.slots_of(job)), (is_busy, slots));
                }
                prop_assert_eq!(queue.iter().count(), queue.len());
            }
        }
    }
}
