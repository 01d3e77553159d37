//! Pauses jobs on request.

use super::Supervisor;
use super::decisions::EARLIER_UNWRITTEN;
use crate::daemon::command::CommandError;
use crate::store::Pause;

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
        self.pauses.insert(pause.job.clone());
        Ok(pause)
    }

    /// Ends the pause of a job, and sets its count of failures to 0; returns whether it was paused.
    pub(super) async fn unpause(&mut self, job: String) -> Result<bool, CommandError> {
        let is_configured = self.config.borrow().jobs.contains_key(job.as_str());
        if !is_configured && !self.pauses.contains(&job) {
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
        self.pauses.remove(&job);
        Ok(was_paused)
    }

    /// Returns the number of paused jobs in the configuration.
    pub(super) fn paused_jobs(&self) -> usize {
        let config = self.config.borrow();
        self.pauses.iter().filter(|job| config.jobs.contains_key(job.as_str())).count()
    }

    /// Returns the number of configured jobs whose last run since the start of the daemon did not
    /// succeed. A run that was not needed does not count.
    pub(super) fn failing_jobs(&self) -> usize {
        let config = self.config.borrow();
        let failing = self.last_outcomes.iter().filter(|(_, is_good)| !**is_good);
        failing.filter(|(job, _)| config.jobs.contains_key(job.as_str())).count()
    }
}
