//! The schemas that a server declares: a limit on the cost of validation, and the form that a model
//! sees.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum parts (JSON values) of a schema after every reference in it is followed.
const MAX_PARTS: u64 = 20_000;

/// Returns whether a schema stays small after every reference in it is followed: no reference is
/// circular or leads out of the schema, and the number of parts is limited.
pub(super) fn is_bounded(schema: &Value) -> bool {
    let mut known = BTreeMap::new();
    parts(schema, schema, &mut known, 0).is_some_and(|parts| parts <= MAX_PARTS)
}

/// Counts the parts of `value`; `None` if a reference is circular or unknown, or if the nesting is
/// too deep.
fn parts(
    root: &Value,
    value: &Value,
    known: &mut BTreeMap<String, Option<u64>>,
    depth: usize,
) -> Option<u64> {
    const DEEPEST: usize = 128;
    if depth > DEEPEST {
        return None;
    }
    let mut count: u64 = 1;
    match value {
        Value::Array(items) => {
            for item in items {
                count = count.saturating_add(parts(root, item, known, depth + 1)?);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                let more = match (key.as_str(), field) {
                    ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                        referred(root, reference, known, depth)?
                    }
                    _ => parts(root, field, known, depth + 1)?,
                };
                count = count.saturating_add(more);
            }
        }
        _ => {}
    }
    Some(count)
}

fn referred(
    root: &Value,
    reference: &str,
    known: &mut BTreeMap<String, Option<u64>>,
    depth: usize,
) -> Option<u64> {
    if let Some(known) = known.get(reference) {
        return *known;
    }
    // Until its target is counted, a reference that occurs again is circular.
    known.insert(reference.to_owned(), None);
    let target = root.pointer(reference.strip_prefix('#')?)?;
    let count = parts(root, target, known, depth + 1)?;
    known.insert(reference.to_owned(), Some(count));
    Some(count)
}

/// Returns a schema as a model sees it: `clean` is applied to each text, and keys are escaped.
pub(super) fn visible(schema: &Value, clean: &impl Fn(&str) -> String) -> Value {
    match schema {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(items) => items.iter().map(|item| visible(item, clean)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (crate::text::escape::one_line(key), visible(value, clean)))
            .collect::<serde_json::Map<String, Value>>()
            .into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // proves MCP-5
    #[test]
    fn a_schema_that_multiplies_is_not_bounded() {
        assert!(is_bounded(
            &json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}})
        ));
        let mut defs = serde_json::Map::new();
        for n in 0..30 {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            defs.insert(format!("d{n}"), json!({"anyOf": [next, next]}));
        }
        defs.insert("d30".into(), json!({"type": "string"}));
        assert!(!is_bounded(&json!({"$ref": "#/$defs/d0", "$defs": defs})));
        assert!(!is_bounded(
            &json!({"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}}, "$ref": "#/$defs/x"})
        ));
        assert!(!is_bounded(&json!({"$ref": "#"})));
        assert!(!is_bounded(&json!({"$ref": "http://elsewhere/"})));
    }

    // proves LLM-3
    #[test]
    fn what_is_hidden_in_a_schema_is_shown() {
        let schema =
            json!({"properties": {"a\u{202e}": {"description": "x\u{e0041}", "enum": ["y"]}}});
        let shown = visible(&schema, &|text| crate::text::escape::for_model(text)).to_string();
        assert!(shown.is_ascii(), "{shown}");
    }
}
