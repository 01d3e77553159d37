//! Restores a ledger that is lost, or older than the records of the runs: the slots from the runs that
//! they started, and the pauses of all jobs if nothing tells which ones were paused.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use chrono::{DateTime, Utc};

use super::Resumable;
use super::bound::{first_id, read_bound, store_bound};
use crate::config::Config;
use crate::domain::{
    Epoch, JobName, Plan, PlanState, RunId, SlotKey, SlotTime, StopReason, Trigger,
};
use crate::run::{BrokenRecord, Host, RecordRead, RunHistory, spend_budgets};
use crate::store::{
    DbError, LedgerFound, Restrictions, RunDir, RunSummary, Slot, SlotState, StateDir,
};

/// The result of restoring a ledger.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// A sentence about each loss, for the operator.
    pub problems: Vec<String>,
    /// For each job of an older ledger, the newest due time whose run was found. An earlier due time
    /// without a row was decided, but the decision is lost.
    pub recorded_until: BTreeMap<JobName, DateTime<Utc>>,
}

/// Brings a lost or older ledger up to the records of the runs, before any slot is claimed. `found` is
/// how the ledger was opened.
///
/// *Errors*: a database fails, or the records cannot be read.
pub(super) async fn restore_ledger(
    host: &Host,
    config: &Config,
    resumable: &[Resumable],
    found: &LedgerFound,
) -> Result<Restored, DbError> {
    let is_blank = host.ledger.get().await?.is_blank().await?;
    let unknown = if is_blank && found.is_lost() { Vec::new() } else { unknown(host).await? };
    let mut plans = end_tried_plans(host, &unknown).await?;
    if !matches!(found.restrictions, Restrictions::Own | Restrictions::First) {
        let pruned = pruned_plans(host).await?;
        plans += host.ledger.get().await?.end_tried_plans(pruned).await?;
    }
    let (slots, recorded_until) = if is_blank {
        (restore_lost(host, config, resumable).await?, BTreeMap::new())
    } else {
        let slots = fold_in(host, config, resumable, &unknown).await?;
        (slots.len(), newest(&slots))
    };
    let is_older = plans > 0 || (!is_blank && slots > 0);
    let mut problems = Vec::new();
    if found.is_lost() || (is_blank && slots > 0) {
        problems.push(lost(slots, found.restrictions));
    } else if is_older {
        problems.push(format!(
            "the ledger is older than the records of the runs: {slots} slots and {plans} applied plans were taken from the records; pauses, plans and waiting attempts since then may be gone"
        ));
    }
    problems.extend(about(found.restrictions).map(str::to_owned));
    // Without a `guards.json`, nothing tells whether a job was paused after an older ledger was written.
    let is_unguarded =
        is_older && matches!(found.restrictions, Restrictions::Unchecked | Restrictions::First);
    if found.restrictions == Restrictions::Gone || is_unguarded {
        pause_all(host, config).await?;
        spend_budgets(config, host).await?;
        problems.push(UNGUARDED.to_owned());
    }
    problems.iter().for_each(|problem| tracing::error!(problem, "the ledger was restored"));
    // From now on, the ledger has every run that is over.
    store_bound(host, None).await?;
    Ok(Restored { problems, recorded_until })
}

/// What follows from the loss of the ledger and of `guards.json`.
const UNGUARDED: &str = "guards.json is missing, so every job is paused until `dutyd unpause JOB`, no tool of an MCP server is accepted until `dutyd mcp accept SERVER`, no earlier plan can be applied, and the daily budgets of today count as spent";

/// Returns the sentence about a ledger that is not lost, and a `guards.json` that does not agree with it.
fn about(restrictions: Restrictions) -> Option<&'static str> {
    match restrictions {
        Restrictions::Own | Restrictions::First | Restrictions::Restored | Restrictions::Gone => {
            None
        }
        Restrictions::Newer => Some(
            "the ledger is older than guards.json: pauses, accepted MCP tools, spent budgets, cancellations and decisions about plans were taken from there",
        ),
        Restrictions::Merged => Some(
            "the ledger and guards.json did not agree, so one of them was damaged or replaced: every pause, accepted MCP tool, spent budget, cancellation and decision about a plan that guards.json held is in effect; check `dutyd jobs`, `dutyd mcp` and `dutyd plans`",
        ),
        Restrictions::Unchecked => Some(
            "guards.json was missing or could not be read; it was written again from the ledger, and the open runs did not continue",
        ),
    }
}

