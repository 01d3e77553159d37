//! Secrets out of everything that is written, sent or shown.
//!
//! One automaton knows every secret in the spellings in which it can turn up: plain, each long line
//! of it, JSON-escaped, percent-encoded, hex, and within base64 at any alignment. It reads the text
//! once without line ends and indentation, and once more for each encoding whose escapes the text
//! holds, so that a wrapped or escaped spelling is found as well. `[redacted:NAME]` replaces every
//! match. Streams are redacted across chunk edges. (SEC-2)
//!
//! `spellings.rs` owns what is looked for, `view.rs` the readings of a text, `scanner.rs` the
//! search, and `filter.rs` its speed.

mod filter;
mod scanner;
mod spellings;
mod view;

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use scanner::{Scanner, UNKNOWN};
use spellings::spellings;
use view::Stop;

/// Secrets of fewer bytes than this, without the blanks around them, are not redacted, because they
/// would blank out innocent text; configuration warns about them.
pub const SHORTEST_SECRET: usize = 6;

/// What every marker begins with; a call whose arguments hold it is refused.
pub const MARKER: &str = "[redacted:";

/// A value that must not be shown, and the name that is shown for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// What stands in the marker.
    pub name: String,
    /// The value.
    pub value: String,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{MARKER}{}]", self.name)
    }
}

/// A value without secrets, fit to leave the process; only [`Redactor::clean`] makes one.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Redacted<T>(T);

impl<T> std::ops::Deref for Redacted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Replaces known secrets by their names.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    search: Search,
}

#[derive(Debug, Clone, Default)]
enum Search {
    #[default]
    Nothing,
    Secrets(Arc<Scanner>),
    /// No automaton could be built, so that nothing may be shown.
    Impossible,
}

impl Redactor {
    /// Returns `value` once `each` has taken the secrets out of its texts.
    pub fn clean<T>(&self, mut value: T, each: impl FnOnce(&mut T, &Self)) -> Redacted<T> {
        each(&mut value, self);
        Redacted(value)
    }

    /// Builds a redactor. Secrets shorter than [`SHORTEST_SECRET`] are left out.
    #[must_use]
    pub fn new(secrets: &[Secret]) -> Self {
        let mut all = Vec::new();
        for secret in secrets {
            let marker = format!("{MARKER}{}]", secret.name);
            all.extend(spellings(&secret.value).into_iter().map(|one| (one, marker.clone())));
        }
        let search = match all.is_empty() {
            true => Search::Nothing,
            false => Scanner::new(all)
                .map_or(Search::Impossible, |scanner| Search::Secrets(Arc::new(scanner))),
        };
        Self { search }
    }

    /// Returns `text` without secrets.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let scanner = match &self.search {
            Search::Nothing => return Cow::Borrowed(text),
            Search::Impossible => return Cow::Borrowed(UNKNOWN),
            Search::Secrets(scanner) => scanner,
        };
        let scan = scanner.scan(text.as_bytes(), Stop::End);
        if scan.is_clean() {
            return Cow::Borrowed(text);
        }
        let mut out = Vec::with_capacity(text.len());
        scanner.replace(text.as_bytes(), &scan, 0, &mut out);
        Cow::Owned(String::from_utf8_lossy(&out).into_owned())
    }

    /// Takes secrets out of every string and key of `value`, except below a key named in `opaque`.
    pub fn value(&self, value: &mut Value, opaque: &[&str]) {
        if matches!(self.search, Search::Nothing) {
            return;
        }
        match value {
            Value::String(text) => {
                if let Cow::Owned(clean) = self.text(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item, opaque)),
            Value::Object(map) => {
                if map.keys().any(|key| matches!(self.text(key), Cow::Owned(_))) {
                    *map = std::mem::take(map)
                        .into_iter()
                        .map(|(key, item)| (self.text(&key).into_owned(), item))
                        .collect();
                }
                for (_, item) in map.iter_mut().filter(|(key, _)| !opaque.contains(&key.as_str())) {
                    self.value(item, opaque);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Returns a redactor for one stream of chunks.
    #[must_use]
    pub fn stream(&self) -> StreamRedactor {
        StreamRedactor { search: self.search.clone(), held: Vec::new(), covered: 0 }
    }
}

/// Redacts a stream of bytes, holding back only what could be the beginning of a secret.
///
/// The chunks together give what [`Redactor::text`] gives for the whole.
#[derive(Debug)]
pub struct StreamRedactor {
    search: Search,
    held: Vec<u8>,
    /// Bytes at the start of `held` that a marker already replaced.
    covered: usize,
}

impl StreamRedactor {
    /// Takes a chunk and returns what can be shown now.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(chunk);
        self.release(Stop::More)
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(mut self) -> Vec<u8> {
        self.release(Stop::End)
    }

    fn release(&mut self, stop: Stop) -> Vec<u8> {
        let scanner = match &self.search {
            Search::Nothing => return std::mem::take(&mut self.held),
            Search::Impossible => {
                self.held.clear();
                return Vec::new();
            }
            Search::Secrets(scanner) => scanner,
        };
        let scan = scanner.scan(&self.held, stop);
        let mut out = Vec::with_capacity(scan.sure);
        self.covered = scanner.replace(&self.held, &scan, self.covered, &mut out);
        self.held.drain(..scan.sure.min(self.held.len()));
        out
    }
}

#[cfg(test)]
mod tests;
