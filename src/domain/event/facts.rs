//! Facts that an event states about its call, for code that looks for certain events only.

use super::Event;
use crate::domain::{CallId, Category, DecisionKind, ErrorKind};

impl Event {
    /// Tells whether the event is the start of a write or admin call.
    #[must_use]
    pub fn starts_change(&self) -> bool {
        matches!(self, Self::ToolCallStart(start) if start.category != Category::Read)
    }

    /// Returns the call that the event refuses: the gate or a person denied it, or its approval
    /// expired.
    #[must_use]
    pub fn refused_call(&self) -> Option<&CallId> {
        match self {
            Self::PolicyDecision(decided) if decided.decision == DecisionKind::Deny => {
                Some(&decided.call_id)
            }
            Self::ToolCallEnd(end) => {
                let is_refused =
                    matches!(end.error_kind, Some(ErrorKind::Denied | ErrorKind::ApprovalTimeout));
                is_refused.then_some(&end.call_id)
            }
            _ => None,
        }
    }

    /// Returns the answer of the precheck, if the event is its end ([`CallEnd::precheck_answer`]).
    #[must_use]
    pub fn precheck_answer(&self) -> Option<String> {
        match self {
            Self::ToolCallEnd(end) => end.precheck_answer(),
            _ => None,
        }
    }
}
