//! Loads the configuration again, and puts it into effect.
//!
//! A task of its own reads the files, because a file system that gives no answer must not block the
//! supervisor. At most one such task runs; requests that arrive meanwhile share the next one (CFG-7).

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use sd_notify::NotifyState;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::downtime::has_due;
use super::due::Held;
use super::slots::schedules;
use super::{Input, Kind, Parts, SUPERSEDED, Supervisor};
use crate::config::{Config, ConfigError, Loaded};
use crate::daemon::book::Entry;
use crate::daemon::rules::waits_for;
use crate::daemon::views::{StatusConfig, error_lines, starts_at};
use crate::domain::{JobName, SlotKey, SlotTime, StopReason, Trigger};
use crate::gate::jobs_with_more_rights;
use crate::process::{HostWorkError, on_host};
use crate::store::{Claim, EndedRuns, Slot, SlotState};

/// The loads of the configuration, and the requests for them.
pub(super) struct Reloads {
    /// The task that reads the files, at most one.
    pub(super) load: JoinSet<Result<Loaded, HostWorkError>>,
    /// The requests that this task will answer.
    waiting: Vec<oneshot::Sender<StatusConfig>>,
    /// The requests that came after this task had begun; the next one answers them.
    next: Vec<oneshot::Sender<StatusConfig>>,
    load_again: bool,
    /// Whether to repeat the last load, which failed for a reason outside the files.
    pub(super) must_retry: bool,
    read: Arc<dyn Fn() -> Loaded + Send + Sync>,
    /// The result of the last load, for `status`.
    pub(super) state: StatusConfig,
    /// Why dutyd cannot watch the configuration files.
    pub(super) watch_failure: Option<String>,
}

impl Reloads {
    /// Takes the function that reads the files.
    pub(super) fn new(parts: &mut Parts, now: DateTime<Utc>) -> Self {
        let nothing = || Loaded { config: None, report: Default::default() };
        let state = StatusConfig {
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
        Self {
            load: JoinSet::new(),
            waiting: Vec::new(),
            next: Vec::new(),
            load_again: false,
            must_retry: false,
            read: Arc::from(std::mem::replace(&mut parts.reload, Box::new(nothing))),
            state,
            watch_failure: None,
        }
    }
}

fn real_path(path: &std::path::Path) -> String {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string()
}

impl Supervisor {
    /// Loads the files soon; `reply` gets the configuration in effect after that. Does nothing if the
    /// daemon is stopping.
    pub(super) fn reload(&mut self, reply: Option<oneshot::Sender<StatusConfig>>) {
        if self.stopping.is_some() {
            tracing::info!("ignored a reload request while stopping");
            reply.into_iter().for_each(|reply| drop(reply.send(self.not_loaded())));
            return;
        }
        self.reloads.next.extend(reply);
        if !self.reloads.load.is_empty() {
            self.reloads.load_again = true;
            return;
        }
        self.reloads.load_again = false;
        self.reloads.waiting = std::mem::take(&mut self.reloads.next);
        let mut notice = vec![NotifyState::Reloading];
        notice.extend(NotifyState::monotonic_usec_now().ok());
        let _ = sd_notify::notify(&notice);
        let read = self.reloads.read.clone();
        self.reloads.load.spawn(async move { on_host(move || read()).await });
    }

    /// Answers every request, because the daemon stops.
    pub(super) fn answer_reloads(&mut self) {
        let Reloads { waiting, next, .. } = &mut self.reloads;
        for reply in std::mem::take(waiting).into_iter().chain(std::mem::take(next)) {
            let _ = reply.send(self.not_loaded());
        }
    }

    /// Returns the answer to a request that comes too late.
    fn not_loaded(&self) -> StatusConfig {
        let error = "the daemon is stopping, so it did not load the files".to_owned();
        StatusConfig { valid: false, errors: vec![error], ..self.reloads.state.clone() }
    }

