//! Opens the files of a run's tools. Each path is checked as it is named, opened beneath an allowed
//! tree in one step, and checked again through the opened descriptor, so that the file that we
//! check is the file that we use.
//!
//! *Source*: `openat2(2)`, RESOLVE_BENEATH; `docs/design/gate.md`, "Paths"; threat model, FS-1 to
//! FS-6.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, statat};
use rustix::io::Errno;

use tokio_util::sync::CancellationToken;

use super::ToolContext;
use super::file_error::{dangling_link, failed, refused};
use super::place::{At, Place};
use super::remote_files::{Contents, Found, RemoteFiles, Tree};
use crate::domain::{CallError, ErrorKind};
use crate::gate::{Access, PathRefusal, PathRules, names_directory, shown, unescaped};
use crate::process::{open_beneath, path_of, real_path};

/// Maximum bytes of a file that we edit, many times more than a model sees of a file.
const LARGEST_TEXT: u64 = 16 << 20;

/// Magic numbers of the file systems whose content the kernel generates: `/proc` and `/sys`.
const KERNEL_FILES: &[rustix::fs::FsWord] = &[0x9fa0, 0x6265_6572];

/// Access to the files of a run.
#[derive(Clone, Copy)]
pub(crate) struct Files<'a> {
    rules: &'a PathRules,
    /// The files on the target, if the tools run elsewhere.
    remote: Option<RemoteFiles<'a>>,
}

/// A file or directory that was opened and checked.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) is_dir: bool,
    /// The fetched copy, if this is a remote directory that will be walked.
    pub(super) tree: Option<Tree>,
}

impl<'a> Files<'a> {
    /// Returns the files of this host that `rules` allow.
    #[cfg(test)]
    pub(crate) fn new(rules: &'a PathRules) -> Self {
        Self { rules, remote: None }
    }

    /// Returns access to the files of a run. If its tools run on a remote target, each access
    /// blocks until the target answers.
    #[must_use]
    pub(crate) fn of(ctx: &'a ToolContext, cancel: &'a CancellationToken) -> Self {
        let remote = (!ctx.programs.execution.is_local()).then(|| RemoteFiles::new(ctx, cancel));
        Self { rules: &ctx.access.paths, remote }
    }

