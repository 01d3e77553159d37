//! Ends the runs, slots, pauses and budgets for which unreadable rows of the ledger stood: STATE-7.
//!
//! Each function returns the end for the operator. The row has left its table before.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, params};

use super::cells::{ALL_SPENT, Cells};
use super::claim::{EndedRuns, SlotState, end_runs};
use super::ledger::keep_meta;
use super::pauses::{Pause, keep};
use super::run_dir::StateDir;
use super::slot_rows::moment_of;
use crate::domain::{JobName, RunId, StopReason, Trigger};

/// An unreadable row, and the facts that its end depends on.
pub(super) struct Loss<'a> {
    pub(super) cells: &'a Cells,
    pub(super) why: &'a str,
    pub(super) state: &'a StateDir,
    pub(super) now: DateTime<Utc>,
}

fn run_of(cells: &Cells) -> Option<RunId> {
    cells.text("run_id").and_then(|id| RunId::parse(id).ok())
}

fn time_of(cells: &Cells, column: &str) -> Option<DateTime<Utc>> {
    moment_of(cells.integer(column)?, 0).ok()
}

fn reason_of(loss: &Loss<'_>) -> String {
    format!("its row in the ledger cannot be read: {}", loss.why)
}

/// Ends a run that has not begun, and its slots; does nothing to a run that has begun.
fn end_run(
    connection: &Connection,
    run_id: RunId,
    reason: String,
    loss: &Loss<'_>,
) -> rusqlite::Result<()> {
    if loss.state.has_begun(&run_id) {
        return Ok(());
    }
    let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
    let ended = EndedRuns { runs: vec![run_id], state, stop_reason, reason };
    end_runs(connection, &ended, loss.now)
}

/// The job of a run whose row in the queue does not name one.
const UNKNOWN_JOB: &str = "?";

pub(super) fn end_queued_run(connection: &Connection, loss: &Loss<'_>) -> rusqlite::Result<String> {
    let cells = loss.cells;
    let Some(run_id) = run_of(cells) else {
        return Ok("its run is unknown; if it has a slot, that is decided again".to_owned());
    };
    if loss.state.has_begun(&run_id) {
        return Ok("its run has begun and has a record".to_owned());
    }
    let scheduled_for = time_of(cells, "scheduled_for");
    // The words are only shown: the run ends at once.
    let known = cells.text("trigger").and_then(|word| serde_json::from_value(word.into()).ok());
    let guessed = scheduled_for.map_or(Trigger::Manual, |_| Trigger::Schedule);
    let attempt = cells.integer("attempt").and_then(|number| u32::try_from(number).ok());
    let what = match attempt {
        Some(attempt @ 2..) => format!("attempt {attempt}"),
        Some(_) | None => "the run".to_owned(),
    };
    let reason = format!("{what} did not begin: {}", reason_of(loss));
    let job = cells.text("job").and_then(|job| JobName::parse(job).ok());
    connection.execute(
        "INSERT OR REPLACE INTO queue (run_id, job, trigger, scheduled_for, attempt, epoch, ended_at, stop_reason, reason)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            run_id.as_str(),
            job.as_ref().map_or(UNKNOWN_JOB, JobName::as_str),
            known.unwrap_or(guessed).as_str(),
            scheduled_for.map(|due_at| due_at.timestamp_millis()),
            attempt.unwrap_or(1),
            cells.integer("epoch").unwrap_or(0),
            loss.now.timestamp_millis(),
            StopReason::Interrupted.as_str(),
            reason,
        ],
    )?;
    end_run(connection, run_id, reason, loss)?;
    Ok("its run has ended as interrupted".to_owned())
}

