//! The exit codes: one table for the program, the manual page and the book.
//!
//! *Source*: `docs/design/interfaces.md`, "Exit codes".

use std::process::ExitCode;

/// How a command of dutyd ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Success = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    NoDaemon = 4,
    Denied = 5,
    TimedOut = 124,
    Cancelled = 130,
}

impl Exit {
    /// Every exit code, in ascending order.
    pub(super) const ALL: &[Self] = &[
        Self::Success,
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::NoDaemon,
        Self::Denied,
        Self::TimedOut,
        Self::Cancelled,
    ];

    /// Returns the exit of a command that checks something.
    pub(super) fn of_check(is_good: bool) -> Self {
        if is_good { Self::Success } else { Self::Failed }
    }

    /// Returns the number that the process exits with.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the meaning, as the manual page and the book state it.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Success => {
                "Success: a run that succeeded, was planned or skipped; a call that worked; the decision `allow`."
            }
            Self::Failed => {
                "Failure: a run that failed or was interrupted, a call that failed, the decision `ask`, output that cannot be written, or a check that found a problem."
            }
            Self::Usage => "Usage error, configuration error, or invalid arguments of a call.",
            Self::NotFound => "Not found: a run, a job, a tool or a plan.",
            Self::NoDaemon => "No daemon is running.",
            Self::Denied => "Denied by policy (`call`, `explain`).",
            Self::TimedOut => "Timed out: a call at its timeout, a run at `max_duration`.",
            Self::Cancelled => "Cancelled.",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
