//! The daemon: what comes due is claimed, queued, run and accounted for.
//!
//! One supervisor owns the daemon's state; a tick, a signal, the end of a run and a client's wish are messages to it. It knows neither SQL nor
//! wire formats. Nothing polls: it sleeps until something is due, happens, or the clock is to be looked at.

mod audit;
mod command;
mod disposition;
mod recovery;
mod signals;
mod supervisor;
mod ticker;
mod views;

pub use audit::{AuditReport, AuditedSlot, Undecided, audit};
pub use command::{Command, CommandError, RunRequest, Started};
pub use recovery::{Recovered, recover};
pub use signals::watch_signals;
pub use supervisor::{Handle, Parts, Supervisor};
pub use views::{
    JobRow, LastRun, NextRow, StatusConfig, StatusJobs, StatusReport, StatusRuns, job_rows,
    next_rows,
};
