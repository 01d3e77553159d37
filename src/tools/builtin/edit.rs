//! `write_file`, `edit_file`, `apply_patch`: each replaces whole files. If a patch fails in the
//! middle, the files that it has already changed are restored.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::files::Files as FileAccess;
use super::super::place::Place;
use super::{Answer, Work};
use crate::domain::{CallError, ErrorKind};
use crate::gate::{Access, Resource, names_directory, shown};
use crate::text::diff::{Diff, diff};
use crate::text::patch::{self, FilePatch};

#[derive(Deserialize)]
struct WriteFile {
    file_path: String,
    content: String,
}

#[derive(Deserialize)]
struct EditFile {
    file_path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

pub(super) fn write_file(
    arguments: &Map<String, Value>,
    work: &Work<'_>,
) -> Result<Answer, CallError> {
    let asked: WriteFile = super::parsed(arguments)?;
    let old = existing(work, &asked.file_path)?;
    let place = work.files().place(&asked.file_path)?;
    let name = shown(place.path.as_os_str());
    let changes = diff(&name, &old.unwrap_or_default(), &asked.content);
    work.may_change(&changes)?;
    work.go_on()?;
    place.write(asked.content.as_bytes())?;
    let text = format!("wrote {} bytes to {name}", asked.content.len());
    Ok(changed(text, vec![place], changes))
}

/// Returns the text of a file for the diff: empty if the file cannot be read as text or is larger
/// than 16 MiB, `None` if it does not exist.
fn existing(work: &Work<'_>, path: &str) -> Result<Option<String>, CallError> {
    match work.files().text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind == ErrorKind::Io => Ok(Some(String::new())),
        Err(error) => Err(error),
    }
}

pub(super) fn edit_file(
    arguments: &Map<String, Value>,
    work: &Work<'_>,
) -> Result<Answer, CallError> {
    let asked: EditFile = super::parsed(arguments)?;
    let old = work.files().text(&asked.file_path)?;
    let failed = |message: String| Err(CallError::new(ErrorKind::Tool, message));
    if asked.old_string == asked.new_string {
        return failed("The old and the new text are the same: nothing to do.".to_owned());
    }
    let (wanted, new) = (&asked.old_string, &asked.new_string);
    let count = old.matches(wanted.as_str()).count();
    let text = match count {
        0 => match unusual(&old, wanted) {
            Some(range) => {
                let (head, tail) = (old.get(..range.start), old.get(range.end..));
                let new = in_place_of(old.get(range).unwrap_or_default(), new);
                format!("{}{new}{}", head.unwrap_or_default(), tail.unwrap_or_default())
            }
            None => {
                return failed(format!(
                    "The old text is not in {}. Read the file and copy the text exactly, including whitespace.",
                    asked.file_path
                ));
            }
        },
        1 => old.replacen(wanted.as_str(), new, 1),
        _ if asked.replace_all => old.replace(wanted.as_str(), new),
        _ => {
            return failed(format!(
                "The old text occurs {count} times in {}. Include more of the surrounding lines, or replace every occurrence.",
                asked.file_path
            ));
        }
    };
    let place = work.files().place(&asked.file_path)?;
    let changes = diff(&shown(place.path.as_os_str()), &old, &text);
    work.may_change(&changes)?;
    work.go_on()?;
    place.write(text.as_bytes())?;
    Ok(changed(changes.unified.clone(), vec![place], changes))
}

/// Returns the byte range of the whole lines that match `wanted` if typographic characters (such as
/// curly quotes) count as plain ones; `None` unless there is exactly one such range.
fn unusual(text: &str, wanted: &str) -> Option<std::ops::Range<usize>> {
    // Indentation has a meaning, so compare it exactly. Models often lose trailing whitespace, so
    // ignore it.
    let plain = |line: &str| {
        let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
        format!("{indent}{}", patch::plain(line))
    };
    let wanted: Vec<String> = wanted.trim_end_matches('\n').lines().map(plain).collect();
    let mut starts = vec![0];
    starts.extend(text.match_indices('\n').map(|(at, _)| at + 1));
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    let mut found = lines.windows(wanted.len().max(1)).enumerate().filter(|(_, w)| *w == wanted);
    let (at, _) = found.next()?;
    if found.next().is_some() || wanted.iter().all(String::is_empty) {
        return None;
    }
    let end = starts.get(at + wanted.len()).map_or(text.len(), |next| next - 1);
    Some(*starts.get(at)?..end)
}

