//! How a run ended: the outcome for the operator, and the stop reason of the loop.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::origin::Person;

/// How a run ended, for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The task was finished.
    Succeeded,
    /// The task was not finished, or it is unknown whether it was.
    Failed,
    /// A change plan waits for a person.
    Planned,
    /// A person stopped the run.
    Cancelled,
    /// The daemon ended during the run.
    Interrupted,
    /// There was nothing to do.
    Skipped,
}

impl Outcome {
    /// Every outcome that this version knows.
    pub const ALL: &'static [Self] = &[
        Self::Succeeded,
        Self::Failed,
        Self::Planned,
        Self::Cancelled,
        Self::Interrupted,
        Self::Skipped,
    ];

    /// Returns the word used in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Planned => "planned",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Skipped => "skipped",
        }
    }
}

/// A request to end a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Why the run must end.
    pub reason: StopReason,
    /// The person who made the request; `None` if no person did.
    pub by: Option<Person>,
    /// Whether the processes of the run are killed without a grace period.
    pub at_once: bool,
}

impl From<StopReason> for Stop {
    fn from(reason: StopReason) -> Self {
        Self { reason, by: None, at_once: false }
    }
}

macro_rules! stop_reasons {
    ($($(#[$meta:meta])* $variant:ident = $word:literal => $outcome:ident,)*) => {
        /// Why the loop stopped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum StopReason { $($(#[$meta])* $variant,)* }

        impl StopReason {
            /// Every stop reason that this version knows.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the word used in files.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Returns the outcome of a run with this stop reason.
            #[must_use]
            pub fn outcome(self) -> Outcome {
                match self { $(Self::$variant => Outcome::$outcome,)* }
            }
        }
    };
}

stop_reasons! {
    /// The model gave its final answer, and confirmed it if the job requires that.
    Completed = "completed" => Succeeded,
    /// The run made a change plan, which waits for approval.
    Planned = "planned" => Planned,
    /// A check of `verify` failed, also after the model had its retries.
    VerifyFailed = "verify_failed" => Failed,
    /// The final answer does not match `output_schema`, also after the model was corrected.
    InvalidOutput = "invalid_output" => Failed,
    /// The run used all iterations that `max_iterations` allows.
    MaxIterations = "max_iterations" => Failed,
    /// The model asked for more calls than `max_tool_calls` allows.
    MaxToolCalls = "max_tool_calls" => Failed,
    /// The run took longer than `max_duration`.
    MaxDuration = "max_duration" => Failed,
    /// A budget is exhausted: the next model call would exceed `max_tokens` or `max_cost_usd`, or
    /// the temporary directory exceeds `max_tmp_bytes`.
    BudgetExceeded = "budget_exceeded" => Failed,
    /// All calls failed in `error_threshold` responses in a row.
    ErrorThreshold = "error_threshold" => Failed,
    /// The loop detected the third repetition.
    LoopDetected = "loop_detected" => Failed,
    /// The prompt exceeds the model's context window.
    ContextOverflow = "context_overflow" => Failed,
    /// The transcript could not be written.
    RecordFailed = "record_failed" => Failed,
    /// An item of the preflight checklist failed, so no model was called.
    PreflightFailed = "preflight_failed" => Failed,
    /// The provider refused or filtered the content.
    Refused = "refused" => Failed,
    /// The final answer was empty, cut off, or a call written as text, and stayed so when the loop
    /// asked again.
    NoAnswer = "no_answer" => Failed,
    /// No call of the run worked, and its job does not set `allow_no_calls`.
    NothingDone = "nothing_done" => Failed,
    /// The provider rejected the key.
    ProviderAuth = "provider_auth" => Failed,
    /// The provider rejected the request.
    ProviderRejected = "provider_rejected" => Failed,
    /// The provider gave no usable reply, and a further retry was not allowed or could not help.
    ProviderUnavailable = "provider_unavailable" => Failed,
    /// A person stopped the run.
    Cancelled = "cancelled" => Cancelled,
    /// The daemon ended during the run.
    Interrupted = "interrupted" => Interrupted,
    /// The precheck found nothing to do, so no model was called.
    NotNeeded = "not_needed" => Skipped,
    /// A check before the first step failed, for example because a read call has another result or
    /// the gate denies a step; no step was made.
    ApplyRefused = "apply_refused" => Failed,
    /// A step of a plan failed.
    ApplyFailed = "apply_failed" => Failed,
    /// A fault in dutyd.
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
