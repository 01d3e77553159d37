//! Due times into slots: what becomes of each is decided, written, and only then done.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::{CLAIM_BATCH, REPEAT_WINDOW, RunRequest, STEP_BACK, Supervisor, Waiting};
use crate::config::Job;
use crate::daemon::fates::{Fate, fates};
use crate::daemon::views::starts_at;
use crate::domain::{RunId, Trigger};
use crate::run::TriggerFacts;
use crate::schedule::Schedule;
use crate::store::{Slot, SlotState};

impl Supervisor {
    /// Decides the fate of a job's due times, writes it, and queues what is to run.
    pub(super) async fn settle(
        &mut self,
        job_name: &str,
        dues: &[DateTime<Utc>],
        now: DateTime<Utc>,
    ) -> Result<(), crate::store::DbError> {
        let config = self.config.borrow().clone();
        let Some((job, schedule)) =
            config.jobs.get(job_name).and_then(|job| Some((job.clone(), job.schedule.clone()?)))
        else {
            return Ok(());
        };
        let decided = fates(dues, |due| starts_at(&job, due), now, job.catchup, job.catchup_window);
        let mut slots = Vec::with_capacity(dues.len());
        let mut waiting = Vec::new();
        let mut busy = self.is_busy(job_name);
        for (due_at, fate) in dues.iter().zip(decided).rev() {
            let repeated = matches!(fate, Fate::Run | Fate::CatchUp)
                && self.ran_in_earlier_epoch(&schedule, job_name, *due_at, now).await?;
            let (state, reason, run_id) = match fate {
                _ if repeated => {
                    (SlotState::Skipped, "it ran before the clock was set back".to_owned(), None)
                }
                Fate::Missed => (SlotState::Missed, missed_reason(&job, *due_at, now), None),
                Fate::Coalesced => (
                    SlotState::Coalesced,
                    "a later slot of this job makes up for it".to_owned(),
                    waiting.last().map(|w: &Waiting| w.run_id.clone()),
                ),
                Fate::Run | Fate::CatchUp if busy => (
                    SlotState::Skipped,
                    "the job was still waiting or running (overlap: skip)".to_owned(),
                    None,
                ),
                Fate::Run | Fate::CatchUp => {
                    busy = true;
                    let trigger =
                        if fate == Fate::Run { Trigger::Schedule } else { Trigger::Catchup };
                    let run_id = RunId::from_ulid(ulid::Ulid::generate());
                    let facts = TriggerFacts { trigger, scheduled_for: Some(*due_at), attempt: 1 };
                    waiting.push(Waiting {
                        run_id: run_id.clone(),
                        job: job_name.to_owned(),
                        facts,
                        request: RunRequest::default(),
                    });
                    let reason = if fate == Fate::Run {
                        "due"
                    } else {
                        "caught up after the daemon was away"
                    };
                    (SlotState::Queued, reason.to_owned(), Some(run_id))
                }
            };
            slots.push(Slot {
                job: job_name.to_owned(),
                epoch: self.epoch,
                due_at: *due_at,
                state,
                run_id,
                reason,
                zone: schedule.zone().name().to_owned(),
                config_digest: config.digest.clone(),
            });
        }
        slots.reverse();
        let new = self.claim(slots, now).await?;
        waiting.retain(|run| new.contains(&run.run_id));
        self.queue.extend(waiting);
        Ok(())
    }

    /// Claims slots in batches; returns the runs whose slot is new.
    pub(super) async fn claim(
        &mut self,
        slots: Vec<Slot>,
        now: DateTime<Utc>,
    ) -> Result<Vec<RunId>, crate::store::DbError> {
        let mut new = Vec::new();
        for batch in slots.chunks(CLAIM_BATCH) {
            let settled = self.settled_by(batch);
            let inserted = self.parts.ledger.claim(batch.to_vec(), settled, now).await?;
            new.extend(
                batch
                    .iter()
                    .zip(inserted)
                    .filter(|(_, inserted)| *inserted)
                    .filter_map(|(slot, _)| slot.run_id.clone()),
            );
        }
        self.ledger_fault = None;
        self.not_before = None;
        Ok(new)
    }

