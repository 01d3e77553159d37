//! The error of a command: a kind, a message and hints. The kind alone determines the exit code.

use super::exit::Exit;

/// The kind of a failure, which determines the exit code. *Source*: `docs/design/interfaces.md`,
/// "Exit codes".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    Failed,
    /// Invalid usage, configuration or arguments.
    Usage,
    /// The named job, run, plan or tool does not exist.
    NotFound,
    /// No daemon is running.
    NoDaemon,
}

/// The error of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// Determines the exit code.
    pub kind: ErrorKind,
    /// The text after `error: `.
    pub message: String,
    /// Remedies, each printed on its own line after `help: `.
    pub hints: Vec<String>,
}

impl CliError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new() }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// Returns the error for a name that is a prefix of several ids.
    pub(crate) fn ambiguous(name: &str) -> Self {
        Self::usage(format!("`{name}` is a prefix of several ids: use a longer prefix"))
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns how the process exits.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self.kind {
            ErrorKind::Failed => Exit::Failed,
            ErrorKind::Usage => Exit::Usage,
            ErrorKind::NotFound => Exit::NotFound,
            ErrorKind::NoDaemon => Exit::NoDaemon,
        }
    }
}

impl From<crate::run::UnknownTool> for CliError {
    fn from(unknown: crate::run::UnknownTool) -> Self {
        let error = Self::not_found(unknown.to_string());
        match unknown.near {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }
}
