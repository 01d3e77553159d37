//! The daemon's own log, on stderr (which systemd sends to the journal) and in rotated files. It is
//! separate from the record of runs.
//!
//! Every line is redacted before it is written (SEC-2). The daemon writes to stderr only through
//! this module, because it must not wait for a reader.

mod queue;

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use tracing::{Level, Metadata};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{Builder, Rotation};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use self::queue::Queue;
use super::error::CliError;
use crate::config::{Environment, LogFormat, LogRotation, LogSettings};
use crate::text::escape::for_terminal;
use crate::text::redact::{Redactor, Secret};

/// Redacts the secrets of every configuration since the start, because active runs may still use
/// the secrets of an earlier configuration.
#[derive(Clone, Default)]
pub(crate) struct LogRedactor(Arc<RwLock<(Vec<Secret>, Redactor)>>);

impl LogRedactor {
    /// Adds the secrets of a configuration. Call this before any line about it is logged.
    pub(crate) fn add(&self, secrets: &[Secret]) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for secret in secrets {
            if !known.0.iter().any(|old| old.name == secret.name && old.value == secret.value) {
                known.0.push(secret.clone());
            }
        }
        known.1 = Redactor::new(&known.0);
    }

    fn current(&self) -> Redactor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

/// Keeps the log running. Dropping this guard flushes pending lines; it waits at most 1 s for
/// stderr and 1 s for the file.
pub(crate) struct LogGuard {
    console: Queue,
    redactor: LogRedactor,
    to_journal: bool,
    _files: Option<WorkerGuard>,
}

impl LogGuard {
    /// Writes a line for people to stderr. Unlike a log line, it has no level and no timestamp.
    pub(crate) fn note(&self, text: &str) {
        let clean = self.redactor.current().text(text).into_owned();
        self.console.put(format!("{}\n", for_terminal(&clean)).as_bytes());
    }

    /// Writes an error for people to stderr, as [`Self::note`].
    pub(crate) fn error(&self, text: &str) {
        let clean = self.redactor.current().text(text).into_owned();
        let priority = if self.to_journal { priority(Level::ERROR) } else { "" };
        let line = format!("{}\n", for_terminal(&clean));
        self.console.put(with_priority(priority, &line).as_bytes());
    }
}

/// Returns an error for people, without its line end, as the journal reads it.
pub(crate) fn error_for_journal(text: &str) -> String {
    with_priority(priority(Level::ERROR), text)
}

/// Returns the prefix of a line with this level. *Source*: `sd-daemon(3)`.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// Puts `priority` before each line, because the journal makes an entry of each.
fn with_priority(priority: &str, text: &str) -> String {
    text.split_inclusive('\n').map(|line| format!("{priority}{line}")).collect()
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.console.flush();
    }
}

/// Starts the log.
///
/// *Errors*: the log directory is not writable, stderr is closed, or the thread that writes to
/// stderr does not start.
pub(crate) fn start(
    settings: &LogSettings,
    environment: &Environment,
    state: &Path,
    redactor: &LogRedactor,
) -> Result<LogGuard, CliError> {
    let filter = || EnvFilter::new(format!("{},tokio_cron_scheduler=error", settings.level));
    let to_journal = is_journal(environment);
    let redacted = |inner| Redacted { redactor: redactor.clone(), to_journal, inner };
    let format = settings.format;
    let note = move |count| {
        let priority = if to_journal { priority(Level::WARN) } else { "" };
        with_priority(priority, &dropped(format, to_journal, count))
    };
    let queue = Queue::to_stderr(Box::new(note))
        .map_err(|error| CliError::failed("cannot start the log").because(&error))?;
    let lines = queue.clone();
    let console = layer(format, to_journal, redacted(move || lines.clone())).with_filter(filter());
    let (files, guard) = match settings.files {
        None => (None, None),
        Some((rotation, keep)) => {
            let directory =
                environment.get("LOGS_DIRECTORY").map_or_else(|| state.join("logs"), Into::into);
            let failed = |error: &dyn std::error::Error| {
                CliError::failed(format!("cannot write to {}", directory.display())).because(error)
            };
            crate::store::create_private_dir(&directory).map_err(|error| failed(&error))?;
            let rotation = match rotation {
                LogRotation::Hourly => Rotation::HOURLY,
                LogRotation::Daily => Rotation::DAILY,
            };
            let file = Builder::new()
                .rotation(rotation)
                .filename_prefix("dutyd")
                .filename_suffix("log")
                .max_log_files(usize::try_from(keep).unwrap_or(usize::MAX))
                .build(&directory)
                .map_err(|error| failed(&error))?;
            let (writer, guard) = NonBlockingBuilder::default().lossy(false).finish(file);
            let writer = Redacted { redactor: redactor.clone(), to_journal: false, inner: writer };
            (Some(layer(format, false, writer).with_filter(filter())), Some(guard))
        }
    };
    let _ = tracing_subscriber::registry().with(console).with(files).try_init();
    Ok(LogGuard { console: queue, redactor: redactor.clone(), to_journal, _files: guard })
}

