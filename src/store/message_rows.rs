//! How the ledger stores messages, and other values as JSON.

use rusqlite::types::Value as Cell;
use rusqlite::{Connection, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::domain::Message;

/// Adds messages, each for the destination of this name.
pub(super) fn insert(
    transaction: &Connection,
    messages: &[(String, Message)],
) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO messages (destination, created_at, message) VALUES (?1, ?2, ?3)",
    )?;
    for (destination, message) in messages {
        insert.execute(params![destination, message.at.timestamp_millis(), json(message)?])?;
    }
    Ok(())
}

/// Reads JSON from a cell of any type: a damaged one must not hold up what else is written.
pub(super) fn parsed<T: DeserializeOwned>(cell: Cell) -> Result<T, String> {
    match cell {
        Cell::Text(text) => serde_json::from_str(&text).map_err(|error| error.to_string()),
        other => Err(format!("a cell of type {} instead of text", other.data_type())),
    }
}

pub(super) fn json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}
