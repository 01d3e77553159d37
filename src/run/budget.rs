//! Reserves the largest cost of a run in the daily budgets, before the run begins.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use super::host::{Host, RunError};
use crate::config::{Config, Job};
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
    let daily_budgets = job.daily_budgets?;
    let day = |zone: Tz| now.with_timezone(&zone).date_naive();
    let of_job = DayBudget {
        job: Some(job.name.to_string()),
        day: day(daily_budgets.job_zone),
        limit_micro_usd: daily_budgets.job_usd.map(millionths),
    };
    let of_daemon = DayBudget {
        job: None,
        day: day(daily_budgets.daemon_zone),
        limit_micro_usd: daily_budgets.daemon_usd.map(millionths),
    };
    Some((vec![of_job, of_daemon], millionths(daily_budgets.max_run_cost_usd)))
}

/// Reserves the largest cost of a run in its daily budgets.
///
/// *Errors*: [`RunError::OverBudget`] or [`RunError::Ledger`]; nothing is then reserved.
pub(super) async fn reserve(job: &Job, run_id: &RunId, host: &Host) -> Result<(), RunError> {
    let Some((budgets, max_run_cost_usd)) = budgets_of(job, host.clock.now()) else {
        return Ok(());
    };
    let reserved = match host.ledger.get().await {
        Ok(ledger) => ledger.reserve(run_id.clone(), budgets, max_run_cost_usd).await,
        Err(error) => Err(error),
    };
    match reserved {
        Ok(None) => Ok(()),
        Ok(Some(shortage)) => Err(RunError::OverBudget(shortage_text(&shortage, max_run_cost_usd))),
        Err(error) => Err(RunError::Ledger(error)),
    }
}

/// Tells why a run of `job` cannot begin now for lack of budget; `None` if it can.
///
/// *Errors*: [`DbError`].
pub async fn over_budget(job: &Job, host: &Host) -> Result<Option<String>, DbError> {
    let Some((budgets, max_run_cost_usd)) = budgets_of(job, host.clock.now()) else {
        return Ok(None);
    };
    let shortage = host.ledger.get().await?.shortage(budgets, max_run_cost_usd).await?;
    Ok(shortage.map(|shortage| shortage_text(&shortage, max_run_cost_usd)))
}

/// Ends the reservations of runs that are over although their end did not reach the ledger. The
/// whole reservation of a run that has begun stays spent.
///
/// *Errors*: [`DbError`].
pub async fn release_abandoned(host: &Host) -> Result<(), DbError> {
    let ledger = host.ledger.get().await?;
    for run_id in ledger.reserved().await? {
        if !host.state.is_open(&run_id) {
            let cost = (!host.state.has_begun(&run_id)).then_some(0);
            ledger.release(run_id, cost).await?;
        }
    }
    Ok(())
}

/// Counts the daily budgets of today as spent, because their amounts are lost.
///
/// *Errors*: [`DbError`].
pub async fn spend_budgets(config: &Config, host: &Host) -> Result<(), DbError> {
    let now = host.clock.now();
    let budgets = config.jobs.values().filter_map(|job| budgets_of(job, now));
    let budgets = budgets.flat_map(|(budgets, _)| budgets).collect();
    host.ledger.get().await?.spend_all(budgets).await
}

/// Ends the reservation of a run that did not begin.
///
/// *Errors*: [`DbError`].
pub(super) async fn release_unbegun(run_id: &RunId, host: &Host) -> Result<(), DbError> {
    host.ledger.get().await?.release(run_id.clone(), Some(0)).await
}

fn shortage_text(Shortage { budget, taken_micro_usd }: &Shortage, max_run_cost_usd: i64) -> String {
    let usd = |amount: i64| {
        let text = format!("{}.{:06}", amount / 1_000_000, amount % 1_000_000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let whose = match &budget.job {
        Some(job) => format!("the daily budget of the job `{job}`"),
        None => "the daily budget of all jobs".to_owned(),
    };
    format!(
        "{whose} has too little left on {}: {} of {} USD are spent or reserved, and a run reserves {} USD; raise `max_cost_usd_per_day` or wait for the next day",
        budget.day,
        usd(*taken_micro_usd),
        usd(budget.limit_micro_usd.unwrap_or_default()),
        usd(max_run_cost_usd)
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
