//! Finds what is lost or cannot be read in the state directory at the start of the daemon: rows of the
//! ledger, and the lock files of open runs (STATE-7).

use std::collections::HashSet;
use std::io;

use chrono::{DateTime, TimeDelta, Utc};

use super::RecoveryError;
use crate::domain::{Event, RunId};
use crate::run::Host;
use crate::store::{ReadLine, RunDir, RunLock, Unreadable, known, read_lines};

/// The name in `meta` of the last start after which no run was open. Every open run began later.
const CLEAN_SINCE: &str = "clean_since";

/// How much the clock may have been wrong at the last clean start.
const MARGIN: TimeDelta = TimeDelta::days(1);

/// Locks each run that has begun and not ended, and whose lock file is gone.
///
/// *Errors*: a database or a directory of runs cannot be read, or a run cannot be locked.
pub(super) async fn lock_lost(host: &Host) -> Result<Vec<(RunId, RunLock)>, RecoveryError> {
    let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
    let facts = ledger.read(|reader| {
        let mut ended = HashSet::new();
        reader.each_record_end("", |id| {
            ended.insert(id.to_owned());
        })?;
        Ok((ended, reader.meta(CLEAN_SINCE)?))
    });
    let (mut ended, clean_since) = facts.await?;
    ended.extend(index.ids().await?);
    let now = host.clock.now();
    let since = clean_since.and_then(DateTime::from_timestamp_millis);
    let since = since.map_or(DateTime::<Utc>::UNIX_EPOCH, |since| since.min(now) - MARGIN);
    let state = host.state.clone();
    let lost = tokio::task::spawn_blocking(move || state.unlocked_since(since, &ended));
    let mut locked = Vec::new();
    for run in lost.await.map_err(io::Error::other)?? {
        let run_id = run.run_id().clone();
        tracing::error!(%run_id, "an open run has lost its lock file; dutyd recovers it");
        let lock = host.state.lock_run(&run_id, &job_of(&run).unwrap_or_default())?;
        locked.push((run_id, lock));
    }
    Ok(locked)
}

/// Keeps the time of this start if no run is open.
///
/// *Errors*: the ledger or the lock files cannot be read or written.
pub(super) async fn keep_clean_start(host: &Host) -> Result<(), RecoveryError> {
    if host.state.has_open()? {
        return Ok(());
    }
    let now = host.clock.now().timestamp_millis();
    Ok(host.ledger.get().await?.set_meta(CLEAN_SINCE, now).await?)
}

/// Sets the rows of the ledger aside that cannot be read; returns a sentence for each.
///
/// *Errors*: the ledger fails.
pub(super) async fn unreadable_rows(host: &Host) -> Result<Vec<String>, RecoveryError> {
    let ledger = host.ledger.get().await?;
    let rows = ledger.set_unreadable_aside(host.state.clone(), host.clock.now()).await?;
    let report = |row: Unreadable| {
        tracing::error!(%row, "a row of the ledger cannot be read");
        row.to_string()
    };
    Ok(rows.into_iter().map(report).collect())
}

/// Returns a sentence for each file beside the lock files that is none.
///
/// *Errors*: the lock files cannot be read.
pub(super) fn foreign_locks(host: &Host) -> io::Result<Vec<String>> {
    let report = |name: String| {
        let problem = format!("runs/open has {name:?}, which is not the lock of a run; remove it");
        tracing::error!("{problem}");
        problem
    };
    Ok(host.state.foreign_locks()?.into_iter().map(report).collect())
}

/// Returns the job of a run by its first line; `None` if that cannot be read, which recovery reports.
fn job_of(run: &RunDir) -> Option<String> {
    let first: ReadLine = read_lines(&run.transcript()).ok()?.next()?.ok()?;
    match known(&first) {
        Some(Event::SessionStart(start)) => Some(start.job.clone()),
        Some(_) | None => None,
    }
}
