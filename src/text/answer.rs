//! Finds the JSON value of an answer: a model often writes a code fence or prose around it.
//!
//! An object in which a key occurs twice is refused, because readers would disagree about its
//! meaning.

use serde_json::{Map, Value};

use super::json::check_values;
use super::strict_json::Strict;

/// Limit of the text of an answer with a JSON value, inclusive.
const MOST_BYTES: usize = 1 << 20;

/// Limit of the JSON values in an answer, inclusive.
const MOST_VALUES: usize = 100_000;

/// Why a text has no usable JSON value. The text is a fragment for the model and the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoValue {
    #[error("the answer has no JSON value")]
    Missing,
    #[error("the answer has more than one JSON value")]
    Several,
    #[error("the answer has {0} bytes; at most {MOST_BYTES} are read")]
    TooLong(usize),
    #[error("{0}")]
    TooManyValues(String),
    /// The parser's message.
    #[error("the answer is not valid JSON: {0}")]
    Invalid(String),
}

/// Returns the one JSON value of an answer. Removes a code fence and prose around it.
///
/// *Errors*: [`NoValue`].
pub(crate) fn json_value(text: &str) -> Result<Value, NoValue> {
    let text = text.trim();
    check_size(text)?;
    let whole = strip_fence(text);
    let problem = match parse(whole) {
        Ok(value) => return Ok(value),
        Err(problem) => problem,
    };
    if is_meant_as_value(whole) {
        return Err(NoValue::Invalid(problem));
    }
    let mut fenced = fences(text).filter(|inner| inner.starts_with(['{', '[']));
    match (fenced.next(), fenced.next()) {
        // A value beside the fence may be the answer, and the fence a quotation.
        (Some(inner), None) => match value_in_prose(&outside_fences(text)) {
            Err(NoValue::Missing) => parse(inner).map_err(NoValue::Invalid),
            _ => Err(NoValue::Several),
        },
        (Some(_), Some(_)) => Err(NoValue::Several),
        (None, _) => value_in_prose(text),
    }
}

