//! SQLite: one writer thread for each database, fed by messages.
//!
//! Migrations are ordered SQL strings and `PRAGMA user_version`, each step in one transaction. A damaged file is set aside, never deleted
//! (STATE-3); one of a newer version is refused (STATE-5).

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::reserve::Reserve;

/// How long a writer waits for another process.
const BUSY: Duration = Duration::from_secs(5);

/// Orders that wait for the writer.
const QUEUE: usize = 256;

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// SQLite says no.
    #[error("{path}: {error}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        error: rusqlite::Error,
    },
    /// It exists, and this process may not read it.
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Made by a newer version.
    #[error("{path} was made by a newer version of dutyd (schema {found}, known is {known})")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It was damaged, and set aside.
    #[error("it was damaged and set aside as {0}")]
    SetAside(PathBuf),
    /// The writer thread has ended.
    #[error("{0}: its writer has ended")]
    Closed(PathBuf),
}

/// How a database is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schema {
    pub(super) migrations: &'static [&'static str],
    /// `FULL` where a committed row must outlive a power cut, else `NORMAL`.
    pub(super) synchronous: &'static str,
}

impl Schema {
    fn version(self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }
}

type Order = Box<dyn FnOnce(&mut Connection) + Send>;

/// A database with its writer.
#[derive(Debug, Clone)]
pub(super) struct Db {
    path: PathBuf,
    /// Whether its schema was brought up to date when it was opened.
    pub(super) was_upgraded: bool,
    queue: mpsc::Sender<Order>,
}

impl Db {
    /// Opens a database, brings its schema up to date and starts its writer; a damaged one is set aside, and its new name returned.
    ///
    /// *Errors*: [`DbError`].
    pub(super) fn open(
        path: &Path,
        schema: Schema,
        mut reserve: Option<Reserve>,
    ) -> Result<(Self, Option<PathBuf>), DbError> {
        let ((mut connection, was_upgraded), aside) = match prepare(path, schema) {
            Ok(prepared) => (prepared, None),
            Err(DbError::Sqlite { error, .. }) if is_damage(&error) => {
                let aside = set_aside(path);
                (prepare(path, schema)?, Some(aside))
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
                    // A fault in one order ends that order: its transaction is rolled back and its sender sees no answer.
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

    /// Runs `work` in the writer, in one transaction.
    ///
    /// *Errors*: [`DbError`]; then nothing of it is there. *Cancel*: it may be done all the same.
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
        result.map_err(|error| DbError::Sqlite { path: self.path.clone(), error })
    }
}

/// A connection that only reads.
pub(super) struct Reading {
    pub(super) connection: Connection,
    /// Whether the file has an older schema, so that this is a copy in memory which was brought up to date: its writer will do so with the file.
    pub(super) was_upgraded: bool,
}

/// Returns a connection that only reads; `None` if there is no such database yet.
///
/// *Errors*: [`DbError`].
pub(super) fn read_only(path: &Path, schema: Schema) -> Result<Option<Reading>, DbError> {
    // Not by opening it: closing the descriptor would drop the locks that SQLite holds in this process.
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
        Err(_) if is_immutable(path) => {
            let flags = flags | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(immutable_uri(path), flags).and_then(probed)
        }
        opened => opened,
    };
    let failed = |error| DbError::Sqlite { path: path.to_path_buf(), error };
    let connection = opened.map_err(failed)?;
    let found = version(&connection).map_err(failed)?;
    let known = schema.version();
    if found > known {
        return Err(DbError::Newer { path: path.to_path_buf(), found, known });
    }
    if found == known {
        return Ok(Some(Reading { connection, was_upgraded: false }));
    }
    in_memory(Some(&connection), schema)
        .map(|connection| Some(Reading { connection, was_upgraded: true }))
        .map_err(failed)
}

/// Returns a database of the newest schema in memory; with the rows of `of`.
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

/// Brings a database to the newest schema, in whatever transaction the caller holds.
fn migrate(connection: &Connection, schema: Schema) -> rusqlite::Result<()> {
    let found = usize::try_from(version(connection)?).unwrap_or(0);
    for migration in schema.migrations.iter().skip(found) {
        connection.execute_batch(migration)?;
    }
    connection.pragma_update(None, "user_version", schema.version())
}

/// A database with a write-ahead log fails at its first read, not when it is opened.
fn probed(connection: Connection) -> rusqlite::Result<Connection> {
    connection.busy_timeout(BUSY)?;
    connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
    Ok(connection)
}

/// Tells whether nothing can change the file, and no row waits in a write-ahead log, which `immutable=1` would not see.
fn is_immutable(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let is_read_only = rustix::fs::statvfs(path)
        .is_ok_and(|facts| facts.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    is_read_only && std::fs::metadata(PathBuf::from(log)).map_or(true, |meta| meta.len() == 0)
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

/// Returns the connection, and whether an older schema was brought up to date.
fn prepare(path: &Path, schema: Schema) -> Result<(Connection, bool), DbError> {
    let failed = |error| DbError::Sqlite { path: path.to_path_buf(), error };
    // Made by us first, so that it is private from birth; SQLite gives its helpers the same mode.
    super::files::append_private(path)
        .map_err(|error| failed(rusqlite::Error::ToSqlConversionFailure(Box::new(error))))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
    connection.pragma_update(None, "synchronous", schema.synchronous).map_err(failed)?;
    let found = version(&connection).map_err(failed)?;
    let known = schema.version();
    if found > known {
        return Err(DbError::Newer { path: path.to_path_buf(), found, known });
    }
    if found > 0 && found < known {
        // What was is kept beside it (STATE-5).
        let backup = path.with_extension(format!("v{found}.db"));
        if !backup.exists() {
            connection.execute("VACUUM INTO ?1", [backup.to_string_lossy()]).map_err(failed)?;
        }
    }
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Another process may have been quicker.
    let found = version(&transaction).map_err(failed)?;
    migrate(&transaction, schema).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok((connection, found > 0 && found < known))
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn set_aside(path: &Path) -> PathBuf {
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
    use super::*;

    #[test]
    fn a_database_on_read_only_media_is_named_without_its_log() {
        assert_eq!(
            immutable_uri(Path::new("/a b?#%/index.db")),
            "file:/a%20b%3F%23%25/index.db?immutable=1"
        );
    }
}
