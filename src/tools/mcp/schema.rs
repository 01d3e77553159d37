//! The schemas that a server declares: the form that providers and our validation accept, a limit
//! on the cost of validation, and the form that a model sees.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::argv::{Parameters, pointer_segment};

/// Maximum parts (JSON values) of a schema after every reference in it is followed.
const MAX_PARTS: u64 = 20_000;

/// Maximum levels of a schema, with every reference in it followed.
const DEEPEST: usize = 128;

/// Keys whose values are data, not schemas.
const DATA: [&str; 4] = ["enum", "const", "default", "examples"];

/// Returns a schema that accepts at least what `schema` accepts; the server checks the rest itself.
/// A reference that leads back to a schema around it accepts anything, and a pattern that needs
/// backtracking, such as one with a look-ahead, is left out.
pub(super) fn simplify(schema: &Value) -> Value {
    let (open, done, circular) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let mut walk = Walk { root: schema, open, done, circular };
    walk.visit("", schema, 0);
    let mut simple = schema.clone();
    for (pointer, reference) in walk.circular {
        if let Some(Value::Object(fields)) = simple.pointer_mut(&pointer) {
            fields.retain(|key, _| !is_reference(key));
            let says = || Value::String(format!("as {reference}"));
            fields.entry("description").or_insert_with(says);
        }
    }
    drop_patterns(&mut simple);
    simple
}

/// Finds the references that close a circle: those to a schema that is being visited, or to one
/// that contains it.
struct Walk<'a> {
    root: &'a Value,
    /// The pointers of the schemas that are being visited.
    open: BTreeSet<String>,
    done: BTreeSet<String>,
    /// The pointer of each object with such a reference, and the reference.
    circular: BTreeMap<String, String>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, pointer: &str, value: &'a Value, depth: usize) {
        if depth > DEEPEST || self.done.contains(pointer) {
            return;
        }
        self.open.insert(pointer.to_owned());
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.visit(&format!("{pointer}/{at}"), item, depth + 1);
                }
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    match field {
                        Value::String(reference) if is_reference(key) => {
                            self.follow(pointer, reference, depth);
                        }
                        _ => {
                            let inner = format!("{pointer}/{}", pointer_segment(key));
                            self.visit(&inner, field, depth + 1);
                        }
                    }
                }
            }
            _ => {}
        }
        self.open.remove(pointer);
        self.done.insert(pointer.to_owned());
    }

    fn follow(&mut self, pointer: &str, reference: &str, depth: usize) {
        let root = self.root;
        let target = reference.strip_prefix('#');
        let Some((target, value)) = target.and_then(|to| Some((to, root.pointer(to)?))) else {
            // It leads nowhere; `is_bounded` rejects it.
            return;
        };
        let below = format!("{target}/");
        let mut after = self.open.range(below.clone()..);
        let contains_open = after.next().is_some_and(|open| open.starts_with(&below));
        if contains_open || self.open.contains(target) {
            self.circular.insert(pointer.to_owned(), reference.to_owned());
        } else {
            self.visit(target, value, depth + 1);
        }
    }
}

fn is_reference(key: &str) -> bool {
    matches!(key, "$ref" | "$dynamicRef" | "$recursiveRef")
}

fn drop_patterns(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(drop_patterns),
        Value::Object(fields) => {
            fields.retain(|key, field| match field {
                Value::String(pattern) if key == "pattern" => is_linear(pattern),
                _ => true,
            });
            drop_pattern_properties(fields);
            let inner = fields.iter_mut().filter(|(key, _)| !DATA.contains(&key.as_str()));
            inner.for_each(|(_, field)| drop_patterns(field));
        }
        _ => {}
    }
}

fn drop_pattern_properties(fields: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = fields.get_mut("patternProperties") else { return };
    let before = patterns.len();
    patterns.retain(|pattern, _| is_linear(pattern));
    if patterns.len() < before {
        // Without its pattern, a property would count as an additional one.
        fields.retain(|key, _| key != "additionalProperties");
    }
}

/// Tells whether our validation can check a pattern, in linear time.
fn is_linear(pattern: &str) -> bool {
    Parameters::of_schema(json!({"type": "string", "pattern": pattern})).is_ok()
}

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
                let more = match field {
                    Value::String(reference) if is_reference(key) => {
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

    #[test]
    fn a_circle_is_cut_and_a_pattern_that_needs_backtracking_is_left_out() {
        let check = |schema: Value, expected: Value| {
            let simple = simplify(&schema);
            assert_eq!(simple, expected);
            assert!(is_bounded(&simple), "{simple}");
            assert!(Parameters::of_schema(simple).is_ok());
        };
        let node = |child: Value| json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"items": child}}});
        let cut = |of: &str| json!({"description": format!("as {of}")});
        check(node(json!({"$ref": "#/$defs/a~1b"})), node(cut("#/$defs/a~1b")));
        check(node(json!({"$ref": "#"})), node(cut("#")));
        check(node(json!({"$ref": "#/$defs"})), node(cut("#/$defs")));
        check(node(json!({"type": "string"})), node(json!({"type": "string"})));
        check(
            json!({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
            json!({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"not": cut("#/$defs/a")}}}),
        );
        check(
            json!({"properties": {"a": {"type": "string", "pattern": "^(?!x)"}, "pattern": {"pattern": "^x$"}}, "enum": [{"pattern": "(?=x)"}]}),
            json!({"properties": {"a": {"type": "string"}, "pattern": {"pattern": "^x$"}}, "enum": [{"pattern": "(?=x)"}]}),
        );
        check(
            json!({"patternProperties": {"(?<=x)y": {}, "z": {}}, "additionalProperties": false}),
            json!({"patternProperties": {"z": {}}}),
        );
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
