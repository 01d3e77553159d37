//! Measures the disk usage of an untrusted directory tree. A file that is open but already unlinked
//! is not counted.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, chmod, fstat, openat, statat,
};
use rustix::io::Errno;

use crate::process::open_beneath;

/// Maximum number of entries; a tree with more counts as too large.
const MAX_ENTRIES: usize = 1_000_000;

/// Returns the bytes that the tree at `path` occupies on its file system; `None` if they exceed
/// `most`, or if the tree is too large or too deep to be measured. Returns 0 if `path` does not
/// exist. Does not follow links or enter other file systems, and counts a file with several names
/// once.
///
/// *Errors*: a directory cannot be read. Blocks.
pub(super) fn disk_bytes(path: &Path, most: u64) -> io::Result<Option<u64>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open_root = || openat(CWD, path, flags, Mode::empty());
    let root = match open_root() {
        Err(Errno::NOENT) => return Ok(Some(0)),
        Err(Errno::ACCESS) => {
            make_readable(&openat(CWD, path, flags | OFlags::PATH, Mode::empty())?)?;
            open_root()?
        }
        opened => opened?,
    };
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let (mut bytes, mut entries) = (0_u64, 0);
    let mut linked: HashSet<(u64, u64)> = HashSet::new();
    let mut waiting = vec![PathBuf::from(".")];
    while let Some(relative) = waiting.pop() {
        let directory = match open_beneath(&root, &relative, flags, how) {
            // The directory was removed in the meantime, or is on another file system.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            Err(Errno::NAMETOOLONG) => return Ok(None),
            Err(Errno::ACCESS) => {
                let flags_of_place = flags | OFlags::PATH;
                make_readable(&open_beneath(&root, &relative, flags_of_place, how)?)?;
                open_beneath(&root, &relative, flags, how)?
            }
            opened => opened?,
        };
        if !Mode::from_raw_mode(fstat(&directory)?.st_mode).contains(Mode::XUSR) {
            make_readable(&directory)?;
        }
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            entries += 1;
            if entries > MAX_ENTRIES {
                return Ok(None);
            }
            let stat = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if is_dir {
                waiting.push(relative.join(OsStr::from_bytes(name.to_bytes())));
            } else if stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) {
                continue;
            }
            bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
            if bytes > most {
                return Ok(None);
            }
        }
    }
    Ok(Some(bytes))
}

/// Gives the owner access to a directory: a tool must not hide files by removing its own user's
/// permissions.
fn make_readable(directory: &OwnedFd) -> io::Result<()> {
    // `fchmodat` would follow a link that replaced the directory, and `fchmod` rejects an `O_PATH`
    // descriptor.
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    chmod(path, Mode::RWXU).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_measured_without_following_links() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        assert_eq!(disk_bytes(&tree, 0).unwrap(), Some(0));
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::write(temp.path().join("outside"), vec![1; 10 << 20]).unwrap();
        std::os::unix::fs::symlink(temp.path(), tree.join("a/out")).unwrap();
        std::fs::write(tree.join("a/b/file"), vec![1; 1 << 20]).unwrap();
        for at in 0..5 {
            std::fs::hard_link(tree.join("a/b/file"), tree.join(format!("name{at}"))).unwrap();
        }
        // A sparse file occupies no space.
        std::fs::File::create(tree.join("holes")).unwrap().set_len(1 << 40).unwrap();
        let bytes = disk_bytes(&tree, 2 << 20).unwrap().unwrap();
        assert!((1 << 20..(1 << 20) + (64 << 10)).contains(&bytes), "{bytes}");
        assert_eq!(disk_bytes(&tree, 1 << 19).unwrap(), None);
    }

    #[test]
    fn a_tree_that_is_too_deep_counts_as_too_large() {
        let temp = tempfile::tempdir().unwrap();
        let mut at = std::fs::File::open(temp.path()).unwrap();
        for _ in 0..50 {
            let name = "d".repeat(200);
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = openat(&at, &name, flags, Mode::empty()).unwrap().into();
        }
        assert_eq!(disk_bytes(temp.path(), 1 << 30).unwrap(), None);
    }
}