    /// Puts the configuration that the task has loaded into effect, and answers the waiting requests.
    pub(super) async fn finish_reload(
        &mut self,
        loaded: Result<Result<Loaded, HostWorkError>, tokio::task::JoinError>,
    ) {
        if self.stopping.is_none() {
            match loaded.unwrap_or(Err(HostWorkError::Failed)) {
                Ok(loaded) => {
                    self.put_into_effect(loaded).await;
                    self.log_cannot_begin();
                }
                Err(error) => {
                    let reason =
                        format!("cannot read the configuration files: {error}; dutyd tries again");
                    self.reject(vec![reason]);
                    self.reloads.must_retry = true;
                }
            }
            let _ = sd_notify::notify(&[NotifyState::Ready]);
        }
        for reply in std::mem::take(&mut self.reloads.waiting) {
            let _ = reply.send(self.reloads.state.clone());
        }
        if self.reloads.load_again {
            self.reload(None);
        }
    }

    /// Rejects the new files with these errors. The configuration in effect stays.
    fn reject(&mut self, errors: Vec<String>) {
        tracing::error!(?errors, "rejected the new configuration");
        self.reloads.state.valid = false;
        self.reloads.state.errors = errors;
    }

    /// Puts files into effect. On any error, the configuration in effect stays (CFG-1).
    async fn put_into_effect(&mut self, loaded: Loaded) {
        self.reloads.must_retry = false;
        let now = self.parts.host.clock.now();
        let old_config = self.config.borrow().clone();
        let Some(config) = loaded.config else {
            return self.reject(error_lines(&loaded.report.errors));
        };
        if let Some(error) = missing_settings_file(&old_config, &config) {
            return self.reject(vec![error]);
        }
        if self.is_in_doubt(now) {
            self.reject(vec![
                "the clock was set far forward; dutyd loads the files once that has lasted for a minute"
                    .to_owned(),
            ]);
            self.reloads.must_retry = true;
            return;
        }
        // Due times up to now belong to the old schedules.
        self.hold_due(now);
        let (old, new) = (schedules(&old_config), schedules(&config));
        let is_same = |job: &JobName| match (old.get(job), new.get(job)) {
            (Some(old), Some(new)) => {
                old.to_record() == new.to_record() && old.zone() == new.zone()
            }
            _ => false,
        };
        let epoch = self.due.epoch;
        // The new schedules give the later due times of this epoch again.
        let is_kept = |held: &Held| held.epoch < epoch || held.due_at <= now;
        let superseded = |held: &&Held| is_kept(held) && !is_same(&held.job);
        let slots = self.due.held.iter().filter(superseded).map(|held| {
            let zone = old.get(&held.job).map(|schedule| schedule.zone().name());
            let time = SlotTime { epoch: held.epoch, due_at: held.due_at };
            let key = SlotKey { job: held.job.clone(), time };
            let (state, reason) = (SlotState::Superseded, SUPERSEDED.to_owned());
            let row = self.row(key, state, reason, zone.unwrap_or_default());
            Slot { span: held.span, ..row }
        });
        let slots: Vec<Slot> = slots.collect();
        let settled = self.settled_by(&slots);
        let config = Arc::new(config);
        let stays = |run: &Entry| {
            let (Some(job), Some(origin)) = (&run.job, &run.origin) else { return true };
            match (origin.trigger, origin.due_at()) {
                (Trigger::Backfill, Some(due_at)) => has_due(&config, job, due_at),
                // An earlier attempt has begun.
                (Trigger::Retry, _) => true,
                _ => is_same(job),
            }
        };
        let waiting = self.book.of_kind(Kind::Queued);
        let waiting = waiting.filter(|(_, run)| run.is_new_slot() && !stays(run));
        let ended = Some(EndedRuns {
            runs: waiting.map(|(run_id, _)| run_id.clone()).collect(),
            state: SlotState::Superseded,
            stop_reason: StopReason::Cancelled,
            reason: SUPERSEDED.to_owned(),
        });
        self.config.send_replace(config.clone());
        let adopted =
            self.adopt_schedules(Claim { slots, settled, ended, ..Claim::default() }, now).await;
        if let Err(error) = adopted {
            self.config.send_replace(old_config);
            self.outbox.ledger_failed(&error);
            self.reject(vec![format!(
                "cannot adopt the new configuration: {error}; dutyd tries again"
            )]);
            self.reloads.must_retry = true;
            return;
        }
        let held = std::mem::take(&mut self.due.held).into_iter();
        let held = held.filter(|held| is_kept(held) && is_same(&held.job));
        // The jitter may have changed.
        self.due.held = held
            .map(|held| match config.jobs.get(&held.job) {
                Some(job) if held.epoch == epoch => {
                    Held { starts_at: starts_at(job, held.due_at), ..held }
                }
                _ => held,
            })
            .collect();
        self.book.renew_slots(stays, |run, old| {
            let job = run.job.as_ref().and_then(|job| config.jobs.get(job));
            let origin = job.zip(run.origin.as_ref());
            origin.map_or(old, |(job, origin)| waits_for(job, origin.trigger, run.ignores_overlap))
        });
        self.act(Input::Reloaded).await;
        self.want_models();
        log_warnings(&loaded.report.warnings);
        self.record_changes(&old_config, &config);
        self.fill().await;
    }

