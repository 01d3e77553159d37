//! The rows of the runs that do not continue, as `guards.json` holds them.

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::cells::Cells;

/// A run that was cancelled or given up, and has not ended.
///
/// *Shape*: `{"run_id":"01m8…","reason":"ann had cancelled it","is_cancelled":true,"uid":1000,"user":"ann"}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GivenUpRow {
    run_id: String,
    reason: String,
    is_cancelled: bool,
    /// The person who cancelled it.
    uid: Option<i64>,
    user: Option<String>,
}

impl GivenUpRow {
    /// Returns the runs that do not continue; `None` if the id of one cannot be read.
    pub(super) fn read_all(ledger: &Connection) -> rusqlite::Result<Option<Vec<Self>>> {
        let query = "SELECT given_up.run_id AS run_id, reason, cancelled.run_id IS NOT NULL AS is_cancelled, uid, user
             FROM given_up LEFT JOIN cancelled_runs AS cancelled ON cancelled.run_id = given_up.run_id
             ORDER BY given_up.run_id";
        let mut query = ledger.prepare_cached(query)?;
        let rows: Vec<Cells> = query.query_map([], Cells::of)?.collect::<rusqlite::Result<_>>()?;
        let read = |row: Cells| {
            Some(Self {
                run_id: row.text("run_id")?.to_owned(),
                reason: row.text("reason").unwrap_or("the reason cannot be read").to_owned(),
                is_cancelled: row.integer("is_cancelled") == Some(1),
                uid: row.integer("uid"),
                user: row.text("user").map(str::to_owned),
            })
        };
        Ok(rows.into_iter().map(read).collect())
    }

    /// Adds the row, unless the ledger has it or the run has ended.
    pub(super) fn add(&self, ledger: &Connection) -> rusqlite::Result<()> {
        let added = ledger
            .prepare_cached(
                "INSERT OR IGNORE INTO given_up SELECT ?1, ?2
                 WHERE NOT EXISTS (SELECT 1 FROM record_ends WHERE run_id = ?1)",
            )?
            .execute(params![self.run_id, self.reason])?;
        if added == 1 && self.is_cancelled {
            ledger
                .prepare_cached("INSERT OR REPLACE INTO cancelled_runs VALUES (?1, ?2, ?3)")?
                .execute(params![self.run_id, self.uid, self.user])?;
        }
        Ok(())
    }
}
