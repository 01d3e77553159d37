//! SQLite: one writer thread for each database, fed by messages.
//!
//! Migrations are ordered SQL strings and `PRAGMA user_version`, each step in one transaction. A damaged file is set aside, never deleted
//! (STATE-3); one of a newer version is refused (STATE-5).

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

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
pub(super) struct Shape {
    pub(super) migrations: &'static [&'static str],
    /// `FULL` where a committed row must outlive a power cut, else `NORMAL`.
    pub(super) synchronous: &'static str,
}

type Order = Box<dyn FnOnce(&mut Connection) + Send>;

/// A database with its writer.
#[derive(Debug, Clone)]
pub(super) struct Db {
    path: PathBuf,
    queue: mpsc::Sender<Order>,
}

impl Db {
    /// Opens a database, brings its schema up to date and starts its writer; a damaged one is set aside, and its new name returned.
    ///
    /// *Errors*: [`DbError`].
    pub(super) fn open(path: &Path, shape: Shape) -> Result<(Self, Option<PathBuf>), DbError> {
        let (mut connection, aside) = match prepare(path, shape) {
            Ok(connection) => (connection, None),
            Err(DbError::Sqlite { error, .. }) if is_damage(&error) => {
                let aside = set_aside(path);
                (prepare(path, shape)?, Some(aside))
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
        Ok((Self { path: path.to_path_buf(), queue }, aside))
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

/// Returns a connection that only reads; `None` if there is no such database yet.
///
/// *Errors*: [`DbError`].
pub(super) fn read_only(path: &Path) -> Result<Option<Connection>, DbError> {
    if !path.exists() {
        return Ok(None);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|error| DbError::Sqlite { path: path.to_path_buf(), error })?;
    let _ = connection.busy_timeout(BUSY);
    Ok(Some(connection))
}

fn prepare(path: &Path, shape: Shape) -> Result<Connection, DbError> {
    let failed = |error| DbError::Sqlite { path: path.to_path_buf(), error };
    // Made by us first, so that it is private from birth; SQLite gives its helpers the same mode.
    super::files::append_private(path)
        .map_err(|error| failed(rusqlite::Error::ToSqlConversionFailure(Box::new(error))))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
    connection.pragma_update(None, "synchronous", shape.synchronous).map_err(failed)?;
    let found: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let known = i64::try_from(shape.migrations.len()).unwrap_or(i64::MAX);
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
    let found: i64 =
        transaction.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    for migration in shape.migrations.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(migration).map_err(failed)?;
    }
    transaction.pragma_update(None, "user_version", known).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(connection)
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
