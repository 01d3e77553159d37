//! The transcript: one event, one JSON object, one line, each with the hash of the line before.
//!
//! One thread owns the file and the chain. An append returns when the kernel has the line; for some
//! events ([`must_be_durable`]), only when the line is also on disk. The callback of
//! [`Transcript::open`] receives a line only after that. A failed write or sync ends the record:
//! nothing is appended after a gap (LOG-6).

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat, Utc};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};

use super::files::append_private;
use super::reader::open_regular;
use crate::clock::Clock;
use crate::domain::{CallStart, Category, Event, FIRST_PREV, FORMAT_VERSION, Line, RunId};
use crate::text::escape::json_line;
use crate::text::redact::Redactor;

/// Maximum number of appends that wait for the writer; a run has only a few at a time.
const QUEUE: usize = 64;

/// Fields that must be sent back to the provider unaltered, so the redactor skips them.
const OPAQUE: &[&str] = &["provider_data"];

/// A line that was appended, as the callback of [`Transcript::open`] receives it.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The `seq` of the line.
    pub seq: u64,
    /// The line without its newline.
    pub line: Arc<str>,
    /// SHA-256 (hex) of the line.
    pub hash: String,
    /// The `ts` of the line.
    pub ts: String,
}

/// What the writer needs to build the lines of a transcript.
#[derive(Debug, Clone)]
pub struct TranscriptFacts {
    /// The id of the run.
    pub run_id: RunId,
    /// The id of the session.
    pub session_id: String,
    /// Removes secrets from every line.
    pub redactor: Redactor,
    /// The source of `ts`.
    pub clock: Arc<dyn Clock>,
}

/// Why an event is not in the record. After the first error, a transcript refuses every event.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    #[error(transparent)]
    Io(Arc<io::Error>),
    #[error("the event cannot be serialized: {0}")]
    Serialize(Arc<serde_json::Error>),
    #[error("the transcript was deleted while the run was active")]
    Deleted,
    #[error("the writer has stopped")]
    Stopped,
}

impl From<io::Error> for AppendError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<serde_json::Error> for AppendError {
    fn from(error: serde_json::Error) -> Self {
        Self::Serialize(Arc::new(error))
    }
}

type Ack = oneshot::Sender<Result<Appended, AppendError>>;

/// A handle to an open transcript and its writer thread.
#[derive(Debug, Clone)]
pub struct Transcript {
    queue: mpsc::Sender<(Event, Ack)>,
}

impl Transcript {
    /// Opens the transcript at `path` and starts its writer thread. An existing file is continued
    /// after its last line.
    ///
    /// `appended` is called in the writer thread for each line; it must not block.
    /// *Errors*: the file cannot be opened or read.
    pub fn open(
        path: &Path,
        facts: TranscriptFacts,
        appended: impl Fn(&Appended) + Send + 'static,
    ) -> io::Result<Self> {
        let mut writer = Writer::open(path, facts)?;
        let (queue, mut events) = mpsc::channel::<(Event, Ack)>(QUEUE);
        std::thread::Builder::new().name("transcript".to_owned()).spawn(move || {
            while let Some((event, ack)) = events.blocking_recv() {
                let result = writer.append(event);
                if let Ok(line) = &result {
                    appended(line);
                }
                let _ = ack.send(result);
            }
        })?;
        Ok(Self { queue })
    }

    /// Appends an event.
    ///
    /// *Errors*: why the event is not in the record. *Cancel*: the event may be in the record
    /// nonetheless.
    pub async fn append(&self, event: Event) -> Result<Appended, AppendError> {
        let (ack, answer) = oneshot::channel();
        self.queue.send((event, ack)).await.map_err(|_| AppendError::Stopped)?;
        answer.await.map_err(|_| AppendError::Stopped)?
    }
}

struct Writer {
    file: File,
    facts: TranscriptFacts,
    seq: u64,
    prev: String,
    /// Why an earlier event is missing. No event may follow the gap.
    broken: Option<AppendError>,
}

impl Writer {
    fn open(path: &Path, facts: TranscriptFacts) -> io::Result<Self> {
        let file = append_private(path)?;
        let (seq, prev) = last_line(path)?;
        Ok(Self { file, facts, seq, prev, broken: None })
    }

