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

/// Keys whose values are maps from names to schemas. The names are not keys of a schema.
const MAPS: [&str; 5] =
    ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];

/// Returns a schema that accepts at least what `schema` accepts; the server checks the rest itself.
/// A reference that leads back to a schema around it accepts anything, and a pattern that needs
/// backtracking, such as one with a look-ahead, is left out. So are the forms of older drafts.
pub(super) fn simplify(schema: &Value) -> Value {
    let schema = &mended(schema);
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

/// Returns a schema with forms of older drafts and of careless servers replaced: a limit or a
/// `required` that is true or false is left out, and an empty list becomes the empty object that it
/// stands for.
fn mended(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        let items = schema.as_array().map(|items| items.iter().map(mended).collect());
        return items.unwrap_or_else(|| schema.clone());
    };
    let is_kept = |key: &str, field: &Value| match key {
        "exclusiveMinimum" | "exclusiveMaximum" | "required" => !field.is_boolean(),
        _ => true,
    };
    let fields = fields.iter().filter(|(key, field)| is_kept(key, field));
    let fields = fields.map(|(key, field)| {
        let is_map = MAPS.contains(&key.as_str());
        let is_empty = field.is_null() || field.as_array().is_some_and(Vec::is_empty);
        let field = match field {
            // PHP writes an empty object as an empty list.
            _ if is_map && is_empty => json!({}),
            Value::Object(named) if is_map => {
                named.iter().map(|(name, schema)| (name.clone(), mended(schema))).collect()
            }
            _ if DATA.contains(&key.as_str()) => field.clone(),
            _ => mended(field),
        };
        (key.clone(), field)
    });
    Value::Object(fields.collect())
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

/// Keys that providers reject at the top of a schema, beside those of [`BRANCHES`].
const NOT_AT_TOP: [&str; 6] = ["not", "if", "then", "else", "enum", "const"];

/// Keys at the top of a schema that list further schemas.
const BRANCHES: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Returns a schema of an object in the form that every provider accepts, for the request to a
/// model. It accepts at least what `schema` accepts, with which we check the arguments.
///
/// Providers reject a whole request if one tool has alternatives or a reference at the top of its
/// schema, no `properties`, a list without `items`, or true as the schema of a property.
pub(super) fn offered(schema: &Value) -> Value {
    let mut offered = schema.clone();
    let Value::Object(fields) = &mut offered else { return offered };
    let mut properties = match fields.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    let listed = BRANCHES.iter().filter_map(|key| fields.remove(*key));
    let mut branches: Vec<Value> =
        listed.filter_map(|branches| branches.as_array().cloned()).flatten().collect();
    if let Some(reference) = fields.remove("$ref") {
        branches.push(json!({"$ref": reference}));
    }
    fields.retain(|key, _| !NOT_AT_TOP.contains(&key.as_str()));
    for branch in &branches {
        let target = branch.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|to| schema.pointer(to.strip_prefix('#')?));
        let found = target.unwrap_or(branch).get("properties").and_then(Value::as_object);
        for (name, property) in found.into_iter().flatten() {
            properties.entry(name.clone()).or_insert_with(|| property.clone());
        }
    }
    fields.insert("properties".to_owned(), properties.into());
    adapt(&mut offered);
    offered
}

/// Replaces the parts of a schema that a provider rejects at any level.
fn adapt(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(adapt),
        Value::Object(fields) => {
            if let Some(Value::Object(properties)) = fields.get_mut("properties") {
                let truths = properties.values_mut().filter(|property| property.is_boolean());
                truths.for_each(|property| *property = json!({}));
            }
            let is_list = |kind: &Value| kind == "array";
            let lists = fields.get("type").is_some_and(|kind| {
                is_list(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_list))
            });
            let items = match fields.get("items") {
                Some(Value::Array(items)) if !items.is_empty() => Some(json!({"anyOf": items})),
                Some(Value::Object(_)) => None,
                None if !lists => None,
                Some(_) | None => Some(json!({})),
            };
            fields.extend(items.map(|items| ("items".to_owned(), items)));
            fields.iter_mut().for_each(|(key, field)| match field {
                Value::Object(named) if MAPS.contains(&key.as_str()) => {
                    named.values_mut().for_each(adapt);
                }
                field if !DATA.contains(&key.as_str()) => adapt(field),
                _ => {}
            });
        }
        _ => {}
    }
}

