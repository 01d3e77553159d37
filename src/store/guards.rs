//! `guards.json`: a second copy of what restricts (pauses, accepted MCP tools, spent and reserved
//! amounts, runs that do not continue, decided plans), for the case that the ledger is lost, damaged or
//! older than the file.
//!
//! Triggers of the ledger count each change of these tables in `meta`. [`GuardsFile::follow`] writes
//! the file before the transaction with such a change is committed, so the file is never older than
//! the ledger. *Source*: `docs/design/architecture.md`, "Ledger and index".

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction, params};
use serde::{Deserialize, Serialize};

use super::cells::{ALL_SPENT, Cells};
use super::db::set_aside;
use super::files::write_atomic;
use super::given_up::GivenUpRow;
use super::lost::Lost;
use super::run_dir::StateDir;

/// The version of the format. The first one has neither `given_up` nor `decided_plans`.
const VERSION: u32 = 2;

/// The days of each daily budget that the file holds, newest first. A clock that is wrong for a moment
/// adds a day, and today must stay.
const DAYS: u32 = 8;

/// The decided plans that the file holds, newest first.
const DECIDED_PLANS: u32 = 500;

/// The most changes that a ledger can have had. A higher revision is damage.
const MAX_REVISION: i64 = 1 << 40;

/// The ledger before it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It goes on.
    Continued,
    /// It is the first one of a new state directory.
    New,
    /// An earlier one is lost.
    Lost,
}

/// The source of the pauses, accepted MCP tools and amounts of an opened ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restrictions {
    /// The ledger itself.
    Own,
    /// The ledger itself, because an earlier version wrote it, without `guards.json`.
    First,
    /// The ledger itself, without a `guards.json` to compare it with.
    Unchecked,
    /// `guards.json`, which was newer than the ledger.
    Newer,
    /// Both: one of them lacked what the other one had.
    Merged,
    /// `guards.json`, because the ledger was lost.
    Restored,
    /// None: the ledger and `guards.json` were lost.
    Gone,
}

/// The result of opening a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerFound {
    /// The new path of a damaged ledger.
    pub aside: Option<PathBuf>,
    pub restrictions: Restrictions,
}

impl LedgerFound {
    /// Tells whether an earlier ledger was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.restrictions, Restrictions::Restored | Restrictions::Gone)
    }
}

