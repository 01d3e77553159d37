//! The single owner of daemon state: due times, queue, active runs, configuration in effect.
//!
//! Everything that happens is a message to the supervisor. The supervisor writes a slot to the
//! ledger before it starts the slot's run, and joins every task that it spawns.

mod again;
mod backfill;
mod commands;
mod decisions;
mod disk;
mod doubt;
mod downtime;
mod ends;
mod notice;
mod pauses;
mod phase;
mod places;
mod queue;
mod reload;
mod requested;
mod resumed;
mod retention;
mod retries;
mod slots;
mod spans;
mod unbegun;
mod unrecovered;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::command::{Command, CommandError, Started};
use super::disposition::Cause;
use super::recovery::Inheritance;
use super::ticker::{DueTime, Ticker};
use super::views::{StatusConfig, starts_at};
use crate::config::{Config, Loaded};
use crate::domain::{Epoch, JobName, Origin, RunId, Stop, StopReason};
use crate::run::{Ended, Host, RunError, RunSpec, execute};
use crate::store::{Claim, EndedRuns, Ledger, SlotState, Span};
use decisions::Decision;
use doubt::Doubt;
use queue::{Queue, Waiting};
use reload::Reloads;
pub use reload::log_warnings;
use retention::Pruning;
use slots::{DueFacts, Dues, JobEpoch};
use unrecovered::Unrecovered;

/// Longest time between two looks at the clock. Neither a suspend nor a clock step may delay a
/// schedule by more than 5 s (CRON-3).
const LOOK: Duration = Duration::from_secs(4);

/// If the clock is set back by more than this, a new epoch starts. Without a new epoch, nothing
/// would be due until the clock reaches the old time again.
const STEP_BACK: TimeDelta = TimeDelta::seconds(4);

/// Shortest time between two saves of the clock reading to the ledger. The next start of the daemon
/// reads the saved value to tell whether the clock was set back.
const KEEP_CLOCK: TimeDelta = TimeDelta::seconds(10);

/// A new epoch skips a due time of a schedule with fixed times of day, if that due time already ran
/// in an earlier epoch and lies at most this far before the end of that epoch.
const REPEAT_WINDOW: TimeDelta = TimeDelta::hours(3);

/// A ledger transaction takes no further job once it has this many slots.
const CLAIM_BATCH: usize = 20_000;

/// Why a slot is superseded.
const SUPERSEDED: &str = "the schedule changed before its run began";

/// The interface to a running supervisor: its commands and its configuration.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Sends commands to the supervisor.
    pub commands: mpsc::Sender<Command>,
    /// The configuration in effect.
    pub config: watch::Receiver<Arc<Config>>,
}

/// The inputs of [`Supervisor::new`].
pub struct Parts {
    /// The resources that all runs of this process share.
    pub host: Host,
    /// The configuration at startup.
    pub config: Arc<Config>,
    /// The ledger of slots and queued runs.
    pub ledger: Ledger,
    /// Reloads the configuration from disk.
    pub reload: Box<dyn Fn() -> Loaded + Send + Sync>,
    /// What the previous daemon left.
    pub inherited: Inheritance,
    /// The watchdog timeout of systemd; `None` disables the messages to the watchdog.
    pub watchdog: Option<Duration>,
}

/// A due time that waits for its start time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    /// The due time plus jitter.
    starts_at: DateTime<Utc>,
    due_at: DateTime<Utc>,
    job: JobName,
    /// The epoch in which the time came due.
    epoch: Epoch,
    /// The due times that follow and are too late to run, like this one.
    span: Option<Span>,
}

/// A run in progress.
struct Active {
    job: JobName,
    /// The name of its model; empty if it has none.
    model: String,
    /// Whether it runs because of `catchup: all` or a backfill.
    is_caught_up: bool,
    /// Whether it continues after a crash or a stop of the daemon.
    is_resumed: bool,
    origin: Origin,
    stop: watch::Sender<Option<Stop>>,
}

impl Active {
    /// Tells whether a newer run of the schedule may replace it.
    fn is_replaceable(&self) -> bool {
        queue::is_replaceable(self.is_caught_up, self.origin.trigger)
    }
}

