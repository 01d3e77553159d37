//! The lock of a state directory (STATE-2).

use std::fs::File;
use std::io;

use nix::fcntl::{Flock, FlockArg};

use super::files::append_private;
use super::run_dir::StateDir;

/// The lock of a state directory. Only its holder may set a damaged database aside.
#[derive(Debug)]
pub struct StateLock {
    _directory: Flock<File>,
    _file: Flock<File>,
}

impl StateDir {
    /// Takes the lock of the state directory; `None` if another process holds it. Locks the directory
    /// and the file `lock`, because the file may be removed.
    ///
    /// *Errors*: the directory or the file cannot be opened.
    pub fn lock(&self) -> io::Result<Option<StateLock>> {
        let directory = File::open(self.root())?;
        let file = append_private(&self.root().join("lock"))?;
        let locked = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok();
        let both = locked(directory).zip(locked(file));
        Ok(both.map(|(directory, file)| StateLock { _directory: directory, _file: file }))
    }
}
