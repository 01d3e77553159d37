//! Walks a file tree with several threads and never follows a link.
//!
//! Each directory is opened beneath the root of the walk, and each file from the descriptor of its
//! directory, so that a path that is replaced meanwhile cannot lead elsewhere. Ignore files
//! (`.gitignore`) are untrusted: only plain files of a limited size are read.
//!
//! The walker of the `ignore` crate opens each entry by its path, and it opens whatever is at
//! `.gitignore`, even a FIFO or a link to an endless device. We use only the matcher of the crate.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat};
use rustix::io::Errno;

use super::files::Opened;
use crate::gate::{Access, PathRules};
use crate::process::{open_beneath, open_without_links};

/// Maximum bytes of one ignore file; its compiled form takes about forty times as much.
const IGNORE_BYTES: usize = 64 << 10;

/// Maximum bytes of all ignore files that are in memory at once.
const IGNORES_BYTES: usize = 512 << 10;

/// Maximum levels of directories.
const DEEPEST: usize = 200;

/// Maximum threads of one walk.
const THREADS: usize = 4;

/// Whether a walk goes on after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    Stop,
}

/// An entry of a directory.
pub(super) struct Entry<'a> {
    /// The path below the root of the walk.
    pub(super) relative: &'a Path,
    pub(super) kind: FileType,
    directory: BorrowedFd<'a>,
    /// Device and inode of each path that the rules close.
    closed: &'a [(u64, u64)],
}

impl Entry<'_> {
    /// Opens the entry for reading; `None` if it no longer exists, is not a plain file, or is a
    /// hard link to a closed file.
    ///
    /// *Errors*: it cannot be opened.
    pub(super) fn open(&self) -> io::Result<Option<File>> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Some(name) = self.relative.file_name() else { return Ok(None) };
        let file = match openat(self.directory, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            // A link replaced the file, or the file was removed.
            Err(Errno::LOOP | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let meta = file.metadata()?;
        let is_open = meta.is_file() && !self.closed.contains(&(meta.dev(), meta.ino()));
        Ok(is_open.then_some(file))
    }
}

/// The settings of a walk.
pub(super) struct Walk<'a> {
    pub(super) rules: &'a PathRules,
    pub(super) root: &'a Opened,
    /// Whether to apply `.gitignore` files and to skip `.git`.
    pub(super) ignores: bool,
    /// Maximum levels of entries; 1 visits only the entries of the root.
    pub(super) depth: usize,
    /// Whether to visit the entries of an unchanged tree in the same order each time, which is
    /// slower.
    pub(super) is_steady: bool,
    /// Returns whether the walk must end. The walk calls it before each entry, ignored ones
    /// included.
    pub(super) is_over: &'a (dyn Fn() -> bool + Sync),
}

/// The ignore rules of a directory and of those above it.
struct Ignores {
    own: Gitignore,
    above: Option<Arc<Ignores>>,
    bytes: usize,
    budget: Arc<WalkTotals>,
}

impl Drop for Ignores {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Counters of a walk: the bytes of ignore files in memory, and what the walk left out.
#[derive(Default)]
struct WalkTotals {
    bytes: AtomicUsize,
    ignore_files: AtomicUsize,
    unreadable: AtomicUsize,
}

/// How many files and directories a walk could not take into account.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeftOut {
    /// Ignore files that were not applied, because they exceeded [`IGNORE_BYTES`] or
    /// [`IGNORES_BYTES`].
    pub(super) ignore_files: usize,
    /// Directories that cannot be read.
    pub(super) unreadable: usize,
}

impl LeftOut {
    /// Returns lines for the model, each ending with LF; empty if the walk was complete.
    pub(super) fn note(self) -> String {
        let mut note = String::new();
        if self.ignore_files > 0 {
            note += &format!("[.gitignore files not applied (too large): {}]\n", self.ignore_files);
        }
        if self.unreadable > 0 {
            note += &format!("[directories that cannot be read: {}]\n", self.unreadable);
        }
        note
    }
}

impl Ignores {
    fn ignore(mut self: &Arc<Self>, path: &Path, is_dir: bool) -> bool {
        loop {
            let matched = self.own.matched(path, is_dir);
            match (&self.above, matched.is_none()) {
                (Some(above), true) => self = above,
                _ => return matched.is_ignore(),
            }
        }
    }
}

/// A directory in the queue.
struct Waiting {
    relative: PathBuf,
    depth: usize,
    ignores: Option<Arc<Ignores>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    at_work: usize,
    stopped: bool,
}