/// The owner of the daemon's state; [`Supervisor::run`] drives it.
pub struct Supervisor {
    parts: Parts,
    load: Arc<dyn Fn() -> Loaded + Send + Sync>,
    reloads: Reloads,
    commands: mpsc::Receiver<Command>,
    config: watch::Sender<Arc<Config>>,
    config_state: StatusConfig,
    ticker: Ticker,
    /// Due times that wait for their start time.
    held: BTreeSet<Held>,
    queue: Queue,
    /// The names of the paused jobs.
    pauses: BTreeSet<String>,
    /// Waiting attempts, by the time at which each may begin and by its run id.
    retries: BTreeMap<(DateTime<Utc>, RunId), Waiting>,
    pruning: Pruning,
    ticked_at: Instant,
    active: HashMap<RunId, Active>,
    tasks: JoinSet<(RunId, Result<Ended, RunError>)>,
    /// Whether the last run of each job succeeded, by job.
    last_outcomes: HashMap<JobName, bool>,
    epoch: Epoch,
    /// The last clock reading of each earlier epoch.
    epoch_ends: BTreeMap<Epoch, DateTime<Utc>>,
    last_seen: DateTime<Utc>,
    doubt: Doubt,
    /// The last clock reading that was saved to the ledger.
    last_kept: DateTime<Utc>,
    started_at: DateTime<Utc>,
    /// When to find out whether the disk can be written again; set after a fault.
    not_before: Option<Instant>,
    /// What cannot be written to the disk. While it is set, no run begins.
    disk_fault: Option<String>,
    /// The decisions that could not be written to the ledger, oldest first.
    unwritten: VecDeque<Decision>,
    unrecovered: Unrecovered,
    /// Why dutyd cannot watch the configuration files.
    watch_failure: Option<String>,
    /// Set once the daemon stops: when to stop all runs that are still active.
    stopping: Option<Instant>,
    /// The line that systemd was told last.
    told: String,
}

impl Supervisor {
    /// Brings the ledger up to date and returns a supervisor that is ready to run, with its handle.
    ///
    /// Decides each slot that came due while the daemon was down. Decides again each slot whose run
    /// had not begun. The runs start in [`Self::run`].
    /// *Errors*: the ledger or the scheduler fails.
    pub async fn new(
        mut parts: Parts,
    ) -> Result<(Self, Handle), Box<dyn std::error::Error + Send + Sync>> {
        let now = parts.host.clock.now();
        let ticker = Ticker::start(parts.host.clock.clone()).await?;
        let (commands, receiver) = mpsc::channel(64);
        let (config, config_receiver) = watch::channel(parts.config.clone());
        let (epoch, epoch_ends, last_seen, paused) = parts
            .ledger
            .read(|reader| {
                let meta = |name| reader.meta(name);
                Ok((meta("epoch")?, reader.epoch_ends()?, meta("last_seen")?, reader.pauses()?))
            })
            .await?;
        let config_state = StatusConfig {
            valid: true,
            directory: real_path(&parts.config.directory),
            digest: parts.config.digest.clone(),
            disk_digest: None,
            loaded_at: now,
            errors: Vec::new(),
            widened: Vec::new(),
            needs_restart: Vec::new(),
            changed_values: Vec::new(),
            warnings: Vec::new(),
            added: Vec::new(),
            paused_removed: Vec::new(),
        };
        let load = Arc::from(std::mem::replace(
            &mut parts.reload,
            Box::new(|| Loaded { config: None, report: Default::default() }),
        ));
        let last_outcomes = pauses::last_outcomes(&mut parts).await;
        let mut supervisor = Self {
            load,
            reloads: Reloads::default(),
            commands: receiver,
            config,
            config_state,
            ticker,
            held: BTreeSet::new(),
            queue: Queue::default(),
            retries: BTreeMap::new(),
            pauses: paused.into_iter().map(|pause| pause.job).collect(),
            pruning: Pruning::default(),
            ticked_at: Instant::now(),
            active: HashMap::new(),
            tasks: JoinSet::new(),
            last_outcomes,
            epoch: epoch.map_or(Epoch::FIRST, Epoch::new),
            epoch_ends,
            last_seen: last_seen.and_then(DateTime::from_timestamp_millis).unwrap_or(now),
            last_kept: last_seen.and_then(DateTime::from_timestamp_millis).unwrap_or_default(),
            doubt: Doubt::default(),
            started_at: now,
            not_before: None,
            disk_fault: None,
            unwritten: VecDeque::new(),
            unrecovered: Unrecovered::default(),
            watch_failure: None,
            stopping: None,
            told: String::new(),
            parts,
        };
        // They go first in the queue.
        for run in std::mem::take(&mut supervisor.parts.inherited.resumable) {
            supervisor.queue.push(Waiting::resumed(run));
        }
        for (run_id, why) in std::mem::take(&mut supervisor.parts.inherited.failed) {
            supervisor.add_unrecovered(run_id, &why);
        }
        // A run that could not be recovered may have waited through earlier downtimes.
        let keeps_earlier = !supervisor.unrecovered.runs.is_empty();
        supervisor.parts.ledger.add_downtime(supervisor.last_seen, now, keeps_earlier).await?;
        supervisor.load_retries(now).await?;
        supervisor.load_requested(now).await?;
        supervisor.look_at_clock(now).await?;
        supervisor.settle_downtime(now).await?;
        supervisor.adopt_schedules(Claim::default(), now).await?;
        supervisor.parts.ledger.set_meta("started", now.timestamp_millis()).await?;
        Ok((supervisor, Handle { commands, config: config_receiver }))
    }

