//! Decides what becomes of due times. The same pure rule applies when the daemon decides in time,
//! after a suspend, and when it starts after downtime (CRON-4, CRON-5).
//!
//! The supervisor carries the decisions out and assigns run ids. *Source*: `docs/design/config.md`,
//! "When a job runs".

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::config::Catchup;

/// A start at most this late is on time: a busy machine is not a sleeping one.
pub(super) const ON_TIME: Duration = Duration::from_secs(10);

/// What delayed the decision about due times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    DaemonDown,
    LedgerUnwritable,
    /// The machine was asleep, or too busy for the daemon to decide in time.
    MachineHeldUp,
}

/// What becomes of a due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disposition {
    Run,
    CatchUp,
    /// Covered by the run of a newer due time.
    Coalesced,
    /// Does not run: too late for the job's `catchup` and `catchup_window`.
    Missed,
    /// Does not run: a run of the job is queued or active (`overlap: skip`).
    Busy,
    /// Does not run: the same due time already ran before the clock was set back.
    Repeated,
}

/// The inputs of a decision that are the same for all due times of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobState {
    pub(super) catchup: Catchup,
    pub(super) window: Duration,
    /// Whether a run of the job is queued or active.
    pub(super) is_busy: bool,
}

/// A due time to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DueSlot {
    pub(super) due_at: DateTime<Utc>,
    /// The due time plus jitter.
    pub(super) starts_at: DateTime<Utc>,
    /// Whether the same due time already ran before the clock was set back.
    pub(super) is_repeated: bool,
}

/// Decides the due times of a job. The caller passes them sorted, and only those whose start times
/// are not after `now`. At most one of them runs: the newest that is not too late and not repeated.
/// None runs if the job is busy.
pub(super) fn decide(dues: &[DueSlot], job: JobState, now: DateTime<Utc>) -> Vec<Disposition> {
    let late = |due: &DueSlot| (now - due.starts_at).to_std().unwrap_or_default();
    let is_on_time = |due: &DueSlot| late(due) <= ON_TIME;
    let may_run = |due: &DueSlot| {
        !due.is_repeated
            && (is_on_time(due) || job.catchup == Catchup::Latest && late(due) <= job.window)
    };
    let newest = dues.iter().rposition(may_run);
    let disposition = |(at, due): (usize, &DueSlot)| match () {
        () if due.is_repeated => Disposition::Repeated,
        () if !may_run(due) => Disposition::Missed,
        () if job.is_busy => Disposition::Busy,
        () if newest != Some(at) => Disposition::Coalesced,
        () if is_on_time(due) => Disposition::Run,
        () => Disposition::CatchUp,
    };
    dues.iter().enumerate().map(disposition).collect()
}

impl Disposition {
    /// Returns the reason that the ledger records, for people. `late` is the time since the due
    /// time, without regard to jitter.
    pub(super) fn reason(self, job: JobState, cause: Cause, late: Duration) -> String {
        let because = match cause {
            Cause::DaemonDown => "the daemon was down",
            Cause::LedgerUnwritable => "the ledger could not be written",
            Cause::MachineHeldUp => "the machine was asleep or busy",
        };
        let late = humantime::format_duration(Duration::from_secs(late.as_secs()));
        match self {
            Self::Run => "due".to_owned(),
            Self::CatchUp => format!("caught up {late} late: {because}"),
            Self::Coalesced => format!("covered by the run of a newer slot: {because}"),
            Self::Missed if job.catchup == Catchup::None => {
                format!("{because}; decided {late} late, and the job does not catch up")
            }
            Self::Missed => {
                let window = humantime::format_duration(job.window);
                format!("{because}; decided {late} late, outside the catch-up window of {window}")
            }
            Self::Busy => "the job was still waiting or running (overlap: skip)".to_owned(),
            Self::Repeated => "this due time ran before the clock was set back".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_790_000_000 + second, 0).unwrap()
    }

    fn slot(second: i64) -> DueSlot {
        DueSlot { due_at: at(second), starts_at: at(second), is_repeated: false }
    }

    fn job(catchup: Catchup) -> JobState {
        JobState { catchup, window: Duration::from_secs(3600), is_busy: false }
    }

