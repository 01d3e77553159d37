//! The reports of the daemon and the command line: jobs, upcoming slots, status.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError, Job};
use crate::domain::{Acknowledgement, Outcome};
use crate::schedule::jitter;
use crate::store::{Pause, QueuedRun, RunSummary};

/// The last run of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// The id of the run.
    pub run_id: String,
    pub outcome: Option<Outcome>,
    /// The `status` of its final answer.
    pub verdict: Option<String>,
    pub ended_at: Option<String>,
}

/// A job as `jobs` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    pub name: String,
    /// What it is for, in the operator's words.
    pub description: Option<String>,
    /// Whether its schedule is in effect.
    pub enabled: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Why it is paused.
    pub pause_note: Option<String>,
    /// When its pause ends by itself.
    #[serde(default)]
    pub paused_until: Option<DateTime<Utc>>,
    /// Who has silenced its state; null if nobody has.
    #[serde(default)]
    pub acknowledged: Option<Acknowledgement>,
    /// The schedule as written; null if the job has none.
    pub schedule: Option<String>,
    /// The zone of its schedule; `timezone` of `config.yaml` if it has none.
    pub timezone: String,
    /// Its next due time; null if it has no schedule in effect, or one that never comes due again.
    pub next_fire: Option<DateTime<Utc>>,
    pub last_run: Option<LastRun>,
}

/// An upcoming slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextRow {
    pub job: String,
    pub due_at: DateTime<Utc>,
    /// The due time in the job's zone, as RFC 3339.
    pub local: String,
    /// The due time plus jitter.
    pub starts_at: DateTime<Utc>,
    /// The first local time before `due_at` that the schedule names and a change of the clock skips; null
    /// if there is none since the slot before.
    #[serde(default)]
    pub skipped: Option<String>,
    /// The run that a person requested for this time; null for a due time of the schedule.
    #[serde(default)]
    pub run_id: Option<String>,
}

/// The configuration, in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusConfig {
    /// The directory of its files.
    pub directory: String,
    /// Whether the last load found no error.
    pub valid: bool,
    /// Digest of the configuration in effect.
    pub digest: String,
    /// Digest of the configuration on disk; null if it cannot be loaded.
    #[serde(default)]
    pub disk_digest: Option<String>,
    /// When the configuration in effect was loaded.
    pub loaded_at: DateTime<Utc>,
    /// Jobs that gained rights when the configuration in effect was loaded.
    #[serde(default)]
    pub widened: Vec<String>,
    /// The errors of the last load.
    pub errors: Vec<String>,
    /// Changed keys that take effect only after a restart.
    pub needs_restart: Vec<String>,
    /// The names of the secrets, and `timezone`, whose values the last load changed although they are not
    /// part of the digest.
    #[serde(default)]
    pub changed_values: Vec<String>,
    /// The warnings about the files on disk, without places.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Jobs that came with the configuration in effect and are not paused.
    #[serde(default)]
    pub added: Vec<String>,
    /// Paused jobs that are not in the configuration. If one of them got another name, the job with
    /// the new name is not paused.
    #[serde(default)]
    pub paused_removed: Vec<String>,
}

/// The number of runs, in `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRuns {
    pub active: usize,
    pub queued: usize,
}

/// The number of jobs, in `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusJobs {
    pub total: usize,
    /// Paused jobs.
    pub paused: usize,
    /// Jobs whose last run did not succeed. A run that was not needed does not count.
    pub failing: usize,
    /// Jobs whose state a person has silenced; null if the ledger did not answer.
    #[serde(default)]
    pub acknowledged: Option<usize>,
}

/// A model that gives no answer now, in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusWait {
    /// The name of the model in the configuration.
    pub model: String,
    /// The ids of the runs that wait for it.
    pub runs: Vec<String>,
    /// When the first of these calls began.
    pub since: DateTime<Utc>,
}

/// The pause of all jobs, in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusPause {
    pub since: DateTime<Utc>,
    /// When it ends by itself.
    pub until: Option<DateTime<Utc>>,
    pub note: Option<String>,
}

/// A model on hold, in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusHold {
    /// The name of the model in the configuration.
    pub model: String,
    /// Its last error.
    pub cause: String,
    pub since: DateTime<Utc>,
    /// When a run asks the model again.
    pub until: DateTime<Utc>,
    /// The number of queued runs that wait for it.
    pub waiting: usize,
}

/// The report of `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of the daemon.
    pub version: String,
    /// The process id of the daemon.
    pub pid: u32,
    pub started_at: DateTime<Utc>,
    pub config: StatusConfig,
    pub runs: StatusRuns,
    pub jobs: StatusJobs,
    /// How tools are sandboxed unless their job sets a mode of its own.
    pub sandbox: String,
    /// The absolute entries of the daemon's `PATH`, in which its runs find programs; null if it has
    /// none.
    #[serde(default)]
    pub search_path: Option<String>,
    /// Why no run of some jobs can begin; null if nothing is known that prevents it. Also one of
    /// the known problems.
    #[serde(default)]
    pub cannot_begin: Option<String>,
    /// The models that give no answer now, and the runs that wait for each.
    #[serde(default)]
    pub waits: Vec<StatusWait>,
    /// The pause of all jobs; null if there is none.
    #[serde(default)]
    pub pause_of_all: Option<StatusPause>,
    /// The models on hold.
    #[serde(default)]
    pub holds: Vec<StatusHold>,
    /// The parameters that providers refuse for the configured models; null if the ledger did not
    /// answer.
    #[serde(default)]
    pub refused_parameters: Option<Vec<StatusRefused>>,
    /// Known problems, one sentence each.
    pub degraded: Vec<String>,
    /// Number of calls that wait for a person; null if the report does not come from the socket,
    /// which knows them.
    pub approvals: Option<usize>,
}

