//! The book has every run that is not over, with its phase. It does no I/O and reads no clock.
//!
//! [`Book::step`] takes an [`Input`] and returns [`Effect`]s; the supervisor carries them out. An
//! [`Effect::Try`] changes the book only after its row is written. An [`Effect::Keep`] changes the book
//! at once, and the outbox keeps the row. A match on [`Phase`] has no `_` arm, so the compiler names it
//! when a phase is added. It does not name filters by [`Kind`].

mod effect;
mod ends;
mod holds;
mod left;
mod open;
mod queue;
mod retries;
mod starts;
mod step;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::recovery::Resumable;
use super::rules::{WaitsFor, ignores_overlap};
use crate::config::Config;
use crate::domain::{JobName, Origin, RunId, Stop, Trigger};
use crate::store::QueuedRun;
pub(super) use effect::{Change, Effect, Input, NextAttempt, SlotEnd};
pub(super) use ends::is_good;
use holds::Holds;
pub(super) use left::{input_of_left, is_left};
use queue::{Queue, Ticket};
pub(super) use starts::model_of;

/// A run to queue that has not begun.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) run_id: RunId,
    pub(super) job: JobName,
    pub(super) origin: Origin,
    pub(super) waits_for: WaitsFor,
    /// Whether `overlap` does not apply: the run is an attempt, a backfill, or of `catchup: all`.
    pub(super) ignores_overlap: bool,
}

impl Waiting {
    /// Returns the row of the run for the ledger.
    pub(super) fn to_row(&self, not_before: Option<DateTime<Utc>>) -> QueuedRun {
        let Self { run_id, job, origin, .. } = self;
        QueuedRun { run_id: run_id.clone(), job: job.clone(), origin: origin.clone(), not_before }
    }
}

/// A run that is not over.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its job; `None` if nothing tells it.
    pub(super) job: Option<JobName>,
    /// Why it began; `None` if nothing tells it.
    pub(super) origin: Option<Origin>,
    /// Whether `overlap` does not apply: the run is an attempt, a backfill, or of `catchup: all`.
    pub(super) ignores_overlap: bool,
    pub(super) phase: Phase,
    /// How it is to end, if a person, a newer run or the stop of the daemon ends it.
    pub(super) stop: Option<Stop>,
    /// Since when it waits for its models, which are on hold.
    held_since: Option<DateTime<Utc>>,
    /// How often its recovery has failed.
    failures: u32,
}

/// The phase of a run that is not over.
#[derive(Debug)]
pub(super) enum Phase {
    /// An attempt, or a requested run, that waits for its time.
    Delayed { begins_at: DateTime<Utc>, waits_for: WaitsFor },
    /// It waits in the queue.
    Queued {
        waits_for: WaitsFor,
        /// Its number in the order of arrival; `None` until it is in the queue.
        number: Option<u64>,
        /// What it needs to continue, if it has begun under an earlier daemon.
        resumed: Option<Box<Resumable>>,
    },
    /// A task works on it.
    Active {
        /// The models with which it began.
        admission: Admission,
        is_resumed: bool,
    },
    /// Only recovery works on it: it has begun and not ended, or it has not begun and recovery must
    /// remove what it left.
    Open {
        fault: Fault,
        /// Whether it will not continue, so that recovery only tries to end it.
        is_given_up: bool,
    },
    /// It has its last line. The ledger or the index lacks its end: recovery tries again.
    Settling(Fault),
}

/// Why recovery must try again.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) why: String,
    /// When the task of the run ended, or when this daemon started if the run is older.
    pub(super) since: DateTime<Utc>,
    /// When to try again.
    pub(super) after: Instant,
}

/// The models with which a queued run begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Admission {
    /// The first model that it asks; empty if it has none.
    pub(super) model: String,
    /// Its models that are on hold, which it does not ask.
    pub(super) passed_over: Vec<String>,
    /// The model that it asks again after a hold.
    asks_again: Option<String>,
}

impl Admission {
    fn of_model(model: &str) -> Self {
        Self { model: model.to_owned(), ..Self::default() }
    }
}

/// The phases without their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Delayed,
    Queued,
    Active,
    Open,
    Settling,
}

impl Phase {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Delayed { .. } => Kind::Delayed,
            Self::Queued { .. } => Kind::Queued,
            Self::Active { .. } => Kind::Active,
            Self::Open { .. } => Kind::Open,
            Self::Settling(_) => Kind::Settling,
        }
    }
}

impl Entry {
    fn new(waiting: Waiting, phase: Phase) -> Self {
        let Waiting { job, origin, ignores_overlap, .. } = waiting;
        let (job, origin) = (Some(job), Some(origin));
        Self { job, origin, ignores_overlap, phase, stop: None, held_since: None, failures: 0 }
    }