    // proves CRON-4, CRON-5
    #[test]
    fn late_slots_are_caught_up_once_or_missed() {
        use Disposition::{Busy, CatchUp, Coalesced, Missed, Repeated, Run};
        let check = |seconds: &[i64], job: JobState, expected: &[Disposition]| {
            let dues: Vec<DueSlot> = seconds.iter().map(|second| slot(*second)).collect();
            assert_eq!(decide(&dues, job, at(36_000)), expected, "{seconds:?}");
        };
        let (latest, none) = (job(Catchup::Latest), job(Catchup::None));
        check(&[36_000], latest, &[Run]);
        check(&[24_000, 33_600, 35_400], latest, &[Missed, Coalesced, CatchUp]);
        check(&[24_000, 35_400, 36_000], latest, &[Missed, Coalesced, Run]);
        check(&[24_000, 35_400, 36_000], none, &[Missed, Missed, Run]);
        check(&[24_000, 30_000], latest, &[Missed, Missed]);
        check(&[32_400], latest, &[CatchUp]);
        check(&[], latest, &[]);
        // Several are on time: the newest runs, even with `catchup: none`.
        check(&[35_993, 35_995, 35_999], none, &[Coalesced, Coalesced, Run]);
        let busy = JobState { is_busy: true, ..latest };
        check(&[24_000, 35_400, 36_000], busy, &[Missed, Busy, Busy]);
        let repeated = DueSlot { is_repeated: true, ..slot(36_000) };
        assert_eq!(decide(&[slot(35_999), repeated], latest, at(36_000)), [Run, Repeated]);
    }

    proptest! {
        /// A dead daemon, a full disk or a suspend delays a schedule of `period` by `down` seconds.
        #[test]
        fn each_due_time_has_the_state_and_the_reason_of_what_happened(
            down in 0i64..60,
            period in prop::sample::select(vec![1i64, 2, 5, 7, 30, 60, 300, 3600]),
            window in 0u64..90,
            phase in 0i64..3600,
            is_latest: bool,
            is_busy: bool,
            cause in prop::sample::select(vec![Cause::DaemonDown, Cause::LedgerUnwritable, Cause::MachineHeldUp]),
        ) {
            let catchup = if is_latest { Catchup::Latest } else { Catchup::None };
            let job = JobState { catchup, window: Duration::from_secs(window), is_busy };
            let now = at(phase + down);
            let dues: Vec<DueSlot> =
                (phase..=phase + down).filter(|second| second % period == 0).map(slot).collect();
            let decided = decide(&dues, job, now);
            prop_assert_eq!(decided.len(), dues.len());
            let runs: Vec<usize> = (0..dues.len())
                .filter(|at| matches!(decided[*at], Disposition::Run | Disposition::CatchUp))
                .collect();
            prop_assert!(runs.len() <= 1);
            for (at, (due, disposition)) in dues.iter().zip(&decided).enumerate() {
                let late = now - due.due_at;
                let on_time = late <= TimeDelta::seconds(10);
                let in_window = is_latest && late.to_std().unwrap() <= job.window;
                let reason = disposition.reason(job, cause, late.to_std().unwrap());
                let word = match cause {
                    Cause::DaemonDown => "daemon",
                    Cause::LedgerUnwritable => "ledger",
                    Cause::MachineHeldUp => "machine",
                };
                match disposition {
                    Disposition::Run => prop_assert!(on_time && !is_busy && reason == "due"),
                    Disposition::CatchUp => prop_assert!(!on_time && in_window && !is_busy && reason.contains(word)),
                    Disposition::Coalesced => {
                        prop_assert!(runs.first().is_some_and(|run| *run > at), "the newest runs");
                        prop_assert!((on_time || in_window) && reason.contains(word), "{}", reason);
                    }
                    Disposition::Missed => prop_assert!(!on_time && !in_window && reason.contains(word)),
                    Disposition::Busy => prop_assert!(is_busy && (on_time || in_window)),
                    Disposition::Repeated => prop_assert!(false, "no clock was set back"),
                }
            }
        }
    }
}
