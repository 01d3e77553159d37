//! The layout of the state directory, and the locks of open runs.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use nix::fcntl::{Flock, FlockArg};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use super::files::{append_private, create_private_dir, make_private, write_atomic};
use super::measure::disk_bytes;
use super::remove::remove_tree;
use super::transcript::TranscriptExtent;
use crate::domain::{CallId, RunId};

/// The state directory; need not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// Returns the state directory at `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Creates the directory with mode 0700.
    ///
    /// *Errors*: any I/O error.
    pub fn create(&self) -> io::Result<()> {
        create_private_dir(&self.root)?;
        // An existing directory may be accessible to other users (SEC-3).
        make_private(&self.root)?;
        create_private_dir(&self.run_locks())
    }

    /// Returns the path itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes 64 KiB to the state directory and removes them again.
    ///
    /// *Errors*: the disk cannot be written.
    pub fn try_to_write(&self) -> io::Result<()> {
        let path = self.root.join("probe");
        let written = write_atomic(&path, &[0; 64 << 10]);
        let removed = std::fs::remove_file(path);
        written.and(removed)
    }

    /// Keeps the configuration with this digest, unless it is kept already.
    ///
    /// *Errors*: any I/O error.
    pub fn keep_config(&self, digest: &str, content: impl FnOnce() -> Vec<u8>) -> io::Result<()> {
        let path = self.config_file(digest);
        if let Ok(kept) = File::options().append(true).open(&path) {
            // Retention removes a configuration that was not used recently, so record this use.
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            return Ok(futimens(&kept, &Timestamps { last_access: now, last_modification: now })?);
        }
        create_private_dir(&self.root.join("configs"))?;
        write_atomic(&path, &content())
    }

    /// Reads the kept configuration with this digest.
    ///
    /// *Errors*: any I/O error.
    pub fn read_config(&self, digest: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.config_file(digest))
    }

    fn config_file(&self, digest: &str) -> PathBuf {
        self.root.join("configs").join(format!("{digest}.json"))
    }

    /// Returns the default working directory for the tools of a job.
    #[must_use]
    pub fn workspace(&self, job: &str) -> PathBuf {
        self.root.join("workspace").join(job)
    }

    /// Creates the private temporary directory of a run.
    ///
    /// *Errors*: any I/O error.
    pub fn make_temporary(&self, run_id: &RunId) -> io::Result<PathBuf> {
        let path = self.temporary_of(run_id);
        #[cfg(feature = "faults")]
        super::faults::in_temporary(run_id.as_str())?;
        create_private_dir(&path)?;
        Ok(path)
    }

    /// Creates the directory for the sockets of connections to other hosts; no tool can write to
    /// it.
    ///
    /// *Errors*: any I/O error.
    pub fn make_connections(&self) -> io::Result<PathBuf> {
        let path = self.root.join("ssh");
        create_private_dir(&path)?;
        Ok(path)
    }

    /// Removes the temporary directory of a run with its content. Does not follow links (STATE-6).
    ///
    /// *Errors*: any I/O error; as much as possible is removed nonetheless.
    pub async fn remove_temporary(&self, run_id: &RunId) -> io::Result<()> {
        let path = self.temporary().join(run_id.as_str());
        let removed = tokio::task::spawn_blocking(move || remove_tree(&path)).await;
        removed.map_err(io::Error::other)?
    }

    /// Returns the bytes that the temporary directory of a run occupies; `None` if they exceed
    /// `most`, or if the directory tree is too large or too deep to be measured.
    ///
    /// *Errors*: a directory in it cannot be read. Blocks.
    pub fn temporary_bytes(&self, run_id: &RunId, most: u64) -> io::Result<Option<u64>> {
        disk_bytes(&self.temporary().join(run_id.as_str()), most)
    }

    /// Removes all temporary directories, except those of live runs ([`Self::is_live`]).
    ///
    /// *Errors*: the first failure; everything else that could be removed is gone.
    pub async fn clear_temporary(&self) -> io::Result<()> {
        let state = self.clone();
        let cleared = tokio::task::spawn_blocking(move || state.clear()).await;
        cleared.map_err(io::Error::other)?
    }

    fn clear(&self) -> io::Result<()> {
        let entries = match std::fs::read_dir(self.temporary()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let mut first = Ok(());
        for entry in entries.flatten() {
            let run_id = entry.file_name().to_str().and_then(|name| RunId::parse(name).ok());
            if run_id.is_none_or(|run_id| !self.is_live(&run_id)) {
                first = first.and(remove_tree(&entry.path()));
            }
        }
        first
    }

    /// Returns the path of the temporary directory of a run, which may not exist.
    #[must_use]
    pub fn temporary_of(&self, run_id: &RunId) -> PathBuf {
        self.temporary().join(run_id.as_str())
    }

    fn temporary(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub(super) fn run_locks(&self) -> PathBuf {
        self.root.join("runs").join("open")
    }

    fn run_path(&self, run_id: &RunId, began: DateTime<Utc>) -> PathBuf {
        self.root.join("runs").join(began.format("%Y/%m/%d").to_string()).join(run_id.as_str())
    }

    /// Returns the directory of an existing run; `None` if it does not exist. The date in the path
    /// comes from the id.
    #[must_use]
    pub fn find_run(&self, run_id: &RunId) -> Option<RunDir> {
        let ulid: ulid::Ulid = run_id.as_str().parse().ok()?;
        let began = DateTime::from_timestamp_millis(i64::try_from(ulid.timestamp_ms()).ok()?)?;
        let path = self.run_path(run_id, began);
        path.is_dir().then(|| RunDir { path, run_id: run_id.clone() })
    }

    /// Creates the directory of a new run. `began` must be the time in the id.
    ///
    /// *Errors*: any I/O error.
    pub fn create_run(&self, run_id: &RunId, began: DateTime<Utc>) -> io::Result<RunDir> {
        let path = self.run_path(run_id, began);
        create_private_dir(&path)?;
        Ok(RunDir { path, run_id: run_id.clone() })
    }

    /// Removes everything of a run that has not begun: its directories and its lock file.
    ///
    /// *Errors*: any I/O error. Blocks.
    pub fn remove_unbegun(&self, run_id: &RunId) -> io::Result<()> {
        if let Some(run) = self.find_run(run_id) {
            remove_tree(run.path())?;
        }
        remove_tree(&self.temporary().join(run_id.as_str()))?;
        remove_tree(&self.run_locks().join(run_id.as_str()))
    }

    /// Returns every run, newest first.
    ///
    /// *Errors*: a directory of runs cannot be read.
    pub fn runs(&self) -> io::Result<Vec<RunDir>> {
        let mut found = Vec::new();
        self.each_run(|run| {
            found.push(run.clone());
            true
        })?;
        found.reverse();
        Ok(found)
    }

    /// Syncs the names and directories of a new run, and its lock file, so that a power cut does not lose
    /// a run whose first line is on disk.
    ///
    /// *Errors*: any I/O error.
    pub async fn sync_run(&self, run: &RunDir) -> io::Result<()> {
        let paths = self.paths_of_new(run);
        let sync = move || paths.iter().try_for_each(|path| File::open(path)?.sync_all());
        tokio::task::spawn_blocking(sync).await.map_err(io::Error::other)?
    }

    /// Returns what must be on disk for a new run to be found: its directory and those of its day, month
    /// and year, and its lock file.
    fn paths_of_new(&self, run: &RunDir) -> Vec<PathBuf> {
        let runs = self.root.join("runs");
        let above = run.path.ancestors().take_while(|path| path.starts_with(&runs));
        let mut paths: Vec<PathBuf> = above.map(Path::to_path_buf).collect();
        paths.extend([self.run_locks(), self.run_locks().join(run.run_id.as_str())]);
        paths
    }

    /// Calls `take` with every run, oldest first, until it returns false. Holds only the runs of
    /// one day in memory.
    ///
    /// *Errors*: the first directory that cannot be read; `take` gets the runs in all others.
    pub fn each_run(&self, take: impl FnMut(&RunDir) -> bool) -> io::Result<()> {
        self.each_run_from(Path::new(""), take)
    }

    /// Does what [`Self::each_run`] does, for the days from `first_day` (`YYYY/MM/DD`, inclusive) on.
    pub(super) fn each_run_from(
        &self,
        first_day: &Path,
        mut take: impl FnMut(&RunDir) -> bool,
    ) -> io::Result<()> {
        let runs = self.root.join("runs");
        let mut levels = vec![(runs.clone(), 0)];
        let mut first: io::Result<()> = Ok(());
        while let Some((path, depth)) = levels.pop() {
            let from: PathBuf = first_day.components().take(depth).collect();
            if path.strip_prefix(&runs).is_ok_and(|level| level < from.as_path()) {
                continue;
            }
            let mut names = match std::fs::read_dir(&path).and_then(names) {
                Ok(names) => names,
                // `foreign_to_runs` reports a file in the place of a directory.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
                {
                    continue;
                }
                Err(error) => {
                    let text = format!("{}: {error}", path.display());
                    first = first.and(Err(io::Error::new(error.kind(), text)));
                    continue;
                }
            };
            names.sort_unstable();
            if depth == 3 {
                let runs = names.iter().filter_map(|name| RunId::parse(name).ok());
                for run_id in runs {
                    if !take(&RunDir { path: path.join(run_id.as_str()), run_id }) {
                        return Ok(());
                    }
                }
                continue;
            }
            names.retain(|name| name.bytes().all(|b| b.is_ascii_digit()));
            levels.extend(names.into_iter().rev().map(|name| (path.join(name), depth + 1)));
        }
        first
    }

    /// Creates the lock file of a run of this job and locks it for this process.
    ///
    /// *Shape*: the pid of this process and the name of the job, a line each.
    /// *Errors*: any I/O error; another process holds the lock.
    pub fn lock_run(&self, run_id: &RunId, job: &str) -> io::Result<RunLock> {
        create_private_dir(&self.run_locks())?;
        let path = self.run_locks().join(run_id.as_str());
        let mut file = append_private(&path)?;
        writeln!(file, "{}\n{job}", std::process::id())?;
        let lock = lock(file)?;
        Ok(RunLock { path, _lock: lock })
    }

    /// Returns the open runs whose lock no process holds, each with its lock, now held by this
    /// process.
    ///
    /// *Errors*: the lock files cannot be read.
    pub fn abandoned(&self) -> io::Result<Vec<(RunId, RunLock)>> {
        let mut abandoned = Vec::new();
        let entries = match std::fs::read_dir(self.run_locks()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(abandoned),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            // `foreign_locks` reports the others.
            let Some(run_id) = entry.file_name().to_str().and_then(|name| RunId::parse(name).ok())
            else {
                continue;
            };
            if !entry.file_type()?.is_file() {
                continue;
            }
            let file = append_private(&entry.path())?;
            if let Ok(lock) = lock(file)
                && is_in_place(&lock)?
            {
                abandoned.push((run_id, RunLock { path: entry.path(), _lock: lock }));
            }
        }
        Ok(abandoned)
    }

    /// Takes the lock of an open run that no process holds; `None` if a process holds it, or the run
    /// has no lock file any more. Waits 50 ms at most, because a reader holds it for a moment.
    ///
    /// *Errors*: the lock file cannot be opened or locked.
    pub fn take_lock(&self, run_id: &RunId) -> io::Result<Option<RunLock>> {
        let path = self.run_locks().join(run_id.as_str());
        let file = match File::options().append(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match lock(file) {
            Ok(lock) => Ok(is_in_place(&lock)?.then_some(RunLock { path, _lock: lock })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells whether this run has a lock file: a process works on it, or the next start of the
    /// daemon ends the run.
    #[must_use]
    pub fn is_open(&self, run_id: &RunId) -> bool {
        self.run_locks().join(run_id.as_str()).exists()
    }

    /// Tells whether the transcript of a run has a whole line. Returns true also if the transcript cannot
    /// be read.
    #[must_use]
    pub fn has_begun(&self, run_id: &RunId) -> bool {
        let Some(run) = self.find_run(run_id) else { return false };
        match TranscriptExtent::measure(&run.transcript()) {
            Ok(extent) => extent.whole_bytes > 0,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Returns the name of the job of an open run; `None` if the run has no lock file, or an earlier
    /// version created it.
    #[must_use]
    pub fn job_of_open(&self, run_id: &RunId) -> Option<String> {
        job_in(&self.run_locks().join(run_id.as_str()))
    }

    /// Tells whether a process holds the lock of this run.
    #[must_use]
    pub fn is_live(&self, run_id: &RunId) -> bool {
        File::open(self.run_locks().join(run_id.as_str()))
            .is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
    }
}

pub(super) fn names(entries: std::fs::ReadDir) -> io::Result<Vec<String>> {
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// Tells whether a lock file has not been removed: the process of its run removes it when the run
/// ends.
fn is_in_place(lock: &Flock<File>) -> io::Result<bool> {
    Ok(std::os::unix::fs::MetadataExt::nlink(&lock.metadata()?) > 0)
}

/// Locks a lock file for this process. Another process that only tests the lock holds it for a
/// moment, so we retry.
fn lock(mut file: File) -> io::Result<Flock<File>> {
    const TRIES: u32 = 25;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(2);
    for _ in 0..TRIES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, nix::errno::Errno::EWOULDBLOCK)) => file = back,
            Err((_, errno)) => return Err(errno.into()),
        }
        std::thread::sleep(PAUSE);
    }
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Returns the name of the job in a lock file.
fn job_in(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().nth(1).map(str::to_owned)
}

/// The lock of an open run, held until it is closed or dropped.
#[derive(Debug)]
pub struct RunLock {
    path: PathBuf,
    _lock: Flock<File>,
}

impl RunLock {
    /// Returns the name of the job; `None` if an earlier version created the lock file.
    #[must_use]
    pub fn job(&self) -> Option<String> {
        job_in(&self.path)
    }

    /// Removes the lock file. Call this after the run's last line is written.
    ///
    /// *Errors*: any I/O error; the next start then examines the run again and finds it ended.
    pub fn close(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
    run_id: RunId,
}

impl RunDir {
    /// Returns the run directory at any `path`.
    #[cfg(test)]
    pub(super) fn at(path: &Path, run_id: RunId) -> Self {
        Self { path: path.to_path_buf(), run_id }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Returns the path of the transcript.
    #[must_use]
    pub fn transcript(&self) -> PathBuf {
        self.path.join("transcript.jsonl")
    }

    /// Returns the secret of the run; creates the secret on first use. The delimiters of untrusted
    /// content are derived from this secret, so the author of the content cannot predict them.
    ///
    /// *Errors*: any I/O error, or the file does not contain a secret.
    pub fn secret(&self) -> io::Result<[u8; 32]> {
        let path = self.path.join("secret");
        let mut file = append_private(&path)?;
        let mut known = Vec::new();
        io::Read::read_to_end(&mut file, &mut known)?;
        if known.is_empty() {
            let mut secret = [0; 32];
            File::open("/dev/urandom")
                .and_then(|mut random| io::Read::read_exact(&mut random, &mut secret))?;
            file.write_all(&secret)?;
            return Ok(secret);
        }
        known
            .try_into()
            .map_err(|_| io::Error::other(format!("{} is not a 32-byte secret", path.display())))
    }

    /// Reads at most `most` bytes of a file of [`Self::outputs`] by its name relative to the run
    /// directory.
    ///
    /// *Errors*: any I/O error; `name` is not the name of such a file.
    pub fn read_output(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        if name.strip_prefix("output/").is_none_or(|rest| rest.contains('/')) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::new();
        io::Read::read_to_end(
            &mut io::Read::take(File::open(self.path.join(name))?, most),
            &mut bytes,
        )?;
        Ok(bytes)
    }

    /// Returns the directory for the complete outputs of the run's calls.
    #[must_use]
    pub fn outputs(&self) -> PathBuf {
        self.path.join("output")
    }

    /// Creates the file for the complete output of a call; returns its name relative to the run
    /// directory.
    ///
    /// *Errors*: any I/O error.
    pub fn create_output(&self, call_id: &CallId) -> io::Result<(String, File)> {
        create_private_dir(&self.outputs())?;
        let name = format!("output/{call_id}.txt");
        let file = append_private(&self.path.join(&name))?;
        // A call that runs again after a crash replaces its first output.
        file.set_len(0)?;
        Ok((name, file))
    }

    /// Stores image `number` of a call; returns the name of its file relative to the run directory.
    ///
    /// *Errors*: any I/O error.
    pub fn keep_image(
        &self,
        call_id: &CallId,
        number: usize,
        extension: &str,
        bytes: &[u8],
    ) -> io::Result<String> {
        create_private_dir(&self.outputs())?;
        let name = format!("output/{call_id}-{number}.{extension}");
        let mut file = append_private(&self.path.join(&name))?;
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn run_id(n: u128) -> RunId {
        RunId::from_ulid(ulid::Ulid::from_parts(1_790_000_000_000, n))
    }

    #[test]
    fn lock_files_that_cannot_be_read_are_not_absent() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(&temp.path().join("state"));
        assert!(state.abandoned().unwrap().is_empty(), "nothing has run here yet");
        let locks = state.run_locks();
        std::fs::create_dir_all(locks.parent().unwrap()).unwrap();
        std::fs::write(locks, "").unwrap();
        assert!(state.abandoned().is_err(), "a file is in place of the directory");
    }

    #[test]
    fn a_run_begins_with_a_whole_line() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(&temp.path().join("state"));
        assert!(!state.has_begun(&run_id(1)));
        state.create().unwrap();
        let began = DateTime::from_timestamp_millis(1_790_000_000_000).unwrap();
        let run = state.create_run(&run_id(1), began).unwrap();
        for (text, expected) in [("", false), ("{\"v\":1", false), ("{}\n{", true)] {
            std::fs::write(run.transcript(), text).unwrap();
            assert_eq!(state.has_begun(&run_id(1)), expected, "{text:?}");
        }
        std::fs::remove_file(run.transcript()).unwrap();
        std::fs::create_dir(run.transcript()).unwrap();
        assert!(state.has_begun(&run_id(1)), "what cannot be read is not absent");
    }

    // proves LOG-1
    #[tokio::test]
    async fn the_names_of_a_new_run_are_synced_up_to_the_directory_of_all_runs() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(&temp.path().join("state"));
        state.create().unwrap();
        let began = DateTime::from_timestamp_millis(1_790_000_000_000).unwrap();
        let _lock = state.lock_run(&run_id(1), "j").unwrap();
        let run = state.create_run(&run_id(1), began).unwrap();
        let runs = state.root().join("runs");
        let day = began.format("%Y/%m/%d").to_string();
        let day = runs.join(day);
        let mut expected: Vec<PathBuf> = vec![day.join(run_id(1).as_str())];
        expected.extend(day.ancestors().take(4).map(Path::to_path_buf));
        expected.extend([runs.join("open"), runs.join("open").join(run_id(1).as_str())]);
        assert_eq!(state.paths_of_new(&run), expected);
        state.sync_run(&run).await.unwrap();
        std::fs::remove_dir(run.path()).unwrap();
        assert!(state.sync_run(&run).await.is_err(), "a failed sync is a failed write");
    }

    // proves SEC-3
    #[test]
    fn runs_are_private_and_found_by_their_id() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(&temp.path().join("state"));
        state.create().unwrap();
        let began = DateTime::from_timestamp_millis(1_790_000_000_000).unwrap();
        let run = state.create_run(&run_id(1), began).unwrap();
        state.create_run(&run_id(2), began).unwrap();
        let (name, _) = run.create_output(&CallId::parse("c1").unwrap()).unwrap();
        assert_eq!(name, "output/c1.txt");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(state.root()), mode(run.path()), mode(&run.path().join(name))),
            (0o700, 0o700, 0o600)
        );
        assert_eq!(state.find_run(&run_id(1)), Some(run));
        assert_eq!(state.find_run(&run_id(9)), None);
        assert_eq!(
            state.runs().unwrap().iter().map(|run| run.run_id().clone()).collect::<Vec<_>>(),
            [run_id(2), run_id(1)]
        );
    }

    #[test]
    fn a_mark_is_held_until_it_is_closed() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path());
        let lock = state.lock_run(&run_id(1), "j").unwrap();
        assert!(state.is_live(&run_id(1)));
        assert!(state.abandoned().unwrap().is_empty());
        drop(lock);
        assert!(!state.is_live(&run_id(1)));
        let mut abandoned = state.abandoned().unwrap();
        assert_eq!(abandoned.len(), 1);
        abandoned.remove(0).1.close().unwrap();
        assert!(state.abandoned().unwrap().is_empty());
    }
}
