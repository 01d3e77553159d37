//! Due times into slots: what becomes of each is decided, written, and only then done.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::{CLAIM_BATCH, REPEAT_WINDOW, RunRequest, STEP_BACK, Supervisor, Waiting};
use crate::config::{Catchup, Config, Job};
use crate::daemon::fates::{Fate, fates};
use crate::daemon::views::starts_at;
use crate::domain::{RunId, Trigger};
use crate::run::TriggerFacts;
use crate::schedule::Schedule;
use crate::store::{DbError, ReadLine, RunRow, Slot, SlotState, read_lines};

/// A schedule as the ledger keeps it: job, record, zone.
type Kept = (String, String, String);

impl Supervisor {
    /// Decides the fate of a job's due times, writes it, and queues what is to run.
    pub(super) async fn settle(
        &mut self,
        job_name: &str,
        epoch: i64,
        dues: &[DateTime<Utc>],
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        let config = self.config.borrow().clone();
        let Some((job, schedule)) =
            config.jobs.get(job_name).and_then(|job| Some((job.clone(), job.schedule.clone()?)))
        else {
            return Ok(());
        };
        let decided = fates(dues, |due| starts_at(&job, due), now, job.catchup, job.catchup_window);
        // The latest first: if only one of several can run, it is that one.
        let mut busy = self.is_busy(job_name);
        let mut outcomes: BTreeMap<DateTime<Utc>, Outcome> = BTreeMap::new();
        let mut waiting: Vec<Waiting> = Vec::new();
        for (due_at, fate) in dues
            .iter()
            .zip(&decided)
            .rev()
            .filter(|(_, fate)| matches!(fate, Fate::Run | Fate::CatchUp))
        {
            let outcome = if self.ran_in_earlier_epoch(&schedule, job_name, epoch, *due_at).await? {
                Outcome::Repeated
            } else if busy {
                Outcome::Busy
            } else {
                busy = true;
                let trigger = if *fate == Fate::Run { Trigger::Schedule } else { Trigger::Catchup };
                let facts = TriggerFacts { trigger, scheduled_for: Some(*due_at), attempt: 1 };
                let run_id = RunId::from_ulid(ulid::Ulid::generate());
                waiting.push(Waiting {
                    run_id: run_id.clone(),
                    job: job_name.to_owned(),
                    facts,
                    request: RunRequest::default(),
                });
                Outcome::Runs(run_id)
            };
            outcomes.insert(*due_at, outcome);
        }
        let makes_up = waiting.first().map(|run| run.run_id.clone());
        let slot = |due_at: DateTime<Utc>, fate: Fate| {
            let (state, reason, run_id) = match (fate, outcomes.get(&due_at)) {
                (Fate::Missed, _) => (SlotState::Missed, missed_reason(&job, due_at, now), None),
                (Fate::Coalesced, _) => (
                    SlotState::Coalesced,
                    "a later slot of this job makes up for it".to_owned(),
                    makes_up.clone(),
                ),
                (_, Some(Outcome::Repeated)) => {
                    (SlotState::Skipped, "it ran before the clock was set back".to_owned(), None)
                }
                (_, Some(Outcome::Busy) | None) => (
                    SlotState::Skipped,
                    "the job was still waiting or running (overlap: skip)".to_owned(),
                    None,
                ),
                (Fate::CatchUp, Some(Outcome::Runs(run_id))) => (
                    SlotState::Queued,
                    "caught up after the daemon was away".to_owned(),
                    Some(run_id.clone()),
                ),
                (Fate::Run, Some(Outcome::Runs(run_id))) => {
                    (SlotState::Queued, "due".to_owned(), Some(run_id.clone()))
                }
            };
            Slot {
                job: job_name.to_owned(),
                epoch,
                due_at,
                state,
                run_id,
                reason,
                zone: schedule.zone().name().to_owned(),
                config_digest: config.digest.clone(),
            }
        };
        let mut new = Vec::new();
        let pairs: Vec<(DateTime<Utc>, Fate)> = dues.iter().copied().zip(decided).collect();
        for batch in pairs.chunks(CLAIM_BATCH) {
            new.extend(
                self.claim(batch.iter().map(|(due_at, fate)| slot(*due_at, *fate)).collect(), now)
                    .await?,
            );
        }
        waiting.retain(|run| new.contains(&run.run_id));
        self.queue.extend(waiting);
        Ok(())
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

    /// Returns up to when each job of a batch is settled: not past a due time that is still held for its jitter.
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

    /// Tells whether a time of day came already before the clock was set back. One that lies further back than the window is a correction of
    /// the clock: the new time counts (CRON-3).
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

    /// Notices a clock that was set back, and remembers what it shows.
    pub(super) async fn look_at_clock(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        if now < self.last_seen - STEP_BACK {
            let (ended, epoch) = (self.last_seen, self.epoch + 1);
            tracing::warn!(epoch, before = %ended, %now, "the clock was set back; schedules go on in a new epoch");
            // What came due before the step stays due, in its own epoch.
            for fire in self.ticker.take(ended) {
                self.hold(fire);
            }
            let schedules = schedules(&self.config.borrow());
            self.parts.ledger.begin_epoch(epoch, ended, kept(&schedules), now).await?;
            self.held.retain(|(_, due_at, _), of| *of < epoch && *due_at <= ended);
            self.epoch = epoch;
            self.epoch_ended = Some(ended);
            self.last_seen = now;
            self.ticker.set(schedules, now);
        } else if (now - self.last_seen).abs() >= TimeDelta::seconds(10) {
            self.parts.ledger.set_fact("last_seen", now.timestamp_millis()).await?;
            self.last_seen = now;
        }
        Ok(())
    }

    /// Writes a row for every slot that came due until `now` while no daemon was there.
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
                self.settle(&period.job, epoch, &dues, now).await?;
                continue;
            }
            for batch in dues.chunks(CLAIM_BATCH) {
                let slots = batch.iter().map(|due_at| Slot {
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
    async fn abandon_open_slots(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        for slot in self.parts.ledger.read(|reader| reader.open_slots()).await? {
            let Some(run_id) = slot.run_id.as_deref().and_then(|id| RunId::parse(id).ok()) else {
                continue;
            };
            let lines: Vec<ReadLine> = self
                .parts
                .host
                .state
                .find_run(&run_id)
                .and_then(|run| read_lines(&run.transcript()).ok())
                .map(|lines| lines.map_while(Result::ok).collect())
                .unwrap_or_default();
            let (state, reason) = match RunRow::fold(&lines) {
                Some(row) => {
                    let word =
                        |word: Option<String>| word.unwrap_or_else(|| "interrupted".to_owned());
                    (SlotState::Ran, format!("{} ({})", word(row.outcome), word(row.stop_reason)))
                }
                None => (SlotState::Missed, "the daemon stopped before its run began".to_owned()),
            };
            self.parts.ledger.decide(run_id, state, reason, now).await?;
        }
        Ok(())
    }

    /// Puts the schedules of the configuration into force from `now` on, in the ledger and in the ticker.
    pub(super) async fn adopt_schedules(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let schedules = schedules(&self.config.borrow());
        self.parts.ledger.set_schedules(self.epoch, kept(&schedules), now).await?;
        self.ticker.set(schedules, now);
        Ok(())
    }
}

/// What becomes of a due time that could run.
enum Outcome {
    Runs(RunId),
    Busy,
    Repeated,
}

/// Returns the schedules that a configuration puts into force.
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

fn missed_reason(job: &Job, due_at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let late = humantime::format_duration(Duration::from_secs(
        (now - due_at).num_seconds().unsigned_abs(),
    ));
    match job.catchup {
        Catchup::None => format!(
            "the daemon was not there, and the job catches nothing up; noticed {late} later"
        ),
        Catchup::Latest => {
            let window = humantime::format_duration(job.catchup_window);
            format!(
                "the daemon was not there; noticed {late} later, outside of its window of {window}"
            )
        }
    }
}
