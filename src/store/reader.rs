//! Reads transcripts: for people, for the index, and for recovery.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::Deserialize;
use serde_json::Value;

use crate::domain::{Event, FORMAT_VERSION, Line};

/// Maximum bytes of a line; a longer one is not a valid transcript line.
const LINE_BYTES: u64 = 256 << 20;

/// An event that was read from a transcript.
#[derive(Debug, Clone)]
pub enum ReadEvent {
    /// An event that this version knows.
    Known(Box<Event>),
    /// An event of a later version, unchanged.
    Unknown(Value),
}

impl<'de> Deserialize<'de> for ReadEvent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let Some(word) = value.get("type").and_then(Value::as_str) else {
            return Err(serde::de::Error::missing_field("type"));
        };
        if !Event::TYPES.contains(&word) {
            return Ok(Self::Unknown(value));
        }
        let word = word.to_owned();
        let known = serde_json::from_value(value);
        known.map(|event| Self::Known(Box::new(event))).map_err(|error| {
            serde::de::Error::custom(format!("the `{word}` cannot be read: {error}"))
        })
    }
}

/// A transcript line with its parsed event.
pub type ReadLine = Line<ReadEvent>;

/// A transcript line whose event is the JSON from the file: `type` and its fields.
pub type RawLine = Line<Value>;

/// Returns the event of a line; `None` for an event of a later version.
#[must_use]
pub fn known(line: &ReadLine) -> Option<&Event> {
    match &line.event {
        ReadEvent::Known(event) => Some(event),
        ReadEvent::Unknown(_) => None,
    }
}

/// Why reading a transcript failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadProblem {
    /// The file cannot be read.
    #[error("the transcript cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is not a valid transcript line.
    #[error("line {line} cannot be read: {reason}")]
    Line {
        /// The line number, counted from 1.
        line: u64,
        /// Why the line is invalid.
        reason: String,
    },
}

/// Returns the lines of a transcript one by one, without a torn last line (one without a newline).
/// The iterator yields an error for each unreadable line.
///
/// *Errors*: the file cannot be opened.
pub fn read_lines<T: serde::de::DeserializeOwned>(
    path: &Path,
) -> io::Result<impl Iterator<Item = Result<Line<T>, ReadProblem>> + use<T>> {
    let mut number = 0;
    Ok(whole_lines(path)?.filter_map(move |line| {
        number += 1;
        match line {
            Err(error) => Some(Err(error.into())),
            Ok((_, false)) => None,
            Ok((bytes, true)) => {
                Some(parsed(&bytes).map_err(|reason| ReadProblem::Line { line: number, reason }))
            }
        }
    }))
}

/// Parses a line of a transcript, without its newline.
///
/// *Errors*: why the line cannot be read.
pub fn parse_line(bytes: &[u8]) -> Result<ReadLine, String> {
    parsed(bytes)
}

/// Parses a line.
///
/// *Errors*: why the line cannot be read. We do not read a newer format, in which a field may have
/// another meaning.
fn parsed<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<Line<T>, String> {
    let line: Line<T> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if line.v <= FORMAT_VERSION {
        Ok(line)
    } else {
        Err(format!(
            "format version {} is newer than {FORMAT_VERSION}, the newest that this dutyd reads; install a newer dutyd",
            line.v
        ))
    }
}

/// Returns the complete lines of a transcript verbatim, each with its parsed form. Stops at the
/// first unreadable line.
///
/// *Errors*: the file cannot be opened.
pub fn raw_lines(path: &Path) -> io::Result<impl Iterator<Item = (String, ReadLine)> + use<>> {
    Ok(whole_lines(path)?.map_while(|line| {
        let (bytes, _) = line.ok().filter(|(_, whole)| *whole)?;
        let text = String::from_utf8(bytes).ok()?;
        let line = parsed(text.as_bytes()).ok()?;
        Some((text, line))
    }))
}

/// Opens a file of a run. Opens only regular files and never blocks. Does not follow a symlink in
/// the last component of `path`.
///
/// *Errors*: any I/O error, or the file is not a regular file.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// Returns the bytes of each line, and whether the line ends with a newline.
pub(super) fn whole_lines(
    path: &Path,
) -> io::Result<impl Iterator<Item = io::Result<(Vec<u8>, bool)>> + use<>> {
    let mut reader = BufReader::new(open_regular(path)?);
    Ok(std::iter::from_fn(move || {
        let mut bytes = Vec::new();
        match reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut bytes) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_line_must_be_whole_and_an_unknown_one_is_kept() {
        let line = |event: &str| {
            let text = format!(
                r#"{{"v":1,"seq":0,"ts":"t","run_id":"01m8266a6bdtqp42bjvv982dj6","session_id":"s","prev":"0",{event}}}"#
            );
            serde_json::from_str::<ReadLine>(&text)
        };
        let warning = line(r#""type":"warning","code":"c","message":"m","later":1"#).unwrap();
        assert!(matches!(known(&warning), Some(Event::Warning { code, .. }) if code == "c"));
        let later = line(r#""type":"of_a_later_version","x":[1]"#).unwrap();
        assert!(matches!(&later.event, ReadEvent::Unknown(value) if value["x"][0] == 1));
        let error = line(r#""type":"warning","code":5"#).unwrap_err().to_string();
        assert!(error.contains("the `warning` cannot be read"), "{error}");
        let error = line(r#""code":"c""#).unwrap_err().to_string();
        assert!(error.contains("type"), "{error}");
    }
}
