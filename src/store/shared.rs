//! The one writer of each database in this process, opened when it is first needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::OnceCell;

use super::db::DbError;
use super::index::Index;
use super::ledger::Ledger;
use super::run_dir::StateDir;

/// The ledger of a state directory.
#[derive(Debug, Clone)]
pub struct SharedLedger {
    root: PathBuf,
    opened: Arc<OnceCell<Ledger>>,
}

impl SharedLedger {
    /// Returns the ledger of the state directory at `root`, which is opened at its first use.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self { root: root.to_path_buf(), opened: Arc::default() }
    }

    /// Returns one that is open already.
    #[must_use]
    pub fn opened(root: &Path, ledger: Ledger) -> Self {
        Self { root: root.to_path_buf(), opened: Arc::new(OnceCell::new_with(Some(ledger))) }
    }

    /// Returns the writer.
    ///
    /// *Errors*: [`DbError`]; a ledger that was damaged is one, because what it knew is gone.
    pub async fn get(&self) -> Result<&Ledger, DbError> {
        let open = || async {
            match Ledger::open(&self.root)? {
                (ledger, None) => Ok(ledger),
                (_, Some(aside)) => Err(DbError::SetAside(aside)),
            }
        };
        self.opened.get_or_try_init(open).await
    }
}

/// The index of a state directory.
#[derive(Debug, Clone)]
pub struct SharedIndex {
    state: StateDir,
    opened: Arc<OnceCell<Index>>,
}

impl SharedIndex {
    /// Returns the index of a state directory, which is opened at its first use, and filled if it is new.
    #[must_use]
    pub fn of(state: &StateDir) -> Self {
        Self { state: state.clone(), opened: Arc::default() }
    }

    /// Returns one that is open already.
    #[must_use]
    pub fn opened(state: &StateDir, index: Index) -> Self {
        Self { state: state.clone(), opened: Arc::new(OnceCell::new_with(Some(index))) }
    }

    /// Returns the writer.
    ///
    /// *Errors*: [`DbError`].
    pub async fn get(&self) -> Result<&Index, DbError> {
        let open = || async {
            let (index, owes_rebuild) = Index::open(self.state.root())?;
            if owes_rebuild {
                index.rebuild(self.state.clone()).await?;
            }
            Ok(index)
        };
        self.opened.get_or_try_init(open).await
    }
}
