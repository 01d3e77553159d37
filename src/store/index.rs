//! The index of runs, derived from the transcripts and rebuildable at any time.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use rusqlite::{Connection, params};

use super::db::{Db, DbError, Schema, failed, in_memory, read_only};
use super::expired_runs::{IndexedRun, expired};
use super::lock::StateLock;
use super::reader::{ReadLine, read_lines};
use super::run_dir::{RunDir, StateDir};
use super::run_summary::{RunState, RunSummary, moment};
use super::texts::{Recalled, forget_texts, keep_result, recall};
use crate::domain::{Outcome, RunId};

const SCHEMA: Schema = Schema {
    synchronous: "NORMAL",
    migrations: &["
        CREATE TABLE runs (
            run_id TEXT PRIMARY KEY, job TEXT NOT NULL, started_at TEXT NOT NULL, outcome TEXT, verdict TEXT, row TEXT NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX runs_by_job ON runs (job, run_id DESC);
    ", "
        ALTER TABLE runs ADD COLUMN refused_calls INTEGER NOT NULL DEFAULT 0;
    ", "
        ALTER TABLE runs ADD COLUMN config_digest TEXT;
    ", "
        CREATE TABLE texts (
            id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, type TEXT NOT NULL, text TEXT NOT NULL
        );
        CREATE INDEX texts_of_run ON texts (run_id);
        CREATE VIRTUAL TABLE text_search USING fts5 (text, content = 'texts', content_rowid = 'id');
        CREATE TRIGGER text_added AFTER INSERT ON texts BEGIN
            INSERT INTO text_search (rowid, text) VALUES (new.id, new.text);
        END;
        CREATE TRIGGER text_removed AFTER DELETE ON texts BEGIN
            INSERT INTO text_search (text_search, rowid, text) VALUES ('delete', old.id, old.text);
        END;
        CREATE INDEX runs_succeeded ON runs (job, run_id DESC) WHERE outcome = 'succeeded';
    "],
};

/// Criteria for listing runs; a run must meet all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// The name of the job.
    pub job: Option<String>,
    /// The state of the run.
    pub state: Option<RunState>,
    /// The verdict of the final answer.
    pub verdict: Option<String>,
    /// Whether to list only runs in which the gate denied a call.
    pub refused: bool,
    /// Earliest start, inclusive, as RFC 3339 in UTC.
    pub since: Option<String>,
    /// Latest start, inclusive, as RFC 3339 in UTC.
    pub until: Option<String>,
    /// A prefix of the run id.
    pub prefix: Option<String>,
    /// Maximum number of runs.
    pub limit: u32,
}

/// The index and its writer.
#[derive(Debug, Clone)]
pub struct Index {
    db: Db,
}

impl Index {
    fn path(state: &Path) -> PathBuf {
        state.join("index.db")
    }

    /// Opens the index. With `lock`, a damaged file is moved aside. If the returned flag is true, the
    /// index is new, was damaged, or was migrated: the caller must call [`Self::rebuild`].
    ///
    /// *Errors*: [`DbError`].
    pub fn open(state: &Path, lock: Option<&StateLock>) -> Result<(Self, bool), DbError> {
        let is_new = std::fs::metadata(Self::path(state)).map_or(true, |file| file.len() == 0);
        let (db, aside) = Db::open(&Self::path(state), SCHEMA, None, lock, &mut |_, _| Ok(()))?;
        let must_rebuild_index = is_new || aside.is_some() || db.was_upgraded;
        Ok((Self { db }, must_rebuild_index))
    }

    /// Adds or replaces the row of an ended run.
    ///
    /// *Errors*: [`DbError`].
    pub async fn take(&self, row: RunSummary) -> Result<(), DbError> {
        self.db.write(move |transaction| insert(transaction, &row)).await
    }

    /// Adds an ended run from its transcript. Does nothing if the run has not ended, or if its
    /// transcript cannot be read.
    ///
    /// *Errors*: [`DbError`].
    pub async fn refresh(&self, state: StateDir, run: RunDir) -> Result<(), DbError> {
        let row = tokio::task::spawn_blocking(move || ended_row(&state, &run)).await.ok().flatten();
        match row {
            Some(row) => self.take(row).await,
            None => Ok(()),
        }
    }

    /// Returns the ids of the runs in the index, from the id `since` on (inclusive).
    ///
    /// *Errors*: [`DbError`].
    pub async fn ids(&self, since: String) -> Result<HashSet<String>, DbError> {
        self.db.write(move |transaction| ids(transaction, &since)).await
    }

    /// Returns the highest id of a run before `id` (exclusive).
    ///
    /// *Errors*: [`DbError`].
    pub async fn last_before(&self, id: String) -> Result<Option<String>, DbError> {
        self.db
            .write(move |transaction| {
                let query = "SELECT max(run_id) FROM runs WHERE run_id < ?1";
                transaction.query_row(query, [id], |row| row.get(0))
            })
            .await
    }

    /// Rebuilds the index from the transcripts; returns the number of runs in it. Keeps the row of
    /// an ended run whose transcript cannot be read.
    ///
    /// *Errors*: [`DbError`]; the old index is then unchanged.
    pub async fn rebuild(&self, state: StateDir) -> Result<u64, DbError> {
        self.db
            .write(move |transaction| {
                let mut left = ids(transaction, "")?;
                fill(transaction, &state, |run_id| {
                    left.remove(run_id);
                })?;
                for id in left {
                    let run = RunId::parse(&id).ok().and_then(|run_id| state.find_run(&run_id));
                    if run.is_none_or(|run| state.is_open(run.run_id())) {
                        forget(transaction, &id)?;
                    }
                }
                let count: i64 =
                    transaction.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
                Ok(u64::try_from(count).unwrap_or(0))
            })
            .await
    }

    /// Returns the ended runs that match `filter`, newest first.
    ///
    /// *Errors*: [`DbError`].
    pub async fn runs(&self, filter: RunFilter) -> Result<Vec<RunSummary>, DbError> {
        self.db.write(move |transaction| select(transaction, &filter)).await
    }

    /// Returns the ended runs that have a due time, newest first.
    ///
    /// *Errors*: [`DbError`].
    pub async fn runs_of_slots(&self) -> Result<Vec<RunSummary>, DbError> {
        self.db
            .write(|transaction| {
                let mut query = transaction.prepare(
                    "SELECT json_remove(row, '$.result'), config_digest FROM runs WHERE row ->> 'scheduled_for' IS NOT NULL ORDER BY run_id DESC",
                )?;
                let rows = query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
                rows.map(|row| {
                    let (json, config_digest) = row?;
                    Ok(RunSummary { config_digest, ..parse(&json)? })
                })
                .collect()
            })
            .await
    }

    /// Returns the ids of the runs of a job that failed or were interrupted and whose due time is from
    /// `since` to `until`, both inclusive.
    ///
    /// *Errors*: [`DbError`].
    pub async fn failed_runs(
        &self,
        job: String,
        since: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<HashSet<String>, DbError> {
        self.db
            .write(move |transaction| {
                let mut query = transaction.prepare_cached(
                    "SELECT run_id FROM runs WHERE job = ?1 AND outcome IN ('failed', 'interrupted')
                     AND row ->> 'scheduled_for' BETWEEN ?2 AND ?3",
                )?;
                query
                    .query_map(params![job, moment(since), moment(until)], |row| row.get(0))?
                    .collect()
            })
            .await
    }

    /// Returns the runs beyond the limits of retention ([`expired`]).
    ///
    /// *Errors*: [`DbError`].
    pub(super) async fn expired(
        &self,
        keep_runs: usize,
        oldest: DateTime<Utc>,
    ) -> Result<Vec<RunId>, DbError> {
        self.db
            .write(move |transaction| {
                let mut query = transaction.prepare(
                    "SELECT job, run_id, outcome, started_at FROM runs ORDER BY job, run_id DESC",
                )?;
                let mut rows = query.query([])?;
                let (mut found, mut job, mut runs) = (Vec::new(), String::new(), Vec::new());
                while let Some(row) = rows.next()? {
                    let of: String = row.get(0)?;
                    if of != job {
                        let gone = expired(&runs, keep_runs, oldest);
                        found.extend(gone.map(|run| run.run_id.clone()));
                        (job, runs) = (of, Vec::new());
                    }
                    runs.extend(IndexedRun::of(row)?);
                }
                let gone = expired(&runs, keep_runs, oldest);
                found.extend(gone.map(|run| run.run_id.clone()));
                Ok(found)
            })
            .await
    }

    /// Removes the row of a run.
    ///
    /// *Errors*: [`DbError`].
    pub(super) async fn forget(&self, run_id: RunId) -> Result<(), DbError> {
        self.db.write(move |transaction| forget(transaction, run_id.as_str())).await
    }

    /// Returns the digests of the configurations of the runs.
    ///
    /// *Errors*: [`DbError`].
    pub(super) async fn config_digests(&self) -> Result<HashSet<String>, DbError> {
        self.db
            .write(|transaction| {
                let mut query = transaction.prepare(
                    "SELECT DISTINCT config_digest FROM runs WHERE config_digest IS NOT NULL",
                )?;
                query.query_map([], |row| row.get(0))?.collect()
            })
            .await
    }

    /// Returns the newest result of a job, and the results that match `task` best, `count` in all, of runs
    /// that succeeded.
    ///
    /// *Errors*: [`DbError`].
    pub async fn recall(
        &self,
        job: String,
        task: String,
        count: u32,
    ) -> Result<Vec<Recalled>, DbError> {
        self.db.write(move |transaction| recall(transaction, &job, &task, count)).await
    }

    /// Returns the latest ended run of each job.
    ///
    /// *Errors*: [`DbError`].
    pub async fn last_runs(&self) -> Result<BTreeMap<String, RunSummary>, DbError> {
        self.db.write(|transaction| last_of_each(transaction)).await
    }

    /// Returns the outcome of the latest ended run of each of `jobs`. A run that was not needed
    /// does not count; a job without any other run is left out.
    ///
    /// *Errors*: [`DbError`].
    pub async fn last_outcomes(
        &self,
        jobs: Vec<String>,
    ) -> Result<BTreeMap<String, Outcome>, DbError> {
        self.db.write(move |transaction| outcomes(transaction, jobs)).await
    }

    /// Returns the latest ended run of each job, for a caller that has not opened the index.
    ///
    /// *Errors*: [`DbError`].
    pub fn last_runs_of_file(state: &StateDir) -> Result<BTreeMap<String, RunSummary>, DbError> {
        Self::read(state, last_of_each)
    }

    /// Returns the ended runs that match `filter`, newest first, for a caller that has not opened
    /// the index.
    ///
    /// *Errors*: [`DbError`].
    pub fn read_file(state: &StateDir, filter: &RunFilter) -> Result<Vec<RunSummary>, DbError> {
        Self::read(state, |connection| select(connection, filter))
    }

    /// Queries the index file. If the file is missing or has an older schema, queries an index in
    /// memory that is built from the transcripts.
    fn read<T>(
        state: &StateDir,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, DbError> {
        let path = Self::path(state.root());
        let connection = match read_only(&path, SCHEMA)? {
            Some(reading) if !reading.was_upgraded => Ok(reading.connection),
            _ => in_memory(None, SCHEMA).and_then(|connection| {
                fill(&connection, state, |_| {})?;
                Ok(connection)
            }),
        };
        connection.and_then(|connection| query(&connection)).map_err(|error| failed(&path, error))
    }
}

fn ids(connection: &Connection, since: &str) -> rusqlite::Result<HashSet<String>> {
    let mut query = connection.prepare("SELECT run_id FROM runs WHERE run_id >= ?1")?;
    query.query_map([since], |row| row.get(0))?.collect()
}

fn forget(connection: &Connection, run_id: &str) -> rusqlite::Result<()> {
    forget_texts(connection, run_id)?;
    let mut delete = connection.prepare_cached("DELETE FROM runs WHERE run_id = ?1")?;
    delete.execute([run_id]).map(drop)
}

/// Adds or replaces the row of every ended run, and calls `added` with its id.
fn fill(
    connection: &Connection,
    state: &StateDir,
    mut added: impl FnMut(&str),
) -> rusqlite::Result<()> {
    let mut failed = Ok(());
    state
        .each_run(|run| {
            if let Some(row) = ended_row(state, run) {
                failed = insert(connection, &row);
                added(&row.run_id);
            }
            failed.is_ok()
        })
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    failed
}

impl StateDir {
    /// Returns the rows of the open runs, computed from their transcripts.
    #[must_use]
    pub fn open_rows(&self) -> Vec<RunSummary> {
        std::fs::read_dir(self.run_locks())
            .into_iter()
            .flatten()
            .filter_map(|entry| RunId::parse(entry.ok()?.file_name().to_str()?).ok())
            .filter_map(|run_id| fold(&self.find_run(&run_id)?))
            .collect()
    }
}

/// Returns the row of a run; `None` if its transcript cannot be opened or has no valid first line.
fn fold(run: &RunDir) -> Option<RunSummary> {
    let lines: Vec<ReadLine> = read_lines(&run.transcript()).ok()?.map_while(Result::ok).collect();
    RunSummary::fold(&lines)
}

/// Returns the row of a run for the index. If the transcript has no end, the lock file decides:
/// with a lock file, the run is open and gets no row (`None`) until it ends; without a lock file,
/// the run counts as interrupted. Also `None` if the transcript cannot be read.
fn ended_row(state: &StateDir, run: &RunDir) -> Option<RunSummary> {
    let lines: Vec<ReadLine> = read_lines(&run.transcript()).ok()?.map_while(Result::ok).collect();
    let row = RunSummary::fold(&lines)?;
    if row.outcome.is_some() {
        return Some(row);
    }
    let last = lines.last().map(|line| line.ts.clone())?;
    (!state.is_open(run.run_id())).then(|| row.cut(last))
}

fn insert(connection: &Connection, row: &RunSummary) -> rusqlite::Result<()> {
    keep_result(connection, row)?;
    let json = serde_json::to_string(row)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?
        .execute(params![
            row.run_id,
            row.job,
            row.started_at,
            row.outcome.map(Outcome::as_str),
            row.verdict,
            json,
            i64::try_from(row.refused_calls).unwrap_or(i64::MAX),
            row.config_digest
        ])
        .map(drop)
}

fn last_of_each(connection: &Connection) -> rusqlite::Result<BTreeMap<String, RunSummary>> {
    let mut query = connection.prepare_cached(
        "SELECT job, row FROM runs WHERE run_id IN (SELECT max(run_id) FROM runs GROUP BY job)",
    )?;
    let rows =
        query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    rows.map(|row| row.and_then(|(job, json)| Ok((job, parse(&json)?)))).collect()
}

fn outcomes(
    connection: &Connection,
    jobs: Vec<String>,
) -> rusqlite::Result<BTreeMap<String, Outcome>> {
    let mut query = connection.prepare_cached(
        "SELECT row FROM runs WHERE job = ?1 AND outcome <> 'skipped' ORDER BY run_id DESC LIMIT 1",
    )?;
    let mut found = BTreeMap::new();
    for job in jobs {
        let mut rows = query.query([&job])?;
        let Some(row) = rows.next()? else { continue };
        let outcome = parse(&row.get::<_, String>(0)?)?.outcome;
        found.extend(outcome.map(|outcome| (job, outcome)));
    }
    Ok(found)
}

fn parse(json: &str) -> rusqlite::Result<RunSummary> {
    serde_json::from_str(json).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}

impl RunFilter {
    /// Tells whether a run meets all criteria; `limit` does not apply.
    #[must_use]
    pub fn admits(&self, row: &RunSummary) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let started = row.started_at.as_deref().or(row.ended_at.as_deref());
        is(&self.job, Some(&row.job))
            && self.state.is_none_or(|state| state == row.state())
            && is(&self.verdict, row.verdict.as_deref())
            && (!self.refused || row.refused_calls > 0)
            // A queued run has no start yet, so it counts as newer than any `since`.
            && self.since.as_deref().is_none_or(|since| started.is_none_or(|at| at >= since))
            && self.until.as_deref().is_none_or(|until| started.is_some_and(|at| at <= until))
            && self.prefix.as_deref().is_none_or(|prefix| row.run_id.starts_with(prefix))
    }
}

fn select(connection: &Connection, filter: &RunFilter) -> rusqlite::Result<Vec<RunSummary>> {
    let mut query = connection.prepare_cached(
        "SELECT row FROM runs WHERE (?1 IS NULL OR job = ?1) AND (?2 IS NULL OR outcome = ?2) AND (?3 IS NULL OR verdict = ?3)
         AND (?4 IS NULL OR started_at >= ?4) AND (?5 IS NULL OR started_at <= ?5)
         AND (?6 IS NULL OR substr(run_id, 1, length(?6)) = ?6) AND (NOT ?7 OR refused_calls > 0)
         ORDER BY run_id DESC LIMIT ?8",
    )?;
    let rows = query.query_map(
        params![
            filter.job,
            filter.state.map(RunState::as_str),
            filter.verdict,
            filter.since,
            filter.until,
            filter.prefix,
            filter.refused,
            filter.limit
        ],
        |row| row.get::<_, String>(0),
    )?;
    rows.map(|json| parse(&json?)).collect()
}

/// Returns the rows that `dutyd runs` lists, newest first. A run moves from the queue to the open
/// runs and then to the index; the caller must read these three in this order, so that no run is
/// missed.
#[must_use]
pub fn all_runs(
    queue: Vec<RunSummary>,
    open: Vec<RunSummary>,
    ended: Vec<RunSummary>,
    filter: &RunFilter,
) -> Vec<RunSummary> {
    let mut known: std::collections::BTreeSet<String> =
        ended.iter().map(|row| row.run_id.clone()).collect();
    let mut rows = ended;
    let others = open.into_iter().chain(queue);
    rows.extend(others.filter(|row| known.insert(row.run_id.clone()) && filter.admits(row)));
    rows.sort_by(|a, b| b.run_id.cmp(&a.run_id));
    rows.truncate(usize::try_from(filter.limit).unwrap_or(usize::MAX));
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_must_meet_every_criterion() {
        let row: RunSummary = serde_json::from_value(json!({
            "run_id": "01a", "job": "j", "trigger": "manual", "scheduled_for": null,
            "started_at": "2026-01-02T00:00:00Z", "ended_at": "2026-01-02T00:01:00Z",
            "outcome": "succeeded", "stop_reason": "completed", "verdict": "ok", "result": null,
            "attempt": 1, "iterations": 1, "tool_calls": 1, "refused_calls": 1,
            "usage": crate::domain::Usage::default(), "cost_usd": null, "model": "m", "error": null
        }))
        .unwrap();
        let text = |text: &str| Some(text.to_owned());
        let all = RunFilter {
            job: text("j"),
            state: Some(RunState::Ended(Outcome::Succeeded)),
            verdict: text("ok"),
            refused: true,
            since: text("2026-01-02T00:00:00Z"),
            until: text("2026-01-02T00:00:00Z"),
            prefix: text("01"),
            limit: 0,
        };
        assert!(all.admits(&row) && RunFilter::default().admits(&row));
        for missed in [
            RunFilter { job: text("k"), ..all.clone() },
            RunFilter { state: Some(RunState::Running), ..all.clone() },
            RunFilter { verdict: text("bad"), ..all.clone() },
            RunFilter { since: text("2026-01-02T00:00:01Z"), ..all.clone() },
            RunFilter { until: text("2026-01-01T23:59:59Z"), ..all.clone() },
            RunFilter { prefix: text("02"), ..all.clone() },
        ] {
            assert!(!missed.admits(&row), "{missed:?}");
        }
        let allowed = RunSummary { refused_calls: 0, ..row.clone() };
        assert!(!all.admits(&allowed));
        // A queued run has no start: it counts as newer than any `since` and any `until`.
        let waiting = RunSummary { started_at: None, ended_at: None, ..row };
        let since = RunFilter { since: text("2030-01-01T00:00:00Z"), ..RunFilter::default() };
        let until = RunFilter { until: text("2030-01-01T00:00:00Z"), ..RunFilter::default() };
        assert!(since.admits(&waiting) && !until.admits(&waiting));
    }
}
