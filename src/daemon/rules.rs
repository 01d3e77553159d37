//! Rules about when the run of a job may begin, for every place that queues a run.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::disposition::ON_TIME;
use crate::config::{Catchup, Job, Overlap};
use crate::domain::Trigger;

/// Which active runs of its job a queued run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitsFor {
    Nothing,
    /// Those that run because of `catchup: all`.
    CaughtUp,
    AllRuns,
}

/// Tells whether `overlap` does not apply to the run of a slot.
pub(super) fn ignores_overlap(trigger: Trigger, catchup: Catchup) -> bool {
    match trigger {
        Trigger::Backfill | Trigger::Retry => true,
        Trigger::Catchup => catchup == Catchup::All,
        Trigger::Schedule | Trigger::Manual | Trigger::Apply => false,
    }
}

/// Returns which runs of its job a slot's run waits for.
pub(super) fn waits_for(job: &Job, trigger: Trigger, ignores_overlap: bool) -> WaitsFor {
    match job.overlap {
        // Under `allow_all`, a scheduled run may always be active, so do not wait for all runs.
        Overlap::AllowAll
            if ignores_overlap || matches!(trigger, Trigger::Backfill | Trigger::Retry) =>
        {
            WaitsFor::CaughtUp
        }
        Overlap::AllowAll => WaitsFor::Nothing,
        _ => WaitsFor::AllRuns,
    }
}

/// Returns which runs of its job an attempt waits for. The job may be gone from the configuration.
pub(super) fn attempt_waits_for(job: Option<&Job>) -> WaitsFor {
    job.map_or(WaitsFor::AllRuns, |job| waits_for(job, Trigger::Retry, true))
}

/// Returns how late a run of a job may begin (CRON-4).
pub(super) fn window(job: &Job) -> Duration {
    match job.catchup {
        Catchup::None => ON_TIME,
        Catchup::Latest | Catchup::All => job.catchup_window.max(ON_TIME),
    }
}

/// Tells why a run that should have begun at `begins_at` is too late; `None` if it is not.
pub(super) fn why_too_late(
    job: &Job,
    begins_at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Option<String> {
    let late = (now - begins_at).to_std().unwrap_or_default();
    let window = window(job);
    let text = |of: Duration| humantime::format_duration(Duration::from_secs(of.as_secs()));
    (late > window).then(|| {
        let rule = match job.catchup {
            Catchup::None => "and the job does not catch up".to_owned(),
            Catchup::Latest | Catchup::All => {
                format!("outside the catch-up window of {}", text(window))
            }
        };
        format!("the daemon was down; decided {} late, {rule}", text(late))
    })
}
