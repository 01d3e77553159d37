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
    provider_form: Option<Arc<ProviderForm>>,
}

/// The schema of a job, reduced to the JSON Schema keywords that all providers accept. It accepts each
/// answer that the schema accepts, unless the answer has a key that the schema does not name.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderForm {
    pub schema: Value,
    /// Whether each object requires all of its properties, as OpenAI's strict form does.
    pub is_strict: bool,
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
        let schema = Arc::new(Value::Object(schema.clone()));
        let provider_form = ProviderForm::of(&schema).map(Arc::new);
        Some(Self { schema, validator, provider_form })
    }

    /// Returns the schema as the operator wrote it.
    #[must_use]
    pub fn as_written(&self) -> &Value {
        &self.schema
    }

    /// Returns the form for providers; `None` if the schema cannot be reduced.
    #[must_use]
    pub fn provider_form(&self) -> Option<&ProviderForm> {
        self.provider_form.as_deref()
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

/// Keywords that all providers take as they are.
const KEPT_KEYWORDS: &[&str] = &["type", "description", "enum", "required"];

/// Keywords that limit a value further. Providers refuse some of them, so the form leaves them out; the
/// answer is checked in any case.
const DROPPED_KEYWORDS: &[&str] = &[
    "title",
    "default",
    "examples",
    "$schema",
    "$comment",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
];

impl ProviderForm {
    /// Returns the form of a schema; `None` if its root is not an object with properties, or if it uses
    /// a keyword without a form.
    fn of(schema: &Value) -> Option<Self> {
        let mut is_strict = true;
        let root = part(schema, &mut is_strict)?;
        let is_object = root.get("type").is_some_and(|kind| kind == "object");
        is_object.then_some(Self { schema: root, is_strict })
    }
}

/// Returns the form of a part of a schema. Clears `is_strict` if an object has an optional property.
fn part(schema: &Value, is_strict: &mut bool) -> Option<Value> {
    let schema = schema.as_object()?;
    let mut form = Map::new();
    for (key, value) in schema {
        let of_part = match key.as_str() {
            key if KEPT_KEYWORDS.contains(&key) => value.clone(),
            key if DROPPED_KEYWORDS.contains(&key) => continue,
            "const" => {
                form.insert("enum".to_owned(), Value::Array(vec![value.clone()]));
                continue;
            }
            // An answer with other keys is not asked for, although the job's schema may allow it.
            "additionalProperties" if value.is_boolean() => continue,
            "items" => part(value, is_strict)?,
            "anyOf" => {
                let parts = value.as_array()?.iter().map(|value| part(value, is_strict));
                Value::Array(parts.collect::<Option<_>>()?)
            }
            "properties" => {
                let parts = value.as_object()?.iter();
                let parts =
                    parts.map(|(name, value)| Some((name.clone(), part(value, is_strict)?)));
                Value::Object(parts.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        form.insert(key.clone(), of_part);
    }
    let texts = form.get("enum").and_then(Value::as_array);
    if texts.is_some_and(|texts| texts.iter().all(Value::is_string)) {
        form.entry("type").or_insert_with(|| "string".into());
    }
    *is_strict &= form.contains_key("type") || form.contains_key("anyOf");
    if let Some(properties) = form.get("properties").and_then(Value::as_object) {
        let required = form.get("required").and_then(Value::as_array).map_or(0, Vec::len);
        *is_strict &= required == properties.len();
        form.insert("additionalProperties".to_owned(), false.into());
    } else if form.get("type").is_some_and(|kind| kind == "object") {
        // An object with any keys has no form.
        return None;
    }
    Some(Value::Object(form))
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
    fn a_provider_form_has_only_keywords_that_all_providers_accept() {
        let form = |schema: Value| compile(&schema).unwrap().provider_form().cloned();
        let schema = json!({
            "type": "object", "required": ["status", "hosts"], "title": "t",
            "properties": {
                "status": {"enum": ["ok", "critical"], "description": "d"},
                "hosts": {"type": "array", "maxItems": 3, "items": {"type": "object",
                    "properties": {"name": {"type": "string", "minLength": 1}}}},
            },
        });
        let expected = json!({
            "type": "object", "required": ["status", "hosts"], "additionalProperties": false,
            "properties": {
                "status": {"enum": ["ok", "critical"], "description": "d", "type": "string"},
                "hosts": {"type": "array", "items": {"type": "object", "additionalProperties": false,
                    "properties": {"name": {"type": "string"}}}},
            },
        });
        assert_eq!(form(schema), Some(ProviderForm { schema: expected, is_strict: false }));
        let strict =
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "null"}}});
        assert!(form(strict).unwrap().is_strict);
        for without in [
            json!({"type": "array", "items": {"type": "string"}}),
            json!({"type": "object"}),
            json!({"type": "object", "properties": {"a": {"type": "object"}}}),
            json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}),
            json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}),
            json!({"enum": ["ok"]}),
        ] {
            assert_eq!(form(without.clone()), None, "{without}");
        }
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
