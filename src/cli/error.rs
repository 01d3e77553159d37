//! The error of a command: a kind, a message with its causes, and hints. The kind alone determines
//! the exit code.

use std::error::Error;
use std::fmt;

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
    /// The causes, from the nearest to the first one. Printed after the message.
    pub causes: Vec<String>,
    /// Remedies, each printed on its own line after `help: `.
    pub hints: Vec<String>,
}

impl CliError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), causes: Vec::new(), hints: Vec::new() }
    }

    /// Returns an error with the text and the causes of another one.
    pub(crate) fn by(kind: ErrorKind, error: &dyn Error) -> Self {
        let own = Self::new(kind, error.to_string());
        match error.source() {
            Some(cause) => own.because(cause),
            None => own,
        }
    }

    pub(crate) fn failed_by(error: impl Error) -> Self {
        Self::by(ErrorKind::Failed, &error)
    }

    pub(crate) fn usage_by(error: impl Error) -> Self {
        Self::by(ErrorKind::Usage, &error)
    }

    /// Adds an error that caused this one, with its own causes. Skips a cause whose text the error
    /// above it already repeats, as the errors of some libraries do.
    pub(crate) fn because(mut self, cause: &dyn Error) -> Self {
        let text = cause.to_string();
        let above = match self.causes.last() {
            Some(cause) => cause,
            None => &self.message,
        };
        if !above.ends_with(&text) {
            self.causes.push(text);
        }
        match cause.source() {
            Some(cause) => self.because(cause),
            None => self,
        }
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

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.causes.iter().try_for_each(|cause| write!(f, ": {cause}"))
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the ledger: {source}")]
    struct Repeats {
        source: io::Error,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("error sending request")]
    struct Hides(#[source] io::Error);

    #[test]
    fn each_cause_is_printed_once() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let repeats = CliError::failed("cannot start").because(&Repeats { source: refused() });
        assert_eq!(repeats.to_string(), "cannot start: cannot read the ledger: connection refused");
        let hides = CliError::failed_by(Hides(refused()));
        assert_eq!(hides.to_string(), "error sending request: connection refused");
    }
}
