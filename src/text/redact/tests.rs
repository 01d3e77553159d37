//! Tests of redaction: every spelling, whole and in streams.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
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
        BASE64_STANDARD.encode(format!("user:{secret}@x")),
        BASE64_STANDARD.encode(secret),
        BASE64_URL_SAFE.encode(format!("ab{secret}")),
    ] {
        let clean = redactor.text(&text);
        assert!(clean.contains("[redacted:KEY]"), "{text} -> {clean}");
        assert!(!clean.contains("s3cr3t"), "{clean}");
    }
}

#[test]
fn keys_and_values_are_redacted_and_opaque_data_is_not() {
    let redactor = redactor("topsecret");
    let mut value =
        serde_json::json!({"topsecret": ["x topsecret"], "provider_data": {"sig": "topsecret"}});
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

const MARK: &str = "[redacted:KEY]";

const PASSWORD: &str = "s3cr3t/va\"lue +1 \u{e9}\u{1f600}";

const PEM: &str = "-----BEGIN PRIVATE KEY-----\n\
    MIICdgIBADANBgkqhkiG9w0BAQEFAASCAmAwggJcAgEAAoGBAKjZ0hYQm2mJx3Tq\n\
    9aVtYw1nRfLkC+7uXo/EiPbDzSgHvKyMNsQ4eJp0cT5lWrA8hB6xZdU2OqGmFjI3\n\
    kVQ9Lw==\n\
    -----END PRIVATE KEY-----\n";

/// Breaks `text` after every `columns` characters.
fn wrapped(text: &str, columns: usize, line_end: &str) -> String {
    let lines: Vec<String> =
        text.as_bytes().chunks(columns).map(|line| String::from_utf8_lossy(line).into()).collect();
    lines.join(line_end)
}

/// Returns every UTF-16 unit of `text` as `\uXXXX`.
fn all_unicode_escapes(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn all_percent(text: &str, upper: bool) -> String {
    let byte = |byte| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
    text.bytes().map(byte).collect()
}

/// Checks that one marker replaces `spelling`, and that the text around it stays.
fn check_replaced(secret: &str, spelling: &str) {
    let clean = redactor(secret).text(&format!("key: <{spelling}>\nend")).into_owned();
    assert_eq!(clean, format!("key: <{MARK}>\nend"), "{spelling}");
}

// proves SEC-2
#[test]
fn encoded_spellings_are_replaced_whole() {
    for secret in [PASSWORD, PEM.trim()] {
        let json = serde_json::json!(secret).to_string();
        let form = all_percent(secret, true).replace("%20", "+");
        for spelling in [
            hex::encode(secret),
            hex::encode_upper(secret),
            wrapped(&hex::encode(secret), 60, "\n"),
            all_unicode_escapes(secret),
            all_unicode_escapes(secret).to_uppercase().replace("\\U", "\\u"),
            json.trim_matches('"').replace('/', "\\/"),
            all_percent(secret, true),
            all_percent(secret, false),
            form.to_lowercase(),
            form,
            secret.replace(' ', "+"),
            secret.replace('\n', "\r\n"),
            secret.replace('\n', "\n    "),
            // Encoded twice.
            all_percent(json.trim_matches('"'), true),
            json.trim_matches('"').replace('\\', "\\\\").replace('"', "\\\""),
        ] {
            check_replaced(secret, &spelling);
        }
    }
}

// proves SEC-2
#[test]
fn wrapped_base64_is_replaced() {
    for secret in [PASSWORD, PEM] {
        let redactor = redactor(secret);
        for columns in [19, 64, 76] {
            for line_end in ["\n", "\r\n", "\n    ", "\\n", "\\r\\n", "%0A", "%0d%0a"] {
                for before in ["", "a", "ab"] {
                    let encoded = BASE64_STANDARD.encode(format!("{before}{secret}"));
                    let text = wrapped(&encoded, columns, line_end);
                    let clean = redactor.text(&text).into_owned();
                    let rest = clean.replacen(MARK, "", 1);
                    assert!(clean.contains(MARK) && rest.len() <= 12, "{text} -> {clean}");
                }
            }
        }
    }
}

// proves SEC-2
#[test]
fn long_lines_of_a_secret_are_replaced_alone() {
    let redactor = redactor(PEM);
    let lines: Vec<&str> = PEM.lines().collect();
    assert_eq!(redactor.text(&format!("1: {}\n", lines[1])), format!("1: {MARK}\n"));
    assert_eq!(redactor.text(&all_unicode_escapes(lines[2])), MARK);
    assert_eq!(redactor.text(&all_percent(lines[2], false)), MARK);
    // The BEGIN line is public, and a short line would blank out innocent text.
    assert!(matches!(redactor.text(lines[0]), Cow::Borrowed(_)));
    assert!(matches!(redactor.text(lines[3]), Cow::Borrowed(_)));
}

#[test]
fn a_key_that_is_stored_with_escaped_line_ends_is_replaced_with_real_ones() {
    let stored = redactor(&PEM.trim().replace('\n', "\\n"));
    let clean = stored.text(PEM).into_owned();
    assert_eq!(clean.matches(MARK).count(), 2, "{clean}");
    assert!(!clean.contains("MIIC") && !clean.contains("9aVt"), "{clean}");
}

#[test]
fn overlapping_secrets_are_removed_whole() {
    let secret = |name: &str, value: &str| Secret { name: name.into(), value: value.into() };
    let redactor = Redactor::new(&[
        secret("A", "first-and-"),
        secret("B", "and-second"),
        secret("C", "ccccccc"),
    ]);
    assert_eq!(redactor.text("<first-and-second>"), "<[redacted:A]>");
    assert_eq!(redactor.text("first-and-and-second"), "[redacted:A][redacted:B]");
    assert_eq!(redactor.text(&"c".repeat(100)), "[redacted:C]");
}

#[test]
fn blanks_around_a_secret_do_not_count() {
    assert_eq!(redactor(" hunter2\n").text("x hunter2."), format!("x {MARK}."));
    assert_eq!(redactor("  abc  \n").text("  abc  \n"), "  abc  \n");
}

#[test]
fn a_stream_holds_back_only_the_beginning_of_a_secret() {
    let mut stream = redactor(PEM).stream();
    assert_eq!(stream.push(b"a text, 100 \\o/ "), b"a text, 100 \\o/ ");
    assert_eq!(stream.push(b"x-----BEGIN PRI"), b"x");
    assert_eq!(stream.push(b"ME x\n%4"), b"-----BEGIN PRIME x\n");
    assert_eq!(stream.finish(), b"%4");
}

#[test]
fn a_stream_holds_little_of_an_endless_match() {
    let mut stream = redactor("cccccc").stream();
    let out: Vec<u8> = (0..10_000).flat_map(|_| stream.push(b"c\n")).collect();
    assert_eq!(out, MARK.as_bytes());
    assert!(stream.held.len() < 100);
    assert_eq!(stream.finish(), b"\n");
}

#[test]
fn a_stream_does_not_split_an_escape() {
    for (secret, text, cut) in [
        ("u0041bcd", r"\u0041\u0062cd", 6),
        ("n  abcde", r"\n  abc\u0064e", 7),
        ("41abcdef", r"%41abc%64ef", 6),
    ] {
        let redactor = redactor(secret);
        assert_eq!(redactor.text(text), text);
        assert_eq!(String::from_utf8_lossy(&streamed(&redactor, text.as_bytes(), &[cut])), text);
    }
}

#[test]
fn nothing_is_shown_if_no_automaton_can_be_built() {
    let redactor = Redactor { search: Search::Impossible };
    assert_eq!(redactor.text("x"), "[redacted]");
    let mut stream = redactor.stream();
    assert_eq!(stream.push(b"x"), b"");
    assert_eq!(stream.finish(), b"");
}

/// Returns the redacted stream of `text`, pushed in chunks of the given lengths.
fn streamed(redactor: &Redactor, text: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut stream = redactor.stream();
    let mut out = Vec::new();
    let mut rest = text;
    for cut in cuts {
        let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
        out.extend(stream.push(chunk));
        rest = tail;
    }
    out.extend(stream.push(rest));
    out.extend(stream.finish());
    out
}

/// Generates secrets in which blanks, parts of escapes and line ends are frequent.
fn secret_text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        6 => any::<char>(),
        6 => proptest::char::range('a', 'f'),
        4 => prop::sample::select(vec!['\\', '%', '+', '"', '/', ' ', '\n', '\r', '\t', 'n', 'u', '0', '4', '1']),
    ];
    prop::collection::vec(character, 6..40)
        .prop_map(|all| all.into_iter().collect::<String>().trim().to_owned())
        .prop_filter("long enough", |text| text.len() >= SHORTEST_SECRET)
}

