//! The one event type, and the line of a transcript that carries it.
//!
//! Field names and their meaning are a contract with every reader (`v: 1`): new ones may be added, none may change. The envelope is written
//! by `store/`; nothing else numbers or chains events.
//! *Source*: `docs/design/transcript.md`.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::call::{ErrorKind, Truncated};
use super::category::Category;
use super::ids::{CallId, RunId};
use super::outcome::{Outcome, StopReason};
use super::plan::PlanStep;
use super::session_start::{Person, SessionStart};
use super::turn::{FinishReason, Usage};

/// The version of the line format.
pub const FORMAT_VERSION: u32 = 1;

/// What stands in `prev` of the first line.
pub const FIRST_PREV: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One line of a transcript.
///
/// *Shape*: `{"v":1,"seq":0,"ts":"…Z","run_id":"…","session_id":"…","prev":"00…","type":"session_start",…}`
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Line<T = Event> {
    /// The format version, 1.
    pub v: u32,
    /// 0, 1, 2 … without a gap.
    pub seq: u64,
    /// RFC 3339, UTC, microseconds.
    pub ts: String,
    /// The run.
    pub run_id: RunId,
    /// The session within the run.
    pub session_id: String,
    /// SHA-256 (hex) of the previous line's bytes without its newline.
    pub prev: String,
    /// `type` and its fields.
    #[serde(flatten)]
    pub event: T,
}

/// Who put a user turn into the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputSource {
    /// The job's prompt, or the one that replaced it.
    Job,
    /// A person.
    Person,
    /// The loop's question whether all is done.
    Confirmation,
    /// The loop's remark on an answer that could not be used.
    Correction,
    /// The repository that the tools work in, as untrusted content.
    Repository,
}

/// What the gate said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// The call may run.
    Allow,
    /// A person must say so.
    Ask,
    /// It may not.
    Deny,
}

impl DecisionKind {
    /// Returns the word that stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// Fields of `policy_decision`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PolicyDecision {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub name: String,
    /// The category that was judged, raised where a rule raised it.
    pub category: Category,
    /// The answer.
    pub decision: DecisionKind,
    /// The rule that decided.
    pub rule: String,
    /// A sentence for people.
    pub reason: String,
}

/// Fields of `tool_call_start`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CallStart {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub name: String,
    /// The category that was judged.
    pub category: Category,
    /// The parsed arguments.
    pub arguments: Map<String, Value>,
    /// The program with its arguments, exactly.
    pub argv: Vec<String>,
    /// Where it starts.
    pub working_dir: String,
    /// Whether the kernel holds it.
    pub sandboxed: bool,
}

/// Fields of `tool_call_end`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CallEnd {
    /// The call.
    pub call_id: CallId,
    /// The name as the model wrote it.
    pub name: String,
    /// Whether it failed.
    pub is_error: bool,
    /// How it failed.
    pub error_kind: Option<ErrorKind>,
    /// The whole output, where it is small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The file of the whole output, relative to the run's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_file: Option<String>,
    /// Bytes that the tool wrote, kept or not.
    pub output_bytes: u64,
    /// Bytes that are neither in `output` nor in the file: the middle of a very large output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    /// SHA-256 (hex) of the whole output without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// SHA-256 (hex) of the file, where bytes were dropped so that it is not the whole output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_digest: Option<String>,
    /// What the model's view leaves out.
    pub truncated: Option<Truncated>,
    /// Whether bytes were no UTF-8.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// The exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the deadline passed.
    pub timed_out: bool,
    /// From start to end.
    pub duration_ms: u64,
    /// What changed in files, as a unified diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Files that were changed.
    #[serde(default)]
    pub files_modified: u64,
    /// Lines of them that went and lines that came.
    #[serde(default)]
    pub lines_changed: u64,
    /// What the tool says beyond that, such as `match_limit_reached`.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

/// One item of the checklist before the first model call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreflightItem {
    /// What was looked at.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

