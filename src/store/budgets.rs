//! The daily budgets: what runs have spent and reserved, by day.

use std::collections::BTreeSet;

use chrono::NaiveDate;
use rusqlite::{Connection, params};

use super::cells::ALL_SPENT;
use super::db::DbError;
use super::ledger::Ledger;
use crate::domain::RunId;

/// The number of days of a budget whose amounts are kept. An amount is not removed by its date: a
/// clock that is wrong for a moment must not empty the budget of today.
const KEPT_DAYS: u32 = 400;

/// A daily budget, for one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayBudget {
    /// The name of the job; `None` for the budget of the daemon.
    pub job: Option<String>,
    /// The day, in the zone of the budget.
    pub day: NaiveDate,
    /// The limit in millionths of a US dollar; `None` if only the amount is kept.
    pub limit_micro_usd: Option<i64>,
}

/// A daily budget that has too little left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The budget.
    pub budget: DayBudget,
    /// The amount spent or reserved, in millionths of a US dollar.
    pub taken_micro_usd: i64,
}

impl DayBudget {
    fn scope(&self) -> &str {
        // A job has a name of at least one character.
        self.job.as_deref().unwrap_or("")
    }
}

impl Ledger {
    /// Reserves an amount for a run in its daily budgets. If one of them has too little left, reserves
    /// nothing and returns that budget. `amount` is in millionths of a US dollar.
    ///
    /// *Errors*: [`DbError`]; nothing is then reserved.
    pub async fn reserve(
        &self,
        run_id: RunId,
        budgets: Vec<DayBudget>,
        amount: i64,
    ) -> Result<Option<Shortage>, DbError> {
        self.write(move |transaction| {
            for budget in &budgets {
                let taken = taken(transaction, budget)?;
                if budget.limit_micro_usd.is_some_and(|limit| taken.saturating_add(amount) > limit)
                {
                    return Ok(Some(Shortage { budget: budget.clone(), taken_micro_usd: taken }));
                }
            }
            for budget in &budgets {
                let (scope, day) = (budget.scope(), budget.day.to_string());
                transaction
                    .prepare_cached("INSERT INTO reservations VALUES (?1, ?2, ?3, ?4)")?
                    .execute(params![run_id.as_str(), scope, day, amount])?;
                transaction
                    .prepare_cached(
                        "INSERT INTO budget_days VALUES (?1, ?2, ?3)
                         ON CONFLICT (scope, day) DO UPDATE SET amount = amount + ?3",
                    )?
                    .execute(params![scope, day, amount])?;
                transaction
                    .prepare_cached(
                        "DELETE FROM budget_days WHERE scope = ?1 AND day <=
                         (SELECT day FROM budget_days WHERE scope = ?1 ORDER BY day DESC LIMIT 1 OFFSET ?2)",
                    )?
                    .execute(params![scope, KEPT_DAYS])?;
            }
            Ok(None)
        })
        .await
    }

