//! A tool call and why one can fail.
//!
//! A failed call is content for the model, never an error of the program: it carries a kind and a sentence that says what to do next.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::CallId;

/// The arguments of a call, parsed once and for all.
#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    /// A JSON object.
    Parsed(Map<String, Value>),
    /// Text that is not a JSON object, or one that was cut; never executed.
    Invalid {
        /// The text as the provider sent it.
        text: String,
        /// What is wrong with it, for the model.
        message: String,
    },
}

/// A call that a model asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Unique within the run.
    pub call_id: CallId,
    /// The name as the model wrote it; hostile.
    pub name: String,
    /// The arguments.
    pub arguments: Arguments,
}

/// The kinds of failure that a model, a transcript reader and `-o json` see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// No tool of that name is registered.
    UnknownTool,
    /// The arguments are no JSON object, do not match the schema or cannot be rendered.
    InvalidArguments,
    /// The gate said no.
    Denied,
    /// A person was asked and did not answer.
    ApprovalTimeout,
    /// Not run because of a newer instruction or because the run ended.
    Skipped,
    /// The deadline passed.
    Timeout,
    /// An exit code outside `success_codes`.
    ExitCode,
    /// Ended by a signal that we did not send.
    Signal,
    /// The program could not be started.
    SpawnFailed,
    /// Reading or writing on our side failed.
    Io,
    /// The run was stopped while the call worked; its effect is unknown.
    Interrupted,
    /// Over a limit of the turn, or of what the tool gives at once.
    Limit,
    /// What the call names is not there.
    NotFound,
    /// The tool itself says that it failed.
    Tool,
}

impl ErrorKind {
    /// Returns the word that stands in transcripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownTool => "unknown_tool",
            Self::InvalidArguments => "invalid_arguments",
            Self::Denied => "denied",
            Self::ApprovalTimeout => "approval_timeout",
            Self::Skipped => "skipped",
            Self::Timeout => "timeout",
            Self::ExitCode => "exit_code",
            Self::Signal => "signal",
            Self::SpawnFailed => "spawn_failed",
            Self::Io => "io",
            Self::Interrupted => "interrupted",
            Self::Limit => "limit",
            Self::NotFound => "not_found",
            Self::Tool => "tool",
        }
    }

    /// Tells whether such a result counts towards the error threshold: a call that was never tried for a reason of ours does not.
    #[must_use]
    pub fn counts_as_failure(self) -> bool {
        !matches!(self, Self::Skipped | Self::Limit)
    }
}

/// Why a call did not work, written for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The kind, for readers and counters.
    pub kind: ErrorKind,
    /// A sentence that says what is wrong and what to do.
    pub message: String,
}

impl CallError {
    /// Returns an error of `kind`.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// What the model's view of an output left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Truncated {
    /// Characters removed.
    pub characters: u64,
    /// Lines removed after that.
    pub lines: u64,
}
