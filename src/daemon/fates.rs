//! What becomes of due times that are over: a pure rule for ticks, suspends and starts alike (CRON-4).

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::config::Catchup;

/// A start that is no later than this is on time: a busy machine is not a sleeping one.
const ON_TIME: Duration = Duration::from_secs(10);

/// What becomes of a due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It runs, in time.
    Run,
    /// It runs, late, because the daemon was not there.
    CatchUp,
    /// The run that follows makes up for it.
    Coalesced,
    /// It is over.
    Missed,
}

/// Returns the fate of each of a job's due times, which are in order and not after `now`. `starts` gives when each would start.
pub(super) fn fates(
    dues: &[DateTime<Utc>],
    starts: impl Fn(DateTime<Utc>) -> DateTime<Utc>,
    now: DateTime<Utc>,
    catchup: Catchup,
    window: Duration,
) -> Vec<Fate> {
    let late_by = |due: DateTime<Utc>| (now - starts(due)).to_std().unwrap_or_default();
    let mut out: Vec<Fate> = dues
        .iter()
        .map(|due| match late_by(*due) {
            late if late <= ON_TIME => Fate::Run,
            late if catchup == Catchup::Latest && late <= window => Fate::Coalesced,
            _ => Fate::Missed,
        })
        .collect();
    // Without one that is on time, the latest of those in the window runs.
    if !out.contains(&Fate::Run)
        && let Some(last) = out.iter_mut().rev().find(|fate| **fate == Fate::Coalesced)
    {
        *last = Fate::CatchUp;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves CRON-4
    #[test]
    fn late_slots_are_made_up_for_once_or_missed() {
        let at = |minute: i64| DateTime::from_timestamp(minute * 60, 0).unwrap();
        let check = |dues: &[i64], catchup: Catchup, expected: &[Fate]| {
            let dues: Vec<_> = dues.iter().map(|minute| at(*minute)).collect();
            assert_eq!(
                fates(&dues, |due| due, at(600), catchup, Duration::from_secs(3600)),
                expected
            );
        };
        use Fate::{CatchUp, Coalesced, Missed, Run};
        check(&[600], Catchup::Latest, &[Run]);
        check(&[400, 560, 590], Catchup::Latest, &[Missed, Coalesced, CatchUp]);
        check(&[400, 590, 600], Catchup::Latest, &[Missed, Coalesced, Run]);
        check(&[400, 590, 600], Catchup::None, &[Missed, Missed, Run]);
        check(&[400, 500], Catchup::Latest, &[Missed, Missed]);
        check(&[540], Catchup::Latest, &[CatchUp]);
        check(&[], Catchup::Latest, &[]);
    }
}
