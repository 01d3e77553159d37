//! A change plan: what a run would have done, for a person to apply.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::category::Category;
use super::ids::CallId;

/// A call that was planned and not made. Fields of `plan_step`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// 1, 2 …
    pub step: u64,
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub name: String,
    /// The category that was judged.
    pub category: Category,
    /// The program with its arguments, exactly; empty for a built-in tool.
    pub argv: Vec<String>,
    /// The parsed arguments.
    pub arguments: Map<String, Value>,
    /// Where it starts.
    pub working_dir: String,
    /// SHA-256 (hex) of everything that makes the call what it is: tool, arguments, argv, directory, program, and the files it would change.
    pub digest: String,
    /// What the tool's dry run said, if it has one.
    pub dry_run_output: Option<String>,
    /// The reads that the model had seen by then.
    pub rests_on: Vec<CallId>,
}

/// A read that a plan rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanRead {
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub name: String,
    /// The parsed arguments.
    pub arguments: Map<String, Value>,
    /// SHA-256 (hex) of its whole output.
    pub digest: String,
}

/// What became of a plan, or of a step of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanState {
    /// A person has not decided.
    Waiting,
    /// It was done.
    Applied,
    /// It was tried and did not work, or nobody can say that it did.
    Failed,
    /// A person does not want it.
    Discarded,
}

impl PlanState {
    /// Returns the word that stands in files.
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

/// A plan as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its id: that of the run that made it.
    pub plan_id: String,
    /// The job.
    pub job: String,
    /// The run.
    pub run_id: String,
    /// When the run ended.
    pub created_at: DateTime<Utc>,
    /// What became of it.
    pub state: PlanState,
    /// The steps, in order.
    pub steps: Vec<KeptStep>,
    /// The reads that they rest on.
    pub reads: Vec<PlanRead>,
}

/// A step of a kept plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptStep {
    /// The step.
    #[serde(flatten)]
    pub step: PlanStep,
    /// What became of it.
    pub state: PlanState,
}
