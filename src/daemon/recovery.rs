//! Crash recovery: kills the processes that the dead daemon left, and finds out for every run that it
//! left open whether the run continues. Ends the others.
//!
//! *Source*: `docs/design/architecture.md`, "Crash".

mod restored;
mod resumable;

use std::collections::BTreeSet;
use std::io;

use crate::domain::{Event, Outcome, RunId, SessionEnd};
use crate::process::end_orphans;
use crate::run::{Ended, Host, Resumption, RunSpec, millionths};
use crate::store::{
    AppendError, DbError, EndFacts, ReadLine, ReadProblem, RecordEnd, RecordFacts, RunDir, RunLock,
    RunSummary, Transcript, TranscriptFacts, known, last_line, read_lines, repair_tail, verify,
};
use crate::text::redact::Redactor;
pub use restored::restore_slots;
use resumable::{resumable, resumptions, worked};

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
}

/// Why recovery could not end a run.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum RecoveryError {
    Io(#[from] io::Error),
    Read(#[from] ReadProblem),
    Append(#[from] AppendError),
    Database(#[from] DbError),
}

/// Handles every open run that no living process holds: decides whether it continues, and ends it if
/// not. When this returns, the processes that the dead daemon left are gone.
///
/// *Errors*: the lock files cannot be read. If a run cannot be ended, the error is logged and the
/// run stays open until the next start of the daemon.
pub async fn recover(host: &Host, redactor: &Redactor) -> io::Result<Recovery> {
    let state = &host.state;
    let mut abandoned = state.abandoned()?;
    abandoned.sort_by(|(one, _), (other, _)| one.cmp(other));
    let run_ids: BTreeSet<String> =
        abandoned.iter().map(|(run_id, _)| run_id.to_string()).collect();
    let killed = tokio::task::spawn_blocking(move || end_orphans(&run_ids)).await.unwrap_or(0);
    if killed > 0 {
        tracing::warn!(killed, "killed orphaned tool processes of the previous daemon");
    }
    if let Err(error) = state.clear_temporary().await {
        tracing::warn!(%error, "failed to clear the temporary directories of earlier runs");
    }
    let mut recovery = Recovery::default();
    for (run_id, lock) in abandoned {
        match recover_run(host, &run_id, lock, redactor).await {
            Ok(Found::Ended(run, lock)) => {
                recovery.ended.push(run);
                if let Err(error) = lock.close() {
                    tracing::warn!(%run_id, %error, "failed to remove the lock file of an ended run");
                }
            }
            Ok(Found::Continues(mut run)) => {
                run.resumption.killed = killed;
                recovery.resumable.push(*run);
            }
            Err(error) => tracing::error!(%run_id, %error, "failed to end an interrupted run"),
        }
    }
    Ok(recovery)
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
    lock: RunLock,
    redactor: &Redactor,
) -> Result<Found, RecoveryError> {
    let nothing =
        Recovered { run_id: run_id.clone(), began: false, had_ended: false, cut_bytes: 0 };
    let Some(run) = host.state.find_run(run_id).filter(|run| run.transcript().exists()) else {
        host.state.remove_run(run_id).await?;
        return Ok(Found::Ended(nothing, lock));
    };
    let cut_bytes = repair_tail(&run.transcript())?;
    if run.transcript().metadata()?.len() == 0 {
        // The run had not begun. Without its directory, its slot can run under the same id.
        host.state.remove_run(run_id).await?;
        return Ok(Found::Ended(Recovered { cut_bytes, ..nothing }, lock));
    }
    let facts = RecordFacts { is_open: true, ..RecordFacts::default() };
    let report = verify(&run, &facts)?;
    if !report.ok {
        let (lines, reason) = (report.lines, report.reason.unwrap_or_default());
        tracing::error!(%run_id, lines, reason, "the record of an open run is broken, so the run does not continue, and its transcript stays as it is");
        keep_broken(host, &run).await?;
        return Ok(Found::Ended(Recovered { began: true, cut_bytes, ..nothing }, lock));
    }
    let lines = lines(&run)?;
    let Some(row) = RunSummary::fold(&lines) else {
        return Ok(Found::Ended(Recovered { cut_bytes, ..nothing }, lock));
    };
    let ledger = host.ledger.get().await?;
    ledger.dequeue(run_id.clone()).await?;
    let recovered =
        Recovered { began: true, had_ended: row.outcome.is_some(), cut_bytes, ..nothing };
    if !recovered.had_ended {
        let id = run_id.clone();
        let facts = ledger
            .read(move |reader| Ok((reader.meta("last_seen")?, reader.given_up(id.as_str())?)));
        let (last_seen, given_up) = facts.await?;
        let last_seen = last_seen.and_then(chrono::DateTime::from_timestamp_millis);
        let resumable = match given_up {
            Some(why) => Err(why),
            None => resumable(host, run_id, &lines, last_seen),
        };
        match resumable {
            Ok(spec) => {
                let resumption = Resumption {
                    lock,
                    row,
                    worked: worked(&lines, last_seen),
                    lines: lines.len() as u64,
                    count: resumptions(&lines) + 1,
                    killed: 0,
                    cut_bytes,
                    events: lines.iter().filter_map(known).cloned().collect(),
                };
                return Ok(Found::Continues(Box::new(Resumable { spec, resumption })));
            }
            Err(why) => {
                let why = format!("the daemon stopped during the run: {why}");
                write_end(host, &run, (&row, &lines), (cut_bytes, &why), redactor).await?;
            }
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
    index.refresh(host.state.clone(), run).await?;
    Ok(Found::Ended(recovered, lock))
}

/// Adds the row of a run whose record is broken: it says `interrupted`. Leaves the record as it is.
async fn keep_broken(host: &Host, run: &RunDir) -> Result<(), RecoveryError> {
    host.ledger.get().await?.dequeue(run.run_id().clone()).await?;
    let lines: Vec<ReadLine> = read_lines(&run.transcript())?.map_while(Result::ok).collect();
    let last = lines.last().map(|line| line.ts.clone()).unwrap_or_default();
    match RunSummary::fold(&lines) {
        Some(row) => Ok(host.index.get().await?.take(row.cut(last)).await?),
        None => Ok(()),
    }
}

/// Adds the runs that the ledger knows and the index lacks. Returns their number.
///
/// *Errors*: a database fails.
pub async fn repair_index(host: &Host) -> Result<usize, DbError> {
    let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
    let ended = ledger.read(|reader| {
        let mut ids = Vec::new();
        reader.each_record_end("", |id| ids.push(id.to_owned()))?;
        Ok(ids)
    });
    let (ended, indexed) = (ended.await?, index.ids().await?);
    let missing = ended.into_iter().filter(|id| !indexed.contains(id));
    let missing: Vec<RunId> = missing.filter_map(|id| RunId::parse(&id).ok()).collect();
    let mut added = 0;
    for run_id in missing {
        // A run that was removed has no row either.
        if let Some(run) = host.state.find_run(&run_id) {
            index.refresh(host.state.clone(), run).await?;
            added += 1;
        }
    }
    Ok(added)
}

/// Writes the lines that the interrupted run could not write: a warning about a torn line, a
/// warning for each call whose effect is unknown, and the end.
async fn write_end(
    host: &Host,
    run: &RunDir,
    (row, lines): (&RunSummary, &[ReadLine]),
    (cut_bytes, why): (u64, &str),
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
    for call_id in open_calls(lines) {
        let message =
            format!("the daemon stopped during the call {call_id}; its effect is unknown");
        transcript.append(Event::warning("effect_unknown", message)).await?;
    }
    transcript.append(Event::SessionEnd(Box::new(session_end(row, lines, why)))).await?;
    Ok(())
}

fn lines(run: &RunDir) -> Result<Vec<ReadLine>, RecoveryError> {
    Ok(read_lines(&run.transcript())?.collect::<Result<_, _>>()?)
}

/// Returns the ids of calls that started and have no result.
fn open_calls(lines: &[ReadLine]) -> BTreeSet<String> {
    let mut open = BTreeSet::new();
    for event in lines.iter().filter_map(known) {
        match event {
            Event::ToolCallStart(start) => drop(open.insert(start.call_id.to_string())),
            Event::ToolCallEnd(end) => drop(open.remove(end.call_id.as_str())),
            _ => {}
        }
    }
    open
}

/// Returns the end of an interrupted run, with the usage and the cost up to its last line.
fn session_end(row: &RunSummary, lines: &[ReadLine], why: &str) -> SessionEnd {
    let names = lines.iter().filter_map(known).filter_map(|event| match event {
        Event::ToolCallStart(start) => Some(start.name.clone()),
        _ => None,
    });
    let tools: BTreeSet<String> = names.collect();
    SessionEnd {
        iterations: row.iterations,
        tool_calls: row.tool_calls,
        tools_used: tools.into_iter().collect(),
        usage: row.usage,
        cost_usd: row.cost_usd,
        duration_ms: u64::try_from(worked(lines, None).as_millis()).unwrap_or(u64::MAX),
        ..Ended::interrupted_end(why)
    }
}

#[cfg(test)]
mod tests;
