//! Decides what becomes of due times. The same pure rule applies when the daemon decides in time,
//! after a suspend, and when it starts after downtime (CRON-4, CRON-5).
//!
//! The supervisor carries the decisions out and assigns run ids. *Source*: `docs/design/config.md`,
//! "When a job runs".

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::config::{Catchup, Overlap};

/// A start at most this late is on time: a busy machine is not a sleeping one.
pub(super) const ON_TIME: Duration = Duration::from_secs(10);

/// The maximum number of slots of a job that wait, inclusive. While this many wait, `overlap` skips
/// further slots of the job. `catchup: all` has no such limit.
const MAX_WAITING: usize = 1000;

/// What delayed the decision about due times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    DaemonDown,
    DiskUnwritable,
    /// The machine was asleep, or too busy for the daemon to decide in time.
    MachineHeldUp,
}

/// What becomes of a due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disposition {
    Run,
    CatchUp,
    /// Runs because a person requested it.
    Backfill,
    /// Covered by the run of a newer due time.
    Coalesced,
    /// Does not run: too late for the job's `catchup` and `catchup_window`.
    Missed,
    /// Does not run: other runs of the job are queued or active, and `overlap` does not let it
    /// wait.
    Busy,
    /// Does not run: the same due time already ran before the clock was set back.
    Repeated,
    /// Does not run: the job is paused.
    Paused,
}

/// The inputs of a decision that are the same for all due times of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobState {
    pub(super) catchup: Catchup,
    pub(super) window: Duration,
    pub(super) overlap: Overlap,
    /// Whether a run of the job is queued or active.
    pub(super) is_busy: bool,
    /// The number of its slots that are queued.
    pub(super) waiting: usize,
}

/// A due time to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DueSlot {
    pub(super) due_at: DateTime<Utc>,
    /// The due time plus jitter.
    pub(super) starts_at: DateTime<Utc>,
    /// Whether the same due time already ran before the clock was set back.
    pub(super) is_repeated: bool,
    /// Whether the job is paused and the slot was not waiting before the pause.
    pub(super) is_paused: bool,
    /// Whether a person requested its run.
    pub(super) is_backfill: bool,
}

/// Decides the due times of a job. The caller passes them sorted, and only those whose start times
/// are not after `now`.
///
/// Of the due times that are neither too late nor repeated nor paused, only the newest runs, and it covers the
/// others. There are two exceptions: `catchup: all` runs each of them, and an `overlap` that lets
/// slots wait or run side by side runs each that is on time. A due time does not run if `overlap`
/// leaves no room for it. A backfilled due time always runs; it neither covers the others nor takes
/// their room.
pub(super) fn decide(dues: &[DueSlot], job: JobState, now: DateTime<Utc>) -> Vec<Disposition> {
    let late = |due: &DueSlot| (now - due.starts_at).to_std().unwrap_or_default();
    let is_on_time = |due: &DueSlot| late(due) <= ON_TIME;
    let may_run = |due: &DueSlot| {
        let is_caught_up = job.catchup != Catchup::None && late(due) <= job.window;
        let is_held_back = due.is_repeated || due.is_paused || due.is_backfill;
        !is_held_back && (is_on_time(due) || is_caught_up)
    };
    let newest = dues.iter().rposition(may_run);
    let runs_by_itself = |(at, due): (usize, &DueSlot)| {
        let may_wait =
            matches!(job.overlap, Overlap::BufferOne | Overlap::BufferAll | Overlap::AllowAll);
        newest == Some(at) || job.catchup == Catchup::All || may_wait && is_on_time(due)
    };
    let mut runs = 0;
    let decide = |(at, due): (usize, &DueSlot), runs: usize| match () {
        () if due.is_backfill => Disposition::Backfill,
        () if due.is_repeated => Disposition::Repeated,
        () if due.is_paused => Disposition::Paused,
        () if !may_run(due) => Disposition::Missed,
        () if !runs_by_itself((at, due)) => Disposition::Coalesced,
        () if is_on_time(due) && job.has_room(runs) => Disposition::Run,
        () if !is_on_time(due) && (job.catchup == Catchup::All || job.has_room(runs)) => {
            Disposition::CatchUp
        }
        () => Disposition::Busy,
    };
    let mut decided = Vec::with_capacity(dues.len());
    for due in dues.iter().enumerate() {
        let disposition = decide(due, runs);
        runs += usize::from(disposition.is_run());
        decided.push(disposition);
    }
    // Nothing covers a slot if no newer one runs.
    for disposition in decided.iter_mut().rev().take_while(|of| !of.is_run()) {
        if *disposition == Disposition::Coalesced {
            *disposition = Disposition::Busy;
        }
    }
    decided
}

