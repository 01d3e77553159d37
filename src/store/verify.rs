//! Checks whether a record is intact: the hash chain of its lines, the digests of its output files,
//! and the end that the ledger stores.
//!
//! *Source*: `docs/design/transcript.md`, "A record is complete".

use std::borrow::Cow;
use std::io::{self, Read as _};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::reader::{open_regular, whole_lines};
use super::run_dir::RunDir;
use super::transcript::hash;
use crate::domain::{FIRST_PREV, FORMAT_VERSION, RunId};

/// The end of a record, as the ledger stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordEnd {
    pub lines: u64,
    /// SHA-256 (hex) of the last line.
    pub hash: String,
}

/// Facts about a record that its files do not contain.
#[derive(Debug, Clone, Default)]
pub struct RecordFacts {
    /// Whether a process is writing the record.
    pub live: bool,
    /// Whether the run has a lock file: the run is live, or waits for the next start of the daemon.
    pub is_open: bool,
    /// Whether the output files are left unread.
    pub skips_files: bool,
    /// The end of the record; `None` if the ledger does not have it.
    pub end: Option<RecordEnd>,
}

/// The end of a record, compared with the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadState {
    /// The record ends where the ledger says.
    Match,
    /// The record ends elsewhere, or is missing.
    Differs,
    /// The ledger does not have an end for the record, or an invalid line stopped the check before
    /// the end.
    None,
}

/// The result of `dutyd verify` for one record.
///
/// *Shape*:
/// `{"run_id":"…","ok":true,"head":"match","file":null,"lines":12,"live":false,"torn":false,"broken_at_seq":null,"reason":null}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// The id of the run.
    pub run_id: String,
    /// Whether the record is intact.
    pub ok: bool,
    /// How the end of the record compares with the ledger.
    pub head: HeadState,
    /// The first output file that is missing, cannot be read, or does not match its digest.
    pub file: Option<String>,
    /// Number of complete lines before the first invalid one.
    pub lines: u64,
    /// Whether a process is writing the record.
    pub live: bool,
    /// Whether the last line is incomplete.
    pub torn: bool,
    /// The expected `seq` of the first wrong or missing line; for a wrong output file, the `seq` of
    /// the line that names the file.
    pub broken_at_seq: Option<u64>,
    pub reason: Option<String>,
}

/// The result of `dutyd verify --all`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VerifyAllReport {
    /// Whether no record is broken.
    pub ok: bool,
    pub runs: u64,
    /// Number of records that no process writes and whose `head` is `none`.
    pub without_head: u64,
    /// The reports of the broken records.
    pub broken: Vec<VerifyReport>,
}

/// The fields of a line that `verify` checks; all others are ignored.
#[derive(Deserialize)]
struct Checked<'a> {
    v: u32,
    seq: u64,
    #[serde(borrow)]
    run_id: Cow<'a, str>,
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    prev: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    output_file: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    digest: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    file_digest: Option<Cow<'a, str>>,
}

/// Checks a record.
///
/// *Errors*: the transcript exists, but cannot be read.
pub fn verify(run: &RunDir, facts: &RecordFacts) -> io::Result<VerifyReport> {
    verify_each(run, facts, |_| {}).map(|(report, _)| report)
}

/// Checks a record, and calls `take` with the bytes of each line that is right, without the newline.
/// Also returns the hash (SHA-256, hex) of the last such line.
///
/// *Errors*: the transcript exists, but cannot be read.
pub fn verify_each(
    run: &RunDir,
    facts: &RecordFacts,
    mut take: impl FnMut(&[u8]),
) -> io::Result<(VerifyReport, String)> {
    let mut check = Check::new(run, facts);
    let lines = match whole_lines(&run.transcript()) {
        // The directory of a run is there before its first line.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && facts.live && facts.end.is_none() =>
        {
            return Ok((check.report, check.prev));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what_next = if facts.is_open {
                "; the next start of dutyd finds out whether the run had begun"
            } else {
                ""
            };
            check.report.broken(format!("the transcript is missing{what_next}"), None);
            check.report.head =
                if facts.end.is_some() { HeadState::Differs } else { HeadState::None };
            return Ok((check.report, check.prev));
        }
        lines => lines?,
    };
    for line in lines {
        let (bytes, is_whole) = line?;
        if !is_whole {
            check.report.torn = true;
            if !facts.live {
                let reason =
                    "the last line is torn; the next start of dutyd removes it if the run is open"
                        .to_owned();
                let seq = check.report.lines;
                check.report.broken(reason, Some(seq));
            }
            break;
        }
        if let Err(reason) = check.line(&bytes) {
            let seq = check.report.lines;
            check.report.broken(reason, Some(seq));
            check.report.head =
                if facts.end.is_some() { HeadState::Differs } else { HeadState::None };
            return Ok((check.report, check.prev));
        }
        take(&bytes);
    }
    check.end();
    Ok((check.report, check.prev))
}

