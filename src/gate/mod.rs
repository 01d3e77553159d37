//! The gate: one function decides every tool call, and nothing is executed that did not pass it.
//!
//! Pure: what it needs to know comes in as arguments. The decision is recorded before the call starts; how a call is executed is not known
//! here. Rules are asked in a fixed order, and the first that denies decides (POL-5).

mod bash;
mod decision;
mod domain;
mod path;

pub use bash::{Classification, CommandRules, Severity};
pub use decision::{CallFacts, Decision, GateRules, Resource, Spent, decide, is_visible};
pub use domain::{DomainRefusal, DomainRules, Target};
pub(crate) use path::HIDDEN;
pub use path::{Access, PathRefusal, PathRules, names_directory, shown, unescaped};
