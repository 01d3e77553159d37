//! The texts that people give to runs that have not begun, or that wait to continue.
//!
//! A run takes them over into its transcript when it begins or continues.

use chrono::{DateTime, Utc};
use rusqlite::params;
use rusqlite::types::Value as Cell;

use super::db::DbError;
use super::ledger::Ledger;
use super::message_rows::{json, parsed};
use super::text_rows::forget;
use crate::domain::{QueuedText, RunId};

/// The texts that wait for a run.
#[derive(Debug, Default)]
pub struct KeptTexts {
    /// In the order in which they came.
    pub texts: Vec<QueuedText>,
    /// Why a row cannot be read, one entry each.
    pub unreadable: Vec<String>,
}

impl Ledger {
    /// Keeps a text for a run. Returns false, and keeps nothing, if
    /// [`QueuedText::MOST_WAITING`] texts wait already.
    ///
    /// *Errors*: [`DbError`]; nothing is then kept.
    pub async fn keep_text(
        &self,
        run_id: RunId,
        text: QueuedText,
        now: DateTime<Utc>,
    ) -> Result<bool, DbError> {
        self.write(move |transaction| {
            let waiting: u32 = transaction
                .prepare_cached("SELECT count(*) FROM queued_texts WHERE run_id = ?1")?
                .query_row([run_id.as_str()], |row| row.get(0))?;
            if usize::try_from(waiting).is_ok_and(|waiting| waiting >= QueuedText::MOST_WAITING) {
                return Ok(false);
            }
            transaction
                .prepare_cached("INSERT INTO queued_texts (run_id, at, text) VALUES (?1, ?2, ?3)")?
                .execute(params![run_id.as_str(), now.timestamp_millis(), json(&text)?])?;
            Ok(true)
        })
        .await
    }

    /// Returns the texts that wait for a run.
    ///
    /// *Errors*: [`DbError`].
    pub async fn texts_of(&self, run_id: RunId) -> Result<KeptTexts, DbError> {
        self.read(move |reader| {
            let mut query = reader
                .connection()
                .prepare_cached("SELECT text FROM queued_texts WHERE run_id = ?1 ORDER BY id")?;
            let cells = query.query_map([run_id.as_str()], |row| row.get::<_, Cell>(0))?;
            let mut kept = KeptTexts::default();
            for cell in cells {
                match parsed(cell?) {
                    Ok(text) => kept.texts.push(text),
                    Err(why) => kept.unreadable.push(why),
                }
            }
            Ok(kept)
        })
        .await
    }

    /// Forgets the texts of a run, which has them in its transcript.
    ///
    /// *Errors*: [`DbError`].
    pub async fn forget_texts(&self, run_id: RunId) -> Result<(), DbError> {
        self.write(move |transaction| forget(transaction, &run_id)).await
    }
}
