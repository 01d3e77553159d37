//! Turns due times into slots: decides each, writes it to the ledger, and only then acts on it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, TimeDelta, Utc};

use super::queue::Waiting;
use super::{CLAIM_BATCH, KEEP_CLOCK, REPEAT_WINDOW, STEP_BACK, Supervisor};
use crate::config::{Catchup, Config, Job, Overlap};
use crate::daemon::command::RunRequest;
use crate::daemon::disposition::{Cause, Disposition, DueSlot, JobState, decide};
use crate::daemon::views::starts_at;
use crate::domain::{Outcome, RunId, StopReason, Trigger};
use crate::run::TriggerFacts;
use crate::schedule::Schedule;
use crate::store::{
    Claim, DbError, Period, ReadLine, RunSummary, Slot, SlotRow, SlotState, read_lines,
};

/// A schedule as the ledger stores it: job, schedule as JSON, zone.
type Kept = (String, String, String);

/// Due times to decide together, by epoch and job. The value of a due time is the run of its slot
/// if a previous daemon claimed the slot and left it open.
pub(super) type Dues = BTreeMap<(i64, String), BTreeMap<DateTime<Utc>, Option<RunId>>>;

/// What the supervisor does with a due time.
struct Settled {
    slot: Slot,
    run: Option<Waiting>,
}

impl Supervisor {
    /// Decides due times, writes all their rows in one transaction, and queues the runs that are to
    /// start.
    pub(super) async fn settle(
        &mut self,
        dues: &Dues,
        cause: Cause,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let repeated = self.repeated(dues).await?;
        let settled = dues.iter().flat_map(|((epoch, job), dues)| {
            let repeated = |due_at| repeated.contains(&(*epoch, job.clone(), due_at));
            self.settled((job, *epoch), dues, repeated, (cause, now))
        });
        let mut settled: Vec<Settled> = settled.collect();
        while !settled.is_empty() {
            let rest = settled.split_off(settled.len().min(CLAIM_BATCH));
            let (slots, runs): (Vec<Slot>, Vec<Option<Waiting>>) =
                settled.into_iter().map(|settled| (settled.slot, settled.run)).unzip();
            let claimed = self.claim(slots, now).await?;
            let runs = runs.into_iter().zip(claimed).filter(|(_, claimed)| *claimed);
            let runs: Vec<Waiting> = runs.filter_map(|(run, _)| run).collect();
            for run in &runs {
                self.replace_others(run, now).await;
            }
            runs.into_iter().for_each(|run| self.queue.push(run));
            settled = rest;
        }
        Ok(())
    }

    /// Decides the due times of a job; empty if the job has no schedule.
    fn settled(
        &self,
        (name, epoch): (&str, i64),
        dues: &BTreeMap<DateTime<Utc>, Option<RunId>>,
        is_repeated: impl Fn(DateTime<Utc>) -> bool,
        (cause, now): (Cause, DateTime<Utc>),
    ) -> Vec<Settled> {
        let config = self.config.borrow().clone();
        let Some((job, schedule)) =
            config.jobs.get(name).and_then(|job| Some((job, job.schedule.as_ref()?)))
        else {
            return Vec::new();
        };
        let state = JobState {
            catchup: job.catchup,
            window: job.catchup_window,
            overlap: job.overlap,
            active: self.queue.active_of(name),
            waiting: self.queue.waiting_of(name),
        };
        let slots = dues.keys().map(|due_at| DueSlot {
            due_at: *due_at,
            starts_at: starts_at(job, *due_at),
            is_repeated: is_repeated(*due_at),
        });
        let slots: Vec<DueSlot> = slots.collect();
        let decided = decide(&slots, state, now);
        let mut settled = Vec::with_capacity(slots.len());
        // The newest slots come first, because a slot can be covered by a newer one.
        let mut covers = None;
        for ((slot, disposition), (due_at, left)) in slots.iter().zip(decided).zip(dues).rev() {
            let late = (now - slot.due_at).to_std().unwrap_or_default();
            let reason = disposition.reason(state, cause, late);
            let run = of_slot(job, *due_at, disposition, left.clone());
            if let Some(run) = &run {
                covers = Some(run.run_id.clone());
            }
            let (state, run_id) = written(disposition, covers.as_ref());
            let row =
                self.row((name, epoch), *due_at, (state, reason, run_id), schedule.zone().name());
            let queued = run.as_ref().map(Waiting::as_queued);
            let slot = Slot { is_reopened: left.is_some(), queued, ..row };
            settled.push(Settled { slot, run });
        }
        settled.reverse();
        settled
    }

