//! The one owner of the daemon's state: fires, the queue, active runs, the configuration in force.
//!
//! Everything that happens is a message to it. A slot is in the ledger before anything of its run begins; every task it starts is joined.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fates::{Fate, fates};
use super::ticker::{Fire, Ticker};
use super::views::{StatusConfig, StatusJobs, StatusReport, StatusRuns, error_lines, starts_at};
use crate::config::{Config, Job, Loaded};
use crate::domain::{RunId, StopReason, Trigger};
use crate::run::{Ended, Host, RunError, RunSpec, TriggerFacts, execute};
use crate::schedule::Schedule;
use crate::store::{Index, Ledger, Slot, SlotState};

/// The clock is looked at so often at least, so that neither a suspend nor a step of it goes unnoticed.
const LOOK: Duration = Duration::from_secs(30);

/// A clock that was set back by more than this begins a new epoch.
const STEP_BACK: TimeDelta = TimeDelta::seconds(60);

/// In a new epoch, a time of day that ran so recently before does not run again.
const REPEAT_WINDOW: TimeDelta = TimeDelta::hours(3);

/// Slots that are claimed in one transaction.
const CLAIM_BATCH: usize = 5000;

/// After a claim that failed, the next is tried so much later.
const CLAIM_PAUSE: Duration = Duration::from_secs(5);

/// What reaches the supervisor from outside.
#[derive(Debug)]
pub enum Command {
    /// How is it?
    Status(oneshot::Sender<StatusReport>),
    /// Run a job now.
    Run(RunRequest, oneshot::Sender<Result<RunId, CommandError>>),
    /// Stop a run.
    Cancel(RunId, oneshot::Sender<Result<(), CommandError>>),
    /// Load the configuration again.
    Reload,
    /// End; a second one shortens the grace.
    Stop,
}

/// A job to run now.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunRequest {
    /// The job; taken from the address.
    #[serde(skip)]
    pub job: String,
    /// Replace entries of its `vars`.
    pub vars: BTreeMap<String, String>,
    /// Replaces its prompt.
    pub prompt: Option<String>,
}

/// Why a command cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such job.
    #[error("there is no job `{0}`")]
    NoJob(String),
    /// No such run at work.
    #[error("the run {0} is neither waiting nor at work")]
    NoRun(RunId),
    /// The wish cannot be fulfilled as it is.
    #[error("{0}")]
    Invalid(String),
    /// No new runs.
    #[error("the daemon is being stopped")]
    Stopping,
}

/// What others need of a running daemon.
#[derive(Debug, Clone)]
pub struct Handle {
    /// To the supervisor.
    pub commands: mpsc::Sender<Command>,
    /// The configuration in force.
    pub config: watch::Receiver<Arc<Config>>,
}

/// What a supervisor is made of.
pub struct Parts {
    /// The machine.
    pub host: Host,
    /// The first configuration.
    pub config: Arc<Config>,
    /// Slots.
    pub ledger: Ledger,
    /// Runs.
    pub index: Index,
    /// Loads the configuration again.
    pub reload: Box<dyn Fn() -> Loaded + Send + Sync>,
    /// What does not work as it should from the start.
    pub degraded: Vec<String>,
    /// How often the service manager wants to hear from us.
    pub watchdog: Option<Duration>,
}

/// A run that waits for a place.
struct Waiting {
    run_id: RunId,
    job: String,
    facts: TriggerFacts,
    request: RunRequest,
}

/// A run at work.
struct Active {
    job: String,
    stop: watch::Sender<Option<StopReason>>,
}

/// The supervisor.
pub struct Supervisor {
    parts: Parts,
    reload: Arc<dyn Fn() -> Loaded + Send + Sync>,
    commands: mpsc::Receiver<Command>,
    config: watch::Sender<Arc<Config>>,
    config_state: StatusConfig,
    ticker: Ticker,
    /// Fires that wait for their moment, by when they start.
    held: BTreeMap<(DateTime<Utc>, DateTime<Utc>, String), ()>,
    queue: VecDeque<Waiting>,
    active: HashMap<RunId, Active>,
    tasks: JoinSet<(RunId, Result<Ended, RunError>)>,
    last_outcomes: HashMap<String, bool>,
    epoch: i64,
    last_seen: DateTime<Utc>,
    started_at: DateTime<Utc>,
    not_before: Option<Instant>,
    ledger_fault: Option<String>,
    stopping: Option<Instant>,
}

