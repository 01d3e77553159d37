//! Queries over slots that are decided, or whose runs began.

use chrono::{DateTime, Utc};
use rusqlite::params;

use super::ledger::LedgerReader;
use crate::domain::{Epoch, JobName, RunId, SlotKey, SlotTime};

impl LedgerReader<'_> {
    /// Tells whether a slot names this run and has a final state.
    ///
    /// *Errors*: SQLite's.
    pub fn is_decided(
        &self,
        run_id: &RunId,
        SlotKey { job, time: SlotTime { epoch, due_at } }: &SlotKey,
    ) -> rusqlite::Result<bool> {
        let mut query = self.connection().prepare_cached(
            "SELECT 1 FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3 AND run_id = ?4
             AND state NOT IN ('queued', 'running')",
        )?;
        let due_at = due_at.timestamp_millis();
        query.exists(params![job.as_str(), epoch.number(), due_at, run_id.as_str()])
    }

    /// Tells whether a run was started or queued for a due time in one of these epochs.
    ///
    /// *Errors*: SQLite's.
    pub fn ran_in(
        &self,
        job: &JobName,
        epochs: &[Epoch],
        due_at: DateTime<Utc>,
    ) -> rusqlite::Result<bool> {
        let mut query = self.connection().prepare_cached(
            "SELECT 1 FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3 AND state IN ('ran', 'running', 'queued')",
        )?;
        for epoch in epochs {
            if query.exists(params![job.as_str(), epoch.number(), due_at.timestamp_millis()])? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
