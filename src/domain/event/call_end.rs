//! The end of a call: its result and its output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::is_zero;
use crate::domain::call::{ErrorKind, Truncated};
use crate::domain::ids::CallId;

/// Fields of `tool_call_end`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CallEnd {
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name, or the name that the model wrote if the tool is unknown.
    pub name: String,
    /// Whether the call failed.
    pub is_error: bool,
    /// The kind of failure; null on success.
    pub error_kind: Option<ErrorKind>,
    /// The whole output, if it is small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The file with the output, relative to the run's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_file: Option<String>,
    /// Number of bytes that the tool wrote, including dropped ones.
    pub output_bytes: u64,
    /// Number of bytes that are neither in `output` nor in the file: the middle of a very large
    /// output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    /// SHA-256 (hex) of the whole output after redaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// SHA-256 (hex) of the file, if it lacks bytes of the output because they were dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_digest: Option<String>,
    /// How much of the output the model's view leaves out.
    pub truncated: Option<Truncated>,
    /// The model's view of the output, without delimiters, if it differs from `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<String>,
    /// Whether the output contained invalid UTF-8.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// Whether the deadline passed.
    pub timed_out: bool,
    /// Milliseconds from the start of the call to its end.
    pub duration_ms: u64,
    /// The changes to files, as a unified diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Number of changed files.
    #[serde(default)]
    pub files_modified: u64,
    /// The changed files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modified: Vec<String>,
    /// Lines removed plus lines added in these files.
    #[serde(default)]
    pub lines_changed: u64,
    /// Additional fields of the tool, such as `match_limit_reached`.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

impl CallEnd {
    /// Returns the model's view of the output, without delimiters.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.view.as_ref().or(self.output.as_ref()).map_or("", String::as_str)
    }

    /// Returns a text that identifies the answer of a precheck: its exit code and the digest of its
    /// output. Returns `None` if the call is not a precheck or reached no exit code.
    #[must_use]
    pub fn precheck_answer(&self) -> Option<String> {
        let has_ended = self.call_id.as_str() == CallId::PRECHECK && !self.timed_out;
        let code = self.exit_code.filter(|_| has_ended)?;
        Some(format!("{code} {}", self.digest.as_deref().or(self.output.as_deref()).unwrap_or("")))
    }
}
