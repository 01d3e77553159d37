//! The tasks of the supervisor: one for each active run, and one for the recovery of open runs.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::daemon::recovery::{Recovery, recover_again};
use crate::domain::{RunId, Stop};
use crate::run::{Ended, Host, RunError};
use crate::text::redact::Redactor;

/// The end of the task of a run.
pub(super) struct TaskEnd {
    pub(super) run_id: RunId,
    pub(super) result: Result<Ended, RunError>,
}

/// The tasks in progress.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) runs: JoinSet<TaskEnd>,
    /// Tells each active run how it is to end.
    stops: HashMap<RunId, watch::Sender<Option<Stop>>>,
    /// The recovery in progress, at most one.
    pub(super) recovery: JoinSet<Recovery>,
}

impl Tasks {
    /// Starts the task of a run. `work` gets the channel that tells how the run is to end.
    pub(super) fn begin<F>(
        &mut self,
        run_id: RunId,
        stop: Option<Stop>,
        work: impl FnOnce(watch::Receiver<Option<Stop>>) -> F,
    ) where
        F: Future<Output = Result<Ended, RunError>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(stop);
        self.stops.insert(run_id.clone(), stop);
        let work = AssertUnwindSafe(work(stopped)).catch_unwind();
        self.runs.spawn(async move {
            let result = work.await.unwrap_or(Err(RunError::Panicked));
            TaskEnd { run_id, result }
        });
    }

    /// Tells an active run how it is to end.
    pub(super) fn stop(&self, run_id: &RunId, stop: Stop) {
        if let Some(sender) = self.stops.get(run_id) {
            sender.send_if_modified(|given| {
                let is_new = given.as_ref() != Some(&stop);
                *given = Some(stop);
                is_new
            });
        }
    }

    /// Forgets the task of a run, which has ended.
    pub(super) fn forget(&mut self, run_id: &RunId) {
        self.stops.remove(run_id);
    }

    /// Starts the recovery of runs, each without a task since its time.
    pub(super) fn recover(
        &mut self,
        host: Host,
        redactor: Redactor,
        runs: BTreeMap<RunId, DateTime<Utc>>,
    ) {
        let tried: Vec<RunId> = runs.keys().cloned().collect();
        self.recovery.spawn(async move {
            let work = AssertUnwindSafe(recover_again(&host, runs, &redactor)).catch_unwind();
            work.await.unwrap_or_else(|_| {
                tracing::error!("the recovery of open runs panicked");
                let why = "a bug in dutyd ended its recovery; see the log";
                let failed = tried.into_iter().map(|run_id| (run_id, why.to_owned()));
                Recovery { failed: failed.collect(), ..Recovery::default() }
            })
        });
    }
}
