//! Pauses jobs on request.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};

use super::{Parts, Supervisor};
use crate::daemon::book::is_good;
use crate::daemon::command::{CommandError, PauseRequest};
use crate::daemon::outbox::EARLIER_UNWRITTEN;
use crate::daemon::views::StatusPause;
use crate::domain::JobName;
use crate::store::{DbError, Pause, Span};

/// Returns whether the last run of each job succeeded, according to the index. An index that cannot
/// be read becomes a known problem, because the daemon works without it.
pub(super) async fn last_outcomes(parts: &mut Parts) -> HashMap<JobName, bool> {
    let jobs = parts.config.jobs.keys().map(ToString::to_string).collect();
    let index = parts.host.index.clone();
    let read = async move {
        let outcomes = index.get().await?.last_outcomes(jobs).await?;
        Ok::<_, DbError>(outcomes)
    };
    match read.await {
        Ok(outcomes) => outcomes
            .into_iter()
            .filter_map(|(job, outcome)| Some((JobName::parse(&job).ok()?, is_good(outcome)?)))
            .collect(),
        Err(error) => {
            tracing::error!(%error, "cannot read the last outcomes of the jobs");
            let problem = format!("the last outcomes of the jobs cannot be read: {error}");
            parts.recovered.problems.push(problem);
            HashMap::new()
        }
    }
}

/// The pauses, by job.
#[derive(Debug, Default)]
pub(super) struct Pauses(BTreeMap<String, Pause>);

impl Pauses {
    pub(super) fn new(pauses: Vec<Pause>) -> Self {
        Self(pauses.into_iter().map(|pause| (pause.job.clone(), pause)).collect())
    }

    /// Returns the pause of a job itself, or that of all jobs for [`Pause::ALL`].
    pub(super) fn of(&self, job: &str) -> Option<&Pause> {
        self.0.get(job)
    }

    /// Returns the jobs that have a pause of their own.
    fn jobs(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|job| *job != Pause::ALL)
    }

    /// Tells whether a job is paused at a moment.
    pub(super) fn is_paused(&self, job: &str, at: DateTime<Utc>) -> bool {
        let pauses = [self.of(job), self.of(Pause::ALL)].into_iter().flatten();
        pauses.into_iter().any(|pause| pause.is_in_effect(at))
    }

    /// Tells whether the pauses cover a due time of a job. A span of due times that lasts longer than
    /// the pause is not covered, so that it is missed aloud.
    pub(super) fn cover(&self, job: &str, due_at: DateTime<Utc>, span: Option<Span>) -> bool {
        self.is_paused(job, span.map_or(due_at, |span| span.until))
    }

    pub(super) fn insert(&mut self, pause: Pause) {
        self.0.insert(pause.job.clone(), pause);
    }

    pub(super) fn remove(&mut self, job: &str) {
        self.0.remove(job);
    }

    /// Returns the pauses that have ended at a moment.
    fn ended(&self, at: DateTime<Utc>) -> Vec<String> {
        let ended = self.0.values().filter(|pause| !pause.is_in_effect(at));
        ended.map(|pause| pause.job.clone()).collect()
    }

    /// Returns when the next pause ends after `now`.
    pub(super) fn next_end(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.0.values().filter_map(|pause| pause.until).filter(|until| *until > now).min()
    }
}

impl Supervisor {
    /// Pauses a job, or all jobs. Waiting and active runs continue. The pause lasts until its time or
    /// [`Self::unpause`], even over a restart or while the job is not in the configuration.
    pub(super) async fn pause(&mut self, request: PauseRequest) -> Result<Pause, CommandError> {
        let PauseRequest { job, note, until } = request;
        let is_unknown = |job: &&String| !self.config.borrow().jobs.contains_key(job.as_str());
        if let Some(unknown) = job.as_ref().filter(is_unknown) {
            return Err(CommandError::NoJob(unknown.clone()));
        }
        let now = self.parts.host.clock.now();
        if let Some(until) = until.filter(|until| *until <= now) {
            return Err(CommandError::Invalid(format!("the pause would end in the past: {until}")));
        }
        // Decide first what came due before the pause.
        self.tick().await;
        let job = job.unwrap_or_else(|| Pause::ALL.to_owned());
        let pause = Pause { job, paused_at: now, note, until };
        let kept = self.parts.ledger.pause(pause.clone()).await;
        kept.map_err(|error| CommandError::NotPaused(error.to_string()))?;
        self.due.pauses.insert(pause.clone());
        Ok(pause)
    }

