//! Handles the commands of clients and signals.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sd_notify::NotifyState;
use tokio::time::Instant;

use super::carry_out::new_run_id;
use super::{Command, Input, Kind, Supervisor};
use crate::daemon::book::{Entry, Phase, Waiting, model_of};
use crate::daemon::command::{CommandError, Started};
use crate::daemon::rules::WaitsFor;
use crate::domain::{Origin, Person, RunId, Stop, StopReason};
use crate::run::RunSpec;

/// While at least this many manual runs are queued, requests for further ones are rejected.
const MAX_WAITING: usize = 1000;

impl Supervisor {
    pub(super) async fn on_command(&mut self, command: Command) {
        match command {
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Run(job, origin, at, reply) => {
                let result = self.enqueue(job, origin, at).await;
                let _ = reply.send(result);
                self.fill().await;
            }
            Command::Cancel(run_id, by, reply) => {
                let result = self.cancel(&run_id, by).await;
                let _ = reply.send(result);
            }
            Command::CancelAll(job, by, reply) => {
                let cancelled = self.cancel_all(job.as_deref(), by).await;
                let _ = reply.send(cancelled);
            }
            Command::GiveText(request) => self.give_text(request).await,
            Command::IsKnown(run_id, reply) => {
                let _ = reply.send(self.book.get(&run_id).is_some());
            }
            Command::WaitsFor(runs, reply) => {
                let _ = reply.send(self.waits_for(runs));
            }
            Command::Backfill(request, reply) => {
                let count = self.backfill(request).await;
                let _ = reply.send(count);
            }
            Command::Pause(request, reply) => {
                let paused = self.pause(request).await;
                let _ = reply.send(paused);
            }
            Command::Unpause(job, reply) => {
                let unpaused = self.unpause(job).await;
                let _ = reply.send(unpaused);
            }
            Command::IsReady(reply) => {
                let can_begin = self.outbox.fault().is_none() && self.cannot_begin().is_none();
                let _ = reply.send(can_begin && self.stopping.is_none());
            }
            Command::Reload(reply) => self.reload(Some(reply)),
            Command::FilesChanged { match_config } => {
                // After a failed reload, the same files may load now.
                if !(match_config && self.reloads.state.valid) {
                    self.reload(None);
                }
            }
            Command::WatchFailure(why) => self.reloads.watch_failure = why,
            Command::Stop => self.begin_stop().await,
        }
    }

    /// Returns what each of these runs waits for, unless it has begun or is over.
    fn waits_for(&self, runs: Vec<String>) -> BTreeMap<String, String> {
        let config = self.config.borrow();
        let places = self.book.places(&self.waiting_for_models(), &config);
        let waits_for = |run_id: &str| {
            let run = self.book.get(&RunId::parse(run_id).ok()?)?;
            match &run.phase {
                Phase::Delayed { begins_at, .. } => {
                    Some(format!("its time, {}", begins_at.format("%Y-%m-%d %H:%M:%S UTC")))
                }
                Phase::Queued { .. } => {
                    let of_disk = || self.outbox.fault().map(str::to_owned);
                    let of_models = || self.book.hold_of_run(&config, run);
                    let of_room = || self.book.why_not_begun(run, &places, &config);
                    of_models().or_else(of_disk).or_else(of_room)
                }
                Phase::Active { .. } | Phase::Open { .. } | Phase::Settling(_) => None,
            }
        };
        runs.into_iter().filter_map(|run_id| Some((run_id.clone(), waits_for(&run_id)?))).collect()
    }

