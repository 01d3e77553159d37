//! The order of a start, up to the point where the supervisor decides slots: open runs, budgets,
//! orphaned processes, index, ledger. Each step relies on those before it.

use std::collections::BTreeMap;
use std::io;

use chrono::{DateTime, Utc};

use super::{Recovery, Restored, Resumable, recover, repair_index, restore_ledger};
use crate::config::Config;
use crate::domain::{JobName, RunId};
use crate::run::{Host, release_abandoned};
use crate::store::{DbError, LedgerFound};
use crate::text::redact::Redactor;

/// The open runs and the losses that remain after recovery.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// The runs that continue, oldest first.
    pub resumable: Vec<Resumable>,
    /// The open runs that can neither continue nor end yet, and why.
    pub failed: BTreeMap<RunId, String>,
    /// For each job of an older ledger, the newest due time whose run was found.
    pub recorded_until: BTreeMap<JobName, DateTime<Utc>>,
    /// A sentence for each loss, for `status`.
    pub problems: Vec<String>,
}

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot recover open runs: {0}")]
    Recover(#[source] io::Error),
    #[error("cannot settle the daily budgets: {0}")]
    Budgets(#[source] DbError),
    #[error("cannot rebuild the index: {0}")]
    RebuildIndex(#[source] DbError),
    #[error("cannot repair the index: {0}")]
    RepairIndex(#[source] DbError),
    #[error("cannot restore the ledger: {0}")]
    RestoreLedger(#[source] DbError),
}

/// Recovers the state of the previous daemon, and brings the index and the ledger up to the records.
/// `found` is how the ledger was opened; `must_rebuild_index` tells whether the index lacks runs.
///
/// *Errors*: [`StartError`].
pub async fn recover_state(
    host: &Host,
    config: &Config,
    found: &LedgerFound,
    must_rebuild_index: bool,
) -> Result<RecoveredState, StartError> {
    let redactor = Redactor::new(&config.secrets);
    let recovery = recover(host, &redactor).await.map_err(StartError::Recover)?;
    release_abandoned(host).await.map_err(StartError::Budgets)?;
    end_orphans_of_groups(host).await;
    log(&recovery);
    if must_rebuild_index || recovery.must_rebuild_index {
        rebuild_index(host).await.map_err(StartError::RebuildIndex)?;
    } else {
        let added = repair_index(host).await.map_err(StartError::RepairIndex)?;
        if added > 0 {
            tracing::warn!(added, "added runs that were missing in the index");
        }
    }
    let Recovery { resumable, failed, unreadable, .. } = recovery;
    let restored = restore_ledger(host, config, &resumable, found).await;
    let Restored { mut problems, recorded_until } = restored.map_err(StartError::RestoreLedger)?;
    problems.extend(unreadable);
    Ok(RecoveredState { resumable, failed, recorded_until, problems })
}

async fn rebuild_index(host: &Host) -> Result<(), DbError> {
    host.index.get().await?.rebuild(host.state.clone()).await.map(drop)
}

/// Ends the processes that are left in the control groups of earlier runs.
async fn end_orphans_of_groups(host: &Host) {
    let Some(groups) = host.groups.clone() else { return };
    let state = host.state.clone();
    let is_ours = move |run_id: &str| {
        RunId::parse(run_id).is_ok_and(|run_id| state.find_run(&run_id).is_some())
    };
    match tokio::task::spawn_blocking(move || groups.end_orphans(is_ours)).await {
        Ok(0) => {}
        Ok(killed) => tracing::warn!(
            killed,
            "killed orphaned processes in the control groups of the previous daemon's runs"
        ),
        Err(error) => tracing::error!(%error, "cannot end the processes in earlier control groups"),
    }
}

fn log(recovery: &Recovery) {
    for run in &recovery.resumable {
        tracing::warn!(run_id = %run.spec.run_id, job = %run.spec.job.name, "the daemon stopped during a run; the run continues");
    }
    for run in recovery.ended.iter().filter(|run| run.began && !run.had_ended) {
        tracing::warn!(run_id = %run.run_id, cut_bytes = run.cut_bytes, "ended an open run of the previous daemon");
    }
}
