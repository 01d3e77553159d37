//! The place of a file that a tool writes, and the replacement of the whole file there.
//!
//! [`super::files`] opens and checks the directory. This module writes the content to an unnamed
//! file, links the complete file under a hidden name, and renames it over the old file. If our
//! process is killed meanwhile, it leaves nothing, or a hidden file. A write to the same directory
//! removes a hidden file that is more than an hour old.
//!
//! *Source*: `open(2)`, O_TMPFILE; threat model, FS-6.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, fchown, fsync, linkat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::file_error::failed;
use super::remote_files::RemoteFiles;
use crate::domain::{CallError, ErrorKind};
use crate::gate::shown;

/// The prefix of the hidden names; 16 hexadecimal digits follow.
const HIDDEN: &str = ".dutyd-";

/// The age in seconds above which a hidden file counts as abandoned.
const STALE_SECONDS: i64 = 3600;

/// Maximum number of directory entries that one search for abandoned files examines.
const LOOKED_AT: usize = 10_000;

/// The place of a file that will be written. On this host, that is a directory that was opened and
/// checked, and a name in it.
pub(crate) struct Place<'a> {
    /// The path of the file, which may not exist yet.
    pub(crate) path: PathBuf,
    pub(super) at: At<'a>,
}

pub(super) enum At<'a> {
    /// `old` holds the mode (without set-id bits), the user and the group of the existing file;
    /// `None` if no file exists.
    Here {
        directory: OwnedFd,
        name: OsString,
        old: Option<(Mode, u32, u32)>,
    },
    Elsewhere {
        files: RemoteFiles<'a>,
        is_taken: bool,
    },
}

impl Place<'_> {
    /// Returns whether the file exists already.
    #[must_use]
    pub(crate) fn is_taken(&self) -> bool {
        match &self.at {
            At::Here { old, .. } => old.is_some(),
            At::Elsewhere { is_taken, .. } => *is_taken,
        }
    }

    /// Writes the whole content to a new file and renames that over the old one. Keeps the mode
    /// without the set-id bits and, where permitted, the owner. Even after an error, the file is
    /// never incomplete.
    ///
    /// *Errors*: `io`; `not_found` if the directory was removed; on a remote target also `denied`
    /// and `interrupted`.
    pub(crate) fn write(&self, content: &[u8]) -> Result<(), CallError> {
        let (directory, name, old) = match &self.at {
            At::Here { directory, name, old } => (directory, name, *old),
            At::Elsewhere { files, .. } => return files.write(&self.path, content),
        };
        let hidden = format!("{HIDDEN}{:016x}", fastrand::u64(..));
        let done = write_beside(directory, &hidden, old, content).and_then(|file| {
            renameat(directory, hidden.as_str(), directory, &**name)?;
            fsync(directory)?;
            Ok(file)
        });
        match done {
            Ok(file) => {
                sweep(directory, &file);
                Ok(())
            }
            Err(error) => {
                let _ = unlinkat(directory, hidden.as_str(), AtFlags::empty());
                Err(failed(&shown(self.path.as_os_str()), &error))
            }
        }
    }

    /// Removes the file, if there is one.
    ///
    /// *Errors*: `io`; on a remote target also `denied` and `interrupted`.
    pub(crate) fn remove_if_there(&self) -> Result<(), CallError> {
        match self.remove() {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes the file.
    ///
    /// *Errors*: `not_found`, `io`; on a remote target also `denied` and `interrupted`.
    pub(crate) fn remove(&self) -> Result<(), CallError> {
        let (directory, name) = match &self.at {
            At::Here { directory, name, .. } => (directory, name),
            At::Elsewhere { files, .. } => return files.remove(&self.path),
        };
        unlinkat(directory, &**name, AtFlags::empty())
            .and_then(|()| fsync(directory))
            .map_err(|errno| failed(&shown(self.path.as_os_str()), &errno.into()))
    }
}

/// Writes the content to a file with the hidden name. Where the file system supports unnamed files,
/// the file gets that name only when it is complete.
fn write_beside(
    directory: &OwnedFd,
    hidden: &str,
    old: Option<(Mode, u32, u32)>,
    content: &[u8],
) -> io::Result<File> {
    if let Some(file) = unnamed(directory, old)? {
        let file = filled(file, old, content)?;
        // Link through /proc: AT_EMPTY_PATH needs a capability.
        let by_fd = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, by_fd, directory, hidden, AtFlags::SYMLINK_FOLLOW)?;
        return Ok(file);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    filled(File::from(openat(directory, hidden, flags, mode_of(old))?), old, content)
}

/// Creates an unnamed file; `None` if the file system does not support it.
fn unnamed(directory: &OwnedFd, old: Option<(Mode, u32, u32)>) -> io::Result<Option<File>> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match openat(directory, ".", flags, mode_of(old)) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the mode of a new file. A file that replaces another one is private until it gets the
/// old mode.
fn mode_of(old: Option<(Mode, u32, u32)>) -> Mode {
    Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 })
}

