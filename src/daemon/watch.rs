//! Reloads the configuration when its files change.
//!
//! The kernel reports changes in the directories of the files. dutyd then waits until nothing has
//! changed for a moment and each writer has closed its file, and reloads if two reads of the files
//! agree and differ from the last ones (CFG-2).

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::command::Command;
use crate::config::{Config, FileSet};

/// How long nothing may change before the files are read.
const QUIET: Duration = Duration::from_millis(300);

/// The longest total wait for [`QUIET`]: a file that keeps changing must not delay the reload forever.
const LONGEST: Duration = Duration::from_secs(5);

/// The pause between two reads of the files.
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// The most directories below the configuration directory to watch.
const MAX_DIRECTORIES: usize = 256;

/// Levels below the configuration directory to watch.
const MAX_DEPTH: usize = 3;

/// Sends a reload to `commands` whenever a file of the configuration in `directory` changes. `config`
/// holds the configuration in effect.
pub fn watch_files(
    directory: PathBuf,
    mut config: watch::Receiver<Arc<Config>>,
    commands: mpsc::Sender<Command>,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let changes = Arc::new(Changes::default());
        let files = |config: &watch::Receiver<Arc<Config>>| Files {
            directory: directory.clone(),
            named: named(&config.borrow()),
        };
        let mut watched = files(&config);
        let (mut _watcher, mut seen) = watched.clone().watch(changes.clone()).await;
        // A file may have changed after it was loaded and before it was watched.
        let mut is_valid = seen.is_of(&config.borrow());
        if !is_valid {
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
                () = commands.closed() => return,
            }
            changes.settled().await;
            watched = files(&config);
            // A directory may be another one now, so watch it again before reading its files.
            let (watcher, mut current) = watched.clone().watch(changes.clone()).await;
            _watcher = watcher;
            loop {
                tokio::time::sleep(BETWEEN_READS).await;
                let again = watched.clone().fingerprint().await;
                if std::mem::replace(&mut current, again) == current {
                    break;
                }
            }
            if changes.written().is_some() {
                // The change has given notice.
                continue;
            }
            // After an invalid load, reload in any case: the fingerprint may lack a file that could not be read.
            if current == seen && is_valid {
                continue;
            }
            seen = current;
            let (reply, state) = oneshot::channel();
            if commands.send(Command::Reload(reply)).await.is_err() {
                return;
            }
            is_valid = state.await.is_ok_and(|state| state.valid);
        }
    })
}

/// Returns the paths of the files that the configuration was read from.
fn named(config: &Config) -> BTreeSet<PathBuf> {
    config.files.files.keys().map(|name| config.files.directory.join(name)).collect()
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
        let mut open = self.open();
        open.retain(|path| path.exists());
        open.first().cloned()
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

/// The files to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    /// The configuration directory.
    directory: PathBuf,
    /// Files that the configuration in effect was read from.
    named: BTreeSet<PathBuf>,
}

impl Files {
    /// Watches the directories of the files; returns the watcher and the fingerprint of the files.
    async fn watch(self, changes: Arc<Changes>) -> (Option<RecommendedWatcher>, Fingerprint) {
        let watched = tokio::task::spawn_blocking(move || {
            let watcher = self.watcher(changes).inspect_err(|error| {
                tracing::warn!(%error, "failed to watch the configuration files; run `dutyd reload` after each change");
            });
            (watcher.ok(), self.read())
        });
        watched.await.unwrap_or_default()
    }

    async fn fingerprint(self) -> Fingerprint {
        tokio::task::spawn_blocking(move || self.read()).await.unwrap_or_default()
    }

    fn watcher(&self, changes: Arc<Changes>) -> notify::Result<RecommendedWatcher> {
        let (directory, parent) = (self.directory.clone(), self.parent());
        let named = self.named.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error may mean that a change was not reported.
            let event = event.unwrap_or_else(|_| Event::new(EventKind::Any));
            let of_parent = |path: &PathBuf| path.parent() == parent.as_deref();
            let ours = |path: &PathBuf| directory.starts_with(path) || !of_parent(path);
            let is_ours = event.paths.is_empty() || event.paths.iter().any(ours);
            if is_change(event.kind) && is_ours {
                changes.take(event, |path| {
                    named.contains(path) || path.extension().is_some_and(|end| end == "yaml")
                });
            }
        })?;
        for directory in self.directories() {
            // If the directory is gone, the watch on its parent reports when it returns.
            if let Err(error) = watcher.watch(&directory, RecursiveMode::NonRecursive)
                && !is_missing(&error)
            {
                return Err(error);
            }
        }
        Ok(watcher)
    }

    /// Returns the directory that contains the configuration directory.
    fn parent(&self) -> Option<PathBuf> {
        self.directory.ancestors().skip(1).find(|path| path.is_dir()).map(Path::to_path_buf)
    }

    fn directories(&self) -> BTreeSet<PathBuf> {
        let below = walkdir::WalkDir::new(&self.directory).max_depth(MAX_DEPTH).follow_links(true);
        let below = below.into_iter().filter_map(Result::ok);
        let below = below.filter(|entry| entry.file_type().is_dir()).map(|entry| entry.into_path());
        let of_files = self.named.iter().filter_map(|file| file.parent()).map(Path::to_path_buf);
        below.take(MAX_DIRECTORIES).chain(of_files).chain(self.parent()).collect()
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
