//! Pauses jobs on request.

use std::collections::HashMap;

use super::{Parts, Supervisor};
use crate::daemon::book::is_good;
use crate::daemon::command::CommandError;
use crate::daemon::outbox::EARLIER_UNWRITTEN;
use crate::domain::JobName;
use crate::store::{DbError, Pause};

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

impl Supervisor {
    /// Pauses a job. Its waiting and active runs continue. The pause lasts until
    /// [`Self::unpause`], even over a restart or while the job is not in the configuration.
    pub(super) async fn pause(
        &mut self,
        job: String,
        note: Option<String>,
    ) -> Result<Pause, CommandError> {
        if !self.config.borrow().jobs.contains_key(job.as_str()) {
            return Err(CommandError::NoJob(job));
        }
        // Decide first what came due before the pause.
        self.tick().await;
        let pause = Pause { job, paused_at: self.parts.host.clock.now(), note };
        let kept = self.parts.ledger.pause(pause.clone()).await;
        kept.map_err(|error| CommandError::NotPaused(error.to_string()))?;
        self.due.pauses.insert(pause.job.clone());
        Ok(pause)
    }

    /// Ends the pause of a job, and sets its count of failures to 0; returns whether it was paused.
    pub(super) async fn unpause(&mut self, job: String) -> Result<bool, CommandError> {
        let is_configured = self.config.borrow().jobs.contains_key(job.as_str());
        if !is_configured && !self.due.pauses.contains(&job) {
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

    /// Returns the paused jobs that are not in the configuration.
    pub(super) fn paused_removed(&self) -> Vec<String> {
        let config = self.config.borrow();
        let gone = self.due.pauses.iter().filter(|job| !config.jobs.contains_key(job.as_str()));
        gone.cloned().collect()
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
        let config = self.config.borrow();
        self.due.pauses.iter().filter(|job| config.jobs.contains_key(job.as_str())).count()
    }

    /// Returns the number of configured jobs whose last run did not succeed. A run that was not
    /// needed does not count.
    pub(super) fn failing_jobs(&self) -> usize {
        let config = self.config.borrow();
        let failing = self.book.outcomes.iter().filter(|(_, is_good)| !**is_good);
        failing.filter(|(job, _)| config.jobs.contains_key(*job)).count()
    }
}
