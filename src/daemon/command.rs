//! What reaches the supervisor from outside, and its answers.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use super::views::{StatusConfig, StatusReport};
use crate::domain::{Person, RunId};

/// What reaches the supervisor from outside.
#[derive(Debug)]
pub enum Command {
    /// How is it?
    Status(oneshot::Sender<StatusReport>),
    /// Run a job now.
    Run(RunRequest, oneshot::Sender<Result<Started, CommandError>>),
    /// Stop a run, as this person wishes.
    Cancel(RunId, Option<Person>, oneshot::Sender<Result<(), CommandError>>),
    /// Stop the runs of a job, or all, as this person wishes; the answer names them.
    CancelAll(Option<String>, Option<Person>, oneshot::Sender<Vec<RunId>>),
    /// Is this run waiting or at work?
    IsKnown(RunId, oneshot::Sender<bool>),
    /// Load the configuration again; the answer says what is in effect then.
    Reload(oneshot::Sender<StatusConfig>),
    /// End; a second one shortens the grace.
    Stop,
}

/// A job to run now.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunRequest {
    /// The job; taken from the address.
    #[serde(skip)]
    pub job: String,
    /// Replace entries of its `vars`.
    pub vars: BTreeMap<String, String>,
    /// Replaces its prompt.
    pub prompt: Option<String>,
    /// Plan what would be changed instead of changing it.
    pub plan: bool,
    /// Who asks; taken from the connection.
    #[serde(skip)]
    pub by: Option<Person>,
}

/// A run that was started, or waits.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Started {
    /// The run.
    pub run_id: RunId,
    /// What it waits for; null if it begins at once.
    pub waits: Option<String>,
}

/// Why a command cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such job.
    #[error("there is no job `{0}`")]
    NoJob(String),
    /// No such run.
    #[error("there is no run `{0}`")]
    NoRun(RunId),
    /// It has ended, or is ending.
    #[error("the run {0} is over")]
    Over(RunId),
    /// The wish cannot be fulfilled as it is.
    #[error("{0}")]
    Invalid(String),
    /// Too many runs wait already.
    #[error("{0} runs wait already; try again later")]
    Full(usize),
    /// It would begin without a trace.
    #[error("the ledger cannot be written, so that no run begins: {0}")]
    Unrecorded(String),
    /// No new runs.
    #[error("the daemon is being stopped")]
    Stopping,
}
