//! The rows of the texts that people give to runs that have not begun.

use rusqlite::Connection;

use crate::domain::RunId;

/// Forgets the texts of a run.
pub(super) fn forget(transaction: &Connection, run_id: &RunId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM queued_texts WHERE run_id = ?1")?
        .execute([run_id.as_str()])
        .map(drop)
}

/// Gives the texts of a run to the run that takes its place.
pub(super) fn pass_on(transaction: &Connection, from: &RunId, to: &RunId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE queued_texts SET run_id = ?2 WHERE run_id = ?1")?
        .execute([from.as_str(), to.as_str()])
        .map(drop)
}
