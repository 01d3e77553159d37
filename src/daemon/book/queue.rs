//! Which queued run may start: an index over the book by the order of arrival and by job.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::daemon::rules::WaitsFor;
use crate::domain::{JobName, RunId};

/// A queued run.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) run_id: RunId,
    pub(super) job: JobName,
    pub(super) waits_for: WaitsFor,
    /// Whether the run is that of a slot and has not begun.
    pub(super) is_slot: bool,
}

/// Whether a ready run can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Free,
    Taken,
    /// Its models are on hold.
    OnHold,
}

/// The runs of a job.
#[derive(Default)]
struct JobRuns {
    /// Its runs in [`Queue::ready`] and [`Queue::held`].
    ready: BTreeSet<u64>,
    /// The one of these that waits for other runs of the job.
    serial: Option<u64>,
    /// Its other queued runs, oldest first.
    behind: VecDeque<(u64, Ticket)>,
    /// The number of queued runs of slots that have not begun.
    slots: usize,
    active: usize,
    /// The number of active runs that run because of `catchup: all`, or that may do so.
    caught_up: usize,
}

impl JobRuns {
    fn put_behind(&mut self, number: u64, ticket: Ticket) {
        let at = self.behind.partition_point(|(of, _)| *of < number);
        self.behind.insert(at, (number, ticket));
    }

    fn may_start(&self, waits_for: WaitsFor) -> bool {
        match waits_for {
            WaitsFor::Nothing => true,
            WaitsFor::CaughtUp => self.caught_up == 0,
            WaitsFor::AllRuns => self.active == 0,
        }
    }
}

/// The queue, oldest run first. Only [`Self::next`] searches, among the ready runs without a place.
#[derive(Default)]
pub(super) struct Queue {
    /// Runs that may start once there is room, by their number in the order of arrival. Of the runs
    /// of a job that wait for other runs, at most one is here.
    ready: BTreeMap<u64, Ticket>,
    /// Such runs that also wait for their models.
    held: BTreeMap<u64, Ticket>,
    jobs: HashMap<JobName, JobRuns>,
    arrived: u64,
}

impl Queue {
    /// Returns the number of queued runs that wait only for room.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Tells whether the run with this number waits for another run of its job.
    pub(super) fn is_behind(&self, number: u64) -> bool {
        !self.ready.contains_key(&number) && !self.held.contains_key(&number)
    }

    /// Tells whether a run of a job is queued or active.
    pub(super) fn is_busy(&self, job: &str) -> bool {
        self.jobs.contains_key(job)
    }

    /// Returns how many slots of a job are queued.
    pub(super) fn slots_of(&self, job: &str) -> usize {
        self.jobs.get(job).map_or(0, |runs| runs.slots)
    }

    /// Adds a run, at its old position if it has a number; returns its number.
    pub(super) fn push(&mut self, number: Option<u64>, ticket: Ticket) -> u64 {
        let number = number.unwrap_or(self.arrived);
        self.arrived = self.arrived.max(number + 1);
        let job = ticket.job.clone();
        let runs = self.jobs.entry(job.clone()).or_default();
        runs.slots += usize::from(ticket.is_slot);
        match ticket.waits_for {
            WaitsFor::Nothing => {
                runs.ready.insert(number);
                self.ready.insert(number, ticket);
            }
            WaitsFor::CaughtUp | WaitsFor::AllRuns => {
                runs.put_behind(number, ticket);
                // A run that returns to its position may be older than the one that became ready.
                if runs.serial.is_some_and(|serial| serial > number) {
                    self.put_serial_behind(&job);
                }
                self.advance(&job);
            }
        }
        number
    }

