//! Crash recovery: kills the processes that the dead daemon left, and finds out for every run that it
//! left open whether the run continues. Ends the others.
//!
//! *Source*: `docs/design/architecture.md`, "Crash".

mod bound;
mod index;
mod lost;
mod restored;
mod resumable;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::AssertUnwindSafe;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;

use crate::domain::{Event, Outcome, Person, RunId, SessionEnd, StopReason};
use crate::process::{HostWorkError, Orphans, end_orphans};
use crate::run::{Ended, Host, Resumption, RunSpec, millionths, tools_used, unknown_effects};
use crate::store::{
    AppendError, DbError, EndFacts, EndedRuns, GivenUp, ReadLine, RecordEnd, RecordFacts, RunDir,
    RunLock, RunSummary, SlotState, Transcript, TranscriptExtent, TranscriptFacts, known,
    last_line, read_lines, verify,
};
use crate::text::redact::Redactor;
pub(super) use bound::keep_clean;
pub use index::repair_index;
use lost::{foreign_locks, foreign_to_runs, lock_lost, settle_cancellations, unreadable_rows};
pub use restored::{Restored, restore_ledger};
use resumable::{DaemonTimes, RecordedConfigs, decide, resumptions, worked};

/// An open run that recovery has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The id of the run.
    pub run_id: RunId,
    /// Whether its transcript had begun.
    pub began: bool,
    /// Whether its transcript already had its last line.
    pub had_ended: bool,
    /// Bytes that were cut off because the last line was torn.
    pub cut_bytes: u64,
}

/// A run that continues.
#[derive(Debug)]
pub struct Resumable {
    /// The run as it began.
    pub spec: RunSpec,
    pub resumption: Resumption,
}

/// What recovery did.
#[derive(Debug, Default)]
pub struct Recovery {
    /// The runs that have ended.
    pub ended: Vec<Recovered>,
    /// The runs that continue, oldest first.
    pub resumable: Vec<Resumable>,
    /// The runs that could neither continue nor end, with the error; they stay open.
    pub failed: BTreeMap<RunId, String>,
    /// A sentence for each part of the state directory that could not be read, for `status`.
    pub unreadable: Vec<String>,
    /// Whether the caller must rebuild the index, because it lacks runs.
    pub owes_rebuild: bool,
}

impl Recovery {
    fn add(&mut self, run_id: RunId, found: Result<Found, RecoveryError>) {
        match found {
            Ok(Found::Ended(run, lock)) => {
                self.ended.push(run);
                if let Err(error) = lock.close() {
                    tracing::warn!(%run_id, %error, "failed to remove the lock file of an ended run");
                }
            }
            Ok(Found::Continues(run)) => self.resumable.push(*run),
            Err(error) => {
                tracing::error!(%run_id, %error, "failed to recover an open run");
                self.failed.insert(run_id, error.to_string());
            }
        }
    }
}

/// How recovery ends a run that does not continue.
#[derive(Debug, Clone)]
struct RecoveryEnd {
    stop_reason: StopReason,
    /// What went wrong, for the operator.
    error: String,
    /// The person who cancelled the run.
    by: Option<Person>,
}

impl RecoveryEnd {
    fn interrupted(why: &str) -> Self {
        Self {
            stop_reason: StopReason::Interrupted,
            error: format!("the run was cut off and does not continue: {why}"),
            by: None,
        }
    }

    fn given_up(GivenUp { reason, stop_reason, by }: GivenUp) -> Self {
        Self { stop_reason, by, ..Self::interrupted(&reason) }
    }
}

/// What a living daemon knows about a run that it recovers.
#[derive(Default)]
struct KnownFacts {
    /// When the task of the run ended, or when this daemon started if the run is older.
    since: Option<DateTime<Utc>>,
    /// How the run ends; `None` if it may continue.
    end: Option<RecoveryEnd>,
    /// Whether a process of the run is still alive.
    is_alive: bool,
}

/// Why a run with a living process cannot continue yet.
const STILL_ALIVE: &str = "a process of its tools does not end, although it was killed";

