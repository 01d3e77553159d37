//! SQLite: one writer thread per database, which receives its work as messages.
//!
//! Migrations are ordered SQL strings, counted in `PRAGMA user_version` and applied in one
//! transaction. A damaged file is moved aside, never deleted (STATE-3); a file of a newer version
//! is rejected (STATE-5).

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::lock::StateLock;
use super::reserve::Reserve;

/// How long a connection waits for a lock of the database.
const BUSY: Duration = Duration::from_secs(5);

/// Maximum number of orders that wait for the writer.
const QUEUE: usize = 256;

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// SQLite returned an error.
    #[error("{path}: {error}")]
    Sqlite { path: PathBuf, error: rusqlite::Error },
    /// The file exists, but this process must not read it.
    #[error("{path} cannot be read: {error}")]
    Unreadable { path: PathBuf, error: std::io::Error },
    /// A newer version created the file.
    #[error("{path} was created by a newer dutyd (schema {found}, supported up to {known})")]
    Newer {
        path: PathBuf,
        /// The schema version of the file.
        found: i64,
        /// The newest schema version that this build supports.
        known: i64,
    },
    /// The file is damaged. The daemon sets it aside at its start, while it holds the lock of the
    /// state directory; nothing else may.
    #[error("{0} is damaged; the next start of the daemon sets it aside")]
    Damaged(PathBuf),
    /// The file is missing or empty although the state directory has a past. Only the daemon makes a new
    /// one, which takes over what `guards.json` and the records hold.
    #[error(
        "{0} is missing or empty although dutyd has run here; start the daemon to restore what the records and guards.json hold"
    )]
    Lost(PathBuf),
    /// The file has an older schema, and a daemon of an older version uses it.
    #[error(
        "{0} has an older format that the running daemon uses; restart the daemon to migrate it"
    )]
    Older(PathBuf),
    /// The writer gave no answer: its thread has stopped, or the work panicked.
    #[error("{0}: the writer thread gave no answer")]
    Closed(PathBuf),
}

/// The migrations and the durability of a database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schema {
    pub(super) migrations: &'static [&'static str],
    /// `FULL` if a committed row must survive a power cut, otherwise `NORMAL`.
    pub(super) synchronous: &'static str,
}

impl Schema {
    fn version(self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }
}

/// A database file before it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A database.
    Kept,
    /// It was missing or empty.
    Blank,
    /// It was damaged, and is set aside.
    Damaged,
}

/// Work in the transaction that creates or migrates the tables.
type Begin<'a> = &'a mut dyn FnMut(&Connection, Origin) -> rusqlite::Result<()>;

/// Work for the writer thread.
type Order = Box<dyn FnOnce(&mut Connection) + Send>;

/// A handle to a database and its writer thread.
#[derive(Debug, Clone)]
pub(super) struct Db {
    path: PathBuf,
    /// Whether opening the database migrated its schema.
    pub(super) was_upgraded: bool,
    queue: mpsc::Sender<Order>,
}

impl Db {
    /// Opens a database, migrates its schema and starts its writer. With `lock`, a damaged file is
    /// moved aside, and its new path is returned. Calls `begin` in the transaction that creates or
    /// migrates the tables.
    ///
    /// *Errors*: [`DbError`], also for an error of `begin`.
    pub(super) fn open(
        path: &Path,
        schema: Schema,
        mut reserve: Option<Reserve>,
        lock: Option<&StateLock>,
        begin: Begin<'_>,
    ) -> Result<(Self, Option<PathBuf>), DbError> {
        let ((mut connection, was_upgraded), aside) = match prepare(path, schema, lock, begin) {
            Ok(prepared) => (prepared, None),
            Err(DbError::Damaged(_)) if lock.is_some() => {
                let aside = set_aside(path);
                let mut begin = |connection: &Connection, _: Origin| -> rusqlite::Result<()> {
                    begin(connection, Origin::Damaged)
                };
                (prepare(path, schema, lock, &mut begin)?, Some(aside))
            }
            Err(error) => return Err(error),
        };
        let (queue, mut orders) = mpsc::channel::<Order>(QUEUE);
        let name =
            path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                while let Some(order) = orders.blocking_recv() {
                    if let Some(reserve) = &mut reserve {
                        reserve.adapt();
                    }
                    // A panic in one order ends only that order: its transaction is rolled back,
                    // and its sender gets no answer.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        order(&mut connection)
                    }));
                }
            })
            .map_err(|error| DbError::Sqlite {
                path: path.to_path_buf(),
                error: rusqlite::Error::ToSqlConversionFailure(Box::new(error)),
            })?;
        Ok((Self { path: path.to_path_buf(), was_upgraded, queue }, aside))
    }

    /// Runs `work` in the writer thread, in one transaction.
    ///
    /// *Errors*: [`DbError`]; the transaction is then rolled back. *Cancel*: the transaction may be
    /// committed nonetheless.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DbError> {
        let (ack, answer) = oneshot::channel();
        let order: Order = Box::new(move |connection| {
            let result = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .and_then(|transaction| {
                    let value = work(&transaction)?;
                    transaction.commit()?;
                    Ok(value)
                });
            let _ = ack.send(result);
        });
        self.queue.send(order).await.map_err(|_| DbError::Closed(self.path.clone()))?;
        let result = answer.await.map_err(|_| DbError::Closed(self.path.clone()))?;
        result.map_err(|error| failed(&self.path, error))
    }
}

