//! Collects the output of a call in constant memory: the whole output, up to a limit, for the
//! record, and a truncated view for the model.
//!
//! *Source*: `docs/design/loop.md`, "Truncation".

use std::collections::VecDeque;
use std::io::{self, Write};

use sha2::{Digest as _, Sha256};

use crate::agent::CallOutput;
use crate::domain::{CallId, Image, Truncated};
use crate::text::redact::{Redactor, StreamRedactor};
use crate::text::truncate::{Keep, ViewBuilder, ViewLimit};

/// Maximum bytes of an output that the transcript holds inline, inclusive.
pub const INLINE_LIMIT: usize = 64 * 1024;

/// Bytes of the end of an output that are kept if its middle is dropped.
const TAIL_BYTES: usize = 1024 * 1024;

/// Maximum lines of a program's output that the model sees.
const VIEW_LINES: usize = 256;

/// Maximum characters of a program's output that the model sees; the job and the tool can set
/// another limit.
const VIEW_CHARACTERS: usize = 30_000;

/// What the model sees of a program's output.
pub(super) const PROGRAM_VIEW: ViewLimit =
    ViewLimit { characters: VIEW_CHARACTERS, lines: VIEW_LINES, keep: Keep::HeadAndTail };

/// A file that receives the output of a call.
pub struct KeptFile {
    /// The name relative to the run's directory, for the transcript.
    pub name: String,
    /// The full path, for the model.
    pub path: String,
    /// The writer for the content.
    pub file: Box<dyn Write + Send>,
}

/// Stores the whole outputs and the images of calls.
pub trait OutputStore: Send + Sync {
    /// Creates the file for the output of a call.
    ///
    /// *Errors*: the file cannot be created.
    fn create(&self, call_id: &CallId) -> io::Result<KeptFile>;

    /// Stores image `number` (from 1) of a call and returns the name of its file, for the
    /// transcript.
    ///
    /// *Errors*: the file cannot be written.
    fn keep_image(&self, call_id: &CallId, number: usize, image: &Image) -> io::Result<String>;

    /// Reads at most `most` bytes of a file that [`Self::create`] created, by its name.
    ///
    /// *Errors*: the file cannot be read.
    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>>;
}

/// The collected output of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    pub view: String,
    /// The output; `None` if it is in a file. Without a store, only the first [`INLINE_LIMIT`]
    /// bytes of the output.
    pub inline: Option<String>,
    /// The name of the file that holds the output, if there is one.
    pub file: Option<String>,
    /// Bytes of the output before redaction.
    pub bytes: u64,
    /// How many characters and lines the view omits; `None` if it omits nothing.
    pub truncated: Option<Truncated>,
    /// Whether bytes of the output were not valid UTF-8.
    pub lossy: bool,
    /// SHA-256 (hex) of the whole output after redaction.
    pub digest: String,
    /// The number of dropped bytes and the SHA-256 (hex) of the file; `None` if the file holds all
    /// bytes, or if there is no file.
    pub dropped: Option<(u64, String)>,
}

impl From<Collected> for CallOutput {
    fn from(collected: Collected) -> Self {
        Self {
            content: collected.view,
            output: collected.inline,
            output_file: collected.file,
            output_bytes: collected.bytes,
            dropped: collected.dropped,
            truncated: collected.truncated,
            lossy: collected.lossy,
            digest: Some(collected.digest),
            ..Self::default()
        }
    }
}

/// Collects the output of one call.
pub struct Collector<'a> {
    store: Option<&'a dyn OutputStore>,
    call_id: &'a CallId,
    redactor: StreamRedactor,
    view: ViewBuilder,
    limit: ViewLimit,
    /// Bytes at the start of the output that the file keeps.
    keep: u64,
    inline: Vec<u8>,
    file: Option<KeptFile>,
    /// Bytes written to the file so far, at most `keep`.
    kept: u64,
    /// Bytes after the first `keep`, including those in `tail`.
    dropped: u64,
    /// The last bytes after the first `keep`, at most [`TAIL_BYTES`]; they end the file.
    tail: VecDeque<u8>,
    /// Bytes of the output before redaction.
    bytes: u64,
    /// Bytes of the output after redaction.
    seen: u64,
    digest: Sha256,
    /// The digest of the file, set once the output exceeds `keep`: until then, `digest` is the
    /// digest of the file as well.
    file_digest: Option<Sha256>,
}

