//! Shows a tool to a model under the names and in the time unit that the model family expects.
//!
//! Policies, transcripts and the tool itself use only the tool's own names.

use serde_json::{Map, Value};

/// The definition of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// The name of the tool.
    pub name: String,
    /// What the tool does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
}

/// The names under which a model sees a tool and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownAs {
    /// The tool name that the model sees.
    pub name: String,
    /// Renamed parameters: the tool's own name, and the name that the model sees.
    pub parameters: &'static [(&'static str, &'static str)],
}

impl ShownAs {
    /// Shows a tool under `name`, with its own parameter names.
    #[must_use]
    pub fn itself(name: &str) -> Self {
        Self { name: name.to_owned(), parameters: &[] }
    }

    pub(super) fn definition(&self, own: &ToolDefinition) -> ToolDefinition {
        let mut schema = own.parameters.clone();
        for (ours, theirs) in self.parameters {
            if is_in_seconds(ours, theirs)
                && let Some(parameter) =
                    schema.get_mut("properties").and_then(|properties| properties.get_mut(*ours))
            {
                *parameter = in_seconds(parameter);
            }
            if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
                // Rename in place: the model reads the parameters in this order.
                *properties = std::mem::take(properties)
                    .into_iter()
                    .map(|(name, value)| {
                        (if name == *ours { (*theirs).to_owned() } else { name }, value)
                    })
                    .collect();
            }
            let required = schema.get_mut("required").and_then(Value::as_array_mut);
            for name in required.into_iter().flatten().filter(|name| *name == ours) {
                *name = Value::from(*theirs);
            }
        }
        ToolDefinition {
            name: self.name.clone(),
            description: self.in_shown_words(&own.description),
            parameters: schema,
        }
    }

    /// Replaces parameter names in `text` with the names that the model sees. Times in `text` stay
    /// in milliseconds, and the text then says so.
    pub(super) fn in_shown_words(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for word in text.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_') {
            let end = word.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_').len();
            let (name, rest) = word.split_at(end);
            let theirs = self.parameters.iter().find(|(ours, _)| *ours == name);
            out.push_str(theirs.map_or(name, |(_, theirs)| theirs));
            if theirs.is_some_and(|(ours, theirs)| is_in_seconds(ours, theirs)) {
                out.push_str(" (here in milliseconds)");
            }
            out.push_str(rest);
        }
        out
    }

    /// Converts arguments to the tool's own parameter names and time unit. An argument that is
    /// already under the tool's own name takes precedence.
    pub(super) fn own_arguments(&self, arguments: &Map<String, Value>) -> Map<String, Value> {
        let own = |name: &str, value: &Value| {
            let pair = self.parameters.iter().find(|(_, theirs)| *theirs == name);
            match pair.filter(|(own, _)| !arguments.contains_key(*own)) {
                Some((own, _)) if is_in_seconds(own, name) => {
                    ((*own).to_owned(), in_milliseconds(value))
                }
                Some((own, _)) => ((*own).to_owned(), value.clone()),
                None => (name.to_owned(), value.clone()),
            }
        };
        arguments.iter().map(|(name, value)| own(name, value)).collect()
    }

    /// Converts conditions on arguments to the parameter names and the time unit that the model
    /// sees.
    pub fn conditions(&self, conditions: &Map<String, Value>) -> Value {
        let shown = |(own, condition): (&String, &Value)| {
            let theirs = self.parameters.iter().find(|(ours, _)| *ours == own);
            match theirs {
                Some((_, theirs)) if is_in_seconds(own, theirs) => {
                    ((*theirs).to_owned(), in_seconds(condition))
                }
                Some((_, theirs)) => ((*theirs).to_owned(), condition.clone()),
                None => (own.clone(), condition.clone()),
            }
        };
        conditions.iter().map(shown).collect()
    }
}

/// Tells whether a parameter is in milliseconds for the tool and in seconds for the model: the two
/// names then differ only in the suffix `_ms`.
fn is_in_seconds(ours: &str, theirs: &str) -> bool {
    ours.strip_suffix("_ms") == Some(theirs)
}

/// Converts the schema of a time in milliseconds to seconds.
fn in_seconds(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let shown = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            ("type", _) => "number".into(),
            ("description", _) => "Timeout in seconds".into(),
            ("enum", Value::Array(items)) => items.iter().map(thousandth).collect(),
            ("anyOf" | "allOf" | "oneOf", Value::Array(items)) => {
                items.iter().map(in_seconds).collect()
            }
            ("not" | "if" | "then" | "else", inner) => in_seconds(inner),
            _ => thousandth(value),
        };
        (key.clone(), value)
    };
    fields.iter().map(shown).collect()
}

fn thousandth(value: &Value) -> Value {
    match value.as_u64() {
        Some(number) if number % 1000 == 0 => (number / 1000).into(),
        _ => value.as_f64().map_or_else(|| value.clone(), |number| (number / 1000.0).into()),
    }
}

/// Converts seconds to whole milliseconds. Returns a value that is not a number unchanged, because
/// the argument validation rejects it.
fn in_milliseconds(value: &Value) -> Value {
    match (value.as_u64(), value.as_f64()) {
        (Some(seconds), _) => seconds.saturating_mul(1000).into(),
        (None, Some(seconds)) => {
            serde_json::from_str(&format!("{:.0}", seconds * 1000.0)).unwrap_or(Value::Null)
        }
        (None, None) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_in_milliseconds_is_shown_in_seconds() {
        let shown = ShownAs { name: "bash".into(), parameters: &[("timeout_ms", "timeout")] };
        let schema = json!({"properties": {"timeout_ms": {"type": "integer", "minimum": 1, "maximum": 600_000}}});
        let own = ToolDefinition {
            name: "bash".into(),
            description: "Runs a command.".into(),
            parameters: schema,
        };
        let definition = shown.definition(&own);
        let parameter = &definition.parameters["properties"]["timeout"];
        assert_eq!(parameter, &json!({"type": "number", "minimum": 0.001, "maximum": 600}));
        let words =
            shown.in_shown_words("timeout_ms: 700000 is greater than the maximum of 600000");
        assert!(words.starts_with("timeout (here in milliseconds): 700000"), "{words}");
        let check = |arguments: Value, expected: Value| {
            let own = shown.own_arguments(arguments.as_object().unwrap());
            assert_eq!(Value::Object(own), expected);
        };
        check(json!({"timeout": 5}), json!({"timeout_ms": 5000}));
        check(json!({"timeout": 0.25}), json!({"timeout_ms": 250}));
        check(json!({"timeout": "5"}), json!({"timeout_ms": "5"}));
        check(json!({"timeout": u64::MAX}), json!({"timeout_ms": u64::MAX}));
        check(json!({"timeout": -1.0}), json!({"timeout_ms": -1000}));
        check(json!({"timeout_ms": 5, "x": 1}), json!({"timeout_ms": 5, "x": 1}));
        let conditions = json!({"timeout_ms": {"maximum": 9000}});
        let conditions = shown.conditions(conditions.as_object().unwrap());
        assert_eq!(conditions, json!({"timeout": {"maximum": 9}}));
    }
}