/// Converts an error of SQLite; one about the content of the file becomes [`DbError::Damaged`].
pub(super) fn failed(path: &Path, error: rusqlite::Error) -> DbError {
    if is_damage(&error) {
        DbError::Damaged(path.to_path_buf())
    } else {
        DbError::Sqlite { path: path.to_path_buf(), error }
    }
}

pub(super) struct Reading {
    pub(super) connection: Connection,
    /// Whether the file has an older schema. The connection is then to a migrated copy in memory;
    /// only the writer migrates the file on disk.
    pub(super) was_upgraded: bool,
}

/// Returns a read-only connection; `None` if the file is missing or empty.
///
/// *Errors*: [`DbError`].
pub(super) fn read_only(path: &Path, schema: Schema) -> Result<Option<Reading>, DbError> {
    // Do not open the file to find out whether it exists: closing the descriptor would release the
    // locks that SQLite holds in this process.
    match rustix::fs::access(path, rustix::fs::Access::READ_OK) {
        Ok(()) => {}
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => {
            return Err(DbError::Unreadable { path: path.to_path_buf(), error: error.into() });
        }
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags).and_then(probed);
    let opened = match opened {
        Err(_) if is_immutable(path) => open_immutable(path).and_then(probed),
        opened => opened,
    };
    let failed = |error| failed(path, error);
    let connection = opened.map_err(failed)?;
    let found = version(&connection).map_err(failed)?;
    let known = schema.version();
    if found > known {
        return Err(DbError::Newer { path: path.to_path_buf(), found, known });
    }
    // Each database that we created has a version.
    if found == 0 {
        return Ok(None);
    }
    if found == known {
        return Ok(Some(Reading { connection, was_upgraded: false }));
    }
    in_memory(Some(&connection), schema)
        .map(|connection| Some(Reading { connection, was_upgraded: true }))
        .map_err(failed)
}

/// Returns a database in memory with the newest schema, and the rows of `of` if given.
pub(super) fn in_memory(of: Option<&Connection>, schema: Schema) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    if let Some(of) = of {
        let copy = rusqlite::backup::Backup::new(of, &mut connection)?;
        copy.run_to_completion(i32::MAX, std::time::Duration::ZERO, None)?;
    }
    migrate(&connection, schema)?;
    Ok(connection)
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Migrates a database to the newest schema, within the caller's transaction.
fn migrate(connection: &Connection, schema: Schema) -> rusqlite::Result<()> {
    let found = usize::try_from(version(connection)?).unwrap_or(0);
    for migration in schema.migrations.iter().skip(found) {
        connection.execute_batch(migration)?;
    }
    connection.pragma_update(None, "user_version", schema.version())
}

/// Runs a first query: if a database with a write-ahead log cannot be read, the first query fails,
/// but opening the database does not.
fn probed(connection: Connection) -> rusqlite::Result<Connection> {
    connection.busy_timeout(BUSY)?;
    connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
    Ok(connection)
}

