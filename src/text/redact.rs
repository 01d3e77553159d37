//! Removes secrets from everything that is written, sent or shown.
//!
//! One automaton knows every secret in all its spellings: plain, each long line of it,
//! JSON-escaped, percent-encoded, hex, and within base64 at any alignment. It reads the text
//! without line ends and indentation: as written, and decoded for each encoding (JSON, percent)
//! whose escapes the text contains. It therefore also finds wrapped and escaped spellings.
//! `[redacted:NAME]` replaces every match, even one that spans chunks of a stream. (SEC-2)
//!
//! `spellings.rs` lists the spellings, `view.rs` decodes the text, `scanner.rs` searches it, and
//! `filter.rs` skips text in which no spelling begins.

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

/// Secrets with fewer bytes than this, not counting the blanks around them, are not redacted: they
/// would blank out innocent text. The configuration warns about them.
pub const SHORTEST_SECRET: usize = 6;

/// The beginning of every marker that names a secret. A call whose arguments contain it is
/// rejected.
pub const MARKER: &str = "[redacted:";

/// A value that must not be shown, and the name that is shown for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The name that the marker shows.
    pub name: String,
    /// The value to redact.
    pub value: String,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{MARKER}{}]", self.name)
    }
}

/// A value without secrets, fit to leave the process. Only [`Redactor::clean`] creates one.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Redacted<T>(T);

impl<T> std::ops::Deref for Redacted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Replaces known secrets with markers that show their names.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    search: Search,
}

#[derive(Debug, Clone, Default)]
enum Search {
    #[default]
    Nothing,
    Secrets(Arc<Scanner>),
    /// No automaton could be built, so nothing may be shown.
    Impossible,
}

impl Redactor {
    /// Lets `each` redact the texts of `value`, and returns the value as redacted.
    pub fn clean<T>(&self, mut value: T, each: impl FnOnce(&mut T, &Self)) -> Redacted<T> {
        each(&mut value, self);
        Redacted(value)
    }

    /// Builds a redactor. Ignores secrets shorter than [`SHORTEST_SECRET`].
    #[must_use]
    pub fn new(secrets: &[Secret]) -> Self {
        let mut all = Vec::new();
        for secret in secrets {
            let marker = format!("{MARKER}{}]", secret.name);
            all.extend(spellings(&secret.value).into_iter().map(|one| (one, marker.clone())));
        }
        let search = if all.is_empty() {
            Search::Nothing
        } else {
            Scanner::new(all)
                .map_or(Search::Impossible, |scanner| Search::Secrets(Arc::new(scanner)))
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

    /// Removes secrets from every string and key of `value`, except in the values of keys named in
    /// `opaque`.
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

/// Redacts a stream of bytes. Holds back only bytes that could be the beginning of a secret or of
/// an escape.
///
/// The returned chunks together equal the result of [`Redactor::text`] for the whole stream. If no
/// automaton could be built, the stream returns no bytes.
#[derive(Debug)]
pub struct StreamRedactor {
    search: Search,
    held: Vec<u8>,
    /// Number of bytes at the start of `held` that a marker already replaced.
    covered: usize,
}

impl StreamRedactor {
    /// Adds a chunk. Returns the bytes that can be shown now.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(chunk);
        self.release(Stop::More)
    }

    /// Ends the stream and returns the remaining bytes.
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
