//! The full text of results, in the index.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};
use serde_json::Value;

use super::run_summary::RunSummary;

/// The type of a text that is the result of a run.
const RESULT: &str = "session_end";

/// The fewest characters of a word that is searched for.
const SHORTEST_WORD: usize = 3;

/// Limit of the words that are searched for.
const MOST_WORDS: usize = 50;

/// The result of an earlier run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recalled {
    pub run_id: String,
    pub text: String,
}

/// Keeps the result of an ended run, in place of an earlier text.
pub(super) fn keep_result(connection: &Connection, row: &RunSummary) -> rusqlite::Result<()> {
    forget_texts(connection, &row.run_id)?;
    let text = match &row.result {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    connection
        .prepare_cached("INSERT INTO texts (run_id, type, text) VALUES (?1, ?2, ?3)")?
        .execute(params![row.run_id, RESULT, text])
        .map(drop)
}

pub(super) fn forget_texts(connection: &Connection, run_id: &str) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached("DELETE FROM texts WHERE run_id = ?1")?;
    delete.execute([run_id]).map(drop)
}

/// Returns the newest result of a job, then the results that match `task` best, `count` in all.
pub(super) fn recall(
    connection: &Connection,
    job: &str,
    task: &str,
    count: u32,
) -> rusqlite::Result<Vec<Recalled>> {
    let read = |row: &rusqlite::Row<'_>| Ok(Recalled { run_id: row.get(0)?, text: row.get(1)? });
    let mut newest = connection.prepare_cached(
        "SELECT runs.run_id, text FROM runs JOIN texts ON texts.run_id = runs.run_id
         WHERE job = ?1 AND outcome = 'succeeded' AND type = ?2 ORDER BY runs.run_id DESC LIMIT ?3",
    )?;
    let first = newest.query_map(params![job, RESULT, count.min(1)], read)?;
    let mut found: Vec<Recalled> = first.collect::<rusqlite::Result<_>>()?;
    let words = query_of(task);
    let others = count.saturating_sub(1);
    if found.is_empty() || words.is_empty() || others == 0 {
        return Ok(found);
    }
    let mut best = connection.prepare_cached(
        "SELECT runs.run_id, texts.text FROM text_search JOIN texts ON texts.id = text_search.rowid
         JOIN runs ON runs.run_id = texts.run_id
         WHERE text_search MATCH ?1 AND job = ?2 AND outcome = 'succeeded' AND type = ?3 AND runs.run_id <> ?4
         ORDER BY rank, runs.run_id DESC LIMIT ?5",
    )?;
    let newest = found.iter().map(|result| result.run_id.clone()).collect::<String>();
    let matching = best.query_map(params![words, job, RESULT, newest, others], read)?;
    for result in matching {
        found.push(result?);
    }
    Ok(found)
}

/// Returns a query of FTS5 that finds texts with any word of `task`. Each word is quoted, so that none is
/// an operator.
fn query_of(task: &str) -> String {
    let words = task.split(|c: char| !c.is_alphanumeric());
    let long = words.filter(|word| word.chars().count() >= SHORTEST_WORD);
    let unique: BTreeSet<String> = long.map(str::to_lowercase).collect();
    let quoted = unique.iter().take(MOST_WORDS).map(|word| format!("\"{word}\""));
    quoted.collect::<Vec<_>>().join(" OR ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE runs (run_id TEXT PRIMARY KEY, job TEXT, outcome TEXT);
                 CREATE TABLE texts (id INTEGER PRIMARY KEY, run_id TEXT, type TEXT, text TEXT);
                 CREATE VIRTUAL TABLE text_search USING fts5 (text, content = 'texts', content_rowid = 'id');
                 CREATE TRIGGER text_added AFTER INSERT ON texts BEGIN
                     INSERT INTO text_search (rowid, text) VALUES (new.id, new.text);
                 END;",
            )
            .unwrap();
        connection
    }

    fn add(connection: &Connection, run_id: &str, job: &str, outcome: &str, text: &str) {
        connection
            .execute("INSERT INTO runs VALUES (?1, ?2, ?3)", params![run_id, job, outcome])
            .unwrap();
        connection
            .execute(
                "INSERT INTO texts (run_id, type, text) VALUES (?1, ?2, ?3)",
                params![run_id, RESULT, text],
            )
            .unwrap();
    }

    #[test]
    fn the_newest_result_comes_first_then_the_best_matches() {
        let index = index();
        add(&index, "1", "web", "succeeded", "the certificate of the proxy expires");
        add(&index, "2", "web", "succeeded", "all is well");
        add(&index, "3", "web", "failed", "the certificate of the proxy has expired");
        add(&index, "4", "db", "succeeded", "the certificate of the proxy expires");
        add(&index, "5", "web", "succeeded", "the disk is full");
        let ids = |count| -> Vec<String> {
            let found =
                recall(&index, "web", "Does a certificate expire? Look at the proxy", count);
            found.unwrap().into_iter().map(|result| result.run_id).collect()
        };
        assert_eq!(ids(3), ["5", "1"]);
        assert_eq!(ids(1), ["5"]);
        assert_eq!(ids(0), [""; 0]);
        assert_eq!(recall(&index, "none", "certificate", 3).unwrap(), []);
    }

    proptest! {
        #[test]
        fn any_task_is_a_query(task in "\\PC{0,200}") {
            let index = index();
            add(&index, "1", "j", "succeeded", "a result");
            add(&index, "2", "j", "succeeded", "another result");
            prop_assert!(recall(&index, "j", &task, 5).is_ok());
        }
    }
}