/// Why recovery could not end a run.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum RecoveryError {
    Io(#[from] io::Error),
    Append(#[from] AppendError),
    Database(#[from] DbError),
    Host(#[from] HostWorkError),
}

/// Handles every open run that no living process holds: decides whether it continues, and ends it if
/// not. When this returns, the processes that the dead daemon left are gone, and every row of the ledger
/// on which the daemon acts can be read.
///
/// *Errors*: the lock files cannot be read, or the ledger fails.
pub async fn recover(host: &Host, redactor: &Redactor) -> io::Result<Recovery> {
    let state = &host.state;
    let unreadable = unreadable_rows(host).await.map_err(io::Error::other)?;
    let mut abandoned = state.abandoned()?;
    let lost = lock_lost(host).await.map_err(io::Error::other)?;
    abandoned.extend(lost.locked);
    abandoned.sort_by(|(one, _), (other, _)| one.cmp(other));
    let run_ids: BTreeSet<String> =
        abandoned.iter().map(|(run_id, _)| run_id.to_string()).collect();
    let orphans = end_processes(run_ids).await?;
    let killed = orphans.found;
    if killed > 0 {
        tracing::warn!(killed, "killed orphaned tool processes of the previous daemon");
    }
    if let Err(error) = state.clear_temporary().await {
        tracing::warn!(%error, "failed to clear the temporary directories of earlier runs");
    }
    let owes_rebuild = lost.owes_rebuild;
    let mut recovery = Recovery { unreadable, owes_rebuild, ..Recovery::default() };
    recovery.unreadable.extend(lost.problems);
    let mut configs = RecordedConfigs::default();
    for (run_id, lock) in abandoned {
        let is_alive = orphans.alive.contains(run_id.as_str());
        let facts = KnownFacts { is_alive, ..KnownFacts::default() };
        let found = recover_run(host, &run_id, (lock, facts), redactor, &mut configs).await;
        recovery.add(run_id, found);
    }
    for run in &mut recovery.resumable {
        run.resumption.killed = killed;
    }
    recovery.unreadable.extend(foreign_locks(host)?);
    recovery.unreadable.extend(foreign_to_runs(host));
    settle_cancellations(host, &recovery).await.map_err(io::Error::other)?;
    Ok(recovery)
}

/// Ends the processes that a dead daemon left of these runs.
///
/// *Errors*: a bug; whether a process is alive is then unknown.
async fn end_processes(run_ids: BTreeSet<String>) -> io::Result<Orphans> {
    tokio::task::spawn_blocking(move || end_orphans(&run_ids)).await.map_err(io::Error::other)
}

/// Retries the recovery of these runs, each of which has had no task since its time. A panic in one does
/// not stop the others.
pub(super) async fn recover_again(
    host: &Host,
    runs: BTreeMap<RunId, DateTime<Utc>>,
    redactor: &Redactor,
) -> Recovery {
    let mut recovery = Recovery::default();
    let run_ids = runs.keys().map(ToString::to_string).collect();
    let orphans = match end_processes(run_ids).await {
        Ok(orphans) => orphans,
        Err(error) => {
            let failed = runs.into_keys().map(|run_id| (run_id, error.to_string()));
            return Recovery { failed: failed.collect(), ..recovery };
        }
    };
    let mut configs = RecordedConfigs::default();
    for (run_id, since) in runs {
        let found = match host.state.take_lock(&run_id) {
            Ok(Some(lock)) => {
                let is_alive = orphans.alive.contains(run_id.as_str());
                let facts = KnownFacts { since: Some(since), end: None, is_alive };
                let work = recover_run(host, &run_id, (lock, facts), redactor, &mut configs);
                // A bug must not stop the recovery of the other runs.
                let found = AssertUnwindSafe(work).catch_unwind().await;
                let panicked = |_| Err(io::Error::other("a bug in dutyd; see its log").into());
                found.unwrap_or_else(panicked)
            }
            // It has ended, but perhaps not its slot.
            Ok(None) if !host.state.is_open(&run_id) => {
                let run_id = run_id.clone();
                recovery.ended.push(Recovered {
                    run_id,
                    began: true,
                    had_ended: true,
                    cut_bytes: 0,
                });
                continue;
            }
            Ok(None) => Err(io::Error::other("another process holds its lock").into()),
            Err(error) => Err(error.into()),
        };
        recovery.add(run_id, found);
    }
    recovery
}

/// Ends a run of this daemon whose task panicked, as `internal_error`. Returns whether the run had
/// begun.
///
/// *Errors*: why the run stays open.
pub(super) async fn end_panicked(
    host: &Host,
    run_id: &RunId,
    redactor: &Redactor,
) -> Result<bool, String> {
    let lock = match host.state.take_lock(run_id).map_err(|error| error.to_string())? {
        Some(lock) => lock,
        None if host.state.is_open(run_id) => return Err("its lock is held".to_owned()),
        // It panicked before it had a lock, or after its end was complete.
        None => return Ok(host.state.find_run(run_id).is_some()),
    };
    let end = RecoveryEnd {
        stop_reason: StopReason::InternalError,
        error: "a bug in dutyd ended the run; see its log".to_owned(),
        by: None,
    };
    let facts = KnownFacts { since: None, end: Some(end), is_alive: false };
    let mut configs = RecordedConfigs::default();
    match recover_run(host, run_id, (lock, facts), redactor, &mut configs).await {
        Ok(Found::Ended(run, lock)) => {
            lock.close().map_err(|error| error.to_string())?;
            Ok(run.began)
        }
        Ok(Found::Continues(_)) => Err("the run did not end".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// An open run after recovery.
enum Found {
    Ended(Recovered, RunLock),
    Continues(Box<Resumable>),
}

/// Decides whether an open run continues. If not, ends it and fills in what is missing: the last
/// line, the end in the ledger, the row in the index.
async fn recover_run(
    host: &Host,
    run_id: &RunId,
    (lock, facts): (RunLock, KnownFacts),
    redactor: &Redactor,
    configs: &mut RecordedConfigs,
) -> Result<Found, RecoveryError> {
    let nothing =
        Recovered { run_id: run_id.clone(), began: false, had_ended: false, cut_bytes: 0 };
    let run = host.state.find_run(run_id);
    let extent = match run.as_ref().map(|run| TranscriptExtent::measure(&run.transcript())) {
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Some(Ok(extent)) => Some(extent),
        Some(Err(_)) | None => None,
    };
    let Some((run, extent)) = run.as_ref().zip(extent.filter(|extent| extent.whole_bytes > 0))
    else {
        let cut_bytes = extent.map_or(0, |extent| extent.torn_bytes);
        if had_begun(host, run_id, run.as_ref()).await? {
            let why = "its transcript is missing or has no whole line".to_owned();
            interrupt_unverified(host, run_id, (run.as_ref(), &lock), (0, why)).await?;
            return Ok(Found::Ended(Recovered { began: true, ..nothing }, lock));
        }
        // Without its directory, the slot of the run can run under the same id.
        host.state.remove_run(run_id).await?;
        end_given_up(host, run_id).await?;
        return Ok(Found::Ended(Recovered { cut_bytes, ..nothing }, lock));
    };
    extent.cut_torn(&run.transcript())?;
    let cut_bytes = extent.torn_bytes;
    let report = verify(run, &RecordFacts { is_open: true, ..RecordFacts::default() })?;
    let read = match report.ok {
        true => read(run),
        false => Err((report.lines, report.reason.unwrap_or_default())),
    };
    let (lines, row) = match read {
        Ok(read) => read,
        Err(problem) => {
            interrupt_unverified(host, run_id, (Some(run), &lock), problem).await?;
            return Ok(Found::Ended(Recovered { began: true, cut_bytes, ..nothing }, lock));
        }
    };
    let ledger = host.ledger.get().await?;
    ledger.dequeue(run_id.clone()).await?;
    let recovered =
        Recovered { began: true, had_ended: row.outcome.is_some(), cut_bytes, ..nothing };
    if !recovered.had_ended {
        let is_alive = facts.is_alive;
        match decide(host, run_id, &lines, facts, configs).await? {
            // A probe would answer before the effect of that process (PROC-11).
            Ok(_) if is_alive => return Err(io::Error::other(STILL_ALIVE).into()),
            Ok((spec, worked)) => {
                let resumption = Resumption {
                    lock,
                    row,
                    worked,
                    lines: lines.len() as u64,
                    count: resumptions(&lines) + 1,
                    killed: 0,
                    cut_bytes,
                    events: lines.iter().filter_map(known).cloned().collect(),
                };
                return Ok(Found::Continues(Box::new(Resumable { spec, resumption })));
            }
            Err(end) => write_end(host, run, (&row, &lines), (cut_bytes, &end), redactor).await?,
        }
    }
    if let Err(error) = host.state.remove_temporary(run_id).await {
        tracing::warn!(%run_id, %error, "failed to remove the temporary directory of a run");
    }
    let events = || lines.iter().filter_map(known);
    let was_good = matches!(row.outcome, Some(Outcome::Succeeded | Outcome::Planned));
    let has_precheck = events().any(|event| matches!(event, Event::Precheck { .. }));
    let precheck = (was_good && has_precheck)
        .then(|| (row.job.clone(), events().rev().find_map(Event::precheck_answer)));
    // A run that was cut off may have cost more than its transcript says.
    let cost = row.cost_usd.filter(|_| recovered.had_ended).map(millionths);
    let facts = EndFacts { precheck, cost_micro_usd: cost };
    let (lines, hash) = last_line(&run.transcript())?;
    ledger.keep_record_end(run_id.clone(), RecordEnd { lines, hash }, facts).await?;
    let index = host.index.get().await?;
    index.refresh(host.state.clone(), run.clone()).await?;
    Ok(Found::Ended(recovered, lock))
}

/// Ends a run that was given up before it began, and forgets what the ledger has about it.
async fn end_given_up(host: &Host, run_id: &RunId) -> Result<(), DbError> {
    let (id, ledger) = (run_id.clone(), host.ledger.get().await?);
    let given_up = ledger.read(move |reader| reader.given_up(id.as_str())).await?;
    if let Some(GivenUp { reason, stop_reason, .. }) = given_up {
        let (state, reason) = if stop_reason == StopReason::Cancelled {
            (SlotState::Skipped, format!("{reason} before it began"))
        } else {
            (SlotState::Missed, format!("the run did not begin: {reason}"))
        };
        let ended = EndedRuns { runs: vec![run_id.clone()], state, stop_reason, reason };
        ledger.end_waiting(ended, host.clock.now()).await?;
    }
    ledger.forget_unbegun(run_id.clone()).await
}

/// Tells whether a run had begun although its transcript has no whole line, which means that its
/// lines were lost after they were written. A run without a directory counts as begun unless it is
/// queued: it must not vanish.
async fn had_begun(
    host: &Host,
    run_id: &RunId,
    run: Option<&RunDir>,
) -> Result<bool, RecoveryError> {
    let id = run_id.clone();
    let ledger = host.ledger.get().await?;
    let known =
        ledger.read(move |reader| Ok((reader.is_queued(id.as_str())?, reader.open_slot_of(&id)?)));
    let (is_queued, slot) = known.await?;
    // A run leaves the queue only after its first line is on disk.
    Ok(!is_queued
        && (slot.is_some_and(|slot| slot.state == SlotState::Running)
            || run.is_none_or(|run| run.outputs().exists())))
}

/// Returns the lines of a transcript that verifies, and the summary of its run.
///
/// *Errors*: the number of lines before the one that cannot be read, and why.
fn read(run: &RunDir) -> Result<(Vec<ReadLine>, RunSummary), (u64, String)> {
    let mut lines: Vec<ReadLine> = Vec::new();
    let fail = |lines: &[ReadLine], why: &dyn std::fmt::Display| {
        Err((lines.len() as u64, why.to_string()))
    };
    match read_lines(&run.transcript()) {
        Err(error) => return fail(&lines, &error),
        Ok(read) => {
            for line in read {
                match line {
                    Ok(line) => lines.push(line),
                    Err(problem) => return fail(&lines, &problem),
                }
            }
        }
    }
    match RunSummary::fold(&lines) {
        Some(row) => Ok((lines, row)),
        None => fail(&[], &"it does not begin with `session_start`"),
    }
}

/// Gives an open run whose record does not verify a row with the outcome `interrupted`, and leaves
/// its transcript unchanged. The first `lines` lines are intact.
async fn interrupt_unverified(
    host: &Host,
    run_id: &RunId,
    (run, lock): (Option<&RunDir>, &RunLock),
    (lines, reason): (u64, String),
) -> Result<(), RecoveryError> {
    let line = lines + 1;
    tracing::error!(%run_id, line, reason, "the record of an open run is broken; examine it with `dutyd verify`");
    let ledger = host.ledger.get().await?;
    ledger.dequeue(run_id.clone()).await?;
    // The cost of the run is unknown, so all that it reserved counts as spent.
    ledger.release(run_id.clone(), None).await?;
    let lines: Vec<ReadLine> = match run.map(|run| read_lines(&run.transcript())) {
        Some(Ok(lines)) => lines.map_while(Result::ok).collect(),
        Some(Err(_)) | None => Vec::new(),
    };
    let last = lines.last().map(|line| line.ts.clone()).unwrap_or_default();
    let row = match RunSummary::fold(&lines) {
        Some(row) => row.cut(last),
        None => {
            let id = run_id.clone();
            let slot = ledger.read(move |reader| reader.open_slot_of(&id)).await?;
            let job = lock.job().filter(|job| !job.is_empty());
            let job = job.or_else(|| slot.as_ref().map(|slot| slot.key.job.to_string()));
            RunSummary::unreadable(
                run_id,
                job.unwrap_or_default(),
                slot.map(|slot| slot.key.time.due_at),
            )
        }
    };
    Ok(host.index.get().await?.take(row).await?)
}

/// Writes the lines that the run could not write: a warning about a torn line, a warning for each
/// call whose effect is unknown, and the end.
async fn write_end(
    host: &Host,
    run: &RunDir,
    (row, lines): (&RunSummary, &[ReadLine]),
    (cut_bytes, end): (u64, &RecoveryEnd),
    redactor: &Redactor,
) -> Result<(), RecoveryError> {
    let facts = TranscriptFacts {
        run_id: run.run_id().clone(),
        session_id: run.run_id().to_string(),
        redactor: redactor.clone(),
        clock: host.clock.clone(),
    };
    let transcript = Transcript::open(&run.transcript(), facts, |_| {})?;
    if cut_bytes > 0 {
        let message = format!("cut {cut_bytes} bytes of a torn last line");
        transcript.append(Event::warning("torn_tail", message)).await?;
    }
    for warning in unknown_effects(lines.iter().filter_map(known)) {
        transcript.append(warning).await?;
    }
    transcript.append(Event::SessionEnd(Box::new(session_end(row, lines, end)))).await?;
    Ok(())
}

/// Returns the end of a run that was cut off, with the usage and the cost up to its last line.
fn session_end(row: &RunSummary, lines: &[ReadLine], end: &RecoveryEnd) -> SessionEnd {
    let tools = tools_used(lines.iter().filter_map(known));
    SessionEnd {
        outcome: end.stop_reason.outcome(),
        stop_reason: end.stop_reason,
        iterations: row.iterations,
        tool_calls: row.tool_calls,
        tools_used: tools.into_iter().collect(),
        usage: row.usage,
        cost_usd: row.cost_usd,
        cost_estimated: row.cost_estimated,
        duration_ms: u64::try_from(worked(lines, &DaemonTimes::default()).as_millis())
            .unwrap_or(u64::MAX),
        by: end.by.clone(),
        ..Ended::interrupted_end(&end.error)
    }
}

#[cfg(test)]
mod tests;
