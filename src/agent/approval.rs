//! Approval requests: the loop asks a person whether a call may run.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::{Binding, CallId, Category, PreflightItem};

/// A call that waits for approval. We build the request from the call that would run, never from a
/// model's words (WEB-7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalRequest {
    /// The id of the request, valid for one answer.
    pub approval_id: String,
    /// The id of the run.
    pub run_id: String,
    /// The name of the job.
    pub job: String,
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name.
    pub tool: String,
    /// The category that the gate assigned to the call.
    pub category: Category,
    pub arguments: Map<String, Value>,
    /// The exact program and arguments; empty if the call starts no program.
    pub argv: Vec<String>,
    /// The directory in which the program starts.
    pub working_dir: String,
    #[serde(flatten)]
    pub binding: Binding,
    /// Why the call needs approval.
    pub reason: String,
    /// The moment after which an answer no longer counts.
    pub expires_at: DateTime<Utc>,
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalAnswer {
    /// Whether the person approved the call.
    pub approved: bool,
    /// The name of the person.
    pub by: String,
    /// The reason that the person gave.
    pub reason: Option<String>,
}

/// Asks a person for approval.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Returns the time at which a request made now expires.
    fn expires_at(&self, timeout: std::time::Duration) -> DateTime<Utc>;

    /// Waits for a person's answer, which may never come.
    ///
    /// *Cancel*: safe; the request is withdrawn.
    async fn ask(&self, request: ApprovalRequest) -> ApprovalAnswer;

    /// Shows the checklist and returns whether the run may begin. Asks a person only if an item
    /// failed; the answer may never come. This default neither shows nor asks: it returns `false`
    /// if an item failed.
    ///
    /// *Cancel*: safe.
    async fn preflight(&self, items: &[PreflightItem]) -> bool {
        items.iter().all(|item| item.ok)
    }
}
