//! The index of runs: derived from transcripts, and made again from them at any time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::db::{Db, DbError, Shape, read_only};
use super::reader::read_lines;
use super::run_dir::{RunDir, StateDir};
use super::run_row::RunRow;

const SHAPE: Shape = Shape {
    synchronous: "NORMAL",
    migrations: &["
        CREATE TABLE runs (
            run_id TEXT PRIMARY KEY, job TEXT NOT NULL, started_at TEXT NOT NULL, outcome TEXT, verdict TEXT, row TEXT NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX runs_by_job ON runs (job, run_id DESC);
    "],
};

/// Which runs are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of this job.
    pub job: Option<String>,
    /// With this outcome.
    pub outcome: Option<String>,
    /// With this verdict.
    pub verdict: Option<String>,
    /// Begun then or later, RFC 3339 in UTC.
    pub since: Option<String>,
    /// Begun then or earlier, likewise.
    pub until: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// The index with its writer.
#[derive(Debug, Clone)]
pub struct Index {
    db: Db,
}

impl Index {
    fn path(state: &Path) -> PathBuf {
        state.join("index.db")
    }

    /// Opens the index; one that was damaged or is new is filled from the transcripts by [`Self::rebuild`], which the caller then owes.
    ///
    /// *Errors*: [`DbError`].
    pub fn open(state: &Path) -> Result<(Self, bool), DbError> {
        let is_new = !Self::path(state).exists();
        let (db, aside) = Db::open(&Self::path(state), SHAPE)?;
        Ok((Self { db }, is_new || aside.is_some()))
    }

    /// Takes a run in, as its transcript tells it now. One that cannot be read is left out.
    ///
    /// *Errors*: [`DbError`].
    pub async fn refresh(&self, run: RunDir) -> Result<(), DbError> {
        let row = tokio::task::spawn_blocking(move || fold(&run)).await.ok().flatten();
        self.db
            .write(move |transaction| match &row {
                Some(row) => insert(transaction, row),
                None => Ok(()),
            })
            .await
    }

    /// Makes the whole index again from the transcripts; returns how many runs it holds.
    ///
    /// *Errors*: [`DbError`]; then the old index is still there.
    pub async fn rebuild(&self, state: StateDir) -> Result<u64, DbError> {
        self.db
            .write(move |transaction| {
                transaction.execute("DELETE FROM runs", [])?;
                let mut count = 0;
                for row in state.runs().iter().filter_map(fold) {
                    insert(transaction, &row)?;
                    count += 1;
                }
                Ok(count)
            })
            .await
    }

    /// Returns runs, newest first.
    ///
    /// *Errors*: [`DbError`].
    pub async fn runs(&self, filter: RunFilter) -> Result<Vec<RunRow>, DbError> {
        self.db.write(move |transaction| select(transaction, &filter)).await
    }

    /// Returns the last run of each job.
    ///
    /// *Errors*: [`DbError`].
    pub async fn last_runs(&self) -> Result<BTreeMap<String, RunRow>, DbError> {
        self.db.write(|transaction| last_of_each(transaction)).await
    }

    /// Returns the last run of each job from the index of a state directory; `None` if it has none yet.
    ///
    /// *Errors*: [`DbError`].
    pub fn last_runs_of_file(state: &Path) -> Result<Option<BTreeMap<String, RunRow>>, DbError> {
        let path = Self::path(state);
        let Some(connection) = read_only(&path)? else { return Ok(None) };
        last_of_each(&connection).map(Some).map_err(|error| DbError::Sqlite { path, error })
    }

    /// Returns runs from the index of a state directory; `None` if it has none yet.
    ///
    /// *Errors*: [`DbError`].
    pub fn read_file(state: &Path, filter: &RunFilter) -> Result<Option<Vec<RunRow>>, DbError> {
        let path = Self::path(state);
        let Some(connection) = read_only(&path)? else { return Ok(None) };
        select(&connection, filter).map(Some).map_err(|error| DbError::Sqlite { path, error })
    }
}

/// Returns the row of a run; `None` if its transcript cannot be read.
pub(super) fn fold(run: &RunDir) -> Option<RunRow> {
    let lines: Vec<_> = read_lines(&run.transcript()).ok()?.map_while(Result::ok).collect();
    RunRow::fold(&lines)
}

fn insert(connection: &Connection, row: &RunRow) -> rusqlite::Result<()> {
    let json = serde_json::to_string(row)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![row.run_id, row.job, row.started_at, row.outcome, row.verdict, json])
        .map(drop)
}

fn last_of_each(connection: &Connection) -> rusqlite::Result<BTreeMap<String, RunRow>> {
    let mut query = connection.prepare_cached(
        "SELECT job, row FROM runs WHERE run_id IN (SELECT max(run_id) FROM runs GROUP BY job)",
    )?;
    let rows =
        query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    rows.map(|row| row.and_then(|(job, json)| Ok((job, parse(&json)?)))).collect()
}

fn parse(json: &str) -> rusqlite::Result<RunRow> {
    serde_json::from_str(json).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}

impl RunFilter {
    /// Tells whether a run is asked for, its number aside.
    #[must_use]
    pub fn admits(&self, row: &RunRow) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        is(&self.job, Some(&row.job))
            && is(&self.outcome, row.outcome.as_deref())
            && is(&self.verdict, row.verdict.as_deref())
            && self.since.as_deref().is_none_or(|since| row.started_at.as_str() >= since)
            && self.until.as_deref().is_none_or(|until| row.started_at.as_str() <= until)
    }
}

fn select(connection: &Connection, filter: &RunFilter) -> rusqlite::Result<Vec<RunRow>> {
    let mut query = connection.prepare_cached(
        "SELECT row FROM runs WHERE (?1 IS NULL OR job = ?1) AND (?2 IS NULL OR outcome = ?2) AND (?3 IS NULL OR verdict = ?3)
         AND (?4 IS NULL OR started_at >= ?4) AND (?5 IS NULL OR started_at <= ?5) ORDER BY run_id DESC LIMIT ?6",
    )?;
    let rows = query.query_map(
        params![
            filter.job,
            filter.outcome,
            filter.verdict,
            filter.since,
            filter.until,
            filter.limit
        ],
        |row| row.get::<_, String>(0),
    )?;
    rows.map(|json| parse(&json?)).collect()
}
