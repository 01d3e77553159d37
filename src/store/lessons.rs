//! The ledger's data on models: the parameters that a provider refuses, and what a provider said of
//! its model when it was asked.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, params};

use super::db::DbError;
use super::ledger::{Ledger, LedgerReader, time};

/// A model as the configuration describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelKey {
    /// SHA-256 (hex) of the base URL, which may contain a secret.
    pub address: String,
    /// The id of the model at its provider.
    pub model: String,
    /// SHA-256 (hex) of the settings of the model. A lesson holds until they change.
    pub settings: String,
}

/// A parameter that a provider refuses for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LessonRow {
    pub key: ModelKey,
    /// The name of the parameter.
    pub parameter: String,
    /// The provider's message.
    pub said: String,
    pub learned_at: DateTime<Utc>,
}

/// What a provider said of its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidRow {
    pub address: String,
    pub model: String,
    /// The traits and prices as JSON.
    pub said: String,
    pub said_at: DateTime<Utc>,
}

impl Ledger {
    /// Stores lessons about a model, and forgets those that other settings of it taught.
    ///
    /// *Errors*: [`DbError`].
    pub async fn keep_lessons(&self, rows: Vec<LessonRow>) -> Result<(), DbError> {
        self.write(move |transaction| rows.iter().try_for_each(|row| keep(transaction, row))).await
    }

    /// Stores what a provider said of its model, in place of what it said before.
    ///
    /// *Errors*: [`DbError`].
    pub async fn keep_said(&self, row: SaidRow) -> Result<(), DbError> {
        self.write(move |transaction| {
            transaction
                .execute(
                    "INSERT OR REPLACE INTO said_of_models (address, model, said, said_at) VALUES (?1, ?2, ?3, ?4)",
                    params![row.address, row.model, row.said, row.said_at.timestamp_millis()],
                )
                .map(drop)
        })
        .await
    }
}

fn keep(transaction: &Connection, row: &LessonRow) -> rusqlite::Result<()> {
    let ModelKey { address, model, settings } = &row.key;
    transaction.execute(
        "DELETE FROM lessons WHERE address = ?1 AND model = ?2 AND settings <> ?3",
        params![address, model, settings],
    )?;
    transaction
        .execute(
            "INSERT OR REPLACE INTO lessons (address, model, settings, parameter, said, learned_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                address,
                model,
                settings,
                row.parameter,
                row.said,
                row.learned_at.timestamp_millis()
            ],
        )
        .map(drop)
}

impl LedgerReader<'_> {
    /// Returns the lessons about all models.
    ///
    /// *Errors*: SQLite's.
    pub fn lessons(&self) -> rusqlite::Result<Vec<LessonRow>> {
        let mut query = self.connection().prepare(
            "SELECT address, model, settings, parameter, said, learned_at FROM lessons
             ORDER BY model, parameter",
        )?;
        let rows = query.query_map([], |row| {
            Ok(LessonRow {
                key: ModelKey { address: row.get(0)?, model: row.get(1)?, settings: row.get(2)? },
                parameter: row.get(3)?,
                said: row.get(4)?,
                learned_at: time(row, 5)?,
            })
        })?;
        rows.collect()
    }

    /// Returns what providers said of their models.
    ///
    /// *Errors*: SQLite's.
    pub fn said_of_models(&self) -> rusqlite::Result<Vec<SaidRow>> {
        let mut query = self
            .connection()
            .prepare("SELECT address, model, said, said_at FROM said_of_models ORDER BY model")?;
        let rows = query.query_map([], |row| {
            Ok(SaidRow {
                address: row.get(0)?,
                model: row.get(1)?,
                said: row.get(2)?,
                said_at: time(row, 3)?,
            })
        })?;
        rows.collect()
    }
}
