//! Removes a directory tree that a hostile program may have made.
//!
//! Inside the tree, only one directory stays open at a time, so a deep tree costs neither stack nor
//! descriptors. To return to a parent, we open `..` and check that it is the directory from which
//! we descended. We do not follow links or enter other file systems (STATE-6). We skip entries that
//! cannot be removed and continue with the rest.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, Stat, chmod, fchmod, fstat, openat, unlinkat,
};
use rustix::io::Errno;

use crate::process::open_beneath;

/// Maximum number of failed entries before a removal gives up; their names are kept in memory.
const MAX_FAILED: usize = 1000;

/// Removes the file or directory at `path`, with its content. A missing `path` is not an error.
///
/// *Errors*: the first failure. Everything else that could be removed is gone, unless more than
/// [`MAX_FAILED`] entries failed or a directory was moved in the meantime. Blocks.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let name = CString::new(name.as_bytes())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = match openat(CWD, above, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    Removal::default().run(above.as_fd(), &name)
}

#[derive(PartialEq, Eq)]
enum Taken {
    Gone,
    /// A directory that is not empty.
    Full,
}

/// A directory on the path from the root of the tree to the directory that is open.
struct Level {
    name: CString,
    stat: Stat,
    failed: HashSet<CString>,
}

#[derive(Default)]
struct Removal {
    levels: Vec<Level>,
    failures: usize,
    first: Option<Errno>,
}

impl Removal {
    fn run(mut self, above: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        if take(above, name)? == Taken::Gone {
            return Ok(());
        }
        let mut at = self.enter(above, name)?;
        while self.failures <= MAX_FAILED {
            if let Some(child) = self.empty(&mut at) {
                match self.enter(at.fd()?, &child) {
                    Ok(opened) => at = opened,
                    Err(errno) => self.fail(child, errno),
                }
                continue;
            }
            let Some(done) = self.levels.pop() else { break };
            let Some(up) = self.levels.last() else { break };
            at = parent(&at, &up.stat)?;
            if let Err(errno) = unlinkat(at.fd()?, &*done.name, AtFlags::REMOVEDIR) {
                self.fail(done.name, errno);
            }
        }
        drop(at);
        match (unlinkat(above, name, AtFlags::REMOVEDIR), self.first) {
            (Ok(()) | Err(Errno::NOENT), _) => Ok(()),
            (Err(_), Some(first)) => Err(first.into()),
            (Err(errno), None) => Err(errno.into()),
        }
    }

    fn enter(&mut self, above: BorrowedFd<'_>, name: &CStr) -> Result<Dir, Errno> {
        let dir = Dir::new(open(above, name)?)?;
        let level = Level { name: name.to_owned(), stat: dir.stat()?, failed: HashSet::new() };
        self.levels.push(level);
        Ok(dir)
    }

    /// Removes the entries that can be removed directly; returns the first directory that is not
    /// empty.
    fn empty(&mut self, dir: &mut Dir) -> Option<CString> {
        let mut has_removed = false;
        while self.failures <= MAX_FAILED {
            let entry = match dir.read() {
                Some(Ok(entry)) => entry,
                Some(Err(errno)) => {
                    self.count(errno);
                    return None;
                }
                // Removing entries while reading may skip some, so read again.
                None if has_removed => {
                    has_removed = false;
                    dir.rewind();
                    continue;
                }
                None => return None,
            };
            let name = entry.file_name();
            let is_known = self.levels.last().is_some_and(|level| level.failed.contains(name));
            if is_known || matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match dir.fd().and_then(|fd| take(fd, name)) {
                Ok(Taken::Gone) => has_removed = true,
                Ok(Taken::Full) => return Some(name.to_owned()),
                Err(errno) => self.fail(name.to_owned(), errno),
            }
        }
        None
    }

    fn fail(&mut self, name: CString, errno: Errno) {
        self.count(errno);
        if let Some(level) = self.levels.last_mut() {
            level.failed.insert(name);
        }
    }

    fn count(&mut self, errno: Errno) {
        self.failures += 1;
        self.first.get_or_insert(errno);
    }
}

fn take(dir: BorrowedFd<'_>, name: &CStr) -> Result<Taken, Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Taken::Gone),
        // The error for a directory depends on the file system.
        Err(first @ (Errno::ISDIR | Errno::PERM)) => {
            match unlinkat(dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(Taken::Gone),
                Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Taken::Full),
                Err(Errno::NOTDIR) => Err(first),
                Err(errno) => Err(errno),
            }
        }
        Err(errno) => Err(errno),
    }
}

/// Opens a directory, and gives us the rights to empty it.
fn open(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let common = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = || open_beneath(dir, path, common | OFlags::RDONLY, how);
    let fd = match opened() {
        Err(Errno::ACCESS) => {
            // `fchmodat` follows links, but a descriptor opened as a directory is not a link.
            let place = open_beneath(dir, path, common | OFlags::PATH, how)?;
            chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
            opened()?
        }
        opened => opened?,
    };
    if !Mode::from_raw_mode(fstat(&fd)?.st_mode).contains(Mode::RWXU) {
        // If this fails, the removal of the directory's entries reports why.
        let _ = fchmod(&fd, Mode::RWXU);
    }
    Ok(fd)
}

fn parent(dir: &Dir, expected: &Stat) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = Dir::new(openat(dir.fd()?, c"..", flags, Mode::empty())?)?;
    let stat = above.stat()?;
    if (stat.st_dev, stat.st_ino) == (expected.st_dev, expected.st_ino) {
        Ok(above)
    } else {
        Err(io::Error::other("a directory was moved during its removal"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_tree_is_removed_however_deep_closed_or_linked() {
        let temp = tempfile::tempdir().unwrap();
        let outside = temp.path().join("outside");
        std::fs::write(&outside, "stays").unwrap();
        let tree = temp.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(temp.path(), tree.join("link")).unwrap();
        std::fs::create_dir_all(tree.join("closed/in")).unwrap();
        let closed = std::fs::Permissions::from_mode(0o0);
        std::fs::set_permissions(tree.join("closed"), closed).unwrap();
        let mut at = openat(CWD, &tree, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for _ in 0..15_000 {
            rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
            at = openat(&at, c"d", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "stays");
        remove_tree(&tree).unwrap();
    }
}
