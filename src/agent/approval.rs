//! What the loop asks of a person.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::{CallId, Category, PreflightItem};

/// A call that waits for a person's yes. Made by us from what would run, never from a model's words (WEB-7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalRequest {
    /// Its id, good for one answer.
    pub approval_id: String,
    /// The run.
    pub run_id: String,
    /// The job.
    pub job: String,
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: String,
    /// The category that was judged.
    pub category: Category,
    /// The parsed arguments.
    pub arguments: Map<String, Value>,
    /// The program with its arguments, exactly; empty where none is started.
    pub argv: Vec<String>,
    /// Where it starts.
    pub working_dir: String,
    /// Why it is asked.
    pub reason: String,
    /// After this the answer is no.
    pub expires_at: DateTime<Utc>,
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalAnswer {
    /// Yes or no.
    pub approved: bool,
    /// Who gave it.
    pub by: String,
    /// Their words.
    pub reason: Option<String>,
}

/// Asks a person.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Returns the moment after which an answer that is asked for now counts no more.
    fn expires_at(&self, timeout: std::time::Duration) -> DateTime<Utc>;

    /// Returns the answer as soon as there is one; it may never come.
    ///
    /// *Cancel*: safe; the request is then withdrawn.
    async fn ask(&self, request: ApprovalRequest) -> ApprovalAnswer;

    /// Shows the checklist and returns whether the run may begin; asks only if an item failed. The answer may never come.
    ///
    /// *Cancel*: safe.
    async fn preflight(&self, items: &[PreflightItem]) -> bool {
        items.iter().all(|item| item.ok)
    }
}
