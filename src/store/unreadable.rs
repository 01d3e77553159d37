//! Finds the rows of the ledger that cannot be read, when the daemon starts, and ends what they stand
//! for (STATE-7).
//!
//! A reader of the ledger fails at a row that it cannot read. After [`Ledger::set_unreadable_aside`], it
//! can read every row on which the daemon acts. A loss must not widen a right: a pause stays a pause, and
//! an amount that cannot be read counts as spent.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::cells::{Cell, Cells};
use super::claim::SlotState;
use super::db::DbError;
use super::holds::{HOLD_COLUMNS, hold};
use super::ledger::Ledger;
use super::losses::{
    Loss, end_queued_run, end_slot, give_up_again, keep_cancelled, keep_pause, raise_epoch,
    restore_epoch, spend_budget,
};
use super::pauses::{PAUSE_COLUMNS, pause};
use super::plans::{digests, plan};
use super::queue::{QUEUE_COLUMNS, check_queue_row, record_end};
use super::run_dir::StateDir;
use super::slot_rows::{
    PERIOD_COLUMNS, SLOT_COLUMNS, invalid, moment_of, open_slot, period, slot_row, time,
};
use crate::schedule::Expressions;

/// A row that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    table: &'static str,
    /// The columns that name the row, as JSON.
    key: String,
    why: String,
    /// The end of the run, slot, pause or budget for which the row stood, for the operator.
    ending: String,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { table, key, why, ending } = self;
        write!(f, "the row {key} in `{table}` of the ledger cannot be read ({why}): {ending}")
    }
}

/// Whether an unreadable row moves to the table `unreadable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moves {
    Aside,
    /// A newer version may read it, and this one does not act on it.
    Stays,
}

/// Which rows of a table may be unreadable.
enum Search {
    Every,
    /// At most those of a partial index, so that a start does not take longer with a longer history.
    Indexed {
        index: &'static str,
        /// The condition of the index, word for word.
        filter: &'static str,
    },
}