/// Tells whether the file is on a read-only file system, and its write-ahead log is empty or
/// missing. Only then may the file be opened with `immutable=1`, which ignores the log.
fn is_immutable(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let is_read_only = rustix::fs::statvfs(path)
        .is_ok_and(|facts| facts.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    is_read_only && std::fs::metadata(PathBuf::from(log)).map_or(true, |meta| meta.len() == 0)
}

/// Opens a database that nobody can change, without its log and without locks.
fn open_immutable(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(immutable_uri(path), flags)
}

fn immutable_uri(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b if b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_' | b'.') => {
                uri.push(char::from(*b));
            }
            b => uri.push_str(&format!("%{b:02X}")),
        }
    }
    uri + "?immutable=1"
}

/// Returns the connection and whether an older schema was migrated. With `lock`, also checks every
/// page, so that damage is found before anything relies on the file.
fn prepare(
    path: &Path,
    schema: Schema,
    lock: Option<&StateLock>,
    begin: Begin<'_>,
) -> Result<(Connection, bool), DbError> {
    let failed = |error| failed(path, error);
    let other = |error| failed(rusqlite::Error::ToSqlConversionFailure(Box::new(error)));
    // Create the file ourselves, so that it is private from the start; SQLite gives its auxiliary
    // files the same mode.
    super::files::append_private(path).map_err(other)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    // Look at the version first: we must not change the file of a newer dutyd.
    let found = version(&connection).map_err(failed)?;
    let known = schema.version();
    if found > known {
        return Err(DbError::Newer { path: path.to_path_buf(), found, known });
    }
    connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
    connection.pragma_update(None, "synchronous", schema.synchronous).map_err(failed)?;
    if lock.is_some() && !is_intact(&connection).map_err(failed)? {
        return Err(DbError::Damaged(path.to_path_buf()));
    }
    let is_older = found > 0 && found < known;
    // A migration would break the queries of an older daemon that still uses the file.
    let root = path.parent().unwrap_or(path);
    let _own = match lock {
        None if is_older => match StateLock::take(root).map_err(other)? {
            None => return Err(DbError::Older(path.to_path_buf())),
            own => own,
        },
        _ => None,
    };
    if is_older {
        back_up(&connection, path, found)?;
    }
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Another process may have migrated the file in the meantime.
    let found = version(&transaction).map_err(failed)?;
    if found > known {
        return Err(DbError::Newer { path: path.to_path_buf(), found, known });
    }
    migrate(&transaction, schema).map_err(failed)?;
    let origin = if found == 0 { Origin::Blank } else { Origin::Kept };
    begin(&transaction, origin).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok((connection, is_older))
}

/// Tells whether no page of a database is damaged. *Source*: SQLite, `PRAGMA quick_check`.
fn is_intact(connection: &Connection) -> rusqlite::Result<bool> {
    let word: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(word == "ok")
}

/// Keeps a copy of a database with schema `found` beside it (STATE-5). The copy gets its name only
/// once it is complete and on disk; an earlier copy stays.
fn back_up(connection: &Connection, path: &Path, found: i64) -> Result<(), DbError> {
    let unfinished = path.with_extension(format!("v{found}.unfinished"));
    let copied = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let file = super::files::append_private(&unfinished)?;
        file.set_len(0)?;
        connection.execute("VACUUM INTO ?1", [unfinished.to_string_lossy()])?;
        file.sync_all()?;
        let first = path.with_extension(format!("v{found}.db"));
        let more = (2..).map(|number| path.with_extension(format!("v{found}.{number}.db")));
        let name = std::iter::once(first).chain(more).find(|name| !name.exists());
        std::fs::rename(&unfinished, name.unwrap_or_default())?;
        Ok(std::fs::File::open(path.parent().unwrap_or(path))?.sync_all()?)
    };
    copied().map_err(|error| failed(path, rusqlite::Error::ToSqlConversionFailure(error)))
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Renames a damaged file, with the auxiliary files of a database; returns its new path.
pub(super) fn set_aside(path: &Path) -> PathBuf {
    let aside = (1..)
        .map(|n| path.with_extension(format!("damaged.{n}")))
        .find(|aside| !aside.exists())
        .unwrap_or_else(|| path.with_extension("damaged"));
    let _ = std::fs::rename(path, &aside);
    for helper in ["-wal", "-shm"] {
        let with_helper = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(helper);
            PathBuf::from(name)
        };
        let _ = std::fs::rename(with_helper(path), with_helper(&aside));
    }
    aside
}

