//! The single owner of daemon state: due times, queue, active runs, configuration in effect.
//!
//! Everything that happens is a message to the supervisor. The supervisor writes a slot to the
//! ledger before it starts the slot's run, and joins every task that it spawns.

mod again;
mod backfill;
mod carry_out;
mod commands;
mod doubt;
mod downtime;
mod due;
mod left;
mod pauses;
mod reload;
mod retention;
mod slots;
mod spans;
mod status;
mod tasks;
mod texts;
mod told;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::book::{Book, Effect, Input, Kind, Moment};
use super::command::Command;
use super::disposition::Cause;
use super::outbox::Outbox;
use super::recovery::RecoveredState;
use crate::agent::HeardOfModels;
use crate::config::{Config, Loaded};
use crate::run::Host;
use crate::store::{Claim, Ledger};
use due::DueTimes;
use reload::Reloads;
pub use reload::log_warnings;
use retention::Pruning;
use tasks::Tasks;
use told::Told;

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
    /// When the daemon last did all that was due; `None` before the first time.
    pub beat: watch::Receiver<Option<Instant>>,
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
    pub recovered: RecoveredState,
    /// The watchdog timeout of systemd; `None` disables the messages to the watchdog.
    pub watchdog: Option<Duration>,
}

/// The owner of the daemon's state; [`Supervisor::run`] drives it.
pub struct Supervisor {
    parts: Parts,
    commands: mpsc::Receiver<Command>,
    config: watch::Sender<Arc<Config>>,
    reloads: Reloads,
    due: DueTimes,
    book: Book,
    outbox: Outbox,
    tasks: Tasks,
    pruning: Pruning,
    started_at: DateTime<Utc>,
    /// Set once the daemon stops: when to stop all runs that are still active.
    stopping: Option<Instant>,
    told: Told,
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
        let due = DueTimes::of_ledger(&parts, now).await?;
        let (commands, receiver) = mpsc::channel(64);
        let (config, config_receiver) = watch::channel(parts.config.clone());
        let reloads = Reloads::new(&mut parts, now);
        let outcomes = pauses::last_outcomes(&mut parts).await;
        let told = Told::new(parts.ledger.degraded_since().await?);
        let mut supervisor = Self {
            reloads,
            commands: receiver,
            config,
            book: Book::default(),
            outbox: Outbox::new(parts.ledger.clone()),
            tasks: Tasks::default(),
            due,
            pruning: Pruning::default(),
            started_at: now,
            stopping: None,
            told,
            parts,
        };
        supervisor.book.outcomes = outcomes;
        supervisor.take_recovered();
        // A run that could not be recovered may have waited through earlier downtimes.
        let keeps_earlier = supervisor.book.count(Kind::Open) > 0;
        let last_seen = supervisor.due.last_seen;
        supervisor.parts.ledger.add_downtime(last_seen, now, keeps_earlier).await?;
        supervisor.load_holds().await?;
        supervisor.load_queue(now).await?;
        supervisor.look_at_clock(now).await?;
        supervisor.settle_downtime(now).await?;
        supervisor.adopt_schedules(Claim::default(), now).await?;
        supervisor.parts.ledger.set_meta("started", now.timestamp_millis()).await?;
        supervisor.tell_of_left_runs().await;
        let beat = supervisor.told.beat();
        Ok((supervisor, Handle { commands, config: config_receiver, beat }))
    }

    /// Runs until it is stopped. When this returns, every run has ended.
    pub async fn run(mut self) {
        let mut watchdog = self.parts.watchdog.map(|period| tokio::time::interval(period / 2));
        self.log_cannot_begin();
        self.log_paused_removed(&[]);
        self.fill().await;
        loop {
            self.tell_systemd();
            if self.stopping.is_some() && self.tasks.runs.is_empty() {
                break;
            }
            let wake = self.next_wake();
            tokio::select! {
                () = self.due.ticker.woken() => self.tick().await,
                () = tokio::time::sleep_until(wake) => self.tick().await,
                // A run that waits for its model gives its place to the runs of other models.
                () = self.parts.host.waits.added() => {
                    self.hear_of_models().await;
                    self.fill().await;
                }
                Some(command) = self.commands.recv() => self.on_command(command).await,
                Some(joined) = self.tasks.runs.join_next(), if !self.tasks.runs.is_empty() => self.on_ended(joined).await,
                Some(recovery) = self.tasks.recovery.join_next(), if !self.tasks.recovery.is_empty() => {
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
        self.due.ticker.stop().await;
        self.write_again().await;
        let now = self.parts.host.clock.now();
        let seen = if self.is_in_doubt(now) { self.due.last_seen } else { now };
        let _ = self.parts.ledger.set_meta("last_seen", seen.timestamp_millis()).await;
    }

    /// Returns when to wake up if no message comes first.
    fn next_wake(&self) -> Instant {
        if let Some(deadline) = self.stopping {
            return deadline;
        }
        let look = self.due.ticked_at + LOOK;
        if self.due.doubt.is_open() {
            return look;
        }
        let now = self.parts.host.clock.now();
        let next = self.due.next_start().into_iter().chain(self.book.next_attempt_at());
        let next =
            next.chain(self.book.next_hold_change()).chain(self.due.pauses.next_end(now)).min();
        let next = next.map(|at| (at - now).to_std().unwrap_or_default());
        let wake = next.map_or(look, |next| look.min(Instant::now() + next));
        self.outbox.not_before().map_or(wake, |not_before| wake.max(not_before))
    }

    async fn tick(&mut self) {
        if let Some(deadline) = self.stopping {
            if Instant::now() >= deadline {
                self.stop_all().await;
                self.stopping = Some(Instant::now() + LOOK);
            }
            return;
        }
        self.due.ticked_at = Instant::now();
        if !self.outbox.is_in_place() {
            return;
        }
        let now = self.parts.host.clock.now();
        if self.is_in_doubt(now) {
            return;
        }
        if let Err(error) = self.look_at_clock(now).await {
            self.outbox.ledger_failed(&error);
            return;
        }
        self.due.ticker.trust(now + doubt::PLAUSIBLE);
        self.take_due(now);
        let cause = match self.outbox.fault() {
            Some(_) => Cause::DiskUnwritable,
            None => Cause::MachineHeldUp,
        };
        if self.outbox.is_writable(&self.parts.host.state, now).await && self.write_again().await {
            if self.tasks.recovery.is_empty() {
                self.act(Input::Recover).await;
            }
            if self.reloads.must_retry {
                self.reload(None);
            }
            self.begin_due(cause, now).await;
            self.end_pauses(now).await;
            self.act(Input::Tick).await;
            self.fill().await;
            self.prune_daily(now);
            self.beat(now);
        }
        self.tell_of_daemon(now).await;
    }

    /// Takes an input, and carries out what follows from it.
    ///
    /// *Errors*: the ledger refused the change of an [`Effect::Try`]; nothing depends on it yet.
    async fn try_act(&mut self, input: Input) -> Result<(), String> {
        let effects = self.step(input);
        self.carry_out(effects).await
    }

    /// Takes an input without an [`Effect::Try`], and carries out its effects.
    async fn act(&mut self, input: Input) {
        if let Err(error) = self.try_act(input).await {
            tracing::error!(error, "failed to write a change; dutyd decides again");
        }
    }

    /// Lets the book take an input.
    fn step(&mut self, input: Input) -> Vec<Effect> {
        let (now, believed) = (self.parts.host.clock.now(), self.believed());
        let config = self.config.borrow();
        let moment = Moment {
            config: &config,
            now,
            believed,
            at: Instant::now(),
            is_stopping: self.stopping.is_some(),
        };
        self.book.step(input, &moment)
    }

    /// Starts the queued runs for which there are places, oldest first. After a fault of the disk, does
    /// nothing until the disk can be written again (STATE-4).
    async fn fill(&mut self) {
        while self.stopping.is_none() && self.outbox.fault().is_none() {
            let waiting = self.waiting_for_models();
            let effects = self.step(Input::Room { waiting });
            if effects.is_empty() || self.carry_out(effects).await.is_err() {
                return;
            }
        }
    }

    /// Takes what has happened to the calls of models on hold.
    async fn hear_of_models(&mut self) {
        let heard = self.parts.host.waits.take_heard();
        if heard != HeardOfModels::default() {
            self.act(Input::Heard(heard)).await;
        }
    }

    /// Asks to hear of the calls of the models on hold.
    fn want_models(&self) {
        self.parts.host.waits.want(self.book.awaited_models());
    }

    /// Returns the active runs that wait for their models.
    fn waiting_for_models(&self) -> BTreeSet<String> {
        self.parts.host.waits.all().into_keys().collect()
    }

    /// Writes the changes that could not be written; returns whether none is left.
    async fn write_again(&mut self) -> bool {
        let is_written = self.outbox.write_again().await;
        self.take_pauses();
        is_written
    }

    /// Applies the pauses of jobs whose runs failed too often.
    fn take_pauses(&mut self) {
        for pause in self.outbox.take_pauses() {
            tracing::warn!(job = pause.job, note = pause.note, "the job is paused");
            self.due.pauses.insert(pause);
        }
    }
}

async fn beat(watchdog: Option<&mut tokio::time::Interval>) {
    match watchdog {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
