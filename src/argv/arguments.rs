//! Parses the arguments of a call from the text that a provider sent.
//!
//! We parse only once and reject duplicate keys, because two parsers could disagree on which of the
//! values counts (ARG-15).

use serde_json::{Map, Value};

use crate::text::json::check_values;
use crate::text::strict_json::Strict;

/// Limit on the arguments of one call, in bytes, inclusive.
const ARGUMENT_BYTES: usize = 8 << 20;

/// Limit on the number of JSON values in the arguments of one call, inclusive.
const ARGUMENT_VALUES: usize = 100_000;

/// Parses the arguments in `text`. Empty text and `null` mean no arguments: some providers send
/// them for tools without parameters.
///
/// *Errors*: `text` is not a JSON object, is too large, has too many values or has a duplicate key.
/// The message is for the model.
pub fn parse_arguments(text: &str) -> Result<Map<String, Value>, String> {
    if matches!(text.trim(), "" | "null") {
        return Ok(Map::new());
    }
    if text.len() > ARGUMENT_BYTES {
        return Err(format!("the arguments have more than {ARGUMENT_BYTES} bytes"));
    }
    check_values(text.as_bytes(), ARGUMENT_VALUES)
        .map_err(|_| format!("the arguments have more than {ARGUMENT_VALUES} values"))?;
    match serde_json::from_str::<Strict>(text) {
        Ok(Strict(Value::Object(map))) => Ok(map),
        Ok(Strict(_)) => Err("the arguments must be a JSON object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_parsed_and_nothing_else() {
        let check = |text: &str, expected: Option<Value>| {
            assert_eq!(parse_arguments(text).ok().map(Value::Object), expected, "{text}");
        };
        check(
            r#"{"a": 1, "b": [true, null, "x", 1.5, -2]}"#,
            Some(json!({"a": 1, "b": [true, null, "x", 1.5, -2]})),
        );
        check("", Some(json!({})));
        check("null", Some(json!({})));
        check("[]", None);
        check("\"x\"", None);
        check(r#"{"summary": "#, None);
        check(r#"{} {}"#, None);
        check(&format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), None);
    }

    #[test]
    fn arguments_that_would_take_much_memory_are_refused_unparsed() {
        let error = parse_arguments(&format!(r#"{{"a": [{}{{}}]}}"#, "{},".repeat(100_000)));
        assert!(error.unwrap_err().contains("values"));
        let error = parse_arguments(&format!(r#"{{"a": "{}"}}"#, "x".repeat(8 << 20)));
        assert!(error.unwrap_err().contains("bytes"));
        assert!(parse_arguments(&format!(r#"{{"a": "{}"}}"#, ",".repeat(7 << 20))).is_ok());
    }

    // proves ARG-15
    #[test]
    fn a_key_that_stands_twice_is_refused() {
        let error = parse_arguments(r#"{"file": "a", "file": "b"}"#).unwrap_err();
        assert!(error.contains("duplicate key"), "{error}");
        assert!(parse_arguments(r#"{"x": [{"a": 1, "a": 2}]}"#).is_err());
    }
}
