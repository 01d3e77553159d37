//! Opens a path below a directory in one step with `openat2`, or component by component where that
//! system call is missing or blocked.
//!
//! A service manager may block `openat2`: systemd does so for `RestrictSUIDSGID=`, because a filter
//! cannot see the mode that the call passes in memory. It answers ENOSYS or EPERM, depending on its
//! version. The walk that then takes its place refuses every symlink (FS-2), so it never opens a
//! file that `openat2` would refuse.
//! *Source*: `openat2(2)`; `systemd.exec(5)`, RestrictSUIDSGID=.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, fstatfs, openat,
    openat2, readlinkat, statat, statx,
};
use rustix::io::Errno;

/// Links that one path may contain, as in the kernel.
const MAX_LINKS: usize = 40;

/// The flags of a descriptor that is only a place in the tree.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens `path` below `root`; nothing outside `root` is opened. `how` restricts it further.
///
/// *Errors*: those of `openat2`: `XDEV` for a path that leaves `root`, or its mount under
/// `NO_XDEV`; `LOOP` for a symlink that is not allowed. Where `openat2` cannot be used, every
/// symlink and every `..` is an error.
pub fn open_beneath(
    root: impl AsFd,
    path: &Path,
    flags: OFlags,
    how: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    match openat2(&root, path, flags, Mode::empty(), how | ResolveFlags::BENEATH) {
        Err(Errno::NOSYS | Errno::PERM) => walk(root.as_fd(), path, flags, how),
        opened => opened,
    }
}

/// Opens an absolute path that must not contain a symlink.
///
/// *Errors*: as [`open_beneath`].
pub fn open_without_links(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let top = openat(CWD, "/", PLACE | OFlags::DIRECTORY, Mode::empty())?;
    let rest = path.strip_prefix("/").unwrap_or(path);
    let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
    open_beneath(top, rest, flags, ResolveFlags::NO_SYMLINKS)
}

/// Opens the file that a path leads to, as a place. Follows links, but not the magic ones of
/// `/proc`.
///
/// *Errors*: those of `openat2`; `LOOP` for a magic link, as for a loop of links.
pub(super) fn open_real(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::NOSYS | Errno::PERM) => follow(path),
        opened => opened,
    }
}

/// Tells whether `openat2` can be used.
pub(super) fn has_openat2() -> bool {
    openat2(CWD, ".", PLACE, Mode::empty(), ResolveFlags::BENEATH).is_ok()
}

/// Does what [`open_beneath`] does, one component at a time.
fn walk(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    how: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mount = if how.contains(ResolveFlags::NO_XDEV) { Some(mount_of(root)?) } else { None };
    let mut at = openat(root, ".", PLACE | OFlags::DIRECTORY, Mode::empty())?;
    let mut parts = path.components().filter(|part| *part != Component::CurDir).peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(Errno::XDEV) };
        let flags = if parts.peek().is_some() { PLACE | OFlags::DIRECTORY } else { flags };
        let opened = open_part(at.as_fd(), name, flags)?;
        if let Some(mount) = mount
            && mount_of(opened.as_fd())? != mount
        {
            return Err(Errno::XDEV);
        }
        if parts.peek().is_none() {
            return Ok(opened);
        }
        at = opened;
    }
    openat(&at, ".", flags, Mode::empty())
}

fn open_part(at: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    match openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
        // A link that is opened as a directory fails like a file.
        Err(Errno::NOTDIR) if is_link(statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode) => {
            Err(Errno::LOOP)
        }
        // `O_PATH` opens the link itself.
        Ok(opened) if flags.contains(OFlags::PATH) && is_link(fstat(&opened)?.st_mode) => {
            Err(Errno::LOOP)
        }
        opened => opened,
    }
}

fn is_link(mode: rustix::fs::RawMode) -> bool {
    FileType::from_raw_mode(mode) == FileType::Symlink
}

/// Returns the id of the mount that a file lies on.
///
/// *Errors*: the OS error; `NOSYS` before Linux 5.8.
fn mount_of(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    match stat.stx_mask & StatxFlags::MNT_ID.bits() {
        0 => Err(Errno::NOSYS),
        _ => Ok(stat.stx_mnt_id),
    }
}

