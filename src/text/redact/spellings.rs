//! The spellings of a secret for which the scanner searches.
//!
//! The scanner searches every view for all of them. A spelling within another encoding (base64 in a
//! JSON string, JSON in a query) therefore needs no entry of its own.
//!
//! Invariant: no spelling begins with a blank or contains a line end, because views leave out line
//! ends and the blanks after them.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use serde_json::Value;

use super::SHORTEST_SECRET;
use super::view::joined;

/// Minimum length in bytes of a base64 part that is a spelling.
const SHORTEST_ENCODED: usize = 8;

/// Minimum length in bytes of a line of a secret that is a spelling on its own, not counting the
/// blanks around it. Shorter lines would blank out innocent text.
const SHORTEST_LINE: usize = 12;

/// Returns the spellings of a secret, sorted; none if it is shorter than [`SHORTEST_SECRET`].
pub(super) fn spellings(secret: &str) -> Vec<Vec<u8>> {
    let secret = secret.trim();
    let mut all = Vec::new();
    if secret.len() >= SHORTEST_SECRET {
        all.push(joined(secret));
        all.push(joined(&secret.replace(' ', "+")));
        all.extend(lines(secret));
        all.extend(json(secret));
        for upper in [true, false] {
            all.push(percent(secret, upper, "%20"));
            all.push(percent(secret, upper, "+"));
        }
        all.push(hex::encode(secret).into_bytes());
        all.push(hex::encode_upper(secret).into_bytes());
        all.extend(base64_parts(secret));
    }
    all.sort();
    all.dedup();
    all
}

/// Returns the long lines of a secret. A spelled-out `\n` ends a line as well: environment files
/// and JSON documents store keys this way, and tools print them with real line ends.
///
/// We leave out the BEGIN and END lines of a PEM key: they are public, and certificates have such
/// lines, too.
fn lines(secret: &str) -> Vec<Vec<u8>> {
    let unescaped = secret.replace("\\r", "\n").replace("\\n", "\n");
    secret
        .split(['\n', '\r'])
        .chain(unescaped.split(['\n', '\r']))
        .map(str::trim)
        .filter(|line| line.len() >= SHORTEST_LINE)
        .filter(|line| !line.starts_with("-----BEGIN ") && !line.starts_with("-----END "))
        .map(|line| line.as_bytes().to_vec())
        .collect()
}

fn json(secret: &str) -> Option<Vec<u8>> {
    let quoted = Value::String(secret.to_owned()).to_string();
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    Some(inner.as_bytes().to_vec())
}

/// Returns the parts of base64 text that depend only on the secret, whatever text surrounds it: one
/// for each alignment and alphabet.
fn base64_parts(secret: &str) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for engine in [&BASE64_STANDARD_NO_PAD, &BASE64_URL_SAFE_NO_PAD] {
        for (offset, first) in [0, 2, 3].into_iter().enumerate() {
            let mut bytes = vec![0; offset];
            bytes.extend_from_slice(secret.as_bytes());
            let encoded = engine.encode(&bytes);
            // The characters that we leave out also depend on the bytes around the secret.
            let last = bytes.len() * 8 / 6;
            if let Some(part) = encoded.get(first..last)
                && part.len() >= SHORTEST_ENCODED
            {
                all.push(part.as_bytes().to_vec());
            }
        }
    }
    all
}

fn percent(secret: &str, upper: bool, space: &str) -> Vec<u8> {
    let mut out = String::new();
    for byte in secret.bytes() {
        match byte {
            b' ' => out.push_str(space),
            b if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') => {
                out.push(char::from(b));
            }
            b if upper => out.push_str(&format!("%{b:02X}")),
            b => out.push_str(&format!("%{b:02x}")),
        }
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_its_spellings() {
        let all = spellings(" a \"b\n  c/d\n");
        for expected in [
            &b"a \"bc/d"[..],
            b"a+\"b++c/d",
            br#"a \"b\n  c/d"#,
            b"a%20%22b%0A%20%20c%2Fd",
            b"a+%22b%0a++c%2fd",
            b"612022620a2020632f64",
            b"612022620A2020632F64",
            b"YSAiYgogIGMv",
        ] {
            assert!(all.iter().any(|one| one.starts_with(expected)), "{expected:?}");
        }
        assert!(all.iter().all(|one| !one.starts_with(b" ") && !one.contains(&b'\n')));
        assert_eq!(spellings(" short\n"), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn long_lines_of_a_secret_are_spellings() {
        let key = "-----BEGIN KEY-----\r\n  first long line\r\nshort\nnext\\nlong\\nand the third\n-----END KEY-----";
        let all = lines(key);
        let expected =
            ["first long line", "next\\nlong\\nand the third", "first long line", "and the third"];
        assert_eq!(all, expected.map(|line| line.as_bytes().to_vec()));
    }
}
