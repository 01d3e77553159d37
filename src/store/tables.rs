//! The tables of the ledger, one SQL string per schema version, and how a row stores an enum.

use rusqlite::Row;

use super::db::Schema;

pub(super) const SCHEMA: Schema = Schema {
    synchronous: "FULL",
    migrations: &["
        CREATE TABLE slots (
            job TEXT NOT NULL, epoch INTEGER NOT NULL, due_at INTEGER NOT NULL, state TEXT NOT NULL, run_id TEXT,
            decided_at INTEGER NOT NULL, reason TEXT NOT NULL, zone TEXT NOT NULL, config_digest TEXT NOT NULL,
            PRIMARY KEY (job, epoch, due_at)
        ) WITHOUT ROWID;
        CREATE INDEX slots_open ON slots (state) WHERE state IN ('queued', 'running');
        CREATE TABLE periods (
            job TEXT NOT NULL, epoch INTEGER NOT NULL, schedule TEXT NOT NULL, zone TEXT NOT NULL,
            began INTEGER NOT NULL, settled INTEGER NOT NULL, ended INTEGER
        );
        CREATE INDEX periods_open ON periods (job) WHERE ended IS NULL;
        CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    ", "
        CREATE TABLE plans (
            plan_id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, state TEXT NOT NULL, plan TEXT NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE mcp_pins (server TEXT PRIMARY KEY, pins TEXT NOT NULL) WITHOUT ROWID;
    ", "
        CREATE TABLE record_ends (run_id TEXT PRIMARY KEY, lines INTEGER NOT NULL, hash TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE queue (
            run_id TEXT PRIMARY KEY, job TEXT NOT NULL, trigger TEXT NOT NULL, scheduled_for INTEGER,
            ended_at INTEGER, stop_reason TEXT, reason TEXT
        ) WITHOUT ROWID;
        CREATE INDEX queue_waiting ON queue (run_id) WHERE ended_at IS NULL;
    ", "ALTER TABLE facts RENAME TO meta", "
        DROP INDEX slots_open;
        CREATE INDEX slots_open ON slots (run_id) WHERE state IN ('queued', 'running');
        CREATE INDEX slots_covered ON slots (run_id) WHERE state = 'coalesced';
        CREATE INDEX queue_ended ON queue (run_id) WHERE ended_at IS NOT NULL;
    ", "
        CREATE TABLE pauses (job TEXT PRIMARY KEY, paused_at INTEGER NOT NULL, note TEXT) WITHOUT ROWID;
        CREATE TABLE failures (job TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
    ", "
        ALTER TABLE slots ADD COLUMN until INTEGER;
        ALTER TABLE slots ADD COLUMN count INTEGER NOT NULL DEFAULT 1;
        ALTER TABLE slots ADD COLUMN is_backfill INTEGER NOT NULL DEFAULT 0;
    ", "
        CREATE TABLE given_up (run_id TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
    ", "
        ALTER TABLE queue ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1;
        ALTER TABLE queue ADD COLUMN not_before INTEGER;
        ALTER TABLE queue ADD COLUMN request TEXT;
    ", "
        CREATE TABLE prechecks (job TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID;
    ", "
        CREATE TABLE budget_days (
            scope TEXT, day TEXT, amount INTEGER NOT NULL, PRIMARY KEY (scope, day)
        ) WITHOUT ROWID;
        CREATE TABLE reservations (
            run_id TEXT, scope TEXT, day TEXT NOT NULL, amount INTEGER NOT NULL, PRIMARY KEY (run_id, scope)
        ) WITHOUT ROWID;
    ", "
        CREATE TABLE unreadable (
            found_at INTEGER NOT NULL, of_table TEXT NOT NULL, row TEXT NOT NULL, reason TEXT NOT NULL
        );
    ", "
        INSERT INTO meta VALUES ('guards_revision', 0);
        CREATE TRIGGER pause_added AFTER INSERT ON pauses BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER pause_changed AFTER UPDATE ON pauses BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER pause_removed AFTER DELETE ON pauses BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER pins_added AFTER INSERT ON mcp_pins BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER pins_changed AFTER UPDATE ON mcp_pins BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER pins_removed AFTER DELETE ON mcp_pins BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER day_added AFTER INSERT ON budget_days BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER day_changed AFTER UPDATE ON budget_days BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER day_removed AFTER DELETE ON budget_days BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER reservation_added AFTER INSERT ON reservations BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER reservation_removed AFTER DELETE ON reservations BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
    ", "
        CREATE TABLE cancelled_runs (run_id TEXT PRIMARY KEY, uid INTEGER, user TEXT) WITHOUT ROWID;
    ", "
        CREATE INDEX plans_decided ON plans (created_at, plan_id, state) WHERE state <> 'waiting';
        CREATE TRIGGER plan_added AFTER INSERT ON plans BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER plan_changed AFTER UPDATE ON plans BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER plan_removed AFTER DELETE ON plans BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER given_up_added AFTER INSERT ON given_up BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER given_up_removed AFTER DELETE ON given_up BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER cancelled_added AFTER INSERT ON cancelled_runs BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
        CREATE TRIGGER cancelled_removed AFTER DELETE ON cancelled_runs BEGIN UPDATE meta SET value = value + 1 WHERE name = 'guards_revision'; END;
    ", "
        CREATE TABLE lessons (
            address TEXT NOT NULL, model TEXT NOT NULL, settings TEXT NOT NULL, parameter TEXT NOT NULL,
            said TEXT NOT NULL, learned_at INTEGER NOT NULL, PRIMARY KEY (address, model, parameter)
        ) WITHOUT ROWID;
        CREATE TABLE said_of_models (
            address TEXT NOT NULL, model TEXT NOT NULL, said TEXT NOT NULL, said_at INTEGER NOT NULL,
            PRIMARY KEY (address, model)
        ) WITHOUT ROWID;
    ", "
        CREATE INDEX slots_to_check ON slots (job) WHERE state IN ('queued', 'running') OR typeof(job) <> 'text' OR typeof(epoch) <> 'integer'
             OR typeof(due_at) <> 'integer' OR due_at NOT BETWEEN 0 AND 253402300799999 OR typeof(state) <> 'text'
             OR typeof(run_id) NOT IN ('text', 'null') OR typeof(decided_at) <> 'integer'
             OR decided_at NOT BETWEEN 0 AND 253402300799999 OR typeof(reason) <> 'text' OR typeof(zone) <> 'text'
             OR typeof(until) NOT IN ('integer', 'null') OR until NOT BETWEEN 0 AND 253402300799999
             OR typeof(count) <> 'integer' OR count NOT BETWEEN 1 AND 4294967295 OR typeof(is_backfill) <> 'integer';
        CREATE INDEX record_ends_to_check ON record_ends (run_id) WHERE typeof(run_id) <> 'text' OR typeof(lines) <> 'integer' OR lines < 0 OR typeof(hash) <> 'text';
    ", "
        CREATE TABLE lessons_of_settings (
            address TEXT NOT NULL, model TEXT NOT NULL, settings TEXT NOT NULL, parameter TEXT NOT NULL,
            said TEXT NOT NULL, learned_at INTEGER NOT NULL, PRIMARY KEY (address, model, settings, parameter)
        ) WITHOUT ROWID;
        INSERT INTO lessons_of_settings SELECT address, model, settings, parameter, said, learned_at FROM lessons;
        DROP TABLE lessons;
        ALTER TABLE lessons_of_settings RENAME TO lessons;
    ", "
        ALTER TABLE queue ADD COLUMN epoch INTEGER;
        UPDATE queue SET epoch = coalesce(
            (SELECT epoch FROM slots WHERE slots.run_id = queue.run_id AND state IN ('queued', 'running')), 0
        ) WHERE scheduled_for IS NOT NULL AND ended_at IS NULL;
        UPDATE queue SET ended_at = CAST(strftime('%s', 'now') AS INTEGER) * 1000, stop_reason = 'interrupted',
            reason = 'the run did not begin: the ledger of an earlier version lacks its request or its time'
            WHERE ended_at IS NULL AND trigger IN ('manual', 'retry') AND (request IS NULL OR not_before IS NULL)
            AND run_id NOT IN (SELECT run_id FROM slots WHERE state IN ('queued', 'running') AND run_id IS NOT NULL);
    ", "
        CREATE TABLE run_notices (run_id TEXT PRIMARY KEY, notice TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE job_states (job TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT, destination TEXT NOT NULL, created_at INTEGER NOT NULL, message TEXT NOT NULL
        );
        CREATE INDEX messages_of ON messages (destination, id);
        CREATE TABLE undelivered (
            destination TEXT PRIMARY KEY, count INTEGER NOT NULL, last_at INTEGER NOT NULL, reason TEXT NOT NULL
        ) WITHOUT ROWID;
    ", "
        CREATE TABLE holds (
            model TEXT PRIMARY KEY, settings TEXT NOT NULL, cause TEXT NOT NULL, since INTEGER NOT NULL,
            until INTEGER NOT NULL, failures INTEGER NOT NULL, answered_at INTEGER, told TEXT NOT NULL
        ) WITHOUT ROWID;
        ALTER TABLE pauses ADD COLUMN until INTEGER;
        CREATE TABLE repeated_runs (run_id TEXT PRIMARY KEY, next TEXT NOT NULL) WITHOUT ROWID;
    ", "
        ALTER TABLE prechecks ADD COLUMN run_id TEXT;
    ", "
        CREATE TABLE queued_texts (id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, at INTEGER NOT NULL, text TEXT NOT NULL);
        CREATE INDEX queued_texts_of ON queued_texts (run_id, id);
    "],
};

/// Returns an enum that the column stores as its wire name.
pub(super) fn word<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    at: usize,
) -> rusqlite::Result<T> {
    let text: String = row.get(at)?;
    serde_json::from_value(text.into()).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, Box::new(error))
    })
}
