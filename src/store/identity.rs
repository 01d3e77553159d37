//! The identity of the state directory and of the ledger: notices that they were moved, removed or
//! replaced while they are open (STATE-8).

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file or directory of the state that is not at its path any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Displaced {
    #[error(
        "the state directory {0} was moved, removed or replaced; put it back or restart the daemon"
    )]
    Directory(PathBuf),
    #[error("{0} was moved, removed or replaced; restart the daemon")]
    Ledger(PathBuf),
}

/// A file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(path: &Path) -> io::Result<Self> {
        // Do not open the file: closing the descriptor would release the locks of SQLite.
        let meta = std::fs::metadata(path)?;
        Ok(Self { device: meta.dev(), inode: meta.ino() })
    }
}

/// A path, and what was there when it was opened.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    id: FileId,
}

impl Opened {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_path_buf(), id: FileId::of(path)? })
    }

    fn is_in_place(&self) -> bool {
        FileId::of(&self.path).is_ok_and(|found| found == self.id)
    }
}

/// The state directory and the ledger that a process has opened.
#[derive(Debug)]
pub(super) struct StateIdentity {
    directory: Opened,
    ledger: Opened,
}

impl StateIdentity {
    /// Returns the identity of what is at these paths now.
    ///
    /// *Errors*: one of them cannot be read.
    pub(super) fn of(directory: &Path, ledger: &Path) -> io::Result<Self> {
        Ok(Self { directory: Opened::of(directory)?, ledger: Opened::of(ledger)? })
    }

    /// Compares the identity with what is at the paths now. What cannot be read does not match.
    ///
    /// *Errors*: which of them does not match.
    pub(super) fn check(&self) -> Result<(), Displaced> {
        if !self.directory.is_in_place() {
            return Err(Displaced::Directory(self.directory.path.clone()));
        }
        if !self.ledger.is_in_place() {
            return Err(Displaced::Ledger(self.ledger.path.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves STATE-8
    #[test]
    fn a_file_that_was_replaced_is_not_the_same() {
        let home = tempfile::tempdir().unwrap();
        let (state, moved) = (home.path().join("state"), home.path().join("moved"));
        let ledger = state.join("ledger.db");
        let create = || {
            std::fs::create_dir(&state).unwrap();
            std::fs::write(&ledger, "").unwrap();
        };
        create();
        let identity = StateIdentity::of(&state, &ledger).unwrap();
        assert_eq!(identity.check(), Ok(()));
        std::fs::rename(&state, &moved).unwrap();
        assert_eq!(identity.check(), Err(Displaced::Directory(state.clone())));
        create();
        assert_eq!(identity.check(), Err(Displaced::Directory(state.clone())));
        std::fs::remove_dir_all(&state).unwrap();
        std::fs::rename(&moved, &state).unwrap();
        assert_eq!(identity.check(), Ok(()));
        let kept = std::fs::File::open(&ledger).unwrap();
        std::fs::remove_file(&ledger).unwrap();
        std::fs::write(&ledger, "").unwrap();
        assert_eq!(identity.check(), Err(Displaced::Ledger(ledger)));
        drop(kept);
    }
}
