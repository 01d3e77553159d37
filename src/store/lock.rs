//! The lock of a state directory (STATE-2).

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::files::append_private;
use super::run_dir::StateDir;

/// The lock of a state directory. Only its holder may set a damaged database aside or migrate one.
#[derive(Debug)]
pub struct StateLock {
    _directory: Flock<File>,
    _file: Flock<File>,
}

impl StateLock {
    /// Takes the lock of the state directory at `root`; `None` if another process holds it. Locks the
    /// directory and the file `lock`, because the file may be removed.
    ///
    /// *Errors*: the directory or the file cannot be opened.
    pub(super) fn take(root: &Path) -> io::Result<Option<Self>> {
        let directory = File::open(root)?;
        let file = append_private(&root.join("lock"))?;
        let locked = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok();
        let both = locked(directory).zip(locked(file));
        Ok(both.map(|(directory, file)| Self { _directory: directory, _file: file }))
    }
}

impl StateDir {
    /// Takes the lock of the state directory; `None` if another process holds it.
    ///
    /// *Errors*: the directory or the lock file cannot be opened.
    pub fn lock(&self) -> io::Result<Option<StateLock>> {
        StateLock::take(self.root())
    }
}