/// Returns the report for a run that has an end in the ledger but no directory.
#[must_use]
pub fn missing_record(run_id: &RunId) -> VerifyReport {
    let mut report = VerifyReport::of(run_id, false);
    report.head = HeadState::Differs;
    report.broken("the run directory is missing".to_owned(), None);
    report
}

impl VerifyReport {
    fn of(run_id: &RunId, live: bool) -> Self {
        Self {
            run_id: run_id.to_string(),
            ok: true,
            head: HeadState::None,
            file: None,
            lines: 0,
            live,
            torn: false,
            broken_at_seq: None,
            reason: None,
        }
    }

    /// Records an error, unless there is one already.
    fn broken(&mut self, reason: String, at: Option<u64>) {
        if self.ok {
            self.ok = false;
            self.reason = Some(reason);
            self.broken_at_seq = at;
        }
    }
}

/// The state of a check.
struct Check<'a> {
    run: &'a RunDir,
    facts: &'a RecordFacts,
    report: VerifyReport,
    prev: String,
    session: Option<String>,
    is_complete: bool,
}

impl<'a> Check<'a> {
    fn new(run: &'a RunDir, facts: &'a RecordFacts) -> Self {
        let report = VerifyReport::of(run.run_id(), facts.live);
        Self { run, facts, report, prev: FIRST_PREV.to_owned(), session: None, is_complete: false }
    }

    /// Checks the next line.
    ///
    /// *Errors*: why the line is wrong.
    fn line(&mut self, bytes: &[u8]) -> Result<(), String> {
        let line: Checked<'_> = serde_json::from_slice(bytes)
            .map_err(|error| format!("invalid transcript line: {error}"))?;
        let seq = self.report.lines;
        if line.v != FORMAT_VERSION {
            return Err(format!("format version is {}, expected {FORMAT_VERSION}", line.v));
        }
        if line.seq != seq {
            return Err(format!("`seq` is {}, expected {seq}", line.seq));
        }
        if line.prev != self.prev {
            return Err("`prev` does not match the hash of the previous line".to_owned());
        }
        if line.run_id != self.run.run_id().as_str() {
            return Err("the line belongs to another run".to_owned());
        }
        let session = self.session.get_or_insert_with(|| line.session_id.clone().into_owned());
        self.is_complete = line.kind == "session_end" && line.session_id == session.as_str();
        let digest = line.file_digest.as_deref().or(line.digest.as_deref());
        let file = line.output_file.as_deref().filter(|_| !self.facts.skips_files);
        if let (Some(file), Some(digest)) = (file, digest) {
            self.file(file, digest, seq);
        }
        self.prev = hash(bytes);
        self.report.lines += 1;
        Ok(())
    }

    fn file(&mut self, name: &str, digest: &str, seq: u64) {
        let reason = match digest_of(self.run.path(), name) {
            Ok(found) if found == digest => return,
            Ok(_) => format!("{name} does not match its digest"),
            Err(error) => format!("{name} cannot be read: {error}"),
        };
        if self.report.file.is_none() {
            self.report.file = Some(name.to_owned());
        }
        self.report.broken(reason, Some(seq));
    }

    /// Compares the end of the record with the ledger, and checks that the record is complete.
    fn end(&mut self) {
        if let Some(end) = &self.facts.end {
            let is_same = end.lines == self.report.lines && end.hash == self.prev;
            self.report.head = if is_same { HeadState::Match } else { HeadState::Differs };
            if !is_same {
                let (found, known) = (self.report.lines, end.lines);
                let reason = if found == known {
                    "the last line does not match the hash in the ledger".to_owned()
                } else {
                    format!("the transcript has {found} lines, expected {known}")
                };
                self.report.broken(reason, Some(found.min(known)));
            }
        }
        if !self.is_complete && !self.facts.is_open {
            let reason = "the transcript does not end with the `session_end` of the run, and the run is not open";
            self.report.broken(reason.to_owned(), Some(self.report.lines));
        }
    }
}

/// Returns the SHA-256 (hex) of an output file of a run. Reads it in constant memory.
fn digest_of(run: &Path, name: &str) -> io::Result<String> {
    const PIECE: usize = 128 * 1024;
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "path escapes the run directory"));
    }
    let mut file = open_regular(&run.join(name))?;
    let (mut digest, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex::encode(digest.finalize())),
            count => digest.update(piece.get(..count).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests;