    /// Under `overlap: cancel_other`, ends the other runs of the job for the run of a new slot: the
    /// slots that wait are skipped, and the active runs are cancelled.
    async fn replace_others(&mut self, run: &Waiting, now: DateTime<Utc>) {
        let is_replacing = self.config.borrow().jobs.get(run.job.as_str()).is_some_and(|job| {
            job.overlap == Overlap::CancelOther && !runs_one_by_one(job, run.facts.trigger)
        });
        if !is_replacing {
            return;
        }
        for replaced in self.queue.take(|of| of.job == run.job && of.due_at().is_some()) {
            let ends = (SlotState::Skipped, StopReason::Cancelled);
            let why = "a newer slot took its place (overlap: cancel_other)".to_owned();
            self.end_waiting(replaced.run_id, ends, why, now).await;
        }
        for active in self.active.values().filter(|active| active.job == run.job) {
            active.stop.send_replace(Some(StopReason::Cancelled.into()));
        }
    }

    fn row(
        &self,
        (job, epoch): (&str, i64),
        due_at: DateTime<Utc>,
        (state, reason, run_id): (SlotState, String, Option<RunId>),
        zone: &str,
    ) -> Slot {
        Slot {
            job: job.to_owned(),
            epoch,
            due_at,
            state,
            run_id,
            reason,
            zone: zone.to_owned(),
            config_digest: self.config.borrow().digest.clone(),
            is_reopened: false,
            queued: None,
        }
    }

    /// Claims slots in one transaction; returns for each whether it was claimed.
    pub(super) async fn claim(
        &mut self,
        slots: Vec<Slot>,
        now: DateTime<Utc>,
    ) -> Result<Vec<bool>, DbError> {
        let settled = self.settled_by(&slots);
        let claimed = self.parts.ledger.claim(Claim { slots, settled }, now).await?;
        self.ledger_fault = None;
        self.not_before = None;
        Ok(claimed)
    }

    /// Returns the time up to which each job of `batch` is settled in this epoch: every due time up
    /// to then has its row. This time is before every due time of the job that is still held for its
    /// jitter.
    fn settled_by(&self, batch: &[Slot]) -> Vec<(String, DateTime<Utc>)> {
        let mut settled: HashMap<&str, DateTime<Utc>> = HashMap::new();
        for slot in batch.iter().filter(|slot| slot.epoch == self.epoch) {
            let until = settled.entry(&slot.job).or_insert(slot.due_at);
            *until = (*until).max(slot.due_at);
        }
        for held in &self.held {
            if let Some(until) = settled.get_mut(held.job.as_str()) {
                *until = (*until).min(held.due_at - TimeDelta::milliseconds(1));
            }
        }
        settled.into_iter().map(|(job, until)| (job.to_owned(), until)).collect()
    }

    /// Returns the due times of schedules with fixed times of day that already ran before the clock
    /// was set back. A due time that lies more than [`REPEAT_WINDOW`] before the end of the previous
    /// epoch runs again: so large a step corrects a wrong clock (CRON-3).
    async fn repeated(
        &self,
        dues: &Dues,
    ) -> Result<BTreeSet<(i64, String, DateTime<Utc>)>, DbError> {
        let config = self.config.borrow().clone();
        let is_fixed = |job: &str| {
            let schedule = config.jobs.get(job).and_then(|job| job.schedule.as_ref());
            schedule.is_some_and(Schedule::is_fixed_time)
        };
        let is_recent =
            |due_at| self.epoch_ended.is_some_and(|ended| due_at >= ended - REPEAT_WINDOW);
        let may_repeat = dues
            .iter()
            .filter(|((epoch, job), _)| *epoch > 0 && is_fixed(job))
            .flat_map(|((epoch, job), dues)| {
                let recent = dues.keys().filter(|due_at| is_recent(**due_at));
                recent.map(|due_at| (*epoch, job.clone(), *due_at))
            });
        let mut may_repeat: BTreeSet<_> = may_repeat.collect();
        if may_repeat.is_empty() {
            return Ok(may_repeat);
        }
        self.parts
            .ledger
            .read(move |reader| {
                let mut failed = None;
                may_repeat.retain(|(epoch, job, due_at)| {
                    let ran = reader.ran_before(job, *epoch, *due_at);
                    ran.unwrap_or_else(|error| {
                        failed = Some(error);
                        true
                    })
                });
                failed.map_or(Ok(may_repeat), Err)
            })
            .await
    }