/// Returns a JSON object that is the whole text, without a code fence around it; `None` for any other
/// text.
pub(crate) fn whole_object(text: &str) -> Option<Map<String, Value>> {
    let text = text.trim();
    check_size(text).ok()?;
    match parse(strip_fence(text)) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

fn check_size(text: &str) -> Result<(), NoValue> {
    if text.len() > MOST_BYTES {
        return Err(NoValue::TooLong(text.len()));
    }
    check_values(text.as_bytes(), MOST_VALUES).map_err(NoValue::TooManyValues)
}

/// Tells whether a text that does not parse is meant as one JSON value: its last character closes
/// what its first one opens, and it does not begin with a smaller value.
fn is_meant_as_value(text: &str) -> bool {
    let close = match text.chars().next() {
        Some('{') => '}',
        Some('[') => ']',
        _ => return false,
    };
    let first = serde_json::Deserializer::from_str(text).into_iter::<Strict>().next();
    text.ends_with(close) && first.is_some_and(|first| first.is_err())
}

/// Removes the code fence around a whole text.
fn strip_fence(text: &str) -> &str {
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    // The first line of a fence names the language. Another fence inside belongs to prose.
    let inner =
        inner.filter(|inner| !inner.contains("```")).and_then(|inner| inner.split_once('\n'));
    inner.map_or(text, |(_, inner)| inner.trim())
}

/// Returns the texts in code fences, without the fences.
fn fences(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("```").skip(1).step_by(2);
    parts.filter_map(|part| part.split_once('\n')).map(|(_, inner)| inner.trim())
}

/// Returns the text outside code fences.
fn outside_fences(text: &str) -> String {
    text.split("```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// Returns the one object or list in a prose text. Never looks for a smaller value inside of one that is
/// broken: the part of an answer is not the answer.
fn value_in_prose(text: &str) -> Result<Value, NoValue> {
    let mut found = None;
    let mut at = 0;
    while let Some(offset) = text.get(at..).and_then(|rest| rest.find(['{', '['])) {
        at += offset;
        let rest = text.get(at..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Strict>();
        match values.next() {
            Some(Ok(_)) if found.is_some() => return Err(NoValue::Several),
            Some(Ok(Strict(value))) => {
                found = Some(value);
                at += values.byte_offset();
            }
            Some(Err(error)) if begins_value(rest) => {
                return Err(NoValue::Invalid(error.to_string()));
            }
            Some(Err(_)) | None => at += 1,
        }
    }
    found.ok_or(NoValue::Missing)
}

/// Tells whether a text with an opening bracket goes on as JSON does, and prose does not.
fn begins_value(text: &str) -> bool {
    let mut rest = text.chars().skip(1).filter(|c| !c.is_whitespace());
    rest.next().is_some_and(|next| matches!(next, '"' | '{' | '[') || next.is_ascii_digit())
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str::<Strict>(text)
        .map(|Strict(value)| value)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fence_and_prose_around_one_value_are_removed() {
        let ok = json!({"status": "ok"});
        for text in [
            r#"{"status": "ok"}"#,
            "\n ```json\n{\"status\": \"ok\"}\n```\n",
            "```\n{\"status\": \"ok\"}```",
            "Here is the result:\n```json\n{\"status\": \"ok\"}\n```\nAll checks passed.",
            r#"The answer is {"status": "ok"}. Bye {name}."#,
        ] {
            assert_eq!(json_value(text), Ok(ok.clone()), "{text}");
        }
        for (text, value) in
            [("5", json!(5)), ("\"up\"", json!("up")), ("```\n[1, 2]\n```", json!([1, 2]))]
        {
            assert_eq!(json_value(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn an_answer_without_exactly_one_value_is_refused() {
        let problem = |text: &str| json_value(text).unwrap_err().to_string();
        assert_eq!(json_value("all is well"), Err(NoValue::Missing));
        assert_eq!(json_value(""), Err(NoValue::Missing));
        assert_eq!(json_value("{\"a\": 1} or {\"a\": 2}"), Err(NoValue::Several));
        assert_eq!(json_value("```\n{}\n```\n```\n[]\n```"), Err(NoValue::Several));
        let quoted =
            "It was:\n```json\n{\"status\": \"ok\"}\n```\nMy answer: {\"status\": \"critical\"}";
        assert_eq!(json_value(quoted), Err(NoValue::Several));
        let broken = "Result:\n{\"status\": \"critical\", \"parts\": {\"status\": \"ok\"},}";
        assert!(matches!(json_value(broken), Err(NoValue::Invalid(_))), "{:?}", json_value(broken));
        let brackets = format!("\"{}", "[".repeat((1 << 20) - 1));
        assert!(matches!(json_value(&brackets), Err(NoValue::Invalid(_))));
        for text in [
            r#"{"status": "critical", "status": "ok"}"#,
            r#"{"a": [{"b": 1, "b": 1}]}"#,
            r#"It is {"status": "critical", "status": "ok"} now"#,
            r#"{"k": 1, "k": 1} and {"a": 2}"#,
        ] {
            assert!(problem(text).contains("occurs twice"), "{text}: {}", problem(text));
        }
        assert!(problem("{\"a\": }").contains("expected value"));
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(problem(&deep).contains("recursion limit"));
        assert_eq!(json_value(&"x".repeat(10 << 20)), Err(NoValue::TooLong(10 << 20)));
        assert!(problem(&format!("[{}1]", "1,".repeat(200_000))).contains("values"));
        assert_eq!(whole_object(r#"{"a": 1, "a": 2}"#), None);
        assert_eq!(whole_object("x {}"), None);
    }

    proptest! {
        #[test]
        fn a_value_in_prose_is_found_whole(before in "[a-z .,!?]{0,20}", after in "[a-z .,!?]{0,20}", number: i64, text: String) {
            let value = json!({"n": number, "t": text, "l": [number, null]});
            prop_assert_eq!(json_value(&format!("{before}{value}{after}")), Ok(value));
        }

        #[test]
        fn any_text_has_a_result(text in "[\\[\\]{}\",:a1` \n]{0,200}") {
            let _ = json_value(&text);
        }
    }
}
