//! Decides which runs of a job are beyond the limits of retention.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use rusqlite::Row;

use crate::domain::{Outcome, RunId};

/// The facts about a run that retention uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexedRun {
    pub(super) run_id: RunId,
    pub(super) outcome: Option<Outcome>,
    pub(super) started_at: Option<DateTime<Utc>>,
}

impl IndexedRun {
    /// Reads the columns run, outcome and start; `None` if the id is not valid.
    pub(super) fn of(row: &Row<'_>) -> rusqlite::Result<Option<Self>> {
        let (id, outcome): (String, Option<String>) = (row.get(1)?, row.get(2)?);
        let started_at: Option<String> = row.get(3)?;
        let started_at = started_at.and_then(|text| DateTime::parse_from_rfc3339(&text).ok());
        let mut outcomes = Outcome::ALL.iter().copied();
        Ok(RunId::parse(&id).ok().map(|run_id| Self {
            run_id,
            outcome: outcomes.find(|known| Some(known.as_str()) == outcome.as_deref()),
            started_at: started_at.map(|at| at.to_utc()),
        }))
    }
}

/// Returns which of the ended runs of a job are beyond the limits. `runs` is sorted, newest first. The
/// newest run, the newest that succeeded and the newest that failed always stay.
pub(super) fn expired(
    runs: &[IndexedRun],
    keep_runs: usize,
    oldest: DateTime<Utc>,
) -> impl Iterator<Item = &IndexedRun> {
    let newest = |outcome: Outcome| runs.iter().find(move |run| run.outcome == Some(outcome));
    let kept: BTreeSet<&str> = [runs.first(), newest(Outcome::Succeeded), newest(Outcome::Failed)]
        .into_iter()
        .flatten()
        .map(|run| run.run_id.as_str())
        .collect();
    let is_beyond = move |(at, run): &(usize, &IndexedRun)| {
        let is_old = run.started_at.is_some_and(|started| started < oldest);
        (*at >= keep_runs || is_old) && !kept.contains(run.run_id.as_str())
    };
    runs.iter().enumerate().filter(is_beyond).map(|(_, run)| run)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn at(day: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(day * 86_400, 0).unwrap()
    }

    proptest! {
        #[test]
        fn the_newest_run_of_each_kind_stays(
            outcomes in prop::collection::vec(prop::sample::select(Outcome::ALL.to_vec()), 0..30),
            keep_runs in 0usize..20,
            keep_days in 0i64..40,
        ) {
            let runs: Vec<IndexedRun> = outcomes
                .iter()
                .enumerate()
                .map(|(at_place, outcome)| IndexedRun {
                    run_id: RunId::from_ulid(ulid::Ulid::generate()),
                    outcome: Some(*outcome),
                    started_at: Some(at(100 - i64::try_from(at_place).unwrap())),
                })
                .collect();
            let gone: HashSet<&str> =
                expired(&runs, keep_runs, at(100 - keep_days)).map(|run| run.run_id.as_str()).collect();
            let is_first = |place: usize, wanted: Outcome| {
                outcomes.iter().position(|outcome| *outcome == wanted) == Some(place)
            };
            for (place, run) in runs.iter().enumerate() {
                let is_kept = place == 0
                    || is_first(place, Outcome::Succeeded)
                    || is_first(place, Outcome::Failed)
                    || (place < keep_runs && i64::try_from(place).unwrap() <= keep_days);
                prop_assert_eq!(gone.contains(run.run_id.as_str()), !is_kept, "{}", place);
            }
        }
    }
}
