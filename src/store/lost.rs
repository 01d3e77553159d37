//! The marks in the ledger for restrictions that were lost.

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

/// Restrictions that were lost with the ledger and with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Lost {
    /// The pauses, until the daemon has paused every job.
    Pauses,
    /// The accepted MCP tools. A server without accepted tools then has none.
    McpPins,
    /// Which runs do not continue, until the open runs have ended.
    Cancellations,
}

impl Lost {
    pub(super) const ALL: [Self; 3] = [Self::Pauses, Self::McpPins, Self::Cancellations];

    /// Returns the key in the table `meta`.
    fn key(self) -> &'static str {
        match self {
            Self::Pauses => "pauses_lost",
            Self::McpPins => "mcp_pins_lost",
            Self::Cancellations => "cancellations_lost",
        }
    }

    pub(super) fn is_marked(self, ledger: &Connection) -> rusqlite::Result<bool> {
        ledger
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM meta WHERE name = ?1)")?
            .query_row([self.key()], |row| row.get(0))
    }

    pub(super) fn mark(self, ledger: &Connection) -> rusqlite::Result<()> {
        ledger.execute("INSERT OR IGNORE INTO meta VALUES (?1, 1)", [self.key()])?;
        raise_revision(ledger)
    }

    pub(super) fn unmark(self, ledger: &Connection) -> rusqlite::Result<()> {
        ledger.execute("DELETE FROM meta WHERE name = ?1", [self.key()])?;
        raise_revision(ledger)
    }
}

fn raise_revision(ledger: &Connection) -> rusqlite::Result<()> {
    ledger.execute("UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'", []).map(drop)
}
