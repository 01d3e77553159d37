//! Writes changes to the ledger, in order. Keeps each change that fails until the disk can be written.
//! Until then, no run begins (STATE-4, STATE-8).

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::book::{Change, NextAttempt};
use crate::domain::RunId;
use crate::store::{DbError, Ledger, Pause, SlotState, StateDir};

/// The time between two attempts to write to a disk after a fault.
const PAUSE: Duration = Duration::from_secs(5);

/// The error of a change that must wait for earlier ones.
pub(super) const EARLIER_UNWRITTEN: &str = "dutyd could not write earlier decisions yet";

/// The changes that are not in the ledger yet, and the fault of the disk.
pub(super) struct Outbox {
    ledger: Ledger,
    /// The changes that could not be written, oldest first, and when each was decided. If the daemon
    /// dies before they are written, its next start decides again.
    unwritten: VecDeque<(Change, DateTime<Utc>)>,
    /// What cannot be written to the disk. While it is set, no run begins.
    fault: Option<String>,
    /// When to find out whether the disk can be written again; set after a fault.
    not_before: Option<Instant>,
    /// The pauses of jobs whose runs failed too often, until the supervisor takes them.
    pauses: Vec<Pause>,
}

impl Outbox {
    pub(super) fn new(ledger: Ledger) -> Self {
        let (unwritten, pauses) = (VecDeque::new(), Vec::new());
        Self { ledger, unwritten, fault: None, not_before: None, pauses }
    }

    /// Returns what cannot be written to the disk.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Returns when to find out whether the disk can be written again.
    pub(super) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Tells whether every change is in the ledger.
    pub(super) fn is_empty(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Returns the pauses that the ledger has begun.
    pub(super) fn take_pauses(&mut self) -> Vec<Pause> {
        std::mem::take(&mut self.pauses)
    }

    /// Writes a change, unless an earlier one is not written yet. Keeps it if it is not written.
    pub(super) async fn keep(&mut self, change: Change, now: DateTime<Utc>) {
        let waits = !self.is_empty();
        self.unwritten.push_back((change, now));
        if !waits {
            self.write_again().await;
        }
    }

    /// Writes a change now, or not at all.
    ///
    /// *Errors*: it or an earlier one cannot be written.
    pub(super) async fn try_write(
        &mut self,
        change: &Change,
        now: DateTime<Utc>,
    ) -> Result<(), String> {
        if !self.write_again().await {
            return Err(EARLIER_UNWRITTEN.to_owned());
        }
        let written = self.write(change, now).await;
        written.map_err(|error| {
            self.ledger_failed(&error);
            error.to_string()
        })
    }

    /// Writes the changes that could not be written; returns whether none is left.
    pub(super) async fn write_again(&mut self) -> bool {
        while let Some((change, at)) = self.unwritten.pop_front() {
            if let Err(error) = self.write(&change, at).await {
                self.unwritten.push_front((change, at));
                tracing::error!(%error, "failed to record a decision about a run; dutyd tries again");
                self.ledger_failed(&error);
                return false;
            }
        }
        true
    }

    async fn write(&mut self, change: &Change, now: DateTime<Utc>) -> Result<(), DbError> {
        let ledger = &self.ledger;
        match change {
            Change::Running(run_id) => {
                let (run_id, reason) = (run_id.clone(), "running".to_owned());
                ledger.decide(run_id, SlotState::Running, reason, now).await
            }
            Change::WaitAgain(run_id, reason) => {
                ledger.decide(run_id.clone(), SlotState::Queued, reason.clone(), now).await
            }
            Change::EndRun(end) => {
                let paused = ledger.end_run(end.clone(), now).await?;
                self.pauses.extend(paused);
                Ok(())
            }
            Change::EndWaiting(ended) => ledger.end_waiting(ended.clone(), now).await,
            Change::GiveUp(run_id, given_up) => {
                ledger.give_up(run_id.clone(), given_up.clone()).await
            }
            Change::Retry(next) => {
                let NextAttempt { failed, queued, reason } = &**next;
                ledger.retry(failed.clone(), queued.clone(), reason.clone(), now).await
            }
            Change::Hold { hold, messages } => {
                ledger.keep_hold(hold.clone(), messages.clone()).await
            }
            Change::EndHold { model, messages } => {
                ledger.end_hold(model.clone(), messages.clone()).await
            }
            Change::Tell(messages) => ledger.add_messages(messages.clone()).await,
        }
    }

    /// Tells whether the end of a run is decided, but not written to the ledger yet.
    pub(super) fn has_end_of(&self, run_id: &RunId) -> bool {
        self.unwritten.iter().any(|(change, _)| match change {
            Change::EndRun(end) => end.run_id == *run_id,
            Change::EndWaiting(ended) => ended.runs.contains(run_id),
            Change::Retry(next) => next.failed == *run_id,
            Change::GiveUp(..)
            | Change::Running(_)
            | Change::WaitAgain(..)
            | Change::Hold { .. }
            | Change::EndHold { .. }
            | Change::Tell(_) => false,
        })
    }

    pub(super) fn ledger_failed(&mut self, error: &DbError) {
        self.failed(&format!("the ledger: {error}"));
    }

    /// Records that `what` cannot be written. No run begins until [`Self::is_writable`] finds out that
    /// the disk can be written again.
    pub(super) fn failed(&mut self, what: &str) {
        // Log a fault once, even if many writes fail until it is over.
        match &self.fault {
            None => {
                tracing::error!(%what, "the disk cannot be written; no run begins until it can");
            }
            Some(_) => tracing::debug!(%what, "the disk still cannot be written"),
        }
        self.fault = Some(format!("no run begins, because the disk cannot be written: {what}"));
        self.not_before = Some(Instant::now() + PAUSE);
    }

    /// Tells whether the state directory and the ledger are those that the daemon opened. If not, no run
    /// begins, as after a fault of the disk.
    pub(super) fn is_in_place(&mut self) -> bool {
        let Err(displaced) = self.ledger.check_identity() else { return true };
        let fault = format!("no run begins: {displaced}");
        // Each tick finds it again.
        if self.fault.as_ref() != Some(&fault) {
            tracing::error!(%displaced, "no run begins");
            self.fault = Some(fault);
        }
        self.not_before = Some(Instant::now() + PAUSE);
        false
    }

    /// Tells whether runs may begin. After a fault, writes to the state directory and to the ledger,
    /// at most once per [`PAUSE`].
    pub(super) async fn is_writable(&mut self, state: &StateDir, now: DateTime<Utc>) -> bool {
        if self.fault.is_none() {
            return true;
        }
        if self.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return false;
        }
        // Do not write to a directory that replaced ours.
        if !self.is_in_place() {
            return false;
        }
        let state = state.clone();
        let written = tokio::task::spawn_blocking(move || state.try_to_write()).await;
        let fault = match written {
            Ok(Ok(())) => {
                let kept = self.ledger.set_meta("last_seen", now.timestamp_millis()).await;
                kept.err().map(|error| error.to_string())
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        match fault {
            None => {
                tracing::info!("the disk can be written again");
                self.fault = None;
                self.not_before = None;
            }
            Some(error) => {
                tracing::debug!(error, "the disk still cannot be written");
                self.not_before = Some(Instant::now() + PAUSE);
            }
        }
        self.fault.is_none()
    }
}