    /// Returns the oldest run that may start and has a place; it stays in the queue. Passes over the
    /// ready runs without a place, which are few unless a model gives no answer. Sets those aside whose
    /// models are on hold, and returns them too.
    pub(super) fn next(
        &mut self,
        place_of: impl Fn(&RunId) -> Place,
    ) -> (Option<RunId>, Vec<RunId>) {
        let mut set_aside = Vec::new();
        loop {
            let mut held = Vec::new();
            let found = self.ready.iter().find(|(number, ticket)| match place_of(&ticket.run_id) {
                Place::Free => true,
                Place::Taken => false,
                Place::OnHold => {
                    held.push(**number);
                    false
                }
            });
            let found = found.map(|(_, Ticket { run_id, job, waits_for, .. })| {
                (run_id.clone(), job.clone(), *waits_for)
            });
            for number in held {
                if let Some(ticket) = self.ready.remove(&number) {
                    set_aside.push(ticket.run_id.clone());
                    self.held.insert(number, ticket);
                }
            }
            let Some((run_id, job, waits_for)) = found else { return (None, set_aside) };
            let Some(runs) = self.jobs.get(&job) else { return (None, set_aside) };
            if runs.may_start(waits_for) {
                return (Some(run_id), set_aside);
            }
            // Another run of the job has started in the meantime.
            self.put_serial_behind(&job);
        }
    }

    /// Makes the runs that were set aside ready again.
    pub(super) fn release_held(&mut self) {
        self.ready.append(&mut self.held);
    }

    fn take_ready(&mut self, number: u64) -> Option<Ticket> {
        self.ready.remove(&number).or_else(|| self.held.remove(&number))
    }

    /// Makes the run of a job that waits for others not ready again.
    fn put_serial_behind(&mut self, job: &JobName) {
        let serial = self.jobs.get_mut(job).and_then(|runs| runs.serial.take());
        if let Some(number) = serial
            && let Some(ticket) = self.take_ready(number)
            && let Some(runs) = self.jobs.get_mut(job)
        {
            runs.ready.remove(&number);
            runs.put_behind(number, ticket);
        }
    }

    pub(super) fn remove(&mut self, job: &JobName, number: u64) {
        let ready = self.take_ready(number);
        let Some(runs) = self.jobs.get_mut(job) else { return };
        let ticket = if runs.ready.remove(&number) {
            runs.serial = runs.serial.filter(|serial| *serial != number);
            ready
        } else {
            let at = runs.behind.binary_search_by_key(&number, |(of, _)| *of);
            at.ok().and_then(|at| runs.behind.remove(at)).map(|(_, ticket)| ticket)
        };
        runs.slots -= usize::from(ticket.is_some_and(|ticket| ticket.is_slot));
        self.advance(job);
    }

    /// Counts a run of a job as active until [`Self::release`].
    pub(super) fn hold(&mut self, job: &JobName, ignores_overlap: bool) {
        let runs = self.jobs.entry(job.clone()).or_default();
        runs.active += 1;
        runs.caught_up += usize::from(ignores_overlap);
    }

    /// Ends what [`Self::hold`] began.
    pub(super) fn release(&mut self, job: &JobName, ignores_overlap: bool) {
        if let Some(runs) = self.jobs.get_mut(job) {
            runs.active -= 1;
            runs.caught_up -= usize::from(ignores_overlap);
        }
        self.advance(job);
    }

    /// If the job's oldest run that waits for others may start, makes it ready. Forgets a job without
    /// runs.
    fn advance(&mut self, job: &JobName) {
        let Some(runs) = self.jobs.get_mut(job) else { return };
        let first = runs.behind.front();
        let is_next = first.is_some_and(|(_, ticket)| runs.may_start(ticket.waits_for));
        if is_next
            && runs.serial.is_none()
            && let Some((number, ticket)) = runs.behind.pop_front()
        {
            runs.ready.insert(number);
            runs.serial = Some(number);
            self.ready.insert(number, ticket);
        }
        if runs.active == 0 && runs.ready.is_empty() && runs.behind.is_empty() {
            self.jobs.remove(job);
        }
    }
}
