//! The lock of a state directory (STATE-2), and who holds it.
//!
//! flock(2) has no test that does not take the lock, and a client that takes it for a moment would
//! keep a daemon from starting. Therefore the holder also has a lock of fcntl(2), which a client
//! tests.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::libc;
use serde::{Deserialize, Serialize};

use super::files::append_private;
use super::run_dir::StateDir;

/// The name of the lock file.
const LOCK: &str = "lock";

/// Bytes of a lock file that are read.
const LOCK_BYTES: u64 = 16 * 1024;

/// The lock of a state directory. Only its holder may set a damaged database aside or migrate one.
#[derive(Debug)]
pub struct StateLock {
    _directory: Flock<File>,
    file: Flock<File>,
}

/// The process that holds the lock of a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockHolder {
    Nobody,
    /// A process without a control socket: a daemon that starts or ends, or a verb.
    Process,
    Daemon(DaemonAddress),
}

/// The address of a daemon.
///
/// *Shape*: `{"pid":4711,"socket":"/run/dutyd/control.sock"}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonAddress {
    /// Its process id, as it sees it.
    pub pid: u32,
    /// The absolute path of its control socket.
    pub socket: PathBuf,
}

impl StateLock {
    /// Takes the lock of the state directory at `root`; `None` if another process holds it. Locks the
    /// directory and the file `lock`, because the file may be removed.
    ///
    /// *Errors*: the directory or the file cannot be opened.
    pub(super) fn take(root: &Path) -> io::Result<Option<Self>> {
        let directory = File::open(root)?;
        let file = append_private(&root.join(LOCK))?;
        let locked = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok();
        let Some((directory, file)) = locked(directory).zip(locked(file)) else {
            return Ok(None);
        };
        // An earlier holder may have announced itself.
        file.set_len(0)?;
        // NFS makes a lock of fcntl(2) out of the one above, and may refuse a second one.
        let _ = fcntl(&*file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK)));
        Ok(Some(Self { _directory: directory, file }))
    }

    /// Tells clients where the holder of the lock listens.
    ///
    /// *Errors*: an I/O error, or a path that is not UTF-8.
    pub fn announce(&self, socket: &Path) -> io::Result<()> {
        let socket = std::path::absolute(socket)?;
        let address = DaemonAddress { pid: std::process::id(), socket };
        let text = serde_json::to_vec(&address).map_err(io::Error::other)?;
        self.file.set_len(0)?;
        let mut file: &File = &self.file;
        file.write_all(&text)
    }
}

/// Returns a lock of fcntl(2) on a whole file.
fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

impl StateDir {
    /// Takes the lock of the state directory; `None` if another process holds it.
    ///
    /// *Errors*: the directory or the lock file cannot be opened.
    pub fn lock(&self) -> io::Result<Option<StateLock>> {
        StateLock::take(self.root())
    }

    /// Tells who holds the lock of the state directory.
    ///
    /// *Errors*: the lock file cannot be read, or its content is not that of a lock file.
    pub fn lock_holder(&self) -> io::Result<LockHolder> {
        let file = match File::open(self.root().join(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockHolder::Nobody),
            Err(error) => return Err(error),
        };
        let mut held = whole_file(libc::F_RDLCK);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut held))?;
        if libc::c_int::from(held.l_type) == libc::F_UNLCK {
            return Ok(LockHolder::Nobody);
        }
        let mut text = String::new();
        file.take(LOCK_BYTES).read_to_string(&mut text)?;
        if text.is_empty() {
            return Ok(LockHolder::Process);
        }
        let address = serde_json::from_str(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(LockHolder::Daemon(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves STATE-2
    #[test]
    fn the_lock_tells_who_holds_it_and_a_test_does_not_take_it() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path());
        assert_eq!(state.lock_holder().unwrap(), LockHolder::Nobody);
        for _ in 0..2 {
            let lock = state.lock().unwrap().unwrap();
            assert_eq!(state.lock_holder().unwrap(), LockHolder::Process);
            lock.announce(Path::new("/run/x/control.sock")).unwrap();
            let socket = PathBuf::from("/run/x/control.sock");
            let address = DaemonAddress { pid: std::process::id(), socket };
            assert_eq!(state.lock_holder().unwrap(), LockHolder::Daemon(address));
            assert!(state.lock().unwrap().is_none());
            drop(lock);
            assert_eq!(state.lock_holder().unwrap(), LockHolder::Nobody);
        }
    }
}
