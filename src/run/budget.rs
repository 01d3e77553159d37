//! Reserves the largest cost of a run in the daily budgets, before the run begins.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use super::host::{Host, RunError};
use crate::config::Job;
use crate::domain::RunId;
use crate::store::{DayBudget, DbError, Shortage};

/// Converts US dollars to millionths of a US dollar, rounded up.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a cost is far below the limit of the type")]
pub fn millionths(usd: f64) -> i64 {
    // A product such as 1.1 × 1,000,000 is a little above its exact value.
    (usd * 1e6 - 1e-3).ceil() as i64
}

/// Returns the daily budgets that a run of `job` counts for if it begins at `now`, and its largest
/// cost; `None` if there are none.
fn budgets_of(job: &Job, now: DateTime<Utc>) -> Option<(Vec<DayBudget>, i64)> {
    let budgeted = job.budgeted?;
    let day = |zone: Tz| now.with_timezone(&zone).date_naive();
    let of_job = DayBudget {
        job: Some(job.name.to_string()),
        day: day(budgeted.zone),
        limit: budgeted.of_job.map(millionths),
    };
    let of_daemon = DayBudget {
        job: None,
        day: day(budgeted.daemon_zone),
        limit: budgeted.of_daemon.map(millionths),
    };
    Some((vec![of_job, of_daemon], millionths(budgeted.most)))
}

/// Reserves the largest cost of a run in its daily budgets.
///
/// *Errors*: [`RunError::OverBudget`] or [`RunError::Record`]; nothing is then reserved.
pub(super) async fn reserve(job: &Job, run_id: &RunId, host: &Host) -> Result<(), RunError> {
    let Some((budgets, most)) = budgets_of(job, host.clock.now()) else { return Ok(()) };
    let reserved = match host.ledger.get().await {
        Ok(ledger) => ledger.reserve(run_id.clone(), budgets, most).await,
        Err(error) => Err(error),
    };
    match reserved {
        Ok(None) => Ok(()),
        Ok(Some(shortage)) => Err(RunError::OverBudget(words(&shortage, most))),
        Err(error) => Err(RunError::Record(format!("cannot reserve its budget: {error}"))),
    }
}

/// Tells why a run of `job` cannot begin now for lack of budget; `None` if it can.
///
/// *Errors*: [`DbError`].
pub async fn over_budget(job: &Job, host: &Host) -> Result<Option<String>, DbError> {
    let Some((budgets, most)) = budgets_of(job, host.clock.now()) else { return Ok(None) };
    let shortage = host.ledger.get().await?.shortage(budgets, most).await?;
    Ok(shortage.map(|shortage| words(&shortage, most)))
}

/// Ends the reservations of runs that are over although their end did not reach the ledger. The
/// whole reservation of a run with a transcript stays spent.
///
/// *Errors*: [`DbError`].
pub async fn release_abandoned(host: &Host) -> Result<(), DbError> {
    let ledger = host.ledger.get().await?;
    for run_id in ledger.reserved().await? {
        if host.state.is_open(&run_id) {
            continue;
        }
        let transcript = host.state.find_run(&run_id).map(|run| run.transcript());
        let has_begun = transcript
            .and_then(|path| path.metadata().ok())
            .is_some_and(|transcript| transcript.len() > 0);
        ledger.release(run_id, (!has_begun).then_some(0)).await?;
    }
    Ok(())
}

fn words(Shortage { budget, taken }: &Shortage, most: i64) -> String {
    let usd = |amount: i64| {
        let text = format!("{}.{:06}", amount / 1_000_000, amount % 1_000_000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let whose = match &budget.job {
        Some(job) => format!("the daily budget of the job `{job}`"),
        None => "the daily budget of all jobs".to_owned(),
    };
    format!(
        "{whose} has too little left on {}: {} of {} USD are spent or reserved, and a run reserves {} USD",
        budget.day,
        usd(*taken),
        usd(budget.limit.unwrap_or_default()),
        usd(most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_rounded_up_to_millionths() {
        let cases = [(1.1, 1_100_000), (0.3, 300_000), (0.0, 0), (0.000_000_4, 1), (2.5e-6, 3)];
        for (usd, expected) in cases {
            assert_eq!(millionths(usd), expected, "{usd}");
        }
    }
}