    /// Runs until it is stopped. When this returns, every run has ended.
    pub async fn run(mut self) {
        let mut watchdog = self.parts.watchdog.map(|period| tokio::time::interval(period / 2));
        self.log_cannot_begin();
        self.log_paused_removed(&[]);
        self.fill().await;
        loop {
            self.tell_systemd();
            if self.stopping.is_some() && self.tasks.is_empty() {
                break;
            }
            let wake = self.next_wake();
            tokio::select! {
                () = self.ticker.woken() => self.tick().await,
                () = tokio::time::sleep_until(wake) => self.tick().await,
                // A run that waits for its model gives its place to the runs of other models.
                () = self.parts.host.waits.added() => self.fill().await,
                Some(command) = self.commands.recv() => self.on_command(command).await,
                Some(joined) = self.tasks.join_next(), if !self.tasks.is_empty() => self.on_ended(joined).await,
                Some(recovery) = self.unrecovered.task.join_next(), if !self.unrecovered.task.is_empty() => {
                    self.on_recovered(recovery).await;
                }
                Some(loaded) = self.reloads.load.join_next(), if !self.reloads.load.is_empty() => {
                    self.finish_reload(loaded).await;
                }
                () = beat(watchdog.as_mut()) => {
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                }
            }
        }
        self.ticker.stop().await;
        self.write_again().await;
        let now = self.parts.host.clock.now();
        let seen = if self.is_in_doubt(now) { self.last_seen } else { now };
        let _ = self.parts.ledger.set_meta("last_seen", seen.timestamp_millis()).await;
    }

    /// Returns when to wake up if no message comes first.
    fn next_wake(&self) -> Instant {
        if let Some(deadline) = self.stopping {
            return deadline;
        }
        if self.doubt.is_open() {
            return self.ticked_at + LOOK;
        }
        let now = self.parts.host.clock.now();
        let held = self.held.first().map(|held| held.starts_at);
        let retry = self.retries.first_key_value().map(|((at, _), _)| *at);
        let next = held.into_iter().chain(retry).min();
        let next = next.map(|at| (at - now).to_std().unwrap_or_default());
        let look = self.ticked_at + LOOK;
        let mut wake = next.map_or(look, |next| look.min(Instant::now() + next));
        if let Some(not_before) = self.not_before {
            wake = wake.max(not_before);
        }
        wake
    }

    async fn tick(&mut self) {
        if let Some(deadline) = self.stopping {
            if Instant::now() >= deadline {
                self.stop_all(StopReason::Interrupted);
                self.stopping = Some(Instant::now() + LOOK);
            }
            return;
        }
        self.ticked_at = Instant::now();
        if !self.is_in_place() {
            return;
        }
        let now = self.parts.host.clock.now();
        if self.is_in_doubt(now) {
            return;
        }
        if let Err(error) = self.look_at_clock(now).await {
            self.disk_failed(&format!("the ledger: {error}"));
            return;
        }
        self.ticker.trust(now + doubt::PLAUSIBLE);
        self.take_due(now);
        let cause = match self.disk_fault {
            Some(_) => Cause::DiskUnwritable,
            None => Cause::MachineHeldUp,
        };
        if self.disk_is_writable().await && self.write_again().await {
            self.retry_recovery().await;
            if self.reloads.must_retry {
                self.reload(None);
            }
            self.begin_due(cause, now).await;
            self.begin_retries(now);
            self.fill().await;
            self.prune_daily(now);
        }
    }

