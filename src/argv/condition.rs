//! Conditions on arguments: a JSON Schema per named argument, such as `args: {replicas: {maximum:
//! 10}}`.
//!
//! A job uses them to list a tool only for certain arguments. A tool uses them to say which
//! arguments raise a call to admin.

use std::collections::BTreeMap;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Map, Value};

use super::parameters::{Parameters, build, check_applies, judged_formats, tighten};
use super::{Diagnostic, pointer_segment};
use crate::text::escape::one_line;
use crate::text::suggest::nearest;

/// Compiled conditions. They hold if every named argument is present and matches its schema.
#[derive(Debug, Clone)]
pub struct ArgumentConditions {
    schemas: Map<String, Value>,
    validators: BTreeMap<String, Arc<Validator>>,
}

impl ArgumentConditions {
    /// Returns the schemas of the arguments as written.
    #[must_use]
    pub fn schemas(&self) -> &Map<String, Value> {
        &self.schemas
    }

    /// Compiles conditions on the parameters of a tool. Pass `None` if the parameters are not
    /// known, as for a tool of an MCP server.
    ///
    /// *Errors*: all errors, with pointers relative to the condition.
    pub fn compile(
        conditions: &Map<String, Value>,
        parameters: Option<&Parameters>,
    ) -> Result<Self, Vec<Diagnostic>> {
        let mut errors = Vec::new();
        let mut validators = BTreeMap::new();
        if conditions.is_empty() {
            errors.push(Diagnostic::new("", "a condition must name at least one argument"));
        }
        for (name, schema) in conditions {
            let pointer = format!("/{}", pointer_segment(name));
            if let Some(parameters) = parameters.filter(|known| known.get(name).is_none()) {
                let error =
                    Diagnostic::new(&pointer, format!("the tool has no parameter `{name}`"));
                errors.push(match nearest(name, parameters.iter().map(|(known, _)| known)) {
                    Some(known) => error.with_hint(format!("did you mean `{known}`?")),
                    None => error,
                });
                continue;
            }
            let Some(schema) = schema.as_object() else {
                errors.push(Diagnostic::new(
                    &pointer,
                    "a condition on an argument must be a JSON Schema object",
                ));
                continue;
            };
            if judged_formats(schema) > 0 {
                let message = "the formats `path` and `url` have no effect in a condition: set them on the parameter";
                errors.push(Diagnostic::new(&pointer, message));
            }
            if let Some((kind, of_items)) = parameters.map(|known| known.type_of(name)) {
                check_applies(schema, kind, &pointer, &mut errors);
                if let (Some(items), Some(kind)) =
                    (schema.get("items").and_then(Value::as_object), of_items)
                {
                    check_applies(items, kind, &format!("{pointer}/items"), &mut errors);
                }
            }
            let tightened = Value::Object(tighten(schema, &pointer, &[], &mut errors));
            match build(&tightened) {
                Ok(validator) => drop(validators.insert(name.clone(), Arc::new(validator))),
                Err(message) => errors.push(Diagnostic::new(&pointer, message)),
            }
        }
        if errors.is_empty() {
            Ok(Self { schemas: conditions.clone(), validators })
        } else {
            Err(errors)
        }
    }

    /// Describes the first argument that is missing or does not match, such as
    /// "`replicas` is 50, allowed: 1 to 10"; `None` if all match.
    #[must_use]
    pub fn first_mismatch(&self, arguments: &Map<String, Value>) -> Option<String> {
        let (name, value) = self.validators.iter().find_map(|(name, validator)| {
            let value = arguments.get(name);
            (!value.is_some_and(|value| validator.is_valid(value))).then_some((name, value))
        })?;
        let found = match value {
            Some(value) => format!("is {}", short(&value.to_string())),
            None => "is missing".to_owned(),
        };
        let allowed = self.schemas.get(name).map(allowed).unwrap_or_default();
        Some(format!("`{name}` {found}, allowed: {allowed}"))
    }

