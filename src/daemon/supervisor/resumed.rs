//! Continues runs that the death or the stop of the previous daemon cut off.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::places::model_of;
use super::queue::{Waiting, WaitsFor};
use super::slots::runs_regardless;
use super::{Active, Supervisor};
use crate::daemon::recovery::Resumable;
use crate::domain::{RunId, Stop};
use crate::run::{RunError, resume};

impl Waiting {
    /// Returns a run that continues. It does not wait for other runs of its job.
    pub(super) fn resumed(run: Resumable) -> Self {
        Self {
            run_id: run.spec.run_id.clone(),
            job: run.spec.job.name.clone(),
            origin: run.spec.origin.clone(),
            waits_for: WaitsFor::Nothing,
            is_caught_up: runs_regardless(run.spec.origin.trigger, run.spec.job.catchup),
            resumed: Some(Box::new(run)),
            arrival: None,
        }
    }
}

impl Supervisor {
    /// Continues a run. `stop` ends it at once, for a run that was cancelled while it waited.
    pub(super) async fn start_again(&mut self, waiting: Waiting, stop: Option<Stop>) {
        let now = self.parts.host.clock.now();
        if stop.is_none() && !self.record_running(waiting.run_id.clone(), now).await {
            self.queue.put_back(waiting);
            return;
        }
        let model = model_of(&self.config.borrow(), &waiting).to_owned();
        let Waiting { run_id, job, is_caught_up, resumed, .. } = waiting;
        let Some(run) = resumed else { return };
        tracing::info!(job = job.as_str(), %run_id, count = run.resumption.history.resumptions + 1, "run continued");
        let (stop, stopped) = watch::channel(stop);
        let origin = run.spec.repeatable_origin();
        let active = Active { job, model, is_caught_up, is_resumed: true, origin, stop };
        self.active.insert(run_id.clone(), active);
        let host = self.parts.host.clone();
        self.tasks.spawn(async move {
            let work = resume(run.spec, host, stopped, run.resumption);
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            (run_id, ended.unwrap_or(Err(RunError::Panicked)))
        });
    }

    /// Cancels a run that waits to continue; returns whether it is one. The run starts again only to
    /// write its end.
    pub(super) async fn cancel_resumed(&mut self, run_id: &RunId, stop: &Stop, why: &str) -> bool {
        let is_it = |run: &Waiting| run.run_id == *run_id && run.resumed.is_some();
        if !self.queue.iter().any(is_it) {
            return false;
        }
        let Some(run) = self.queue.remove(run_id) else { return false };
        self.queue.started(&run);
        self.keep_cancelled(vec![run_id.clone()], stop.by.as_ref(), why).await;
        self.start_again(run, Some(stop.clone())).await;
        true
    }
}