impl Supervisor {
    /// Brings the ledger up to the present and returns a supervisor that is ready to run, with a handle to it.
    ///
    /// Slots that came due while no daemon was there get their rows here; those that are to be caught up begin in [`Self::run`].
    /// *Errors*: the ledger or the scheduler.
    pub async fn new(
        mut parts: Parts,
    ) -> Result<(Self, Handle), Box<dyn std::error::Error + Send + Sync>> {
        let now = parts.host.clock.now();
        let ticker = Ticker::start(parts.host.clock.clone()).await?;
        let (commands, receiver) = mpsc::channel(64);
        let (config, config_receiver) = watch::channel(parts.config.clone());
        let (epoch, last_seen) = parts
            .ledger
            .read(|reader| Ok((reader.fact("epoch")?, reader.fact("last_seen")?)))
            .await?;
        let config_state = StatusConfig {
            valid: true,
            digest: parts.config.digest.clone(),
            loaded_at: now,
            errors: Vec::new(),
            widened: Vec::new(),
            needs_restart: Vec::new(),
        };
        let reload = Arc::from(std::mem::replace(
            &mut parts.reload,
            Box::new(|| Loaded { config: None, report: Default::default() }),
        ));
        let mut supervisor = Self {
            reload,
            commands: receiver,
            config,
            config_state,
            ticker,
            held: BTreeMap::new(),
            queue: VecDeque::new(),
            active: HashMap::new(),
            tasks: JoinSet::new(),
            last_outcomes: HashMap::new(),
            epoch: epoch.unwrap_or(0),
            last_seen: last_seen.and_then(DateTime::from_timestamp_millis).unwrap_or(now),
            started_at: now,
            not_before: None,
            ledger_fault: None,
            stopping: None,
            parts,
        };
        supervisor.look_at_clock().await?;
        supervisor.settle_downtime().await?;
        supervisor.adopt_schedules().await?;
        Ok((supervisor, Handle { commands, config: config_receiver }))
    }

    /// Runs until it is stopped; then no run and no process of one is alive.
    pub async fn run(mut self) {
        let mut watchdog = self.parts.watchdog.map(|period| tokio::time::interval(period / 2));
        self.fill().await;
        loop {
            if self.stopping.is_some() && self.tasks.is_empty() {
                break;
            }
            let wake = self.next_wake();
            tokio::select! {
                () = self.ticker.woken() => self.tick().await,
                () = tokio::time::sleep_until(wake) => self.tick().await,
                Some(command) = self.commands.recv() => self.on_command(command).await,
                Some(joined) = self.tasks.join_next(), if !self.tasks.is_empty() => self.on_ended(joined).await,
                () = beat(watchdog.as_mut()) => {
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                }
            }
        }
        self.ticker.stop().await;
        let _ = self
            .parts
            .ledger
            .set_fact("last_seen", self.parts.host.clock.now().timestamp_millis())
            .await;
    }

    /// Returns when to look next, if nothing happens before.
    fn next_wake(&self) -> Instant {
        let now = self.parts.host.clock.now();
        let next = self
            .held
            .keys()
            .next()
            .map(|(starts, ..)| (*starts - now).to_std().unwrap_or_default());
        let mut wake = Instant::now() + next.unwrap_or(LOOK).min(LOOK);
        if let Some(not_before) = self.not_before {
            wake = wake.max(not_before);
        }
        self.stopping.map_or(wake, |deadline| wake.min(deadline))
    }

