//! What is restored of a lost ledger: the slots that ran.

use chrono::{DateTime, Utc};

use super::claim::{Claim, Slot, write_claim};
use super::db::DbError;
use super::ledger::{Ledger, LedgerReader, keep_meta};

/// The key in the table `meta` for the time of the restoration.
const RESTORED_AT: &str = "restored_at";

impl Ledger {
    /// Tells whether the ledger knows no schedule and no slot, and nothing was ever restored.
    ///
    /// *Errors*: [`DbError`].
    pub async fn is_blank(&self) -> Result<bool, DbError> {
        self.read(|reader| {
            let query =
                "SELECT NOT EXISTS (SELECT 1 FROM periods) AND NOT EXISTS (SELECT 1 FROM slots)";
            let is_empty: bool = reader.connection().query_row(query, [], |row| row.get(0))?;
            Ok(is_empty && reader.restored_at()?.is_none())
        })
        .await
    }

    /// Adds the slots that a lost ledger had. Of several with the same key, the first one counts.
    ///
    /// *Errors*: [`DbError`]; the ledger is then unchanged.
    pub async fn restore(&self, slots: Vec<Slot>, now: DateTime<Utc>) -> Result<(), DbError> {
        self.write(move |transaction| {
            write_claim(transaction, &Claim { slots, ..Claim::default() }, now)?;
            keep_meta(transaction, RESTORED_AT, now.timestamp_millis())
        })
        .await
    }
}

impl LedgerReader<'_> {
    /// Returns when slots were restored. A slot that was due earlier may be in no schedule of the
    /// ledger.
    ///
    /// *Errors*: SQLite's.
    pub fn restored_at(&self) -> rusqlite::Result<Option<DateTime<Utc>>> {
        Ok(self.meta(RESTORED_AT)?.and_then(DateTime::from_timestamp_millis))
    }
}
