//! A row of any table, whatever the types of its cells are.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Row, Statement, ToSql};
use serde_json::{Map, Value, json};

/// An amount of a daily budget that takes the place of one that cannot be read: above every limit, in
/// millionths of a US dollar.
pub(super) const ALL_SPENT: i64 = i64::MAX / 4;

/// A cell. A text need not be UTF-8.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl From<ValueRef<'_>> for Cell {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(bytes) => Self::Text(bytes.to_vec()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(bytes) => ValueRef::Text(bytes),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Cell {
    fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Integer(number) => json!(number),
            Self::Real(number) => json!(number),
            Self::Text(bytes) => match str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => json!({"text_hex": hex::encode(bytes)}),
            },
            Self::Blob(bytes) => json!({"blob_hex": hex::encode(bytes)}),
        }
    }
}

/// The cells of a row, with the names of their columns.
#[derive(Debug, Clone)]
pub(super) struct Cells(Vec<(String, Cell)>);

impl Cells {
    /// *Errors*: SQLite's.
    pub(super) fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let statement: &Statement<'_> = row.as_ref();
        let mut cells = Vec::new();
        for at in 0..statement.column_count() {
            let name = statement.column_name(at)?.to_owned();
            cells.push((name, Cell::from(row.get_ref(at)?)));
        }
        Ok(Self(cells))
    }

    /// Returns a cell; `Null` if there is no such column.
    pub(super) fn get(&self, column: &str) -> &Cell {
        let found = self.0.iter().find(|(name, _)| name == column);
        found.map_or(&Cell::Null, |(_, cell)| cell)
    }

    /// Returns the text in a cell, if it is one.
    pub(super) fn text(&self, column: &str) -> Option<&str> {
        match self.get(column) {
            Cell::Text(bytes) => str::from_utf8(bytes).ok(),
            Cell::Null | Cell::Integer(_) | Cell::Real(_) | Cell::Blob(_) => None,
        }
    }

    /// Returns the integer in a cell, if it is one.
    pub(super) fn integer(&self, column: &str) -> Option<i64> {
        match self.get(column) {
            Cell::Integer(number) => Some(*number),
            Cell::Null | Cell::Real(_) | Cell::Text(_) | Cell::Blob(_) => None,
        }
    }

    /// Returns these columns as JSON, or all of them.
    pub(super) fn to_json(&self, columns: Option<&[&str]>) -> String {
        let is_wanted = |name: &str| columns.is_none_or(|columns| columns.contains(&name));
        let wanted = self.0.iter().filter(|(name, _)| is_wanted(name));
        let object: Map<String, Value> =
            wanted.map(|(name, cell)| (name.clone(), cell.to_json())).collect();
        Value::Object(object).to_string()
    }
}
