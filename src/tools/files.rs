//! The files that a run's tools may open: each path is judged as it is named, opened beneath an allowed tree in one step, and judged again as
//! what was opened. What was checked is what is used.
//!
//! *Source*: `openat2(2)`, RESOLVE_BENEATH; `design/gate.md`, "Paths"; threat model, FS-1 to FS-6.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, fchmod, fchown, fsync, mkdirat, openat, openat2,
    renameat, unlinkat,
};
use rustix::io::Errno;

use crate::domain::{CallError, ErrorKind};
use crate::gate::{Access, PathRefusal, PathRules, shown};

/// Bytes of a file that is changed: more would not fit into a model's view many times over.
const LARGEST_TEXT: u64 = 16 << 20;

/// File systems that are the kernel speaking: `/proc` and `/sys`.
const KERNEL_FILES: &[rustix::fs::FsWord] = &[0x9fa0, 0x6265_6572];

/// The files of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    rules: &'a PathRules,
}

/// A file or directory that was opened and judged.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Open for reading.
    pub(crate) file: File,
    /// Where it really lies.
    pub(crate) path: PathBuf,
    /// Whether it is a directory.
    pub(crate) is_dir: bool,
}

/// Where a file is to be written: a directory that was opened and judged, and a last name in it.
#[derive(Debug)]
pub(crate) struct Place {
    directory: OwnedFd,
    name: std::ffi::OsString,
    /// Where the file lies or will lie.
    pub(crate) path: PathBuf,
    old: Option<(Mode, u32, u32)>,
}

impl<'a> Files<'a> {
    /// Returns the files that `rules` allow.
    #[must_use]
    pub(crate) fn new(rules: &'a PathRules) -> Self {
        Self { rules }
    }

    /// Opens a file or directory for reading.
    ///
    /// *Errors*: `denied`, `not_found`, `io`. Never waits: what is neither a file nor a directory is refused.
    pub(crate) fn open(&self, text: &str) -> Result<Opened, CallError> {
        let path = self.rules.absolute(text).map_err(refused)?;
        self.open_path(&path, Access::Read)
    }

    /// Opens a text file and returns it whole.
    ///
    /// *Errors*: as [`Self::open`]; it is larger than 16 MiB, or no UTF-8.
    pub(crate) fn text(&self, text: &str) -> Result<String, CallError> {
        let opened = self.open(text)?;
        let name = shown(opened.path.as_os_str());
        if opened.is_dir {
            return Err(CallError::new(ErrorKind::Io, format!("`{name}` is a directory.")));
        }
        let mut bytes = Vec::new();
        let limited = opened.file.take(LARGEST_TEXT + 1).read_to_end(&mut bytes);
        limited.map_err(|error| failed(&name, &error))?;
        if bytes.len() as u64 > LARGEST_TEXT {
            let message = format!("`{name}` is larger than 16 MiB and cannot be changed here.");
            return Err(CallError::new(ErrorKind::Io, message));
        }
        String::from_utf8(bytes).map_err(|_| {
            let message = format!("`{name}` is no UTF-8 text and cannot be changed here.");
            CallError::new(ErrorKind::Io, message)
        })
    }

    fn open_path(&self, path: &Path, access: Access) -> Result<Opened, CallError> {
        self.rules.judge(path, access).map_err(refused)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.beneath(path, flags, ResolveFlags::NO_MAGICLINKS) {
            // A link that leaves its tree by its spelling may still lead into an allowed one: its target is judged like any path.
            Err(Errno::XDEV | Errno::LOOP) => {
                let real = path
                    .canonicalize()
                    .map_err(|error| failed(&shown(path.as_os_str()), &error))?;
                self.rules.judge(&real, access).map_err(refused)?;
                self.beneath(&real, flags, ResolveFlags::NO_SYMLINKS)
            }
            other => other,
        };
        let file =
            File::from(file.map_err(|errno| failed(&shown(path.as_os_str()), &errno.into()))?);
        self.check(file, access)
    }