    /// Returns up to when each job of a batch is settled: not past a due time that is still held for its jitter.
    pub(super) fn settled_by(&self, batch: &[Slot]) -> Vec<(String, DateTime<Utc>)> {
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

    pub(super) async fn ran_in_earlier_epoch(
        &self,
        schedule: &Schedule,
        job: &str,
        due_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<bool, crate::store::DbError> {
        if self.epoch == 0 || !schedule.is_fixed_time() || now - due_at > REPEAT_WINDOW {
            return Ok(false);
        }
        let (job, epoch) = (job.to_owned(), self.epoch);
        self.parts.ledger.read(move |reader| reader.ran_before(&job, epoch, due_at)).await
    }

    /// Notices a clock that was set back, and remembers what it shows.
    pub(super) async fn look_at_clock(&mut self) -> Result<(), crate::store::DbError> {
        let now = self.parts.host.clock.now();
        if now < self.last_seen - STEP_BACK {
            self.epoch += 1;
            tracing::warn!(epoch = self.epoch, before = %self.last_seen, %now, "the clock was set back; schedules go on in a new epoch");
            self.parts.ledger.set_fact("epoch", self.epoch).await?;
            self.last_seen = now;
            self.held.clear();
            self.adopt_schedules().await?;
        }
        if now - self.last_seen >= TimeDelta::seconds(10) || now < self.last_seen {
            self.parts.ledger.set_fact("last_seen", now.timestamp_millis()).await?;
            self.last_seen = now;
        }
        Ok(())
    }

    /// Writes a row for every slot that came due while no daemon was there.
    pub(super) async fn settle_downtime(&mut self) -> Result<(), crate::store::DbError> {
        let now = self.parts.host.clock.now();
        self.abandon_open_slots(now).await?;
        let epoch = self.epoch;
        let periods = self.parts.ledger.read(|reader| reader.periods(None)).await?;
        for period in
            periods.into_iter().filter(|period| period.ended.is_none() && period.epoch == epoch)
        {
            let Some(schedule) = Schedule::from_record(&period.schedule, &period.zone) else {
                continue;
            };
            let dues: Vec<DateTime<Utc>> =
                schedule.iter_after(period.settled).take_while(|due| *due <= now).collect();
            let config = self.config.borrow().clone();
            let current = config
                .jobs
                .get(period.job.as_str())
                .filter(|job| job.enabled)
                .and_then(|job| job.schedule.as_ref());
            if current.is_some_and(|current| {
                current.to_record() == period.schedule && current.zone().name() == period.zone
            }) {
                self.settle(&period.job, &dues, now).await?;
            } else {
                let slots = dues.iter().map(|due_at| Slot {
                    job: period.job.clone(),
                    epoch,
                    due_at: *due_at,
                    state: SlotState::Missed,
                    run_id: None,
                    reason: "the daemon was not there, and the schedule has changed since"
                        .to_owned(),
                    zone: period.zone.clone(),
                    config_digest: config.digest.clone(),
                });
                self.claim(slots.collect(), now).await?;
            }
        }
        Ok(())
    }

    /// Slots whose run was cut by the end of the daemon before this one: claimed slots never run again.
    pub(super) async fn abandon_open_slots(
        &mut self,
        now: DateTime<Utc>,
    ) -> Result<(), crate::store::DbError> {
        for slot in self.parts.ledger.read(|reader| reader.open_slots()).await? {
            let Some(run_id) = slot.run_id.as_deref().and_then(|id| RunId::parse(id).ok()) else {
                continue;
            };
            let began = self
                .parts
                .host
                .state
                .find_run(&run_id)
                .is_some_and(|run| run.transcript().exists());
            let (state, reason) = match began {
                true => (SlotState::Ran, "interrupted: the daemon stopped while it ran"),
                false => (SlotState::Missed, "the daemon stopped before its run began"),
            };
            self.parts.ledger.decide(run_id, state, reason.to_owned(), now).await?;
        }
        Ok(())
    }

    /// Puts the schedules of the configuration into force, in the ledger and in the ticker.
    pub(super) async fn adopt_schedules(&mut self) -> Result<(), crate::store::DbError> {
        let now = self.parts.host.clock.now();
        let config = self.config.borrow().clone();
        let schedules: BTreeMap<String, Schedule> = config
            .jobs
            .values()
            .filter(|job| job.enabled)
            .filter_map(|job| Some((job.name.to_string(), job.schedule.clone()?)))
            .collect();
        let known = self.parts.ledger.read(|reader| reader.periods(None)).await?;
        let gone = known
            .iter()
            .filter(|period| period.ended.is_none() && !schedules.contains_key(&period.job));
        for period in gone {
            self.parts.ledger.set_schedule(period.job.clone(), self.epoch, None, now).await?;
        }
        for (job, schedule) in &schedules {
            let record = Some((schedule.to_record(), schedule.zone().name().to_owned()));
            self.parts.ledger.set_schedule(job.clone(), self.epoch, record, now).await?;
        }
        self.ticker.set(schedules, now);
        Ok(())
    }
}

fn missed_reason(job: &Job, due_at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let late = humantime::format_duration(Duration::from_secs(
        (now - due_at).num_seconds().unsigned_abs(),
    ));
    match job.catchup {
        crate::config::Catchup::None => format!(
            "the daemon was not there, and the job catches nothing up; noticed {late} later"
        ),
        crate::config::Catchup::Latest => {
            let window = humantime::format_duration(job.catchup_window);
            format!(
                "the daemon was not there; noticed {late} later, outside of its window of {window}"
            )
        }
    }
}