#[cfg(test)]
mod tests {
    use super::super::tables::SCHEMA;
    use super::*;

    // proves STATE-5
    #[tokio::test]
    async fn every_earlier_format_of_the_ledger_is_migrated_and_kept() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/formats/v1");
        let rows = |connection: &Connection| -> Vec<(String, i64, String)> {
            let mut query = connection.prepare("SELECT job, due_at, state FROM slots").unwrap();
            let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            rows.unwrap().map(Result::unwrap).collect()
        };
        let newest = SCHEMA.migrations.len();
        for steps in 2..newest {
            let temp = tempfile::tempdir().unwrap();
            let path = temp.path().join("ledger.db");
            std::fs::copy(root.join("ledger.db"), &path).unwrap();
            let until = SCHEMA.migrations.get(..steps).unwrap();
            let old = Connection::open(&path).unwrap();
            migrate(&old, Schema { migrations: until, ..SCHEMA }).unwrap();
            let before = rows(&old);
            assert_eq!(before.len(), 3);
            drop(old);
            // A copy of an earlier migration is not taken for the copy of this one.
            let earlier = path.with_extension(format!("v{steps}.db"));
            std::fs::write(&earlier, "an earlier copy").unwrap();
            let (connection, was_upgraded) =
                prepare(&path, SCHEMA, None, &mut |_, _| Ok(())).unwrap();
            assert!(was_upgraded);
            assert_eq!(rows(&connection), before, "format {steps}");
            assert_eq!(version(&connection).unwrap(), SCHEMA.version());
            let copy = Connection::open(path.with_extension(format!("v{steps}.2.db"))).unwrap();
            assert_eq!(version(&copy).unwrap(), i64::try_from(steps).unwrap());
            assert_eq!(rows(&copy), before);
            assert_eq!(std::fs::read_to_string(earlier).unwrap(), "an earlier copy");
        }
    }

    // proves STATE-5
    #[test]
    fn a_database_is_not_migrated_while_an_older_daemon_uses_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("ledger.db");
        let until = SCHEMA.migrations.get(..4).unwrap();
        migrate(&Connection::open(&path).unwrap(), Schema { migrations: until, ..SCHEMA }).unwrap();
        let lock = StateLock::take(temp.path()).unwrap().unwrap();
        let prepared = |lock| prepare(&path, SCHEMA, lock, &mut |_, _| Ok(()));
        assert!(matches!(prepared(None), Err(DbError::Older(_))));
        assert!(prepared(Some(&lock)).unwrap().1);
    }

    // proves STATE-3
    #[test]
    fn a_damaged_page_is_found_before_anything_relies_on_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("ledger.db");
        let (connection, _) = prepare(&path, SCHEMA, None, &mut |_, _| Ok(())).unwrap();
        for number in 0..2000 {
            let plan = "x".repeat(500);
            let row = rusqlite::params![number.to_string(), number, "waiting", plan];
            connection.execute("INSERT INTO plans VALUES (?1, ?2, ?3, ?4)", row).unwrap();
        }
        drop(connection);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2 / 4096 * 4096;
        bytes.get_mut(middle..middle + 4096).unwrap().fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        let lock = StateLock::take(temp.path()).unwrap().unwrap();
        let (_, aside) = Db::open(&path, SCHEMA, None, Some(&lock), &mut |_, _| Ok(())).unwrap();
        assert!(aside.is_some_and(|aside| aside.exists()));
    }

    #[test]
    fn a_database_on_read_only_media_is_opened_without_its_log() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a b?#%.db");
        let writer = Connection::open(&path).unwrap();
        writer.pragma_update(None, "journal_mode", "WAL").unwrap();
        writer.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (7);").unwrap();
        drop(writer);
        let reader = open_immutable(&path).unwrap();
        let n: i64 = reader.query_row("SELECT n FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(n, 7);
        assert!(reader.execute_batch("DELETE FROM t").is_err());
        let left: Vec<_> = std::fs::read_dir(temp.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "neither a log nor a lock file: {left:?}");
    }
}
