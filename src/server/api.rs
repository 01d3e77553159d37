//! The state that the routes share, and the form of their responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use crate::clock::Clock;
use crate::config::{Config, Loaded, Provider};
use crate::daemon::{Command, Handle, StatusRefused, StatusReport, undelivered_problems};
use crate::domain::{JobName, RunId};
use crate::process::HostWork;
use crate::run::{Approvals, Host, Learned};
use crate::sinks::Observers;
use crate::store::{Index, Ledger, LedgerReader, RunFilter, RunSummary, StateDir, all_runs};
use crate::text::suggest::nearest;

/// How long the status waits for the files on disk. A client waits longer for the whole status.
const FILES: Duration = Duration::from_secs(5);

/// Returns the parameters that providers refuse for the models of a configuration.
fn refused_parameters(config: &Config, learned: &Learned) -> Vec<StatusRefused> {
    let of_model = config.models.values().filter_map(|model| {
        let Provider::Remote(remote) = &model.provider else { return None };
        let lessons: Vec<_> = learned.lessons_of(remote).collect();
        Some(StatusRefused {
            model: model.name.clone(),
            since: lessons.iter().map(|row| row.learned_at).max()?,
            parameters: lessons.into_iter().map(|row| row.parameter.clone()).collect(),
        })
    });
    of_model.collect()
}

fn gone() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping")
}

/// The state that the routes share.
#[derive(Clone)]
pub struct Api {
    pub approvals: Arc<Approvals>,
    /// The connection to the supervisor.
    pub handle: Handle,
    /// The index of runs.
    pub index: Index,
    /// The resources that all runs share.
    pub host: Host,
    /// The state directory, with the transcripts.
    pub state: StateDir,
    /// Loads the configuration from disk.
    pub disk: Arc<dyn Fn() -> Loaded + Send + Sync>,
    /// The source of live events.
    pub observers: Observers,
    pub clock: Arc<dyn Clock>,
    /// Ends open streams at shutdown.
    pub stop: CancellationToken,
}

/// A complete list: `next` is always null.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct List<T> {
    pub(super) items: Vec<T>,
    pub(super) next: Option<String>,
}

impl<T> List<T> {
    pub(super) fn whole(items: Vec<T>) -> Json<Self> {
        Json(Self { items, next: None })
    }
}

pub(super) type Answer<T> = Result<Json<T>, Problem>;

pub(super) fn missing(detail: String) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, detail)
}

impl Api {
    /// Returns the answer about a job that does not exist, with the nearest name.
    pub(super) fn no_job(&self, name: &str) -> Problem {
        let config = self.handle.config.borrow();
        let known = config.jobs.keys().map(JobName::as_str);
        let near = nearest(name, known).map(|near| format!(": did you mean `{near}`?"));
        missing(format!("there is no job `{name}`{}", near.unwrap_or_default()))
    }
}

pub(super) fn internal(error: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

impl Api {
    pub(super) async fn ask<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        self.tell(make(reply)).await?;
        answer.await.map_err(|_| gone())
    }

    /// Sends a command to the supervisor.
    pub(super) async fn tell(&self, command: Command) -> Result<(), Problem> {
        self.handle.commands.send(command).await.map_err(|_| gone())
    }

    /// Returns the status, with the digest of the files on disk.
    pub(super) async fn status(&self) -> Result<StatusReport, Problem> {
        let mut report = self.ask(Command::Status).await?;
        report.approvals = Some(self.approvals.waiting().len());
        // Not in the writer of the ledger: the status must not wait for a disk that does not answer.
        let (root, now) = (self.state.root().to_path_buf(), self.clock.now());
        let host_work = HostWork::of("");
        let read = host_work.run_within(FILES, move || {
            let read = Ledger::read_file(&root, |reader| {
                Ok((reader.undelivered()?, reader.acknowledgements(now)?))
            });
            (Learned::read_file(&root), read)
        });
        // The outbox reports a disk that gives no answer.
        if let Ok((learned, read)) = read.await {
            report.refused_parameters = learned
                .ok()
                .map(|learned| refused_parameters(&self.handle.config.borrow(), &learned));
            report.degraded.extend(match read {
                Ok(read) => {
                    let (undelivered, acknowledged) = read.unwrap_or_default();
                    let config = self.handle.config.borrow();
                    let jobs = acknowledged.keys().map(String::as_str);
                    let jobs = jobs.filter(|job| config.jobs.contains_key(*job));
                    report.jobs.acknowledged = Some(jobs.count());
                    undelivered_problems(undelivered)
                }
                Err(error) => {
                    vec![format!("the messages that were not delivered are unknown: {error}")]
                }
            });
        }
        let disk = self.disk.clone();
        let loaded = HostWork::of("").run_within(FILES, move || disk()).await.ok();
        if let Some(loaded) = loaded {
            let warnings = loaded.report.warnings.into_iter();
            report.config.warnings = warnings.map(|warning| warning.message).collect();
            report.config.disk_digest = loaded.config.map(|config| config.digest);
        }
        Ok(report)
    }

    pub(super) async fn rows(&self, filter: RunFilter) -> Result<Vec<RunSummary>, Problem> {
        let queue = self.ledger(|reader| reader.queue_rows()).await?;
        let open = self.state.open_rows();
        let ended = self.index.runs(filter.clone()).await.map_err(internal)?;
        let mut rows = all_runs(queue, open, ended, &filter);
        self.tell_waits(&mut rows).await;
        if rows.is_empty()
            && let Some(job) = filter.job
        {
            self.must_know(&job).await?;
        }
        Ok(rows)
    }

    /// Adds what the queued runs wait for.
    async fn tell_waits(&self, rows: &mut [RunSummary]) {
        let is_queued = |row: &&RunSummary| row.started_at.is_none() && row.ended_at.is_none();
        let queued: Vec<String> =
            rows.iter().filter(is_queued).map(|row| row.run_id.clone()).collect();
        if queued.is_empty() {
            return;
        }
        // A daemon that is stopping tells nothing more.
        let Ok(mut waits) = self.ask(|reply| Command::WaitsFor(queued, reply)).await else {
            return;
        };
        for row in rows {
            row.waits_for = waits.remove(&row.run_id);
        }
    }

    /// Rejects the name of a job that neither the configuration nor the ledger knows.
    pub(super) async fn must_know(&self, job: &str) -> Result<(), Problem> {
        let name = job.to_owned();
        let is_configured = self.handle.config.borrow().jobs.contains_key(job);
        if is_configured || self.ledger(move |reader| reader.knows_job(&name)).await? {
            return Ok(());
        }
        Err(self.no_job(job))
    }

    pub(super) async fn last_runs(&self) -> Result<BTreeMap<String, RunSummary>, Problem> {
        self.index.last_runs().await.map_err(internal)
    }

    pub(super) async fn is_known(&self, run_id: &RunId) -> bool {
        self.ask(|reply| Command::IsKnown(run_id.clone(), reply)).await.unwrap_or(false)
    }

    /// Queries the ledger without its writer thread, so that a read does not delay a claim.
    pub(super) async fn ledger<T: Send + 'static>(
        &self,
        query: impl FnOnce(&LedgerReader<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let state = self.state.clone();
        let read = tokio::task::spawn_blocking(move || Ledger::read_file(state.root(), query))
            .await
            .map_err(internal)?;
        read.map_err(internal)?.ok_or_else(|| internal("the ledger does not exist"))
    }

    pub(super) fn run_id(&self, text: &str) -> Result<RunId, Problem> {
        RunId::parse(text)
            .map_err(|_| Problem::new(StatusCode::NOT_FOUND, format!("there is no run `{text}`")))
    }
}
