//! The last line of a transcript.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::origin::Person;
use super::outcome::{Outcome, StopReason};
use super::turn::Usage;

/// Fields of `session_end`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionEnd {
    /// How the run ended, for the operator.
    pub outcome: Outcome,
    /// Why the loop stopped.
    pub stop_reason: StopReason,
    /// The last text of the run, usually the final answer: a JSON object if the text is one,
    /// otherwise the text.
    pub result: Option<Value>,
    /// The `status` of the final answer, if it has one.
    pub verdict: Option<String>,
    /// Number of model responses.
    pub iterations: u64,
    /// Number of calls for which the gate decided `allow` or `ask`.
    pub tool_calls: u64,
    /// Tools with at least one call that `tool_calls` counts.
    pub tools_used: Vec<String>,
    /// Token counts of the run.
    pub usage: Usage,
    /// Cost of the run; null if a price is unknown.
    pub cost_usd: Option<f64>,
    /// Whether a part of the cost rests on the price of a relative of its model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cost_estimated: bool,
    /// Milliseconds since `session_start`.
    pub duration_ms: u64,
    /// Number of processes of the run that survived an attempt to kill them.
    pub survivors: u64,
    /// The person who cancelled the run.
    #[serde(default)]
    pub by: Option<Person>,
    /// What went wrong, for the operator.
    pub error: Option<String>,
}