    async fn tick(&mut self) {
        if let Some(deadline) = self.stopping {
            if Instant::now() >= deadline {
                self.stop_all(StopReason::Interrupted);
                self.stopping = Some(Instant::now() + LOOK);
            }
            return;
        }
        if let Err(error) = self.look_at_clock().await {
            self.ledger_failed(&error);
            return;
        }
        let now = self.parts.host.clock.now();
        for fire in self.ticker.take(now) {
            self.hold(fire);
        }
        self.begin_due(now).await;
        self.fill().await;
    }

    /// Keeps a fire until it starts.
    fn hold(&mut self, fire: Fire) {
        let config = self.config.borrow().clone();
        if let Some(job) = config.jobs.get(fire.job.as_str()) {
            self.held.insert((starts_at(job, fire.due_at), fire.due_at, fire.job), ());
        }
    }

    /// Claims what is to start by now. What cannot be claimed is held on.
    async fn begin_due(&mut self, now: DateTime<Utc>) {
        if self.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return;
        }
        let mut by_job: BTreeMap<String, Vec<DateTime<Utc>>> = BTreeMap::new();
        while let Some(((starts, _, _), ())) = self.held.first_key_value()
            && *starts <= now
        {
            let Some(((_, due_at, job), ())) = self.held.pop_first() else { break };
            by_job.entry(job).or_default().push(due_at);
        }
        for (job, mut dues) in by_job {
            dues.sort();
            if let Err(error) = self.settle(&job, &dues, now).await {
                self.ledger_failed(&error);
                let config = self.config.borrow().clone();
                if let Some(found) = config.jobs.get(job.as_str()) {
                    self.held.extend(
                        dues.into_iter().map(|due| ((starts_at(found, due), due, job.clone()), ())),
                    );
                }
            }
        }
    }

    fn ledger_failed(&mut self, error: &dyn std::fmt::Display) {
        tracing::error!(%error, "slots cannot be claimed; no run begins until they can");
        self.ledger_fault = Some(format!("slots cannot be claimed: {error}"));
        self.not_before = Some(Instant::now() + CLAIM_PAUSE);
    }

    /// Decides the fate of a job's due times, writes it, and queues what is to run.
    async fn settle(
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
    async fn claim(
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

    async fn ran_in_earlier_epoch(
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

    fn is_busy(&self, job: &str) -> bool {
        self.queue.iter().any(|waiting| waiting.job == job)
            || self.active.values().any(|active| active.job == job)
    }

    /// Notices a clock that was set back, and remembers what it shows.
    async fn look_at_clock(&mut self) -> Result<(), crate::store::DbError> {
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
    async fn settle_downtime(&mut self) -> Result<(), crate::store::DbError> {
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
    async fn abandon_open_slots(
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
    async fn adopt_schedules(&mut self) -> Result<(), crate::store::DbError> {
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

    /// Starts waiting runs as long as there is a place.
    async fn fill(&mut self) {
        while self.stopping.is_none()
            && self.active.len() < self.parts.host_limit(&self.config.borrow())
        {
            let Some(waiting) = self.queue.pop_front() else { return };
            self.start(waiting).await;
        }
    }

    async fn start(&mut self, waiting: Waiting) {
        let config = self.config.borrow().clone();
        let now = self.parts.host.clock.now();
        let Waiting { run_id, job: name, facts, request } = waiting;
        let spec = match config.jobs.get(name.as_str()) {
            None => Err("the job is gone from the configuration".to_owned()),
            Some(job) => RunSpec::new(
                run_id.clone(),
                config.clone(),
                job.clone(),
                facts,
                &request.vars,
                request.prompt,
            )
            .map_err(|error| error.to_string()),
        };
        let spec = match spec {
            Ok(spec) => spec,
            Err(reason) => {
                tracing::error!(job = name, %run_id, reason, "a run cannot begin");
                self.decide(run_id, SlotState::Missed, reason, now).await;
                return;
            }
        };
        self.decide(run_id.clone(), SlotState::Running, "at work".to_owned(), now).await;
        tracing::info!(job = name, %run_id, trigger = facts.trigger.as_str(), "run begins");
        let (stop, stopped) = watch::channel(None);
        self.active.insert(run_id.clone(), Active { job: name, stop });
        let host = self.parts.host.clone();
        self.tasks.spawn(async move {
            let run = AssertUnwindSafe(execute(spec, host, stopped)).catch_unwind().await;
            (run_id, run.unwrap_or(Err(RunError::Panicked)))
        });
    }

    async fn on_ended(
        &mut self,
        joined: Result<(RunId, Result<Ended, RunError>), tokio::task::JoinError>,
    ) {
        let (run_id, result) = match joined {
            Ok(ended) => ended,
            Err(error) => {
                // The session has a task of its own; this is the code around it.
                tracing::error!(%error, "the task of a run panicked");
                return;
            }
        };
        let job = self.active.remove(&run_id).map(|active| active.job).unwrap_or_default();
        let now = self.parts.host.clock.now();
        match result {
            Ok(ended) => {
                let end = &ended.end;
                tracing::info!(job, %run_id, outcome = %end.outcome, stop_reason = %end.stop_reason, duration_ms = end.duration_ms, "run ended");
                self.last_outcomes.insert(job, end.outcome == crate::domain::Outcome::Succeeded);
                self.decide(
                    run_id.clone(),
                    SlotState::Ran,
                    format!("{} ({})", end.outcome, end.stop_reason),
                    now,
                )
                .await;
                if let Some(run) = self.parts.host.state.find_run(&run_id)
                    && let Err(error) = self.parts.index.refresh(run).await
                {
                    tracing::warn!(%run_id, %error, "the index could not take a run in; `dutyd reindex` makes it again");
                }
            }
            Err(error) => {
                tracing::error!(job, %run_id, %error, "a run could not be recorded, so it did not begin");
                self.last_outcomes.insert(job, false);
                self.decide(run_id, SlotState::Missed, format!("not run: {error}"), now).await;
            }
        }
        self.fill().await;
    }

    async fn decide(
        &mut self,
        run_id: RunId,
        state: SlotState,
        reason: String,
        now: DateTime<Utc>,
    ) {
        if let Err(error) = self.parts.ledger.decide(run_id, state, reason, now).await {
            tracing::error!(%error, "what became of a slot cannot be written; the next start settles it");
            self.ledger_fault = Some(format!("slots cannot be written: {error}"));
        }
    }

    async fn on_command(&mut self, command: Command) {
        match command {
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Run(request, reply) => {
                let result = self.enqueue(request);
                let _ = reply.send(result);
                self.fill().await;
            }
            Command::Cancel(run_id, reply) => {
                let result = self.cancel(&run_id).await;
                let _ = reply.send(result);
            }
            Command::Reload => self.reload().await,
            Command::Stop => self.begin_stop().await,
        }
    }

    fn enqueue(&mut self, request: RunRequest) -> Result<RunId, CommandError> {
        if self.stopping.is_some() {
            return Err(CommandError::Stopping);
        }
        let config = self.config.borrow().clone();
        let job = config
            .jobs
            .get(request.job.as_str())
            .ok_or_else(|| CommandError::NoJob(request.job.clone()))?;
        if let Some(unknown) = request.vars.keys().find(|name| !job.vars.contains_key(*name)) {
            return Err(CommandError::Invalid(format!(
                "the job `{}` has no variable `{unknown}`",
                job.name
            )));
        }
        if self.is_busy(&request.job) {
            tracing::warn!(
                job = request.job,
                "run by hand although it is waiting or at work already"
            );
        }
        let run_id = RunId::from_ulid(ulid::Ulid::generate());
        let facts = TriggerFacts { trigger: Trigger::Manual, scheduled_for: None, attempt: 1 };
        self.queue.push_back(Waiting {
            run_id: run_id.clone(),
            job: request.job.clone(),
            facts,
            request,
        });
        Ok(run_id)
    }

    async fn cancel(&mut self, run_id: &RunId) -> Result<(), CommandError> {
        if let Some(active) = self.active.get(run_id) {
            active.stop.send_replace(Some(StopReason::Cancelled));
            return Ok(());
        }
        let at = self
            .queue
            .iter()
            .position(|waiting| waiting.run_id == *run_id)
            .ok_or_else(|| CommandError::NoRun(run_id.clone()))?;
        self.queue.remove(at);
        let now = self.parts.host.clock.now();
        self.decide(
            run_id.clone(),
            SlotState::Skipped,
            "cancelled before it began".to_owned(),
            now,
        )
        .await;
        Ok(())
    }

    /// Loads the files again; with any error the configuration in force stays (CFG-1).
    async fn reload(&mut self) {
        let reload = self.reload.clone();
        let Ok(loaded) = tokio::task::spawn_blocking(move || reload()).await else { return };
        let now = self.parts.host.clock.now();
        self.config_state.valid = loaded.report.errors.is_empty();
        self.config_state.errors = error_lines(&loaded.report.errors);
        let Some(config) = loaded.config else {
            tracing::error!(
                report = loaded.report.summary(),
                "the new configuration has errors; the old one stays in force"
            );
            return;
        };
        // What is due under the old schedules is settled first.
        self.tick().await;
        let superseded: Vec<Slot> = std::mem::take(&mut self.held)
            .into_keys()
            .filter(|(_, due_at, _)| *due_at <= now)
            .map(|(_, due_at, job)| Slot {
                job,
                epoch: self.epoch,
                due_at,
                state: SlotState::Superseded,
                run_id: None,
                reason: "the configuration was loaded again before its run began".to_owned(),
                zone: String::new(),
                config_digest: self.config_state.digest.clone(),
            })
            .collect();
        if let Err(error) = self.claim(superseded, now).await {
            self.ledger_failed(&error);
        }
        self.config_state.digest.clone_from(&config.digest);
        self.config_state.loaded_at = now;
        let jobs = config.jobs.len();
        self.config.send_replace(Arc::new(config));
        match self.adopt_schedules().await {
            Ok(()) => tracing::info!(
                jobs,
                digest = self.config_state.digest,
                "the configuration was loaded again"
            ),
            Err(error) => self.ledger_failed(&error),
        }
        self.fill().await;
    }

    async fn begin_stop(&mut self) {
        if self.stopping.is_some() {
            tracing::info!("a second signal: runs are stopped now");
            self.stop_all(StopReason::Interrupted);
            return;
        }
        let grace = self.config.borrow().settings.shutdown_grace;
        tracing::info!(
            active = self.active.len(),
            queued = self.queue.len(),
            grace_ms = grace.as_millis(),
            "stopping"
        );
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.stopping = Some(Instant::now() + grace);
        let now = self.parts.host.clock.now();
        for waiting in std::mem::take(&mut self.queue) {
            self.decide(
                waiting.run_id,
                SlotState::Missed,
                "the daemon was stopped before its run began".to_owned(),
                now,
            )
            .await;
        }
    }

    fn stop_all(&mut self, reason: StopReason) {
        for active in self.active.values() {
            active.stop.send_replace(Some(reason));
        }
    }

    fn status(&self) -> StatusReport {
        let mut degraded = self.parts.degraded.clone();
        degraded.extend(self.ledger_fault.clone());
        if !self.config_state.valid {
            degraded
                .push("the configuration on disk has errors; an older one is in force".to_owned());
        }
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started_at,
            config: self.config_state.clone(),
            runs: StatusRuns { active: self.active.len(), queued: self.queue.len() },
            jobs: StatusJobs {
                total: self.config.borrow().jobs.len(),
                paused: 0,
                failing: self.last_outcomes.values().filter(|good| !**good).count(),
            },
            sandbox: "off".to_owned(),
            degraded,
        }
    }
}

impl Parts {
    fn host_limit(&self, config: &Config) -> usize {
        config.settings.max_concurrent_runs
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

async fn beat(watchdog: Option<&mut tokio::time::Interval>) {
    match watchdog {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}
