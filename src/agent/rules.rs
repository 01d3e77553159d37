//! The rules of a session.

use crate::catalogue::Price;
use crate::config::{Approval, Limits, Mode, OutputSchema};
use crate::gate::GateRules;

/// The rules of a session, frozen at its start.
#[derive(Debug, Clone)]
pub struct Rules {
    /// What the gate allows, asks about or denies.
    pub gate: GateRules,
    /// Whether the session makes changes or plans them.
    pub mode: Mode,
    /// How the session asks a person for approval.
    pub approval: Approval,
    /// The limits of the session. Most of them end it when they are reached.
    pub limits: Limits,
    /// Whether the model must confirm its first reply without calls. Has no effect in a session
    /// without tools.
    pub confirm: bool,
    /// Whether a run in which no call worked ends as `nothing_done`.
    pub needs_call: bool,
    /// The schema of the final answer, if the job has one.
    pub output_schema: Option<OutputSchema>,
    /// Number of checks after the final answer.
    pub checks: usize,
    /// How many times the model gets the checks that failed.
    pub verify_retries: u32,
    /// Whether old results are removed from a history that is too long.
    pub compacts: bool,
    /// How many of the last calls to search for repetitions; `None` disables the search.
    pub loop_window: Option<usize>,
}

/// What the loop knows about a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelFacts {
    /// The price; `None` if it is unknown.
    pub price: Option<Price>,
    /// The size of the context window in tokens.
    pub context_window: u64,
    /// Characters per token of ordinary text; `None` if unknown.
    pub characters_per_token: Option<f64>,
}
