//! Turns a model's arguments into an argv: parse, validate, render. All functions are pure.
//!
//! A tool declares a [`CommandLine`]. [`CommandLine::render`] is the only way from arguments to a
//! process, and it rejects everything that the declaration does not allow (ARG rules of the threat
//! model). This module does not know where tools come from or how they are started.

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
pub(crate) use parameters::check_subschemas;
pub use parameters::{DEFAULT_STRING_BYTES, Names, Parameters};

/// Escapes `segment` for a JSON pointer.
pub(crate) fn pointer_segment(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}
