//! Turns due times into slots: decides each, writes it to the ledger, and only then acts on it.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::{CLAIM_BATCH, KEEP_CLOCK, REPEAT_WINDOW, STEP_BACK, Supervisor, Waiting};
use crate::config::Config;
use crate::daemon::disposition::{Cause, Disposition, DueSlot, JobState, decide};
use crate::daemon::views::starts_at;
use crate::domain::{Outcome, RunId, StopReason};
use crate::schedule::Schedule;
use crate::store::{DbError, ReadLine, RunSummary, Slot, SlotState, read_lines};

/// A schedule as the ledger stores it: job, schedule as JSON, zone.
type Kept = (String, String, String);

impl Supervisor {
    /// Decides the due times of a job, writes their rows, and queues the run if one is to start.
    pub(super) async fn settle(
        &mut self,
        (job_name, epoch): (&str, i64),
        dues: &[DateTime<Utc>],
        cause: Cause,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let config = self.config.borrow().clone();
        let Some((job, schedule)) =
            config.jobs.get(job_name).and_then(|job| Some((job.clone(), job.schedule.clone()?)))
        else {
            return Ok(());
        };
        let state = JobState {
            catchup: job.catchup,
            window: job.catchup_window,
            is_busy: self.is_busy(job_name),
        };
        let mut slots = Vec::with_capacity(dues.len());
        for due_at in dues.iter().copied() {
            let is_repeated = self.ran_in_earlier_epoch(&schedule, job_name, epoch, due_at).await?;
            slots.push(DueSlot { due_at, starts_at: starts_at(&job, due_at), is_repeated });
        }
        let decided = decide(&slots, state, now);
        let waiting = slots
            .iter()
            .zip(&decided)
            .find_map(|(slot, disposition)| Waiting::of_slot(job_name, slot.due_at, *disposition));
        let covers = waiting.as_ref().map(|run| run.run_id.clone());
        let rows = slots.iter().zip(&decided).map(|(slot, disposition)| {
            let late = (now - slot.due_at).to_std().unwrap_or_default();
            let reason = disposition.reason(state, cause, late);
            let (state, run_id) = written(*disposition, covers.as_ref());
            self.row(
                (job_name, epoch),
                slot.due_at,
                (state, reason, run_id),
                schedule.zone().name(),
            )
        });
        let rows: Vec<Slot> = rows.collect();
        let mut new = Vec::new();
        for batch in rows.chunks(CLAIM_BATCH) {
            new.extend(self.claim(batch.to_vec(), now).await?);
        }
        if let Some(run) = waiting.filter(|run| new.contains(&run.run_id)) {
            self.parts.ledger.enqueue(vec![run.as_queued()]).await?;
            self.queue.push_back(run);
        }
        Ok(())
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
        }
    }

    /// Claims slots in one transaction; returns the runs whose slot is new.
    pub(super) async fn claim(
        &mut self,
        slots: Vec<Slot>,
        now: DateTime<Utc>,
    ) -> Result<Vec<RunId>, DbError> {
        let settled = self.settled_by(&slots);
        let inserted = self.parts.ledger.claim(slots.clone(), settled, now).await?;
        self.ledger_fault = None;
        self.not_before = None;
        Ok(slots
            .into_iter()
            .zip(inserted)
            .filter(|(_, inserted)| *inserted)
            .filter_map(|(slot, _)| slot.run_id)
            .collect())
    }

    /// Returns the time up to which each job of `batch` is settled: every due time up to then has
    /// its row. This time is before every due time of the job that is still held for its jitter.
    fn settled_by(&self, batch: &[Slot]) -> Vec<(String, DateTime<Utc>)> {
        let mut settled: BTreeMap<String, DateTime<Utc>> = BTreeMap::new();
        for slot in batch {
            let until = settled.entry(slot.job.clone()).or_insert(slot.due_at);
            *until = (*until).max(slot.due_at);
        }
        for (_, due_at, job) in self.held.keys() {
            if let Some(until) = settled.get_mut(job) {
                *until = (*until).min(*due_at - TimeDelta::milliseconds(1));
            }
        }
        settled.into_iter().collect()
    }

    /// Tells whether the job of a schedule with fixed times of day already ran for this due time
    /// before the clock was set back. If the due time lies more than [`REPEAT_WINDOW`] before the
    /// end of the previous epoch, it runs again: so large a step corrects a wrong clock (CRON-3).
    async fn ran_in_earlier_epoch(
        &self,
        schedule: &Schedule,
        job: &str,
        epoch: i64,
        due_at: DateTime<Utc>,
    ) -> Result<bool, DbError> {
        let recent = self.epoch_ended.is_some_and(|ended| due_at >= ended - REPEAT_WINDOW);
        if epoch == 0 || !recent || !schedule.is_fixed_time() {
            return Ok(false);
        }
        let job = job.to_owned();
        self.parts.ledger.read(move |reader| reader.ran_before(&job, epoch, due_at)).await
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
            self.held.retain(|(_, due_at, _), of| *of < epoch && *due_at <= ended);
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

    /// Writes a row for every slot up to `now` that came due while the daemon was down. Skips a
    /// schedule that the ledger holds in an invalid form; `audit` reports it.
    pub(super) async fn settle_downtime(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        self.abandon_open_slots(now).await?;
        let epoch = self.epoch;
        let periods = self.parts.ledger.read(|reader| reader.periods(None)).await?;
        for period in
            periods.into_iter().filter(|period| period.ended.is_none() && period.epoch == epoch)
        {
            let Some(schedule) = Schedule::from_record(&period.schedule, &period.zone) else {
                continue;
            };
            let config = self.config.borrow().clone();
            let current = config
                .jobs
                .get(period.job.as_str())
                .filter(|job| job.enabled)
                .and_then(|job| job.schedule.as_ref());
            let is_same = current.is_some_and(|current| {
                current.to_record() == period.schedule && current.zone().name() == period.zone
            });
            let dues: Vec<DateTime<Utc>> =
                schedule.iter_after(period.settled).take_while(|due| *due <= now).collect();
            if is_same {
                self.settle((&period.job, epoch), &dues, Cause::DaemonDown, now).await?;
                continue;
            }
            for batch in dues.chunks(CLAIM_BATCH) {
                let why = "the daemon was down, and the schedule has changed since";
                let slots = batch.iter().map(|due_at| {
                    let missed = (SlotState::Missed, why.to_owned(), None);
                    self.row((&period.job, epoch), *due_at, missed, &period.zone)
                });
                let slots: Vec<Slot> = slots.collect();
                self.claim(slots, now).await?;
            }
        }
        Ok(())
    }

    /// Settles the slots and queued runs that the previous daemon left open. A claimed slot never
    /// runs again, and neither does a queued run.
    async fn abandon_open_slots(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let why = "the daemon stopped before its run began";
        for slot in self.parts.ledger.read(|reader| reader.open_slots()).await? {
            let Some(run_id) = slot.run_id.as_deref().and_then(|id| RunId::parse(id).ok()) else {
                continue;
            };
            let run = self.parts.host.state.find_run(&run_id);
            let lines: Vec<ReadLine> = run
                .and_then(|run| read_lines(&run.transcript()).ok())
                .map(|lines| lines.map_while(Result::ok).collect())
                .unwrap_or_default();
            let (state, reason) = match RunSummary::fold(&lines) {
                Some(row) => {
                    let outcome = row.outcome.unwrap_or(Outcome::Interrupted);
                    let stop_reason = row.stop_reason.unwrap_or(StopReason::Interrupted);
                    (SlotState::Ran, format!("{outcome} ({stop_reason})"))
                }
                None => (SlotState::Missed, why.to_owned()),
            };
            self.parts.ledger.decide(run_id, state, reason, now).await?;
        }
        self.parts.ledger.end_queued(None, (StopReason::Interrupted, why.to_owned()), now).await
    }

    /// Puts the configured schedules into effect from `now` on, in the ledger and in the ticker.
    pub(super) async fn adopt_schedules(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let schedules = schedules(&self.config.borrow());
        self.parts.ledger.set_schedules(self.epoch, kept(&schedules), now).await?;
        self.ticker.set(schedules, now);
        Ok(())
    }
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