/// Returns the warning about dropped lines, formatted as [`layer`] would.
fn dropped(format: LogFormat, to_journal: bool, count: u64) -> String {
    let mut time = String::new();
    // Omit a timestamp that cannot be formatted.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let message = format!("dropped {count} log lines");
    match (format, to_journal) {
        (LogFormat::Text, true) => format!(" WARN {message}\n"),
        (LogFormat::Text, false) => format!("{time}  WARN {message}\n"),
        (LogFormat::Json, _) => {
            let line = serde_json::json!({"timestamp": time, "level": "WARN", "message": message});
            format!("{line}\n")
        }
    }
}

/// Returns the layer that formats log lines. Text lines for the journal have no timestamp, because
/// the journal adds its own.
fn layer<S, W>(format: LogFormat, to_journal: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let plain = fmt::layer().with_writer(writer).with_ansi(false).with_target(false);
    match (format, to_journal) {
        (LogFormat::Text, true) => plain.without_time().boxed(),
        (LogFormat::Text, false) => plain.boxed(),
        (LogFormat::Json, _) => plain.json().flatten_event(true).boxed(),
    }
}

/// Tells whether stderr goes to the journal. *Source*: `systemd.exec(5)`, `$JOURNAL_STREAM`.
pub(crate) fn is_journal(environment: &Environment) -> bool {
    let Some((device, inode)) =
        environment.get("JOURNAL_STREAM").and_then(|stream| stream.split_once(':'))
    else {
        return false;
    };
    rustix::fs::fstat(rustix::stdio::stderr())
        .is_ok_and(|stat| stat.st_dev.to_string() == device && stat.st_ino.to_string() == inode)
}

/// Redacts secrets in every line. A line for the journal begins with its priority.
struct Redacted<M> {
    redactor: LogRedactor,
    to_journal: bool,
    inner: M,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Redacted<M> {
    type Writer = RedactedLine<M::Writer>;
    fn make_writer(&'a self) -> Self::Writer {
        let (redactor, inner) = (self.redactor.current(), self.inner.make_writer());
        RedactedLine { redactor, priority: "", inner }
    }
    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        let priority = if self.to_journal { priority(*meta.level()) } else { "" };
        RedactedLine { priority, ..self.make_writer() }
    }
}

/// Redacts one line, which the formatter writes in a single call.
struct RedactedLine<W> {
    redactor: Redactor,
    priority: &'static str,
    inner: W,
}

impl<W: Write> Write for RedactedLine<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = with_priority(self.priority, &self.redactor.text(&text));
        self.inner.write_all(line.as_bytes())?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    // proves SEC-2
    #[test]
    fn a_key_that_came_with_a_reload_is_taken_out_too_and_so_is_the_one_before() {
        let (redactor, buffer) = (LogRedactor::default(), Buffer::default());
        let inner = buffer.clone();
        let log = Redacted {
            redactor: redactor.clone(),
            to_journal: false,
            inner: move || inner.clone(),
        };
        let secret = |value: &str| Secret { name: "KEY".into(), value: value.into() };
        redactor.add(&[secret("first-key")]);
        redactor.add(&[secret("second-key")]);
        log.make_writer().write_all(b"first-key second-key\n").unwrap();
        let written = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert_eq!(written, "[redacted:KEY] [redacted:KEY]\n");
    }

    #[test]
    fn each_line_for_the_journal_carries_its_priority() {
        let check = |format, to_journal, begins: [&str; 3]| {
            let buffer = Buffer::default();
            let inner = buffer.clone();
            let (redactor, inner) = (LogRedactor::default(), move || inner.clone());
            let writer = Redacted { redactor, to_journal, inner };
            let log = tracing_subscriber::registry().with(layer(format, to_journal, writer));
            tracing::subscriber::with_default(log, || {
                tracing::error!("first");
                tracing::warn!("second");
                tracing::info!("third");
            });
            let written = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
            let lines: Vec<&str> = written.lines().collect();
            assert_eq!(lines.len(), 3, "{written}");
            for (line, begin) in lines.iter().zip(begins) {
                assert!(line.starts_with(begin), "{line}");
            }
        };
        check(LogFormat::Text, true, ["<3>ERROR first", "<4> WARN second", "<6> INFO third"]);
        check(LogFormat::Json, true, ["<3>{", "<4>{", "<6>{"]);
        check(LogFormat::Json, false, ["{", "{", "{"]);
        assert_eq!(with_priority("<4>", "a\nb\n"), "<4>a\n<4>b\n");
    }

    #[test]
    fn lines_that_were_dropped_are_told_in_the_format_of_the_others() {
        for (format, to_journal) in
            [(LogFormat::Text, true), (LogFormat::Text, false), (LogFormat::Json, false)]
        {
            let buffer = Buffer::default();
            let inner = buffer.clone();
            let log = tracing_subscriber::registry()
                .with(layer(format, to_journal, move || inner.clone()));
            tracing::subscriber::with_default(log, || {
                tracing::warn!("dropped 7 log lines");
            });
            let written = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
            let digits = |line: &str| line.replace(|c: char| c.is_ascii_digit(), "0");
            assert_eq!(digits(&dropped(format, to_journal, 7)), digits(&written));
        }
    }
}