/// Returns the sentence about a lost ledger.
fn lost(slots: usize, restrictions: Restrictions) -> String {
    let kept = match restrictions {
        Restrictions::Gone => "",
        Restrictions::Own
        | Restrictions::First
        | Restrictions::Unchecked
        | Restrictions::Newer
        | Restrictions::Merged
        | Restrictions::Restored => {
            "pauses, accepted MCP tools and spent budgets were taken from guards.json; "
        }
    };
    format!(
        "the ledger was lost: {slots} slots were restored from the records of their runs; {kept}plans, waiting attempts and answers of prechecks are gone"
    )
}

/// Pauses every job that the configuration or a record names.
async fn pause_all(host: &Host, config: &Config) -> Result<(), DbError> {
    let recorded = host.index.get().await?.last_runs().await?;
    let jobs: BTreeSet<String> =
        config.jobs.keys().map(ToString::to_string).chain(recorded.into_keys()).collect();
    let note = "the ledger and guards.json were lost, and this job may have been paused".to_owned();
    let ledger = host.ledger.get().await?;
    ledger.pause_after_loss(jobs.into_iter().collect(), note, host.clock.now()).await
}

/// Adds a slot for each run in the index and for each run that continues, as far as the run has a due
/// time. Returns the number of slots.
///
/// Rebuilds the index first. The slots are in epoch 0: the earlier epochs are lost.
async fn restore_lost(
    host: &Host,
    config: &Config,
    resumable: &[Resumable],
) -> Result<usize, DbError> {
    let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
    index.rebuild(host.state.clone()).await?;
    let open = resumable.iter().map(|run| (run.resumption.history.summary(), SlotState::Running));
    let ended = index.runs_of_slots().await?;
    let ended = ended.iter().map(|row| (row, state_of(row.stop_reason)));
    let slots = open.chain(ended).filter_map(|(row, state)| {
        let key = slot_in_first_epoch(row)?;
        Some(slot(row, key, state, config))
    });
    let slots: Vec<Slot> = slots.collect();
    let count = slots.len();
    ledger.restore(slots, host.clock.now()).await?;
    Ok(count)
}

/// Returns the ended runs that the ledger does not know, oldest first.
async fn unknown(host: &Host) -> Result<Vec<UnknownRun>, DbError> {
    let ledger = host.ledger.get().await?;
    let bound = read_bound(host).await?;
    let known = ledger.read(move |reader| {
        // The slots of earlier runs were restored when the ledger was lost.
        let since = reader.restored_at()?.map_or(bound, |restored_at| restored_at.max(bound));
        let (first, mut ids) = (first_id(since), HashSet::new());
        reader.each_record_end(&first, |id| {
            ids.insert(id.to_owned());
        })?;
        Ok(KnownRuns { since, first, ids })
    });
    let (known, state) = (known.await?, host.state.clone());
    let unreadable = |error| DbError::Unreadable { path: host.state.root().join("runs"), error };
    let recorded = tokio::task::spawn_blocking(move || unknown_runs(&state, &known)).await;
    recorded.map_err(|error| unreadable(std::io::Error::other(error)))
}

/// Ends the plans that runs applied that the ledger does not know. Returns the number of plans that
/// waited.
async fn end_tried_plans(host: &Host, unknown: &[UnknownRun]) -> Result<usize, DbError> {
    let applied: Vec<String> = unknown.iter().filter_map(UnknownRun::applied).collect();
    if applied.is_empty() { Ok(0) } else { host.ledger.get().await?.end_tried_plans(applied).await }
}

/// Returns the plans that wait in an older ledger although their runs are gone. They were decided:
/// `prune` keeps the run of each plan that waits.
pub(super) async fn pruned_plans(host: &Host) -> Result<Vec<String>, DbError> {
    let plans = host.ledger.get().await?.read(|reader| reader.plans()).await?;
    let waiting = plans.plans.into_iter().filter(|plan| plan.state == PlanState::Waiting);
    let is_gone = |plan: &Plan| {
        let run_id = RunId::parse(&plan.run_id);
        run_id.is_ok_and(|run_id| host.state.find_run(&run_id).is_none())
    };
    Ok(waiting.filter(is_gone).map(|plan| plan.plan_id).collect())
}

/// Adds the slots of the runs that the ledger does not know; returns those that were missing.
async fn fold_in(
    host: &Host,
    config: &Config,
    resumable: &[Resumable],
    unknown: &[UnknownRun],
) -> Result<Vec<Slot>, DbError> {
    let ledger = host.ledger.get().await?;
    let open = resumable.iter().filter_map(|run| {
        let key = SlotKey { job: run.spec.job.name.clone(), time: run.spec.origin.slot? };
        Some(slot(run.resumption.history.summary(), key, SlotState::Running, config))
    });
    // The last attempt for a slot comes first, because it names the slot.
    let ended = unknown.iter().rev().filter_map(|run| {
        let key = run.slot.clone()?;
        Some(slot(&run.row, key, state_of(run.row.stop_reason), config))
    });
    let slots: Vec<Slot> = open.chain(ended).collect();
    if slots.is_empty() { Ok(slots) } else { ledger.fold_in(slots, host.clock.now()).await }
}