    /// Returns a run that continues. It does not wait for other runs of its job.
    fn resumed(run: Resumable) -> Self {
        // Its next attempt plans if it plans.
        let (job, origin) = (&run.spec.job, run.spec.repeatable_origin());
        let ignores_overlap = ignores_overlap(origin.trigger, job.catchup);
        let (job, origin) = (Some(job.name.clone()), Some(origin));
        let (waits_for, resumed) = (WaitsFor::Nothing, Some(Box::new(run)));
        let phase = Phase::Queued { waits_for, number: None, resumed };
        Self { job, origin, ignores_overlap, phase, stop: None, held_since: None, failures: 0 }
    }

    /// Tells whether the run is that of a slot, waits in the queue and has not begun.
    pub(super) fn is_new_slot(&self) -> bool {
        let is_new = matches!(self.phase, Phase::Queued { resumed: None, .. });
        is_new && self.origin.as_ref().is_some_and(|origin| origin.slot.is_some())
    }

    /// Tells whether a newer run of the schedule may replace it once it has begun. The first attempt of
    /// a backfill or of `catchup: all` runs beside the schedule. True if nothing tells.
    fn is_replaceable(&self) -> bool {
        let trigger = self.origin.as_ref().map(|origin| origin.trigger);
        !self.ignores_overlap || trigger.is_none_or(|trigger| trigger == Trigger::Retry)
    }
}

/// The moment of a step, and what is in effect then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment<'a> {
    pub(super) config: &'a Config,
    pub(super) now: DateTime<Utc>,
    /// The last time that is believed; `now`, unless the clock is in doubt (CRON-8).
    pub(super) believed: DateTime<Utc>,
    /// The same moment, on the monotonic clock.
    pub(super) at: Instant,
    pub(super) is_stopping: bool,
}

/// The runs that are not over.
#[derive(Default)]
pub(super) struct Book {
    runs: BTreeMap<RunId, Entry>,
    /// The runs of each phase.
    kinds: BTreeMap<Kind, BTreeSet<RunId>>,
    /// The runs of each job.
    jobs: HashMap<JobName, BTreeSet<RunId>>,
    /// When each delayed run begins, the next one first.
    delayed: BTreeSet<(DateTime<Utc>, RunId)>,
    /// Which queued run may start.
    queue: Queue,
    holds: Holds,
    /// Whether the last run of each job succeeded.
    pub(super) outcomes: HashMap<JobName, bool>,
}

impl Book {
    /// Returns a run; `None` if it is over or unknown.
    pub(super) fn get(&self, run_id: &RunId) -> Option<&Entry> {
        self.runs.get(run_id)
    }

