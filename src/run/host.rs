//! The resources that all runs of this process share.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::approvals::{Approvals, SocketApprover};
use crate::agent::{Approver, ModelWaits};
use crate::clock::Clock;
use crate::config::Environment;
use crate::process::{ControlGroups, ForkServer};
use crate::provider::HttpClients;
use crate::sinks::Observers;
use crate::store::{DbError, SharedIndex, SharedLedger, StateDir};

/// The resources that all runs of this process share.
#[derive(Clone)]
pub struct Host {
    /// The directory of runs, index and ledger.
    pub state: StateDir,
    pub clock: Arc<dyn Clock>,
    pub environment: Environment,
    /// The HTTP clients of the models.
    pub clients: HttpClients,
    /// Starts the processes of tools.
    pub fork_server: Arc<ForkServer>,
    /// The control groups of runs, if systemd delegated a control group to this process.
    pub groups: Option<Arc<ControlGroups>>,
    pub observers: Observers,
    /// Asks a person for approval.
    pub approver: Arc<dyn Approver>,
    /// The model calls of the runs of this process.
    pub waits: ModelWaits,
    /// The one writer of the ledger.
    pub ledger: SharedLedger,
    /// The one writer of the index.
    pub index: SharedIndex,
}

impl Host {
    /// Returns the host of this process. Pending approvals wait in `approvals`.
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
            clients: HttpClients::default(),
            fork_server: Arc::new(ForkServer::of_this_binary()),
            groups: None,
            observers,
            waits: ModelWaits::default(),
            approver: Arc::new(SocketApprover::new(approvals, clock.clone())),
            clock,
        }
    }
}

impl Host {
    /// Tells whether the state directory has a ledger.
    #[must_use]
    pub fn has_ledger(&self) -> bool {
        crate::store::Ledger::path(self.state.root()).exists()
    }
}

/// Why a run could not start, or why the last line of its transcript is missing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file or directory of the run cannot be created or locked.
    #[error("cannot record the run in {path}: {error}")]
    State { path: PathBuf, error: io::Error },
    /// A line that must be written before the work starts cannot be written.
    #[error("the transcript cannot be written: {0}")]
    Record(String),
    /// The ledger cannot be read or written, so the run did not begin.
    #[error("failed to reserve the daily budget: {0}")]
    Ledger(DbError),
    /// A daily budget has too little left, so the run did not begin.
    #[error("{0}")]
    OverBudget(String),
    /// The run panicked outside its session: a bug in dutyd.
    #[error("a bug in dutyd ended the run; see the log")]
    Panicked,
}

impl RunError {
    /// Tells whether the disk cannot be written, so that other runs would fail too.
    #[must_use]
    pub fn is_disk_fault(&self) -> bool {
        match self {
            Self::State { error, .. } => is_disk_fault(error),
            Self::Record(_) | Self::Ledger(_) => true,
            Self::OverBudget(_) | Self::Panicked => false,
        }
    }
}

/// Tells whether an error means that a file system cannot be written: it is full, read-only or broken.
#[must_use]
pub fn is_disk_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | ReadOnlyFilesystem | QuotaExceeded)
        || error.raw_os_error() == Some(nix::libc::EIO)
}
