//! Finds what is lost or cannot be read in the state directory at the start of the daemon: rows of the
//! ledger, and the lock files of open runs (STATE-7).

use std::collections::HashSet;
use std::io;

use super::bound::{first_id, read_bound};
use super::{Recovery, RecoveryError};
use crate::domain::RunId;
use crate::run::{Host, RunHistory};
use crate::store::{RunDir, RunLock, Unreadable};

/// The runs that have no lock file and that neither database knows.
#[derive(Default)]
pub(super) struct LostLocks {
    /// The open ones, now locked.
    pub(super) locked: Vec<(RunId, RunLock)>,
    /// Whether the index lacks runs that have ended.
    pub(super) must_rebuild_index: bool,
    /// A sentence for each directory that cannot be read.
    pub(super) problems: Vec<String>,
}

/// Locks each run that has begun and not ended, and whose lock file is gone.
///
/// *Errors*: a database cannot be read, or a run cannot be locked.
pub(super) async fn lock_lost(host: &Host) -> Result<LostLocks, RecoveryError> {
    let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
    let since = read_bound(host).await?;
    let (first, from) = (first_id(since), first_id(since));
    let ended = ledger.read(move |reader| {
        let mut ended = HashSet::new();
        reader.each_record_end(&from, |id| {
            ended.insert(id.to_owned());
        })?;
        Ok(ended)
    });
    let mut ended = ended.await?;
    ended.extend(index.ids(first).await?);
    let state = host.state.clone();
    let lost = tokio::task::spawn_blocking(move || state.unlocked_since(since, &ended));
    let lost = lost.await.map_err(io::Error::other)?;
    let mut found = LostLocks { must_rebuild_index: lost.ended > 0, ..LostLocks::default() };
    if lost.ended > 0 {
        tracing::warn!(runs = lost.ended, "the ledger and the index lack runs that have ended");
    }
    if let Some(error) = lost.unreadable {
        let problem = format!(
            "a directory of runs cannot be read, so an open run in it does not end: {error}"
        );
        tracing::error!("{problem}");
        found.problems.push(problem);
    }
    for run in lost.open {
        let run_id = run.run_id().clone();
        tracing::error!(%run_id, "an open run has lost its lock file; dutyd recovers it");
        let lock = host.state.lock_run(&run_id, &job_of(&run).unwrap_or_default())?;
        found.locked.push((run_id, lock));
    }
    Ok(found)
}

/// Sets aside the rows of the ledger that cannot be read; returns a sentence for each.
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

/// Returns a sentence for each entry of `runs/open` that is not the lock file of a run.
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

/// Forgets that cancellations are lost, once every run that may have been cancelled has ended.
///
/// *Errors*: the ledger fails.
pub(super) async fn settle_cancellations(
    host: &Host,
    recovery: &Recovery,
) -> Result<(), RecoveryError> {
    if recovery.failed.is_empty() {
        host.ledger.get().await?.settle_cancellations().await?;
    }
    Ok(())
}

/// Returns a sentence for each file that stands among the directories of runs.
pub(super) fn foreign_to_runs(host: &Host) -> Vec<String> {
    // `lock_lost` reports a directory that cannot be read.
    let Ok(found) = host.state.foreign_to_runs() else { return Vec::new() };
    let report = |path: std::path::PathBuf| {
        let problem = format!("{} is not a directory of runs; remove it", path.display());
        tracing::error!("{problem}");
        problem
    };
    found.into_iter().map(report).collect()
}

/// Returns the job of a run by its first line; `None` if that cannot be read, which recovery reports.
fn job_of(run: &RunDir) -> Option<String> {
    RunHistory::read_start(&run.transcript()).map(|start| start.job)
}
