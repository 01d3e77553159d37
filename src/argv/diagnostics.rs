//! Errors and warnings about a declaration, with their position in it.

/// An error or a warning about a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// A JSON pointer relative to the declaration, such as `/args/1`.
    pub pointer: String,
    /// The problem: a lower-case fragment without a final period.
    pub message: String,
    /// The remedy, if one is known.
    pub hint: Option<String>,
}

impl Diagnostic {
    pub(crate) fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    pub(crate) errors: Vec<Diagnostic>,
    pub(crate) warnings: Vec<Diagnostic>,
}

impl Diagnostics {
    pub(crate) fn error(&mut self, pointer: &str, message: impl Into<String>) {
        self.errors.push(Diagnostic::new(pointer, message));
    }

    pub(crate) fn warn(&mut self, pointer: &str, message: impl Into<String>) {
        self.warnings.push(Diagnostic::new(pointer, message));
    }
}