impl JobState {
    /// Tells whether `overlap` lets another slot run or wait, after `runs` slots that are decided
    /// together with it. Of several slots that run together, the first is about to become active.
    fn has_room(&self, runs: usize) -> bool {
        // Each slot that `catchup: all` runs is decided as if it were alone.
        let runs = if self.catchup == Catchup::All { 0 } else { runs };
        let waiting = self.waiting + runs - usize::from(!self.is_busy && runs > 0);
        match self.overlap {
            Overlap::Skip => !self.is_busy,
            Overlap::BufferOne => waiting == 0,
            Overlap::BufferAll | Overlap::AllowAll => waiting < MAX_WAITING,
            Overlap::CancelOther | Overlap::TerminateOther => true,
        }
    }
}

impl Disposition {
    /// Tells whether a run starts because the schedule came due.
    pub(super) fn is_run(self) -> bool {
        matches!(self, Self::Run | Self::CatchUp)
    }

    /// Returns the reason that the ledger records, for people. `late` is the time since the due
    /// time, without regard to jitter.
    pub(super) fn reason(self, job: JobState, cause: Cause, late: Duration) -> String {
        let because = match cause {
            Cause::DaemonDown => "the daemon was down",
            Cause::DiskUnwritable => "the disk could not be written",
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
            Self::Busy => {
                let why = match job.overlap {
                    Overlap::BufferOne => "another slot of the job was already waiting",
                    Overlap::BufferAll | Overlap::AllowAll => {
                        "1,000 slots of the job were already waiting"
                    }
                    Overlap::Skip | Overlap::CancelOther | Overlap::TerminateOther => {
                        "the job was still waiting or running"
                    }
                };
                format!("{why} (overlap: {})", job.overlap.as_str())
            }
            Self::Repeated => "this due time ran before the clock was set back".to_owned(),
            Self::Paused => "the job was paused".to_owned(),
            Self::Backfill => "requested by a person (backfill)".to_owned(),
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
        DueSlot {
            due_at: at(second),
            starts_at: at(second),
            is_repeated: false,
            is_paused: false,
            is_backfill: false,
        }
    }

    fn job(catchup: Catchup) -> JobState {
        let window = Duration::from_secs(3600);
        JobState { catchup, window, overlap: Overlap::Skip, is_busy: false, waiting: 0 }
    }

    // proves CRON-4, CRON-5
    #[test]
    fn late_slots_are_caught_up_once_or_missed() {
        use Disposition::{Backfill, Busy, CatchUp, Coalesced, Missed, Paused, Repeated, Run};
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
        let all = job(Catchup::All);
        check(&[24_000, 33_600, 35_400], all, &[Missed, CatchUp, CatchUp]);
        check(&[33_600, 35_995, 36_000], all, &[CatchUp, Run, Run]);
        check(&[33_600, 36_000], JobState { is_busy: true, waiting: 1, ..all }, &[CatchUp, Busy]);
        let repeated = DueSlot { is_repeated: true, ..slot(36_000) };
        assert_eq!(decide(&[slot(35_999), repeated], latest, at(36_000)), [Run, Repeated]);
        let paused = |second| DueSlot { is_paused: true, ..slot(second) };
        let dues = [paused(24_000), slot(35_400), paused(36_000)];
        assert_eq!(decide(&dues, latest, at(36_000)), [Paused, CatchUp, Paused]);
        let backfill = |second| DueSlot { is_backfill: true, ..slot(second) };
        let dues = [backfill(1000), slot(33_600), slot(35_400), backfill(36_000)];
        let expected = [Backfill, Coalesced, CatchUp, Backfill];
        assert_eq!(decide(&dues, latest, at(36_000)), expected);
    }

    // proves CRON-5
    #[test]
    fn overlap_decides_whether_a_slot_waits() {
        use Disposition::{Busy, CatchUp, Coalesced, Run};
        let decided = |overlap, active: usize, waiting, seconds: &[i64]| {
            let dues: Vec<DueSlot> = seconds.iter().map(|second| slot(*second)).collect();
            let is_busy = active + waiting > 0;
            let job = JobState { overlap, is_busy, waiting, ..job(Catchup::Latest) };
            decide(&dues, job, at(36_000))
        };
        let three = [35_998, 35_999, 36_000];
        assert_eq!(decided(Overlap::Skip, 0, 0, &three), [Coalesced, Coalesced, Run]);
        assert_eq!(decided(Overlap::Skip, 0, 1, &three), [Busy, Busy, Busy]);
        assert_eq!(decided(Overlap::BufferOne, 0, 0, &three), [Run, Run, Busy]);
        assert_eq!(decided(Overlap::BufferOne, 1, 0, &three), [Run, Busy, Busy]);
        assert_eq!(decided(Overlap::BufferOne, 2, 1, &three), [Busy, Busy, Busy]);
        assert_eq!(decided(Overlap::BufferOne, 1, 0, &[33_000, 35_000]), [Coalesced, CatchUp]);
        assert_eq!(decided(Overlap::BufferOne, 1, 1, &[33_000, 35_000]), [Busy, Busy]);
        assert_eq!(
            decided(Overlap::BufferOne, 1, 0, &[33_000, 35_999, 36_000]),
            [Coalesced, Run, Busy]
        );
        assert_eq!(decided(Overlap::BufferAll, 1, 999, &three), [Run, Busy, Busy]);
        assert_eq!(decided(Overlap::AllowAll, 7, 0, &three), [Run, Run, Run]);
        assert_eq!(decided(Overlap::CancelOther, 1, 1, &three), [Coalesced, Coalesced, Run]);
        assert_eq!(decided(Overlap::CancelOther, 1, 0, &[33_000, 35_000]), [Coalesced, CatchUp]);
    }

    proptest! {
        /// A dead daemon, a full disk or a suspend delays a schedule of `period` by `down` seconds.
        #[test]
        fn each_due_time_has_the_state_and_the_reason_of_what_happened(
            down in 0i64..60,
            period in prop::sample::select(vec![1i64, 2, 5, 7, 30, 60, 300, 3600]),
            window in 0u64..90,
            phase in 0i64..3600,
            catchup in prop::sample::select(vec![Catchup::None, Catchup::Latest, Catchup::All]),
            overlap in prop::sample::select(vec![
                Overlap::Skip, Overlap::BufferOne, Overlap::BufferAll, Overlap::CancelOther,
                Overlap::TerminateOther, Overlap::AllowAll,
            ]),
            is_active: bool,
            waiting in prop::sample::select(vec![0usize, 1, 998, 1000]),
            cause in prop::sample::select(vec![Cause::DaemonDown, Cause::DiskUnwritable, Cause::MachineHeldUp]),
        ) {
            let is_busy = is_active || waiting > 0;
            let job = JobState { catchup, window: Duration::from_secs(window), overlap, is_busy, waiting };
            let now = at(phase + down);
            let dues: Vec<DueSlot> =
                (phase..=phase + down).filter(|second| second % period == 0).map(slot).collect();
            let decided = decide(&dues, job, now);
            prop_assert_eq!(decided.len(), dues.len());
            let runs: Vec<usize> = (0..dues.len()).filter(|at| decided[*at].is_run()).collect();
            let on_time_runs = decided.iter().filter(|of| **of == Disposition::Run).count();
            let caught_up = runs.len() - on_time_runs;
            match catchup {
                Catchup::All => {}
                _ if overlap == Overlap::Skip || overlap.is_replacing() => prop_assert!(runs.len() <= 1),
                _ => prop_assert!(caught_up <= 1),
            }
            // What waits afterwards: all but the first, if nothing is ahead of it.
            let waits = waiting + on_time_runs - usize::from(!is_busy && on_time_runs > 0);
            match overlap {
                _ if catchup == Catchup::All => {}
                Overlap::Skip => prop_assert!(!is_busy || on_time_runs == 0),
                Overlap::BufferOne => prop_assert!(waits <= 1.max(waiting)),
                Overlap::BufferAll | Overlap::AllowAll => prop_assert!(waits <= 1000),
                Overlap::CancelOther | Overlap::TerminateOther => {}
            }
            for (at, (due, disposition)) in dues.iter().zip(&decided).enumerate() {
                let late = now - due.due_at;
                let on_time = late <= TimeDelta::seconds(10);
                let in_window = catchup != Catchup::None && late.to_std().unwrap() <= job.window;
                let reason = disposition.reason(job, cause, late.to_std().unwrap());
                let word = match cause {
                    Cause::DaemonDown => "daemon",
                    Cause::DiskUnwritable => "disk",
                    Cause::MachineHeldUp => "machine",
                };
                match disposition {
                    Disposition::Run => prop_assert!(on_time && reason == "due"),
                    Disposition::CatchUp => prop_assert!(!on_time && in_window && reason.contains(word)),
                    Disposition::Coalesced => {
                        prop_assert!(runs.last().is_some_and(|run| *run > at), "a newer one runs");
                        prop_assert!(catchup != Catchup::All);
                        prop_assert!((on_time || in_window) && reason.contains(word), "{}", reason);
                    }
                    Disposition::Missed => prop_assert!(!on_time && !in_window && reason.contains(word)),
                    Disposition::Busy => {
                        prop_assert!((is_busy || runs.len() > 1) && (on_time || in_window));
                        prop_assert!(!overlap.is_replacing() && reason.contains(overlap.as_str()));
                    }
                    Disposition::Repeated | Disposition::Paused | Disposition::Backfill => {
                        prop_assert!(false, "{:?} without a cause", disposition);
                    }
                }
            }
        }
    }
}