/// How the rows of a table are read, and how one that cannot be read ends.
struct Table {
    name: &'static str,
    key: &'static [&'static str],
    columns: &'static str,
    search: Search,
    read: fn(&Row<'_>, &Expressions) -> rusqlite::Result<()>,
    moves: Moves,
    /// Ends what a row stands for; returns what became of it, for the operator.
    end: fn(&Connection, &Loss<'_>) -> rusqlite::Result<String>,
}

/// `meta` comes last: a lost epoch is computed from the other tables.
const TABLES: &[Table] = &[
    Table {
        name: "queue",
        key: &["run_id"],
        columns: QUEUE_COLUMNS,
        search: Search::Every,
        read: |row, _| check_queue_row(row),
        moves: Moves::Aside,
        end: end_queued_run,
    },
    Table {
        name: "slots",
        key: &["job", "epoch", "due_at"],
        columns: SLOT_COLUMNS,
        // A slot that is over is only read if a cell has another type than it should have.
        search: Search::Indexed {
            index: "slots_to_check",
            filter: "state IN ('queued', 'running') OR typeof(job) <> 'text' OR typeof(epoch) <> 'integer'
                 OR typeof(due_at) <> 'integer' OR due_at NOT BETWEEN 0 AND 253402300799999 OR typeof(state) <> 'text'
                 OR typeof(run_id) NOT IN ('text', 'null') OR typeof(decided_at) <> 'integer'
                 OR decided_at NOT BETWEEN 0 AND 253402300799999 OR typeof(reason) <> 'text' OR typeof(zone) <> 'text'
                 OR typeof(until) NOT IN ('integer', 'null') OR until NOT BETWEEN 0 AND 253402300799999
                 OR typeof(count) <> 'integer' OR count NOT BETWEEN 1 AND 4294967295 OR typeof(is_backfill) <> 'integer'",
        },
        read: read_slot,
        moves: Moves::Aside,
        end: end_slot,
    },
    Table {
        name: "periods",
        key: &["rowid"],
        columns: PERIOD_COLUMNS,
        search: Search::Every,
        read: read_period,
        moves: Moves::Aside,
        end: |_, _| {
            Ok("its due times up to this start are unknown, and have no slots".to_owned())
        },
    },
    Table {
        name: "pauses",
        key: &["job"],
        columns: PAUSE_COLUMNS,
        search: Search::Every,
        read: |row, _| pause(row).map(drop),
        moves: Moves::Aside,
        end: keep_pause,
    },
    Table {
        name: "failures",
        key: &["job"],
        columns: "job, count",
        search: Search::Every,
        read: |row, _| {
            let (_, _): (String, u32) = (row.get(0)?, row.get(1)?);
            Ok(())
        },
        moves: Moves::Aside,
        end: |_, _| Ok("the count of the failures begins again".to_owned()),
    },
    Table {
        name: "given_up",
        key: &["run_id"],
        columns: "run_id, reason",
        search: Search::Every,
        read: |row, _| {
            let (_, _): (String, String) = (row.get(0)?, row.get(1)?);
            Ok(())
        },
        moves: Moves::Aside,
        end: give_up_again,
    },
    Table {
        name: "cancelled_runs",
        key: &["run_id"],
        columns: "run_id, uid, user",
        search: Search::Every,
        read: |row, _| {
            let (_, _, _): (String, Option<u32>, Option<String>) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(())
        },
        moves: Moves::Aside,
        end: keep_cancelled,
    },
    Table {
        name: "record_ends",
        key: &["run_id"],
        columns: "lines, hash, run_id",
        search: Search::Indexed {
            index: "record_ends_to_check",
            filter: "typeof(run_id) <> 'text' OR typeof(lines) <> 'integer' OR lines < 0 OR typeof(hash) <> 'text'",
        },
        read: |row, _| {
            let _: String = row.get(2)?;
            record_end(row).map(drop)
        },
        moves: Moves::Aside,
        end: |_, _| Ok("`verify` cannot tell where the record of the run ended".to_owned()),
    },
    Table {
        name: "reservations",
        key: &["run_id", "scope"],
        columns: "run_id, scope, day, amount",
        search: Search::Every,
        read: |row, _| {
            let (_, _, _): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            amount(row, 3)
        },
        moves: Moves::Aside,
        end: |_, _| Ok("the whole of what the run had reserved counts as spent".to_owned()),
    },
    Table {
        name: "budget_days",
        key: &["scope", "day"],
        columns: "scope, day, amount",
        search: Search::Every,
        read: |row, _| {
            let (_, _): (String, String) = (row.get(0)?, row.get(1)?);
            amount(row, 2)
        },
        moves: Moves::Aside,
        end: spend_budget,
    },
    Table {
        name: "lessons",
        key: &["address", "model", "settings", "parameter"],
        columns: "address, model, settings, parameter, said, learned_at",
        search: Search::Every,
        read: |row, _| {
            let (_, _, _): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (_, _): (String, String) = (row.get(3)?, row.get(4)?);
            time(row, 5).map(drop)
        },
        moves: Moves::Aside,
        end: |_, _| Ok("the next run sends the parameter once more".to_owned()),
    },
    Table {
        name: "said_of_models",
        key: &["address", "model"],
        columns: "address, model, said, said_at",
        search: Search::Every,
        read: |row, _| {
            let (_, _, _): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            time(row, 3).map(drop)
        },
        moves: Moves::Aside,
        end: |_, _| Ok("the catalogue applies until the provider is asked again".to_owned()),
    },
    Table {
        name: "holds",
        key: &["model"],
        columns: HOLD_COLUMNS,
        search: Search::Every,
        read: |row, _| hold(row).map(drop),
        moves: Moves::Aside,
        end: |_, _| Ok("the next run asks the model".to_owned()),
    },
    Table {
        name: "prechecks",
        key: &["job"],
        columns: "job, answer, run_id",
        search: Search::Every,
        read: |row, _| {
            let (_, _): (String, String) = (row.get(0)?, row.get(1)?);
            let _: Option<String> = row.get(2)?;
            Ok(())
        },
        moves: Moves::Aside,
        end: |_, _| Ok("the next precheck of the job has no earlier answer".to_owned()),
    },
    Table {
        name: "plans",
        key: &["plan_id"],
        columns: "state, plan, plan_id",
        search: Search::Every,
        read: |row, _| {
            let _: String = row.get(2)?;
            plan(row).map(drop)
        },
        moves: Moves::Stays,
        end: |_, _| Ok("the plan cannot be applied".to_owned()),
    },
    Table {
        name: "mcp_pins",
        key: &["server"],
        columns: "pins, server",
        search: Search::Every,
        read: |row, _| {
            let _: String = row.get(1)?;
            digests(row).map(drop)
        },
        moves: Moves::Stays,
        end: |_, _| {
            Ok("the tools of the MCP server stay unavailable until `dutyd mcp accept`".to_owned())
        },
    },
    Table {
        name: "meta",
        key: &["name"],
        columns: "name, value",
        search: Search::Every,
        read: read_meta,
        moves: Moves::Aside,
        end: restore_epoch,
    },
];

impl Ledger {
    /// Moves the rows that cannot be read to the table `unreadable`, and ends what they stand for. Call
    /// it before anything relies on the ledger, with the lock of the state directory.
    ///
    /// *Errors*: [`DbError`]; the ledger is then unchanged.
    pub async fn set_unreadable_aside(
        &self,
        state: StateDir,
        now: DateTime<Utc>,
    ) -> Result<Vec<Unreadable>, DbError> {
        self.write(move |transaction| {
            let mut found = Vec::new();
            for table in TABLES {
                found.extend(table.sift(transaction, &state, now)?);
            }
            found.extend(raise_epoch(transaction)?.map(|epoch| Unreadable {
                table: "meta",
                key: r#"{"name":"epoch"}"#.to_owned(),
                why: "it is missing, or lower than the epoch of a schedule".to_owned(),
                ending: format!("the epoch is {epoch}"),
            }));
            Ok(found)
        })
        .await
    }
}

impl Table {
    fn sift(
        &self,
        connection: &Connection,
        state: &StateDir,
        now: DateTime<Utc>,
    ) -> rusqlite::Result<Vec<Unreadable>> {
        let Self { name, columns, .. } = self;
        let only = match self.search {
            Search::Every => String::new(),
            Search::Indexed { index, filter } => format!("INDEXED BY {index} WHERE {filter}"),
        };
        let mut query = connection.prepare(&format!("SELECT {columns} FROM {name} {only}"))?;
        let mut rows = query.query([])?;
        let expressions = Expressions::default();
        let mut bad = Vec::new();
        while let Some(row) = rows.next()? {
            if let Err(error) = (self.read)(row, &expressions) {
                bad.push((Cells::of(row)?, describe(error)));
            }
        }
        let lose = |(cells, why): &(Cells, String)| -> rusqlite::Result<Unreadable> {
            if self.moves == Moves::Aside {
                self.move_aside(connection, cells, why, now)?;
            }
            let ending = (self.end)(connection, &Loss { cells, why, state, now })?;
            let (key, why) = (cells.to_json(Some(self.key)), why.clone());
            Ok(Unreadable { table: self.name, key, why, ending })
        };
        bad.iter().map(lose).collect()
    }

    fn move_aside(
        &self,
        connection: &Connection,
        cells: &Cells,
        why: &str,
        now: DateTime<Utc>,
    ) -> rusqlite::Result<()> {
        connection.execute(
            "INSERT INTO unreadable VALUES (?1, ?2, ?3, ?4)",
            params![now.timestamp_millis(), self.name, cells.to_json(None), why],
        )?;
        let of_key: Vec<String> = self.key.iter().map(|column| format!("{column} IS ?")).collect();
        let cells: Vec<&Cell> = self.key.iter().map(|column| cells.get(column)).collect();
        let delete = format!("DELETE FROM {} WHERE {}", self.name, of_key.join(" AND "));
        connection.execute(&delete, rusqlite::params_from_iter(cells)).map(drop)
    }
}

/// Returns why a row cannot be read, without the words that SQLite adds to our own errors.
fn describe(error: rusqlite::Error) -> String {
    match error {
        rusqlite::Error::FromSqlConversionFailure(_, _, own) => own.to_string(),
        error => error.to_string(),
    }
}

fn read_slot(row: &Row<'_>, _: &Expressions) -> rusqlite::Result<()> {
    let slot = slot_row(row)?;
    if slot.state == SlotState::Queued || slot.state == SlotState::Running {
        open_slot(row)?;
    }
    Ok(())
}

fn read_period(row: &Row<'_>, expressions: &Expressions) -> rusqlite::Result<()> {
    let period = period(row)?;
    // Otherwise, the start would count due times of decades.
    if period.settled < period.began || period.ended.is_some_and(|ended| ended < period.settled) {
        return Err(invalid(6, "its times are not in order"));
    }
    expressions
        .schedule(&period.schedule, &period.zone)
        .map(drop)
        .ok_or_else(|| invalid(3, "the schedule is invalid"))
}

fn read_meta(row: &Row<'_>, _: &Expressions) -> rusqlite::Result<()> {
    let (name, value): (String, i64) = (row.get(0)?, row.get(1)?);
    if name != "epoch" {
        return moment_of(value, 1).map(drop);
    }
    not_negative(value, 1)
}

/// Reads an amount of money.
fn amount(row: &Row<'_>, at: usize) -> rusqlite::Result<()> {
    not_negative(row.get(at)?, at)
}

fn not_negative(value: i64, at: usize) -> rusqlite::Result<()> {
    if value < 0 {
        return Err(rusqlite::Error::IntegralValueOutOfRange(at, value));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Epoch, JobName, Origin, RunId, SlotKey, SlotTime, Trigger};
    use crate::store::{AdoptedSchedule, Claim, Pause, QueuedRun, Slot};

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn id(number: u128) -> RunId {
        RunId::from_ulid(ulid::Ulid::from_parts(1, number))
    }

    fn job() -> JobName {
        JobName::parse("j").unwrap()
    }

    fn schedule() -> AdoptedSchedule {
        let schedule = r#"{"cron":["0 3 * * *"]}"#.to_owned();
        AdoptedSchedule { job: job(), schedule, zone: "UTC".to_owned() }
    }

    /// A ledger with an open slot, whose run is queued, a slot that is over, a schedule and a pause.
    async fn ledger() -> (tempfile::TempDir, StateDir, Ledger) {
        let temp = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(temp.path(), None).unwrap().0;
        let time = |number: i64| SlotTime { epoch: Epoch::FIRST, due_at: at(number) };
        let slot = |number: u32, state| Slot {
            key: SlotKey { job: job(), time: time(number.into()) },
            span: None,
            is_backfill: false,
            state,
            run_id: Some(id(number.into())),
            reason: "due".to_owned(),
            zone: "UTC".to_owned(),
            config_digest: "d".to_owned(),
            left: None,
            queued: None,
        };
        let origin = Origin::of_slot(Trigger::Schedule, time(1), None);
        let queued = QueuedRun { run_id: id(1), job: job(), origin, not_before: None };
        let open = Slot { queued: Some(queued), ..slot(1, SlotState::Queued) };
        let slots = vec![open, slot(2, SlotState::Ran)];
        ledger.claim(Claim { slots, ..Claim::default() }, at(3)).await.unwrap();
        let schedules = vec![schedule()];
        ledger.set_schedules(Epoch::FIRST, schedules, Claim::default(), at(3)).await.unwrap();
        let pause = Pause { job: "p".to_owned(), paused_at: at(3), note: None, until: None };
        ledger.pause(pause).await.unwrap();
        let state = StateDir::new(temp.path());
        (temp, state, ledger)
    }

    /// Makes one change to the ledger, and sets the rows aside; returns the table and the end of each.
    async fn damaged(
        ledger: &Ledger,
        state: &StateDir,
        sql: &'static str,
    ) -> Vec<(String, String)> {
        ledger.write(move |transaction| transaction.execute_batch(sql)).await.unwrap();
        let found = ledger.set_unreadable_aside(state.clone(), at(9)).await.unwrap();
        let again = ledger.set_unreadable_aside(state.clone(), at(9)).await.unwrap();
        assert!(again.iter().all(|row| ["plans", "mcp_pins"].contains(&row.table)), "{again:?}");
        found.into_iter().map(|row| (row.table.to_owned(), row.ending)).collect()
    }

    // proves STATE-7
    #[tokio::test]
    async fn what_an_unreadable_row_stands_for_ends_with_the_reason() {
        let cases: &[(&str, &str, &str)] = &[
            ("UPDATE queue SET run_id = x'00'", "queue", "is unknown"),
            ("UPDATE queue SET run_id = 'no id'", "queue", "is unknown"),
            ("UPDATE queue SET trigger = 'of_a_newer_version'", "queue", "interrupted"),
            ("UPDATE queue SET scheduled_for = 'noon'", "queue", "interrupted"),
            ("UPDATE queue SET request = x'ff'", "queue", "interrupted"),
            ("UPDATE queue SET epoch = NULL", "queue", "interrupted"),
            ("UPDATE queue SET job = 'No Job'", "queue", "interrupted"),
            (
                "UPDATE queue SET trigger = 'retry', not_before = 1, request = '{}'",
                "queue",
                "interrupted",
            ),
            (
                r#"UPDATE queue SET trigger = 'retry', request = '{"vars":{},"prompt":null,"plan":true}'"#,
                "queue",
                "interrupted",
            ),
            ("UPDATE slots SET job = 'No Job' WHERE state = 'queued'", "slots", "missed"),
            ("UPDATE queue SET job = CAST(x'ff' AS TEXT)", "queue", "interrupted"),
            (
                "UPDATE queue SET ended_at = 1, stop_reason = 'newer', reason = ''",
                "queue",
                "interrupted",
            ),
            ("UPDATE slots SET run_id = 'no id' WHERE state = 'queued'", "slots", "missed"),
            ("UPDATE slots SET run_id = NULL WHERE state = 'queued'", "slots", "missed"),
            ("UPDATE slots SET state = x'00' WHERE state = 'queued'", "slots", "missed"),
            ("UPDATE slots SET reason = x'00' WHERE state = 'queued'", "slots", "stays `queued`"),
            ("UPDATE slots SET reason = x'00' WHERE state = 'ran'", "slots", "stays `ran`"),
            ("UPDATE slots SET decided_at = 'noon' WHERE state = 'ran'", "slots", "stays `ran`"),
            ("UPDATE slots SET due_at = 'noon' WHERE state = 'ran'", "slots", "is unknown"),
            (
                "UPDATE slots SET due_at = 9223372036854775807 WHERE state = 'ran'",
                "slots",
                "is unknown",
            ),
            ("UPDATE slots SET count = -1 WHERE state = 'ran'", "slots", "stays `ran`"),
            ("UPDATE periods SET settled = 'noon'", "periods", "are unknown"),
            ("UPDATE periods SET settled = 0", "periods", "are unknown"),
            ("UPDATE periods SET ended = began - 1", "periods", "are unknown"),
            ("UPDATE periods SET schedule = '{}'", "periods", "are unknown"),
            ("UPDATE periods SET ended = 9223372036854775807", "periods", "are unknown"),
            ("UPDATE pauses SET paused_at = 'noon'", "pauses", "`p` stays paused"),
            ("UPDATE pauses SET job = x'00'", "pauses", "every job"),
            ("INSERT INTO failures VALUES ('j', 'two')", "failures", "begins again"),
            ("INSERT INTO given_up VALUES ('no text', x'00')", "given_up", "is unknown"),
            (
                "INSERT INTO cancelled_runs VALUES ('01m8266a6bdtqp42bjvv982dj6', 'seven', 'ann')",
                "cancelled_runs",
                "stays cancelled",
            ),
            (
                "INSERT INTO cancelled_runs VALUES ('no id', -1, 'ann')",
                "cancelled_runs",
                "is unknown",
            ),
            ("INSERT INTO record_ends VALUES (x'00', 1, 'h')", "record_ends", "verify"),
            ("INSERT INTO reservations VALUES (x'00', '', 'd', 1)", "reservations", "spent"),
            ("INSERT INTO budget_days VALUES ('', 'd', -1)", "budget_days", "spent"),
            ("INSERT INTO budget_days VALUES ('', 'd', 'much')", "budget_days", "spent"),
            ("INSERT INTO prechecks (job, answer) VALUES ('j', x'00')", "prechecks", "no earlier"),
            ("INSERT INTO plans VALUES ('a', 1, 'waiting', '{')", "plans", "cannot be applied"),
            ("INSERT INTO mcp_pins VALUES ('m', '[')", "mcp_pins", "accept"),
            ("INSERT INTO meta VALUES ('epoch', 'two')", "meta", "the epoch is 0"),
            ("INSERT INTO meta VALUES ('started', 'noon')", "meta", "is lost"),
        ];
        for (sql, table, expected) in cases {
            let (_temp, state, ledger) = ledger().await;
            let found = damaged(&ledger, &state, sql).await;
            let [(of, ending)] = found.as_slice() else { panic!("{sql}: {found:?}") };
            assert!(of == table && ending.contains(expected), "{sql}: {of}: {ending}");
            // Everything on which the daemon acts can be read.
            let read = ledger.read(|reader| {
                reader.periods(None)?;
                Ok((reader.queue_rows()?, reader.slots(None, None, None)?, reader.pauses()?))
            });
            let (queue, slots, pauses) = read.await.unwrap();
            assert!(!pauses.is_empty(), "{sql}: a pause stays");
            let open = slots.iter().filter(|slot| slot.state == SlotState::Queued);
            if ending.contains("interrupted") {
                assert!(queue.iter().all(|run| run.outcome.is_some()), "{sql}: {queue:?}");
            }
            if ending.contains("interrupted") || ending.contains("missed") {
                assert_eq!(open.count(), 0, "{sql}");
            }
            let aside = ledger.read(|reader| {
                let query = "SELECT count(*) FROM unreadable";
                reader.connection().query_row(query, [], |row| row.get::<_, i64>(0))
            });
            let stays = ["plans", "mcp_pins"].contains(table);
            assert_eq!(aside.await.unwrap(), i64::from(!stays), "{sql}");
        }
    }

    // proves STATE-7
    #[tokio::test]
    async fn an_epoch_that_vanished_is_not_the_first_one() {
        for sql in ["DELETE FROM meta WHERE name = 'epoch'", "UPDATE meta SET value = 1"] {
            let (_temp, state, ledger) = ledger().await;
            ledger.begin_epoch(Epoch::new(2), at(9), Vec::new(), at(5)).await.unwrap();
            let schedules = vec![schedule()];
            ledger.set_schedules(Epoch::new(2), schedules, Claim::default(), at(5)).await.unwrap();
            let sql = format!("{sql}; UPDATE meta SET value = 0 WHERE name = 'guards_revision'");
            ledger.write(move |transaction| transaction.execute_batch(&sql)).await.unwrap();
            let found = ledger.set_unreadable_aside(state, at(9)).await.unwrap();
            let told = format!("{found:?}");
            assert!(told.contains("the epoch is 2"), "{told}");
            let epoch = ledger.read(|reader| reader.meta("epoch")).await.unwrap();
            assert_eq!(epoch, Some(2));
        }
    }

    #[tokio::test]
    async fn a_word_of_a_newer_version_is_shown_as_it_is() {
        let (_temp, state, ledger) = ledger().await;
        let sql = "UPDATE slots SET state = 'deferred' WHERE state = 'ran'";
        assert_eq!(damaged(&ledger, &state, sql).await, []);
        let slots = ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
        assert_eq!(slots[1].state.as_str(), "deferred");
    }
}