    /// Judges what was opened.
    fn check(&self, file: File, access: Access) -> Result<Opened, CallError> {
        let path = real_path(file.as_fd()).map_err(|error| failed("the file", &error))?;
        let name = shown(path.as_os_str());
        self.rules.judge(&path, access).map_err(refused)?;
        let meta = file.metadata().map_err(|error| failed(&name, &error))?;
        // Opened by us, they would tell of us (FS-4).
        let kind = rustix::fs::fstatfs(&file).map(|stat| stat.f_type);
        if kind.is_ok_and(|kind| KERNEL_FILES.contains(&kind)) {
            return Err(refused(PathRefusal::Denied(path)));
        }
        if !meta.is_file() && !meta.is_dir() {
            let message = format!("`{name}` is neither a file nor a directory.");
            return Err(CallError::new(ErrorKind::Denied, message));
        }
        // By identity too: another name of a closed file, and spellings that only the file system knows to be the same.
        let closed = || self.rules.denied.iter().chain(&self.rules.own);
        let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let own = (meta.dev(), meta.ino());
        let is_closed = closed().any(|path| id(path) == Some(own));
        let is_hidden = id(Path::new(crate::gate::HIDDEN)) == Some(own);
        if is_closed || is_hidden {
            return Err(refused(PathRefusal::Denied(path)));
        }
        Ok(Opened { file, path, is_dir: meta.is_dir() })
    }

    /// Opens a path below its allowed tree; the kernel sees to it that it does not leave it.
    fn beneath(&self, path: &Path, flags: OFlags, how: ResolveFlags) -> Result<OwnedFd, Errno> {
        let root = self.rules.root_of(path).ok_or(Errno::ACCESS)?;
        let rest = path.strip_prefix(root).unwrap_or(Path::new(""));
        let open_root = |path: &Path| {
            openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        let (root, rest) = match (rest.as_os_str().is_empty(), open_root(root)) {
            (false, root) => (root?, rest),
            (true, Ok(root)) => (root, Path::new(".")),
            // The allowed tree is a single file.
            (true, Err(Errno::NOTDIR)) => {
                let (Some(parent), Some(name)) = (root.parent(), root.file_name()) else {
                    return Err(Errno::NOTDIR);
                };
                (open_root(parent)?, Path::new(name))
            }
            (true, Err(errno)) => return Err(errno),
        };
        loop {
            let how = how | ResolveFlags::BENEATH;
            match openat2(&root, rest, flags | OFlags::CLOEXEC, Mode::empty(), how) {
                // A rename went on at the same time.
                Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {}
                other => return other,
            }
        }
    }

    /// Returns the place of a file that is to be written; the directories above it are made.
    ///
    /// *Errors*: `denied`, `io`; what is there is no file.
    pub(crate) fn place(&self, text: &str) -> Result<Place, CallError> {
        let named = self.rules.absolute(text).map_err(refused)?;
        self.rules.judge(&named, Access::Write).map_err(refused)?;
        let asked = named.clone();
        let (path, old) = match self.open_path(&named, Access::Write) {
            Ok(opened) if opened.is_dir => {
                let message = format!("`{}` is a directory.", shown(opened.path.as_os_str()));
                return Err(CallError::new(ErrorKind::Io, message));
            }
            Ok(opened) => {
                let meta = opened.file.metadata();
                let meta = meta.map_err(|error| failed(&shown(opened.path.as_os_str()), &error))?;
                let mode = Mode::from_raw_mode(meta.permissions().mode() & 0o7777);
                (opened.path, Some((mode, meta.uid(), meta.gid())))
            }
            Err(error) if error.kind == ErrorKind::NotFound => (named, None),
            Err(error) => return Err(error),
        };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused(PathRefusal::Outside(path)));
        };
        let name = name.to_owned();
        let directory = self.directory(parent)?;
        let real = real_path(directory.as_fd()).map_err(|error| failed("the directory", &error))?;
        let path = real.join(&name);
        self.rules.judge(&path, Access::Write).map_err(refused)?;
        if self.rules.is_system(&path) && !self.rules.is_system(&asked) {
            // The gate judged what was named.
            let name = shown(path.as_os_str());
            let message = format!("`{name}` belongs to the system: name it by its own path.");
            return Err(CallError::new(ErrorKind::Denied, message));
        }
        Ok(Place { directory, name, path, old })
    }

    /// Opens a directory; what is missing of it is made.
    fn directory(&self, path: &Path) -> Result<OwnedFd, CallError> {
        let fail = |errno: Errno| failed(&shown(path.as_os_str()), &errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.beneath(path, flags, ResolveFlags::NO_MAGICLINKS) {
            Ok(directory) => return Ok(directory),
            Err(Errno::NOENT) => {}
            Err(Errno::XDEV | Errno::LOOP) => {
                let real = path.canonicalize();
                let real = real.map_err(|error| failed(&shown(path.as_os_str()), &error))?;
                self.rules.judge(&real, Access::Write).map_err(refused)?;
                return self.beneath(&real, flags, ResolveFlags::NO_SYMLINKS).map_err(fail);
            }
            Err(errno) => return Err(fail(errno)),
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(fail(Errno::NOENT));
        };
        if self.rules.root_of(parent).is_none() {
            return Err(fail(Errno::NOENT));
        }
        let above = self.directory(parent)?;
        match mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&above, name, flags, Mode::empty()).map_err(fail)
    }
}