/// Fields of `session_end`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionEnd {
    /// How it ended for the operator.
    pub outcome: Outcome,
    /// Why the loop stopped.
    pub stop_reason: StopReason,
    /// The final text.
    pub result: Option<Value>,
    /// The `status` of the answer, where it has one.
    pub verdict: Option<String>,
    /// Model responses.
    pub iterations: u64,
    /// Calls that were started.
    pub tool_calls: u64,
    /// Tools that were started at least once.
    pub tools_used: Vec<String>,
    /// Tokens of the run.
    pub usage: Usage,
    /// Cost, null while no price is known.
    pub cost_usd: Option<f64>,
    /// From `session_start` on.
    pub duration_ms: u64,
    /// Processes that outlived the run's kill.
    pub survivors: u64,
    /// Who cancelled it.
    #[serde(default)]
    pub by: Option<Person>,
    /// What went wrong, for the operator.
    pub error: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A fact of a run, as it stands in the transcript.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The first line.
    SessionStart(Box<SessionStart>),
    /// The system prompt as the model gets it.
    SystemPrompt {
        /// The whole text.
        text: String,
    },
    /// A user turn.
    UserInput {
        /// The text.
        text: String,
        /// Who put it in.
        source: InputSource,
    },
    /// A whole answer of the model.
    AssistantTextEnd {
        /// The text.
        text: String,
        /// The reasoning.
        reasoning: Option<String>,
        /// `call_id`, `name` and `arguments`, or `arguments_text` where they do not parse.
        tool_calls: Vec<Value>,
        /// Why it stopped.
        finish_reason: FinishReason,
        /// The provider's word for that.
        stop_reason: Option<String>,
        /// Tokens.
        usage: Option<Usage>,
        /// Cost, null while no price is known.
        cost_usd: Option<f64>,
        /// From the request to the last byte.
        latency_ms: u64,
        /// From the request to the first event.
        first_token_ms: Option<u64>,
        /// The provider's id.
        response_id: Option<String>,
        /// What the provider needs back, untouched.
        provider_data: Option<Value>,
    },
    /// The gate's answer; before every `tool_call_start`.
    PolicyDecision(PolicyDecision),
    /// A process is about to exist.
    ToolCallStart(CallStart),
    /// A call has its one result.
    ToolCallEnd(Box<CallEnd>),
    /// A person is asked.
    ApprovalRequested {
        /// The question.
        approval_id: String,
        /// The call.
        call_id: CallId,
        /// After this the answer is no.
        expires_at: DateTime<Utc>,
    },
    /// A person has answered, or nobody has.
    ApprovalResolved {
        /// The question.
        approval_id: String,
        /// The call.
        call_id: CallId,
        /// The answer.
        approved: bool,
        /// Who gave it; null if nobody did.
        by: Option<String>,
        /// Their words.
        reason: Option<String>,
        /// How long it took.
        waited_ms: u64,
    },
    /// A call that was planned and not made.
    PlanStep(Box<PlanStep>),
    /// Text was put in while the run worked.
    SteeringInjected {
        /// The text.
        text: String,
        /// `loop_detection` in this version.
        source: String,
    },
    /// A limit was reached.
    TurnLimit {
        /// Its name in `limits`.
        limit: String,
        /// Its value.
        value: u64,
    },
    /// A repetition was noticed.
    LoopDetection {
        /// What was said to the model.
        message: String,
        /// 1, 2 or 3.
        pattern_length: u64,
        /// How many were noticed in this run.
        count: u64,
    },
    /// The checklist.
    Preflight {
        /// Its items.
        items: Vec<PreflightItem>,
    },
    /// Odd, but handled.
    Warning {
        /// A stable word.
        code: String,
        /// A sentence.
        message: String,
    },
    /// What ended the run.
    Error {
        /// A stable word.
        code: String,
        /// A sentence.
        message: String,
    },
    /// The input is worked off.
    ProcessingEnd {
        /// Model responses.
        iterations: u64,
    },
    /// The last line.
    SessionEnd(Box<SessionEnd>),
}

impl Event {
    /// The words in `type` that this version knows.
    pub const TYPES: &'static [&'static str] = &[
        "session_start",
        "system_prompt",
        "user_input",
        "assistant_text_end",
        "policy_decision",
        "tool_call_start",
        "tool_call_end",
        "approval_requested",
        "approval_resolved",
        "plan_step",
        "steering_injected",
        "turn_limit",
        "loop_detection",
        "preflight",
        "warning",
        "error",
        "processing_end",
        "session_end",
    ];

    /// Returns a `warning`.
    #[must_use]
    pub fn warning(code: &str, message: impl Into<String>) -> Self {
        Self::Warning { code: code.to_owned(), message: message.into() }
    }
}

/// What is shown while it happens and never written.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LiveEvent {
    /// A model begins to answer.
    AssistantTextStart,
    /// A piece of its text.
    AssistantTextDelta {
        /// The piece.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_listed() {
        let schema = schemars::schema_for!(Event).to_value();
        let variants = schema["oneOf"].as_array().unwrap();
        let words: Vec<&str> = variants
            .iter()
            .map(|variant| variant["properties"]["type"]["const"].as_str().unwrap())
            .collect();
        assert_eq!(words, Event::TYPES);
    }
}
