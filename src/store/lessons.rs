//! The ledger's data on models: the parameters that a provider refuses, and what a provider said of
//! its model when it was asked.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, params};

use super::db::DbError;
use super::ledger::{Ledger, LedgerReader};
use super::slot_rows::time;

/// The lessons that the ledger keeps, newest first. Each change of a model's settings begins anew, and
/// leaves lessons that no model of the configuration has any more.
const KEPT_LESSONS: u32 = 1000;

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
    /// Stores lessons about a model, and forgets the oldest ones beyond [`KEPT_LESSONS`].
    ///
    /// *Errors*: [`DbError`].
    pub async fn keep_lessons(&self, rows: Vec<LessonRow>) -> Result<(), DbError> {
        self.write(move |transaction| {
            rows.iter().try_for_each(|row| keep(transaction, row))?;
            transaction
                .execute(
                    "DELETE FROM lessons WHERE (address, model, settings, parameter) IN (
                         SELECT address, model, settings, parameter FROM lessons
                         ORDER BY learned_at DESC LIMIT -1 OFFSET ?1)",
                    [KEPT_LESSONS],
                )
                .map(drop)
        })
        .await
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson(settings: &str, parameter: &str, second: i64) -> LessonRow {
        let key = ModelKey {
            address: "a".to_owned(),
            model: "m".to_owned(),
            settings: settings.to_owned(),
        };
        LessonRow {
            key,
            parameter: parameter.to_owned(),
            said: "no".to_owned(),
            learned_at: DateTime::from_timestamp(second, 0).unwrap(),
        }
    }

    #[tokio::test]
    async fn two_entries_of_one_model_keep_their_lessons_apart() {
        let temp = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(temp.path(), None).unwrap().0;
        for rows in [vec![lesson("cold", "temperature", 1)], vec![lesson("warm", "temperature", 2)]]
        {
            ledger.keep_lessons(rows).await.unwrap();
        }
        let all = ledger.read(|reader| reader.lessons()).await.unwrap();
        assert_eq!(all.len(), 2, "{all:?}");
        let many = (0..i64::from(KEPT_LESSONS)).map(|n| lesson(&format!("s{n}"), "think", 10 + n));
        ledger.keep_lessons(many.collect()).await.unwrap();
        let all = ledger.read(|reader| reader.lessons()).await.unwrap();
        assert_eq!(all.len(), KEPT_LESSONS as usize);
        assert!(all.iter().all(|row| row.parameter == "think"), "the oldest go first");
    }
}
