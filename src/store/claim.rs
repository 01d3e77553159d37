//! How slots and the runs of the queue are written to the ledger.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, named_params, params};

use super::message_rows;
use super::request;
use super::run_summary::QueuedRun;
use super::text_rows;
use crate::domain::{JobName, Message, Origin, RunId, SlotKey, SlotTime, StopReason};

/// The disposition of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Its run waits in the queue.
    Queued,
    /// Its run is active.
    Running,
    /// Its run has ended.
    Ran,
    /// Not run: `overlap` did not let it run or wait, the due time repeated after the clock was set
    /// back, or the queued run was cancelled.
    Skipped,
    /// Not run: the daemon did not decide in time, or the run could not begin.
    Missed,
    /// Covered by another run, which the row names.
    Coalesced,
    /// Not run: the job was paused.
    Paused,
    /// Not run: a daily budget had too little left.
    OverBudget,
    /// Its run found nothing to do.
    NotNeeded,
    /// Its run ended because the preflight checklist failed.
    Blocked,
    /// The schedule changed before its run began.
    Superseded,
}

impl SlotState {
    /// Returns the disposition of a slot whose run has ended so.
    #[must_use]
    pub fn of_ended(stop_reason: StopReason) -> Self {
        match stop_reason {
            StopReason::PreflightFailed => Self::Blocked,
            StopReason::NotNeeded => Self::NotNeeded,
            _ => Self::Ran,
        }
    }

    /// Returns the word that the ledger stores.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ran => "ran",
            Self::Skipped => "skipped",
            Self::Missed => "missed",
            Self::Coalesced => "coalesced",
            Self::Paused => "paused",
            Self::OverBudget => "over_budget",
            Self::NotNeeded => "not_needed",
            Self::Blocked => "blocked",
            Self::Superseded => "superseded",
        }
    }
}

/// The disposition of a slot as the ledger has it. The word of a newer version is shown unchanged.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct StateWord(String);

impl StateWord {
    pub(super) fn new(word: String) -> Self {
        Self(word)
    }

    /// Returns the word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PartialEq<SlotState> for StateWord {
    fn eq(&self, state: &SlotState) -> bool {
        self.0 == state.as_str()
    }
}

/// The slots of a span: consecutive due times of a job that share one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The last due time, inclusive.
    pub until: DateTime<Utc>,
    /// The number of its slots.
    pub count: u32,
}

/// A slot to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Of a span, its first slot.
    pub key: SlotKey,
    /// The slots of the span, if the row is one.
    pub span: Option<Span>,
    /// Whether a backfill made the slot. Its due time may be in no period of the ledger.
    pub is_backfill: bool,
    pub state: SlotState,
    /// The run for this slot, or another run that covers it.
    pub run_id: Option<RunId>,
    /// The reason for the disposition, as a sentence for the operator.
    pub reason: String,
    /// The time zone of the schedule.
    pub zone: String,
    /// The digest of the configuration that was in effect when the slot was claimed.
    pub config_digest: String,
    /// The run of the slot, if a previous daemon claimed the slot and left it without a final
    /// disposition.
    pub left: Option<RunId>,
    /// The run to add to the queue with the slot.
    pub queued: Option<QueuedRun>,
}

/// Slots to be written in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    pub slots: Vec<Slot>,
    /// For each job, the time up to which every slot has its row after the claim.
    pub settled: Vec<(JobName, DateTime<Utc>)>,
    /// Queued runs that the claim ends.
    pub ended: Option<EndedRuns>,
    /// Messages about the slots, each with the name of its destination.
    pub messages: Vec<(String, Message)>,
}

/// Queued runs that end before they begin.
#[derive(Debug, Clone)]
pub struct EndedRuns {
    pub runs: Vec<RunId>,
    /// The disposition of their slots.
    pub state: SlotState,
    pub stop_reason: StopReason,
    /// The reason for the disposition, as a sentence for the operator.
    pub reason: String,
}

/// Adds a run to the queue. A run that a previous daemon left in the queue waits again.
pub(super) fn insert_queued(transaction: &Connection, run: &QueuedRun) -> rusqlite::Result<()> {
    let Origin { trigger, slot, attempt, .. } = &run.origin;
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO queue (run_id, job, trigger, scheduled_for, attempt, not_before, request, epoch)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            run.run_id.as_str(),
            run.job.as_str(),
            trigger.as_str(),
            slot.map(|slot| slot.due_at.timestamp_millis()),
            attempt,
            run.not_before.map(|at| at.timestamp_millis()),
            request::to_column(&run.origin)?,
            slot.map(|slot| slot.epoch.number()),
        ])
        .map(drop)
}