/// Returns `new` in a form that can replace `lines`, which are whole lines without the last LF. If
/// the last of these lines ends with CRLF, so does every line of the result.
fn in_place_of(lines: &str, new: &str) -> String {
    let new = new.strip_suffix('\n').unwrap_or(new);
    if lines.ends_with('\r') {
        return format!("{}\r", new.replace("\r\n", "\n").replace('\n', "\r\n"));
    }
    new.to_owned()
}

fn changed(text: String, places: Vec<Place>, changes: Diff) -> Answer {
    let mut answer = Answer::of(text);
    if let Some(line) = changes.first_changed_line {
        answer.details.insert("first_changed_line".to_owned(), Value::from(line));
    }
    answer.lines_changed = changes.lines_changed;
    answer.diff = Some(changes.unified);
    answer.modified = places.into_iter().map(|place| place.path).collect();
    answer
}

pub(super) fn patch_resources(arguments: &Map<String, Value>) -> Vec<Resource> {
    let text = arguments.get("patch").and_then(Value::as_str).unwrap_or_default();
    let mut resources = Vec::new();
    // An invalid patch accesses no file: the call fails when it runs.
    for change in patch::parse(text).into_iter().flatten() {
        let (path, move_to) = match change {
            FilePatch::Add { path, .. } | FilePatch::Delete { path } => (path, None),
            FilePatch::Update { path, move_to, .. } => (path, move_to),
        };
        let paths = std::iter::once(path).chain(move_to);
        resources.extend(paths.map(|path| Resource::file(&path, Access::Write)));
    }
    resources
}

pub(super) fn patch_lines(arguments: &Map<String, Value>) -> u64 {
    let text = arguments.get("patch").and_then(Value::as_str).unwrap_or_default();
    let is_change = |line: &&str| line.starts_with(['+', '-']);
    text.lines().filter(is_change).count() as u64
}

/// The text of each file by its path; `None` if the file does not exist.
pub(super) type Files = BTreeMap<String, Option<String>>;

pub(super) fn apply_patch(
    arguments: &Map<String, Value>,
    work: &Work<'_>,
) -> Result<Answer, CallError> {
    let text = arguments.get("patch").and_then(Value::as_str).unwrap_or_default();
    let failed = |error: patch::PatchError| {
        let message =
            format!("Nothing was changed: {error}. Read the files and send a matching patch.");
        CallError::new(ErrorKind::Tool, message)
    };
    let changes = patch::parse(text).map_err(failed)?;
    // Match every change before the first byte is written.
    let (mut before, mut after) = (Files::new(), Files::new());
    let mut done = Vec::new();
    for change in changes {
        work.go_on()?;
        done.push(plan(change, work, &mut before, &mut after).map_err(|error| match error {
            Unfit::Patch(error) => failed(error),
            Unfit::Call(error) => {
                CallError::new(error.kind, format!("Nothing was changed: {}", error.message))
            }
        })?);
    }
    let mut places: Vec<Place<'_>> = Vec::new();
    for path in after.keys() {
        let place = work.files().place(path)?;
        if places.iter().any(|other| other.path == place.path) {
            let message = format!(
                "Nothing was changed: `{path}` is another name for a file that the patch also changes."
            );
            return Err(CallError::new(ErrorKind::Tool, message));
        }
        places.push(place);
    }
    let mut all = Diff::default();
    for ((path, new), place) in after.iter().zip(&places) {
        let old = before.get(path).and_then(Option::as_deref).unwrap_or_default();
        all.append(diff(&shown(place.path.as_os_str()), old, new.as_deref().unwrap_or_default()));
    }
    work.may_change(&all)?;
    put(&work.files(), &places, &before, &after)?;
    Ok(changed(done.join("\n"), places, all))
}

