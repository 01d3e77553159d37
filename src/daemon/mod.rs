//! The daemon: claims due slots, queues and executes their runs, and accounts for each.
//!
//! One supervisor owns the daemon's state. Ticks, signals, ends of runs and client requests reach
//! it as messages. Between messages, it sleeps until the next start time or the next look at the
//! clock. This folder contains no SQL and no wire formats.

mod audit;
mod book;
mod command;
mod disposition;
mod fold;
mod notifier;
mod outbox;
mod recovery;
mod rules;
mod signals;
mod supervisor;
#[cfg(test)]
mod tests;
mod ticker;
mod views;
mod watch;

pub use audit::{AuditReport, AuditedSlot, Undecided, audit};
pub use command::{
    BackfillRequest, BackfillScope, Command, CommandError, PauseRequest, Started, TakenText,
    TextRequest,
};
pub use notifier::{Notifier, undelivered_problems};
pub use recovery::{RecoveredState, Resumable, StartError, recover_state};
pub use signals::Signals;
pub use supervisor::{Handle, Parts, Supervisor, log_warnings};
pub use views::{
    JobRow, LastRun, NextRow, StatusConfig, StatusJobs, StatusRefused, StatusReport, StatusRuns,
    StatusWait, job_rows, next_rows,
};
pub use watch::{load_stable, watch_files};