impl<'a> Collector<'a> {
    /// Returns a collector that shows at most `limit` to the model and keeps the first `keep` bytes
    /// and the last 1 MiB.
    #[must_use]
    pub fn new(
        store: Option<&'a dyn OutputStore>,
        call_id: &'a CallId,
        redactor: &Redactor,
        limit: ViewLimit,
        keep: u64,
    ) -> Self {
        Self {
            store,
            call_id,
            redactor: redactor.stream(),
            view: ViewBuilder::new(limit),
            limit,
            keep,
            inline: Vec::new(),
            file: None,
            kept: 0,
            dropped: 0,
            tail: VecDeque::new(),
            bytes: 0,
            seen: 0,
            digest: Sha256::new(),
            file_digest: None,
        }
    }

    /// Adds a chunk of the output.
    ///
    /// *Errors*: the file cannot be created or written.
    pub fn push(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.bytes += chunk.len() as u64;
        let clean = self.redactor.push(chunk);
        self.take(&clean)
    }

    /// Ends the output and returns what was collected.
    ///
    /// *Errors*: as [`Self::push`].
    pub fn finish(self) -> io::Result<Collected> {
        self.finish_with("")
    }

    /// Ends the output with `note`, which truncation never removes from the view. The caller must
    /// keep secrets out of `note`, and the output before it must end with LF.
    ///
    /// *Errors*: as [`Self::push`].
    pub(super) fn finish_with(mut self, note: &str) -> io::Result<Collected> {
        let rest = std::mem::replace(&mut self.redactor, Redactor::default().stream()).finish();
        self.take(&rest)?;
        self.bytes += note.len() as u64;
        self.keep(note.as_bytes())?;
        let would_cut = self.view.is_cut(self.limit);
        if would_cut && self.file.is_none() && self.store.is_some() {
            self.spill()?;
        }
        let lost = self.dropped - self.tail.len() as u64;
        if let Some(KeptFile { file, .. }) = &mut self.file {
            let note = match lost {
                0 => String::new(),
                lost => format!("\n[dutyd: {lost} bytes were dropped here]\n"),
            };
            let (a, b) = self.tail.as_slices();
            for part in [note.as_bytes(), a, b] {
                file.write_all(part)?;
                if let Some(digest) = &mut self.file_digest {
                    digest.update(part);
                }
            }
            file.flush()?;
        }
        let (name, path) = self.file.map(|kept| (kept.name, kept.path)).unzip();
        let whole = match (&path, lost) {
            (None, _) => "The whole output was not kept.".to_owned(),
            (Some(path), 0) => format!("The whole output is in {path}."),
            (Some(path), lost) => {
                format!("The output without {lost} bytes of its middle is in {path}.")
            }
        };
        let dropped = self.file_digest.filter(|_| lost > 0 && path.is_some());
        let dropped = dropped.map(|digest| (lost, hex::encode(digest.finalize())));
        let lossy = self.view.is_lossy();
        let (mut view, truncated) = self.view.finish(self.limit, &whole);
        if !note.is_empty() {
            let needs_end = !view.is_empty() && !view.ends_with('\n');
            view.push_str(if needs_end { "\n" } else { "" });
            view.push_str(note);
        }
        let inline = name.is_none().then(|| String::from_utf8_lossy(&self.inline).into_owned());
        let digest = hex::encode(self.digest.finalize());
        Ok(Collected {
            view,
            inline,
            file: name,
            bytes: self.bytes,
            truncated,
            lossy,
            digest,
            dropped,
        })
    }

    fn take(&mut self, clean: &[u8]) -> io::Result<()> {
        self.view.push(clean);
        self.keep(clean)
    }

