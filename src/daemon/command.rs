//! Commands to the supervisor, and its replies.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use tokio::sync::oneshot;

use super::views::{StatusConfig, StatusReport};
use crate::domain::{Origin, Person, RunId, TextKind};
use crate::store::Pause;

/// A command to the supervisor, with the channel for the reply.
#[derive(Debug)]
pub enum Command {
    /// Report the status of the daemon.
    Status(oneshot::Sender<StatusReport>),
    /// Run this job now, or at this time.
    Run(String, Origin, Option<DateTime<Utc>>, oneshot::Sender<Result<Started, CommandError>>),
    /// Cancel a run, on behalf of this person.
    Cancel(RunId, Option<Person>, oneshot::Sender<Result<(), CommandError>>),
    /// Cancel the runs of a job, or all, on behalf of this person; the reply lists them.
    CancelAll(Option<String>, Option<Person>, oneshot::Sender<Result<Vec<RunId>, CommandError>>),
    /// Give a text to a run.
    GiveText(TextRequest),
    /// Tell whether this run is queued or active.
    IsKnown(RunId, oneshot::Sender<bool>),
    /// Tell what each of these runs waits for, unless it has begun or is over.
    WaitsFor(Vec<String>, oneshot::Sender<BTreeMap<String, String>>),
    /// Run a job for due times of the past; the reply is their number.
    Backfill(BackfillRequest, oneshot::Sender<Result<usize, CommandError>>),
    /// Pause a job or all jobs; the reply tells when that began.
    Pause(PauseRequest, oneshot::Sender<Result<Pause, CommandError>>),
    /// End the pause of a job, or that of all jobs; the reply tells whether there was one.
    Unpause(Option<String>, oneshot::Sender<Result<bool, CommandError>>),
    /// Tell whether runs can begin: the disk can be written, and the daemon is not stopping.
    IsReady(oneshot::Sender<bool>),
    /// Reload the configuration; the reply describes the configuration in effect afterwards.
    Reload(oneshot::Sender<StatusConfig>),
    /// Configuration files may have changed. `match_config` is true if their contents are those of the
    /// configuration in effect.
    FilesChanged { match_config: bool },
    /// Report in `status` why dutyd cannot watch the configuration files; `None` ends the report.
    WatchFailure(Option<String>),
    /// Stop the daemon after a grace period for its runs; a second `Stop` ends the grace period.
    Stop,
}

/// Which due times of its period a backfill takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackfillScope {
    /// Those without a slot.
    WithoutSlot,
    /// Those whose slot was missed, and those whose run failed or was interrupted.
    FailedOrMissed,
}

/// A request to run a job for due times of a period.
#[derive(Debug, Clone)]
pub struct BackfillRequest {
    pub job: String,
    pub scope: BackfillScope,
    /// The start of the period, inclusive.
    pub from: DateTime<Utc>,
    /// The end of the period, inclusive.
    pub to: DateTime<Utc>,
    /// The person who makes the request, according to the connection.
    pub by: Option<Person>,
}

/// A request to pause a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseRequest {
    /// The job; `None` for all jobs.
    pub job: Option<String>,
    pub note: Option<String>,
    /// When the pause ends by itself.
    pub until: Option<DateTime<Utc>>,
}

/// A request to give a text to a run.
#[derive(Debug)]
pub struct TextRequest {
    pub run_id: RunId,
    pub kind: TextKind,
    pub text: String,
    /// The person who gives it, according to the connection.
    pub by: Option<Person>,
    /// Gets the answer once the text is recorded; is dropped if the run ends first.
    pub reply: oneshot::Sender<Result<TakenText, CommandError>>,
}

/// A text that a run has accepted.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TakenText {
    pub run_id: RunId,
    pub kind: TextKind,
    /// When the run takes the text, as a sentence for people.
    pub taken: String,
}

/// A run that started or was queued.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Started {
    /// The id of the new run.
    pub run_id: RunId,
    /// What the run waits for; null if it starts at once.
    pub waits: Option<String>,
    /// What the person should know about the job.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The job does not exist.
    #[error("there is no job `{0}`")]
    NoJob(String),
    /// The run does not exist.
    #[error("there is no run `{0}`")]
    NoRun(RunId),
    /// The run has a directory, but the daemon neither queues nor executes it.
    #[error("run {0} has already ended")]
    Over(RunId),
    /// The run accepts no text any more.
    #[error("run {0} has ended or is being stopped, so it takes no text")]
    Ending(RunId),
    /// Too many texts wait for the run.
    #[error("{0}; try again later")]
    TextRefused(String),
    /// The text cannot be recorded, so the run does not get it.
    #[error("the run does not get the text, because it cannot be recorded: {0}")]
    TextUnrecorded(String),
    /// The request is not valid.
    #[error("{0}")]
    Invalid(String),
    /// A daily budget has too little left.
    #[error("{0}")]
    OverBudget(String),
    /// Too many runs are queued.
    #[error("the queue is full ({0} runs); try again later")]
    Full(usize),
    /// The run cannot be recorded, so it does not start.
    #[error("cannot start a run without writing the ledger: {0}")]
    Unrecorded(String),
    /// The index cannot be read, so it is unknown which runs failed.
    #[error("cannot determine which runs failed: {0}")]
    NoIndex(String),
    /// The end of a queued run cannot be recorded, so the run stays in the queue.
    #[error("cannot cancel a queued run without writing the ledger: {0}")]
    NotCancelled(String),
    /// The pause of a job, or its end, cannot be recorded.
    #[error("cannot pause or unpause a job without writing the ledger: {0}")]
    NotPaused(String),
    /// The daemon does not accept runs any more.
    #[error("the daemon is stopping")]
    Stopping,
}
