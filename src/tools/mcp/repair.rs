//! Repairs the JSON text of an MCP server, so that one bad character does not hide a message.
//!
//! Text that is valid JSON keeps its meaning. Nothing here makes sense of text that is not JSON at
//! all: the parser still rejects it, and [`top_keys`] then reads what is readable.

use std::fmt::Write as _;
use std::str::Chars;

use serde::de::IgnoredAny;

/// Maximum levels of lists and objects. The parser's own limit is 128. A deeper value becomes
/// `null`, so that the rest of the message is usable.
const MAX_LEVELS: usize = 120;

/// Words that other languages write for numbers that JSON does not have.
const NO_NUMBERS: [&str; 6] = ["NaN", "nan", "Infinity", "infinity", "Inf", "inf"];

/// Maximum keys that [`top_keys`] returns.
const MAX_KEYS: usize = 64;

/// Maximum brackets at which [`message_in`] looks for a message.
const MAX_STARTS: usize = 16;

/// Returns the text with what JSON does not allow replaced: bytes that are not UTF-8 and lone
/// surrogates by U+FFFD, numbers such as NaN and values that are nested too deeply by `null`,
/// control characters within strings by their escapes, and the backslash of an unknown escape by
/// an escaped backslash. A byte order mark is removed.
pub(super) fn repair(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.trim_start_matches('\u{feff}').chars();
    let mut out = String::with_capacity(text.len());
    let mut depth = 0_usize;
    // The length of `out` after the `null` that replaces the value that is skipped.
    let mut cut = None;
    while let Some(c) = chars.next() {
        match c {
            '"' => string(&mut chars, &mut out),
            '[' | '{' => {
                depth += 1;
                if depth == MAX_LEVELS + 1 {
                    out.push_str("null");
                    cut = Some(out.len());
                }
                out.push(c);
            }
            ']' | '}' => {
                out.push(c);
                if let Some(length) = cut.filter(|_| depth == MAX_LEVELS + 1) {
                    out.truncate(length);
                    cut = None;
                }
                depth = depth.saturating_sub(1);
            }
            '-' | 'a'..='z' | 'A'..='Z' => word(c, &mut chars, &mut out),
            _ => out.push(c),
        }
    }
    out
}

/// Copies a word or number that begins with `first`.
fn word(first: char, chars: &mut Chars<'_>, out: &mut String) {
    let start = out.len();
    out.push(first);
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    while let Some(c) = chars.clone().next().filter(|c| is_part(*c)) {
        out.push(c);
        chars.next();
    }
    let written = out.get(start..).unwrap_or_default();
    if NO_NUMBERS.contains(&written.trim_start_matches('-')) {
        out.truncate(start);
        out.push_str("null");
    }
}

/// Copies the rest of a string, whose opening quote was read.
fn string(chars: &mut Chars<'_>, out: &mut String) {
    out.push('"');
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                out.push('"');
                return;
            }
            '\\' => escape(chars, out),
            c => character(c, out),
        }
    }
}

fn character(c: char, out: &mut String) {
    if c < ' ' {
        let _ = write!(out, "\\u{:04x}", u32::from(c));
    } else {
        out.push(c);
    }
}

/// Copies the rest of an escape, whose backslash was read.
fn escape(chars: &mut Chars<'_>, out: &mut String) {
    match chars.next() {
        Some('u') => unit(chars, out),
        Some(c @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't')) => {
            out.push('\\');
            out.push(c);
        }
        Some(c) => {
            out.push_str("\\\\");
            character(c, out);
        }
        None => out.push_str("\\\\"),
    }
}

/// Copies one character that is written as `\u` escapes of its UTF-16 units.
fn unit(chars: &mut Chars<'_>, out: &mut String) {
    let Some(first) = take_unit(chars) else {
        out.push_str("\\\\u");
        return;
    };
    if !(0xD800..0xE000).contains(&first) {
        let _ = write!(out, "\\u{first:04x}");
        return;
    }
    let mut ahead = chars.clone();
    let is_escape = ahead.next() == Some('\\') && ahead.next() == Some('u');
    let second = if is_escape { take_unit(&mut ahead) } else { None };
    match second {
        Some(second) if first < 0xDC00 && (0xDC00..0xE000).contains(&second) => {
            let _ = write!(out, "\\u{first:04x}\\u{second:04x}");
            *chars = ahead;
        }
        _ => out.push('\u{FFFD}'),
    }
}

