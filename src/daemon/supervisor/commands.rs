//! What clients and signals ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::slots::schedules;
use super::{Command, CommandError, RunRequest, Supervisor, Waiting};
use crate::config::SandboxMode;
use crate::daemon::views::{StatusJobs, StatusReport, StatusRuns, error_lines};
use crate::domain::{RunId, StopReason, Trigger};
use crate::process::{sandbox_gaps, sandbox_support};
use crate::run::TriggerFacts;
use crate::store::{Slot, SlotState};

/// Runs by hand that can wait for a place.
const MOST_WAITING: usize = 1000;

impl Supervisor {
    pub(super) async fn on_command(&mut self, command: Command) {
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
            Command::IsKnown(run_id, reply) => {
                let known = self.active.contains_key(&run_id)
                    || self.queue.iter().any(|waiting| waiting.run_id == run_id);
                let _ = reply.send(known);
            }
            Command::Reload => self.reload().await,
            Command::Stop => self.begin_stop().await,
        }
    }

    pub(super) fn enqueue(&mut self, request: RunRequest) -> Result<RunId, CommandError> {
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
        if self.queue.len() >= MOST_WAITING {
            return Err(CommandError::Full(self.queue.len()));
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

    pub(super) async fn cancel(&mut self, run_id: &RunId) -> Result<(), CommandError> {
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
    pub(super) async fn reload(&mut self) {
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
        // What came due until now is under the old schedules.
        for fire in self.ticker.take(now) {
            self.hold(fire);
        }
        let (old, new) = (schedules(&self.config.borrow()), schedules(&config));
        let is_same = |job: &String| match (old.get(job), new.get(job)) {
            (Some(old), Some(new)) => {
                old.to_record() == new.to_record() && old.zone() == new.zone()
            }
            _ => false,
        };
        let held = std::mem::take(&mut self.held);
        let (kept, superseded): (BTreeMap<_, _>, BTreeMap<_, _>) = held
            .into_iter()
            .filter(|((_, due_at, _), _)| *due_at <= now)
            .partition(|((_, _, job), _)| is_same(job));
        let slots = superseded.iter().map(|((_, due_at, job), epoch)| Slot {
            job: job.clone(),
            epoch: *epoch,
            due_at: *due_at,
            state: SlotState::Superseded,
            run_id: None,
            reason: "the schedule changed before its run began".to_owned(),
            zone: old
                .get(job)
                .map(|schedule| schedule.zone().name().to_owned())
                .unwrap_or_default(),
            config_digest: self.config_state.digest.clone(),
        });
        let slots: Vec<Slot> = slots.collect();
        self.held = kept;
        if let Err(error) = self.claim(slots, now).await {
            self.held.extend(superseded);
            self.ledger_failed(&error);
            self.config_state
                .errors
                .push(format!("the new configuration is not in force: {error}"));
            self.config_state.valid = false;
            return;
        }
        let (digest, jobs) = (config.digest.clone(), config.jobs.len());
        let before = self.config.send_replace(Arc::new(config));
        if let Err(error) = self.adopt_schedules(now).await {
            self.config.send_replace(before);
            self.ledger_failed(&error);
            self.config_state.valid = false;
            return;
        }
        self.config_state.digest = digest;
        self.config_state.loaded_at = now;
        tracing::info!(
            jobs,
            digest = self.config_state.digest,
            "the configuration was loaded again"
        );
        self.fill().await;
    }

    pub(super) async fn begin_stop(&mut self) {
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

    pub(super) fn stop_all(&mut self, reason: StopReason) {
        for active in self.active.values() {
            active.stop.send_replace(Some(reason));
        }
    }

    pub(super) fn status(&self) -> StatusReport {
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
            sandbox: held(self.config.borrow().settings.security.sandbox),
            degraded,
        }
    }
}

/// Says how tools are held where their job says nothing else.
fn held(mode: SandboxMode) -> String {
    match (mode, sandbox_support()) {
        (SandboxMode::Off, _) => mode.as_str().to_owned(),
        (_, Ok(abi)) => format!("{}, Landlock {abi}{}", mode.as_str(), sandbox_gaps(abi)),
        (_, Err(error)) => format!("{}: {error}", mode.as_str()),
    }
}
