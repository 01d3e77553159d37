//! Slots that are over and run again, because a person requests it.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension as _, named_params, params};

use super::claim::{Slot, StateWord, insert_queued};
use super::db::DbError;
use super::ledger::Ledger;
use crate::domain::{RunId, SlotKey, SlotTime};

/// A slot that runs again.
#[derive(Debug, Clone)]
pub struct Again {
    /// The slot as it is written.
    pub slot: Slot,
    /// The state of the row that has its due time now.
    pub state: StateWord,
    /// Its place in that row, if the row is a span.
    pub place: Option<SpanPlace>,
}

/// The place of a slot in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanPlace {
    /// The first due time of the span.
    pub first: DateTime<Utc>,
    /// The number of slots of the span before this one.
    pub before: u32,
    /// The due time before this one; `None` if this is the first of the span.
    pub previous: Option<DateTime<Utc>>,
    /// The due time after this one; `None` if the schedule has none.
    pub next: Option<DateTime<Utc>>,
}

impl Ledger {
    /// Takes slots that are over out of their rows and queues their runs, in one transaction. `slots` is
    /// sorted by due time. Returns for each slot whether it was taken: another row may have its due time
    /// meanwhile.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn claim_again(
        &self,
        slots: Vec<Again>,
        now: DateTime<Utc>,
    ) -> Result<Vec<bool>, DbError> {
        self.write(move |transaction| {
            // The newest go first, so that the places of the others in a span stay the same.
            let taken = slots.iter().rev().map(|again| claim(transaction, again, now));
            let mut taken: Vec<bool> = taken.collect::<rusqlite::Result<_>>()?;
            taken.reverse();
            Ok(taken)
        })
        .await
    }
}

fn claim(transaction: &Connection, again: &Again, now: DateTime<Utc>) -> rusqlite::Result<bool> {
    let slot = &again.slot;
    let SlotKey { job, time: SlotTime { epoch, due_at } } = &slot.key;
    let due_at = due_at.timestamp_millis();
    let is_free = match &again.place {
        Some(place) => take_out(transaction, again, place)?,
        None => {
            let mut delete = transaction.prepare_cached(
                "DELETE FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3 AND state = ?4 AND until IS NULL",
            )?;
            let of_slot = params![job.as_str(), epoch.number(), due_at, again.state.as_str()];
            delete.execute(of_slot)? == 1
        }
    };
    if !is_free {
        return Ok(false);
    }
    transaction
        .prepare_cached(
            "INSERT INTO slots VALUES (:job, :epoch, :due_at, :state, :run_id, :decided_at, :reason, :zone, :digest, NULL, 1, :is_backfill)",
        )?
        .execute(named_params! {
            ":job": job.as_str(), ":epoch": epoch.number(), ":due_at": due_at, ":state": slot.state.as_str(),
            ":run_id": slot.run_id.as_ref().map(RunId::as_str), ":decided_at": now.timestamp_millis(), ":reason": slot.reason,
            ":zone": slot.zone, ":digest": slot.config_digest, ":is_backfill": slot.is_backfill,
        })?;
    if let Some(run) = &slot.queued {
        insert_queued(transaction, run)?;
    }
    Ok(true)
}

/// Takes a due time out of a span, which becomes one row for the slots before it and one for those after
/// it. Returns false if the row is not that span any more.
fn take_out(transaction: &Connection, again: &Again, place: &SpanPlace) -> rusqlite::Result<bool> {
    let SlotKey { job, time: SlotTime { epoch, due_at } } = &again.slot.key;
    let (job, epoch, first) = (job.as_str(), epoch.number(), place.first.timestamp_millis());
    let count: Option<i64> = transaction
        .prepare_cached(
            "SELECT count FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3 AND state = ?4 AND coalesce(until, due_at) >= ?5",
        )?
        .query_row(
            params![job, epoch, first, again.state.as_str(), due_at.timestamp_millis()],
            |row| row.get(0),
        )
        .optional()?;
    let before = i64::from(place.before);
    let after = count.and_then(|count| count.checked_sub(before)?.checked_sub(1));
    let Some(after) = after.filter(|after| *after >= 0) else { return Ok(false) };
    if after > 0 {
        let Some(next) = place.next else { return Ok(false) };
        transaction
            .prepare_cached(
                "INSERT INTO slots SELECT job, epoch, ?4, state, run_id, decided_at, reason, zone, config_digest,
                     CASE WHEN ?5 > 1 THEN until END, ?5, is_backfill
                 FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3",
            )?
            .execute(params![job, epoch, first, next.timestamp_millis(), after])?;
    }
    if before == 0 {
        transaction
            .prepare_cached("DELETE FROM slots WHERE job = ?1 AND epoch = ?2 AND due_at = ?3")?
            .execute(params![job, epoch, first])?;
    } else {
        let until = place.previous.filter(|_| before > 1).map(|at| at.timestamp_millis());
        transaction
            .prepare_cached(
                "UPDATE slots SET until = ?4, count = ?5 WHERE job = ?1 AND epoch = ?2 AND due_at = ?3",
            )?
            .execute(params![job, epoch, first, until, before])?;
    }
    Ok(true)
}
