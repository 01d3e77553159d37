//! The policies of a job for its slots, its failed runs and its daily budgets.

use std::time::Duration;

use chrono_tz::Tz;

use super::{JobChecker, Limits};
use crate::argv::Diagnostic;
use crate::config::raw::{RawCatchup, RawJob, RawOverlap, RawRetry};

/// The policy for slots that the daemon could not start in time, for example because it was down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Catchup {
    /// Such slots are recorded as missed.
    None,
    /// The latest of these slots runs, if it is at max_run_cost_usd `catchup_window` old.
    Latest,
    /// Each of these slots runs, one after another, if it is at max_run_cost_usd `catchup_window` old.
    All,
}

/// The policy for a slot that comes due while a run of its job waits or works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// The slot does not run.
    Skip,
    /// The slot waits, unless another one does.
    BufferOne,
    /// The slot waits.
    BufferAll,
    /// The slot replaces a waiting one, and active runs are cancelled.
    CancelOther,
    /// Like [`Self::CancelOther`], but the processes of active runs get no grace period.
    TerminateOther,
    /// The slot runs beside the other runs.
    AllowAll,
}

impl From<RawCatchup> for Catchup {
    fn from(raw: RawCatchup) -> Self {
        match raw {
            RawCatchup::None => Self::None,
            RawCatchup::Latest => Self::Latest,
            RawCatchup::All => Self::All,
        }
    }
}

impl From<RawOverlap> for Overlap {
    fn from(raw: RawOverlap) -> Self {
        match raw {
            RawOverlap::Skip => Self::Skip,
            RawOverlap::BufferOne => Self::BufferOne,
            RawOverlap::BufferAll => Self::BufferAll,
            RawOverlap::CancelOther => Self::CancelOther,
            RawOverlap::TerminateOther => Self::TerminateOther,
            RawOverlap::AllowAll => Self::AllowAll,
        }
    }
}

impl Overlap {
    /// Tells whether a new slot takes the place of the other runs of its job.
    #[must_use]
    pub fn is_replacing(self) -> bool {
        matches!(self, Self::CancelOther | Self::TerminateOther)
    }

    /// Returns the value that selects the policy in `jobs.yaml`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::BufferOne => "buffer_one",
            Self::BufferAll => "buffer_all",
            Self::CancelOther => "cancel_other",
            Self::TerminateOther => "terminate_other",
            Self::AllowAll => "allow_all",
        }
    }
}

/// The limits on the attempts of a failed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The maximum number of attempts, the first included.
    pub max_attempts: u32,
    /// The delay before the second attempt.
    pub backoff: Duration,
}

impl Retry {
    /// Returns the delay before the attempt that follows attempt number `attempt`, counted from 1.
    #[must_use]
    pub fn delay_after(self, attempt: u32) -> Duration {
        const LONGEST: Duration = Duration::from_secs(3600);
        let doublings = attempt.saturating_sub(1).min(20);
        self.backoff.saturating_mul(1 << doublings).min(LONGEST.max(self.backoff))
    }
}

/// The daily budgets that apply to a run of a job, and the amount that it reserves in each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DailyBudgets {
    /// `limits.max_cost_usd`.
    pub max_run_cost_usd: f64,
    /// The daily budget of the job, if it has one.
    pub job_usd: Option<f64>,
    /// The daily budget of the daemon, if it has one.
    pub daemon_usd: Option<f64>,
    /// The zone of the days of the job.
    pub job_zone: Tz,
    /// The zone of the days of the daemon.
    pub daemon_zone: Tz,
}

impl JobChecker<'_> {
    /// Checks the daily budgets of a job. Returns `None` if it has none.
    pub(super) fn budgets(
        &mut self,
        raw: &RawJob,
        limits: &Limits,
        zone: Tz,
    ) -> Option<DailyBudgets> {
        let job_usd = raw.budget.and_then(|budget| budget.max_cost_usd_per_day);
        let daemon_usd = self.ctx.settings.max_cost_usd_per_day;
        let (place, smallest) = match (job_usd, daemon_usd) {
            (None, None) => return None,
            (Some(own), other) => ("/budget", other.map_or(own, |other| own.min(other))),
            (None, Some(other)) => ("", other),
        };
        let Some(max_run_cost_usd) = limits.max_cost_usd else {
            let message = "a daily budget applies (`budget` of the job or of config.yaml): set `limits.max_cost_usd`";
            self.error(place, message);
            return None;
        };
        if max_run_cost_usd > smallest {
            self.diagnostics.warnings.push(Diagnostic {
                pointer: place.to_owned(),
                message: format!(
                    "runs cannot begin: `limits.max_cost_usd` ({max_run_cost_usd}) exceeds the daily budget ({smallest}): lower the limit or raise the budget"
                ),
                hint: None,
            });
        }
        let daemon_zone = self.ctx.settings.timezone;
        Some(DailyBudgets { max_run_cost_usd, job_usd, daemon_usd, job_zone: zone, daemon_zone })
    }

    pub(super) fn retry(&mut self, raw: Option<&RawRetry>) -> Option<Retry> {
        const MINUTE: Duration = Duration::from_secs(60);
        let raw = raw?;
        let backoff = self.positive("/retry/backoff", raw.backoff.as_deref(), MINUTE);
        Some(Retry { max_attempts: raw.max_attempts?, backoff })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_before_an_attempt_doubles_up_to_an_hour() {
        let delays = |backoff: u64| {
            let retry = Retry { max_attempts: 100, backoff: Duration::from_secs(backoff) };
            [1, 2, 3, 8, 99].map(|attempt| retry.delay_after(attempt).as_secs())
        };
        assert_eq!(delays(60), [60, 120, 240, 3600, 3600]);
        assert_eq!(delays(7200), [7200; 5], "the operator asked for more than an hour");
    }
}
