//! What the daemon tells about itself: the report of `dutyd status`, and one line for
//! `systemctl status` (`STATUS=`).

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;
use sd_notify::NotifyState;

use super::{Kind, Supervisor};
use crate::config::{Provider, SandboxMode};
use crate::daemon::book::Phase;
use crate::daemon::views::{
    StatusConfig, StatusHold, StatusJobs, StatusReport, StatusRuns, StatusWait,
};
use crate::domain::Hold;
use crate::process::{sandbox_gaps, sandbox_support};
use crate::run::why_runs_cannot_begin;
use crate::text::escape::one_line;

impl Supervisor {
    /// Sends the line if it has changed. Without systemd, nothing is sent.
    pub(super) fn tell_systemd(&mut self) {
        let line = self.notice();
        if line != self.told.line {
            let _ = sd_notify::notify(&[NotifyState::Status(&line)]);
            self.told.line = line;
        }
    }

    /// *Shape*: `12 jobs (1 paused), 2 active and 3 queued runs; degraded: no run begins, because …`
    fn notice(&self) -> String {
        let what = format!(
            "{} jobs ({} paused), {} active and {} queued runs",
            self.config.borrow().jobs.len(),
            self.paused_jobs(),
            self.book.count(Kind::Active),
            self.queued(),
        );
        let stopping = if self.stopping.is_some() { "stopping; " } else { "" };
        let degraded = self.degraded();
        let faults = match degraded.as_slice() {
            [] => String::new(),
            [only] => format!("; degraded: {only}"),
            [first, others @ ..] => format!("; degraded: {first} (and {} more)", others.len()),
        };
        // A line end would begin another assignment of the message.
        one_line(&format!("{stopping}{what}{faults}"))
    }

    /// Returns why no run of some jobs can begin.
    pub(super) fn cannot_begin(&self) -> Option<String> {
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
        let mut degraded = self.problems();
        degraded.extend(self.silent_models());
        let now = self.parts.host.clock.now();
        degraded.extend(self.book.held().map(|hold| hold.describe(now)));
        degraded
    }

    /// Returns the known problems, except those of models, which are told by themselves.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut degraded = self.parts.recovered.problems.clone();
        degraded.extend(self.cannot_begin());
        degraded.extend(self.outbox.fault().map(str::to_owned));
        degraded.extend(self.reloads.watch_failure.clone());
        degraded.extend(self.due.doubt.is_open().then(|| {
            "the clock was set far forward; no slot is decided until that has lasted for a minute".to_owned()
        }));
        let unrecovered = self.book.of_kind(Kind::Open).chain(self.book.of_kind(Kind::Settling));
        degraded.extend(unrecovered.filter_map(|(run_id, run)| {
            let (problem, fault) = match &run.phase {
                Phase::Open { fault, .. } => ("could neither continue nor end", fault),
                Phase::Settling(fault) => {
                    ("has ended, but its end could not be recorded everywhere", fault)
                }
                Phase::Delayed { .. } | Phase::Queued { .. } | Phase::Active { .. } => return None,
            };
            Some(format!("the run {run_id} {problem} ({}); dutyd tries again", fault.why))
        }));
        if !self.reloads.state.valid {
            degraded.push("the last reload failed; an older configuration is in effect".to_owned());
        }
        degraded
    }

    /// Returns the number of runs that wait in the queue or for their time.
    pub(super) fn queued(&self) -> usize {
        self.book.count(Kind::Queued) + self.book.count(Kind::Delayed)
    }

    pub(super) fn status(&self) -> StatusReport {
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started_at,
            // A person may have ended a pause since the last load.
            config: StatusConfig {
                paused_removed: self.paused_removed(),
                ..self.reloads.state.clone()
            },
            runs: StatusRuns { active: self.book.count(Kind::Active), queued: self.queued() },
            jobs: StatusJobs {
                total: self.config.borrow().jobs.len(),
                paused: self.paused_jobs(),
                failing: self.failing_jobs(),
                acknowledged: None,
            },
            sandbox: describe_sandbox(self.config.borrow().settings.security.sandbox),
            search_path: self.parts.host.environment.search_path(),
            cannot_begin: self.cannot_begin(),
            waits: self.model_waits(),
            pause_of_all: self.pause_of_all(),
            holds: self.holds(),
            degraded: self.degraded(),
            approvals: None,
            refused_parameters: None,
        }
    }

    /// Returns the models on hold, each with the number of runs that wait for it.
    fn holds(&self) -> Vec<StatusHold> {
        let holds = self.book.holds(&self.config.borrow()).into_iter();
        let row = |(hold, waiting): (&Hold, usize)| StatusHold {
            model: hold.model.clone(),
            cause: hold.cause.clone(),
            since: hold.since,
            until: hold.until,
            waiting,
        };
        holds.map(row).collect()
    }

    /// Returns the models that give no answer now, with the runs that wait for each.
    pub(super) fn model_waits(&self) -> Vec<StatusWait> {
        let now = self.parts.host.clock.now();
        let mut waits: BTreeMap<String, StatusWait> = BTreeMap::new();
        for (run_id, wait) in self.parts.host.waits.all() {
            if !wait.is_silent() {
                continue;
            }
            let model = wait.model.clone();
            let since =
                TimeDelta::from_std(wait.since.elapsed()).map_or(now, |lasted| now - lasted);
            let row = waits.entry(model.clone());
            let row = row.or_insert_with(|| StatusWait { model, runs: Vec::new(), since });
            row.since = row.since.min(since);
            row.runs.push(run_id);
        }
        waits.into_values().collect()
    }

    /// Describes the models that have given no answer for half of the time that they may take.
    pub(super) fn silent_models(&self) -> Vec<String> {
        let (now, config) = (self.parts.host.clock.now(), self.config.borrow().clone());
        let is_late = |wait: &StatusWait| {
            let has_lasted =
                |limit: Duration| (now - wait.since).to_std().is_ok_and(|lasted| lasted >= limit);
            match config.models.get(&wait.model).map(|model| &model.provider) {
                Some(Provider::Remote(remote)) => has_lasted(remote.first_byte() / 2),
                Some(Provider::Scripted(_)) | None => false,
            }
        };
        let tell = |StatusWait { model, runs, since }: StatusWait| {
            let (since, runs) = (since.format("%Y-%m-%d %H:%M:%S UTC"), runs.len());
            format!("`{model}` has given no answer since {since}: {runs} run(s) wait for it")
        };
        self.model_waits().into_iter().filter(is_late).map(tell).collect()
    }
}

/// Describes how tools are sandboxed unless their job sets a mode of its own.
fn describe_sandbox(mode: SandboxMode) -> String {
    match (mode, sandbox_support()) {
        (SandboxMode::Off, _) => mode.as_str().to_owned(),
        (_, Ok(abi)) => format!("{}, Landlock {abi}{}", mode.as_str(), sandbox_gaps(abi)),
        (_, Err(error)) => format!("{}: {error}", mode.as_str()),
    }
}