/// Reads four hexadecimal digits; reads nothing if there are fewer.
fn take_unit(chars: &mut Chars<'_>) -> Option<u16> {
    let digits = chars.as_str().get(..4)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let unit = u16::from_str_radix(digits, 16).ok()?;
    chars.nth(3);
    Some(unit)
}

/// Returns a text from the beginning of its first message on: some servers write a time, a level or
/// a colour before it. `is_message` tells whether a text begins with a message, however broken.
pub(super) fn message_in(text: &str, is_message: impl Fn(&[u8]) -> bool) -> &str {
    let begins_with_json = |rest: &&str| {
        let object = rest.trim_start_matches(['[', ' ', '\t', '\r', '\n']);
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        is_message(object.as_bytes()) || values.next().is_some_and(|value| value.is_ok())
    };
    let starts = move || text.match_indices(['{', '[']).filter_map(move |(at, _)| text.get(at..));
    let found = starts().take(MAX_STARTS).find(begins_with_json);
    found.or_else(|| starts().next()).unwrap_or_default()
}

/// Returns the keys of the first object in a text that may be cut or broken, each with the text
/// after its colon. Keys of inner objects are not among them.
pub(super) fn top_keys(text: &str) -> Vec<(&str, &str)> {
    let (mut depth, mut in_string, mut after_backslash) = (0_usize, false, false);
    let (mut start, mut last) = (0, None);
    let mut found = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            match byte {
                _ if after_backslash => after_backslash = false,
                b'\\' => after_backslash = true,
                b'"' => {
                    in_string = false;
                    last = text.get(start..at).filter(|_| depth == 1);
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => {
                in_string = true;
                start = at + 1;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => break,
            b'}' | b']' => depth -= 1,
            b':' if depth == 1 => {
                found.extend(last.take().zip(text.get(at + 1..)));
                if found.len() == MAX_KEYS {
                    break;
                }
            }
            b',' => last = None,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(text: &[u8]) -> Value {
        let repaired = repair(text);
        serde_json::from_str(&repaired).unwrap_or_else(|error| panic!("{error}: {repaired}"))
    }

    // proves MCP-6
    #[test]
    fn text_that_is_not_quite_json_is_repaired() {
        let check = |text: &[u8], expected: Value| assert_eq!(read(text), expected);
        check(br#""price \ud83d end""#, json!("price \u{fffd} end"));
        check(br#""\udE00\ud83d\n \ud83d\u0041""#, json!("\u{fffd}\u{fffd}\n \u{fffd}A"));
        check(br#""\ud83d\ude00 \u00e9""#, json!("\u{1f600} \u{e9}"));
        check(
            b"{\"a\": NaN, \"b\": [-Infinity, nan], \"NaN\": \"NaN\"}",
            json!({"a": null, "b": [null, null], "NaN": "NaN"}),
        );
        check(b"[\"a\xff\xe2\x82b\"]", json!(["a\u{fffd}\u{fffd}b"]));
        check(
            b"\xef\xbb\xbf{\"a\": -1.5e+3, \"b\": [true, false, null]}",
            json!({"a": -1500.0, "b": [true, false, null]}),
        );
        check(b"\"a\tb\x1b\\x1b \\' \\u12 \"", json!("a\tb\u{1b}\\x1b \\' \\u12 "));
    }

    #[test]
    fn deep_values_become_null_and_everything_else_passes() {
        let deep = |levels: usize| format!("{}1, 2{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(repair(deep(120).as_bytes()), deep(120));
        let cut = format!("{}null, 3{}", "[".repeat(120), "]".repeat(120));
        let long = format!("{}{}, 3{}", "[".repeat(120), deep(9000), "]".repeat(120));
        assert_eq!(repair(long.as_bytes()), cut);
    }

    #[test]
    fn the_keys_of_a_cut_message_are_read() {
        let keys = |text| top_keys(text).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(
            keys(r#"{"jsonrpc":"2.0","id":3,"result":{"id":9,"x":["a\"b"#),
            ["jsonrpc", "id", "result"]
        );
        assert_eq!(keys(r#"{"a": "b", "c": "d:e"} {"f": 1}"#), ["a", "c"]);
        assert_eq!(keys("[INFO] \"a\": 1"), Vec::<&str>::new());
    }

    proptest::proptest! {
        #[test]
        fn valid_json_keeps_its_meaning(text in proptest::prelude::any::<String>(), number in proptest::prelude::any::<i64>()) {
            let value = json!({"a": [text, number, true, null], "b": {"c": -0.5}});
            proptest::prop_assert_eq!(read(value.to_string().as_bytes()), value);
        }
    }
}
