//! Turns the queue rows of an earlier daemon into inputs of the book.

use chrono::{DateTime, Utc};

use super::{Input, Waiting};
use crate::config::Config;
use crate::daemon::rules::{WaitsFor, attempt_waits_for, why_too_late};
use crate::domain::{StopReason, Trigger};
use crate::store::{EndedRuns, QueuedRun, SlotState};

/// Tells whether the queue row alone decides. For the other triggers, the slot decides.
pub(in crate::daemon) fn is_left(run: &QueuedRun) -> bool {
    match run.origin.trigger {
        Trigger::Manual | Trigger::Retry => true,
        Trigger::Schedule | Trigger::Catchup | Trigger::Backfill | Trigger::Apply => false,
    }
}

/// Returns the input that queues a requested run again, or lets an attempt wait. An attempt that should
/// have begun while the daemon was down begins now.
///
/// *Errors*: how it ends instead, because it is too late by the rule for slots (CRON-4).
pub(in crate::daemon) fn input_of_left(
    run: QueuedRun,
    config: &Config,
    now: DateTime<Utc>,
) -> Result<Input, EndedRuns> {
    let QueuedRun { run_id, job, origin, not_before } = run;
    let is_attempt = origin.trigger == Trigger::Retry;
    // A row without its time cannot be read, and is set aside before.
    let begins_at = not_before.unwrap_or(now);
    let of_config = config.jobs.get(&job);
    if let Some(why) = of_config.and_then(|job| why_too_late(job, begins_at, now)) {
        let attempt = format!("attempt {}", origin.attempt);
        let what = if is_attempt { &attempt } else { "the run" };
        let reason = format!("{what} did not begin: {why}");
        tracing::error!(job = job.as_str(), %run_id, reason, "a run that waited does not begin");
        let (state, stop_reason) = (SlotState::Missed, StopReason::Interrupted);
        return Err(EndedRuns { runs: vec![run_id], state, stop_reason, reason });
    }
    let waiting =
        |waits_for| Waiting { run_id, job, origin, waits_for, ignores_overlap: is_attempt };
    Ok(if is_attempt || begins_at > now {
        let attempt = waiting(if is_attempt {
            attempt_waits_for(of_config.map(AsRef::as_ref))
        } else {
            WaitsFor::Nothing
        });
        Input::Delayed { attempt, begins_at }
    } else {
        Input::Queued(vec![waiting(WaitsFor::Nothing)])
    })
}
