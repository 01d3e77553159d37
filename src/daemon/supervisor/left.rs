//! Takes what the previous daemon left: open runs, waiting attempts, and the runs that people
//! requested. Like the run of a slot, such a run is not lost with the daemon (STATE-1).

use chrono::{DateTime, Utc};

use super::{Input, Supervisor};
use crate::daemon::book::{input_of_left, is_left};
use crate::domain::JobName;
use crate::store::DbError;

impl Supervisor {
    /// Takes the open runs of the previous daemon. Those that continue go first in the queue.
    pub(super) fn take_recovered(&mut self) {
        let resumable = std::mem::take(&mut self.parts.recovered.resumable);
        self.step(Input::Resumed(resumable));
        for (run_id, why) in std::mem::take(&mut self.parts.recovered.failed) {
            let job = self.parts.host.state.job_of_open(&run_id);
            let job = job.and_then(|job| JobName::parse(&job).ok());
            self.step(Input::Open { run_id, job, why });
        }
    }

    /// Takes the models on hold, as far as the configuration still has them.
    pub(super) async fn load_holds(&mut self) -> Result<(), DbError> {
        let holds = self.parts.ledger.read(|reader| reader.holds()).await?;
        self.book.take_holds(holds, self.parts.host.clock.now());
        self.act(Input::Reloaded).await;
        self.want_models();
        Ok(())
    }

    /// Loads the requested runs and the attempts that the previous daemon left in the queue, the oldest
    /// first. An attempt that should have begun while the daemon was down begins now. Ends those that
    /// are too late by the rule for slots (CRON-4).
    pub(super) async fn load_queue(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        let mut queue = self.parts.ledger.read(|reader| reader.waiting_runs()).await?;
        queue.reverse();
        for run in queue {
            // A slot decides about the other runs, and recovery ends a run that it could not clear away.
            if !is_left(&run) || self.book.get(&run.run_id).is_some() {
                continue;
            }
            // A run that began has left the queue, unless the daemon died in between.
            if self.parts.host.state.has_begun(&run.run_id) {
                self.parts.ledger.dequeue(run.run_id).await?;
                continue;
            }
            let left = input_of_left(run, &self.config.borrow(), now);
            match left {
                Ok(input) => drop(self.step(input)),
                Err(ended) => self.parts.ledger.end_waiting(ended, now).await?,
            }
        }
        Ok(())
    }
}
