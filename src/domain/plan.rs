//! A change plan: calls that a run recorded instead of making, for a person to apply.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::binding::Binding;
use super::category::Category;
use super::ids::CallId;

/// A call that was recorded instead of made. Fields of `plan_step`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// The number of the step, from 1.
    pub step: u64,
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name.
    pub name: String,
    /// The category that the gate assigned to the call.
    pub category: Category,
    /// The exact program and arguments; empty if the call starts no program.
    pub argv: Vec<String>,
    pub arguments: Map<String, Value>,
    /// The directory in which the program starts.
    pub working_dir: String,
    /// SHA-256 (hex) of everything that identifies the call: tool, rights, arguments, argv,
    /// directory, standard input, variables, and the files of `binding`.
    pub digest: String,
    /// Empty in plans of earlier versions.
    #[serde(flatten)]
    pub binding: Binding,
    /// The output of the call's dry run; null if there was none.
    pub dry_run_output: Option<String>,
    /// The ids of the reads whose results the model had seen before it requested this step.
    pub rests_on: Vec<CallId>,
    /// The files that the call would change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_modify: Vec<String>,
    /// Upper bound of the lines that the call would change in these files.
    #[serde(default)]
    pub would_change_lines: u64,
}

/// A read on which a plan rests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanRead {
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name.
    pub name: String,
    pub arguments: Map<String, Value>,
    /// SHA-256 (hex) of the read's whole answer.
    pub digest: String,
}

/// The state of a plan or of one of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanState {
    /// A person has not decided yet.
    Waiting,
    /// The plan or step was applied.
    Applied,
    /// The plan or step was tried and failed, or its effect is unknown.
    Failed,
    /// A person discarded the plan or step.
    Discarded,
}

impl PlanState {
    /// Returns the word used in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Applied => "applied",
            Self::Failed => "failed",
            Self::Discarded => "discarded",
        }
    }
}

/// A stored plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The id of the plan, which is the id of the run that made it.
    pub plan_id: String,
    /// The name of the job.
    pub job: String,
    /// The id of the run.
    pub run_id: String,
    /// When the run ended.
    pub created_at: DateTime<Utc>,
    /// The state of the plan.
    pub state: PlanState,
    /// The steps, in order.
    pub steps: Vec<KeptStep>,
    /// The reads on which the steps rest.
    pub reads: Vec<PlanRead>,
}

/// A step of a stored plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptStep {
    #[serde(flatten)]
    pub step: PlanStep,
    /// The state of the step.
    pub state: PlanState,
}