/// Does what [`open_real`] does, one component at a time. Refuses every link of `/proc`, because it
/// cannot tell the magic ones.
fn follow(path: &Path) -> Result<OwnedFd, Errno> {
    let mut at = openat(CWD, ".", PLACE | OFlags::DIRECTORY, Mode::empty())?;
    let mut rest = reversed(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        let next = openat(&at, &*part, PLACE, Mode::empty())?;
        if !is_link(fstat(&next)?.st_mode) {
            at = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS || fstatfs(&next)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
            return Err(Errno::LOOP);
        }
        let target = readlinkat(&next, c"", Vec::new())?;
        rest.extend(reversed(Path::new(&OsString::from_vec(target.into_bytes()))));
    }
    Ok(at)
}

/// Returns the components of a path, the last one first.
fn reversed(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::process::path_of;

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("in/d")).unwrap();
        std::fs::write(top.join("in/d/f"), "").unwrap();
        std::fs::write(top.join("out"), "").unwrap();
        symlink("d", top.join("in/link")).unwrap();
        symlink("d/f", top.join("in/file_link")).unwrap();
        symlink("../out", top.join("in/leaves")).unwrap();
        symlink("/proc/self/root", top.join("in/magic")).unwrap();
        symlink("circle", top.join("in/circle")).unwrap();
        (temp, top)
    }

    // proves FS-2, UNIT-4
    #[test]
    fn without_openat2_a_walk_opens_the_same_files_and_refuses_every_link() {
        let (_temp, top) = tree();
        let root = std::fs::File::open(top.join("in")).unwrap();
        let file = OFlags::RDONLY | OFlags::CLOEXEC;
        let how = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        for (path, found) in [("d/f", "in/d/f"), ("./d/./f", "in/d/f"), (".", "in"), ("d", "in/d")]
        {
            for flags in [file, PLACE] {
                let walked = walk(root.as_fd(), Path::new(path), flags, how).unwrap();
                let opened = open_beneath(&root, Path::new(path), flags, how).unwrap();
                assert_eq!(path_of(walked).unwrap(), top.join(found), "{path}");
                assert_eq!(path_of(opened).unwrap(), top.join(found), "{path}");
            }
        }
        let refused = [
            ("link/f", Errno::LOOP),
            ("link", Errno::LOOP),
            ("file_link", Errno::LOOP),
            ("leaves", Errno::LOOP),
            ("magic/etc", Errno::LOOP),
            ("circle", Errno::LOOP),
            ("../out", Errno::XDEV),
            ("d/../../out", Errno::XDEV),
            ("/etc/hostname", Errno::XDEV),
            ("missing", Errno::NOENT),
            ("d/f/x", Errno::NOTDIR),
        ];
        for (path, errno) in refused {
            for flags in [file, PLACE, file | OFlags::DIRECTORY] {
                let walked = walk(root.as_fd(), Path::new(path), flags, how);
                assert_eq!(walked.unwrap_err(), errno, "{path}");
            }
        }
        let proc = open_part(std::fs::File::open("/").unwrap().as_fd(), "proc".as_ref(), PLACE);
        let top = std::fs::File::open("/").unwrap();
        assert!(proc.is_ok());
        let other = walk(top.as_fd(), Path::new("proc/version"), file, how);
        assert_eq!(other.unwrap_err(), Errno::XDEV);
    }

    // proves FS-2
    #[test]
    fn without_openat2_a_path_resolves_to_the_same_file() {
        let (_temp, top) = tree();
        for path in ["in/link/f", "in/file_link", "in/leaves", "in/link/../d/f", "in/d/f/x", "in/x"]
        {
            let path = top.join(path);
            let of = |opened: Result<OwnedFd, Errno>| opened.map(|fd| path_of(fd).unwrap());
            assert_eq!(of(follow(&path)), of(open_real(&path)), "{}", path.display());
        }
        for path in ["in/magic/etc", "in/circle"] {
            assert_eq!(follow(&top.join(path)).unwrap_err(), Errno::LOOP, "{path}");
        }
        for path in ["/proc/self/cwd", "/proc/self/root/etc"] {
            assert_eq!(follow(Path::new(path)).unwrap_err(), Errno::LOOP, "{path}");
        }
    }
}
