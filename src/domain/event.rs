//! The one event type, and the line of a transcript that carries it.
//!
//! Field names and their meaning are a contract with every reader (`v: 1`): fields may be added,
//! but not changed. A [`Line`] numbers an event and holds the hash of the previous line; only
//! `store/` creates lines.
//! *Source*: `docs/design/transcript.md`.

mod call_end;
mod constructors;
mod facts;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::category::Category;
use super::dropped_parameter::DroppedParameter;
use super::ids::{CallId, RunId};
use super::origin::Person;
use super::plan::PlanStep;
use super::queued_text::TextKind;
use super::session_end::SessionEnd;
use super::session_start::SessionStart;
use super::turn::{FinishReason, Usage};
pub use call_end::CallEnd;

/// The version of the line format.
pub const FORMAT_VERSION: u32 = 1;

/// The value of `prev` in the first line.
pub const FIRST_PREV: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One line of a transcript.
///
/// *Shape*:
/// `{"v":1,"seq":0,"ts":"…Z","run_id":"…","session_id":"…","prev":"00…","type":"session_start",…}`
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Line<T = Event> {
    /// The format version, 1.
    pub v: u32,
    /// The number of the line: 0, 1, 2 … without a gap.
    pub seq: u64,
    /// The time of the event: RFC 3339, UTC, microseconds.
    pub ts: String,
    /// The id of the run.
    pub run_id: RunId,
    /// The id of the session within the run.
    pub session_id: String,
    /// SHA-256 (hex) of the previous line's bytes without its newline.
    pub prev: String,
    /// The event: `type` and its fields.
    #[serde(flatten)]
    pub event: T,
}

/// The origin of a user turn in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputSource {
    /// The job's prompt, or the prompt that replaced it.
    Job,
    Person,
    /// The loop, which asks the model to confirm that the task is done.
    Confirmation,
    /// The loop, which tells the model why its reply could not be used.
    Correction,
    /// The repository in which the tools work, as untrusted content.
    Repository,
    /// Results of earlier runs of the job, as untrusted content.
    Recall,
    /// A person, whose text became the next input.
    FollowUp,
}

/// The estimated size of a history in tokens, before and after its compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EstimatedTokens {
    pub before: u64,
    pub after: u64,
}

/// The gate's decision. The order goes from the least to the most restrictive.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// The call may run.
    Allow,
    /// A person must approve the call.
    Ask,
    /// The call must not run.
    Deny,
}

impl DecisionKind {
    /// Returns the word used in files.
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
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name.
    pub name: String,
    /// The category of the call, possibly raised by a rule.
    pub category: Category,
    pub decision: DecisionKind,
    /// The rule that decided; `approved` if a person approved the call.
    pub rule: String,
    /// The reason, as a sentence for people.
    pub reason: String,
}

/// Fields of `tool_call_start`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CallStart {
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name.
    pub name: String,
    /// The category that the gate assigned to the call.
    pub category: Category,
    pub arguments: Map<String, Value>,
    /// The exact program and arguments.
    pub argv: Vec<String>,
    /// The directory in which the program starts.
    pub working_dir: String,
    /// Whether a sandbox restricts the call.
    pub sandboxed: bool,
}