/// The content of the file.
///
/// *Shape*: `{"v":2,"revision":12,"lost":[],"pauses":[{"job":"backup","paused_at":1790000000000,"note":null}],
/// "mcp_pins":{"files":"{\"read\":\"9f…\"}"},"budget_days":[{"scope":"","day":"2026-05-04","amount":5}],"reservations":[],
/// "given_up":[],"decided_plans":{"01m8…":"applied"}}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Guards {
    v: u32,
    /// The number of changes of these tables so far.
    revision: i64,
    lost: Vec<Lost>,
    pauses: Vec<PauseRow>,
    /// The JSON of the ledger by server.
    mcp_pins: BTreeMap<String, String>,
    /// The newest [`DAYS`] of each budget.
    budget_days: Vec<DayRow>,
    reservations: Vec<ReservationRow>,
    /// The runs that do not continue.
    #[serde(default)]
    given_up: Vec<GivenUpRow>,
    /// The states of the newest [`DECIDED_PLANS`] plans that do not wait, by plan.
    #[serde(default)]
    decided_plans: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseRow {
    job: String,
    paused_at: i64,
    note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DayRow {
    scope: String,
    day: String,
    /// In millionths of a US dollar.
    amount: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationRow {
    run_id: String,
    scope: String,
    day: String,
    /// In millionths of a US dollar.
    amount: i64,
}

impl Guards {
    /// Reads the restrictions of the ledger. A row that cannot be read restricts at least as much here:
    /// it must not keep the daemon from starting, which then ends what the row stands for.
    fn read(ledger: &Connection) -> rusqlite::Result<Self> {
        let mut lost = Vec::new();
        for kind in Lost::ALL {
            if kind.is_marked(ledger)? {
                lost.push(kind);
            }
        }
        let mut lose = |kind: Lost| {
            if !lost.contains(&kind) {
                lost.push(kind);
            }
        };
        let mut pauses = Vec::new();
        for row in rows(ledger, "SELECT job, paused_at, note, until FROM pauses ORDER BY job", [])?
        {
            match row.text("job") {
                Some(job) => pauses.push(PauseRow {
                    job: job.to_owned(),
                    paused_at: row.integer("paused_at").unwrap_or(0),
                    note: row.text("note").map(str::to_owned),
                    // A pause whose end cannot be read has none.
                    until: row.integer("until"),
                }),
                None => lose(Lost::Pauses),
            }
        }
        let mut mcp_pins = BTreeMap::new();
        for row in rows(ledger, "SELECT server, pins FROM mcp_pins", [])? {
            match row.text("server").zip(row.text("pins")) {
                Some((server, pins)) => drop(mcp_pins.insert(server.to_owned(), pins.to_owned())),
                None => lose(Lost::McpPins),
            }
        }
        let days = "SELECT scope, day, amount FROM
             (SELECT *, row_number() OVER (PARTITION BY scope ORDER BY day DESC) AS age FROM budget_days)
             WHERE age <= ?1 ORDER BY scope, day";
        let budget_days = rows(ledger, days, [DAYS])?.into_iter().filter_map(|row| {
            let (scope, day) = (row.text("scope")?.to_owned(), row.text("day")?.to_owned());
            Some(DayRow { scope, day, amount: row.integer("amount").unwrap_or(ALL_SPENT) })
        });
        let reservations = "SELECT run_id, scope, day, amount FROM reservations";
        let reservations = rows(ledger, reservations, [])?.into_iter().filter_map(|row| {
            Some(ReservationRow {
                run_id: row.text("run_id")?.to_owned(),
                scope: row.text("scope")?.to_owned(),
                day: row.text("day")?.to_owned(),
                amount: row.integer("amount").unwrap_or(ALL_SPENT),
            })
        });
        let (budget_days, reservations) = (budget_days.collect(), reservations.collect());
        let given_up = GivenUpRow::read_all(ledger)?.unwrap_or_else(|| {
            lose(Lost::Cancellations);
            Vec::new()
        });
        let decided = "SELECT plan_id, state FROM plans WHERE state <> 'waiting'
             ORDER BY created_at DESC, plan_id LIMIT ?1";
        let decided = rows(ledger, decided, [DECIDED_PLANS])?.into_iter().filter_map(|row| {
            Some((row.text("plan_id")?.to_owned(), row.text("state")?.to_owned()))
        });
        Ok(Self {
            v: VERSION,
            revision: revision(ledger)?,
            decided_plans: decided.collect(),
            lost,
            pauses,
            mcp_pins,
            budget_days,
            reservations,
            given_up,
        })
    }

    /// Takes from the ledger what a file of the first version lacks.
    fn complete(&mut self, ledger: &Connection, life: Life) -> rusqlite::Result<()> {
        let own = Self::read(ledger)?;
        (self.v, self.given_up, self.decided_plans) = (VERSION, own.given_up, own.decided_plans);
        if life == Life::Lost {
            self.lost.push(Lost::Cancellations);
        }
        Ok(())
    }

    /// Replaces the restrictions of the ledger. Earlier days of the budgets stay.
    fn adopt(&self, ledger: &Connection) -> rusqlite::Result<()> {
        ledger.execute("DELETE FROM pauses", [])?;
        for pause in &self.pauses {
            let row = params![pause.job, pause.paused_at, pause.note, pause.until];
            ledger.prepare_cached("INSERT INTO pauses VALUES (?1, ?2, ?3, ?4)")?.execute(row)?;
        }
        ledger.execute("DELETE FROM mcp_pins", [])?;
        for (server, pins) in &self.mcp_pins {
            ledger
                .prepare_cached("INSERT INTO mcp_pins VALUES (?1, ?2)")?
                .execute(params![server, pins])?;
        }
        for row in &self.budget_days {
            ledger
                .prepare_cached("INSERT OR REPLACE INTO budget_days VALUES (?1, ?2, ?3)")?
                .execute(params![row.scope, row.day, row.amount])?;
        }
        ledger.execute("DELETE FROM reservations", [])?;
        for row in &self.reservations {
            ledger
                .prepare_cached("INSERT INTO reservations VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![row.run_id, row.scope, row.day, row.amount])?;
        }
        ledger.execute("DELETE FROM given_up", [])?;
        ledger.execute("DELETE FROM cancelled_runs", [])?;
        for row in &self.given_up {
            row.add(ledger)?;
        }
        for (plan_id, state) in &self.decided_plans {
            ledger
                .prepare_cached("UPDATE plans SET state = ?2 WHERE plan_id = ?1 AND state <> ?2")?
                .execute(params![plan_id, state])?;
        }
        for kind in Lost::ALL {
            if self.lost.contains(&kind) { kind.mark(ledger)? } else { kind.unmark(ledger)? }
        }
        ledger
            .execute("UPDATE meta SET value = ?1 WHERE name = 'guards_revision'", [self.revision])
            .map(drop)
    }

    /// Replaces the accepted tools of each server that the file names: only a person accepts a tool,
    /// so the ledger cannot have changed them without the file.
    fn replace_pins(&self, ledger: &Connection) -> rusqlite::Result<()> {
        for (server, pins) in &self.mcp_pins {
            ledger
                .prepare_cached("INSERT OR REPLACE INTO mcp_pins VALUES (?1, ?2)")?
                .execute(params![server, pins])?;
        }
        Ok(())
    }

    /// Adds the restrictions that the ledger lacks. It keeps its own.
    fn add_to(&self, ledger: &Connection) -> rusqlite::Result<()> {
        for pause in &self.pauses {
            ledger
                .prepare_cached("INSERT OR IGNORE INTO pauses VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![pause.job, pause.paused_at, pause.note, pause.until])?;
        }
        for (server, pins) in &self.mcp_pins {
            ledger
                .prepare_cached("INSERT OR IGNORE INTO mcp_pins VALUES (?1, ?2)")?
                .execute(params![server, pins])?;
        }
        for row in &self.budget_days {
            ledger
                .prepare_cached(
                    "INSERT INTO budget_days VALUES (?1, ?2, ?3)
                     ON CONFLICT (scope, day) DO UPDATE SET amount = max(amount, ?3)",
                )?
                .execute(params![row.scope, row.day, row.amount])?;
        }
        for row in &self.given_up {
            row.add(ledger)?;
        }
        for (plan_id, state) in &self.decided_plans {
            ledger
                .prepare_cached(
                    "UPDATE plans SET state = ?2 WHERE plan_id = ?1 AND state = 'waiting'",
                )?
                .execute(params![plan_id, state])?;
        }
        self.lost.iter().try_for_each(|kind| kind.mark(ledger))
    }
}

/// The content of `guards.json` at the start.
enum Stored {
    Missing,
    /// It cannot be read, for this reason.
    Unreadable(String),
    Whole(Guards),
}

/// The file `guards.json` of a state directory.
#[derive(Debug, Clone)]
pub(super) struct GuardsFile {
    path: PathBuf,
}

impl GuardsFile {
    pub(super) fn of(state: &Path) -> Self {
        Self { path: state.join("guards.json") }
    }

    /// Compares the file with the ledger, in the transaction that opens the ledger, and brings the
    /// older of both up to date.
    ///
    /// *Errors*: SQLite's; the file cannot be written.
    pub(super) fn reconcile(
        &self,
        ledger: &Connection,
        life: Life,
    ) -> rusqlite::Result<Restrictions> {
        ledger.execute("INSERT OR IGNORE INTO meta VALUES ('guards_revision', 0)", [])?;
        // With the lowest revision, the ledger takes what the file holds.
        ledger.execute(
            "UPDATE meta SET value = 0 WHERE name = 'guards_revision'
             AND (typeof(value) <> 'integer' OR value NOT BETWEEN 0 AND ?1)",
            [MAX_REVISION],
        )?;
        let revision = revision(ledger)?;
        let mut stored = self.load();
        let mut is_of_first_version = false;
        if let Stored::Whole(guards) = &mut stored
            && guards.v < VERSION
        {
            guards.complete(ledger, life)?;
            is_of_first_version = true;
        }
        let found = match (life, stored) {
            (Life::Continued, Stored::Whole(guards)) if guards.revision > revision => {
                guards.adopt(ledger)?;
                // The file is one change ahead if the process died before it could commit.
                if guards.revision == revision.saturating_add(1) {
                    Restrictions::Own
                } else {
                    Restrictions::Newer
                }
            }
            (Life::Continued, Stored::Whole(guards)) if guards == Guards::read(ledger)? => {
                Restrictions::Own
            }
            // The file is written before the ledger, so one of them was damaged or replaced.
            (Life::Continued, Stored::Whole(guards)) => {
                if guards.revision == revision {
                    guards.replace_pins(ledger)?;
                }
                guards.add_to(ledger)?;
                self.write(ledger)?;
                Restrictions::Merged
            }
            (Life::Lost, Stored::Whole(guards)) => {
                guards.adopt(ledger)?;
                Restrictions::Restored
            }
            (life, stored) => {
                self.move_unreadable(&stored);
                let found = match (life, &stored) {
                    (Life::New, _) => Restrictions::Own,
                    (Life::Lost, _) => Restrictions::Gone,
                    (Life::Continued, Stored::Missing) if revision == 0 => Restrictions::First,
                    (Life::Continued, _) => Restrictions::Unchecked,
                };
                let lost: &[Lost] = match found {
                    Restrictions::Gone => &Lost::ALL,
                    // The ledger may be older than a cancellation.
                    Restrictions::Unchecked => &[Lost::Cancellations],
                    _ => &[],
                };
                lost.iter().try_for_each(|kind| kind.mark(ledger))?;
                self.write(ledger)?;
                found
            }
        };
        if is_of_first_version {
            self.write(ledger)?;
        }
        // An earlier start may have died before it could pause the jobs.
        if Lost::Pauses.is_marked(ledger)? { Ok(Restrictions::Gone) } else { Ok(found) }
    }

    /// Does `work` in a transaction of the ledger. If it changes what restricts, writes the file before
    /// the transaction is committed.
    ///
    /// *Errors*: those of `work`; the file cannot be written.
    pub(super) fn follow<T>(
        &self,
        transaction: &Transaction<'_>,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let before = revision(transaction)?;
        let value = work(transaction)?;
        if revision(transaction)? != before {
            // A transaction counts once, however many rows it changes. So a file that is one ahead
            // belongs to a transaction that was not committed.
            let query = "UPDATE meta SET value = ?1 WHERE name = 'guards_revision'";
            transaction.execute(query, [before.saturating_add(1)])?;
            self.write(transaction)?;
        }
        Ok(value)
    }

    fn load(&self) -> Stored {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Stored::Missing,
            Err(error) => return Stored::Unreadable(error.to_string()),
        };
        match serde_json::from_slice::<Guards>(&bytes) {
            Ok(guards) if !(1..=VERSION).contains(&guards.v) => {
                Stored::Unreadable(format!("its version {} is unknown", guards.v))
            }
            Ok(guards) if !(0..=MAX_REVISION).contains(&guards.revision) => {
                Stored::Unreadable(format!("its revision {} is damaged", guards.revision))
            }
            Ok(guards) => Stored::Whole(guards),
            Err(error) => Stored::Unreadable(error.to_string()),
        }
    }

    fn move_unreadable(&self, stored: &Stored) {
        if let Stored::Unreadable(why) = stored {
            let aside = set_aside(&self.path);
            let (path, aside) = (self.path.display(), aside.display());
            tracing::error!(%path, %aside, why, "moved a file that cannot be read");
        }
    }

    fn write(&self, ledger: &Connection) -> rusqlite::Result<()> {
        let other = rusqlite::Error::ToSqlConversionFailure;
        let json =
            serde_json::to_vec(&Guards::read(ledger)?).map_err(|error| other(error.into()))?;
        write_atomic(&self.path, &json)
            .map_err(|error| other(format!("cannot write {}: {error}", self.path.display()).into()))
    }
}

/// Tells whether dutyd has worked in a state directory before: it has a `guards.json` or a run.
///
/// *Errors*: the directories of the runs cannot be read.
pub(super) fn has_past(state: &Path) -> io::Result<bool> {
    if std::fs::symlink_metadata(state.join("guards.json")).is_ok() {
        return Ok(true);
    }
    let mut has_run = false;
    StateDir::new(state).each_run(|_| {
        has_run = true;
        false
    })?;
    Ok(has_run)
}

/// Returns the rows of a query, whatever the types of their cells are.
fn rows(
    ledger: &Connection,
    query: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Cells>> {
    ledger.prepare_cached(query)?.query_map(params, Cells::of)?.collect()
}

fn revision(ledger: &Connection) -> rusqlite::Result<i64> {
    ledger
        .prepare_cached("SELECT value FROM meta WHERE name = 'guards_revision'")?
        .query_row([], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, NaiveDate, Utc};

    use super::*;
    use crate::domain::{Person, Plan, PlanState, RunId};
    use crate::store::{DayBudget, DbError, GivenUp, Ledger, Pause, StateDir};

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_790_000_000, 0).unwrap()
    }

    fn pause(job: &str) -> Pause {
        Pause { job: job.into(), paused_at: now(), note: Some("disk swap".into()), until: None }
    }

    fn budget(limit: i64) -> Vec<DayBudget> {
        let day = NaiveDate::from_ymd_opt(2026, 5, 4).unwrap();
        vec![DayBudget { job: Some("a".into()), day, limit_micro_usd: Some(limit) }]
    }

    fn opened(root: &Path) -> (Ledger, LedgerFound) {
        let lock = StateDir::new(root).lock().unwrap().unwrap();
        Ledger::open(root, Some(&lock)).unwrap()
    }

    /// Removes the ledger, once the writer of a dropped one has closed it, which removes its log.
    fn lose(root: &Path) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while root.join("ledger.db-wal").exists() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
            let _ = std::fs::remove_file(root.join(name));
        }
    }

    async fn pauses(ledger: &Ledger) -> Vec<Pause> {
        ledger.read(|reader| reader.pauses()).await.unwrap()
    }

    /// Makes a ledger with a pause, a pin and a reservation.
    async fn restricted(root: &Path) {
        let (ledger, found) = opened(root);
        assert_eq!(found.restrictions, Restrictions::Own);
        ledger.pause(pause("a")).await.unwrap();
        let pins = BTreeMap::from([("read".to_owned(), "9f".to_owned())]);
        ledger.keep_mcp_pins("files".into(), pins).await.unwrap();
        let run_id = RunId::from_ulid(ulid::Ulid::generate());
        assert_eq!(ledger.reserve(run_id, budget(50), 40).await.unwrap(), None);
    }

    // proves STATE-7
    #[tokio::test]
    async fn what_restricts_outlives_the_ledger() {
        let home = tempfile::tempdir().unwrap();
        restricted(home.path()).await;
        lose(home.path());
        assert!(matches!(Ledger::open(home.path(), None), Err(DbError::Lost(_))));
        let (ledger, found) = opened(home.path());
        assert_eq!(found.restrictions, Restrictions::Restored);
        assert_eq!(pauses(&ledger).await, [pause("a")]);
        let pins = ledger.read(|reader| reader.mcp_pins("files")).await.unwrap();
        assert_eq!(pins.unwrap().len(), 1);
        assert!(ledger.shortage(budget(50), 11).await.unwrap().is_some());
        assert_eq!(ledger.reserved().await.unwrap().len(), 1);
        drop(ledger);
        let (_, found) = opened(home.path());
        assert_eq!(found.restrictions, Restrictions::Own, "the loss is settled");
    }

    // proves STATE-7
    #[tokio::test]
    async fn a_loss_of_both_copies_is_kept_until_every_job_is_paused() {
        for damage in [None, Some("{\"v\":1,")] {
            let home = tempfile::tempdir().unwrap();
            restricted(home.path()).await;
            let file = home.path().join("guards.json");
            std::fs::remove_file(&file).unwrap();
            lose(home.path());
            match damage {
                Some(text) => std::fs::write(&file, text).unwrap(),
                None => {
                    let ledger = home.path().join("ledger.db");
                    std::fs::write(ledger, "this is not a database ".repeat(900)).unwrap();
                }
            }
            for _ in 0..2 {
                let (_, found) = opened(home.path());
                assert_eq!(found.restrictions, Restrictions::Gone);
            }
            let (ledger, _) = opened(home.path());
            let pins = ledger.read(|reader| reader.mcp_pins("files")).await.unwrap();
            assert_eq!(pins, Some(BTreeMap::new()), "no tool is accepted at first contact");
            let jobs = vec!["a".to_owned(), "b".to_owned()];
            ledger.pause_after_loss(jobs, "lost".into(), now()).await.unwrap();
            drop(ledger);
            // The second loss finds all of it in the file.
            lose(home.path());
            let (ledger, found) = opened(home.path());
            assert_eq!(found.restrictions, Restrictions::Restored);
            assert_eq!(pauses(&ledger).await.len(), 2);
            let pins = ledger.read(|reader| reader.mcp_pins("files")).await.unwrap();
            assert_eq!(pins, Some(BTreeMap::new()));
            assert!(damage.is_none() || home.path().join("guards.damaged.1").exists());
        }
    }

    // proves STATE-7
    #[tokio::test]
    async fn no_plan_waits_after_a_loss_of_what_was_decided() {
        let home = tempfile::tempdir().unwrap();
        let (ledger, _) = opened(home.path());
        let plan = Plan {
            plan_id: "p".to_owned(),
            job: "j".to_owned(),
            run_id: "p".to_owned(),
            created_at: now(),
            state: PlanState::Waiting,
            steps: Vec::new(),
            reads: Vec::new(),
        };
        ledger.add_plan(plan).await.unwrap();
        ledger.pause_after_loss(Vec::new(), "lost".into(), now()).await.unwrap();
        assert_eq!(ledger.claim_plan("p".into(), PlanState::Failed).await.unwrap(), None);
    }

    // proves STATE-8
    #[tokio::test]
    async fn an_older_ledger_takes_newer_restrictions() {
        let home = tempfile::tempdir().unwrap();
        restricted(home.path()).await;
        let (ledger, _) = opened(home.path());
        let copy = copy_of_ledger(home.path());
        ledger.pause(pause("b")).await.unwrap();
        ledger.unpause("a".into()).await.unwrap();
        drop(ledger);
        lose(home.path());
        std::fs::rename(&copy, home.path().join("ledger.db")).unwrap();
        let (ledger, found) = opened(home.path());
        assert_eq!(found.restrictions, Restrictions::Newer);
        assert_eq!(pauses(&ledger).await, [pause("b")]);
    }

    fn copy_of_ledger(root: &Path) -> PathBuf {
        let copy = root.join("copy");
        let reader = Connection::open(root.join("ledger.db")).unwrap();
        reader.execute("VACUUM INTO ?1", [copy.display().to_string()]).unwrap();
        copy
    }

    /// Makes the file one of the first version, `ahead` changes ahead of the ledger.
    fn of_first_version(root: &Path, ahead: i64) {
        let file = root.join("guards.json");
        let mut guards: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let fields = guards.as_object_mut().unwrap();
        fields.remove("given_up").unwrap();
        fields.remove("decided_plans").unwrap();
        fields.insert("v".to_owned(), 1.into());
        let revision = fields["revision"].as_i64().unwrap() + ahead;
        fields.insert("revision".to_owned(), revision.into());
        std::fs::write(file, guards.to_string()).unwrap();
    }

    // proves STATE-8
    #[tokio::test]
    async fn a_file_of_the_first_version_is_no_loss() {
        for ahead in [0, 1] {
            let home = tempfile::tempdir().unwrap();
            restricted(home.path()).await;
            let run_id = RunId::from_ulid(ulid::Ulid::generate());
            let (ledger, _) = opened(home.path());
            let cancelled = GivenUp::cancelled("ann had cancelled it".to_owned(), None);
            ledger.give_up(run_id.clone(), cancelled.clone()).await.unwrap();
            drop(ledger);
            of_first_version(home.path(), ahead);
            for _ in 0..2 {
                let (ledger, found) = opened(home.path());
                assert_eq!(found.restrictions, Restrictions::Own);
                assert!(!ledger.read(|reader| reader.are_cancellations_lost()).await.unwrap());
                assert_eq!(pauses(&ledger).await, [pause("a")]);
                let id = run_id.to_string();
                let given_up = ledger.read(move |reader| reader.given_up(&id)).await.unwrap();
                assert_eq!(given_up, Some(cancelled.clone()));
            }
            assert!(!home.path().join("guards.damaged.1").exists());
            of_first_version(home.path(), 0);
            lose(home.path());
            let (ledger, found) = opened(home.path());
            assert_eq!(found.restrictions, Restrictions::Restored);
            assert!(ledger.read(|reader| reader.are_cancellations_lost()).await.unwrap());
        }
    }

    // proves STATE-8
    #[tokio::test]
    async fn a_death_before_the_commit_is_no_older_ledger() {
        let home = tempfile::tempdir().unwrap();
        restricted(home.path()).await;
        let (ledger, _) = opened(home.path());
        let copy = copy_of_ledger(home.path());
        let run_id = RunId::from_ulid(ulid::Ulid::generate());
        let cancelled = GivenUp::cancelled("ann had cancelled it".to_owned(), None);
        ledger.give_up(run_id.clone(), cancelled.clone()).await.unwrap();
        drop(ledger);
        lose(home.path());
        std::fs::rename(&copy, home.path().join("ledger.db")).unwrap();
        let (ledger, found) = opened(home.path());
        assert_eq!(found.restrictions, Restrictions::Own);
        let id = run_id.to_string();
        let given_up = ledger.read(move |reader| reader.given_up(&id)).await.unwrap();
        assert_eq!(given_up, Some(cancelled));
    }

    /// Changes the ledger as damage does: without its triggers.
    fn damage(root: &Path, sql: &str) {
        let ledger = Connection::open(root.join("ledger.db")).unwrap();
        let triggers: Vec<(String, String)> = ledger
            .prepare("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            .unwrap()
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        for (name, _) in &triggers {
            ledger.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
        }
        ledger.execute_batch(sql).unwrap();
        triggers.iter().for_each(|(_, create)| ledger.execute_batch(create).unwrap());
    }

    /// Changes a key of the file.
    fn set(root: &Path, key: &str, value: serde_json::Value) {
        let file = root.join("guards.json");
        let mut guards: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        guards[key] = value;
        std::fs::write(file, guards.to_string()).unwrap();
    }

    // proves STATE-7
    #[tokio::test]
    async fn a_revision_that_is_none_does_not_keep_the_ledger_from_opening() {
        for value in ["'twelve'", "x'00'", "-5", "9223372036854775807", "1.5"] {
            let home = tempfile::tempdir().unwrap();
            restricted(home.path()).await;
            let sql = format!("UPDATE meta SET value = {value} WHERE name = 'guards_revision'");
            damage(home.path(), &sql);
            let (ledger, found) = opened(home.path());
            assert_eq!(found.restrictions, Restrictions::Newer, "{value}");
            ledger.pause(pause("b")).await.unwrap();
            assert_eq!(pauses(&ledger).await, [pause("a"), pause("b")]);
        }
        for value in [serde_json::json!(i64::MAX), serde_json::json!(-5), serde_json::json!("12")] {
            let home = tempfile::tempdir().unwrap();
            restricted(home.path()).await;
            set(home.path(), "revision", value);
            let (ledger, found) = opened(home.path());
            assert_eq!(found.restrictions, Restrictions::Unchecked);
            ledger.pause(pause("b")).await.unwrap();
            assert_eq!(pauses(&ledger).await, [pause("a"), pause("b")]);
            assert!(home.path().join("guards.damaged.1").exists());
        }
    }

    // proves STATE-7
    #[tokio::test]
    async fn a_row_that_vanished_from_the_ledger_still_restricts() {
        for is_by_sql in [false, true] {
            for sql in [
                "DELETE FROM pauses; DELETE FROM mcp_pins; DELETE FROM budget_days",
                "UPDATE pauses SET job = 'z'; UPDATE mcp_pins SET server = 'z'; UPDATE budget_days SET day = 'z'",
            ] {
                let home = tempfile::tempdir().unwrap();
                restricted(home.path()).await;
                if !is_by_sql {
                    damage(home.path(), sql)
                } else {
                    Connection::open(home.path().join("ledger.db"))
                        .unwrap()
                        .execute_batch(sql)
                        .unwrap()
                }
                let (ledger, found) = opened(home.path());
                assert_eq!(found.restrictions, Restrictions::Merged, "{sql}");
                assert!(pauses(&ledger).await.contains(&pause("a")), "{sql}");
                let pins = ledger.read(|reader| reader.mcp_pins("files")).await.unwrap();
                assert_eq!(pins.unwrap().len(), 1, "{sql}");
                assert!(ledger.shortage(budget(50), 11).await.unwrap().is_some(), "{sql}");
                drop(ledger);
                let (_, found) = opened(home.path());
                assert_eq!(found.restrictions, Restrictions::Own, "both agree again");
            }
        }
    }

    // proves STATE-7
    #[tokio::test]
    async fn a_restriction_that_vanished_from_the_file_still_restricts() {
        let home = tempfile::tempdir().unwrap();
        restricted(home.path()).await;
        for key in ["pauses", "budget_days"] {
            set(home.path(), key, serde_json::json!([]));
        }
        let (ledger, found) = opened(home.path());
        assert_eq!(found.restrictions, Restrictions::Merged);
        assert_eq!(pauses(&ledger).await, [pause("a")]);
        assert!(ledger.shortage(budget(50), 11).await.unwrap().is_some());
    }

    // proves STATE-7
    #[tokio::test]
    async fn a_cancellation_outlives_the_ledger() {
        let home = tempfile::tempdir().unwrap();
        let run_id = RunId::from_ulid(ulid::Ulid::generate());
        let by = Person { uid: 7, user: "ann".to_owned() };
        let cancelled = GivenUp::cancelled("ann had cancelled it".to_owned(), Some(by));
        let (ledger, _) = opened(home.path());
        ledger.give_up(run_id.clone(), cancelled.clone()).await.unwrap();
        drop(ledger);
        lose(home.path());
        let given_up = async |ledger: &Ledger| {
            let id = run_id.to_string();
            ledger.read(move |reader| reader.given_up(&id)).await.unwrap()
        };
        let (ledger, _) = opened(home.path());
        assert_eq!(given_up(&ledger).await, Some(cancelled));
        assert!(!ledger.read(|reader| reader.are_cancellations_lost()).await.unwrap());
        drop(ledger);
        lose(home.path());
        std::fs::remove_file(home.path().join("guards.json")).unwrap();
        std::fs::write(home.path().join("ledger.db"), "no database ".repeat(900)).unwrap();
        let (ledger, found) = opened(home.path());
        assert_eq!(found.restrictions, Restrictions::Gone);
        assert!(ledger.read(|reader| reader.are_cancellations_lost()).await.unwrap());
        ledger.settle_cancellations().await.unwrap();
        assert!(!ledger.read(|reader| reader.are_cancellations_lost()).await.unwrap());
    }

    // proves STATE-8
    #[tokio::test]
    async fn a_decided_plan_does_not_wait_again_in_an_older_ledger() {
        let home = tempfile::tempdir().unwrap();
        let plan = |plan_id: &str| Plan {
            plan_id: plan_id.to_owned(),
            job: "j".to_owned(),
            run_id: plan_id.to_owned(),
            created_at: now(),
            state: PlanState::Waiting,
            steps: Vec::new(),
            reads: Vec::new(),
        };
        let (ledger, _) = opened(home.path());
        for plan_id in ["applied", "waiting"] {
            ledger.add_plan(plan(plan_id)).await.unwrap();
        }
        let copy = copy_of_ledger(home.path());
        ledger.claim_plan("applied".to_owned(), PlanState::Failed).await.unwrap().unwrap();
        drop(ledger);
        lose(home.path());
        std::fs::rename(&copy, home.path().join("ledger.db")).unwrap();
        let (ledger, _) = opened(home.path());
        let claim = |plan_id: &str| ledger.claim_plan(plan_id.to_owned(), PlanState::Failed);
        assert_eq!(claim("applied").await.unwrap(), None);
        assert!(claim("waiting").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_change_without_its_copy_does_not_happen() {
        let home = tempfile::tempdir().unwrap();
        let (ledger, _) = opened(home.path());
        let file = home.path().join("guards.json");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir_all(file.join("in the way")).unwrap();
        assert!(ledger.pause(pause("a")).await.is_err());
        assert_eq!(pauses(&ledger).await, []);
    }
}
