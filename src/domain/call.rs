//! A tool call, and the reasons why one can fail.
//!
//! A failed call is content for the model, never an error of the program. It has a kind and a
//! sentence that says what to do next.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::CallId;

/// The arguments of a call, parsed once.
#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    Parsed(Map<String, Value>),
    /// Text that is not a JSON object or was cut. It is never executed.
    Invalid {
        /// The text as the provider sent it.
        text: String,
        /// What is wrong with the text, for the model.
        message: String,
    },
}

/// A call that a model asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Unique within the run.
    pub call_id: CallId,
    /// The name as the model wrote it; untrusted.
    pub name: String,
    pub arguments: Arguments,
}

/// The kinds of failure, for models, readers of transcripts and `-o json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// No tool of that name is registered.
    UnknownTool,
    /// The arguments are not a JSON object, do not match the schema or cannot be rendered.
    InvalidArguments,
    /// The gate or a person denied the call.
    Denied,
    /// A person was asked and did not answer in time.
    ApprovalTimeout,
    /// The call was not run because the run was being stopped.
    Skipped,
    Timeout,
    /// The exit code is not in `success_codes`.
    ExitCode,
    /// A signal that we did not send ended the process.
    Signal,
    /// The program could not be started.
    SpawnFailed,
    /// Reading or writing on our side failed.
    Io,
    /// The run was stopped while the call ran; the effect of the call is unknown.
    Interrupted,
    /// The response has too many calls, or the call exceeds a limit of its tool, such as a size.
    Limit,
    /// Something that the call names does not exist.
    NotFound,
    /// The tool itself reports a failure.
    Tool,
}

impl ErrorKind {
    /// Returns the word used in transcripts.
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

    /// Tells whether the result counts towards the error threshold. A call that was skipped or that
    /// exceeded a limit does not count.
    #[must_use]
    pub fn counts_as_failure(self) -> bool {
        !matches!(self, Self::Skipped | Self::Limit)
    }
}

/// Why a call failed, written for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The kind of failure, for the transcript and the error threshold.
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

/// How much of an output the model's view leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Truncated {
    /// Number of characters removed.
    pub characters: u64,
    /// Number of lines removed. The characters are removed first; this counts lines of the rest.
    pub lines: u64,
}
