//! Deceptive characters: controls, line separators, bidirectional overrides, invisible tags.
//!
//! All code shares this one list. Arguments with these characters are rejected, transcripts write
//! them as `\u`, and terminals show them escaped. A character that is missing here is missing
//! everywhere.

use std::fmt::Write as _;

/// Tells whether `c` is a C0 or C1 control, DEL, a line or paragraph separator, a bidirectional
/// control, a tag or another invisible character.
pub(crate) fn is_deceptive(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Tells whether `c` is deceptive but not a control character: a person does not see it on a
/// terminal.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00AD}' | '\u{034F}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180B}'..='\u{180F}' | '\u{3164}' | '\u{FFA0}'
        | '\u{FE00}'..='\u{FE0E}' | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0100}'..='\u{E01EF}'
        | '\u{061C}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}'
        | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

/// Returns serialized JSON with every deceptive character of its strings written as `\u`.
///
/// JSON outside of strings contains no deceptive characters, so this function escapes the whole
/// text.
pub(crate) fn json_line(json: String) -> String {
    json_with(json, |_| false)
}

/// Escapes pretty-printed JSON like [`json_line`], but keeps line ends. They are outside of
/// strings, because the serializer has escaped those within strings.
pub(crate) fn json_pretty(json: String) -> String {
    json_with(json, |c| c == '\n')
}

fn json_with(json: String, keep: impl Fn(char) -> bool) -> String {
    let is_escaped = |c: char| is_deceptive(c) && !keep(c);
    if !json.chars().any(is_escaped) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 32);
    for c in json.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns `text` as a double-quoted scalar of YAML on one line, without deceptive characters.
pub(crate) fn yaml_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    out.push('"');
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if !is_deceptive(c) => out.push(c),
            _ if code <= 0xFFFF => {
                let _ = write!(out, "\\u{code:04x}");
            }
            _ => {
                let _ = write!(out, "\\U{code:08x}");
            }
        }
    }
    out.push('"');
    out
}

/// Escapes `text` for people. Keeps newlines and tabs, and shows every other deceptive character as
/// `\r` or `\u{…}`.
pub(crate) fn for_terminal(text: &str) -> String {
    escape_with(text, |c| matches!(c, '\n' | '\t'))
}

/// Escapes `text` for a model, like [`for_terminal`], but turns CRLF into plain newlines.
pub(crate) fn for_model(text: &str) -> String {
    for_terminal(&text.replace("\r\n", "\n"))
}

/// Escapes `text` for people, including newlines and tabs, so that it stays on one line.
pub(crate) fn one_line(text: &str) -> String {
    escape_with(text, |_| false)
}

fn escape_with(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if keep(c) || !is_deceptive(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // proves LOG-4
    #[test]
    fn pretty_json_hides_nothing_and_reads_back_the_same() {
        let value = serde_json::json!({"a": "\u{7f}\u{9b}\u{202e}\n"});
        let text = json_pretty(serde_json::to_string_pretty(&value).unwrap());
        assert!(text.is_ascii() && text.contains("{\n  "), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    // proves LOG-1
    #[test]
    fn a_line_shows_every_deceptive_character_and_reads_back_the_same() {
        let nasty = "a\u{7f}b\u{9b}31m\u{2028}\u{202e}\u{e0041}\u{200b}\n\u{1b}[2J";
        let line = json_line(serde_json::json!({ "output": nasty }).to_string());
        assert!(line.is_ascii(), "{line}");
        assert!(!line.contains('\n'));
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(back["output"], nasty);
    }

    // proves LOG-4
    #[test]
    fn a_terminal_gets_no_control() {
        assert_eq!(
            for_terminal("ok\n\u{1b}[2J\u{9b}0m\u{202e}x"),
            "ok\n\\u{1b}[2J\\u{9b}0m\\u{202e}x"
        );
        assert_eq!(one_line("a\nb\tc"), "a\\nb\\tc");
    }

    proptest! {
        #[test]
        fn any_string_survives_a_line(text in ".*") {
            let line = json_line(serde_json::json!(text).to_string());
            prop_assert!(!line.chars().any(is_deceptive));
            prop_assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        }
    }
}
