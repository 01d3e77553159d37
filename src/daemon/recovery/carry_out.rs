//! Carries the verdict about an open run out: writes what its record, the ledger and the index lack.

use std::io;

use super::evidence::DaemonTimes;
use super::verdict::{Verdict, worked};
use super::{Recovered, RecoveryEnd, RecoveryError, Resumable};
use crate::domain::{Event, JobName, Outcome, RunId, SessionEnd, StopReason};
use crate::run::{
    BrokenRecord, Ended, Host, Resumption, RunHistory, millionths, notice_of_broken,
    notice_of_record, notice_of_recovered,
};
use crate::store::{
    DbError, EndFacts, EndedRuns, GivenUp, OpenSlot, RecordEnd, RunDir, RunLock, RunSummary,
    SlotState, Transcript, TranscriptFacts,
};
use crate::text::redact::Redactor;

/// An open run after recovery.
pub(super) enum Found {
    Ended(Recovered, RunLock),
    Continues(Box<Resumable>),
}

/// An open run that recovery holds.
pub(super) struct Open {
    pub(super) run_id: RunId,
    pub(super) lock: RunLock,
    /// The slot that waits for the run.
    pub(super) slot: Option<OpenSlot>,
    /// Bytes that were cut off because the last line was torn.
    pub(super) cut_bytes: u64,
}

/// Carries out what the verdict says about an open run.
///
/// *Errors*: something cannot be written, or the verdict is to wait; the run then stays open.
pub(super) async fn carry_out(
    host: &Host,
    open: Open,
    verdict: Verdict,
    redactor: &Redactor,
) -> Result<Found, RecoveryError> {
    let run_id = open.run_id.clone();
    let recovered = Recovered {
        run_id: run_id.clone(),
        began: true,
        had_ended: false,
        cut_bytes: open.cut_bytes,
    };
    let recovered = match verdict {
        Verdict::Forget { given_up } => {
            // Without its directory, the slot of the run can run under the same id.
            host.state.remove_run(&run_id).await?;
            end_given_up(host, &run_id, given_up).await?;
            Recovered { began: false, ..recovered }
        }
        Verdict::Interrupt(broken) => {
            interrupt(host, &open, broken).await?;
            recovered
        }
        Verdict::Settle { history, end } => {
            let row = history.summary();
            let was_good = matches!(row.outcome, Some(Outcome::Succeeded | Outcome::Planned));
            let has_precheck = was_good && history.precheck.found_work.is_some();
            let answer = history.precheck.answer().filter(|_| has_precheck);
            let facts = EndFacts {
                precheck: answer.map(|answer| (row.job.clone(), answer)),
                cost_micro_usd: row.cost_usd.map(millionths),
                notice: notice_of_record(&history, &run_id, host.clock.now()),
            };
            settle(host, &run_id, end, facts).await?;
            Recovered { had_ended: true, ..recovered }
        }
        Verdict::End { history, end, reason } => {
            if let Some(reason) = reason {
                let ledger = host.ledger.get().await?;
                ledger.give_up(run_id.clone(), GivenUp::interrupted(reason)).await?;
            }
            let (end, last_line) = write_end(host, &open, &history, &end, redactor).await?;
            // A run that was cut off may have cost more than its transcript says.
            let notice = notice_of_recovered(&history, &run_id, &last_line, host.clock.now());
            let facts = EndFacts { precheck: None, cost_micro_usd: None, notice };
            settle(host, &run_id, end, facts).await?;
            recovered
        }
        Verdict::Resume { history, spec, worked } => {
            let Open { lock, cut_bytes, .. } = open;
            let (history, killed) = (*history, 0);
            let resumption = Resumption { lock, history, worked, killed, cut_bytes };
            return Ok(Found::Continues(Box::new(Resumable { spec: *spec, resumption })));
        }
        Verdict::Wait(why) => return Err(io::Error::other(why).into()),
    };
    Ok(Found::Ended(recovered, open.lock))
}

/// Returns the directory of a run.
///
/// *Errors*: it has gone since its record was read.
fn directory(host: &Host, run_id: &RunId) -> io::Result<RunDir> {
    let gone = || io::Error::other("the directory of the run has gone");
    host.state.find_run(run_id).ok_or_else(gone)
}

