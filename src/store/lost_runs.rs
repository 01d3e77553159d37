//! Finds runs without a lock file, and names among the lock files that are not runs (STATE-7).

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use super::reader::{ReadEvent, known, read_lines};
use super::run_dir::{RunDir, StateDir};
use crate::domain::{Event, RunId};

/// The runs without a lock file that neither the ledger nor the index knows.
#[derive(Debug, Default)]
pub struct UnlockedRuns {
    /// Those that have not ended, oldest first.
    pub open: Vec<RunDir>,
    /// The number of those that have ended.
    pub ended: usize,
    /// The first directory of runs that cannot be read, and why.
    pub unreadable: Option<io::Error>,
}

impl StateDir {
    /// Calls `take` with every run that began at `since` or later, oldest first. Blocks.
    ///
    /// *Errors*: the first directory that cannot be read; `take` gets the runs in all others.
    pub fn each_run_since(
        &self,
        since: DateTime<Utc>,
        mut take: impl FnMut(&RunDir),
    ) -> io::Result<()> {
        let (first_day, first) = (since.format("%Y/%m/%d").to_string(), first_id(since));
        self.each_run_from(Path::new(&first_day), |run| {
            // The first day also has earlier runs.
            if run.run_id().as_str() >= first.as_str() {
                take(run);
            }
            true
        })
    }

    /// Returns the runs from `since` on that have no lock file and are not `known_runs`. Blocks.
    #[must_use]
    pub fn unlocked_since(
        &self,
        since: DateTime<Utc>,
        known_runs: &HashSet<String>,
    ) -> UnlockedRuns {
        let mut found = UnlockedRuns::default();
        let visited = self.each_run_since(since, |run| {
            let id = run.run_id();
            if known_runs.contains(id.as_str()) || self.is_open(id) || !run.path().is_dir() {
                return;
            }
            if has_ended(run) { found.ended += 1 } else { found.open.push(run.clone()) }
        });
        found.unreadable = visited.err();
        found
    }

    /// Returns the oldest run that has a lock file.
    ///
    /// *Errors*: the lock files cannot be read.
    pub fn oldest_open(&self) -> io::Result<Option<RunId>> {
        Ok(self.lock_names()?.iter().flat_map(|name| RunId::parse(name)).min())
    }

    /// Returns the entries of `runs`, of its years and of its months that are not directories of runs.
    ///
    /// *Errors*: the first directory that cannot be read.
    pub fn foreign_to_runs(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut levels = vec![(self.root().join("runs"), 0)];
        while let Some((path, depth)) = levels.pop() {
            let entries = match std::fs::read_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let (path, name) = (entry.path(), entry.file_name());
                let is_level = entry.file_type()?.is_dir()
                    && name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
                if is_level && depth < 2 {
                    levels.push((path, depth + 1));
                } else if !is_level && path != self.run_locks() && name != "lost+found" {
                    found.push(path);
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Returns the names among the lock files that are not the ids of runs, or that are not files.
    ///
    /// *Errors*: the lock files cannot be read.
    pub fn foreign_locks(&self) -> io::Result<Vec<String>> {
        let is_lock = |name: &str| {
            RunId::parse(name).is_ok()
                && self.run_locks().join(name).symlink_metadata().is_ok_and(|meta| meta.is_file())
        };
        Ok(self.lock_names()?.into_iter().filter(|name| !is_lock(name)).collect())
    }

    fn lock_names(&self) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.run_locks()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let name = |entry: io::Result<std::fs::DirEntry>| {
            entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
        };
        entries.map(name).collect()
    }
}

/// Returns the lowest id of a run that begins at `at`.
#[must_use]
pub fn first_id(at: DateTime<Utc>) -> String {
    // No id is from before 1970.
    let millis = u64::try_from(at.timestamp_millis()).unwrap_or(0);
    ulid::Ulid::from_parts(millis, 0).to_string().to_ascii_lowercase()
}

/// Tells whether the last line of a transcript is the end of the run.
fn has_ended(run: &RunDir) -> bool {
    let Ok(lines) = read_lines::<ReadEvent>(&run.transcript()) else { return false };
    let Some(Ok(last)) = lines.last() else { return false };
    matches!(known(&last), Some(Event::SessionEnd(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves STATE-7
    #[test]
    fn a_file_in_the_place_of_a_directory_of_runs_hides_no_run() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path());
        let run_id = RunId::from_ulid(ulid::Ulid::from_parts(1_790_000_000_000, 1));
        let began = DateTime::from_timestamp_millis(1_790_000_000_000).unwrap();
        let run = state.create_run(&run_id, began).unwrap();
        drop(state.lock_run(&run_id, "j").unwrap());
        let day = run.path().parent().unwrap();
        let (month, runs) = (day.parent().unwrap(), temp.path().join("runs"));
        let foreign =
            [runs.join("1999"), month.join("01"), month.with_file_name("02"), runs.join("x")];
        foreign.iter().for_each(|path| std::fs::write(path, "x").unwrap());
        std::fs::write(day.join("notes.txt"), "x").unwrap();
        // A file system of its own has this directory.
        std::fs::create_dir(runs.join("lost+found")).unwrap();
        assert_eq!(state.runs().unwrap(), [run]);
        let mut expected = foreign.to_vec();
        expected.sort();
        assert_eq!(state.foreign_to_runs().unwrap(), expected);
        assert_eq!(state.oldest_open().unwrap(), Some(run_id));
    }

    #[test]
    fn only_the_days_from_the_bound_on_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path());
        let at = |day: i64| DateTime::from_timestamp(1_790_000_000 + day * 86_400, 0).unwrap();
        let days = [0, 1, 40, 400];
        let ids = days.map(|day| {
            let millis = u64::try_from(at(day).timestamp_millis()).unwrap();
            let run_id = RunId::from_ulid(ulid::Ulid::from_parts(millis, 1));
            state.create_run(&run_id, at(day)).unwrap();
            run_id
        });
        for (nth, day) in days.into_iter().enumerate() {
            let mut found = Vec::new();
            state.each_run_since(at(day), |run| found.push(run.run_id().clone())).unwrap();
            assert_eq!(found, ids[nth..], "{day}");
        }
        let mut found = Vec::new();
        let later = at(0) + chrono::TimeDelta::milliseconds(1);
        state.each_run_since(later, |run| found.push(run.run_id().clone())).unwrap();
        assert_eq!(found, ids[1..], "not the earlier run of the same day");
    }
}