    /// Ends the pause of a job and sets its count of failures to 0, or ends that of all jobs; returns
    /// whether it was paused.
    pub(super) async fn unpause(&mut self, job: Option<String>) -> Result<bool, CommandError> {
        let job = job.unwrap_or_else(|| Pause::ALL.to_owned());
        let is_known = job == Pause::ALL
            || self.config.borrow().jobs.contains_key(job.as_str())
            || self.due.pauses.of(&job).is_some();
        if !is_known {
            return Err(CommandError::NoJob(job));
        }
        // Decide first what came due during the pause.
        self.tick().await;
        // A failure from before must not count after it.
        if !self.write_again().await {
            return Err(CommandError::NotPaused(EARLIER_UNWRITTEN.to_owned()));
        }
        let ended = self.parts.ledger.unpause(job.clone()).await;
        let was_paused = ended.map_err(|error| CommandError::NotPaused(error.to_string()))?;
        self.due.pauses.remove(&job);
        Ok(was_paused)
    }

    /// Ends the pauses whose time has come, once every slot is decided that came due before it.
    pub(super) async fn end_pauses(&mut self, now: DateTime<Utc>) {
        if self.due.pauses.ended(now).is_empty() {
            return;
        }
        let earliest = self.due.held.iter().map(|held| held.due_at).min();
        let ended = self.due.pauses.ended(earliest.map_or(now, |earliest| earliest.min(now)));
        if ended.is_empty() {
            return;
        }
        if let Err(error) = self.parts.ledger.end_pauses(ended.clone()).await {
            return self.outbox.ledger_failed(&error);
        }
        for job in ended {
            match job.as_str() {
                Pause::ALL => tracing::info!("the pause of all jobs has ended"),
                job => tracing::info!(job, "the pause of the job has ended"),
            }
            self.due.pauses.remove(&job);
        }
    }

    /// Returns the paused jobs that are not in the configuration.
    pub(super) fn paused_removed(&self) -> Vec<String> {
        let config = self.config.borrow();
        let gone = self.due.pauses.jobs().filter(|job| !config.jobs.contains_key(*job));
        gone.map(str::to_owned).collect()
    }

    /// Logs the paused jobs that are not in the configuration. `added` are the jobs that came.
    pub(super) fn log_paused_removed(&self, added: &[String]) {
        let removed = self.paused_removed();
        if !removed.is_empty() {
            tracing::warn!(paused = ?removed, ?added, "paused jobs are not in the configuration; a job that got another name is not paused");
        }
    }

    /// Returns the number of paused jobs in the configuration.
    pub(super) fn paused_jobs(&self) -> usize {
        let (config, now) = (self.config.borrow(), self.parts.host.clock.now());
        let of_all = self.due.pauses.of(Pause::ALL).is_some_and(|pause| pause.is_in_effect(now));
        if of_all {
            return config.jobs.len();
        }
        let paused = self.due.pauses.jobs().filter(|job| self.due.pauses.is_paused(job, now));
        paused.filter(|job| config.jobs.contains_key(*job)).count()
    }

    /// Returns the pause of all jobs.
    pub(super) fn pause_of_all(&self) -> Option<StatusPause> {
        let pause = self.due.pauses.of(Pause::ALL)?;
        let Pause { paused_at: since, until, note, .. } = pause.clone();
        pause.is_in_effect(self.parts.host.clock.now()).then_some(StatusPause {
            since,
            until,
            note,
        })
    }

    /// Returns the number of configured jobs whose last run did not succeed. A run that was not
    /// needed does not count.
    pub(super) fn failing_jobs(&self) -> usize {
        let config = self.config.borrow();
        let failing = self.book.outcomes.iter().filter(|(_, is_good)| !**is_good);
        failing.filter(|(job, _)| config.jobs.contains_key(*job)).count()
    }
}