/// The parameters that a provider refuses for a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRefused {
    /// The name of the model in the configuration.
    pub model: String,
    pub parameters: Vec<String>,
    /// When the last of them was refused.
    pub since: DateTime<Utc>,
}

impl StatusReport {
    /// Tells whether the daemon is well: no problem is known, and the files on disk can be loaded.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.degraded.is_empty() && self.config.valid && self.config.disk_digest.is_some()
    }
}

/// Returns a row for each job; `last_runs` is keyed by job.
#[must_use]
pub fn job_rows(
    config: &Config,
    last_runs: &BTreeMap<String, RunSummary>,
    pauses: Vec<Pause>,
    mut acknowledgements: BTreeMap<String, Acknowledgement>,
    now: DateTime<Utc>,
) -> Vec<JobRow> {
    let pauses = pauses.into_iter().filter(|pause| pause.is_in_effect(now));
    let pauses: HashMap<String, Pause> = pauses.map(|pause| (pause.job.clone(), pause)).collect();
    // Of two pauses, the one that lasts longer is shown.
    let pause_of = |job: &str| {
        let both = [pauses.get(job), pauses.get(Pause::ALL)].into_iter().flatten();
        both.max_by_key(|pause| pause.until.unwrap_or(DateTime::<Utc>::MAX_UTC))
    };
    config
        .jobs
        .values()
        .map(|job| (job, pause_of(job.name.as_str())))
        .map(|(job, pause)| JobRow {
            name: job.name.to_string(),
            description: job.description.clone(),
            enabled: job.enabled,
            paused: pause.is_some(),
            pause_note: pause.and_then(|pause| pause.note.clone()),
            paused_until: pause.and_then(|pause| pause.until),
            acknowledged: acknowledgements.remove(job.name.as_str()),
            schedule: job.schedule.as_ref().map(crate::schedule::Schedule::as_written),
            timezone: zone(config, job).name().to_owned(),
            next_fire: job
                .schedule
                .as_ref()
                .filter(|_| job.enabled)
                .and_then(|schedule| schedule.next_after(now)),
            last_run: last_runs.get(job.name.as_str()).map(|row| LastRun {
                run_id: row.run_id.clone(),
                outcome: row.outcome,
                verdict: row.verdict.clone(),
                ended_at: row.ended_at.clone(),
            }),
        })
        .collect()
}

/// Returns the first `count` slots and `requested` runs after `from`, of one job or of all jobs, sorted
/// by due time. A disabled job has no slots.
#[must_use]
pub fn next_rows(
    config: &Config,
    job: Option<&Job>,
    requested: Vec<QueuedRun>,
    from: DateTime<Utc>,
    count: usize,
) -> Vec<NextRow> {
    let jobs: Vec<&Job> = match job {
        Some(job) => Some(job).filter(|job| job.enabled).into_iter().collect(),
        None => config.jobs.values().map(AsRef::as_ref).filter(|job| job.enabled).collect(),
    };
    let mut rows: Vec<NextRow> = jobs
        .into_iter()
        .filter_map(|job| Some((job, job.schedule.as_ref()?)))
        .flat_map(|(job, schedule)| {
            let mut skipped = schedule.skipped_after(from);
            schedule.iter_after(from).take(count).map(move |due_at| NextRow {
                job: job.name.to_string(),
                due_at,
                local: due_at.with_timezone(&schedule.zone()).to_rfc3339(),
                starts_at: starts_at(job, due_at),
                skipped: skipped
                    .take_if(|skipped| skipped.at <= due_at)
                    .map(|skipped| skipped.local.to_string()),
                run_id: None,
            })
        })
        .collect();
    let requested = requested.into_iter().filter(|run| job.is_none_or(|job| run.job == job.name));
    rows.extend(requested.filter_map(|run| {
        let due_at = run.not_before.filter(|due_at| *due_at > from)?;
        let zone = zone(config, config.jobs.get(&run.job)?);
        Some(NextRow {
            job: run.job.to_string(),
            due_at,
            local: due_at.with_timezone(&zone).to_rfc3339(),
            starts_at: due_at,
            skipped: None,
            run_id: Some(run.run_id.to_string()),
        })
    }));
    rows.sort_by(|a, b| (a.due_at, &a.job).cmp(&(b.due_at, &b.job)));
    rows.truncate(count);
    rows
}

/// Returns the start time of a slot.
pub(super) fn starts_at(job: &Job, due_at: DateTime<Utc>) -> DateTime<Utc> {
    due_at + TimeDelta::from_std(jitter(job.name.as_str(), due_at, job.jitter)).unwrap_or_default()
}

fn zone(config: &Config, job: &Job) -> chrono_tz::Tz {
    job.schedule.as_ref().map_or(config.settings.timezone, crate::schedule::Schedule::zone)
}

/// Formats each error as `FILE:LINE:COLUMN: MESSAGE`.
pub(super) fn error_lines(errors: &[ConfigError]) -> Vec<String> {
    errors
        .iter()
        .map(|error| format!("{}:{}:{}: {}", error.file, error.line, error.column, error.message))
        .collect()
}
