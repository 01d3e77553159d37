//! The single writer of each database in this process, opened on first use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::OnceCell;

use super::db::DbError;
use super::index::Index;
use super::ledger::Ledger;
use super::run_dir::StateDir;

/// The ledger of a state directory, opened on first use.
#[derive(Debug, Clone)]
pub struct SharedLedger {
    root: PathBuf,
    opened: Arc<OnceCell<Ledger>>,
}

impl SharedLedger {
    /// Returns the ledger of the state directory at `root` without opening it.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self { root: root.to_path_buf(), opened: Arc::default() }
    }

    /// Wraps a ledger that is already open.
    #[must_use]
    pub fn opened(root: &Path, ledger: Ledger) -> Self {
        Self { root: root.to_path_buf(), opened: Arc::new(OnceCell::new_with(Some(ledger))) }
    }

    /// Returns the ledger; opens it on first use.
    ///
    /// *Errors*: [`DbError`].
    pub async fn get(&self) -> Result<&Ledger, DbError> {
        let open = || async { Ok(Ledger::open(&self.root, None)?.0) };
        self.opened.get_or_try_init(open).await
    }
}

/// The index of a state directory, opened on first use.
#[derive(Debug, Clone)]
pub struct SharedIndex {
    state: StateDir,
    opened: Arc<OnceCell<Index>>,
}

impl SharedIndex {
    /// Returns the index of a state directory without opening it. The first use also fills a new
    /// index.
    #[must_use]
    pub fn of(state: &StateDir) -> Self {
        Self { state: state.clone(), opened: Arc::default() }
    }

    /// Wraps an index that is already open.
    #[must_use]
    pub fn opened(state: &StateDir, index: Index) -> Self {
        Self { state: state.clone(), opened: Arc::new(OnceCell::new_with(Some(index))) }
    }

    /// Returns the index; opens it on first use and rebuilds it if necessary.
    ///
    /// *Errors*: [`DbError`].
    pub async fn get(&self) -> Result<&Index, DbError> {
        let open = || async {
            let (index, must_rebuild_index) = Index::open(self.state.root(), None)?;
            if must_rebuild_index {
                index.rebuild(self.state.clone()).await?;
            }
            Ok(index)
        };
        self.opened.get_or_try_init(open).await
    }
}
