//! The disk in memory: the rows of the ledger, and the records of runs.

use crate::domain::{Hold, Message, Outcome, StopReason};
use crate::store::{GivenUp, SlotState};

use super::*;

/// The row of a slot.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) state: SlotState,
    pub(super) run_id: RunId,
    pub(super) reason: String,
}

impl Row {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, SlotState::Queued | SlotState::Running)
    }
}

/// The record of a run.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) origin: Origin,
    pub(super) end: Option<(Outcome, StopReason)>,
    /// Whether the ledger and the index have the end.
    pub(super) is_complete: bool,
}

/// What survives the death of the daemon.
#[derive(Default)]
pub(super) struct Disk {
    pub(super) is_full: bool,
    pub(super) queue: BTreeMap<RunId, QueuedRun>,
    /// By the minute of the due time.
    pub(super) slots: BTreeMap<i64, Row>,
    pub(super) given_up: BTreeMap<RunId, GivenUp>,
    pub(super) records: BTreeMap<RunId, Record>,
    /// The runs whose cancellation was confirmed before they began.
    pub(super) cancelled: BTreeSet<RunId>,
    pub(super) holds: BTreeMap<String, Hold>,
    /// The messages about models on hold.
    pub(super) messages: Vec<Message>,
}

impl Disk {
    fn decide(&mut self, run_id: &RunId, state: SlotState, reason: &str) {
        for row in self.slots.values_mut().filter(|row| row.run_id == *run_id && row.is_open()) {
            (row.state, row.reason) = (state, reason.to_owned());
        }
    }

    /// Does what the ledger does for a change.
    pub(super) fn write(&mut self, change: &Change) {
        match change {
            Change::Running(run_id) => self.decide(run_id, SlotState::Running, "running"),
            Change::WaitAgain(run_id, reason) => self.decide(run_id, SlotState::Queued, reason),
            Change::EndRun(end) => self.decide(&end.run_id, end.state, &end.reason),
            Change::EndWaiting(ended) => {
                for run_id in &ended.runs {
                    self.queue.remove(run_id);
                    self.decide(run_id, ended.state, &ended.reason);
                }
            }
            Change::GiveUp(run_id, given_up) => {
                self.given_up.entry(run_id.clone()).or_insert(given_up.clone());
            }
            Change::Hold { hold, messages } => {
                self.holds.insert(hold.model.clone(), hold.clone());
                self.messages.extend(messages.iter().map(|(_, message)| message.clone()));
            }
            Change::EndHold { model, messages } => {
                self.holds.remove(model);
                self.messages.extend(messages.iter().map(|(_, message)| message.clone()));
            }
            Change::Tell(_) => {}
            Change::Retry(next) => {
                let NextAttempt { failed, queued, reason } = &**next;
                for row in
                    self.slots.values_mut().filter(|row| row.run_id == *failed && row.is_open())
                {
                    *row = Row {
                        state: SlotState::Queued,
                        run_id: queued.run_id.clone(),
                        reason: reason.clone(),
                    };
                }
                self.queue.insert(queued.run_id.clone(), queued.clone());
            }
        }
    }
}