    fn append(&mut self, event: Event) -> Result<Appended, AppendError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let result = self.write(event);
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }

    fn write(&mut self, event: Event) -> Result<Appended, AppendError> {
        let durable = must_be_durable(&event);
        let mut payload = serde_json::to_value(event)?;
        #[cfg(feature = "faults")]
        super::faults::before_line(payload.get("type").and_then(serde_json::Value::as_str))?;
        self.facts.redactor.value(&mut payload, OPAQUE);
        let line = Line {
            v: FORMAT_VERSION,
            seq: self.seq,
            ts: timestamp(self.facts.clock.now()),
            run_id: self.facts.run_id.clone(),
            session_id: self.facts.session_id.clone(),
            prev: self.prev.clone(),
            event: payload,
        };
        let mut text = json_line(serde_json::to_string(&line)?);
        let prev = hash(text.as_bytes());
        text.push('\n');
        self.file.write_all(text.as_bytes())?;
        if durable {
            self.file.sync_data()?;
        }
        if self.file.metadata()?.nlink() == 0 {
            return Err(AppendError::Deleted);
        }
        let seq = self.seq;
        #[cfg(feature = "faults")]
        super::faults::after_line(seq);
        self.seq += 1;
        self.prev.clone_from(&prev);
        text.pop();
        Ok(Appended { seq, line: text.into(), hash: prev, ts: line.ts })
    }
}

/// Tells whether an event must be on disk before its append returns: it announces an effect,
/// resolves an approval, or starts, suspends, resumes or ends the session.
fn must_be_durable(event: &Event) -> bool {
    match event {
        Event::ToolCallStart(CallStart { category, .. }) => *category != Category::Read,
        // An approval counts only once it is on disk.
        Event::SessionStart(_)
        | Event::SessionSuspended { .. }
        | Event::SessionResumed { .. }
        | Event::SessionEnd(_)
        | Event::ApprovalResolved { .. } => true,
        _ => false,
    }
}

fn timestamp(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

pub(super) fn hash(line: &[u8]) -> String {
    hex::encode(Sha256::digest(line))
}

/// Returns the number of lines of a transcript, and the SHA-256 (hex) of the last line; 0 and
/// [`FIRST_PREV`] if the file is empty.
///
/// *Errors*: the file cannot be read.
pub fn last_line(path: &Path) -> io::Result<(u64, String)> {
    let mut last = (0, FIRST_PREV.to_owned());
    for line in BufReader::new(open_regular(path)?).split(b'\n') {
        last = (last.0 + 1, hash(&line?));
    }
    Ok(last)
}

/// How many bytes of a transcript are whole lines, and how many follow the last newline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TranscriptExtent {
    pub whole_bytes: u64,
    /// Bytes after the last newline: a line that a power cut tore.
    pub torn_bytes: u64,
}