    /// Starts a new epoch if the clock was set back by more than [`STEP_BACK`]; otherwise saves
    /// `now` to the ledger, at most once per [`KEEP_CLOCK`].
    pub(super) async fn look_at_clock(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        if now < self.last_seen - STEP_BACK {
            let (ended, epoch) = (self.last_seen, self.epoch + 1);
            tracing::warn!(epoch, before = %ended, %now, "the clock was set back; schedules continue in a new epoch");
            // Due times from before the step stay due, in their own epoch.
            for due in self.ticker.take(ended) {
                self.hold(due);
            }
            let schedules = schedules(&self.config.borrow());
            self.parts.ledger.begin_epoch(epoch, ended, kept(&schedules), now).await?;
            self.held.retain(|held| held.epoch < epoch && held.due_at <= ended);
            self.epoch = epoch;
            self.epoch_ended = Some(ended);
            self.last_seen = now;
            self.ticker.set(schedules, now);
            self.last_kept = now;
        } else {
            if (now - self.last_kept).abs() >= KEEP_CLOCK {
                self.parts.ledger.set_meta("last_seen", now.timestamp_millis()).await?;
                self.last_kept = now;
            }
            self.last_seen = now;
        }
        Ok(())
    }

    /// Settles what the previous daemon left: decides every slot up to `now` that came due while the
    /// daemon was down, and again the slots whose runs had not begun. Skips a schedule that the
    /// ledger holds in an invalid form; `audit` reports it.
    pub(super) async fn settle_downtime(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let mut left = self.left_open(now).await?;
        let epoch = self.epoch;
        let periods = self.parts.ledger.read(|reader| reader.periods(None)).await?;
        let mut dues = Dues::new();
        for period in
            periods.into_iter().filter(|period| period.ended.is_none() && period.epoch == epoch)
        {
            let Some(schedule) = Schedule::from_record(&period.schedule, &period.zone) else {
                continue;
            };
            let down: Vec<DateTime<Utc>> =
                schedule.iter_after(period.settled).take_while(|due| *due <= now).collect();
            if self.has_schedule(&period) {
                let key = (epoch, period.job.clone());
                let of = dues.entry(key).or_default();
                of.extend(down.into_iter().map(|due_at| (due_at, None)));
                // An open slot may lie in an earlier epoch.
                let own: Vec<_> = left.extract_if(.., |slot| slot.job == period.job).collect();
                for slot in own {
                    let of = dues.entry((slot.epoch, slot.job.clone())).or_default();
                    of.insert(slot.due_at, run_of(&slot));
                }
                continue;
            }
            for batch in down.chunks(CLAIM_BATCH) {
                let why = "the daemon was down, and the schedule has changed since";
                let slots = batch.iter().map(|due_at| {
                    let missed = (SlotState::Missed, why.to_owned(), None);
                    self.row((&period.job, epoch), *due_at, missed, &period.zone)
                });
                let slots: Vec<Slot> = slots.collect();
                self.claim(slots, now).await?;
            }
        }
        let superseded = left.iter().map(|slot| {
            let why = "the schedule changed before its run began".to_owned();
            let state = (SlotState::Superseded, why, None);
            let row = self.row((&slot.job, slot.epoch), slot.due_at, state, &slot.zone);
            Slot { is_reopened: true, ..row }
        });
        let superseded: Vec<Slot> = superseded.collect();
        if !superseded.is_empty() {
            self.claim(superseded, now).await?;
        }
        self.settle(&dues, Cause::DaemonDown, now).await
    }

    /// Tells whether the configuration has the schedule of an open period.
    fn has_schedule(&self, period: &Period) -> bool {
        let config = self.config.borrow();
        let job = config.jobs.get(period.job.as_str()).filter(|job| job.enabled);
        job.and_then(|job| job.schedule.as_ref()).is_some_and(|schedule| {
            schedule.to_record() == period.schedule && schedule.zone().name() == period.zone
        })
    }

