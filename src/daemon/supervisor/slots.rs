//! Turns due times into slots: decides each, writes it to the ledger, and only then acts on it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::carry_out::new_run_id;
use super::spans::{count_of, merge};
use super::{CLAIM_BATCH, Input, REPEAT_WINDOW, Supervisor};
use crate::config::{Config, Job, Overlap};
use crate::daemon::book::Waiting;
use crate::daemon::disposition::{Cause, Disposition, DueSlot, JobState, decide};
use crate::daemon::rules::{ignores_overlap, waits_for};
use crate::daemon::views::starts_at;
use crate::domain::{
    Epoch, JobName, Message, NoticeRule, Origin, Person, RunId, SlotKey, SlotTime, StopReason,
    Trigger,
};
use crate::schedule::Schedule;
use crate::store::{AdoptedSchedule, Claim, DbError, EndedRuns, Slot, SlotState, Span};

/// What is known of a due time before its decision.
#[derive(Debug, Clone, Default)]
pub(super) struct DueFacts {
    /// The run that a previous daemon left for the due time before it began.
    pub(super) left: Option<RunId>,
    /// Whether a person requested a run for the due time.
    pub(super) is_backfill: bool,
    /// That person, if known.
    pub(super) by: Option<Person>,
    /// The due times that follow and are decided like this one, because all are too late to run.
    pub(super) span: Option<Span>,
}

/// The due times of one job in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobEpoch {
    pub(super) epoch: Epoch,
    pub(super) job: JobName,
}

impl JobEpoch {
    pub(super) fn slot(&self, due_at: DateTime<Utc>) -> SlotKey {
        SlotKey { job: self.job.clone(), time: SlotTime { epoch: self.epoch, due_at } }
    }
}

/// Due times to decide.
pub(super) type Dues = BTreeMap<JobEpoch, BTreeMap<DateTime<Utc>, DueFacts>>;

/// Decided due times: their rows, and the runs that are to start.
#[derive(Default)]
struct Decided {
    slots: Vec<Slot>,
    runs: Vec<Waiting>,
}

