//! Restores the slots of a lost ledger from the runs that they started.

use chrono::{DateTime, Utc};

use super::Resumable;
use crate::config::Config;
use crate::domain::{RunId, StopReason};
use crate::run::Host;
use crate::store::{DbError, RunSummary, Slot, SlotState};

/// If the ledger is blank, adds a slot for each run in the index and for each run that continues, as
/// far as the run has a due time. Returns the number of slots.
///
/// Rebuilds the index first. The slots are in epoch 0: the earlier epochs are lost.
/// *Errors*: a database fails.
pub async fn restore_slots(
    host: &Host,
    config: &Config,
    resumable: &[Resumable],
) -> Result<usize, DbError> {
    let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
    if !ledger.is_blank().await? {
        return Ok(0);
    }
    index.rebuild(host.state.clone()).await?;
    let open = resumable.iter().map(|run| (&run.resumption.row, SlotState::Running));
    let ended = index.runs_of_slots().await?;
    let ended = ended.iter().map(|row| (row, state_of(row.stop_reason)));
    let slots = open.chain(ended).filter_map(|(row, state)| slot(row, state, config));
    let slots: Vec<Slot> = slots.collect();
    let count = slots.len();
    ledger.restore(slots, host.clock.now()).await?;
    Ok(count)
}

fn state_of(stop_reason: Option<StopReason>) -> SlotState {
    match stop_reason {
        Some(StopReason::PreflightFailed) => SlotState::Blocked,
        Some(StopReason::NotNeeded) => SlotState::NotNeeded,
        _ => SlotState::Ran,
    }
}

/// Returns the slot of a run; `None` if the run has no due time.
fn slot(row: &RunSummary, state: SlotState, config: &Config) -> Option<Slot> {
    let due_at =
        DateTime::parse_from_rfc3339(row.scheduled_for.as_deref()?).ok()?.with_timezone(&Utc);
    let schedule = config.jobs.get(row.job.as_str()).and_then(|job| job.schedule.as_ref());
    let zone = schedule.map_or(config.settings.timezone, |schedule| schedule.zone());
    let ended = match (row.outcome, row.stop_reason) {
        (Some(outcome), Some(stop_reason)) => format!("{outcome} ({stop_reason})"),
        _ => "running".to_owned(),
    };
    Some(Slot {
        job: row.job.clone(),
        epoch: 0,
        due_at,
        span: None,
        is_backfill: false,
        state,
        run_id: RunId::parse(&row.run_id).ok(),
        reason: format!("{ended}; restored from the record of its run"),
        zone: zone.name().to_owned(),
        config_digest: row.config_digest.clone().unwrap_or_default(),
        left: None,
        queued: None,
    })
}