    /// Holds all due times up to a second after `now`.
    fn hold_due(&mut self, now: DateTime<Utc>) {
        while self.take_due(now) > 0 {}
    }

    /// Holds due times up to a second after `now`, those of a job together; returns their number. Those
    /// that are too late to run count as one.
    fn take_due(&mut self, now: DateTime<Utc>) -> usize {
        let repeats = self.may_repeat(DateTime::<Utc>::MIN_UTC, now);
        self.ticker.fold(now, &repeats, |job| self.too_late(job, now));
        let due_times = self.ticker.take(now);
        let count = due_times.len();
        due_times.into_iter().for_each(|due| self.hold(due));
        count
    }

    /// Holds a due time until its start time.
    fn hold(&mut self, due: DueTime) {
        let config = self.config.borrow().clone();
        if let Some(job) = config.jobs.get(&due.job) {
            let starts_at = starts_at(job, due.due_at);
            self.held.insert(Held {
                starts_at,
                due_at: due.due_at,
                job: due.job,
                epoch: self.epoch,
                span: due.span,
            });
        }
    }

    /// Claims the held due times whose start time has come. If a claim fails, holds them again.
    async fn begin_due(&mut self, cause: Cause, now: DateTime<Utc>) {
        let mut dues = Dues::new();
        let mut held = Vec::new();
        while self.held.first().is_some_and(|held| held.starts_at <= now) {
            let Some(first) = self.held.pop_first() else { break };
            dues.entry(JobEpoch { epoch: first.epoch, job: first.job.clone() })
                .or_default()
                .insert(first.due_at, DueFacts { span: first.span, ..DueFacts::default() });
            held.push(first);
        }
        if dues.is_empty() {
            return;
        }
        if let Err(error) = self.settle(&mut dues, cause, now).await {
            self.disk_failed(&format!("the ledger: {error}"));
            let is_left = |held: &Held| {
                let of_job = dues.get(&JobEpoch { epoch: held.epoch, job: held.job.clone() });
                of_job.is_some_and(|of_job| of_job.contains_key(&held.due_at))
            };
            self.held.extend(held.into_iter().filter(is_left));
        }
    }

    async fn start(&mut self, waiting: Waiting) {
        let config = self.config.borrow().clone();
        let now = self.parts.host.clock.now();
        if !self.record_running(waiting.run_id.clone(), now).await {
            self.queue.put_back(waiting);
            return;
        }
        let model = places::model_of(&config, &waiting).to_owned();
        let Waiting { run_id, job: name, origin, is_caught_up, .. } = waiting;
        let trigger = origin.trigger.as_str();
        let spec = match config.jobs.get(name.as_str()) {
            None => Err("the job was removed from the configuration".to_owned()),
            Some(job) => RunSpec::new(run_id.clone(), config.clone(), job.clone(), origin.clone())
                .map(|spec| RunSpec { is_queued: true, ..spec })
                .map_err(|error| error.to_string()),
        };
        let spec = match spec {
            Ok(spec) => spec,
            Err(reason) => {
                tracing::error!(job = name.as_str(), %run_id, reason, "failed to start a run");
                self.queue.ended(&name, is_caught_up);
                let runs = vec![run_id];
                let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
                self.end_waiting(EndedRuns { runs, state, stop_reason, reason }, now).await;
                return;
            }
        };
        tracing::info!(job = name.as_str(), %run_id, trigger, "run started");
        let (stop, stopped) = watch::channel(None);
        let origin = spec.repeatable_origin();
        let active = Active { job: name, model, is_caught_up, is_resumed: false, origin, stop };
        self.active.insert(run_id.clone(), active);
        let host = self.parts.host.clone();
        self.tasks.spawn(async move {
            let run = AssertUnwindSafe(execute(spec, host, stopped)).catch_unwind().await;
            (run_id, run.unwrap_or(Err(RunError::Panicked)))
        });
    }
}

fn real_path(path: &std::path::Path) -> String {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string()
}

async fn beat(watchdog: Option<&mut tokio::time::Interval>) {
    match watchdog {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
