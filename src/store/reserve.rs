//! Disk space that a database can still use when the file system is full (STATE-4).
//!
//! The reserve is a file beside the database. While the file system has room for only a few writes,
//! the reserve shrinks by one piece before each write, so that a full disk does not stop the ledger
//! at once.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};

/// Bytes of a full reserve.
const WHOLE: u64 = 16 << 20;

/// Bytes released at a time.
const PIECE: u64 = 1 << 20;

/// A piece is released while fewer bytes than this are free.
const SCARCE: u64 = 1 << 20;

/// The reserve is refilled once at least this many bytes are free.
const PLENTY: u64 = 128 << 20;

#[derive(Debug)]
pub(super) struct Reserve {
    file: File,
    bytes: u64,
}

impl Reserve {
    /// Opens the reserve at `path`, and fills it if enough space is free.
    ///
    /// *Errors*: the file cannot be opened, or is a symlink.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(nix::libc::O_NOFOLLOW).open(path)?;
        let bytes = file.metadata()?.len();
        let mut reserve = Self { file, bytes };
        reserve.adapt();
        Ok(reserve)
    }

    /// Releases one piece if the file system is nearly full; refills the reserve if enough space is
    /// free.
    pub(super) fn adapt(&mut self) {
        let Ok(system) = fstatvfs(&self.file) else { return };
        let blocks =
            if rustix::process::geteuid().is_root() { system.f_bfree } else { system.f_bavail };
        self.adapt_to(blocks.saturating_mul(system.f_frsize));
    }

    fn adapt_to(&mut self, free: u64) {
        let wanted = match free {
            PLENTY.. => WHOLE,
            0..SCARCE => self.bytes.saturating_sub(PIECE),
            _ => self.bytes,
        };
        let done = match wanted {
            _ if wanted == self.bytes => return,
            _ if wanted < self.bytes => self.file.set_len(wanted),
            // `set_len` would create a sparse file, which reserves nothing.
            _ => fallocate(&self.file, FallocateFlags::empty(), 0, wanted).map_err(Into::into),
        };
        match done {
            Ok(()) => self.bytes = wanted,
            Err(error) => tracing::debug!(%error, "failed to resize the reserve of the ledger"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_full_disk_gets_the_reserve_piece_by_piece() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("reserve");
        let system = rustix::fs::statvfs(temp.path()).unwrap();
        let mut reserve = Reserve::open(path.clone()).unwrap();
        let held = || std::fs::metadata(&path).unwrap().blocks() * 512;
        if system.f_bavail * system.f_frsize > 2 * PLENTY {
            assert_eq!(held(), WHOLE, "the first fill");
        }
        reserve.adapt_to(PLENTY);
        assert_eq!(held(), WHOLE);
        reserve.adapt_to(SCARCE);
        assert_eq!(held(), WHOLE);
        reserve.adapt_to(SCARCE - 1);
        assert_eq!(held(), WHOLE - PIECE);
        for _ in 0..20 {
            reserve.adapt_to(0);
        }
        assert_eq!(held(), 0);
        reserve.adapt_to(PLENTY - 1);
        assert_eq!(held(), 0);
        reserve.adapt_to(PLENTY);
        assert_eq!(held(), WHOLE);
    }
}
