//! The checks of a run after its final answer.

use async_trait::async_trait;

use super::sink::RecordError;
use crate::domain::CallId;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub call_id: CallId,
    /// The name of the tool.
    pub tool: String,
    /// Whether the check passed.
    pub ok: bool,
    /// Why, as a sentence.
    pub detail: String,
    /// The output of the call as the model may see it, with delimiters around untrusted content.
    pub shown: String,
}

/// Makes the checks of a run.
#[async_trait]
pub trait Verifier: Send + Sync {
    /// Makes the checks of a round that are not in `done`, in order, and records each. Returns all
    /// checks of the round; `None` once the run must end. `round` counts from 1.
    ///
    /// *Errors*: a line cannot be recorded.
    async fn verify(&self, round: u32, done: Vec<Check>)
    -> Result<Option<Vec<Check>>, RecordError>;
}
