//! What may happen to the runs, and what may follow from it.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::{Admission, Waiting};
use crate::agent::HeardOfModels;
use crate::daemon::recovery::{RecordedEnd, Recovery, Resumable};
use crate::domain::{Hold, JobName, Message, Origin, RunId, Stop, StopReason};
use crate::run::{Ended, RunError};
use crate::store::{EndedRuns, GivenUp, QueuedRun, RunEnd, SlotState};

#[derive(Debug)]
pub(in crate::daemon) enum Input {
    /// These runs have their rows in the queue.
    Queued(Vec<Waiting>),
    /// This attempt or requested run has its row in the queue, and begins at this time.
    Delayed { attempt: Waiting, begins_at: DateTime<Utc> },
    /// These runs have begun under the previous daemon, and continue.
    Resumed(Vec<Resumable>),
    /// This run is open, for this reason, and no task works on it.
    Open { run_id: RunId, job: Option<JobName>, why: String },
    /// These runs are to end; `why` tells why they do not continue after a crash.
    Cancel { runs: Vec<RunId>, stop: Stop, why: String },
    /// A newer run of this job replaces those that have begun. With `at_once`, their processes get no
    /// grace period.
    Replace { job: JobName, at_once: bool },
    /// The ledger has the ends of these runs, which had not begun.
    EndedUnbegun(Vec<RunId>),
    /// Time has passed: attempts may begin.
    Tick,
    /// Time has passed, and recovery is not in progress: open runs may be tried again.
    Recover,
    /// Runs may begin. These active runs wait for their models.
    Room { waiting: BTreeSet<String> },
    /// The ledger says that this run is active. It begins with these models.
    Recorded { run_id: RunId, admission: Admission },
    /// The task of this run has begun; its next attempt repeats this origin.
    Begun { run_id: RunId, origin: Origin },
    /// This run cannot begin.
    NotBegun { run_id: RunId, reason: String },
    /// The task of this run has ended. `next` is the id of the next attempt, if there is one.
    Ended { run_id: RunId, result: Result<Box<Ended>, RunError>, has_begun: bool, next: RunId },
    /// The supervisor tried to remove the files of this run, which had not begun. `is_gone` tells
    /// whether it did.
    ClearedAway { run_id: RunId, error: RunError, is_gone: bool },
    /// Recovery tried to end this run, whose task panicked. `had_begun` tells whether it had begun, or
    /// why it stays open.
    PanicSettled { run_id: RunId, had_begun: Result<bool, String> },
    /// Recovery has tried these runs again.
    Recovered(Recovery),
    /// The slot of this run, which recovery has ended; `None` if no slot waits for it.
    SlotOfEnded { run_id: RunId, slot: Result<Option<SlotEnd>, String> },
    /// This run of an open slot has ended under the previous daemon. `next` is the id of the next
    /// attempt, if there is one.
    FoundEnded { run_id: RunId, job: JobName, end: RecordedEnd, next: RunId },
    /// This has happened to the calls of models on hold.
    Heard(HeardOfModels),
    /// The configuration in effect is another one.
    Reloaded,
    /// The clock was set back, from this time.
    SetBack { before: DateTime<Utc> },
    /// All active runs end.
    StopAll(StopReason),
}

/// What to do next. An effect that depends on a row comes only after the row is written.
#[derive(Debug)]
pub(in crate::daemon) enum Effect {
    /// Write this. If the disk fails, keep it and write it later.
    Keep(Change),
    /// Write this, then take the input. If the disk fails, drop both: the book has not changed.
    Try(Change, Box<Input>),
    /// No run may begin until the disk can be written again.
    DiskFailed(String),
    Begin(RunId),
    Continue {
        run: Box<Resumable>,
        stop: Option<Stop>,
    },
    /// Tell the task of the run how it is to end.
    Stop(RunId, Stop),
    /// Remove what the run left, then take [`Input::ClearedAway`].
    ClearAway {
        run_id: RunId,
        error: RunError,
    },
    /// End the run, then take [`Input::PanicSettled`].
    EndPanicked(RunId),
    /// Try to recover these runs, each without a task since its time; then take [`Input::Recovered`].
    Recover(BTreeMap<RunId, DateTime<Utc>>),
    /// Find the slot of the run, then take [`Input::SlotOfEnded`].
    FindSlot(RunId),
}

#[derive(Debug)]
pub(in crate::daemon) enum Change {
    /// The run begins or continues.
    Running(RunId),
    /// The run waits again, for this reason.
    WaitAgain(RunId, String),
    EndRun(RunEnd),
    /// The runs did not begin, or did not run to their ends.
    EndWaiting(EndedRuns),
    /// The run must not be resumed, for this reason.
    GiveUp(RunId, GivenUp),
    Retry(Box<NextAttempt>),
    /// A model is on hold, or its hold has changed. The messages each have the name of a destination.
    Hold {
        hold: Hold,
        messages: Vec<(String, Message)>,
    },
    EndHold {
        model: String,
        messages: Vec<(String, Message)>,
    },
    /// These messages wait for delivery; each has the name of a destination.
    Tell(Vec<(String, Message)>),
}

/// The next attempt of a run, for the ledger.
#[derive(Debug)]
pub(in crate::daemon) struct NextAttempt {
    pub(in crate::daemon) failed: RunId,
    pub(in crate::daemon) queued: QueuedRun,
    /// The reason for the row of the slot.
    pub(in crate::daemon) reason: String,
}

/// The slot that waits for a run that recovery has ended.
#[derive(Debug)]
pub(in crate::daemon) struct SlotEnd {
    pub(in crate::daemon) job: JobName,
    /// How the run ended according to its record; `None` if it had not begun.
    pub(in crate::daemon) end: Option<RecordedEnd>,
}

/// Returns the effect that records the end of a run that did not begin, or did not run to its end.
pub(super) fn effect_to_end_waiting(
    run_id: RunId,
    state: SlotState,
    stop_reason: StopReason,
    reason: String,
) -> Effect {
    let runs = vec![run_id];
    Effect::Keep(Change::EndWaiting(EndedRuns { runs, state, stop_reason, reason }))
}