/// Keeps the end of a record in the ledger and in the index.
async fn settle(
    host: &Host,
    run_id: &RunId,
    end: RecordEnd,
    facts: EndFacts,
) -> Result<(), RecoveryError> {
    let run = directory(host, run_id)?;
    if let Err(error) = host.state.remove_temporary(run_id).await {
        tracing::warn!(%run_id, %error, "failed to remove the temporary directory of a run");
    }
    host.ledger.get().await?.keep_record_end(run_id.clone(), end.clone(), facts).await?;
    // As the daemon logs the end of a run: `verify --against` reads the line.
    let RecordEnd { lines, hash: head } = end;
    tracing::info!(%run_id, lines, %head, "run ended");
    let index = host.index.get().await?;
    Ok(index.refresh(host.state.clone(), run).await?)
}

/// Ends a run that was given up before it began, and forgets what the ledger has about it.
async fn end_given_up(
    host: &Host,
    run_id: &RunId,
    given_up: Option<GivenUp>,
) -> Result<(), DbError> {
    let ledger = host.ledger.get().await?;
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

/// Gives an open run whose record cannot be trusted a row with the outcome `interrupted`, and leaves
/// its transcript unchanged.
async fn interrupt(host: &Host, open: &Open, broken: BrokenRecord) -> Result<(), RecoveryError> {
    let BrokenRecord { intact, lines, why } = broken;
    let (run_id, line) = (&open.run_id, lines + 1);
    tracing::error!(%run_id, line, reason = why, "the record of an open run is broken; examine it with `dutyd verify`");
    let ledger = host.ledger.get().await?;
    ledger.dequeue(run_id.clone()).await?;
    // The cost of the run is unknown, so all that it reserved counts as spent.
    ledger.release(run_id.clone(), None).await?;
    let row = match intact {
        Some(history) => history.summary().clone().cut(history.last_ts),
        None => {
            let slot = open.slot.as_ref().map(|slot| &slot.key);
            let job = open.lock.job().filter(|job| !job.is_empty());
            let job = job.or_else(|| slot.map(|slot| slot.job.to_string()));
            let due_at = slot.map(|slot| slot.time.due_at);
            RunSummary::unreadable(run_id, job.unwrap_or_default(), due_at)
        }
    };
    if let Ok(job) = JobName::parse(&row.job) {
        let notice = notice_of_broken(run_id, job, &why, host.clock.now());
        ledger.keep_run_notice(notice).await?;
    }
    Ok(host.index.get().await?.take(row).await?)
}

/// Writes the lines that the run could not write: a warning about a torn line, a warning for each
/// call whose effect is unknown, and the end. Returns the end of the record, and its last line.
async fn write_end(
    host: &Host,
    open: &Open,
    history: &RunHistory,
    end: &RecoveryEnd,
    redactor: &Redactor,
) -> Result<(RecordEnd, SessionEnd), RecoveryError> {
    let Open { run_id, cut_bytes, .. } = open;
    let run = directory(host, run_id)?;
    let facts = TranscriptFacts {
        run_id: run_id.clone(),
        session_id: run_id.to_string(),
        redactor: redactor.clone(),
        clock: host.clock.clone(),
    };
    let transcript = Transcript::open(&run.transcript(), facts, |_| {})?;
    if *cut_bytes > 0 {
        let message = format!("cut {cut_bytes} bytes of a torn last line");
        transcript.append(Event::warning("torn_tail", message)).await?;
    }
    for warning in history.unknown_effects() {
        transcript.append(warning).await?;
    }
    let end = session_end(history, end);
    let appended = transcript.append(Event::SessionEnd(Box::new(end.clone()))).await?;
    Ok((RecordEnd { lines: appended.seq + 1, hash: appended.hash }, end))
}

/// Returns the end of a run that was cut off, with the usage and the cost up to its last line.
fn session_end(history: &RunHistory, end: &RecoveryEnd) -> SessionEnd {
    let row = history.summary();
    SessionEnd {
        outcome: end.stop_reason.outcome(),
        stop_reason: end.stop_reason,
        iterations: row.iterations,
        tool_calls: row.tool_calls,
        tools_used: history.tools_used.iter().cloned().collect(),
        usage: row.usage,
        cost_usd: row.cost_usd,
        cost_estimated: row.cost_estimated,
        duration_ms: u64::try_from(worked(history, &DaemonTimes::default()).as_millis())
            .unwrap_or(u64::MAX),
        by: end.by.clone(),
        ..Ended::interrupted_end(&end.error)
    }
}