    /// Returns the remote files if `path` is one of them. Trees that a run may only read, such as
    /// its own outputs, are always on this host.
    fn elsewhere(&self, path: &Path) -> Option<RemoteFiles<'a>> {
        self.remote.filter(|_| !self.rules.readable.iter().any(|own| path.starts_with(own)))
    }

    /// Checks a path that a program on a remote target receives as an argument.
    ///
    /// *Errors*: as [`Self::open`].
    pub(super) fn judge_elsewhere(&self, text: &str, access: Access) -> Result<(), CallError> {
        let path = self.rules.absolute(text).map_err(refused)?;
        match self.elsewhere(&path) {
            Some(remote) => self.judged_elsewhere(remote, &path, access).map(drop),
            None => self.rules.judge(&path, access).map_err(refused),
        }
    }

    /// Opens a file, or a directory that will be walked. `depth`, `contents` and `leaves_out_git`
    /// only limit what is fetched from a remote target.
    ///
    /// *Errors*: as [`Self::open`].
    pub(super) fn open_tree(
        &self,
        text: &str,
        depth: usize,
        contents: Contents,
        leaves_out_git: bool,
    ) -> Result<Opened, CallError> {
        let opened = self.open(text)?;
        match self.elsewhere(&opened.path).filter(|_| opened.is_dir) {
            None => Ok(opened),
            Some(remote) => {
                let tree = remote.tree(&opened.path, depth, contents, leaves_out_git)?;
                let file = File::open(tree.directory.path());
                let file = file.map_err(|error| failed("the directory", &error))?;
                Ok(Opened { file, tree: Some(tree), ..opened })
            }
        }
    }

    /// Checks a path as it is named and as the target resolves it, and returns the resolved path.
    fn judged_elsewhere(
        &self,
        remote: RemoteFiles<'_>,
        path: &Path,
        access: Access,
    ) -> Result<PathBuf, CallError> {
        self.rules.judge(path, access).map_err(refused)?;
        let real = remote.real(path)?;
        remote.rules()?.judge(&real, access).map_err(refused)?;
        Ok(real)
    }

    /// Returns the path that `text` names. Each component is looked up literally first, then as a
    /// name in the form that [`shown`] prints (FS-9). If neither exists, the component stays
    /// literal.
    fn named(&self, text: &str) -> Result<PathBuf, CallError> {
        let path = self.rules.absolute(text).map_err(refused)?;
        if !text.contains('\\') {
            return Ok(path);
        }
        Ok(path.components().fold(PathBuf::new(), |found, part| {
            let literal = found.join(part);
            match unescaped(part.as_os_str()).map(|name| found.join(name)) {
                Some(other) if !self.has(&literal) && self.has(&other) => other,
                _ => literal,
            }
        }))
    }

    /// Returns whether a path exists in an allowed tree; a dangling link and a denied path count.
    fn has(&self, path: &Path) -> bool {
        let is_allowed = |path: &Path| self.rules.root_of(path).is_some();
        if let Some(remote) = self.elsewhere(path) {
            return is_allowed(path) && remote.has(path);
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let real = real_path(parent).map(|parent| parent.join(name));
        real.is_ok_and(|real| is_allowed(&real) && real.symlink_metadata().is_ok())
    }

    /// Opens a file or directory for reading.
    ///
    /// *Errors*: `denied`, `not_found`, `io`; on a remote target also `limit` (a file over 64 MiB)
    /// and `interrupted`. A FIFO or a device cannot block the call: everything but a file or a
    /// directory is refused.
    pub(crate) fn open(&self, text: &str) -> Result<Opened, CallError> {
        let opened = self.open_named(&self.named(text)?)?;
        if names_directory(text) && !opened.is_dir {
            let name = shown(opened.path.as_os_str());
            let message = format!("`{name}` is not a directory: remove the `/` at the end.");
            return Err(CallError::new(ErrorKind::Io, message));
        }
        Ok(opened)
    }

    fn open_named(&self, path: &Path) -> Result<Opened, CallError> {
        let Some(remote) = self.elsewhere(path) else {
            return self.open_path(path, Access::Read);
        };
        let path = self.judged_elsewhere(remote, path, Access::Read)?;
        let (file, is_dir) = match remote.open(&path)? {
            Found::File(file) => (file, false),
            // A placeholder: only `open_tree` reads a remote directory.
            Found::Directory => {
                (File::open("/dev/null").map_err(|e| failed("/dev/null", &e))?, true)
            }
        };
        Ok(Opened { file, path, is_dir, tree: None })
    }

    /// Reads a whole text file.
    ///
    /// *Errors*: as [`Self::open`]; `io` if it is a directory, larger than 16 MiB or not valid
    /// UTF-8.
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
            let message = format!("`{name}` is larger than 16 MiB and cannot be edited.");
            return Err(CallError::new(ErrorKind::Io, message));
        }
        String::from_utf8(bytes).map_err(|_| {
            let message = format!("`{name}` is not UTF-8 text and cannot be edited.");
            CallError::new(ErrorKind::Io, message)
        })
    }

    fn open_path(&self, path: &Path, access: Access) -> Result<Opened, CallError> {
        self.rules.judge(path, access).map_err(refused)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.beneath(path, flags, ResolveFlags::NO_MAGICLINKS) {
            // A link that leaves its tree can still lead into an allowed tree: check its target
            // like any other path.
            Err(Errno::XDEV | Errno::LOOP) => {
                let real = self.real(path, access)?;
                self.beneath(&real, flags, ResolveFlags::NO_SYMLINKS)
            }
            other => other,
        };
        let file =
            File::from(file.map_err(|errno| failed(&shown(path.as_os_str()), &errno.into()))?);
        self.check(file, access)
    }

    /// Resolves a path and checks the result.
    ///
    /// *Errors*: `denied` for magic links of the kernel (FS-2) and for circular links; otherwise as
    /// [`Self::open`].
    fn real(&self, path: &Path, access: Access) -> Result<PathBuf, CallError> {
        let name = || shown(path.as_os_str());
        let real = real_path(path).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => {
                let message =
                    format!("`{}` leads through a link in /proc or a circular link.", name());
                CallError::new(ErrorKind::Denied, message)
            }
            _ => failed(&name(), &error),
        })?;
        self.rules.judge(&real, access).map_err(refused)?;
        Ok(real)
    }

    /// Checks a file or directory after it was opened.
    fn check(&self, file: File, access: Access) -> Result<Opened, CallError> {
        let path = path_of(&file).map_err(|error| failed("the file", &error))?;
        let name = shown(path.as_os_str());
        self.rules.judge(&path, access).map_err(refused)?;
        let meta = file.metadata().map_err(|error| failed(&name, &error))?;
        // Refuse files of `/proc` and `/sys`: some would show our own process, because we opened
        // them (FS-4).
        let kind = rustix::fs::fstatfs(&file).map(|stat| stat.f_type);
        if kind.is_ok_and(|kind| KERNEL_FILES.contains(&kind)) {
            return Err(refused(PathRefusal::Denied(path)));
        }
        if !meta.is_file() && !meta.is_dir() {
            let message = format!("`{name}` is neither a file nor a directory.");
            return Err(CallError::new(ErrorKind::Denied, message));
        }
        // Compare device and inode too: a denied file can have another name, or a spelling that
        // only the file system treats as equal.
        let closed = || self.rules.denied.iter().chain(&self.rules.own);
        let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let own = (meta.dev(), meta.ino());
        let is_closed = closed().any(|path| id(path) == Some(own));
        let is_hidden = id(Path::new(crate::gate::HIDDEN)) == Some(own);
        if is_closed || is_hidden {
            return Err(refused(PathRefusal::Denied(path)));
        }
        Ok(Opened { file, path, is_dir: meta.is_dir(), tree: None })
    }

    /// Opens a path beneath its allowed tree. The kernel rejects a path that leaves the tree.
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
            match open_beneath(&root, rest, flags, how) {
                // Without NONBLOCK, EAGAIN means a concurrent rename: try again.
                Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {}
                other => return other,
            }
        }
    }

    /// Returns the place of a file that will be written. On this host, creates the missing
    /// directories above it.
    ///
    /// *Errors*: `denied`, also for a dangling link; `io`, also if `text` names a directory;
    /// `not_found` if the allowed tree does not exist; on a remote target also `interrupted`.
    pub(crate) fn place(&self, text: &str) -> Result<Place<'a>, CallError> {
        let asked = self.rules.absolute(text).map_err(refused)?;
        let named = self.named(text)?;
        self.rules.judge(&named, Access::Write).map_err(refused)?;
        if names_directory(text) {
            let name = shown(named.as_os_str());
            let message = format!("`{name}/` is the name of a directory: use the name of a file.");
            return Err(CallError::new(ErrorKind::Io, message));
        }
        if let Some(files) = self.elsewhere(&named) {
            let path = self.judged_elsewhere(files, &named, Access::Write)?;
            self.same_system(&path, &asked)?;
            let is_taken = files.is_there(&path, &named)?;
            return Ok(Place { path, at: At::Elsewhere { files, is_taken } });
        }
        let (path, old) = match self.open_path(&named, Access::Write) {
            Ok(opened) if opened.is_dir => {
                let message = format!("`{}` is a directory.", shown(opened.path.as_os_str()));
                return Err(CallError::new(ErrorKind::Io, message));
            }
            Ok(opened) => {
                let meta = opened.file.metadata();
                let meta = meta.map_err(|error| failed(&shown(opened.path.as_os_str()), &error))?;
                // Drop the set-id bits: new content must not run with the rights of the file's
                // owner or group.
                let mode = Mode::from_raw_mode(meta.permissions().mode() & 0o777);
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
        let real = path_of(&directory).map_err(|error| failed("the directory", &error))?;
        let path = real.join(&name);
        self.rules.judge(&path, Access::Write).map_err(refused)?;
        refuse_link(&directory, &path)?;
        self.same_system(&path, &asked)?;
        Ok(Place { path, at: At::Here { directory, name, old } })
    }

    /// Refuses a path in a system tree if the path `asked` is not in one: a write to a system tree
    /// is an admin call, but the gate judged only `asked`.
    fn same_system(&self, path: &Path, asked: &Path) -> Result<(), CallError> {
        if self.rules.is_system(path) && !self.rules.is_system(asked) {
            let name = shown(path.as_os_str());
            let message = format!("`{name}` belongs to the system: call again with this path.");
            return Err(CallError::new(ErrorKind::Denied, message));
        }
        Ok(())
    }

    /// Opens a directory and creates the missing parts of its path.
    fn directory(&self, path: &Path) -> Result<OwnedFd, CallError> {
        let fail = |errno: Errno| failed(&shown(path.as_os_str()), &errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.beneath(path, flags, ResolveFlags::NO_MAGICLINKS) {
            Ok(directory) => return Ok(directory),
            Err(Errno::NOENT) => {}
            Err(Errno::XDEV | Errno::LOOP) => {
                let real = self.real(path, Access::Write)?;
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

/// Refuses to replace a link. A link to an existing file was resolved before, so this link is
/// dangling.
fn refuse_link(directory: &OwnedFd, path: &Path) -> Result<(), CallError> {
    let name = path.file_name().unwrap_or_default();
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
        return Err(CallError::new(ErrorKind::Denied, dangling_link(&shown(path.as_os_str()))));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