impl TranscriptExtent {
    /// Finds the last newline of a transcript.
    ///
    /// *Errors*: any I/O error.
    pub fn measure(path: &Path) -> io::Result<Self> {
        /// Bytes per read; the file is read backwards.
        const PIECE: u64 = 64 * 1024;
        let file = open_regular(path)?;
        let length = file.metadata()?.len();
        let mut end = length;
        while end > 0 {
            let from = end.saturating_sub(PIECE);
            let mut piece = vec![0; usize::try_from(end - from).unwrap_or(0)];
            file.read_exact_at(&mut piece, from)?;
            if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
                let whole_bytes = from + at as u64 + 1;
                return Ok(Self { whole_bytes, torn_bytes: length - whole_bytes });
            }
            end = from;
        }
        Ok(Self { whole_bytes: 0, torn_bytes: length })
    }

    /// Cuts off the torn line of the transcript.
    ///
    /// *Errors*: any I/O error.
    pub fn cut_torn(self, path: &Path) -> io::Result<()> {
        if self.torn_bytes > 0 {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(self.whole_bytes)?;
            file.sync_all()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::verify::{RecordFacts, VerifyReport};
    use super::*;
    use crate::clock::SystemClock;
    use crate::text::redact::Secret;

    fn facts() -> TranscriptFacts {
        TranscriptFacts {
            run_id: RunId::from_ulid(ulid::Ulid::from_parts(1, 1)),
            session_id: "s".into(),
            redactor: Redactor::new(&[Secret {
                name: "KEY".into(),
                value: "hunter2hunter2".into(),
            }]),
            clock: Arc::new(SystemClock),
        }
    }

    fn verified(path: &Path) -> VerifyReport {
        let run = super::super::run_dir::RunDir::at(path.parent().unwrap(), facts().run_id);
        let facts = RecordFacts { is_open: true, ..RecordFacts::default() };
        super::super::verify::verify(&run, &facts).unwrap()
    }

    async fn write(path: &Path, texts: &[&str]) {
        let transcript = Transcript::open(path, facts(), |_| {}).unwrap();
        for text in texts {
            transcript.append(Event::warning("w", *text)).await.unwrap();
        }
    }

    // proves LOG-1
    #[test]
    fn what_announces_an_effect_must_be_on_disk_first() {
        let start = |category: &str| {
            json!({"type": "tool_call_start", "call_id": "c", "name": "n", "category": category,
                "arguments": {}, "argv": [], "working_dir": "/", "sandboxed": true})
        };
        for (event, expected) in [
            (start("read"), false),
            (start("write"), true),
            (start("admin"), true),
            (json!({"type": "warning", "code": "c", "message": "m"}), false),
        ] {
            let event: Event = serde_json::from_value(event).unwrap();
            assert_eq!(must_be_durable(&event), expected, "{event:?}");
        }
    }

    // proves LOG-1, LOG-2, SEC-2
    #[tokio::test]
    async fn lines_are_numbered_chained_escaped_and_redacted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("transcript.jsonl");
        write(&path, &["one", "forged\n{\"v\":1,\"seq\":2}\u{2028}\u{202e}", "key hunter2hunter2"])
            .await;
        write(&path, &["goes on"]).await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(text.is_ascii() && !text.contains("hunter2") && text.contains("[redacted:KEY]"));
        let report = verified(&path);
        assert!(report.ok && report.lines == 4, "{report:?}");
    }

    #[tokio::test]
    async fn an_edited_dropped_or_swapped_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("transcript.jsonl");
        write(&path, &["one", "two", "three", "four"]).await;
        let lines: Vec<String> =
            std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        let check = |lines: Vec<String>, expected: Option<u64>| {
            std::fs::write(&path, format!("{}\n", lines.join("\n"))).unwrap();
            let report = verified(&path);
            assert_eq!(report.broken_at_seq, expected, "{report:?}");
        };
        check(lines.clone(), None);
        let mut edited = lines.clone();
        edited[1] = edited[1].replace("two", "2wo");
        check(edited, Some(2));
        let mut dropped = lines.clone();
        dropped.remove(1);
        check(dropped, Some(1));
        let mut swapped = lines.clone();
        swapped.swap(1, 2);
        check(swapped, Some(1));
    }

    // proves LOG-3
    #[tokio::test]
    async fn a_torn_tail_is_cut_and_the_chain_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("transcript.jsonl");
        for tail in [&b"{\"v\":1,\"se"[..], b"\0\0\0\0", b"{\"a\":"] {
            let _ = std::fs::remove_file(&path);
            write(&path, &["one", &"x".repeat(200_000)]).await;
            let whole = std::fs::metadata(&path).unwrap().len();
            append_private(&path).unwrap().write_all(tail).unwrap();
            let found = TranscriptExtent::measure(&path).unwrap();
            let torn_bytes = tail.len() as u64;
            assert_eq!(found, TranscriptExtent { whole_bytes: whole, torn_bytes });
            found.cut_torn(&path).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
            assert_eq!(TranscriptExtent::measure(&path).unwrap().torn_bytes, 0);
            write(&path, &["after"]).await;
            assert!(verified(&path).ok);
        }
    }

    // proves LOG-3
    #[tokio::test]
    async fn a_whole_line_is_never_cut_whatever_it_contains() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("transcript.jsonl");
        write(&path, &["one"]).await;
        append_private(&path).unwrap().write_all(b"xot json\n\0\0\n").unwrap();
        assert_eq!(TranscriptExtent::measure(&path).unwrap().torn_bytes, 0);
        assert_eq!(verified(&path).broken_at_seq, Some(1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_cut_anywhere_leaves_whole_lines(cut in 0usize..600) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("transcript.jsonl");
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(write(&path, &["one", "two"]));
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let length = file.metadata().unwrap().len();
            file.set_len(length.saturating_sub(cut as u64)).unwrap();
            TranscriptExtent::measure(&path).unwrap().cut_torn(&path).unwrap();
            let report = verified(&path);
            prop_assert!(report.ok && !report.torn, "{:?}", report);
        }
    }
}
