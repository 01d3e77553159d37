//! Restores the slots that ran in a lost or older ledger. `guards.rs` restores the restrictions.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::claim::{Claim, Slot, write_claim};
use super::db::DbError;
use super::ledger::{Ledger, LedgerReader, keep_meta};
use super::lost::Lost;
use crate::domain::{RunId, SlotKey, SlotTime};

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

    /// Adds the slots of runs that an older ledger lacks; returns those that it took. A slot that the
    /// ledger left open for another run goes to its recorded run. Of several with the same key, the first
    /// one counts.
    ///
    /// *Errors*: [`DbError`]; the ledger is then unchanged.
    pub async fn fold_in(
        &self,
        slots: Vec<Slot>,
        now: DateTime<Utc>,
    ) -> Result<Vec<Slot>, DbError> {
        self.write(move |transaction| {
            let mut taken: Vec<Slot> = Vec::new();
            for slot in slots {
                if fold_in(transaction, &slot, now)? {
                    taken.push(slot);
                }
            }
            if let Some(epoch) = taken.iter().map(|slot| slot.key.time.epoch).max() {
                keep_meta(transaction, RESTORED_AT, now.timestamp_millis())?;
                transaction.execute(
                    "INSERT INTO meta VALUES ('epoch', ?1) ON CONFLICT (name) DO UPDATE SET value = max(value, ?1)",
                    [epoch.number()],
                )?;
            }
            Ok(taken)
        })
        .await
    }

    /// Forgets that cancellations are lost. Call it when every run that was open then has ended.
    ///
    /// *Errors*: [`DbError`].
    pub async fn settle_cancellations(&self) -> Result<(), DbError> {
        self.write(|transaction| {
            if Lost::Cancellations.is_marked(transaction)? {
                Lost::Cancellations.unmark(transaction)
            } else {
                Ok(())
            }
        })
        .await
    }

    /// Pauses these jobs because their pauses are lost; a paused job keeps its note. From now on, a
    /// server without accepted tools has none.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn pause_after_loss(
        &self,
        jobs: Vec<String>,
        note: String,
        now: DateTime<Utc>,
    ) -> Result<(), DbError> {
        self.write(move |transaction| {
            for job in &jobs {
                transaction
                    .prepare_cached("INSERT OR IGNORE INTO pauses VALUES (?1, ?2, ?3, NULL)")?
                    .execute(params![job, now.timestamp_millis(), note])?;
            }
            // A person may have applied or discarded them.
            transaction.execute("UPDATE plans SET state = 'failed' WHERE state = 'waiting'", [])?;
            Lost::McpPins.mark(transaction)?;
            Lost::Pauses.unmark(transaction)
        })
        .await
    }
}

/// The row that covers a due time.
struct Row {
    is_open: bool,
    run_id: Option<String>,
}

/// Does what [`Ledger::fold_in`] does, for one slot; returns whether it took the slot.
fn fold_in(transaction: &Connection, slot: &Slot, now: DateTime<Utc>) -> rusqlite::Result<bool> {
    let SlotKey { job, time: SlotTime { epoch, due_at } } = &slot.key;
    let row = transaction
        .prepare_cached(
            "SELECT state IN ('queued', 'running'), run_id FROM slots
             WHERE job = ?1 AND epoch = ?2 AND due_at <= ?3 AND COALESCE(until, due_at) >= ?3",
        )?
        .query_row(params![job.as_str(), epoch.number(), due_at.timestamp_millis()], |row| {
            Ok(Row { is_open: row.get(0)?, run_id: row.get(1)? })
        })
        .optional()?;
    let own = slot.run_id.as_ref().map(RunId::as_str);
    let left = match row {
        None => None,
        Some(row) if row.is_open && row.run_id.as_deref() != own => row.run_id,
        // Its run is the recorded one, or it is decided.
        Some(_) => return Ok(false),
    };
    if let Some(left) = &left {
        transaction.execute(
            "UPDATE slots SET run_id = ?2 WHERE run_id = ?1 AND state = 'coalesced'",
            params![left, own],
        )?;
    }
    let left = left.and_then(|left| RunId::parse(&left).ok());
    let slots = vec![Slot { left, ..slot.clone() }];
    let claimed = write_claim(transaction, &Claim { slots, ..Claim::default() }, now)?;
    Ok(claimed == [true])
}

impl LedgerReader<'_> {
    /// Tells whether a person may have cancelled an open run, and the cancellation is lost.
    ///
    /// *Errors*: SQLite's.
    pub fn are_cancellations_lost(&self) -> rusqlite::Result<bool> {
        Lost::Cancellations.is_marked(self.connection())
    }

    /// Returns when slots were restored. A slot that was due earlier may be in no schedule of the
    /// ledger.
    ///
    /// *Errors*: SQLite's.
    pub fn restored_at(&self) -> rusqlite::Result<Option<DateTime<Utc>>> {
        Ok(self.meta(RESTORED_AT)?.and_then(DateTime::from_timestamp_millis))
    }
}
