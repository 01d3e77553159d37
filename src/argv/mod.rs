//! From a model's arguments to an argv: parse, validate, render. All pure.
//!
//! [`CommandLine`] is what a tool declares; [`CommandLine::render`] is the only way from arguments to a process, and it refuses whatever the
//! declaration did not foresee (ARG rules of the threat model). It does not know where tools come from nor how they are started.

mod arguments;
mod command_line;
mod condition;
mod diagnostics;
mod injection;
mod parameters;
mod pattern;
pub(crate) mod programs;

pub use arguments::parse_arguments;
pub use command_line::{ARGV_BYTES_LIMIT, CommandLine, Declaration, Rendered, STDIN_BYTES_LIMIT};
pub use condition::ArgumentConditions;
pub use diagnostics::Diagnostic;
pub(crate) use diagnostics::Diagnostics;
pub use parameters::{DEFAULT_STRING_BYTES, Names, Parameters};

/// Returns `segment` as it stands in a JSON pointer.
pub(crate) fn pointer_segment(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}
