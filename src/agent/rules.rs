//! What a session runs under.

use crate::config::{Approval, Limits, Mode, Price};
use crate::gate::GateRules;

/// What a session runs under; frozen at its start.
#[derive(Debug, Clone)]
pub struct Rules {
    /// What it may do.
    pub gate: GateRules,
    /// Whether changes are made or planned.
    pub mode: Mode,
    /// How a person is asked.
    pub approval: Approval,
    /// Where it ends.
    pub limits: Limits,
    /// Whether the first answer without calls is asked for once more.
    pub confirm: bool,
    /// How many calls are looked at for repetitions.
    pub loop_window: Option<usize>,
}

/// What the loop knows of the model that answers.
#[derive(Debug, Clone, Copy)]
pub struct ModelFacts {
    /// What it costs; `None` is unknown.
    pub price: Option<Price>,
    /// Tokens that it can take in.
    pub context_window: u64,
}