    /// Adds a chunk to the record but not to the view.
    fn keep(&mut self, clean: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.keep.saturating_sub(self.seen)).unwrap_or(usize::MAX);
        if room < clean.len() && self.file_digest.is_none() {
            let mut kept = self.digest.clone();
            kept.update(clean.get(..room).unwrap_or_default());
            self.file_digest = Some(kept);
        }
        self.seen += clean.len() as u64;
        self.digest.update(clean);
        if self.file.is_none() {
            if self.inline.len() + clean.len() <= INLINE_LIMIT {
                self.inline.extend_from_slice(clean);
                return Ok(());
            }
            if self.store.is_none() {
                // Without a store, keep only what fits inline.
                let room = INLINE_LIMIT - self.inline.len();
                self.inline
                    .extend_from_slice(clean.get(..room.min(clean.len())).unwrap_or_default());
                return Ok(());
            }
            self.spill()?;
        }
        self.write(clean)
    }

    /// Moves the inline bytes to a file.
    fn spill(&mut self) -> io::Result<()> {
        if let Some(store) = self.store {
            self.file = Some(store.create(self.call_id)?);
            let inline = std::mem::take(&mut self.inline);
            self.write(&inline)?;
        }
        Ok(())
    }

    fn write(&mut self, clean: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.keep.saturating_sub(self.kept))
            .unwrap_or(usize::MAX)
            .min(clean.len());
        let (keep, over) = clean.split_at(room);
        if let Some(KeptFile { file, .. }) = &mut self.file {
            file.write_all(keep)?;
        }
        self.kept += keep.len() as u64;
        self.dropped += over.len() as u64;
        let recent = over.get(over.len().saturating_sub(TAIL_BYTES)..).unwrap_or_default();
        let excess = (self.tail.len() + recent.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess.min(self.tail.len()));
        self.tail.extend(recent);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::text::redact::Secret;
    use crate::text::truncate::Keep;

    #[derive(Default, Clone)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl OutputStore for Memory {
        fn create(&self, call_id: &CallId) -> io::Result<KeptFile> {
            let name = format!("output/{call_id}.txt");
            Ok(KeptFile { path: name.clone(), name, file: Box::new(self.clone()) })
        }

        fn keep_image(&self, _: &CallId, _: usize, _: &Image) -> io::Result<String> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn read(&self, _: &str, _: u64) -> io::Result<Vec<u8>> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn collect(text: &[u8], characters: usize, keep: u64) -> (Collected, Vec<u8>) {
        let store = Memory::default();
        let call_id = CallId::parse("c").unwrap();
        let redactor = Redactor::new(&[Secret { name: "K".into(), value: "secret-value".into() }]);
        let limit = ViewLimit { characters, lines: VIEW_LINES, keep: Keep::HeadAndTail };
        let mut collector = Collector::new(Some(&store), &call_id, &redactor, limit, keep);
        for chunk in text.chunks(1000) {
            collector.push(chunk).unwrap();
        }
        let collected = collector.finish().unwrap();
        let kept = store.0.lock().unwrap().clone();
        (collected, kept)
    }

    #[test]
    fn a_small_output_is_inline_and_whole() {
        let (collected, kept) = collect(b"hello\nsecret-value\n", 1000, 1 << 20);
        assert_eq!(collected.inline.as_deref(), Some("hello\n[redacted:K]\n"));
        assert_eq!(
            (collected.view.as_str(), collected.bytes, collected.truncated),
            ("hello\n[redacted:K]\n", 19, None)
        );
        assert!(kept.is_empty());
    }

    // conforms 000-S6.3
    #[test]
    fn a_cut_output_always_has_a_file() {
        let text = "0123456789\n".repeat(100);
        let (collected, kept) = collect(text.as_bytes(), 500, 1 << 20);
        assert_eq!((collected.file.as_deref(), collected.inline), (Some("output/c.txt"), None));
        assert_eq!(collected.truncated, Some(Truncated { characters: 600, lines: 0 }));
        assert_eq!(kept, text.as_bytes());
        assert!(collected.view.contains("output/c.txt"));
    }

    // proves PROC-5, PROC-6
    #[test]
    fn a_huge_output_keeps_head_and_tail_and_counts_the_rest() {
        let mut text = vec![b'a'; 5_000_000];
        text[3] = 0xff;
        text.extend(b"THE END");
        let (collected, kept) = collect(&text, 1000, 100_000);
        assert_eq!(collected.bytes, 5_000_007);
        assert!(collected.lossy);
        assert!(kept.len() < 100_000 + TAIL_BYTES + 100);
        let note = String::from_utf8_lossy(&kept);
        assert!(
            note.contains(&format!("{} bytes were dropped", 5_000_007 - 100_000 - TAIL_BYTES)),
            "{}",
            kept.len()
        );
        assert!(
            note.ends_with("THE END")
                && collected.view.ends_with("THE END")
                && collected.view.starts_with("aaa\u{fffd}a")
        );
        assert_eq!(kept[3], 0xff, "the file must keep invalid bytes");
        let lost = 5_000_007 - 100_000 - TAIL_BYTES as u64;
        assert_eq!(collected.dropped, Some((lost, hex::encode(Sha256::digest(&kept)))));
        assert!(collected.view.contains(&format!("The output without {lost} bytes of its middle")));
        // No bytes are lost if the tail reaches back to the head.
        let (collected, kept) = collect(&text[..1_100_000], 1000, 100_000);
        assert_eq!(
            (collected.dropped, collected.digest),
            (None, hex::encode(Sha256::digest(&kept)))
        );
    }
}