/// One item of the checklist before the first model call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreflightItem {
    /// The name of the check.
    pub name: String,
    /// Whether the check passed.
    pub ok: bool,
    /// What the check found.
    pub detail: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A fact about a run, as recorded in the transcript.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The first line of a transcript.
    SessionStart(Box<SessionStart>),
    /// The daemon stopped during the run. This is the last line until the next start.
    SessionSuspended {
        /// Why the run stopped, as a sentence.
        reason: String,
    },
    /// The run continues after the daemon died or stopped.
    SessionResumed {
        /// The number of the first line after the gap.
        from_seq: u64,
        /// How often the run was resumed, this time included.
        count: u64,
        /// Number of processes of the dead daemon that were killed.
        killed: u64,
        /// How long the run had worked before, in milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        worked_ms: Option<u64>,
    },
    /// An MCP server is about to start.
    McpServerStart {
        /// The name of the server.
        server: String,
        /// The program and its arguments, if the server is a process.
        #[serde(skip_serializing_if = "Option::is_none")]
        argv: Option<Vec<String>>,
        /// The address, if the server speaks HTTP.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        /// The highest category that the run may use on the server.
        category: Category,
        /// Whether the process is sandboxed.
        sandboxed: bool,
    },
    /// An MCP server has started, or cannot be used.
    McpServerReady {
        /// The name of the server.
        server: String,
        /// The names of its accepted tools.
        tools: Vec<String>,
        /// Why the server cannot be used.
        error: Option<String>,
    },
    /// The system prompt, as sent to the model.
    SystemPrompt {
        text: String,
        /// Length in bytes of the prefix that is the same in every run of the job.
        #[serde(default)]
        stable_bytes: u64,
    },
    /// A text that a person gave was accepted. The run has not taken it yet.
    InputQueued {
        /// When the run takes it.
        kind: TextKind,
        text: String,
        /// The person who gave it; null if nobody knows.
        by: Option<Person>,
        /// Distinguishes it from every other text.
        text_id: String,
    },
    UserInput {
        text: String,
        /// The origin of the turn.
        source: InputSource,
        /// What a correction corrects: `empty`, `cut`, `spelled_call`, `output_schema`, `verify`, `tools_rejected`,
        /// or why a call was malformed. Absent in transcripts of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A complete reply of the model, or the message with which the loop ends the run at a limit.
    AssistantTextEnd {
        text: String,
        reasoning: Option<String>,
        /// The calls: `call_id`, `name` and `arguments`, or `arguments_text` if the arguments do
        /// not parse; also `shown_as` and `shown_arguments`, if the model wrote them differently.
        tool_calls: Vec<Value>,
        /// Why the model stopped.
        finish_reason: FinishReason,
        /// The provider's own word for `finish_reason`.
        stop_reason: Option<String>,
        /// Token counts, if the provider reported them.
        usage: Option<Usage>,
        /// Input tokens that the provider wrote to its cache.
        #[serde(default, skip_serializing_if = "is_zero")]
        cache_write_tokens: u64,
        /// Input tokens written to the cache for the long lifetime; part of `cache_write_tokens`.
        #[serde(default, skip_serializing_if = "is_zero")]
        cache_write_long_tokens: u64,
        /// Cost of the reply; null if the price is unknown.
        cost_usd: Option<f64>,
        /// Whether the cost rests on the price of a relative of the model.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cost_estimated: bool,
        /// The model that replied, by its name in the configuration; null for a message of the loop.
        #[serde(default)]
        model: Option<String>,
        /// Milliseconds that the run had worked when the reply was complete. Time in which the
        /// daemon was down does not count.
        #[serde(default)]
        elapsed_ms: u64,
        /// Milliseconds from the request to the last byte.
        latency_ms: u64,
        /// Milliseconds from the request to the first text.
        first_token_ms: Option<u64>,
        /// The provider's id of the reply.
        response_id: Option<String>,
        /// Data that later requests must return to the provider unchanged.
        provider_data: Option<Value>,
    },
    /// The gate's decision on a call, or a person's approval of it; precedes `tool_call_start`.
    PolicyDecision(PolicyDecision),
    /// A call is about to start.
    ToolCallStart(CallStart),
    /// A call has its one result.
    ToolCallEnd(Box<CallEnd>),
    /// The precheck of the run has an answer.
    Precheck {
        /// The id of the call; its `tool_call_end` has the output.
        call_id: CallId,
        /// The name of the tool.
        tool: String,
        arguments: Map<String, Value>,
        /// Whether there is something to do.
        ok: bool,
        /// Why, as a sentence.
        detail: String,
    },
    /// A check of `verify` has its result.
    Verify {
        /// The id of the call; its `tool_call_end` has the output.
        call_id: CallId,
        /// The name of the tool.
        tool: String,
        arguments: Map<String, Value>,
        /// Whether the check passed.
        ok: bool,
        /// Why, as a sentence.
        detail: String,
    },
    /// A probe looked whether a call took effect that a crash cut off.
    Probe {
        /// The id of the call.
        call_id: CallId,
        /// The tool's own name.
        name: String,
        /// The exact program and arguments.
        argv: Vec<String>,
        exit_code: Option<i32>,
        /// Whether the call took effect; null if the probe does not tell.
        done: Option<bool>,
        /// The whole output, if it is small.
        #[serde(skip_serializing_if = "Option::is_none")]
        output: Option<String>,
        /// The file with the output, relative to the run's directory.
        #[serde(skip_serializing_if = "Option::is_none")]
        output_file: Option<String>,
    },
    /// A person is asked to approve a call.
    ApprovalRequested {
        /// The id of the approval request.
        approval_id: String,
        /// The id of the call.
        call_id: CallId,
        /// The moment after which an answer no longer counts.
        expires_at: DateTime<Utc>,
    },
    /// A person answered the approval request, or the request ended without an answer.
    ApprovalResolved {
        /// The id of the approval request.
        approval_id: String,
        /// The id of the call.
        call_id: CallId,
        /// Whether the call was approved.
        approved: bool,
        /// The person who answered, or who cancelled the run; null if neither applies.
        by: Option<String>,
        /// The reason that the person gave, or why the request ended.
        reason: Option<String>,
        /// Milliseconds from the request to its end.
        waited_ms: u64,
    },
    /// A call was recorded as a step of a plan instead of being run.
    PlanStep(Box<PlanStep>),
    /// Text was added while the run worked.
    SteeringInjected {
        text: String,
        /// `person`, `loop_detection` or `budget` in this version.
        source: String,
    },
    /// A limit was reached.
    TurnLimit {
        /// The name of the limit.
        limit: String,
        /// The value of the limit, in the unit of its key: `max_duration` in seconds,
        /// `max_tmp_bytes` in bytes, `max_cost_usd` in USD, the others as a count.
        value: serde_json::Number,
    },
    /// The loop detected a repetition.
    LoopDetection {
        /// The text for the model.
        message: String,
        /// The number of calls in the pattern: 1, 2 or 3.
        pattern_length: u64,
        /// The number of repetitions detected in this run so far.
        count: u64,
    },
    /// Results of old calls were replaced with one line each, to shorten the history.
    Compaction {
        /// The calls whose results the model does not see any more.
        call_ids: Vec<CallId>,
        /// The size of the history in tokens.
        estimated_tokens: EstimatedTokens,
    },
    /// The checklist before the first model call.
    Preflight {
        /// The items of the checklist.
        items: Vec<PreflightItem>,
    },
    /// Something odd happened, and the run handled it.
    Warning {
        /// A stable identifier of the warning.
        code: String,
        /// A sentence for people.
        message: String,
        /// Estimated usage of the model calls that broke off before this warning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// Estimated cost of these calls in US dollars; absent if a price is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
        /// The parameter that later requests of the run leave out (`parameter_dropped`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dropped: Option<DroppedParameter>,
        /// The call that the warning is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<CallId>,
        /// The name of the model that takes over (`model_fallback`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// An error ended the run.
    Error {
        /// A stable identifier of the error.
        code: String,
        /// A sentence for people.
        message: String,
        /// Why the last of too many calls was malformed. Absent in transcripts of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The loop has finished.
    ProcessingEnd {
        /// Number of model responses.
        iterations: u64,
    },
    /// The last line of a transcript.
    SessionEnd(Box<SessionEnd>),
}

impl Event {
    /// The values of `type` that this version knows.
    pub const TYPES: &'static [&'static str] = &[
        "session_start",
        "session_suspended",
        "session_resumed",
        "mcp_server_start",
        "mcp_server_ready",
        "system_prompt",
        "input_queued",
        "user_input",
        "assistant_text_end",
        "policy_decision",
        "tool_call_start",
        "tool_call_end",
        "precheck",
        "verify",
        "probe",
        "approval_requested",
        "approval_resolved",
        "plan_step",
        "steering_injected",
        "turn_limit",
        "loop_detection",
        "compaction",
        "preflight",
        "warning",
        "error",
        "processing_end",
        "session_end",
    ];
}

/// An event that is shown live and never written.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LiveEvent {
    /// The model starts to reply.
    AssistantTextStart,
    /// A piece of the reply's text.
    AssistantTextDelta { text: String },
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
