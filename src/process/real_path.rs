//! Resolves a path as the kernel does, but without the magic links of `/proc`.
//!
//! The links `root`, `cwd`, `exe` and `fd/N` in `/proc/PID` lead straight to a file or directory
//! that the process uses, not to a path. `/proc/self` leads each process to its own `/proc/PID`. So
//! through such a link, a tool would open another file than the one that we judged.
//! *Source*: `openat2(2)`, RESOLVE_NO_MAGICLINKS.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use super::beneath::open_real;

/// Returns the path with all its links resolved.
///
/// *Errors*: the OS error; `ELOOP` for a magic link, as for a loop of links.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    path_of(open_real(path)?)
}

/// Returns the path of the file that a descriptor refers to.
///
/// *Errors*: the OS error.
pub fn path_of(fd: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::io::Errno;

    use super::*;

    // proves FS-2
    #[test]
    fn links_are_followed_but_for_magic_ones() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().canonicalize().unwrap();
        std::fs::create_dir(directory.join("d")).unwrap();
        std::fs::write(directory.join("d/f"), "").unwrap();
        symlink("d", directory.join("relative")).unwrap();
        symlink(directory.join("d/f"), directory.join("absolute")).unwrap();
        symlink("/proc/self/root", directory.join("magic")).unwrap();
        symlink("circle", directory.join("circle")).unwrap();
        for name in ["d/f", "relative/f", "absolute", "relative/../d/f"] {
            assert_eq!(real_path(&directory.join(name)).unwrap(), directory.join("d/f"), "{name}");
        }
        for name in ["magic", "magic/etc", "circle", "/proc/self/cwd", "/proc/self/root/etc"] {
            let error = real_path(&directory.join(name)).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::LOOP), "{name}");
        }
        let missing = real_path(&directory.join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