/// Secrets that share beginnings, that look like escapes, or that end as they begin.
fn hostile_secrets() -> Vec<Secret> {
    [
        "aaaaaa",
        "aab\\nab",
        "u0041bcd",
        "n  abcde",
        "ab%41%cd",
        "d41bcdef",
        "abcdefab\n  cdabcdef",
        "-----BEGIN A\nabcdefabcdef\nb",
    ]
    .into_iter()
    .enumerate()
    .map(|(at, value)| Secret { name: format!("N{at}"), value: value.into() })
    .collect()
}

static HOSTILE: LazyLock<Redactor> = LazyLock::new(|| Redactor::new(&hostile_secrets()));

/// Generates text from escapes, line ends and pieces of the spellings of hostile secrets.
fn hostile_text() -> impl Strategy<Value = String> {
    let mut pieces: Vec<String> = [
        "\\",
        "\\\\",
        "%",
        "%4",
        "\\u",
        "\\u00",
        "\\ud83d",
        "\\n",
        "\n",
        "\r\n",
        "\n  ",
        " ",
        "  ",
        "+",
        "4",
        "1",
        "a",
        "b",
        "n",
        "u",
        "\u{e9}",
        "%0a",
        "\n\n\n\n\n\n\n\n",
        "-----BEGIN ",
    ]
    .map(str::to_owned)
    .into();
    for secret in hostile_secrets() {
        let value = &secret.value;
        let encoded = BASE64_STANDARD.encode(format!("x{value}"));
        for spelling in [
            value.clone(),
            all_unicode_escapes(value),
            all_percent(value, false),
            serde_json::json!(value).to_string(),
            hex::encode(value),
            wrapped(&encoded, 7, "\n "),
            wrapped(&encoded, 7, "\\n"),
        ] {
            let half = spelling.chars().count() / 2;
            pieces.push(spelling.chars().take(half).collect());
            pieces.push(spelling.chars().skip(half).collect());
            pieces.push(spelling);
        }
    }
    prop::collection::vec(prop::sample::select(pieces), 0..12).prop_map(|all| all.concat())
}

