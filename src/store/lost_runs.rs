//! Finds runs without a lock file, and names among the lock files that are not runs (STATE-7).

use std::collections::HashSet;
use std::io;
use std::path::Path;

use chrono::{DateTime, Utc};

use super::run_dir::{RunDir, StateDir};
use crate::domain::RunId;

impl StateDir {
    /// Returns the runs of the days from `since` on that have no lock file and are not `known`, oldest
    /// first. Blocks.
    ///
    /// *Errors*: a directory of runs cannot be read.
    pub fn unlocked_since(
        &self,
        since: DateTime<Utc>,
        known: &HashSet<String>,
    ) -> io::Result<Vec<RunDir>> {
        let first_day = since.format("%Y/%m/%d").to_string();
        let mut found = Vec::new();
        self.each_run_from(Path::new(&first_day), |run| {
            if !known.contains(run.run_id().as_str()) && !self.is_open(run.run_id()) {
                found.push(run.clone());
            }
            true
        })?;
        Ok(found)
    }

    /// Tells whether any run has a lock file.
    ///
    /// *Errors*: the lock files cannot be read.
    pub fn has_open(&self) -> io::Result<bool> {
        Ok(self.lock_names()?.iter().any(|name| RunId::parse(name).is_ok()))
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
