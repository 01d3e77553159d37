//! Notices that the files of the configuration change.
//!
//! The kernel reports changes in the directories of the files. dutyd then waits until nothing has
//! changed for a moment and each writer has closed its file, and tells the supervisor, which reads
//! the files (CFG-2). [`load_stable`] loads them again if a file changed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::command::Command;
use crate::config::{Config, ConfigError, FileSet, Loaded, Report, is_fragment};
use crate::process::on_host;

/// How long nothing may change before the files are read.
const QUIET: Duration = Duration::from_millis(300);

/// The longest total wait for [`QUIET`]: a file that keeps changing must not delay the reload forever.
const LONGEST: Duration = Duration::from_secs(5);

/// The pause between two reads of the files.
const BETWEEN_READS: Duration = Duration::from_millis(10);

/// Maximum number of loads while the files keep changing.
const MAX_LOADS: usize = 20;

/// How long to wait before we try again to watch a directory.
const WATCH_AGAIN: Duration = Duration::from_mins(1);

/// The most directories below the configuration directory to watch.
const MAX_DIRECTORIES: usize = 256;

/// Levels below the configuration directory to watch.
const MAX_DEPTH: usize = 3;

/// Loads the configuration. Loads it again, at most [`MAX_LOADS`] times in all, if the files no
/// longer contain what was loaded. Blocks.
pub fn load_stable(load: impl Fn() -> Loaded) -> Loaded {
    for _ in 0..MAX_LOADS {
        let loaded = load();
        let Some(config) = &loaded.config else { return loaded };
        std::thread::sleep(BETWEEN_READS);
        if Files::of(&config.directory, config).read().is_of(config) {
            return loaded;
        }
    }
    let error = ConfigError::of_file(
        "",
        "the configuration files keep changing during the load; finish the writes, then run `dutyd reload`",
    );
    Loaded { config: None, report: Report::of_errors(vec![error]) }
}

/// Tells `commands` whenever a file of the configuration in `directory` changes. `config` holds the
/// configuration in effect.
pub fn watch_files(
    directory: PathBuf,
    mut config: watch::Receiver<Arc<Config>>,
    commands: mpsc::Sender<Command>,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let changes = Arc::new(Changes::default());
        let files = |config: &watch::Receiver<Arc<Config>>| Files::of(&directory, &config.borrow());
        let watcher = Arc::new(Mutex::new(Watcher::new(changes.clone())));
        let mut watched = files(&config);
        let (mut fingerprint, mut is_complete) =
            watched.clone().watch(watcher.clone(), changes.clone(), &commands).await;
        // A file may have changed after it was loaded and before it was watched.
        if !fingerprint.is_of(&config.borrow()) {
            changes.notice.notify_one();
        }
        loop {
            tokio::select! {
                () = changes.notice.notified() => {}
                in_effect = config.changed() => match in_effect {
                    // The new configuration may name other files.
                    Ok(()) if files(&config) == watched => continue,
                    Ok(()) => {}
                    Err(_) => return,
                },
                () = tokio::time::sleep(WATCH_AGAIN), if !is_complete => {}
                () = commands.closed() => return,
            }
            changes.settled().await;
            watched = files(&config);
            // A directory may be another one now, so watch it again before reading its files.
            let (current, complete) =
                watched.clone().watch(watcher.clone(), changes.clone(), &commands).await;
            if changes.written().is_some() {
                // The change has given notice.
                continue;
            }
            let match_config = current == fingerprint && current.is_of(&config.borrow());
            (fingerprint, is_complete) = (current, complete);
            if commands.send(Command::FilesChanged { match_config }).await.is_err() {
                return;
            }
        }
    })
}

/// What the kernel has reported.
#[derive(Default)]
struct Changes {
    /// Given after each change.
    notice: Notify,
    /// The files that a writer has changed and not closed yet.
    open: Mutex<BTreeSet<PathBuf>>,
}

