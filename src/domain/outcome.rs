//! How a run ended: the stop reason of the loop and the outcome for the operator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session_start::Person;

/// How a run ended, for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The task was finished.
    Succeeded,
    /// It was not, or nobody can say that it was.
    Failed,
    /// A change plan waits for a person.
    Planned,
    /// A person stopped it.
    Cancelled,
    /// The daemon died under it.
    Interrupted,
}

impl Outcome {
    /// Every outcome that this version brings.
    pub const ALL: &'static [Self] =
        &[Self::Succeeded, Self::Failed, Self::Planned, Self::Cancelled, Self::Interrupted];

    /// Returns the word that stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Planned => "planned",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

/// The order to end a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Why.
    pub reason: StopReason,
    /// Who gave it; `None` if no person did.
    pub by: Option<Person>,
}

impl From<StopReason> for Stop {
    fn from(reason: StopReason) -> Self {
        Self { reason, by: None }
    }
}

macro_rules! stop_reasons {
    ($($(#[$meta:meta])* $variant:ident = $word:literal => $outcome:ident,)*) => {
        /// Why the loop stopped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum StopReason { $($(#[$meta])* $variant,)* }

        impl StopReason {
            /// Every stop reason that this version brings.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the word that stands in files.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Returns what it means for the operator.
            #[must_use]
            pub fn outcome(self) -> Outcome {
                match self { $(Self::$variant => Outcome::$outcome,)* }
            }
        }
    };
}

stop_reasons! {
    /// Natural completion, confirmed where that is asked for.
    Completed = "completed" => Succeeded,
    /// The calls that change something wait as a plan.
    Planned = "planned" => Planned,
    /// As many model responses as `max_iterations` allows.
    MaxIterations = "max_iterations" => Failed,
    /// As many calls as `max_tool_calls` allows.
    MaxToolCalls = "max_tool_calls" => Failed,
    /// The run took longer than `max_duration`.
    MaxDuration = "max_duration" => Failed,
    /// The next model call would pass `max_tokens`.
    BudgetExceeded = "budget_exceeded" => Failed,
    /// `error_threshold` responses in a row whose calls all failed.
    ErrorThreshold = "error_threshold" => Failed,
    /// The third repetition that was noticed.
    LoopDetected = "loop_detected" => Failed,
    /// The model's window is full.
    ContextOverflow = "context_overflow" => Failed,
    /// The transcript could not be written.
    RecordFailed = "record_failed" => Failed,
    /// An item of the checklist failed; no model was called.
    PreflightFailed = "preflight_failed" => Failed,
    /// The provider refused or filtered the content.
    Refused = "refused" => Failed,
    /// The provider did not accept the key.
    ProviderAuth = "provider_auth" => Failed,
    /// The provider did not accept the request.
    ProviderRejected = "provider_rejected" => Failed,
    /// The provider did not answer, or not in a usable way, after all retries.
    ProviderUnavailable = "provider_unavailable" => Failed,
    /// A person stopped the run.
    Cancelled = "cancelled" => Cancelled,
    /// The daemon died while the run worked.
    Interrupted = "interrupted" => Interrupted,
    /// A fault of ours.
    InternalError = "internal_error" => Failed,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_serde_writes() {
        for reason in StopReason::ALL {
            assert_eq!(serde_json::json!(reason), reason.as_str());
            assert_eq!(serde_json::json!(reason.outcome()), reason.outcome().as_str());
        }
    }
}
