//! Secrets out of everything that is written, sent or shown.
//!
//! One automaton knows every secret in the spellings in which it can turn up: as it is, JSON-escaped, percent-encoded and within base64 at any
//! alignment. A match is replaced by `[redacted:NAME]`. Streams are redacted across chunk edges. (SEC-2)

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::Engine as _;
use serde::Serialize;
use serde_json::Value;

/// Secrets shorter than this are not redacted, because they would blank out innocent text; configuration warns about them.
pub const SHORTEST_SECRET: usize = 6;

/// What every marker begins with; a call whose arguments hold it is refused.
pub const MARKER: &str = "[redacted:";

/// The least length of a base64 part that is looked for.
const SHORTEST_ENCODED: usize = 8;

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
    automaton: Option<AhoCorasick>,
    markers: Vec<String>,
    longest: usize,
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
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        let mut markers = Vec::new();
        for secret in secrets.iter().filter(|s| s.value.len() >= SHORTEST_SECRET) {
            for spelling in spellings(&secret.value) {
                patterns.push(spelling);
                markers.push(format!("{MARKER}{}]", secret.name));
            }
        }
        let longest = patterns.iter().map(Vec::len).max().unwrap_or(0);
        // A few short patterns always fit; if they did not, nothing may be shown at all, which `replace` sees as `None` with `longest > 0`.
        let automaton = if patterns.is_empty() {
            None
        } else {
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(&patterns)
                .ok()
        };
        Self { automaton, markers, longest }
    }

    /// Returns `text` without secrets.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.automaton {
            None if self.longest == 0 => Cow::Borrowed(text),
            None => Cow::Borrowed("[redacted]"),
            Some(automaton) if automaton.is_match(text) => {
                Cow::Owned(automaton.replace_all(text, &self.markers))
            }
            Some(_) => Cow::Borrowed(text),
        }
    }

    /// Takes secrets out of every string and key of `value`, except below a key named in `opaque`.
    pub fn value(&self, value: &mut Value, opaque: &[&str]) {
        if self.longest == 0 {
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
        StreamRedactor { redactor: self.clone(), held: Vec::new() }
    }
}

/// Redacts a stream of bytes, holding back what could be the beginning of a secret.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Redactor,
    held: Vec<u8>,
}

impl StreamRedactor {
    /// Takes a chunk and returns what can be shown now.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(chunk);
        let sure = self.held.len().saturating_sub(self.redactor.longest.saturating_sub(1));
        self.release(sure)
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(mut self) -> Vec<u8> {
        self.release(self.held.len())
    }

    /// Releases everything before `sure`; a match that begins before it is released whole.
    fn release(&mut self, sure: usize) -> Vec<u8> {
        let Some(automaton) = &self.redactor.automaton else {
            return if self.redactor.longest == 0 {
                std::mem::take(&mut self.held)
            } else {
                Vec::new()
            };
        };
        let mut out = Vec::with_capacity(sure);
        let mut done = 0;
        for found in automaton.find_iter(&self.held).take_while(|found| found.start() < sure) {
            out.extend_from_slice(self.held.get(done..found.start()).unwrap_or_default());
            let marker = self.redactor.markers.get(found.pattern().as_usize());
            out.extend_from_slice(marker.map_or(&b"[redacted]"[..], String::as_bytes));
            done = found.end();
        }
        if done < sure {
            out.extend_from_slice(self.held.get(done..sure).unwrap_or_default());
            done = sure;
        }
        self.held.drain(..done);
        out
    }
}

/// Returns the spellings in which `secret` is looked for.
fn spellings(secret: &str) -> Vec<Vec<u8>> {
    let mut all = vec![secret.as_bytes().to_vec()];
    let json = Value::String(secret.to_owned()).to_string();
    all.push(json.trim_matches('"').as_bytes().to_vec());
    for upper in [true, false] {
        all.push(percent(secret, upper, "%20"));
        all.push(percent(secret, upper, "+"));
    }
    for engine in
        [&base64::prelude::BASE64_STANDARD_NO_PAD, &base64::prelude::BASE64_URL_SAFE_NO_PAD]
    {
        for offset in 0..3 {
            let mut bytes = vec![0; offset];
            bytes.extend_from_slice(secret.as_bytes());
            let encoded = engine.encode(&bytes);
            // Of the characters that the bytes before and after the secret have a part in, none is looked for.
            let first = [0, 2, 3].get(offset).copied().unwrap_or(3);
            let last = bytes.len() * 8 / 6;
            if let Some(part) = encoded.get(first..last)
                && part.len() >= SHORTEST_ENCODED
            {
                all.push(part.as_bytes().to_vec());
            }
        }
    }
    all.sort();
    all.dedup();
    all
}

fn percent(secret: &str, upper: bool, space: &str) -> Vec<u8> {
    let mut out = String::new();
    for byte in secret.bytes() {
        match byte {
            b' ' => out.push_str(space),
            b if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') => {
                out.push(char::from(b))
            }
            b if upper => out.push_str(&format!("%{b:02X}")),
            b => out.push_str(&format!("%{b:02x}")),
        }
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn redactor(value: &str) -> Redactor {
        Redactor::new(&[Secret { name: "KEY".into(), value: value.into() }])
    }

    // proves SEC-2
    #[test]
    fn every_spelling_is_replaced() {
        let secret = "s3cr3t/va\"lue +1";
        let redactor = redactor(secret);
        for text in [
            secret.to_owned(),
            serde_json::json!(secret).to_string(),
            "s3cr3t%2Fva%22lue%20%2B1".to_owned(),
            "s3cr3t%2fva%22lue+%2b1".to_owned(),
            base64::prelude::BASE64_STANDARD.encode(format!("user:{secret}@x")),
            base64::prelude::BASE64_STANDARD.encode(secret),
            base64::prelude::BASE64_URL_SAFE.encode(format!("ab{secret}")),
        ] {
            let clean = redactor.text(&text);
            assert!(clean.contains("[redacted:KEY]"), "{text} -> {clean}");
            assert!(!clean.contains("s3cr3t"), "{clean}");
        }
    }

    #[test]
    fn keys_and_values_are_redacted_and_opaque_data_is_not() {
        let redactor = redactor("topsecret");
        let mut value = serde_json::json!({"topsecret": ["x topsecret"], "provider_data": {"sig": "topsecret"}});
        redactor.value(&mut value, &["provider_data"]);
        assert_eq!(
            value,
            serde_json::json!({"[redacted:KEY]": ["x [redacted:KEY]"], "provider_data": {"sig": "topsecret"}})
        );
    }

    #[test]
    fn short_secrets_and_none_change_nothing() {
        assert_eq!(redactor("short").text("a short text"), "a short text");
        assert_eq!(Redactor::default().text("x"), "x");
    }

    proptest! {
        #[test]
        fn a_stream_is_redacted_like_the_whole(before in "[a-z]{0,20}", after in "[a-z]{0,20}", cuts in prop::collection::vec(1usize..7, 0..40)) {
            let redactor = redactor("hunter2hunter2");
            let text = format!("{before}hunter2hunter2{after}hunter2hunter2");
            let mut stream = redactor.stream();
            let mut out = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts {
                let (chunk, tail) = rest.split_at(cut.min(rest.len()));
                out.extend(stream.push(chunk));
                rest = tail;
            }
            out.extend(stream.push(rest));
            out.extend(stream.finish());
            prop_assert_eq!(String::from_utf8(out).unwrap(), redactor.text(&text).into_owned());
        }
    }
}