    /// Returns the runs of a phase, oldest first.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&RunId, &Entry)> {
        let ids = self.kinds.get(&kind).into_iter().flatten();
        ids.filter_map(|run_id| self.runs.get_key_value(run_id))
    }

    /// Returns the number of runs of a phase.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.kinds.get(&kind).map_or(0, BTreeSet::len)
    }

    /// Returns the runs of a job, oldest first.
    pub(super) fn of_job(&self, job: &str) -> impl Iterator<Item = (&RunId, &Entry)> {
        let ids = self.jobs.get(job).into_iter().flatten();
        ids.filter_map(|run_id| self.runs.get_key_value(run_id))
    }

    /// Returns every run, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RunId, &Entry)> {
        self.runs.iter()
    }

    /// Returns when the next attempt or requested run begins.
    pub(super) fn next_attempt_at(&self) -> Option<DateTime<Utc>> {
        self.delayed.first().map(|(begins_at, _)| *begins_at)
    }

    /// Tells whether a run of a job is queued, active or open.
    pub(super) fn is_busy(&self, job: &str) -> bool {
        self.queue.is_busy(job)
    }

    /// Returns how many slots of a job are queued.
    pub(super) fn slots_of(&self, job: &str) -> usize {
        self.queue.slots_of(job)
    }

    /// Returns the number of queued runs that wait only for room.
    pub(super) fn ready(&self) -> usize {
        self.queue.ready()
    }

    /// Returns the number of runs that people requested and that wait in the queue or for their time.
    pub(super) fn requested(&self) -> usize {
        let waiting = self.of_kind(Kind::Queued).chain(self.of_kind(Kind::Delayed));
        waiting.filter(|(_, run)| run.origin.as_ref().is_some_and(|of| of.slot.is_none())).count()
    }

    /// Keeps the delay of each waiting attempt when the clock is set back from `before` to `now`;
    /// returns when each of them begins. A requested run keeps its time of day.
    pub(super) fn move_attempts(
        &mut self,
        before: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Vec<(DateTime<Utc>, RunId)> {
        let waiting = std::mem::take(&mut self.delayed).into_iter();
        let is_requested = |run_id: &RunId| {
            let origin = self.runs.get(run_id).and_then(|run| run.origin.as_ref());
            origin.is_some_and(|origin| origin.trigger == Trigger::Manual)
        };
        let moved = waiting.map(|(at, run_id)| match () {
            () if is_requested(&run_id) => (at, run_id),
            () => (at.min(now + (at - before).max(chrono::TimeDelta::zero())), run_id),
        });
        self.delayed = moved.collect();
        for (at, run_id) in &self.delayed {
            let phase = self.runs.get_mut(run_id).map(|run| &mut run.phase);
            if let Some(Phase::Delayed { begins_at, .. }) = phase {
                *begins_at = *at;
            }
        }
        self.delayed.iter().cloned().collect()
    }

    /// Removes the queued slots that `stays` rejects, after their rows are written. The others keep
    /// their positions. `waits_for` gets each of them and its old [`WaitsFor`], and returns the new one.
    pub(super) fn renew_slots(
        &mut self,
        stays: impl Fn(&Entry) -> bool,
        waits_for: impl Fn(&Entry, WaitsFor) -> WaitsFor,
    ) {
        let slots = self.of_kind(Kind::Queued).filter(|(_, run)| run.is_new_slot());
        let slots: Vec<RunId> = slots.map(|(run_id, _)| run_id.clone()).collect();
        let mut kept = BTreeMap::new();
        for run_id in slots {
            if let Some(run) = self.remove(&run_id).filter(&stays)
                && let Phase::Queued { number, waits_for: old, .. } = run.phase
            {
                let waits_for = waits_for(&run, old);
                let phase = Phase::Queued { waits_for, number, resumed: None };
                kept.insert(number, (run_id, Entry { phase, ..run }));
            }
        }
        for (run_id, run) in kept.into_values() {
            self.insert(run_id, run);
        }
    }

    fn insert(&mut self, run_id: RunId, mut run: Entry) {
        self.remove(&run_id);
        self.list(&run_id, &run);
        self.add_to_queue(&run_id, &mut run);
        self.runs.insert(run_id, run);
    }

    fn remove(&mut self, run_id: &RunId) -> Option<Entry> {
        let run = self.runs.remove(run_id)?;
        self.unlist(run_id, &run);
        self.remove_from_queue(&run, &run.phase);
        self.end_probe(run_id);
        Some(run)
    }

    /// Changes the phase of a run; returns the old one.
    fn set_phase(&mut self, run_id: &RunId, phase: Phase) -> Option<Phase> {
        let mut run = self.runs.remove(run_id)?;
        self.unlist(run_id, &run);
        let old = std::mem::replace(&mut run.phase, phase);
        self.list(run_id, &run);
        // The run keeps its job busy in between: another run of the job must not become ready.
        self.add_to_queue(run_id, &mut run);
        self.remove_from_queue(&run, &old);
        self.runs.insert(run_id.clone(), run);
        if matches!(old, Phase::Active { .. }) {
            self.end_probe(run_id);
        }
        Some(old)
    }

    fn list(&mut self, run_id: &RunId, run: &Entry) {
        self.kinds.entry(run.phase.kind()).or_default().insert(run_id.clone());
        if let Some(job) = &run.job {
            self.jobs.entry(job.clone()).or_default().insert(run_id.clone());
        }
        if let Phase::Delayed { begins_at, .. } = &run.phase {
            self.delayed.insert((*begins_at, run_id.clone()));
        }
    }

    fn unlist(&mut self, run_id: &RunId, run: &Entry) {
        if let Some(runs) = self.kinds.get_mut(&run.phase.kind()) {
            runs.remove(run_id);
        }
        if let Some(job) = &run.job
            && let Some(runs) = self.jobs.get_mut(job)
        {
            runs.remove(run_id);
            if runs.is_empty() {
                self.jobs.remove(job);
            }
        }
        if let Phase::Delayed { begins_at, .. } = &run.phase {
            self.delayed.remove(&(*begins_at, run_id.clone()));
        }
    }

    /// Adds a run to the queue, or counts it as active for its job.
    fn add_to_queue(&mut self, run_id: &RunId, run: &mut Entry) {
        let is_slot = run.is_new_slot();
        let Some(job) = &run.job else { return };
        match &mut run.phase {
            Phase::Queued { waits_for, number, .. } => {
                let (run_id, job, waits_for) = (run_id.clone(), job.clone(), *waits_for);
                *number =
                    Some(self.queue.push(*number, Ticket { run_id, job, waits_for, is_slot }));
            }
            Phase::Active { .. } => self.queue.hold(job, run.ignores_overlap),
            // `catchup: all` may have started it, so the next run of that kind waits for it too.
            Phase::Open { is_given_up: false, .. } => self.queue.hold(job, true),
            Phase::Open { is_given_up: true, .. } | Phase::Delayed { .. } | Phase::Settling(_) => {}
        }
    }

    /// Ends what [`Self::add_to_queue`] began for a run that was in `phase`.
    fn remove_from_queue(&mut self, run: &Entry, phase: &Phase) {
        let Some(job) = &run.job else { return };
        match phase {
            Phase::Queued { number, .. } => {
                number.iter().for_each(|number| self.queue.remove(job, *number));
            }
            Phase::Active { .. } => self.queue.release(job, run.ignores_overlap),
            Phase::Open { is_given_up: false, .. } => self.queue.release(job, true),
            Phase::Open { is_given_up: true, .. } | Phase::Delayed { .. } | Phase::Settling(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