proptest! {
    #[test]
    fn every_json_spelling_is_replaced(secret in secret_text(), choices in prop::collection::vec(0..4u8, 40)) {
        let mut spelling = String::new();
        for (character, choice) in secret.chars().zip(choices) {
            let plain = serde_json::json!(character.to_string()).to_string();
            let plain = plain.strip_prefix('"').and_then(|plain| plain.strip_suffix('"')).unwrap();
            match (choice, character) {
                (0, _) => spelling.push_str(&all_unicode_escapes(&character.to_string())),
                (1, '/') => spelling.push_str("\\/"),
                _ => spelling.push_str(plain),
            }
        }
        let clean = redactor(&secret).text(&format!("<{spelling}>")).into_owned();
        prop_assert_eq!(clean, format!("<{}>", MARK));
    }

    #[test]
    fn every_percent_spelling_is_replaced(secret in secret_text(), choices in prop::collection::vec(0..3u8, 160), form in any::<bool>()) {
        let mut spelling = String::new();
        for (byte, choice) in secret.bytes().zip(choices) {
            match (choice, byte) {
                (_, b' ') if form => spelling.push('+'),
                (0, byte) if byte.is_ascii_alphanumeric() => spelling.push(char::from(byte)),
                (1, byte) => spelling.push_str(&format!("%{byte:02X}")),
                (_, byte) => spelling.push_str(&format!("%{byte:02x}")),
            }
        }
        let clean = redactor(&secret).text(&format!("<{spelling}>")).into_owned();
        prop_assert_eq!(clean, format!("<{}>", MARK));
    }

    #[test]
    fn base64_and_hex_are_replaced_at_any_width(secret in secret_text(), before in "[a-z]{0,3}", after in "[a-z]{0,3}", columns in 1usize..90, end in "\r?\n[ \t]{0,8}") {
        let redactor = redactor(&secret);
        let bytes = format!("{before}{secret}{after}");
        for encoded in [BASE64_STANDARD.encode(&bytes), BASE64_URL_SAFE.encode(&bytes), hex::encode(&bytes), hex::encode_upper(&bytes)] {
            let text = wrapped(&encoded, columns, &end);
            let clean = redactor.text(&text).into_owned();
            // In base64, a secret of 6 bytes can have only 7 characters of its own, which is too
            // short for a spelling.
            prop_assert!(clean.contains(MARK) || secret.len() < 7, "{} -> {}", text, clean);
        }
    }

    #[test]
    fn a_text_without_a_spelling_is_kept(text in any::<String>()) {
        prop_assert_eq!(redactor("hunter2hunter2").text(&text), text.as_str());
    }

    #[test]
    fn a_stream_is_redacted_like_the_whole_in_every_spelling(text in hostile_text(), cuts in prop::collection::vec(1usize..9, 0..60)) {
        let redactor = &*HOSTILE;
        let whole = redactor.text(&text).into_owned();
        let out = streamed(redactor, text.as_bytes(), &cuts);
        prop_assert_eq!(String::from_utf8(out).unwrap(), whole.clone());
        prop_assert_eq!(redactor.text(&whole), whole.clone(), "clean text stays unchanged");
    }

    #[test]
    fn bytes_that_are_not_utf_8_pass_a_stream(text in prop::collection::vec(any::<u8>(), 0..60), cuts in prop::collection::vec(1usize..9, 0..10)) {
        prop_assert_eq!(streamed(&redactor("hunter2hunter2"), &text, &cuts), text);
    }
}