impl Walk<'_> {
    /// Calls `visit` for each entry that is neither ignored nor closed. Unless the walk is steady,
    /// several threads call `visit`, in no particular order. Returns what could not be read or
    /// applied.
    pub(super) fn run(&self, visit: &(dyn Fn(&Entry<'_>) -> Next + Sync)) -> LeftOut {
        let budget = Arc::new(WalkTotals::default());
        let closed: Vec<(u64, u64)> = self
            .rules
            .denied
            .iter()
            .chain(&self.rules.own)
            .filter_map(|path| std::fs::metadata(path).ok())
            .map(|meta| (meta.dev(), meta.ino()))
            .collect();
        let first =
            Waiting { relative: PathBuf::new(), depth: 1, ignores: self.ignores_above(&budget) };
        let queue = Mutex::new(Queue { waiting: vec![first], ..Queue::default() });
        let changed = Condvar::new();
        let threads = if self.is_steady {
            1
        } else {
            std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| self.take(&queue, &changed, &closed, &budget, visit));
            }
            self.take(&queue, &changed, &closed, &budget, visit);
        });
        LeftOut {
            ignore_files: budget.ignore_files.load(Ordering::Relaxed),
            unreadable: budget.unreadable.load(Ordering::Relaxed),
        }
    }

    /// Processes directories until none is left or the walk stops.
    fn take(
        &self,
        queue: &Mutex<Queue>,
        changed: &Condvar,
        closed: &[(u64, u64)],
        budget: &Arc<WalkTotals>,
        visit: &(dyn Fn(&Entry<'_>) -> Next + Sync),
    ) {
        let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = lock();
        loop {
            if state.stopped || (state.waiting.is_empty() && state.at_work == 0) {
                changed.notify_all();
                return;
            }
            let Some(directory) = state.waiting.pop() else {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.at_work += 1;
            drop(state);
            let (found, next) = self.directory(&directory, closed, budget, visit);
            state = lock();
            state.at_work -= 1;
            state.waiting.extend(found);
            state.stopped |= next == Next::Stop;
            changed.notify_all();
        }
    }

    /// Visits the entries of one directory. Returns the subdirectories to walk, and whether the
    /// walk goes on.
    fn directory(
        &self,
        waiting: &Waiting,
        closed: &[(u64, u64)],
        budget: &Arc<WalkTotals>,
        visit: &(dyn Fn(&Entry<'_>) -> Next + Sync),
    ) -> (Vec<Waiting>, Next) {
        let mut found = Vec::new();
        let Some(fd) = self.open(&waiting.relative) else {
            budget.unreadable.fetch_add(1, Ordering::Relaxed);
            return (found, Next::GoOn);
        };
        let ignores = if self.ignores {
            let path = self.root.path.join(&waiting.relative);
            ignores_of(fd.as_fd(), &path, waiting.ignores.clone(), budget)
        } else {
            None
        };
        let Ok(entries) = Dir::read_from(&fd) else { return (found, Next::GoOn) };
        for entry in entries {
            if (self.is_over)() {
                return (Vec::new(), Next::Stop);
            }
            let Ok(entry) = entry else { break };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if matches!(name.as_bytes(), b"." | b"..") || (self.ignores && name == ".git") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => kind_of(fd.as_fd(), name),
                known => known,
            };
            let relative = waiting.relative.join(name);
            let path = self.root.path.join(&relative);
            let is_dir = kind == FileType::Directory;
            if ignores.as_ref().is_some_and(|ignores| ignores.ignore(&path, is_dir))
                || self.rules.judge(&path, Access::Read).is_err()
            {
                continue;
            }
            let shown = Entry { relative: &relative, kind, directory: fd.as_fd(), closed };
            if visit(&shown) == Next::Stop {
                return (Vec::new(), Next::Stop);
            }
            if is_dir && waiting.depth < self.depth.min(DEEPEST) {
                let ignores = ignores.clone();
                found.push(Waiting { relative, depth: waiting.depth + 1, ignores });
            }
        }
        (found, Next::GoOn)
    }

    fn open(&self, relative: &Path) -> Option<OwnedFd> {
        let path = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open_beneath(&self.root.file, path, flags, ResolveFlags::NO_SYMLINKS).ok()
    }

    /// Returns the ignore rules of the allowed directories above the root of the walk.
    fn ignores_above(&self, budget: &Arc<WalkTotals>) -> Option<Arc<Ignores>> {
        // The directories above a fetched tree were not fetched.
        let is_here = self.root.tree.is_none();
        let top = self.rules.root_of(&self.root.path).filter(|_| self.ignores && is_here)?;
        let mut above: Vec<&Path> =
            self.root.path.ancestors().skip(1).take_while(|path| path.starts_with(top)).collect();
        above.reverse();
        let mut ignores = None;
        for path in above {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = open_without_links(path, flags).ok()?;
            ignores = ignores_of(fd.as_fd(), path, ignores, budget);
        }
        ignores
    }
}

fn kind_of(directory: BorrowedFd<'_>, name: &OsStr) -> FileType {
    rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

/// Returns the ignore rules that apply in a directory.
fn ignores_of(
    directory: BorrowedFd<'_>,
    path: &Path,
    above: Option<Arc<Ignores>>,
    budget: &Arc<WalkTotals>,
) -> Option<Arc<Ignores>> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(fd) = openat(directory, ".gitignore", flags, Mode::empty()) else { return above };
    let file = File::from(fd);
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return above;
    }
    let mut text = Vec::new();
    if file.take(IGNORE_BYTES as u64 + 1).read_to_end(&mut text).is_err() {
        return above;
    }
    let bytes = text.len();
    let before = budget.bytes.fetch_add(bytes, Ordering::Relaxed);
    if bytes > IGNORE_BYTES || before + bytes > IGNORES_BYTES {
        budget.bytes.fetch_sub(bytes, Ordering::Relaxed);
        budget.ignore_files.fetch_add(1, Ordering::Relaxed);
        return above;
    }
    let budget = budget.clone();
    let mut builder = GitignoreBuilder::new(path);
    for line in String::from_utf8_lossy(&text).lines() {
        // An invalid pattern has no effect.
        let _ = builder.add_line(None, line.trim_start_matches('\u{feff}'));
    }
    // If the patterns cannot be compiled, none of them has an effect.
    let own = builder.build().unwrap_or_else(|_| Gitignore::empty());
    Some(Arc::new(Ignores { own, above, bytes, budget }))
}
