//! The report of `replay` and `backtest`.

use serde::{Deserialize, Serialize};

use crate::domain::DecisionKind;

/// The report of a comparison.
///
/// *Shape*:
/// `{"ok":false,"runs":1,"calls":3,"cost_usd":{"recorded":0.01,"today":0.02},"differences":[…],"not_compared":[]}`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReplayReport {
    /// Whether nothing differs and every run was compared.
    pub ok: bool,
    /// Number of compared runs.
    pub runs: u64,
    /// Number of compared calls.
    pub calls: u64,
    pub cost_usd: Costs,
    pub differences: Vec<Difference>,
    /// The runs that could not be compared.
    pub not_compared: Vec<NotCompared>,
}

/// The cost of the replies, in US dollars; null if a price or a number of tokens is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    pub recorded: Option<f64>,
    /// The cost of the same tokens at the prices of the configuration that is compared.
    pub today: Option<f64>,
}

impl Default for Costs {
    fn default() -> Self {
        Self { recorded: Some(0.0), today: Some(0.0) }
    }
}

impl Costs {
    pub(super) fn add(&mut self, other: Self) {
        let sum = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(a, b)| a + b);
        self.recorded = sum(self.recorded, other.recorded);
        self.today = sum(self.today, other.today);
    }
}

/// A run that could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCompared {
    pub run_id: String,
    pub reason: String,
}

/// Something that today's configuration decides otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub run_id: String,
    pub job: String,
    /// The line of the decision, else of the reply.
    pub seq: u64,
    /// Null if the difference is not about a call.
    pub call_id: Option<String>,
    /// The name of the tool, or `system_prompt`, `task`, `tools`.
    pub name: String,
    pub kind: DifferenceKind,
    pub recorded: Side,
    pub today: Side,
    /// The reason for today's decision.
    pub reason: String,
}

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The call would be denied, or needs approval.
    Refused,
    /// The call would be allowed, or could be approved.
    Allowed,
    Argv,
    /// The configuration has no such tool, or withholds it from the job.
    ToolGone,
    Prompt,
    Tools,
}

impl DifferenceKind {
    /// Returns the word of `-o json`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Allowed => "allowed",
            Self::Argv => "argv",
            Self::ToolGone => "tool_gone",
            Self::Prompt => "prompt",
            Self::Tools => "tools",
        }
    }
}

/// One side of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Side {
    Decision(DecisionKind),
    /// An argv, or the names of tools.
    Words(Vec<String>),
    /// A line of a prompt.
    Line(String),
}

impl ReplayReport {
    /// Adds the report of a run.
    pub(super) fn add(&mut self, run: Self) {
        self.runs += run.runs;
        self.calls += run.calls;
        self.cost_usd.add(run.cost_usd);
        self.differences.extend(run.differences);
    }
}