fn filled(mut file: File, old: Option<(Mode, u32, u32)>, content: &[u8]) -> io::Result<File> {
    file.write_all(content)?;
    if let Some((mode, uid, gid)) = old {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        // Only root can change the owner. Otherwise another user's file becomes ours, as with any
        // editor, but it keeps a group of which we are a member.
        if fchown(&file, Some(uid), Some(gid)).is_err() {
            let _ = fchown(&file, None, Some(gid));
        }
        fchmod(&file, mode)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Removes the hidden files that killed processes left in a directory more than an hour ago.
/// `written` was just written, so its modification time serves as the current time of the file
/// system.
fn sweep(directory: &OwnedFd, written: &File) {
    let (Ok(written), Ok(entries)) = (written.metadata(), Dir::read_from(directory)) else {
        return;
    };
    for entry in entries.take(LOOKED_AT).map_while(Result::ok) {
        let name = entry.file_name();
        if !is_hidden(name.to_bytes()) {
            continue;
        }
        let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if is_file && written.mtime().saturating_sub(stat.st_mtime) > STALE_SECONDS {
            let _ = unlinkat(directory, name, AtFlags::empty());
        }
    }
}

/// Returns whether a name has the form that [`Place::write`] generates.
fn is_hidden(name: &[u8]) -> bool {
    let digits = name.strip_prefix(HIDDEN.as_bytes()).unwrap_or_default();
    digits.len() == 16 && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn directory(path: &Path) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty()).unwrap()
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(path).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    }

    // proves FS-6
    #[test]
    fn a_file_has_no_name_until_it_is_complete() {
        let temp = tempfile::tempdir().unwrap();
        let fd = directory(temp.path());
        let Some(file) = unnamed(&fd, None).unwrap() else {
            println!("skipped: the file system does not support unnamed files");
            return;
        };
        let file = filled(file, None, b"whole").unwrap();
        assert_eq!(names(temp.path()), [""; 0], "a kill at this point must leave nothing");
        assert_eq!(file.metadata().unwrap().len(), 5);
        write_beside(&fd, ".hidden", None, b"whole").unwrap();
        assert_eq!(std::fs::read(temp.path().join(".hidden")).unwrap(), b"whole");
    }

    #[test]
    fn a_file_keeps_its_mode_and_its_group_where_the_owner_cannot_stay() {
        use std::os::unix::fs::PermissionsExt as _;
        let own = nix::unistd::getegid();
        let group = if nix::unistd::geteuid().is_root() {
            Some(4711)
        } else {
            let groups = nix::unistd::getgroups().unwrap();
            groups.into_iter().find(|group| *group != own).map(nix::unistd::Gid::as_raw)
        };
        let Some(group) = group else {
            println!("skipped: this user is in one group only");
            return;
        };
        let temp = tempfile::tempdir().unwrap();
        let old = Some((Mode::from_raw_mode(0o640), 0, group));
        let file = write_beside(&directory(temp.path()), "file", old, b"x").unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.gid(), meta.permissions().mode() & 0o777), (group, 0o640));
    }

    // proves FS-6
    #[test]
    fn what_a_killed_process_left_is_removed_an_hour_later() {
        let temp = tempfile::tempdir().unwrap();
        let old = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (name, is_old) in [
            (".dutyd-0123456789abcdef", true),
            (".dutyd-0123456789abcdee", false),
            (".dutyd-0123456789abcdeg", true),
            (".dutyd-0123456789abcde", true),
            (".dutyd-notes", true),
            ("dutyd-0123456789abcdef", true),
        ] {
            let file = File::create_new(temp.path().join(name)).unwrap();
            if is_old {
                file.set_modified(old).unwrap();
            }
        }
        std::os::unix::fs::symlink("gone", temp.path().join(".dutyd-00000000000000aa")).unwrap();
        let before = names(temp.path());
        let at = At::Here { directory: directory(temp.path()), name: "new".into(), old: None };
        Place { path: temp.path().join("new"), at }.write(b"x").unwrap();
        let mut expected: Vec<String> =
            before.into_iter().filter(|name| name != ".dutyd-0123456789abcdef").collect();
        expected.push("new".to_owned());
        assert_eq!(names(temp.path()), expected);
    }
}