    /// Returns the slots that the previous daemon left open and whose runs had not begun, with the
    /// ids that their runs would get. Settles the others, and ends the queued runs: those whose
    /// slots run after all are queued again.
    async fn left_open(&mut self, now: DateTime<Utc>) -> Result<Vec<SlotRow>, DbError> {
        let mut left = Vec::new();
        for mut slot in self.parts.ledger.read(|reader| reader.open_slots()).await? {
            let Some(run_id) = run_of(&slot) else { continue };
            if let Some(reason) = self.end_of(&run_id) {
                self.parts.ledger.decide(run_id, SlotState::Ran, reason, now).await?;
                continue;
            }
            // A directory without a transcript is not used again.
            if self.parts.host.state.find_run(&run_id).is_some() {
                slot.run_id = Some(new_run_id().to_string());
            }
            left.push(slot);
        }
        let why = "the daemon stopped before its run began".to_owned();
        self.parts.ledger.end_queued(None, (StopReason::Interrupted, why), now).await?;
        Ok(left)
    }

    /// Returns how the run of an open slot ended, for the row of the slot; `None` if its transcript
    /// has no line, so that the run had not begun.
    fn end_of(&self, run_id: &RunId) -> Option<String> {
        let transcript = self.parts.host.state.find_run(run_id)?.transcript();
        let unreadable = |why: &dyn std::fmt::Display| {
            Some(format!("{} (its transcript cannot be read: {why})", Outcome::Interrupted))
        };
        let lines = match read_lines(&transcript) {
            Ok(lines) => lines,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return unreadable(&error),
        };
        let mut problem = None;
        let lines: Vec<ReadLine> =
            lines.map_while(|line| line.map_err(|error| problem = Some(error)).ok()).collect();
        match (RunSummary::fold(&lines), problem) {
            (Some(row), _) => {
                let outcome = row.outcome.unwrap_or(Outcome::Interrupted);
                let stop_reason = row.stop_reason.unwrap_or(StopReason::Interrupted);
                Some(format!("{outcome} ({stop_reason})"))
            }
            (None, Some(problem)) => unreadable(&problem),
            (None, None) => None,
        }
    }

    /// Puts the configured schedules into effect from `now` on, in the ledger and in the ticker.
    pub(super) async fn adopt_schedules(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let schedules = schedules(&self.config.borrow());
        self.parts.ledger.set_schedules(self.epoch, kept(&schedules), now).await?;
        self.ticker.set(schedules, now);
        Ok(())
    }
}

/// Returns the run for a due time, or `None` if its disposition starts no run. A run that a previous
/// daemon left in the queue keeps its id.
fn of_slot(
    job: &Job,
    due_at: DateTime<Utc>,
    disposition: Disposition,
    left: Option<RunId>,
) -> Option<Waiting> {
    let trigger = match disposition {
        Disposition::Run => Trigger::Schedule,
        Disposition::CatchUp => Trigger::Catchup,
        _ => return None,
    };
    let facts = TriggerFacts { trigger, scheduled_for: Some(due_at), attempt: 1, by: None };
    Some(Waiting {
        run_id: left.unwrap_or_else(new_run_id),
        job: job.name.to_string(),
        facts,
        request: RunRequest::default(),
        is_serial: job.overlap != Overlap::AllowAll || runs_one_by_one(job, trigger),
    })
}

/// Tells whether a run waits for its job's other runs, whatever `overlap` says.
fn runs_one_by_one(job: &Job, trigger: Trigger) -> bool {
    trigger == Trigger::Catchup && job.catchup == Catchup::All
}

fn new_run_id() -> RunId {
    RunId::from_ulid(ulid::Ulid::generate())
}

fn run_of(slot: &SlotRow) -> Option<RunId> {
    slot.run_id.as_deref().and_then(|id| RunId::parse(id).ok())
}

/// Returns the state of a slot for the ledger, and the run that it started or that covers it.
fn written(disposition: Disposition, run: Option<&RunId>) -> (SlotState, Option<RunId>) {
    match disposition {
        Disposition::Run | Disposition::CatchUp => (SlotState::Queued, run.cloned()),
        Disposition::Coalesced => (SlotState::Coalesced, run.cloned()),
        Disposition::Missed => (SlotState::Missed, None),
        Disposition::Busy | Disposition::Repeated => (SlotState::Skipped, None),
    }
}

/// Returns the schedules of the enabled jobs.
pub(super) fn schedules(config: &Config) -> BTreeMap<String, Schedule> {
    let enabled = config.jobs.values().filter(|job| job.enabled);
    enabled.filter_map(|job| Some((job.name.to_string(), job.schedule.clone()?))).collect()
}

fn kept(schedules: &BTreeMap<String, Schedule>) -> Vec<Kept> {
    schedules
        .iter()
        .map(|(job, schedule)| {
            (job.clone(), schedule.to_record(), schedule.zone().name().to_owned())
        })
        .collect()
}
