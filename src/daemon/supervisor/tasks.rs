//! The tasks of the supervisor: one for each active run, and one for the recovery of open runs.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::agent::{GivenText, Inbox, InboxError};
use crate::daemon::recovery::{Recovery, recover_again};
use crate::domain::{RunId, Stop};
use crate::run::{Controls, Ended, Host, RunError};
use crate::text::redact::Redactor;

/// The end of the task of a run.
pub(super) struct TaskEnd {
    pub(super) run_id: RunId,
    pub(super) result: Result<Ended, RunError>,
}

/// Reaches an active run.
struct Handle {
    /// Tells it how it is to end.
    stop: watch::Sender<Option<Stop>>,
    texts: mpsc::Sender<GivenText>,
}

/// How many texts may be on their way to a run.
const TEXTS: usize = 16;

/// The tasks in progress.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) runs: JoinSet<TaskEnd>,
    /// Reaches each active run.
    handles: HashMap<RunId, Handle>,
    /// The recovery in progress, at most one.
    pub(super) recovery: JoinSet<Recovery>,
}

impl Tasks {
    /// Starts the task of a run.
    pub(super) fn begin<F>(
        &mut self,
        run_id: RunId,
        stop: Option<Stop>,
        work: impl FnOnce(Controls) -> F,
    ) where
        F: Future<Output = Result<Ended, RunError>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(stop);
        let (texts, given) = mpsc::channel(TEXTS);
        let inbox = Inbox::default();
        self.handles.insert(run_id.clone(), Handle { stop, texts });
        let controls = Controls { stop: stopped, inbox: inbox.clone() };
        let work = AssertUnwindSafe(work(controls)).catch_unwind();
        self.runs.spawn(async move {
            let result = tokio::select! {
                result = work => result.unwrap_or(Err(RunError::Panicked)),
                never = inbox.serve(given) => match never {},
            };
            TaskEnd { run_id, result }
        });
    }

    /// Tells an active run how it is to end.
    pub(super) fn stop(&self, run_id: &RunId, stop: Stop) {
        if let Some(handle) = self.handles.get(run_id) {
            handle.stop.send_if_modified(|given| {
                let is_new = given.as_ref() != Some(&stop);
                *given = Some(stop);
                is_new
            });
        }
    }

    /// Forgets the task of a run, which has ended.
    pub(super) fn forget(&mut self, run_id: &RunId) {
        self.handles.remove(run_id);
    }

    /// Passes a text to an active run. Drops it, without an answer, if the run has ended.
    pub(super) fn give(&self, run_id: &RunId, text: GivenText) {
        let Some(handle) = self.handles.get(run_id) else { return };
        if let Err(mpsc::error::TrySendError::Full(text)) = handle.texts.try_send(text) {
            (text.answer)(Err(InboxError::Busy));
        }
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