/// Ends an open slot as missed. A slot that is over keeps its disposition.
pub(super) fn end_slot(connection: &Connection, loss: &Loss<'_>) -> rusqlite::Result<String> {
    let cells = loss.cells;
    let run_id = run_of(cells);
    let due_at = time_of(cells, "due_at");
    let (Some(job), Some(epoch), Some(due_at)) =
        (cells.text("job"), cells.integer("epoch"), due_at)
    else {
        run_id.map_or(Ok(()), |run_id| end_run(connection, run_id, reason_of(loss), loss))?;
        return Ok("its due time is unknown, so `audit` may report a hole".to_owned());
    };
    let is_open = |word: &&str| matches!(*word, "queued" | "running");
    // An open slot whose job and run are known stays open: only what is shown is lost.
    let is_known = run_id.is_some() && JobName::parse(job).is_ok();
    let kept = cells.text("state").filter(|word| !is_open(word) || is_known);
    let until = time_of(cells, "until").filter(|until| *until > due_at);
    let count = cells.integer("count").filter(|count| until.is_some() && *count > 1);
    connection.execute(
        "INSERT OR IGNORE INTO slots VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        params![
            job,
            epoch,
            due_at.timestamp_millis(),
            kept.unwrap_or(SlotState::Missed.as_str()),
            run_id.as_ref().map(RunId::as_str),
            time_of(cells, "decided_at").unwrap_or(loss.now).timestamp_millis(),
            cells.text("reason").map_or_else(|| reason_of(loss), str::to_owned),
            cells.text("zone").unwrap_or("UTC"),
            cells.text("config_digest").unwrap_or(""),
            count.and(until).map(|until| until.timestamp_millis()),
            count.unwrap_or(1),
            cells.integer("is_backfill").unwrap_or(0),
        ],
    )?;
    match kept {
        Some(word) => Ok(format!("its slot stays `{word}`")),
        None => {
            run_id.map_or(Ok(()), |run_id| end_run(connection, run_id, reason_of(loss), loss))?;
            Ok("its slot is missed".to_owned())
        }
    }
}

pub(super) fn keep_pause(connection: &Connection, loss: &Loss<'_>) -> rusqlite::Result<String> {
    let note = format!("its pause in the ledger cannot be read: {}", loss.why);
    if let Some(job) = loss.cells.text("job") {
        let (job, paused_at) = (job.to_owned(), loss.now);
        keep(connection, &Pause { job: job.clone(), paused_at, note: Some(note), until: None })?;
        return Ok(match job.as_str() {
            Pause::ALL => "all jobs stay paused".to_owned(),
            job => format!("the job `{job}` stays paused"),
        });
    }
    connection.execute(
        "INSERT OR IGNORE INTO pauses SELECT DISTINCT job, ?1, ?2, NULL FROM periods WHERE ended IS NULL",
        params![loss.now.timestamp_millis(), note],
    )?;
    Ok("every job with a schedule is paused; `dutyd unpause` those that may run".to_owned())
}

pub(super) fn give_up_again(connection: &Connection, loss: &Loss<'_>) -> rusqlite::Result<String> {
    let Some(run_id) = run_of(loss.cells) else {
        return Ok("its run is unknown".to_owned());
    };
    let reason = reason_of(loss);
    connection.execute(
        "INSERT OR IGNORE INTO given_up VALUES (?1, ?2)",
        params![run_id.as_str(), reason],
    )?;
    Ok(format!("the run {run_id} does not continue"))
}

pub(super) fn keep_cancelled(connection: &Connection, loss: &Loss<'_>) -> rusqlite::Result<String> {
    let Some(run_id) = run_of(loss.cells) else {
        return Ok("its run is unknown".to_owned());
    };
    connection.execute(
        "INSERT OR IGNORE INTO cancelled_runs VALUES (?1, NULL, NULL)",
        [run_id.as_str()],
    )?;
    Ok(format!("the run {run_id} stays cancelled, but by whom is unknown"))
}

pub(super) fn spend_budget(connection: &Connection, loss: &Loss<'_>) -> rusqlite::Result<String> {
    let (Some(scope), Some(day)) = (loss.cells.text("scope"), loss.cells.text("day")) else {
        return Ok("the amount that was spent on a day is lost".to_owned());
    };
    connection.execute(
        "INSERT OR IGNORE INTO budget_days VALUES (?1, ?2, ?3)",
        params![scope, day, ALL_SPENT],
    )?;
    Ok(format!("the daily budget of {day} counts as spent"))
}

/// Raises the epoch to the highest of a schedule, because its row may have vanished. Returns the new
/// epoch if that changed it.
pub(super) fn raise_epoch(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let raised = connection.execute(
        "INSERT INTO meta SELECT 'epoch', highest FROM (SELECT max(epoch) AS highest FROM periods)
         WHERE highest > 0 ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE excluded.value > value",
        [],
    )?;
    if raised == 0 {
        return Ok(None);
    }
    connection
        .query_row("SELECT value FROM meta WHERE name = 'epoch'", [], |row| row.get(0))
        .map(Some)
}

pub(super) fn restore_epoch(connection: &Connection, loss: &Loss<'_>) -> rusqlite::Result<String> {
    if loss.cells.text("name") != Some("epoch") {
        return Ok("its value is lost".to_owned());
    }
    let highest: i64 = connection.query_row(
        "SELECT max(coalesce((SELECT max(epoch) FROM slots), 0), coalesce((SELECT max(epoch) FROM periods), 0))",
        [],
        |row| row.get(0),
    )?;
    keep_meta(connection, "epoch", highest)?;
    Ok(format!("the epoch is {highest}, the highest in the ledger"))
}
