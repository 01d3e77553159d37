//! Parameters from a complete JSON Schema, for built-in tools and for the tools of MCP servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use jsonschema::{Draft, PatternOptions};
use serde_json::Value;

use super::{Parameter, Parameters};

impl Parameters {
    /// Compiles a schema whose root is an object. Remote references are not fetched, and patterns
    /// run in linear time.
    ///
    /// *Errors*: the schema is invalid; the message contains the library's.
    pub fn of_schema(schema: Value) -> Result<Self, String> {
        let validator = jsonschema::options()
            .with_draft(Draft::Draft7)
            .with_pattern_options(PatternOptions::regex())
            .build(&schema)
            .map_err(|error| format!("this is not JSON Schema: {error}"))?;
        let required = |name: &str| {
            let names = schema.get("required").and_then(Value::as_array);
            names.is_some_and(|names| names.iter().any(|known| known == name))
        };
        let properties = schema.get("properties").and_then(Value::as_object);
        let list: BTreeMap<String, Parameter> = properties
            .into_iter()
            .flatten()
            .map(|(name, property)| (name.clone(), parameter(property, !required(name))))
            .collect();
        Ok(Self { schema, validator: Arc::new(validator), list })
    }

    /// Validates arguments. `text_limit` is the byte limit of a string without `maxLength`.
    ///
    /// *Errors*: `invalid_arguments`, with at most five problems, written for the model.
    pub fn check(
        &self,
        arguments: &serde_json::Map<String, Value>,
        text_limit: usize,
    ) -> Result<serde_json::Map<String, Value>, crate::domain::CallError> {
        self.validate(arguments, |_| text_limit)
    }
}

fn parameter(property: &Value, optional: bool) -> Parameter {
    Parameter {
        list: property.get("type").and_then(Value::as_str) == Some("array"),
        optional,
        default: None,
        allow_leading_dash: true,
        multiline: true,
        unsafe_interpreter: false,
        names: None,
        choices: Vec::new(),
        dash_possible: false,
        has_max_length: property.get("maxLength").is_some(),
        may_be_empty: true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // proves ARG-8, CFG-5
    #[test]
    fn a_whole_schema_validates_and_fetches_nothing() {
        let schema = json!({
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false}}},
            "required": ["items"],
        });
        let parameters = Parameters::of_schema(schema).unwrap();
        let check = |value: Value| parameters.check(value.as_object().unwrap(), 100);
        assert!(check(json!({"items": [{"n": 1}]})).is_ok());
        for wrong in [json!({}), json!({"items": [{"n": "1"}]}), json!({"items": [{"m": 1}]})] {
            assert!(check(wrong).is_err());
        }
        let nested = json!({"items": [{"n": 1}], "x": {"y": ["[redacted:KEY]"]}});
        assert!(check(nested).unwrap_err().message.contains("redaction marker"));
        let remote =
            json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}});
        assert!(Parameters::of_schema(remote).is_err());
    }
}
