//! Crash recovery: kills the processes that the dead daemon left, and finds out for every run that it
//! left open whether the run continues. Ends the others.
//!
//! *Source*: `docs/design/architecture.md`, "Crash".

mod bound;
mod carry_out;
mod evidence;
mod index;
mod lost;
mod restored;
mod start;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::AssertUnwindSafe;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;

use crate::domain::{Person, RunId, StopReason};
use crate::process::{HostWorkError, Orphans, end_orphans};
use crate::run::{Host, Resumption, RunHistory, RunSpec};
use crate::store::{AppendError, DbError, GivenUp, RunLock};
use crate::text::redact::Redactor;
pub(super) use bound::store_bound;
use carry_out::{Found, Open, carry_out};
use evidence::{KnownFacts, RecordedConfigs, gather};
use index::repair_index;
use lost::{foreign_locks, foreign_to_runs, lock_lost, settle_cancellations, unreadable_rows};
use restored::{Restored, restore_ledger};
pub use start::{RecoveredState, StartError, recover_state};
pub(super) use verdict::RecordedEnd;
use verdict::{start_to_continue, verdict};

/// An open run that recovery has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recovered {
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
pub(super) struct Recovery {
    /// The runs that have ended.
    pub ended: Vec<Recovered>,
    /// The runs that continue, oldest first.
    pub resumable: Vec<Resumable>,
    /// The runs that could neither continue nor end, with the error; they stay open.
    pub failed: BTreeMap<RunId, String>,
    /// A sentence for each part of the state directory that could not be read, for `status`.
    pub unreadable: Vec<String>,
    /// Whether the caller must rebuild the index, because it lacks runs.
    pub must_rebuild_index: bool,
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
async fn recover(host: &Host, redactor: &Redactor) -> io::Result<Recovery> {
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
    let must_rebuild_index = lost.must_rebuild_index;
    let mut recovery = Recovery { unreadable, must_rebuild_index, ..Recovery::default() };
    recovery.unreadable.extend(lost.problems);
    let mut configs = RecordedConfigs::default();
    for (run_id, lock) in abandoned {
        let is_alive = orphans.alive.contains(run_id.as_str());
        let facts = KnownFacts { is_alive, ..KnownFacts::default() };
        let found = recover_run(host, &run_id, lock, facts, redactor, &mut configs).await;
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
                let work = recover_run(host, &run_id, lock, facts, redactor, &mut configs);
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
    match recover_run(host, run_id, lock, facts, redactor, &mut configs).await {
        Ok(Found::Ended(run, lock)) => {
            lock.close().map_err(|error| error.to_string())?;
            Ok(run.began)
        }
        Ok(Found::Continues(_)) => Err("the run did not end".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Decides what happens to an open run, and carries the verdict out.
async fn recover_run(
    host: &Host,
    run_id: &RunId,
    lock: RunLock,
    known: KnownFacts,
    redactor: &Redactor,
    configs: &mut RecordedConfigs,
) -> Result<Found, RecoveryError> {
    let mut evidence = gather(host, run_id, known).await?;
    if evidence.has_record() {
        // Before anything that may hang: a run with a record never begins again.
        host.ledger.get().await?.dequeue(run_id.clone()).await?;
    }
    if let Some(start) = start_to_continue(&evidence) {
        evidence.config = configs.get(host, start).await?;
    }
    let (run_id, slot) = (run_id.clone(), evidence.slot.clone());
    let open = Open { run_id, lock, slot, cut_bytes: evidence.torn_bytes };
    carry_out(host, open, verdict(evidence, host.clock.now()), redactor).await
}

/// Returns how the run of an open slot ended according to its record; `None` if it had not begun.
pub(super) fn recorded_end(host: &Host, run_id: &RunId) -> Option<RecordedEnd> {
    let run = host.state.find_run(run_id)?;
    RecordedEnd::of(RunHistory::read(&run.transcript()))
}

#[cfg(test)]
mod tests;
