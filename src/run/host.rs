//! What all runs of this process share: the machine they run on.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::approvals::{Approvals, SocketApprover};
use crate::agent::Approver;
use crate::clock::Clock;
use crate::config::Environment;
use crate::process::{ControlGroups, ForkServer};
use crate::sinks::Observers;
use crate::store::{SharedIndex, SharedLedger, StateDir};

/// What runs share with each other: the machine they run on.
#[derive(Clone)]
pub struct Host {
    /// Where they are kept.
    pub state: StateDir,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// The daemon's environment.
    pub environment: Environment,
    /// Starts the processes of tools.
    pub fork_server: Arc<ForkServer>,
    /// Where what a run starts is kept together, if the system leaves that to this process.
    pub groups: Option<Arc<ControlGroups>>,
    /// Who watches.
    pub observers: Observers,
    /// Asks a person.
    pub approver: Arc<dyn Approver>,
    /// The one writer of the ledger.
    pub ledger: SharedLedger,
    /// The one writer of the index.
    pub index: SharedIndex,
}

impl Host {
    /// Returns a host of this process; approvals wait in `approvals`.
    #[must_use]
    pub fn new(
        state: StateDir,
        clock: Arc<dyn Clock>,
        environment: Environment,
        observers: Observers,
        approvals: Arc<Approvals>,
    ) -> Self {
        Self {
            ledger: SharedLedger::of(state.root()),
            index: SharedIndex::of(&state),
            state,
            environment,
            fork_server: Arc::new(ForkServer::of_this_binary()),
            groups: None,
            observers,
            approver: Arc::new(SocketApprover::new(approvals, clock.clone())),
            clock,
        }
    }
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its directory, lock file or transcript cannot be made.
    #[error("the run cannot be recorded in {path}: {error}")]
    State {
        /// The state directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Its first line cannot be written.
    #[error("the transcript cannot be written: {0}")]
    Record(String),
    /// A fault of ours.
    #[error("a fault of dutyd ended it; the log says more")]
    Panicked,
}
