//! The gate: one function decides every tool call, and no call runs without its decision.
//!
//! The gate is pure: callers pass in all facts, and it does not know how a call is executed. The
//! caller records the decision before the call starts. The rules apply in a fixed order, and the
//! first rule that denies decides (POL-5).

mod bash;
mod decision;
mod domain;
mod path;
mod widened;

pub use bash::{Classification, CommandRules, Severity};
pub use decision::{CallFacts, Decision, GateRules, Resource, Spent, decide, is_visible};
pub use domain::{DomainRefusal, DomainRules, Target};
pub(crate) use path::HIDDEN;
pub use path::{Access, PathRefusal, PathRules, names_directory, shown, unescaped};
pub use widened::jobs_with_more_rights;
