//! Why a command failed: a kind, which alone gives the exit code, a message and hints.

/// The kinds of failure. *Source*: `design/interfaces.md`, "Exit codes".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was asked for did not work.
    Failed,
    /// Wrong usage, configuration or arguments.
    Usage,
    /// No such job, run or tool.
    NotFound,
    /// No daemon runs.
    NoDaemon,
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// Gives the exit code.
    pub kind: ErrorKind,
    /// What went wrong.
    pub message: String,
    /// What to do.
    pub hints: Vec<String>,
}

impl CliError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new() }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
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

    /// Returns the exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Failed => 1,
            ErrorKind::Usage => 2,
            ErrorKind::NotFound => 3,
            ErrorKind::NoDaemon => 4,
        }
    }
}