/// Writes a claim; returns for each slot whether it is claimed.
pub(super) fn write_claim(
    transaction: &Connection,
    claim: &Claim,
    now: DateTime<Utc>,
) -> rusqlite::Result<Vec<bool>> {
    if let Some(ended) = &claim.ended {
        end_runs(transaction, ended, now)?;
    }
    message_rows::insert(transaction, &claim.messages)?;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO slots VALUES (:job, :epoch, :due_at, :state, :run_id, :decided_at, :reason, :zone, :digest,
             :until, :count, :is_backfill)
         ON CONFLICT (job, epoch, due_at) DO UPDATE SET state = :state, run_id = :run_id, decided_at = :decided_at,
             reason = :reason, zone = :zone, config_digest = :digest
         WHERE :is_left AND state IN ('queued', 'running')",
    )?;
    let mut claimed = Vec::with_capacity(claim.slots.len());
    for slot in &claim.slots {
        let SlotKey { job, time: SlotTime { epoch, due_at } } = &slot.key;
        let written = insert.execute(named_params! {
            ":job": job.as_str(), ":epoch": epoch.number(), ":due_at": due_at.timestamp_millis(), ":state": slot.state.as_str(),
            ":run_id": slot.run_id.as_ref().map(RunId::as_str), ":decided_at": now.timestamp_millis(), ":reason": slot.reason,
            ":zone": slot.zone, ":digest": slot.config_digest, ":is_left": slot.left.is_some(), ":until": slot.span.map(|span| span.until.timestamp_millis()),
            ":count": slot.span.map_or(1, |span| span.count), ":is_backfill": slot.is_backfill,
        })?;
        claimed.push(written == 1);
        if written == 0 {
            continue;
        }
        if let Some(left) = &slot.left {
            match &slot.run_id {
                Some(run_id) => text_rows::pass_on(transaction, left, run_id)?,
                None => text_rows::forget(transaction, left)?,
            }
            end_queued(transaction, left, StopReason::Interrupted, &slot.reason, now)?;
            match slot.state {
                SlotState::Queued | SlotState::Coalesced => transaction
                    .prepare_cached(
                        "UPDATE slots SET run_id = ?2 WHERE run_id = ?1 AND state = 'coalesced'",
                    )?
                    .execute(params![left.as_str(), slot.run_id.as_ref().map(RunId::as_str)])
                    .map(drop)?,
                state => uncover(transaction, left, state, &slot.reason, now)?,
            }
        }
        if let Some(run) = &slot.queued {
            insert_queued(transaction, run)?;
        }
    }
    let mut settle = transaction.prepare_cached(
        "UPDATE periods SET settled = max(settled, ?2) WHERE job = ?1 AND ended IS NULL",
    )?;
    for (job, until) in &claim.settled {
        settle.execute(params![job.as_str(), until.timestamp_millis()])?;
    }
    Ok(claimed)
}

/// Ends queued runs, and writes the dispositions of their slots and of the slots that they cover.
pub(super) fn end_runs(
    transaction: &Connection,
    ended: &EndedRuns,
    now: DateTime<Utc>,
) -> rusqlite::Result<()> {
    let EndedRuns { runs, state, stop_reason, reason } = ended;
    for run_id in runs {
        end_queued(transaction, run_id, *stop_reason, reason, now)?;
        text_rows::forget(transaction, run_id)?;
        decide(transaction, run_id, *state, reason, now)?;
        if *state != SlotState::Ran {
            uncover(transaction, run_id, *state, reason, now)?;
        }
    }
    Ok(())
}

/// Gives the slots that a run would have covered the disposition of its own slot.
fn uncover(
    transaction: &Connection,
    run_id: &RunId,
    state: SlotState,
    reason: &str,
    now: DateTime<Utc>,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE slots SET state = ?2, reason = ?3, decided_at = ?4, run_id = NULL WHERE run_id = ?1 AND state = 'coalesced'",
        )?
        .execute(params![run_id.as_str(), state.as_str(), reason, now.timestamp_millis()])
        .map(drop)
}

/// Writes the disposition of a run's slots, unless it is final already.
pub(super) fn decide(
    transaction: &Connection,
    run_id: &RunId,
    state: SlotState,
    reason: &str,
    now: DateTime<Utc>,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE slots SET state = ?2, reason = ?3, decided_at = ?4 WHERE run_id = ?1 AND state IN ('queued', 'running')")?
        .execute(params![run_id.as_str(), state.as_str(), reason, now.timestamp_millis()])
        .map(drop)
}

/// Ends a run that is in the queue; does nothing if it is not.
pub(super) fn end_queued(
    transaction: &Connection,
    run_id: &RunId,
    stop_reason: StopReason,
    reason: &str,
    now: DateTime<Utc>,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE queue SET ended_at = ?2, stop_reason = ?3, reason = ?4 WHERE run_id = ?1 AND ended_at IS NULL",
        )?
        .execute(params![run_id.as_str(), now.timestamp_millis(), stop_reason.as_str(), reason])
        .map(drop)
}
