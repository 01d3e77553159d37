//! The ledger's data on models on hold.

use rusqlite::types::Type;
use rusqlite::{Row, params};

use super::db::DbError;
use super::ledger::{Ledger, LedgerReader};
use super::message_rows::{insert, json, parsed};
use super::slot_rows::time;
use crate::domain::{Hold, Message};

/// The columns that [`hold`] reads.
pub(super) const HOLD_COLUMNS: &str =
    "model, settings, cause, since, until, failures, answered_at, told";

impl Ledger {
    /// Keeps a hold, in place of an earlier one of its model, and adds the messages about it.
    ///
    /// *Errors*: [`DbError`]; nothing is then kept.
    pub async fn keep_hold(
        &self,
        hold: Hold,
        messages: Vec<(String, Message)>,
    ) -> Result<(), DbError> {
        let written = self
            .write(move |transaction| {
                transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO holds VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    )?
                    .execute(params![
                        hold.model,
                        hold.settings,
                        hold.cause,
                        hold.since.timestamp_millis(),
                        hold.until.timestamp_millis(),
                        hold.failures,
                        hold.answered_at.map(|at| at.timestamp_millis()),
                        json(&hold.told)?,
                    ])?;
                insert(transaction, &messages)
            })
            .await;
        self.wake_notifier();
        written
    }

    /// Removes the hold of a model, and adds the messages about its end.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn end_hold(
        &self,
        model: String,
        messages: Vec<(String, Message)>,
    ) -> Result<(), DbError> {
        let written = self
            .write(move |transaction| {
                transaction
                    .prepare_cached("DELETE FROM holds WHERE model = ?1")?
                    .execute([model])?;
                insert(transaction, &messages)
            })
            .await;
        self.wake_notifier();
        written
    }
}

impl LedgerReader<'_> {
    /// Returns the models on hold.
    ///
    /// *Errors*: SQLite's.
    pub fn holds(&self) -> rusqlite::Result<Vec<Hold>> {
        let sql = format!("SELECT {HOLD_COLUMNS} FROM holds ORDER BY model");
        let mut query = self.connection().prepare(&sql)?;
        query.query_map([], hold)?.collect()
    }
}

/// Reads a row with [`HOLD_COLUMNS`].
pub(super) fn hold(row: &Row<'_>) -> rusqlite::Result<Hold> {
    let answered_at: Option<i64> = row.get(6)?;
    Ok(Hold {
        model: row.get(0)?,
        settings: row.get(1)?,
        cause: row.get(2)?,
        since: time(row, 3)?,
        until: time(row, 4)?,
        failures: row.get(5)?,
        answered_at: answered_at.map(|_| time(row, 6)).transpose()?,
        told: parsed(row.get(7)?).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(7, Type::Text, error.into())
        })?,
    })
}