enum Unfit {
    Patch(patch::PatchError),
    Call(CallError),
}

/// Applies one change to `after` and returns a line that describes it.
fn plan(
    change: FilePatch,
    work: &Work<'_>,
    before: &mut Files,
    after: &mut Files,
) -> Result<String, Unfit> {
    let mut load = |path: &str, after: &Files| -> Result<Option<String>, CallError> {
        if let Some(known) = after.get(path) {
            return Ok(known.clone());
        }
        let text = match work.files().text(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        before.insert(path.to_owned(), text.clone());
        Ok(text)
    };
    let missing = |path: &str| {
        Unfit::Call(CallError::new(ErrorKind::NotFound, format!("`{path}` does not exist.")))
    };
    // Normalize the path, so that one file does not count as two. Keep a slash at the end, because
    // a path with it can only name a directory.
    let spelled = |text: String| match work.ctx.access.paths.absolute(&text) {
        Ok(path) => {
            let path = path.to_str().map_or_else(|| path.display().to_string(), str::to_owned);
            if names_directory(&text) { format!("{path}/") } else { path }
        }
        Err(_) => text,
    };
    let mut said = String::new();
    match change {
        FilePatch::Add { path, content } => {
            let path = spelled(path);
            let old = load(&path, after).map_err(Unfit::Call)?;
            let _ = write!(said, "{} {path}", if old.is_some() { "replaced" } else { "added" });
            after.insert(path, Some(content));
        }
        FilePatch::Delete { path } => {
            let path = spelled(path);
            if load(&path, after).map_err(Unfit::Call)?.is_none() {
                return Err(missing(&path));
            }
            let _ = write!(said, "deleted {path}");
            after.insert(path, None);
        }
        FilePatch::Update { path, move_to, hunks } => {
            let (path, move_to) = (spelled(path), move_to.map(spelled));
            let old = load(&path, after).map_err(Unfit::Call)?.ok_or_else(|| missing(&path))?;
            let new = patch::apply(&path, &old, &hunks).map_err(Unfit::Patch)?;
            let _ = write!(said, "updated {path}");
            match move_to.filter(|to| *to != path) {
                None => drop(after.insert(path, Some(new))),
                Some(to) => {
                    load(&to, after).map_err(Unfit::Call)?;
                    let _ = write!(said, ", moved to {to}");
                    after.insert(path, None);
                    after.insert(to, Some(new));
                }
            }
        }
    }
    Ok(said)
}

/// Writes and removes the files. If one fails, restores it and those before it.
pub(super) fn put(
    files: &FileAccess<'_>,
    places: &[Place],
    before: &Files,
    after: &Files,
) -> Result<(), CallError> {
    let set = |place: &Place, text: Option<&Option<String>>| match text.and_then(Option::as_deref) {
        Some(text) => place.write(text.as_bytes()),
        None if place.is_taken() => place.remove(),
        None => Ok(()),
    };
    // Remove files last, so that a moved file exists in its new place before it leaves the old one.
    let mut order: Vec<(&Place, &String, &Option<String>)> =
        places.iter().zip(after).map(|(place, (path, new))| (place, path, new)).collect();
    order.sort_by_key(|(_, _, new)| new.is_none());
    for (at, (place, _, new)) in order.iter().enumerate() {
        let Err(error) = set(place, Some(new)) else { continue };
        let mut left = Vec::new();
        // Restore the failed file too: it may have been replaced before the error.
        for (place, path, _) in order.iter().take(at + 1) {
            let old = before.get(*path).and_then(Option::as_deref);
            let back = match old {
                Some(old) => place.write(old.as_bytes()),
                None => place.remove_if_there(),
            };
            if let Err(error) = back
                && files.text(path).ok().as_deref() != old
            {
                left.push(error.message);
            }
        }
        let why = error.message;
        let message = if left.is_empty() {
            format!("Nothing was changed: {why}")
        } else {
            format!(
                "The patch failed: {why} These files could not be restored and may be changed: {}",
                left.join(" ")
            )
        };
        return Err(CallError::new(error.kind, message));
    }
    Ok(())
}