    /// Logs the changes of the configuration, and records them for `status`.
    fn record_changes(&mut self, old: &Config, new: &Config) {
        let widened = jobs_with_more_rights(old, new);
        let needs_restart = needs_restart(&self.parts.config, new);
        let changed_values = changed_values(old, new);
        if !changed_values.is_empty() {
            tracing::info!(names = ?changed_values, "loaded new values from outside the configuration files");
        }
        let names = |of: &Config| of.jobs.keys().map(ToString::to_string).collect::<BTreeSet<_>>();
        let removed: Vec<String> = names(old).difference(&names(new)).cloned().collect();
        let mut added: Vec<String> = names(new).difference(&names(old)).cloned().collect();
        let now = self.parts.host.clock.now();
        added.retain(|job| !self.due.pauses.is_paused(job, now));
        if !needs_restart.is_empty() {
            tracing::warn!(keys = ?needs_restart, "some changed keys take effect only after a restart");
        }
        if !removed.is_empty() {
            tracing::warn!(jobs = ?removed, "jobs were removed from the configuration");
            self.log_paused_removed(&added);
        }
        let paused_removed = self.paused_removed();
        if !widened.is_empty() {
            tracing::warn!(jobs = ?widened, "jobs gained rights through the reload");
        }
        let state = &mut self.reloads.state;
        if new.digest != state.digest {
            state.widened = widened;
            state.added = added;
        }
        state.paused_removed = paused_removed;
        state.valid = true;
        state.errors = Vec::new();
        state.needs_restart = needs_restart;
        state.changed_values = changed_values;
        state.digest.clone_from(&new.digest);
        state.loaded_at = self.parts.host.clock.now();
        tracing::info!(jobs = new.jobs.len(), digest = new.digest, "configuration reloaded");
    }
}

/// Logs the warnings about a configuration that is in effect from now on. Each gets a line.
pub fn log_warnings(warnings: &[ConfigError]) {
    for line in error_lines(warnings) {
        tracing::warn!("{line}");
    }
}

/// Returns an error if `config.yaml` was there and is gone. Without that file, every setting would
/// have its default, and the operator's limits and closed paths would not apply (CFG-1, CFG-2).
fn missing_settings_file(old: &Config, new: &Config) -> Option<String> {
    const NAME: &str = "config.yaml";
    let has = |config: &Config| config.files.files.contains_key(NAME);
    (has(old) && !has(new)).then(|| {
        format!(
            "{NAME} is gone from {}; restore it, or create one that contains only `version: 1` to use the default of every setting",
            new.directory.display()
        )
    })
}

/// Returns the names of the secrets that have a new value, and `timezone` if the zone of schedules
/// without one changed: `timezone: local` is the zone of the host.
fn changed_values(old: &Config, new: &Config) -> Vec<String> {
    let added = new.secrets.iter().filter(|secret| !old.secrets.contains(secret));
    let mut names: BTreeSet<String> = added.map(|secret| secret.name.clone()).collect();
    if old.settings.timezone != new.settings.timezone {
        names.insert("timezone".to_owned());
    }
    names.into_iter().collect()
}

/// Returns the keys that differ from the configuration at the start of the daemon and take effect
/// only after a restart.
fn needs_restart(started: &Config, new: &Config) -> Vec<String> {
    let is_changed = started.settings.log != new.settings.log;
    is_changed.then(|| "telemetry".to_owned()).into_iter().collect()
}

#[cfg(test)]
impl Reloads {
    /// Makes every load return this configuration.
    pub(super) fn reads(&mut self, config: Config) {
        self.read =
            Arc::new(move || Loaded { config: Some(config.clone()), report: Default::default() });
    }
}