impl Supervisor {
    /// Decides due times, writes their rows, and queues the runs that are to start. Writes the rows
    /// of up to [`CLAIM_BATCH`] slots of an epoch in one transaction, and removes these slots from
    /// `dues`.
    ///
    /// *Errors*: the ledger fails; `dues` then keeps the due times without a row.
    pub(super) async fn settle(
        &mut self,
        dues: &mut Dues,
        cause: Cause,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        while let Some((JobEpoch { epoch, .. }, _)) = dues.first_key_value() {
            let epoch = *epoch;
            let mut count = 0;
            let mut part = Dues::new();
            while count < CLAIM_BATCH
                && dues.first_key_value().is_some_and(|(of, _)| of.epoch == epoch)
                && let Some((key, of_job)) = dues.pop_first()
            {
                count += of_job.len();
                part.insert(key, of_job);
            }
            if let Err(error) = self.settle_part(&part, cause, now).await {
                dues.append(&mut part);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Settles due times of one epoch in one transaction.
    async fn settle_part(
        &mut self,
        part: &Dues,
        cause: Cause,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let repeated = self.repeated(part).await?;
        let Decided { mut slots, mut runs } = Decided::default();
        for (of, dues) in part {
            let is_repeated = |due_at| repeated.contains(&of.slot(due_at));
            let decided = self.decided(of, dues, is_repeated, cause, now);
            slots.extend(decided.slots);
            runs.extend(decided.runs);
        }
        let replaced = self.replaced_by(&runs);
        let ended = (!replaced.is_empty()).then(|| EndedRuns {
            runs: replaced.clone(),
            state: SlotState::Skipped,
            stop_reason: StopReason::Cancelled,
            reason: "a newer slot took its place".to_owned(),
        });
        let settled = self.settled_by(&slots);
        let queued = slots.iter().map(|slot| slot.queued.as_ref().map(|run| run.run_id.clone()));
        let queued: Vec<Option<RunId>> = queued.collect();
        let messages = self.messages_of_missed(&slots, now);
        let claimed = self.claim(Claim { slots, settled, ended, messages }, now).await?;
        self.act(Input::EndedUnbegun(replaced)).await;
        let lost = queued.into_iter().zip(claimed).filter(|(_, claimed)| !claimed);
        let lost: HashSet<RunId> = lost.filter_map(|(run_id, _)| run_id).collect();
        runs.retain(|run| !lost.contains(&run.run_id));
        self.cancel_others(&runs).await;
        // The oldest slots of all jobs go first.
        runs.sort_by_key(|run| run.origin.due_at());
        self.act(Input::Queued(runs)).await;
        Ok(())
    }

    /// Returns the messages about the missed slots, one for each job and destination.
    fn messages_of_missed(&self, slots: &[Slot], now: DateTime<Utc>) -> Vec<(String, Message)> {
        let config = self.config.borrow();
        let mut missed: BTreeMap<&JobName, Vec<&Slot>> = BTreeMap::new();
        for slot in slots.iter().filter(|slot| slot.state == SlotState::Missed) {
            missed.entry(&slot.key.job).or_default().push(slot);
        }
        let mut messages = Vec::new();
        for (job, slots) in missed {
            let (Some(first), Some(last)) = (slots.first(), slots.last()) else { continue };
            let rules = config.jobs.get(job).map_or(&[][..], |job| &job.notify);
            let count: usize = slots.iter().map(|slot| count_of(slot)).sum();
            let until = last.span.map_or(last.key.time.due_at, |span| span.until);
            let minute = |at: DateTime<Utc>| at.format("%Y-%m-%d %H:%M UTC").to_string();
            let when = match first.key.time.due_at {
                only if only == until => format!("its slot of {}", minute(until)),
                first => format!("{count} slots from {} to {}", minute(first), minute(until)),
            };
            let what = format!("has missed {when}: {}", last.reason);
            messages.extend(NoticeRule::missed(rules, job, &what, now));
        }
        messages
    }

    /// Decides the due times of a job; empty if the job has no schedule.
    fn decided(
        &self,
        of: &JobEpoch,
        dues: &BTreeMap<DateTime<Utc>, DueFacts>,
        is_repeated: impl Fn(DateTime<Utc>) -> bool,
        cause: Cause,
        now: DateTime<Utc>,
    ) -> Decided {
        let name = of.job.as_str();
        let config = self.config.borrow().clone();
        let Some((job, schedule)) =
            config.jobs.get(name).and_then(|job| Some((job, job.schedule.as_ref()?)))
        else {
            return Decided::default();
        };
        let state = JobState {
            catchup: job.catchup,
            window: job.catchup_window,
            overlap: job.overlap,
            is_busy: self.book.is_busy(name),
            waiting: self.book.slots_of(name),
        };
        let slots = dues.iter().map(|(due_at, facts)| DueSlot {
            due_at: *due_at,
            starts_at: starts_at(job, *due_at),
            is_repeated: is_repeated(*due_at),
            is_paused: facts.left.is_none() && self.due.pauses.cover(name, *due_at, facts.span),
            is_backfill: facts.is_backfill,
        });
        let slots: Vec<DueSlot> = slots.collect();
        let dispositions = decide(&slots, state, now);
        // The ids of the runs have the order of their due times.
        let starts = |of: Disposition| of.is_run() || of == Disposition::Backfill;
        let starting = dispositions.iter().filter(|of| starts(**of));
        let mut ids: Vec<RunId> = starting.map(|_| new_run_id()).collect();
        ids.sort();
        let mut decided = Decided::default();
        // The newest slots come first, because the run of a newer slot can cover a slot.
        let mut covers = None;
        for ((slot, disposition), (due_at, facts)) in slots.iter().zip(dispositions).zip(dues).rev()
        {
            let late = (now - slot.due_at).to_std().unwrap_or_default();
            let reason = match &facts.by {
                Some(person) => format!("requested by {} (backfill)", person.user),
                None => disposition.reason(state, cause, late),
            };
            let left = &facts.left;
            let id = if starts(disposition) { ids.pop() } else { None };
            // A run that was left in the queue keeps its id, unless the id has a directory.
            let state_dir = &self.parts.host.state;
            let kept = left.clone().filter(|left| state_dir.find_run(left).is_none());
            let id = id.map(|id| kept.unwrap_or(id));
            let key = of.slot(*due_at);
            let run = id.and_then(|id| of_slot(job, key.time, disposition, facts.by.clone(), id));
            let own = run.as_ref().map(|run| run.run_id.clone());
            if disposition.is_run() {
                covers.clone_from(&own);
            }
            let (state, run_id) = written(disposition, own.as_ref().or(covers.as_ref()));
            let row = self.row(key, state, reason, schedule.zone().name());
            let row = Slot { run_id, ..row };
            let queued = run.as_ref().map(|run| run.to_row(None));
            let (left, is_backfill) = (left.clone(), facts.is_backfill);
            decided.slots.push(Slot { left, is_backfill, queued, span: facts.span, ..row });
            decided.runs.extend(run);
        }
        decided.slots.reverse();
        decided.runs.reverse();
        Decided { slots: merge(decided.slots, schedule), ..decided }
    }

    /// Tells whether a run takes the place of other runs of its job. `overlap` does not apply to a
    /// run of `catchup: all`.
    fn is_replacing(&self, run: &Waiting) -> bool {
        let config = self.config.borrow();
        let job = config.jobs.get(&run.job);
        !run.ignores_overlap && job.is_some_and(|job| job.overlap.is_replacing())
    }

    /// Returns the waiting slots that new runs replace.
    fn replaced_by(&self, runs: &[Waiting]) -> Vec<RunId> {
        let replaced =
            self.replacing(runs).into_iter().flat_map(|job| self.book.of_job(job.as_str()));
        let replaced = replaced.filter(|(_, run)| run.is_new_slot() && !run.ignores_overlap);
        replaced.map(|(run_id, _)| run_id.clone()).collect()
    }

    /// Returns the jobs of those runs that take the place of other runs.
    fn replacing<'a>(&self, runs: &'a [Waiting]) -> BTreeSet<&'a JobName> {
        runs.iter().filter(|run| self.is_replacing(run)).map(|run| &run.job).collect()
    }

    /// Cancels the runs that have begun and that new runs replace.
    async fn cancel_others(&mut self, runs: &[Waiting]) {
        for job in self.replacing(runs) {
            let overlap = self.config.borrow().jobs.get(job).map(|job| job.overlap);
            let at_once = overlap == Some(Overlap::TerminateOther);
            self.act(Input::Replace { job: job.clone(), at_once }).await;
        }
    }

    /// Returns the row of a slot without a run.
    pub(super) fn row(&self, key: SlotKey, state: SlotState, reason: String, zone: &str) -> Slot {
        Slot {
            key,
            state,
            run_id: None,
            reason,
            span: None,
            is_backfill: false,
            zone: zone.to_owned(),
            config_digest: self.config.borrow().digest.clone(),
            left: None,
            queued: None,
        }
    }

    /// Makes a claim; returns for each slot whether it was claimed.
    async fn claim(&mut self, claim: Claim, now: DateTime<Utc>) -> Result<Vec<bool>, DbError> {
        self.parts.ledger.claim(claim, now).await
    }

    /// Claims slots that start no run.
    pub(super) async fn claim_slots(
        &mut self,
        slots: Vec<Slot>,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let settled = self.settled_by(&slots);
        self.claim(Claim { slots, settled, ..Claim::default() }, now).await.map(drop)
    }

    /// Returns the time up to which each job of `batch` is settled in this epoch: every due time up
    /// to then has its row. This time is before every due time of the job that is still held for its
    /// jitter.
    pub(super) fn settled_by(&self, batch: &[Slot]) -> Vec<(JobName, DateTime<Utc>)> {
        let mut settled: HashMap<&JobName, DateTime<Utc>> = HashMap::new();
        let own = batch.iter();
        let own = own.filter(|slot| slot.key.time.epoch == self.due.epoch && !slot.is_backfill);
        for slot in own {
            let last = slot.span.map_or(slot.key.time.due_at, |span| span.until);
            let until = settled.entry(&slot.key.job).or_insert(last);
            *until = (*until).max(last);
        }
        for held in &self.due.held {
            if let Some(until) = settled.get_mut(&held.job) {
                *until = (*until).min(held.due_at - TimeDelta::milliseconds(1));
            }
        }
        settled.into_iter().map(|(job, until)| (job.clone(), until)).collect()
    }

    /// Returns the due times of schedules with fixed times of day that already ran before the clock
    /// was set back. A step back by more than [`REPEAT_WINDOW`] corrects a wrong clock (CRON-3), so a due
    /// time further than that before the end of its earlier epoch is not among them.
    async fn repeated(&self, dues: &Dues) -> Result<BTreeSet<SlotKey>, DbError> {
        let config = self.config.borrow().clone();
        let is_fixed = |job: &JobName, due_at| {
            let schedule = config.jobs.get(job).and_then(|job| job.schedule.as_ref());
            schedule.is_some_and(|schedule| schedule.is_fixed_time(due_at))
        };
        // The earlier epochs in which such a due time may have run. No step since then may have been a
        // correction.
        let earlier = |epoch: Epoch, due_at: DateTime<Utc>| -> Vec<Epoch> {
            let ends = self.due.epoch_ends.range(..epoch).rev();
            let uncorrected = ends.take_while(|(_, ended)| due_at >= **ended - REPEAT_WINDOW);
            uncorrected.filter(|(_, ended)| due_at <= **ended).map(|(of, _)| *of).collect()
        };
        let mut may_repeat = Vec::new();
        for (of, dues) in dues.iter().filter(|(of, _)| of.epoch > Epoch::FIRST) {
            for due_at in dues.keys() {
                let epochs = earlier(of.epoch, *due_at);
                if !epochs.is_empty() && is_fixed(&of.job, *due_at) {
                    may_repeat.push((of.slot(*due_at), epochs));
                }
            }
        }
        if may_repeat.is_empty() {
            return Ok(BTreeSet::new());
        }
        self.parts
            .ledger
            .read(move |reader| {
                let mut repeated = BTreeSet::new();
                for (slot, epochs) in may_repeat {
                    if reader.ran_in(&slot.job, &epochs, slot.time.due_at)? {
                        repeated.insert(slot);
                    }
                }
                Ok(repeated)
            })
            .await
    }

    /// Puts the configured schedules into effect from `now` on, in the ledger and in the ticker, and
    /// makes a claim in the same transaction.
    pub(super) async fn adopt_schedules(
        &mut self,
        claim: Claim,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let schedules = schedules(&self.config.borrow());
        self.parts.ledger.set_schedules(self.due.epoch, adopted(&schedules), claim, now).await?;
        self.due.ticker.set(schedules, now);
        Ok(())
    }
}

/// Returns the run for a due time, or `None` if its disposition starts no run.
pub(super) fn of_slot(
    job: &Job,
    slot: SlotTime,
    disposition: Disposition,
    by: Option<Person>,
    run_id: RunId,
) -> Option<Waiting> {
    let trigger = match disposition {
        Disposition::Run => Trigger::Schedule,
        Disposition::CatchUp => Trigger::Catchup,
        Disposition::Backfill => Trigger::Backfill,
        _ => return None,
    };
    let ignores_overlap = ignores_overlap(trigger, job.catchup);
    let origin = Origin::of_slot(trigger, slot, by);
    let waits_for = waits_for(job, trigger, ignores_overlap);
    Some(Waiting { run_id, job: job.name.clone(), origin, waits_for, ignores_overlap })
}

/// Returns the state of a slot for the ledger, and the run that it started or that covers it.
fn written(disposition: Disposition, run: Option<&RunId>) -> (SlotState, Option<RunId>) {
    match disposition {
        Disposition::Run | Disposition::CatchUp | Disposition::Backfill => {
            (SlotState::Queued, run.cloned())
        }
        Disposition::Coalesced => (SlotState::Coalesced, run.cloned()),
        Disposition::Missed => (SlotState::Missed, None),
        Disposition::Busy | Disposition::Repeated => (SlotState::Skipped, None),
        Disposition::Paused => (SlotState::Paused, None),
    }
}

/// Returns the schedules of the enabled jobs.
pub(super) fn schedules(config: &Config) -> BTreeMap<JobName, Schedule> {
    let enabled = config.jobs.values().filter(|job| job.enabled);
    enabled.filter_map(|job| Some((job.name.clone(), job.schedule.clone()?))).collect()
}

pub(super) fn adopted(schedules: &BTreeMap<JobName, Schedule>) -> Vec<AdoptedSchedule> {
    let adopted = |(job, schedule): (&JobName, &Schedule)| AdoptedSchedule {
        job: job.clone(),
        schedule: schedule.to_record(),
        zone: schedule.zone().name().to_owned(),
    };
    schedules.iter().map(adopted).collect()
}
