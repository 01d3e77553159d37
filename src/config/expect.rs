//! What an operator expects of a call: its exit code and its output.

use std::sync::Arc;

use jsonschema::Validator;
use regex::Regex;
use serde_json::Value;

use super::json_schema::compile;
use super::raw::RawExpect;
use crate::argv::Diagnostics;

/// Conditions on the result of a call; all of them must hold.
#[derive(Debug, Clone)]
pub struct Expect {
    exit_code: Option<i32>,
    matches: Option<Regex>,
    not_matches: Option<Regex>,
    json_schema: Option<Arc<Validator>>,
}

impl Expect {
    /// Checks `raw`. `pointer` is its place, relative to the declaration.
    pub(super) fn from_raw(raw: &RawExpect, pointer: &str, diagnostics: &mut Diagnostics) -> Self {
        let mut regex = |key: &str, text: &Option<String>| match Regex::new(text.as_deref()?) {
            Ok(regex) => Some(regex),
            Err(error) => {
                let message = format!("not a regular expression that runs in linear time: {error}");
                diagnostics.error(&format!("{pointer}/{key}"), message);
                None
            }
        };
        let (matches, not_matches) =
            (regex("matches", &raw.matches), regex("not_matches", &raw.not_matches));
        let json_schema = raw.json_schema.as_ref().and_then(|schema| {
            compile(schema, &format!("{pointer}/json_schema"), diagnostics).map(Arc::new)
        });
        Self { exit_code: raw.exit_code, matches, not_matches, json_schema }
    }

    /// Tells whether a call with this exit code and output meets every condition. Without a
    /// condition, the call must have worked.
    #[must_use]
    pub fn holds(&self, exit_code: i32, has_worked: bool, output: &str) -> bool {
        self.failure(exit_code, has_worked, output).is_none()
    }

    /// Returns the first condition that a call does not meet, as a clause for people; `None` if it
    /// meets all of them.
    #[must_use]
    pub fn failure(&self, exit_code: i32, has_worked: bool, output: &str) -> Option<String> {
        let Self { exit_code: code, matches, not_matches, json_schema } = self;
        let is_empty =
            code.is_none() && matches.is_none() && not_matches.is_none() && json_schema.is_none();
        if is_empty && !has_worked {
            return Some(format!("the call failed with exit code {exit_code}"));
        }
        if let Some(code) = code.filter(|code| *code != exit_code) {
            return Some(format!("the exit code is {exit_code} instead of {code}"));
        }
        if let Some(regex) = matches.as_ref().filter(|regex| !regex.is_match(output)) {
            return Some(format!("the output does not match `{regex}`"));
        }
        if let Some(regex) = not_matches.as_ref().filter(|regex| regex.is_match(output)) {
            return Some(format!("the output matches `{regex}`"));
        }
        let schema = json_schema.as_ref()?;
        match serde_json::from_str::<Value>(output) {
            Err(error) => Some(format!("the output is not JSON: {error}")),
            Ok(value) => {
                let error = schema.iter_errors(&value).next()?;
                // The value comes from a tool, and so do the names in it.
                Some(format!(
                    "the output does not match `json_schema` at `{}`",
                    error.schema_path()
                ))
            }
        }
    }

    /// Tells whether a condition depends on the end of the output.
    #[must_use]
    pub fn needs_whole_output(&self) -> bool {
        self.not_matches.is_some() || self.json_schema.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expect(raw: Value) -> Expect {
        let raw: RawExpect = serde_json::from_value(raw).unwrap();
        let mut diagnostics = Diagnostics::default();
        let expect = Expect::from_raw(&raw, "", &mut diagnostics);
        assert!(diagnostics.errors.is_empty());
        expect
    }

    #[test]
    fn every_condition_must_hold() {
        let holds =
            |raw: Value, code: i32, output: &str| expect(raw).holds(code, code == 0, output);
        assert!(holds(json!({}), 0, "x") && !holds(json!({}), 1, "x"));
        assert!(holds(json!({"exit_code": 1}), 1, "x") && !holds(json!({"exit_code": 1}), 0, "x"));
        assert!(holds(json!({"matches": "3/3"}), 1, "web 3/3 up"));
        assert!(!holds(json!({"matches": "3/3"}), 0, "web 2/3 up"));
        assert!(!holds(json!({"matches": "3/3", "not_matches": "down"}), 0, "3/3 down"));
        assert!(!holds(json!({"matches": "3/3", "exit_code": 1}), 0, "3/3"));
        let schema = json!({"json_schema": {"type": "object", "required": ["up"]}});
        assert!(holds(schema.clone(), 0, r#"{"up": 1}"#));
        assert!(!holds(schema.clone(), 0, r#"{"down": 1}"#) && !holds(schema, 0, "not JSON"));
    }

    #[test]
    fn invalid_conditions_are_errors() {
        let raw = json!({"matches": "(", "not_matches": "(?=a)", "json_schema": {"type": "x"}});
        let raw: RawExpect = serde_json::from_value(raw).unwrap();
        let mut diagnostics = Diagnostics::default();
        Expect::from_raw(&raw, "/probe/done_when", &mut diagnostics);
        let pointers: Vec<&str> =
            diagnostics.errors.iter().map(|error| error.pointer.as_str()).collect();
        let expected = ["matches", "not_matches", "json_schema"];
        assert_eq!(pointers, expected.map(|key| format!("/probe/done_when/{key}")));
    }
}
