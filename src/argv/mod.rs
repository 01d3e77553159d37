//! From a model's arguments to an argv: parse, validate, render. All pure.
//!
//! [`CommandLine`] is what a tool declares; [`CommandLine::render`] is the only way from arguments to a process, and it refuses whatever the
//! declaration did not foresee (ARG rules of the threat model). It does not know where tools come from nor how they are started.

mod arguments;
mod command_line;
mod condition;
mod injection;
mod parameters;
mod pattern;
mod programs;

pub use arguments::parse_arguments;
pub use command_line::{ARGV_BYTES_LIMIT, CommandLine, Declaration, Rendered, STDIN_BYTES_LIMIT};
pub use condition::ArgumentConditions;
pub use parameters::{DEFAULT_STRING_BYTES, Names, Parameters};

/// What is wrong with a declaration, and where within it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// A JSON pointer relative to the declaration, such as `/args/1`.
    pub pointer: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Fault {
    fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Returns `segment` as it stands in a JSON pointer.
pub(crate) fn pointer_segment(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}