    pub(super) async fn enqueue(
        &mut self,
        job: String,
        origin: Origin,
        begins_at: Option<DateTime<Utc>>,
    ) -> Result<Started, CommandError> {
        if self.stopping.is_some() {
            return Err(CommandError::Stopping);
        }
        let config = self.config.borrow().clone();
        let job = config.jobs.get(job.as_str()).ok_or(CommandError::NoJob(job))?;
        let run_id = new_run_id();
        let spec = RunSpec::new(run_id.clone(), config.clone(), job.clone(), origin.clone());
        let spec = spec.map_err(|error| CommandError::Invalid(error.to_string()))?;
        let now = self.parts.host.clock.now();
        if let Some(past) = begins_at.filter(|at| *at <= now) {
            return Err(CommandError::Invalid(format!("the run would begin in the past: {past}")));
        }
        let over_budget = crate::run::over_budget(job, &self.parts.host).await;
        let over_budget = over_budget.map_err(|error| CommandError::Unrecorded(error.to_string()));
        if let Some(why) = over_budget? {
            return Err(CommandError::OverBudget(why));
        }
        let requested = self.book.requested();
        if requested >= MAX_WAITING {
            return Err(CommandError::Full(requested));
        }
        let mut warnings = Vec::new();
        if begins_at.is_none() && self.book.is_busy(job.name.as_str()) {
            warnings.push("another run of the job is queued or running".to_owned());
        }
        if !job.enabled {
            warnings.push("the job is disabled".to_owned());
        }
        let begins = begins_at.unwrap_or(now);
        if self.due.pauses.is_paused(job.name.as_str(), begins) {
            warnings.push("the job is paused".to_owned());
        }
        if begins_at.is_none() {
            let holds = self.book.holds_of(&config, &spec.job).into_iter();
            warnings.extend(holds.map(|hold| hold.describe(now)));
        }
        for warning in &warnings {
            tracing::warn!(job = job.name.as_str(), warning, "a person requested a run");
        }
        let name = job.name.clone();
        let (waits_for, ignores_overlap) = (WaitsFor::Nothing, false);
        let waiting =
            Waiting { run_id: run_id.clone(), job: name, origin, waits_for, ignores_overlap };
        // The next start of the daemon tells by this time whether the run is too late.
        let queued = waiting.to_row(Some(begins));
        let places = self.book.places(&self.waiting_for_models(), &config);
        let ahead = self.book.ready();
        let waits = match (begins_at, self.outbox.fault()) {
            (Some(at), _) => Some(format!("its time, {}", at.format("%Y-%m-%d %H:%M:%S UTC"))),
            (None, Some(fault)) => Some(fault.to_owned()),
            (None, None) => places
                .why_none_for(model_of(&config, Some(&spec.job)))
                .map(|why| format!("{why}, {ahead} queued ahead")),
        };
        let kept = self.parts.ledger.enqueue(queued).await;
        // Do not start a run that the ledger does not have.
        kept.map_err(|error| CommandError::Unrecorded(error.to_string()))?;
        self.act(match begins_at {
            Some(begins_at) => Input::Delayed { attempt: waiting, begins_at },
            None => Input::Queued(vec![waiting]),
        })
        .await;
        Ok(Started { run_id, waits, warnings })
    }

    /// Cancels every run of a job, or of all jobs, that is not over; returns their ids.
    ///
    /// *Errors*: the ledger cannot be written; the queued runs then stay in the queue.
    async fn cancel_all(
        &mut self,
        job: Option<&str>,
        by: Option<Person>,
    ) -> Result<Vec<RunId>, CommandError> {
        let is_wanted = |run: &Entry| {
            let is_of_job =
                job.is_none_or(|job| run.job.as_ref().is_some_and(|of| of.as_str() == job));
            is_of_job && is_cancellable(run)
        };
        let runs = self.book.iter().filter(|(_, run)| is_wanted(run));
        let runs: Vec<RunId> = runs.map(|(run_id, _)| run_id.clone()).collect();
        let why = why_cancelled(by.as_ref());
        let cancelled =
            self.try_act(Input::Cancel { runs: runs.clone(), stop: cancelled(by), why });
        cancelled.await.map_err(CommandError::NotCancelled)?;
        Ok(runs)
    }

    pub(super) async fn cancel(
        &mut self,
        run_id: &RunId,
        by: Option<Person>,
    ) -> Result<(), CommandError> {
        let Some(run) = self.book.get(run_id).filter(|run| is_cancellable(run)) else {
            return Err(match self.parts.host.state.find_run(run_id) {
                Some(_) => CommandError::Over(run_id.clone()),
                None => CommandError::NoRun(run_id.clone()),
            });
        };
        let stop = run.stop.as_ref().map(|stop| stop.reason);
        if run.phase.kind() == Kind::Active && stop == Some(StopReason::Interrupted) {
            return Err(CommandError::Stopping);
        }
        let (runs, why) = (vec![run_id.clone()], why_cancelled(by.as_ref()));
        let cancelled = self.try_act(Input::Cancel { runs, stop: cancelled(by), why }).await;
        cancelled.map_err(CommandError::NotCancelled)
    }

    pub(super) async fn begin_stop(&mut self) {
        if self.stopping.is_some() {
            tracing::info!("second stop request: stopping all runs now");
            self.stop_all().await;
            return;
        }
        self.answer_reloads();
        let grace = self.config.borrow().settings.shutdown_grace;
        tracing::info!(
            active = self.book.count(Kind::Active),
            queued = self.book.count(Kind::Queued),
            grace_ms = grace.as_millis(),
            "stopping"
        );
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        self.stopping = Some(Instant::now() + grace);
        // Slots, requested runs and waiting attempts stay queued: the next start of the daemon decides
        // them again. The runs that have not continued yet stay open.
    }

    pub(super) async fn stop_all(&mut self) {
        self.act(Input::StopAll(StopReason::Interrupted)).await;
    }
}

/// Tells whether a run can still be cancelled.
fn is_cancellable(run: &Entry) -> bool {
    match run.phase {
        Phase::Delayed { .. }
        | Phase::Queued { .. }
        | Phase::Active { .. }
        | Phase::Open { .. } => true,
        Phase::Settling(_) => false,
    }
}

/// Returns the stop of a run that a person cancels.
fn cancelled(by: Option<Person>) -> Stop {
    Stop { by, ..StopReason::Cancelled.into() }
}

/// Returns why a cancelled run must not continue after a crash.
fn why_cancelled(by: Option<&Person>) -> String {
    format!("{} had cancelled it", by.map_or("a person", |person| &person.user))
}