impl Changes {
    fn open(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file that a writer has changed and not closed yet.
    fn written(&self) -> Option<PathBuf> {
        self.open().first().cloned()
    }

    /// Waits until nothing has changed for [`QUIET`] and each writer has closed its file.
    async fn settled(&self) {
        loop {
            let began = Instant::now();
            while began.elapsed() < LONGEST
                && tokio::time::timeout(QUIET, self.notice.notified()).await.is_ok()
            {}
            let Some(path) = self.written() else { return };
            if tokio::time::timeout(LONGEST, self.notice.notified()).await.is_err() {
                tracing::warn!(path = %path.display(), "the configuration is not loaded: a program that changed this file has not closed it");
                self.notice.notified().await;
            }
        }
    }

    /// Takes an event of the kernel. `is_file` tells whether the configuration may contain a path.
    fn take(&self, event: Event, is_file: impl Fn(&Path) -> bool) {
        let mut open = self.open();
        if event.need_rescan() {
            // The kernel has dropped events.
            open.clear();
        }
        for path in event.paths {
            match event.kind {
                EventKind::Modify(ModifyKind::Data(_)) if is_file(&path) => {
                    open.insert(path);
                }
                EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => {
                    open.remove(&path);
                }
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                    open.remove(&path);
                }
                _ => {}
            }
        }
        drop(open);
        self.notice.notify_one();
    }
}

/// The watches of the kernel. One watcher serves for the whole life of the daemon, so that no report
/// is lost between two of them.
struct Watcher {
    /// `Err` with the reason if the kernel does not create a watcher.
    inner: Result<RecommendedWatcher, String>,
    /// The files that the watches are for.
    files: Arc<Mutex<Files>>,
    watched: BTreeSet<PathBuf>,
}

impl Watcher {
    fn new(changes: Arc<Changes>) -> Self {
        let files = Arc::new(Mutex::new(Files::default()));
        let of_watcher = files.clone();
        let inner = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error may mean that a change was not reported.
            let event = event.unwrap_or_else(|_| Event::new(EventKind::Any));
            let files = of_watcher.lock().unwrap_or_else(PoisonError::into_inner);
            let is_ours = event.paths.is_empty() || event.paths.iter().any(|path| files.has(path));
            if is_change(event.kind) && is_ours {
                changes.take(event, |path| files.may_contain(path));
            }
        });
        Self { inner: inner.map_err(|error| error.to_string()), files, watched: BTreeSet::new() }
    }

    /// Watches the directories of `files`. A directory that was replaced gets a new watch.
    ///
    /// *Errors*: the directories that cannot be watched, and why, for people.
    fn watch(&mut self, files: &Files) -> Result<(), String> {
        files.clone_into(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner));
        let inner = match &mut self.inner {
            Ok(inner) => inner,
            Err(error) => return Err(error.clone()),
        };
        let directories = files.directories();
        for gone in self.watched.difference(&directories) {
            let _ = inner.unwatch(gone);
        }
        let mut failed = Vec::new();
        for directory in &directories {
            // If the directory is gone, the watch on the one above it reports when it returns. We
            // cannot load a file from a directory that we have no permission to read.
            if let Err(error) = inner.watch(directory, RecursiveMode::NonRecursive)
                && !is_missing(&error)
                && files.reads_from(directory)
            {
                failed.push(format!("{}: {error}", directory.display()));
            }
        }
        self.watched = directories;
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }
}

/// The files to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Files {
    /// The configuration directory.
    directory: PathBuf,
    /// Files that the configuration in effect was read from.
    named: BTreeSet<PathBuf>,
}

impl Files {
    /// Returns the files of `directory`, and those that `config` was read from.
    fn of(directory: &Path, config: &Config) -> Self {
        let named = config.files.files.keys().map(|name| config.files.directory.join(name));
        Self { directory: directory.to_path_buf(), named: named.collect() }
    }

    /// Watches the directories of the files. Returns the fingerprint of the files and whether every
    /// change will be noticed. If not, tells the supervisor why, for `status`.
    async fn watch(
        self,
        watcher: Arc<Mutex<Watcher>>,
        changes: Arc<Changes>,
        commands: &mpsc::Sender<Command>,
    ) -> (Fingerprint, bool) {
        let done = on_host(move || {
            let mut watcher = watcher.lock().unwrap_or_else(PoisonError::into_inner);
            let watched = watcher.watch(&self);
            changes.open().retain(|path| path.exists());
            (self.read(), watched)
        });
        let (fingerprint, watched) =
            done.await.unwrap_or_else(|error| (Fingerprint::default(), Err(error.to_string())));
        let why = watched.err().map(|error| {
            let why = format!("cannot watch the configuration files ({error}); run `dutyd reload` after each change");
            tracing::warn!(why);
            why
        });
        let is_complete = why.is_none();
        let _ = commands.send(Command::WatchFailure(why)).await;
        (fingerprint, is_complete)
    }