    /// Returns the first of these budgets that has less than `amount` left.
    ///
    /// *Errors*: [`DbError`].
    pub async fn shortage(
        &self,
        budgets: Vec<DayBudget>,
        amount: i64,
    ) -> Result<Option<Shortage>, DbError> {
        self.read(move |reader| {
            for budget in budgets {
                let taken = taken(reader.connection(), &budget)?;
                if budget.limit_micro_usd.is_some_and(|limit| taken.saturating_add(amount) > limit)
                {
                    return Ok(Some(Shortage { budget, taken_micro_usd: taken }));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Counts all of these budgets as spent, because their amounts are lost.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn spend_all(&self, budgets: Vec<DayBudget>) -> Result<(), DbError> {
        self.write(move |transaction| {
            let mut spend = transaction
                .prepare_cached("INSERT OR REPLACE INTO budget_days VALUES (?1, ?2, ?3)")?;
            for budget in &budgets {
                spend.execute(params![budget.scope(), budget.day.to_string(), ALL_SPENT])?;
            }
            Ok(())
        })
        .await
    }

    /// Ends the reservation of a run: only `cost` stays spent, in millionths of a US dollar; `None`
    /// if it is unknown, and the whole reservation stays spent.
    ///
    /// *Errors*: [`DbError`]; the reservation then stays.
    pub async fn release(&self, run_id: RunId, cost: Option<i64>) -> Result<(), DbError> {
        self.write(move |transaction| release(transaction, run_id.as_str(), cost)).await
    }

    /// Returns the runs that have a reservation.
    ///
    /// *Errors*: [`DbError`].
    pub async fn reserved(&self) -> Result<BTreeSet<RunId>, DbError> {
        self.read(|reader| {
            let mut query =
                reader.connection().prepare("SELECT DISTINCT run_id FROM reservations")?;
            let ids: Vec<String> =
                query.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
            Ok(ids.iter().filter_map(|id| RunId::parse(id).ok()).collect())
        })
        .await
    }
}

fn taken(connection: &Connection, budget: &DayBudget) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            // A negative amount is damage, not money that is left.
            "SELECT COALESCE(SUM(max(amount, 0)), 0) FROM budget_days WHERE scope = ?1 AND day = ?2",
        )?
        .query_row(params![budget.scope(), budget.day.to_string()], |row| row.get(0))
}

/// Does what [`Ledger::release`] does.
pub(super) fn release(
    transaction: &Connection,
    run_id: &str,
    cost: Option<i64>,
) -> rusqlite::Result<()> {
    if let Some(cost) = cost.map(|cost| cost.max(0)) {
        transaction
            .prepare_cached(
                "UPDATE budget_days SET amount = max(?2, budget_days.amount + ?2 - reservations.amount) FROM reservations
                 WHERE reservations.run_id = ?1 AND reservations.scope = budget_days.scope
                 AND reservations.day = budget_days.day",
            )?
            .execute(params![run_id, cost])?;
    }
    transaction
        .prepare_cached("DELETE FROM reservations WHERE run_id = ?1")?
        .execute([run_id])
        .map(drop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::SharedLedger;

    fn budgets(job: &str, limit: Option<i64>) -> Vec<DayBudget> {
        let day = NaiveDate::from_ymd_opt(2026, 5, 4).unwrap();
        let of_job = DayBudget { job: Some(job.to_owned()), day, limit_micro_usd: limit };
        vec![of_job, DayBudget { job: None, day, limit_micro_usd: Some(100) }]
    }

    fn id() -> RunId {
        RunId::from_ulid(ulid::Ulid::generate())
    }

    #[tokio::test]
    async fn a_reservation_is_all_or_nothing_and_leaves_what_was_spent() {
        let home = tempfile::tempdir().unwrap();
        let ledger = SharedLedger::of(home.path());
        let ledger = ledger.get().await.unwrap();
        let (one, two) = (id(), id());
        assert_eq!(ledger.reserve(one.clone(), budgets("a", Some(50)), 40).await.unwrap(), None);
        let short = ledger.reserve(two.clone(), budgets("a", Some(50)), 11).await.unwrap().unwrap();
        assert_eq!((short.taken_micro_usd, short.budget.job.as_deref()), (40, Some("a")));
        let short = ledger.reserve(two.clone(), budgets("b", None), 61).await.unwrap().unwrap();
        assert_eq!(
            (short.taken_micro_usd, short.budget.job),
            (40, None),
            "nothing of the failed ones stays"
        );
        assert_eq!(ledger.reserved().await.unwrap(), BTreeSet::from([one.clone()]));
        ledger.release(one.clone(), Some(5)).await.unwrap();
        ledger.release(one, Some(0)).await.unwrap();
        assert_eq!(ledger.reserve(two.clone(), budgets("a", Some(50)), 45).await.unwrap(), None);
        ledger.release(two, None).await.unwrap();
        assert!(ledger.reserved().await.unwrap().is_empty());
        let short = ledger.shortage(budgets("a", Some(50)), 1).await.unwrap().unwrap();
        assert_eq!(short.taken_micro_usd, 50, "an unknown cost is the whole reservation");
    }

    // proves STATE-7
    #[tokio::test]
    async fn a_negative_amount_is_not_money_that_is_left() {
        let home = tempfile::tempdir().unwrap();
        let ledger = SharedLedger::of(home.path());
        let ledger = ledger.get().await.unwrap();
        let run = id();
        assert_eq!(ledger.reserve(run.clone(), budgets("a", Some(50)), 40).await.unwrap(), None);
        let set = "UPDATE budget_days SET amount = -1000";
        ledger.write(move |transaction| transaction.execute(set, [])).await.unwrap();
        let short = ledger.shortage(budgets("a", Some(50)), 51).await.unwrap().unwrap();
        assert_eq!(short.taken_micro_usd, 0);
        ledger.release(run, Some(30)).await.unwrap();
        let short = ledger.shortage(budgets("a", Some(50)), 21).await.unwrap().unwrap();
        assert_eq!(short.taken_micro_usd, 30, "the cost of a run is spent at least");
    }

    /// What happens next: a run begins, with its job and the amount to reserve, or the active run at
    /// this place ends, with its cost.
    #[derive(Debug, Clone)]
    enum Step {
        Begin(usize, i64),
        End(prop::sample::Index, Option<i64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0usize..3, 1i64..=40).prop_map(|(job, amount)| Step::Begin(job, amount)),
            (any::<prop::sample::Index>(), prop::option::of(0i64..=40))
                .prop_map(|(at, cost)| Step::End(at, cost)),
        ]
    }

    /// Plays `steps` on a day of its own, and checks the amounts after each.
    async fn play(ledger: &Ledger, day: NaiveDate, steps: Vec<Step>) -> Result<(), TestCaseError> {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        const LIMITS: [Option<i64>; 3] = [Some(50), Some(20), None];
        let (mut active, mut kept) = (Vec::new(), [0; 3]);
        for step in steps {
            match step {
                Step::Begin(job, amount) => {
                    let budgets = vec![
                        DayBudget {
                            job: Some(NAMES[job].to_owned()),
                            day,
                            limit_micro_usd: LIMITS[job],
                        },
                        DayBudget { job: None, day, limit_micro_usd: Some(100) },
                    ];
                    let run_id = id();
                    let short = ledger.reserve(run_id.clone(), budgets, amount).await.unwrap();
                    let all: i64 = kept.iter().sum();
                    let fits = all + amount <= 100
                        && LIMITS[job].is_none_or(|limit| kept[job] + amount <= limit);
                    prop_assert_eq!(short.is_none(), fits, "{:?} {} {}", kept, job, amount);
                    if fits {
                        kept[job] += amount;
                        active.push((run_id, job, amount));
                    }
                }
                Step::End(at, cost) if !active.is_empty() => {
                    let (run_id, job, amount) = active.swap_remove(at.index(active.len()));
                    let cost = cost.map(|cost| cost.min(amount));
                    ledger.release(run_id, cost).await.unwrap();
                    kept[job] -= amount - cost.unwrap_or(amount);
                }
                Step::End(..) => {}
            }
            prop_assert!(kept.iter().sum::<i64>() <= 100 && kept[0] <= 50 && kept[1] <= 20);
        }
        Ok(())
    }

    #[test]
    fn runs_in_parallel_never_exceed_a_budget() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // A file system in memory, because each step is synced.
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let ledger = SharedLedger::of(home.path());
        let ledger = runtime.block_on(ledger.get()).unwrap();
        let first = NaiveDate::from_ymd_opt(2026, 1, 1).unwrap();
        let mut days = first.iter_days();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1000));
        let days = std::cell::RefCell::new(&mut days);
        runner
            .run(&prop::collection::vec(step(), 1..40), |steps| {
                let day = days.borrow_mut().next().unwrap();
                runtime.block_on(play(ledger, day, steps))
            })
            .unwrap();
    }
}
