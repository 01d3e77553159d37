//! Reads transcripts back: for people, for the index, and to see whether anybody changed one.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::transcript::hash;
use crate::domain::{FIRST_PREV, FORMAT_VERSION, Line};

/// A line that was read: the envelope, and `type` with its fields.
pub type ReadLine = Line<Value>;

/// Why a transcript cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReadProblem {
    /// The file cannot be read.
    #[error("the transcript cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is none of ours.
    #[error("line {line} cannot be read: {reason}")]
    Line {
        /// From 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

/// What `verify` found.
///
/// *Shape*: `{"ok":true,"lines":12,"live":false,"torn":false,"broken_at_seq":null,"reason":null}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Whether every whole line is what was written.
    pub ok: bool,
    /// Whole lines.
    pub lines: u64,
    /// Whether the run is being written.
    pub live: bool,
    /// Whether the last line is not whole.
    pub torn: bool,
    /// The number that the first wrong line should have.
    pub broken_at_seq: Option<u64>,
    /// What is wrong with it.
    pub reason: Option<String>,
}

/// Returns the lines of a transcript one by one; a torn last line is left out.
///
/// *Errors*: the file cannot be opened; then each line that cannot be read.
pub fn read_lines(
    path: &Path,
) -> io::Result<impl Iterator<Item = Result<ReadLine, ReadProblem>> + use<>> {
    let mut number = 0;
    Ok(whole_lines(path)?.filter_map(move |line| {
        number += 1;
        match line {
            Err(error) => Some(Err(error.into())),
            Ok((_, false)) => None,
            Ok((bytes, true)) => Some(
                serde_json::from_slice(&bytes)
                    .map_err(|error| ReadProblem::Line { line: number, reason: error.to_string() }),
            ),
        }
    }))
}

/// Returns the whole lines of a transcript as they stand there, each with what it says; stops at one that is none.
///
/// *Errors*: the file cannot be opened.
pub fn raw_lines(path: &Path) -> io::Result<impl Iterator<Item = (String, ReadLine)> + use<>> {
    Ok(whole_lines(path)?.map_while(|line| {
        let (bytes, _) = line.ok().filter(|(_, whole)| *whole)?;
        let text = String::from_utf8(bytes).ok()?;
        let parsed = serde_json::from_str(&text).ok()?;
        Some((text, parsed))
    }))
}

/// Checks numbers, hashes and form of every line.
///
/// *Errors*: the file cannot be read.
pub fn verify(path: &Path, live: bool) -> io::Result<VerifyReport> {
    let mut report =
        VerifyReport { ok: true, lines: 0, live, torn: false, broken_at_seq: None, reason: None };
    let mut prev = FIRST_PREV.to_owned();
    let mut run_id = None;
    for line in whole_lines(path)? {
        let (bytes, whole) = line?;
        if !whole {
            report.torn = true;
            report.ok = live;
            if !live {
                report.broken_at_seq = Some(report.lines);
                report.reason =
                    Some("the last line is torn; the next start cuts it off".to_owned());
            }
            return Ok(report);
        }
        let seq = report.lines;
        let problem = match serde_json::from_slice::<ReadLine>(&bytes) {
            Err(error) => Some(format!("it is no transcript line: {error}")),
            Ok(line) if line.v != FORMAT_VERSION => {
                Some(format!("its format version is {}, not {FORMAT_VERSION}", line.v))
            }
            Ok(line) if line.seq != seq => Some(format!("its number is {}, not {seq}", line.seq)),
            Ok(line) if line.prev != prev => {
                Some("the line before it is not the one that was written".to_owned())
            }
            Ok(line) if run_id.as_ref().is_some_and(|run_id| *run_id != line.run_id) => {
                Some("it belongs to another run".to_owned())
            }
            Ok(line) => {
                run_id = Some(line.run_id);
                None
            }
        };
        if let Some(problem) = problem {
            report.ok = false;
            report.broken_at_seq = Some(seq);
            report.reason = Some(problem);
            return Ok(report);
        }
        prev = hash(&bytes);
        report.lines += 1;
    }
    Ok(report)
}

/// Returns each line's bytes, and whether its newline is there.
fn whole_lines(
    path: &Path,
) -> io::Result<impl Iterator<Item = io::Result<(Vec<u8>, bool)>> + use<>> {
    let mut reader = BufReader::new(File::open(path)?);
    Ok(std::iter::from_fn(move || {
        let mut bytes = Vec::new();
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) => None,
            Ok(_) => {
                let whole = bytes.last() == Some(&b'\n');
                if whole {
                    bytes.pop();
                }
                Some(Ok((bytes, whole)))
            }
            Err(error) => Some(Err(error)),
        }
    }))
}
