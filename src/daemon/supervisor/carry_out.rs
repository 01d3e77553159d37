//! Carries out what follows from the steps of the book, in order.

use std::collections::VecDeque;

use tokio::task::JoinError;

use super::tasks::TaskEnd;
use super::{Effect, Input, Supervisor};
use crate::daemon::book::{Change, Phase, SlotEnd};
use crate::daemon::recovery::{Recovery, Resumable, end_panicked, recorded_end};
use crate::domain::{JobName, RunId, RunNotice, Stop};
use crate::run::{RunSpec, execute, resume};
use crate::text::redact::Redactor;

impl Supervisor {
    /// Carries out effects, and what follows from them.
    ///
    /// *Errors*: the ledger refused the change of an [`Effect::Try`]; the others are carried out.
    pub(super) async fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        let mut left = VecDeque::from(effects);
        let mut carried_out = Ok(());
        let mut has_ended_waiting = false;
        while let Some(effect) = left.pop_front() {
            has_ended_waiting |= matches!(
                &effect,
                Effect::Keep(Change::EndWaiting(_)) | Effect::Try(Change::EndWaiting(_), _)
            );
            let next = match effect {
                Effect::Try(change, input) => {
                    let written = self.outbox.try_write(&change, self.believed()).await;
                    self.take_pauses();
                    match written {
                        Ok(()) => Some(*input),
                        Err(error) => {
                            carried_out = Err(error);
                            None
                        }
                    }
                }
                effect => self.carry_out_one(effect).await,
            };
            let following = next.map(|input| self.step(input)).unwrap_or_default();
            following.into_iter().rev().for_each(|effect| left.push_front(effect));
        }
        if has_ended_waiting {
            // The attempt of a run that failed may be among them.
            self.tell_of_left_runs().await;
        }
        carried_out
    }

    /// Carries out an effect; returns what happened, if the book is to know.
    async fn carry_out_one(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Keep(change) | Effect::Try(change, _) => self.keep(change).await,
            Effect::DiskFailed(what) => self.outbox.failed(&what),
            Effect::Begin(run_id) => return Some(self.begin(run_id)),
            Effect::Continue { run, stop } => self.resume(*run, stop),
            Effect::Stop(run_id, stop) => self.tasks.stop(&run_id, stop),
            Effect::ClearAway { run_id, error } => {
                let is_gone = self.clear_away(&run_id).await;
                return Some(Input::ClearedAway { run_id, error, is_gone });
            }
            Effect::EndPanicked(run_id) => {
                let had_begun = end_panicked(&self.parts.host, &run_id, &self.redactor()).await;
                return Some(Input::PanicSettled { run_id, had_begun });
            }
            // The recovery decides by the rows of the ledger.
            Effect::Recover(_) if !self.outbox.is_empty() => {}
            Effect::Recover(runs) => {
                self.tasks.recover(self.parts.host.clone(), self.redactor(), runs);
            }
            Effect::FindSlot(run_id) if self.outbox.has_end_of(&run_id) => {}
            Effect::FindSlot(run_id) => return Some(self.slot_of_ended(run_id).await),
        }
        None
    }

    /// Writes a change, or keeps it until the disk can be written.
    pub(super) async fn keep(&mut self, change: Change) {
        let believed = self.believed();
        self.outbox.keep(change, believed).await;
        self.take_pauses();
    }

    /// Starts the task of a run that begins.
    fn begin(&mut self, run_id: RunId) -> Input {
        let config = self.config.borrow().clone();
        let run = self.book.get(&run_id).and_then(|run| run.job.clone().zip(run.origin.clone()));
        let spec = match run {
            Some((job, origin)) => match config.jobs.get(&job) {
                None => Err("the job was removed from the configuration".to_owned()),
                Some(job) => RunSpec::new(run_id.clone(), config.clone(), job.clone(), origin)
                    .map(|spec| {
                        let passed_over = self.passed_over(&run_id);
                        RunSpec { is_queued: true, passed_over, ..spec }
                    })
                    .map_err(|error| error.to_string()),
            },
            None => Err("it is not in the queue".to_owned()),
        };
        let spec = match spec {
            Ok(spec) => spec,
            Err(reason) => {
                let job = self.book.get(&run_id).and_then(|run| run.job.as_ref());
                let job = job.map(JobName::as_str);
                tracing::error!(job, %run_id, reason, "failed to start a run");
                return Input::NotBegun { run_id, reason };
            }
        };
        let trigger = spec.origin.trigger.as_str();
        tracing::info!(job = spec.job.name.as_str(), %run_id, trigger, "run started");
        let (origin, host) = (spec.repeatable_origin(), self.parts.host.clone());
        self.tasks.begin(run_id.clone(), None, |controls| execute(spec, host, controls));
        Input::Begun { run_id, origin }
    }

    /// Returns the models that an active run does not ask, because they are on hold.
    fn passed_over(&self, run_id: &RunId) -> Vec<String> {
        match self.book.get(run_id).map(|run| &run.phase) {
            Some(Phase::Active { admission, .. }) => admission.passed_over.clone(),
            _ => Vec::new(),
        }
    }

    /// Starts the task of a run that continues. `stop` ends it at once.
    fn resume(&mut self, run: Resumable, stop: Option<Stop>) {
        let Resumable { spec, resumption } = run;
        let spec = RunSpec { passed_over: self.passed_over(&spec.run_id), ..spec };
        let (run_id, count) = (spec.run_id.clone(), resumption.history.resumptions + 1);
        tracing::info!(job = spec.job.name.as_str(), %run_id, count, "run continued");
        let host = self.parts.host.clone();
        self.tasks.begin(run_id, stop, |controls| resume(spec, host, controls, resumption));
    }

    /// Handles the end of the task of a run, and starts queued runs.
    pub(super) async fn on_ended(&mut self, joined: Result<TaskEnd, JoinError>) {
        let TaskEnd { run_id, result } = match joined {
            Ok(ended) => ended,
            Err(error) => {
                // `catch_unwind` catches a panic of the run itself, so the code around it panicked.
                tracing::error!(%error, "the task of a run panicked");
                return;
            }
        };
        self.tasks.forget(&run_id);
        let has_begun = result.is_ok() || self.parts.host.state.has_begun(&run_id);
        // An answer came before the end.
        self.hear_of_models().await;
        let (result, next) = (result.map(Box::new), new_run_id());
        self.act(Input::Ended { run_id, result, has_begun, next }).await;
        self.want_models();
        self.fill().await;
    }

    /// Handles the end of a recovery of open runs, and starts queued runs.
    pub(super) async fn on_recovered(&mut self, recovery: Result<Recovery, JoinError>) {
        match recovery {
            Ok(recovery) => self.act(Input::Recovered(recovery)).await,
            Err(error) => tracing::error!(%error, "the recovery of open runs panicked"),
        }
        self.tell_of_left_runs().await;
        self.fill().await;
    }

    /// Adds the messages about ended runs that need no further decision, such as a manual run that
    /// recovery has ended.
    pub(super) async fn tell_of_left_runs(&self) {
        let config = self.config.borrow().clone();
        let rules = |run_id: &RunId, notice: &RunNotice| {
            let is_open = self.book.get(run_id).is_some() || self.outbox.has_end_of(run_id);
            (!is_open).then(|| self.book.rules_for(&config, &notice.job, notice.stop_reason))
        };
        if let Err(error) = self.parts.ledger.tell_of_left_runs(rules).await {
            tracing::error!(%error, "failed to add the messages about runs that ended earlier; the next start tries again");
        }
    }

    /// Removes what a run left that did not begin; returns whether it is gone.
    async fn clear_away(&self, run_id: &RunId) -> bool {
        let (state, id) = (self.parts.host.state.clone(), run_id.clone());
        let removed = tokio::task::spawn_blocking(move || state.remove_unbegun(&id)).await;
        let removed = removed.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        removed
            .inspect_err(|error| tracing::warn!(%run_id, %error, "failed to remove a run that did not begin"))
            .is_ok()
    }

    /// Finds the slot that waits for a run that recovery has ended, and how the run ended.
    async fn slot_of_ended(&self, run_id: RunId) -> Input {
        let id = run_id.clone();
        let slot = self.parts.ledger.read(move |reader| reader.open_slot_of(&id)).await;
        let slot = slot.map_err(|error| error.to_string()).map(|slot| {
            let end = || recorded_end(&self.parts.host, &run_id);
            slot.map(|slot| SlotEnd { job: slot.key.job, end: end() })
        });
        Input::SlotOfEnded { run_id, slot }
    }

    pub(super) fn redactor(&self) -> Redactor {
        Redactor::new(&self.config.borrow().secrets)
    }
}

pub(super) fn new_run_id() -> RunId {
    RunId::from_ulid(ulid::Ulid::generate())
}
