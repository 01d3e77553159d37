//! Handles the commands of clients and signals.

use sd_notify::NotifyState;
use tokio::time::Instant;

use super::decisions::EARLIER_UNWRITTEN;
use super::phase::Phase;
use super::places::model_of;
use super::queue::{Waiting, WaitsFor};
use super::{Active, Command, CommandError, Started, Supervisor};
use crate::config::SandboxMode;
use crate::daemon::views::{StatusConfig, StatusJobs, StatusReport, StatusRuns};
use crate::domain::{Origin, Person, RunId, Stop, StopReason};
use crate::process::{sandbox_gaps, sandbox_support};
use crate::run::why_runs_cannot_begin;
use crate::store::{EndedRuns, SlotState};

/// While at least this many manual runs are queued, requests for further ones are rejected.
const MAX_WAITING: usize = 1000;

impl Supervisor {
    pub(super) async fn on_command(&mut self, command: Command) {
        match command {
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Run(job, origin, reply) => {
                let result = self.enqueue(job, origin).await;
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
            Command::IsKnown(run_id, reply) => {
                let _ = reply.send(self.phase_of(&run_id).is_some());
            }
            Command::Backfill(request, reply) => {
                let count = self.backfill(request).await;
                let _ = reply.send(count);
            }
            Command::Pause(job, note, reply) => {
                let paused = self.pause(job, note).await;
                let _ = reply.send(paused);
            }
            Command::Unpause(job, reply) => {
                let unpaused = self.unpause(job).await;
                let _ = reply.send(unpaused);
            }
            Command::IsReady(reply) => {
                let can_begin = self.disk_fault.is_none() && self.cannot_begin().is_none();
                let _ = reply.send(can_begin && self.stopping.is_none());
            }
            Command::Reload(reply) => self.reload(Some(reply)),
            Command::FilesChanged { match_config } => {
                // After a failed reload, the same files may load now.
                if !(match_config && self.config_state.valid) {
                    self.reload(None);
                }
            }
            Command::WatchFailure(why) => self.watch_failure = why,
            Command::Stop => self.begin_stop(),
        }
    }

    pub(super) async fn enqueue(
        &mut self,
        job: String,
        origin: Origin,
    ) -> Result<Started, CommandError> {
        if self.stopping.is_some() {
            return Err(CommandError::Stopping);
        }
        let config = self.config.borrow().clone();
        let job = config.jobs.get(job.as_str()).ok_or(CommandError::NoJob(job))?;
        let mut replaced = origin.request.iter().flat_map(|request| request.vars.keys());
        if let Some(unknown) = replaced.find(|name| !job.vars.contains_key(*name)) {
            return Err(CommandError::Invalid(format!(
                "the job `{}` has no variable `{unknown}`",
                job.name
            )));
        }
        let over_budget = crate::run::over_budget(job, &self.parts.host).await;
        let over_budget = over_budget.map_err(|error| CommandError::Unrecorded(error.to_string()));
        if let Some(why) = over_budget? {
            return Err(CommandError::OverBudget(why));
        }
        let requested = self.queue.iter().filter(|waiting| !waiting.is_slot()).count();
        if requested >= MAX_WAITING {
            return Err(CommandError::Full(requested));
        }
        let mut warnings = Vec::new();
        if self.queue.is_busy(job.name.as_str()) {
            warnings.push("another run of the job is queued or running".to_owned());
        }
        if !job.enabled {
            warnings.push("the job is disabled".to_owned());
        }
        if self.pauses.contains(job.name.as_str()) {
            warnings.push("the job is paused".to_owned());
        }
        for warning in &warnings {
            tracing::warn!(job = job.name.as_str(), warning, "a person requested a run");
        }
        let run_id = RunId::from_ulid(ulid::Ulid::generate());
        let name = job.name.clone();
        let waiting = Waiting::new(run_id.clone(), name, origin, WaitsFor::Nothing, false);
        // The next start of the daemon tells by this time whether the run is too late.
        let queued = waiting.to_row(Some(self.parts.host.clock.now()));
        let (places, ahead) = (self.places(), self.queue.ready());
        let waits = match &self.disk_fault {
            Some(fault) => Some(fault.clone()),
            None => places
                .why_none_for(model_of(&config, &waiting))
                .map(|why| format!("{why}, {ahead} queued ahead")),
        };
        let kept = self.parts.ledger.enqueue(queued).await;
        // Do not start a run that the ledger does not have.
        kept.map_err(|error| CommandError::Unrecorded(error.to_string()))?;
        self.queue.push(waiting);
        Ok(Started { run_id, waits, warnings })
    }

    /// Cancels every queued and active run of a job, or of all jobs; returns their ids.
    ///
    /// *Errors*: the ledger cannot be written; the queued runs then stay in the queue.
    async fn cancel_all(
        &mut self,
        job: Option<&str>,
        by: Option<Person>,
    ) -> Result<Vec<RunId>, CommandError> {
        let (cancelled, why) = (cancelled(by.clone()), why_cancelled(by.as_ref()));
        let (mut wanted, mut waiting) = (Vec::new(), Vec::new());
        for (run_id, phase) in self.phases(job) {
            match phase {
                Phase::Active => drop(self.cancel_active(&run_id, by.clone()).await),
                Phase::Suspended => drop(self.cancel_resumed(&run_id, &cancelled, &why).await),
                Phase::Open => drop(self.cancel_unrecovered(&run_id, &cancelled, &why).await),
                Phase::Settling => continue,
                Phase::Delayed | Phase::Queued => waiting.push(run_id.clone()),
            }
            wanted.push(run_id);
        }
        self.end_cancelled(waiting.clone(), by.as_ref()).await?;
        for run_id in &waiting {
            self.forget_waiting(run_id);
        }
        wanted.sort();
        Ok(wanted)
    }

    pub(super) async fn cancel(
        &mut self,
        run_id: &RunId,
        by: Option<Person>,
    ) -> Result<(), CommandError> {
        let (cancelled, why) = (cancelled(by.clone()), why_cancelled(by.as_ref()));
        let is_suspending = |active: &Active| {
            let given = active.stop.borrow();
            given.as_ref().is_some_and(|stop| stop.reason == StopReason::Interrupted)
        };
        match self.phase_of(run_id) {
            Some(Phase::Active) if self.active.get(run_id).is_some_and(is_suspending) => {
                return Err(CommandError::Stopping);
            }
            Some(Phase::Active) => drop(self.cancel_active(run_id, by).await),
            Some(Phase::Suspended) => drop(self.cancel_resumed(run_id, &cancelled, &why).await),
            Some(Phase::Open) => drop(self.cancel_unrecovered(run_id, &cancelled, &why).await),
            Some(Phase::Delayed | Phase::Queued) => {
                self.end_cancelled(vec![run_id.clone()], by.as_ref()).await?;
                self.forget_waiting(run_id);
            }
            Some(Phase::Settling) | None if self.parts.host.state.find_run(run_id).is_some() => {
                return Err(CommandError::Over(run_id.clone()));
            }
            Some(Phase::Settling) | None => return Err(CommandError::NoRun(run_id.clone())),
        }
        Ok(())
    }

    /// Forgets a run that had not begun and that the ledger has ended.
    fn forget_waiting(&mut self, run_id: &RunId) {
        if !self.forget_retry(run_id) {
            self.queue.remove(run_id);
        }
    }

    /// Stops an active run, and records that it must not continue after a crash. Returns false if the
    /// run is not active.
    async fn cancel_active(&mut self, run_id: &RunId, by: Option<Person>) -> bool {
        let Some(active) = self.active.get(run_id) else { return false };
        let why = why_cancelled(by.as_ref());
        active.stop.send_replace(Some(cancelled(by.clone())));
        self.keep_cancelled(vec![run_id.clone()], by.as_ref(), &why).await;
        true
    }

    /// Records that queued runs were cancelled. Without a record, the next start of the daemon would
    /// run their slots.
    async fn end_cancelled(
        &mut self,
        runs: Vec<RunId>,
        by: Option<&Person>,
    ) -> Result<(), CommandError> {
        if runs.is_empty() {
            return Ok(());
        }
        // One of them may be an attempt that is not in the ledger yet.
        if !self.write_again().await {
            return Err(CommandError::NotCancelled(EARLIER_UNWRITTEN.to_owned()));
        }
        let now = self.parts.host.clock.now();
        let by = by.map(|person| format!(" by {}", person.user)).unwrap_or_default();
        let (state, stop_reason) = (SlotState::Skipped, StopReason::Cancelled);
        let reason = format!("cancelled{by} before it started");
        let ended = EndedRuns { runs, state, stop_reason, reason };
        let ended = self.parts.ledger.end_waiting(ended, now).await;
        ended.map_err(|error| CommandError::NotCancelled(error.to_string()))
    }

    pub(super) fn begin_stop(&mut self) {
        if self.stopping.is_some() {
            tracing::info!("second stop request: stopping all runs now");
            self.stop_all(StopReason::Interrupted);
            return;
        }
        self.answer_reloads();
        let grace = self.config.borrow().settings.shutdown_grace;
        tracing::info!(
            active = self.active.len(),
            queued = self.queue.len(),
            grace_ms = grace.as_millis(),
            "stopping"
        );
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        self.stopping = Some(Instant::now() + grace);
        // Slots, requested runs and waiting attempts stay queued: the next start of the daemon decides
        // them again. The runs that have not continued yet stay open.
    }

    pub(super) fn stop_all(&mut self, reason: StopReason) {
        for active in self.active.values() {
            active.stop.send_replace(Some(reason.into()));
        }
    }

    /// Returns why no run of some jobs can begin.
    fn cannot_begin(&self) -> Option<String> {
        why_runs_cannot_begin(&self.config.borrow(), &sandbox_support())
    }

    /// Logs why no run of some jobs can begin.
    pub(super) fn log_cannot_begin(&self) {
        if let Some(reason) = self.cannot_begin() {
            tracing::error!(reason, "runs cannot begin");
        }
    }

    /// Returns the known problems, one sentence each.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded = self.parts.inherited.problems.clone();
        degraded.extend(self.cannot_begin());
        degraded.extend(self.disk_fault.clone());
        degraded.extend(self.watch_failure.clone());
        degraded.extend(self.doubt.is_open().then(|| {
            "the clock was set far forward; no slot is decided until that has lasted for a minute".to_owned()
        }));
        degraded.extend(self.silent_models());
        degraded.extend(self.unrecovered.runs.iter().map(|(run_id, run)| {
            let problem = if run.has_ended {
                "has ended, but its end could not be recorded everywhere"
            } else {
                "could neither continue nor end"
            };
            format!("the run {run_id} {problem} ({}); dutyd tries again", run.why)
        }));
        if !self.config_state.valid {
            degraded.push("the last reload failed; an older configuration is in effect".to_owned());
        }
        degraded
    }

    pub(super) fn status(&self) -> StatusReport {
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started_at,
            // A person may have ended a pause since the last load.
            config: StatusConfig {
                paused_removed: self.paused_removed(),
                ..self.config_state.clone()
            },
            runs: StatusRuns {
                active: self.active.len(),
                queued: self.queue.len() + self.retries.len(),
            },
            jobs: StatusJobs {
                total: self.config.borrow().jobs.len(),
                paused: self.paused_jobs(),
                failing: self.failing_jobs(),
            },
            sandbox: held(self.config.borrow().settings.security.sandbox),
            search_path: self.parts.host.environment.search_path(),
            cannot_begin: self.cannot_begin(),
            waits: self.model_waits(),
            degraded: self.degraded(),
            approvals: None,
            refused_parameters: None,
        }
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

/// Describes how tools are sandboxed unless their job sets a mode of its own.
fn held(mode: SandboxMode) -> String {
    match (mode, sandbox_support()) {
        (SandboxMode::Off, _) => mode.as_str().to_owned(),
        (_, Ok(abi)) => format!("{}, Landlock {abi}{}", mode.as_str(), sandbox_gaps(abi)),
        (_, Err(error)) => format!("{}: {error}", mode.as_str()),
    }
}