/// Renames the properties at the top of a schema whose names providers reject, such as `$filter`.
/// Returns the server's name of each by the name that the model sees.
///
/// *Source*: Anthropic takes `^[a-zA-Z0-9_.-]{1,64}$` and rejects the whole request otherwise.
pub(super) fn rename_properties(offered: &mut Value) -> BTreeMap<String, String> {
    let is_taken = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let mut renamed = BTreeMap::new();
    let Value::Object(fields) = offered else { return renamed };
    let Some(Value::Object(properties)) = fields.get_mut("properties") else { return renamed };
    let is_odd = |name: &String| name.is_empty() || name.len() > 64 || !name.chars().all(is_taken);
    let odd: Vec<String> = properties.keys().filter(|name| is_odd(name)).cloned().collect();
    for own in odd {
        let plain = own.chars().map(|c| if is_taken(c) { c } else { '_' }).take(60);
        let plain: String = plain.collect();
        let mut names = std::iter::once(plain.clone())
            .chain((2..).map(|number| format!("{plain}_{number}")))
            .filter(|name| !name.is_empty() && !properties.contains_key(name));
        let Some(name) = names.next() else { continue };
        drop(names);
        let Some(property) = properties.remove(&own) else { continue };
        properties.insert(name.clone(), property);
        renamed.insert(name, own);
    }
    if let Some(Value::Array(required)) = fields.get_mut("required") {
        for property in required {
            let found = renamed.iter().find(|(_, own)| *property == own.as_str());
            if let Some((name, _)) = found {
                *property = name.as_str().into();
            }
        }
    }
    renamed
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

    #[test]
    fn forms_of_older_drafts_and_empty_lists_are_used() {
        let schema = json!({
            "properties": {
                "n": {"type": "number", "minimum": 0, "exclusiveMinimum": true, "required": true},
                "o": {"type": "object", "properties": [], "default": {"properties": []}},
            },
            "required": ["n"],
        });
        let expected = json!({
            "properties": {
                "n": {"type": "number", "minimum": 0},
                "o": {"type": "object", "properties": {}, "default": {"properties": []}},
            },
            "required": ["n"],
        });
        assert_eq!(simplify(&schema), expected);
        assert!(Parameters::of_schema(expected).is_ok());
    }

    #[test]
    fn a_schema_is_offered_in_a_form_that_every_provider_accepts() {
        let check = |schema: Value, expected: Value| assert_eq!(offered(&schema), expected);
        check(json!({"type": "object"}), json!({"type": "object", "properties": {}}));
        let text = json!({"type": "string"});
        check(
            json!({"type": "object", "properties": {"a": text}, "required": ["a"], "oneOf": [{"properties": {"b": text}}, {"$ref": "#/$defs/x"}], "not": {}, "$defs": {"x": {"properties": {"c": text}}}}),
            json!({"type": "object", "properties": {"a": text, "b": text, "c": text}, "required": ["a"], "$defs": {"x": {"properties": {"c": text}}}}),
        );
        check(
            json!({"type": "object", "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"c": text}}}}),
            json!({"type": "object", "properties": {"c": text}, "$defs": {"x": {"properties": {"c": text}}}}),
        );
        let list = |items: Value| json!({"type": "object", "properties": {"a": items}});
        check(
            list(json!({"type": ["array", "null"]})),
            list(json!({"type": ["array", "null"], "items": {}})),
        );
        check(
            list(json!({"type": "array", "items": [text, text]})),
            list(json!({"type": "array", "items": {"anyOf": [text, text]}})),
        );
        check(list(json!(true)), list(json!({})));
        // Names of parameters are not keys of a schema.
        let unique = json!({"type": "array", "items": text, "uniqueItems": true});
        for name in ["properties", "items", "type"] {
            let named = json!({"type": "object", "properties": {name: unique.clone()}});
            check(named.clone(), named);
        }
        check(
            json!({"type": "object", "properties": {"default": {"type": "array"}}}),
            json!({"type": "object", "properties": {"default": {"type": "array", "items": {}}}}),
        );
        let required = json!({"properties": {"required": true, "properties": unique}});
        assert_eq!(simplify(&required), required);
        check(
            list(json!({"enum": [{"type": "array"}]})),
            list(json!({"enum": [{"type": "array"}]})),
        );
    }

    #[test]
    fn a_property_whose_name_providers_reject_is_offered_under_another() {
        let mut offered = json!({
            "properties": {"$top": {}, "_top": {}, "user[name]": {}, "plain-1.x": {}, "é": {}},
            "required": ["$top", "_top"],
        });
        let renamed = rename_properties(&mut offered);
        assert_eq!(
            offered,
            json!({
                "properties": {"_top_2": {}, "_top": {}, "user_name_": {}, "plain-1.x": {}, "_": {}},
                "required": ["_top_2", "_top"],
            })
        );
        let pairs: Vec<_> =
            renamed.iter().map(|(name, own)| (name.as_str(), own.as_str())).collect();
        assert_eq!(pairs, [("_", "é"), ("_top_2", "$top"), ("user_name_", "user[name]")]);
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
