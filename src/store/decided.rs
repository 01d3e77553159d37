//! Queries over slots that are decided, or whose runs began.

use chrono::{DateTime, Utc};
use rusqlite::params;

use super::ledger::LedgerReader;

impl LedgerReader<'_> {
    /// Tells whether a slot names this run and has a final state.
    ///
    /// *Errors*: SQLite's.
    pub fn is_decided(
        &self,
        run_id: &str,
        (job, epoch, due_at): (&str, i64, DateTime<Utc>),
    ) -> rusqlite::Result<bool> {
        let mut query = self.connection().prepare_cached(
            "SELECT 1 FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3 AND run_id = ?4
             AND state NOT IN ('queued', 'running')",
        )?;
        query.exists(params![job, epoch, due_at.timestamp_millis(), run_id])
    }

    /// Tells whether a run was started or queued for a due time in one of these epochs.
    ///
    /// *Errors*: SQLite's.
    pub fn ran_in(
        &self,
        job: &str,
        epochs: &[i64],
        due_at: DateTime<Utc>,
    ) -> rusqlite::Result<bool> {
        let mut query = self.connection().prepare_cached(
            "SELECT 1 FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3 AND state IN ('ran', 'running', 'queued')",
        )?;
        for epoch in epochs {
            if query.exists(params![job, epoch, due_at.timestamp_millis()])? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