    /// Returns the conditions as written in the configuration.
    #[must_use]
    pub fn as_written(&self) -> &Map<String, Value> {
        &self.schemas
    }
}

/// Describes the values that a schema allows: in words if the schema is simple, otherwise as JSON.
fn allowed(schema: &Value) -> String {
    let Some(fields) = schema.as_object() else { return schema.to_string() };
    let keywords: Vec<(&str, &Value)> = fields
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .filter(|(key, _)| !matches!(*key, "type" | "description"))
        .collect();
    match keywords.as_slice() {
        [("const", value)] => value.to_string(),
        [("enum", Value::Array(values))] => {
            short(&values.iter().map(Value::to_string).collect::<Vec<_>>().join(", "))
        }
        [("minimum", least), ("maximum", most)] | [("maximum", most), ("minimum", least)] => {
            format!("{least} to {most}")
        }
        [("minimum", least)] => format!("at least {least}"),
        [("maximum", most)] => format!("at most {most}"),
        [("pattern", Value::String(pattern))] => format!("text that matches `{}`", short(pattern)),
        _ => short(&schema.to_string()),
    }
}

/// Returns a text on one line, cut after 200 characters.
fn short(text: &str) -> String {
    const CHARACTERS: usize = 200;
    let text = one_line(text);
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn what_is_allowed_is_said_in_words() {
        let check = |schema: Value, expected: &str| assert_eq!(allowed(&schema), expected);
        check(json!({"minimum": 1, "maximum": 10}), "1 to 10");
        check(json!({"type": "integer", "minimum": 1}), "at least 1");
        check(json!({"enum": ["a", "b"]}), r#""a", "b""#);
        check(json!({"const": "a\nb"}), r#""a\nb""#);
        check(json!({"minimum": 1, "multipleOf": 2}), r#"{"minimum":1,"multipleOf":2}"#);
        assert_eq!(allowed(&json!({"pattern": "é".repeat(500)})).chars().count(), 221);
    }

    #[test]
    fn every_named_argument_must_match() {
        let parameters = Parameters::compile(&object(json!({
            "replicas": {"type": "integer"}, "deployment": {"type": "string"}
        })))
        .0
        .unwrap();
        let conditions = ArgumentConditions::compile(
            &object(json!({"replicas": {"maximum": 10}, "deployment": {"pattern": "web-.*"}})),
            Some(&parameters),
        )
        .unwrap();
        let check = |arguments: Value, expected: Option<&str>| {
            assert_eq!(conditions.first_mismatch(&object(arguments)).as_deref(), expected);
        };
        check(json!({"replicas": 10, "deployment": "web-a"}), None);
        check(
            json!({"replicas": 11, "deployment": "web-a"}),
            Some("`replicas` is 11, allowed: at most 10"),
        );
        let allowed = "allowed: text that matches `web-.*`";
        let told = format!("`deployment` is \"x-web-a\", {allowed}");
        check(json!({"replicas": 1, "deployment": "x-web-a"}), Some(&told));
        check(json!({"replicas": 1}), Some(&format!("`deployment` is missing, {allowed}")));
        let errors =
            ArgumentConditions::compile(&object(json!({"replica": {}})), Some(&parameters))
                .unwrap_err();
        assert_eq!(errors[0].hint.as_deref(), Some("did you mean `replicas`?"));
        for fails_open in [
            json!({"replicas": {"pattern": "1"}}),
            json!({"deployment": {"maximum": 10}}),
            json!({"deployment": {"anyOf": [{"minItems": 1}]}}),
        ] {
            assert!(
                ArgumentConditions::compile(&object(fails_open), Some(&parameters)).is_err(),
                "a condition that never applies would always hold"
            );
        }
        assert!(
            ArgumentConditions::compile(
                &object(json!({"replicas": {"maxmum": 1}})),
                Some(&parameters)
            )
            .is_err()
        );
    }
}