/// The runs whose record has an end in the ledger.
struct KnownRuns {
    /// Earlier runs do not count.
    since: DateTime<Utc>,
    /// The lowest id of a run that counts.
    first: String,
    ids: HashSet<String>,
}

/// A run that the ledger does not know.
struct UnknownRun {
    row: RunSummary,
    slot: Option<SlotKey>,
    plan_id: Option<String>,
}

impl UnknownRun {
    /// Returns the plan that the run applied, or whose effect is unknown.
    fn applied(&self) -> Option<String> {
        let is_refused = self.row.stop_reason == Some(StopReason::ApplyRefused);
        self.plan_id.clone().filter(|_| !is_refused)
    }
}

/// Returns the ended runs that the ledger does not know, oldest first. Blocks.
fn unknown_runs(state: &StateDir, known: &KnownRuns) -> Vec<UnknownRun> {
    let mut unknown = Vec::new();
    let visited = state.each_run_since(known.since, |run| {
        let id = run.run_id().as_str();
        if id >= known.first.as_str() && !known.ids.contains(id) && !state.is_open(run.run_id()) {
            unknown.extend(unknown_run(run));
        }
    });
    if let Err(error) = visited {
        // Recovery has reported it for `status`.
        tracing::warn!(%error, "cannot determine whether the ledger lacks runs of a directory");
    }
    unknown
}

/// Returns a run by its transcript; `None`, with a warning, if the first line cannot be read.
fn unknown_run(run: &RunDir) -> Option<UnknownRun> {
    let run_id = run.run_id();
    let history = match RunHistory::read(&run.transcript()) {
        Ok(RecordRead::Whole(history)) => history,
        Ok(RecordRead::Broken(BrokenRecord { intact: Some(history), .. })) => history,
        Ok(RecordRead::Empty | RecordRead::Broken(_)) => {
            tracing::warn!(%run_id, "a record that the ledger does not know has no first line");
            return None;
        }
        Err(error) => {
            tracing::warn!(%run_id, %error, "cannot read a record that the ledger does not know");
            return None;
        }
    };
    let start = &history.start;
    let job = JobName::parse(&start.job).ok();
    let slot = job.zip(start.origin.slot).map(|(job, time)| SlotKey { job, time });
    Some(UnknownRun { slot, plan_id: start.plan_id.clone(), row: history.summary().clone() })
}

/// Returns the newest due time of each job.
fn newest(slots: &[Slot]) -> BTreeMap<JobName, DateTime<Utc>> {
    let mut newest = BTreeMap::new();
    for slot in slots {
        let SlotKey { job, time } = &slot.key;
        let of_job = newest.entry(job.clone()).or_insert(time.due_at);
        *of_job = time.due_at.max(*of_job);
    }
    newest
}

/// Returns the disposition of the slot of an ended run.
fn state_of(stop_reason: Option<StopReason>) -> SlotState {
    stop_reason.map_or(SlotState::Ran, SlotState::of_ended)
}

/// Returns the slot of a run whose epoch is lost; `None` if the run has no due time.
fn slot_in_first_epoch(row: &RunSummary) -> Option<SlotKey> {
    let due_at = DateTime::parse_from_rfc3339(row.scheduled_for.as_deref()?).ok()?.to_utc();
    let time = SlotTime { epoch: Epoch::FIRST, due_at };
    Some(SlotKey { job: JobName::parse(&row.job).ok()?, time })
}

/// Returns the row of the slot of a run.
fn slot(row: &RunSummary, key: SlotKey, state: SlotState, config: &Config) -> Slot {
    let schedule = config.jobs.get(row.job.as_str()).and_then(|job| job.schedule.as_ref());
    let zone = schedule.map_or(config.settings.timezone, |schedule| schedule.zone());
    let ended = match (row.outcome, row.stop_reason) {
        (Some(outcome), Some(stop_reason)) => format!("{outcome} ({stop_reason})"),
        _ => "running".to_owned(),
    };
    Slot {
        key,
        span: None,
        is_backfill: row.trigger == Trigger::Backfill,
        state,
        run_id: RunId::parse(&row.run_id).ok(),
        reason: format!("{ended}; restored from the record of its run"),
        zone: zone.name().to_owned(),
        config_digest: row.config_digest.clone().unwrap_or_default(),
        left: None,
        queued: None,
    }
}
