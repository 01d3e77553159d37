//! What the daemon and the command line show of jobs, slots to come and themselves.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError, Job};
use crate::domain::Outcome;
use crate::schedule::jitter;
use crate::store::RunSummary;

/// The last run of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// The run.
    pub run_id: String,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// What its answer said.
    pub verdict: Option<String>,
    /// When.
    pub ended_at: Option<String>,
}

/// A job as `jobs` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// Its name.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// Whether its schedule is in force.
    pub enabled: bool,
    /// Whether it is paused; never in this version.
    pub paused: bool,
    /// Why it is paused.
    pub pause_note: Option<String>,
    /// As it was written; null: only by hand.
    pub schedule: Option<String>,
    /// Its zone.
    pub timezone: String,
    /// Its next due time.
    pub next_fire: Option<DateTime<Utc>>,
    /// Its last run.
    pub last_run: Option<LastRun>,
}

/// A slot to come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextRow {
    /// The job.
    pub job: String,
    /// The slot.
    pub due_at: DateTime<Utc>,
    /// The same in the job's zone.
    pub local: String,
    /// When its run starts, with the jitter.
    pub starts_at: DateTime<Utc>,
}

/// The configuration in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusConfig {
    /// The directory that it was read from.
    pub directory: String,
    /// Whether the last load found no error.
    pub valid: bool,
    /// Of the configuration in effect.
    pub digest: String,
    /// Of the files as they are now; null if they cannot be loaded.
    #[serde(default)]
    pub disk_digest: Option<String>,
    /// When the configuration in effect was loaded.
    pub loaded_at: DateTime<Utc>,
    /// What the last load found.
    pub errors: Vec<String>,
    /// Keys whose change takes effect at the next start.
    pub needs_restart: Vec<String>,
}

/// The runs in `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRuns {
    /// At work.
    pub active: usize,
    /// Waiting for a place.
    pub queued: usize,
}

/// The jobs in `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusJobs {
    /// All.
    pub total: usize,
    /// Paused; none in this version.
    pub paused: usize,
    /// Those whose last run did not succeed.
    pub failing: usize,
}

/// What `status` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Our version.
    pub version: String,
    /// The daemon's.
    pub pid: u32,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// Its configuration.
    pub config: StatusConfig,
    /// Its runs.
    pub runs: StatusRuns,
    /// Its jobs.
    pub jobs: StatusJobs,
    /// How tools are held where their job says nothing else.
    pub sandbox: String,
    /// What does not work as it should.
    pub degraded: Vec<String>,
}

/// Returns the jobs by name; `last_runs` are by job.
#[must_use]
pub fn job_rows(
    config: &Config,
    last_runs: &BTreeMap<String, RunSummary>,
    now: DateTime<Utc>,
) -> Vec<JobRow> {
    config
        .jobs
        .values()
        .map(|job| JobRow {
            name: job.name.to_string(),
            description: job.description.clone(),
            enabled: job.enabled,
            paused: false,
            pause_note: None,
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

/// Returns the first `count` slots after `from` of one job or of all enabled ones, in the order of their due times.
#[must_use]
pub fn next_rows(
    config: &Config,
    job: Option<&Job>,
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
            schedule.iter_after(from).take(count).map(|due_at| NextRow {
                job: job.name.to_string(),
                due_at,
                local: due_at.with_timezone(&schedule.zone()).to_rfc3339(),
                starts_at: starts_at(job, due_at),
            })
        })
        .collect();
    rows.sort_by(|a, b| (a.due_at, &a.job).cmp(&(b.due_at, &b.job)));
    rows.truncate(count);
    rows
}

/// Returns when the run of a slot starts.
pub(super) fn starts_at(job: &Job, due_at: DateTime<Utc>) -> DateTime<Utc> {
    due_at + TimeDelta::from_std(jitter(job.name.as_str(), due_at, job.jitter)).unwrap_or_default()
}

fn zone(config: &Config, job: &Job) -> chrono_tz::Tz {
    job.schedule.as_ref().map_or(config.settings.timezone, crate::schedule::Schedule::zone)
}

/// Returns a report's errors, a line each.
pub(super) fn error_lines(errors: &[ConfigError]) -> Vec<String> {
    errors
        .iter()
        .map(|error| format!("{}:{}:{}: {}", error.file, error.line, error.column, error.message))
        .collect()
}
