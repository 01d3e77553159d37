//! The JSON Schema that the final answer of a job's runs must match.

use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Map, Value};

use super::json_schema::compile;
use crate::argv::Diagnostics;
use crate::text::answer::json_value;
use crate::text::escape::for_terminal;
use crate::text::truncate::shorten;

/// Limit of the problems that a correction of the model lists.
const MOST_PROBLEMS: usize = 5;

/// Limit of the characters of one problem, which may quote the answer.
const PROBLEM_CHARACTERS: usize = 300;

/// The compiled `output_schema` of a job.
#[derive(Debug, Clone)]
pub struct OutputSchema {
    schema: Arc<Value>,
    validator: Arc<Validator>,
}

impl OutputSchema {
    /// Compiles a schema; `pointer` is its place in the job.
    ///
    /// *Errors*: added to `diagnostics`, as [`compile`] describes.
    pub(crate) fn compile(
        schema: &Map<String, Value>,
        pointer: &str,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        let validator = Arc::new(compile(schema, pointer, diagnostics)?);
        Some(Self { schema: Arc::new(Value::Object(schema.clone())), validator })
    }

    /// Returns the schema as the operator wrote it.
    #[must_use]
    pub fn as_written(&self) -> &Value {
        &self.schema
    }

    /// Returns the JSON value of an answer.
    ///
    /// *Errors*: why the answer has no value, or where the value does not match; at least one problem,
    /// for the model and the operator.
    pub fn check(&self, answer: &str) -> Result<Value, Vec<String>> {
        let value = json_value(answer).map_err(|error| vec![limited(&error.to_string())])?;
        let problems: Vec<String> = self
            .validator
            .iter_errors(&value)
            .take(MOST_PROBLEMS)
            .map(|error| {
                let at = error.instance_path().to_string();
                let place = if at.is_empty() { String::new() } else { format!("at `{at}`: ") };
                limited(&format!("{place}{error}"))
            })
            .collect();
        if problems.is_empty() { Ok(value) } else { Err(problems) }
    }
}

/// Returns a problem as text of limited length: it may quote the answer.
fn limited(problem: &str) -> String {
    shorten(&for_terminal(problem), PROBLEM_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compile(schema: &Value) -> Result<OutputSchema, Vec<(String, String)>> {
        let mut diagnostics = Diagnostics::default();
        let compiled =
            OutputSchema::compile(schema.as_object().unwrap(), "/output_schema", &mut diagnostics);
        match compiled.filter(|_| diagnostics.errors.is_empty()) {
            Some(compiled) => Ok(compiled),
            None => {
                let errors = diagnostics.errors.into_iter();
                let text = |error: crate::argv::Diagnostic| {
                    format!("{} {}", error.message, error.hint.unwrap_or_default())
                };
                Err(errors.map(|error| (error.pointer.clone(), text(error))).collect())
            }
        }
    }

    #[test]
    fn an_answer_is_checked_and_each_problem_says_where() {
        let schema = compile(&json!({
            "type": "object", "required": ["status", "summary"], "additionalProperties": false,
            "properties": {"status": {"enum": ["ok", "critical"]}, "summary": {"type": "string", "maxLength": 5}},
        }))
        .unwrap();
        let good = schema.check("Done: {\"status\": \"ok\", \"summary\": \"fine\"}").unwrap();
        assert_eq!(good["status"], "ok");
        let problems =
            schema.check("{\"status\": \"odd\", \"summary\": \"too long\"}").unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems.iter().any(|p| p.starts_with("at `/status`: ")), "{problems:?}");
        assert_eq!(schema.check("all is well").unwrap_err(), ["the answer has no JSON value"]);
        let list = compile(&json!({"type": "array", "items": {"type": "integer"}})).unwrap();
        assert_eq!(list.check("[1, 2]"), Ok(json!([1, 2])));
        let huge = format!("{{\"status\": \"{}\"}}", "x".repeat(10_000));
        assert!(schema.check(&huge).unwrap_err().iter().all(|p| p.chars().count() <= 301));
    }

    #[test]
    fn schemas_that_cannot_work_are_errors() {
        for (schema, pointer, message) in [
            (json!({"type": "x"}), "/output_schema", "invalid schema"),
            (json!({"$ref": "https://example.org/s.json"}), "/output_schema/$ref", "itself"),
            (
                json!({"items": {"$ref": "file:///etc/passwd"}}),
                "/output_schema/items/$ref",
                "itself",
            ),
            (json!({"not": {"$ref": "file:///etc/passwd"}}), "/output_schema/not/$ref", "itself"),
            (json!({"type": "string", "pattern": "(?=a)b"}), "/output_schema/pattern", "linear"),
            (
                json!({"properties": {"a": {"enum": []}}}),
                "/output_schema/properties/a/enum",
                "empty",
            ),
            (
                json!({"items": {"minimum": 3, "maximum": 2}}),
                "/output_schema/items/minimum",
                "no value",
            ),
            (
                json!({"required": ["a"], "properties": {"a": false}}),
                "/output_schema/required",
                "`a`",
            ),
            (
                json!({"required": ["b"], "properties": {"a": {}}, "additionalProperties": false}),
                "/output_schema/required",
                "`b`",
            ),
        ] {
            let errors = compile(&schema).unwrap_err();
            let found = errors.iter().any(|(at, text)| at == pointer && text.contains(message));
            assert!(found, "{schema}: {errors:?}");
        }
    }

    #[test]
    fn a_pattern_runs_in_linear_time() {
        let schema = compile(&json!({"type": "string", "pattern": "^(a+)+$"})).unwrap();
        assert!(schema.check(&format!("\"{}b\"", "a".repeat(100_000))).is_err());
    }
}