impl Place {
    /// Tells whether there is a file already.
    #[must_use]
    pub(crate) fn is_taken(&self) -> bool {
        self.old.is_some()
    }

    /// Writes the whole content beside the file and puts it in its place; mode and owner are kept. On any error the old file is whole.
    ///
    /// *Errors*: `io`.
    pub(crate) fn write(&self, content: &[u8]) -> Result<(), CallError> {
        let temporary = format!(".dutyd-{:016x}", fastrand::u64(..));
        let written = self.write_beside(OsStr::new(&temporary), content);
        let done = written.and_then(|()| {
            renameat(&self.directory, temporary.as_str(), &self.directory, &*self.name)?;
            fsync(&self.directory)?;
            Ok(())
        });
        done.map_err(|error| {
            let _ = unlinkat(&self.directory, temporary.as_str(), AtFlags::empty());
            failed(&shown(self.path.as_os_str()), &error)
        })
    }

    fn write_beside(&self, temporary: &OsStr, content: &[u8]) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What replaces a file is private until it has that file's mode.
        let mode = Mode::from_raw_mode(if self.old.is_some() { 0o600 } else { 0o666 });
        let mut file = File::from(openat(&self.directory, temporary, flags, mode)?);
        file.write_all(content)?;
        if let Some((mode, uid, gid)) = self.old {
            let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
            // Only root can give a file away; another user's file becomes ours, as with any editor.
            let _ = fchown(&file, Some(uid), Some(gid));
            fchmod(&file, mode)?;
        }
        file.sync_all()
    }

    /// Removes the file, if there is one.
    ///
    /// *Errors*: `io`.
    pub(crate) fn remove_if_there(&self) -> Result<(), CallError> {
        match self.remove() {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes the file.
    ///
    /// *Errors*: `io`.
    pub(crate) fn remove(&self) -> Result<(), CallError> {
        unlinkat(&self.directory, &*self.name, AtFlags::empty())
            .and_then(|()| fsync(&self.directory))
            .map_err(|errno| failed(&shown(self.path.as_os_str()), &errno.into()))
    }
}

fn real_path(fd: impl AsFd) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// A refusal of the gate, for the model.
pub(super) fn refused(refusal: PathRefusal) -> CallError {
    let message = format!("Refused by the rule `{}`: {refusal}.", refusal.rule());
    CallError::new(ErrorKind::Denied, message)
}

pub(super) fn failed(name: &str, error: &io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            CallError::new(ErrorKind::NotFound, format!("`{name}` is not there."))
        }
        _ => CallError::new(ErrorKind::Io, format!("`{name}`: {error}.")),
    }
}

#[cfg(test)]
mod tests;