    /// Tells whether a change of this path may change the files.
    fn has(&self, path: &Path) -> bool {
        path.starts_with(&self.directory)
            || self.directory.starts_with(path)
            || self.named.iter().any(|named| named.starts_with(path))
    }

    /// Tells whether the configuration may be read from this path.
    fn may_contain(&self, path: &Path) -> bool {
        let is_listed = || {
            let parent = path.parent();
            let is_there = |name: &str| parent == Some(self.directory.join(name).as_path());
            let is_of_models = path.extension().is_some_and(|ending| ending == "json");
            let is_of_yaml =
                parent == Some(&self.directory) || is_there("jobs.d") || is_there("tools.d");
            is_fragment(path) && is_of_yaml || is_of_models && is_there("models.d")
        };
        self.named.contains(path) || is_listed()
    }

    /// Tells whether dutyd reads configuration files directly from this directory.
    fn reads_from(&self, directory: &Path) -> bool {
        let is_there = |name: &str| directory == self.directory.join(name);
        self.directory == directory
            || is_there("jobs.d")
            || is_there("tools.d")
            || is_there("models.d")
            || self.named.iter().any(|file| file.parent() == Some(directory))
    }

    /// Returns the directories to watch: those of the files, those below the configuration directory,
    /// and all above it, because one of these may be replaced too.
    fn directories(&self) -> BTreeSet<PathBuf> {
        let below = walkdir::WalkDir::new(&self.directory).max_depth(MAX_DEPTH).follow_links(true);
        let below = below.into_iter().filter_entry(|entry| entry.file_name() != ".git");
        let below = below.filter_map(Result::ok);
        let below = below.filter(|entry| entry.file_type().is_dir()).map(|entry| entry.into_path());
        let of_files = self.named.iter().filter_map(|file| file.parent()).map(Path::to_path_buf);
        let fixed = ["jobs.d", "tools.d", "models.d"].map(|name| self.directory.join(name));
        let above = self.directory.ancestors().filter(|path| path.is_dir());
        let above = above.map(Path::to_path_buf);
        below.take(MAX_DIRECTORIES).chain(of_files).chain(fixed).chain(above).collect()
    }

    /// Reads the files.
    fn read(&self) -> Fingerprint {
        let mut paths = self.named.clone();
        let listed = FileSet::of_directory(&self.directory);
        match &listed {
            Ok(set) => paths.extend(set.paths().map(Path::to_path_buf)),
            Err(error) => drop(paths.insert(PathBuf::from(&error.message))),
        }
        let read = |path: PathBuf| {
            let text = std::fs::read(&path).map(|text| Sha256::digest(text).to_vec());
            let meta = std::fs::metadata(&path).map(|meta| (meta.mode(), meta.uid(), meta.gid()));
            (path, text.map_err(|error| error.to_string()), meta.ok())
        };
        Fingerprint(paths.into_iter().map(read).collect())
    }
}

fn is_missing(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Tells whether an event may change what a file contains. Our own reads cause events that do not.
fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        EventKind::Any
        | EventKind::Create(_)
        | EventKind::Modify(_)
        | EventKind::Remove(_)
        | EventKind::Other => true,
    }
}

/// The digest, the mode and the owner of each file, by path.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fingerprint(Vec<FileFacts>);

impl Fingerprint {
    /// Tells whether the files are those that `config` was read from.
    fn is_of(&self, config: &Config) -> bool {
        let directory = &config.files.directory;
        let read = config.files.files.iter();
        let read: BTreeMap<PathBuf, Vec<u8>> = read
            .map(|(name, text)| (directory.join(name), Sha256::digest(text).to_vec()))
            .collect();
        let now = self.0.iter();
        let now: Option<BTreeMap<PathBuf, Vec<u8>>> = now
            .map(|(path, digest, _)| Some((path.clone(), digest.as_ref().ok()?.clone())))
            .collect();
        now.is_some_and(|now| now == read)
    }
}

type FileFacts = (PathBuf, Result<Vec<u8>, String>, Option<(u32, u32, u32)>);
