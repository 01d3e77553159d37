//! `read_file`, `read_many_files`: return numbered lines, in constant memory regardless of the size
//! of a file.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::file_error::failed;
use super::super::files::Files;
use super::super::image;
use super::{Answer, Work};
use crate::domain::{CallError, ErrorKind, Image};
use crate::gate::shown;

/// The default number of lines.
const LINES: u64 = 2000;

/// Maximum bytes that one call returns, far more than the model's view.
const BYTES: usize = 1 << 20;

/// Bytes at the start of a file that we search for a NUL, which marks the file as binary.
const SNIFFED: usize = 8192;

/// Bytes that we read at once.
const BUFFER: usize = 256 * 1024;

#[derive(Deserialize)]
struct ReadFile {
    file_path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

#[derive(Deserialize)]
struct ReadMany {
    paths: Vec<String>,
}

pub(super) fn read_file(
    arguments: &Map<String, Value>,
    work: &Work<'_>,
) -> Result<Answer, CallError> {
    let asked: ReadFile = super::parsed(arguments)?;
    let (offset, limit) = (asked.offset.unwrap_or(1), asked.limit.unwrap_or(LINES));
    if let Some(image) = picture(work, &asked.file_path)? {
        return Ok(Answer::of_image(image));
    }
    let mut lossy = false;
    let lines = Lines { offset, limit };
    let text = numbered(work, work.files(), &asked.file_path, lines, BYTES, &mut lossy)?;
    Ok(Answer { lossy, ..Answer::of(text) })
}

/// Returns the file as an image; `None` if it is not an image.
fn picture(work: &Work<'_>, path: &str) -> Result<Option<Image>, CallError> {
    let opened = work.files().open(path)?;
    if opened.is_dir {
        return Ok(None);
    }
    let name = shown(opened.path.as_os_str());
    let io = |error: std::io::Error| failed(&name, &error);
    let mut start = Vec::new();
    (&opened.file).take(SNIFFED as u64).read_to_end(&mut start).map_err(io)?;
    if image::media_type(&start).is_none() {
        return Ok(None);
    }
    let mut bytes = start;
    let read = (&opened.file).take(image::MAX_BYTES).read_to_end(&mut bytes).map_err(io)?;
    if read as u64 == image::MAX_BYTES {
        let message = format!("`{name}` is a picture larger than {} MB.", image::MAX_BYTES >> 20);
        return Err(CallError::new(ErrorKind::Limit, message));
    }
    image::attached(bytes).map(Some)
}

pub(super) fn read_many_files(
    arguments: &Map<String, Value>,
    work: &Work<'_>,
) -> Result<Answer, CallError> {
    let asked: ReadMany = super::parsed(arguments)?;
    let share = BYTES / asked.paths.len().max(1);
    let (mut text, mut first_error, mut read, mut lossy) = (String::new(), None, 0, false);
    for path in &asked.paths {
        let _ = writeln!(text, "==> {path} <==");
        match numbered(work, work.files(), path, ALL_LINES, share, &mut lossy) {
            Ok(lines) => {
                read += 1;
                text.push_str(&lines);
            }
            Err(error) => {
                let _ = write!(text, "[{}]", error.message);
                first_error.get_or_insert(error);
            }
        }
        text.push_str("\n\n");
    }
    match first_error {
        Some(error) if read == 0 => Err(CallError::new(error.kind, text)),
        _ => Ok(Answer { lossy, ..Answer::of(text.trim_end()) }),
    }
}

/// Which lines of a file to return.
#[derive(Debug, Clone, Copy)]
struct Lines {
    /// The number of the first line, from 1.
    offset: u64,
    limit: u64,
}

const ALL_LINES: Lines = Lines { offset: 1, limit: LINES };

/// Returns `NNN | line` for each requested line, up to about `most` bytes, and a note if more lines
/// follow. Sets `lossy` if bytes of these lines are not valid UTF-8.
fn numbered(
    work: &Work<'_>,
    files: Files<'_>,
    path: &str,
    Lines { offset, limit }: Lines,
    most: usize,
    lossy: &mut bool,
) -> Result<String, CallError> {
    let opened = files.open(path)?;
    let name = shown(opened.path.as_os_str());
    let wrong = |message: String| Err(CallError::new(ErrorKind::Io, message));
    if opened.is_dir {
        return wrong(format!("`{name}` is a directory: use list_directory."));
    }
    let mut file = opened.file;
    let mut start = Vec::new();
    (&mut file)
        .take(SNIFFED as u64)
        .read_to_end(&mut start)
        .and_then(|_| file.rewind())
        .map_err(|error| failed(&name, &error))?;
    if start.contains(&0) {
        let size = file.metadata().map(|meta| meta.len()).unwrap_or(0);
        return wrong(format!("`{name}` is not text: {size} bytes."));
    }
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let skipped = skip(&mut reader, offset - 1, work).map_err(|error| at(&name, error))?;
    if skipped < offset - 1 {
        return Ok(format!("[`{name}` has {skipped} lines; offset {offset} is past its end]"));
    }
    let mut out = String::new();
    let mut line = Vec::new();
    for number in offset.. {
        line.clear();
        let room = (most.saturating_sub(out.len())) as u64 + 1;
        let read = (&mut reader).take(room).read_until(b'\n', &mut line);
        if read.map_err(|error| failed(&name, &error))? == 0 {
            break;
        }
        if number - offset >= limit || out.len() + line.len() > most {
            let _ = write!(out, "[more lines follow: continue with offset {number}]");
            if out.len() < most && line.len() as u64 >= room {
                let _ = write!(out, "\n[line {number} alone is longer than {most} bytes]");
            }
            return Ok(out);
        }
        work.go_on()?;
        let text = String::from_utf8_lossy(&line);
        *lossy |= matches!(text, std::borrow::Cow::Owned(_));
        let _ = writeln!(out, "{number} | {}", text.trim_end_matches(['\n', '\r']));
    }
    if out.is_empty() && offset > 1 {
        return Ok(format!("[`{name}` has {skipped} lines; offset {offset} is past its end]"));
    }
    if out.is_empty() {
        return Ok(format!("[`{name}` is empty]"));
    }
    Ok(out.trim_end_matches('\n').to_owned())
}

enum Skipping {
    Io(std::io::Error),
    Ended(CallError),
}

fn at(name: &str, error: Skipping) -> CallError {
    match error {
        Skipping::Io(error) => failed(name, &error),
        Skipping::Ended(error) => error,
    }
}

/// Skips lines and returns how many it skipped: fewer than `lines` if the file ends first.
fn skip(
    reader: &mut BufReader<std::fs::File>,
    lines: u64,
    work: &Work<'_>,
) -> Result<u64, Skipping> {
    let (mut left, mut in_line) = (lines, false);
    while left > 0 {
        work.go_on().map_err(Skipping::Ended)?;
        let buffer = reader.fill_buf().map_err(Skipping::Io)?;
        if buffer.is_empty() {
            return Ok(lines - left + u64::from(in_line));
        }
        let mut used = buffer.len();
        let mut last = None;
        for at in memchr::memchr_iter(b'\n', buffer) {
            left -= 1;
            last = Some(at);
            if left == 0 {
                used = at + 1;
                break;
            }
        }
        in_line = last.is_none_or(|last| last + 1 < used);
        reader.consume(used);
    }
    Ok(lines)
}
