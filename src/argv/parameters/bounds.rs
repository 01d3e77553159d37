//! Finds schema keywords that cannot work: those for another type, those that no value satisfies,
//! references to other documents, and patterns that do not run in linear time.

use regex::Regex;
use serde_json::{Map, Value};

use crate::argv::{Diagnostic, pointer_segment};
use crate::text::suggest::nearest;

/// Reports each keyword that no value satisfies. With such a keyword, the tool could never be
/// called, or the condition could never hold.
pub(super) fn check_satisfiable(
    schema: &Map<String, Value>,
    pointer: &str,
    errors: &mut Vec<Diagnostic>,
) {
    if schema.get("enum").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        errors.push(Diagnostic::new(format!("{pointer}/enum"), "an empty `enum` admits no value"));
    }
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    for (least, most, is_open) in [
        ("minimum", "maximum", false),
        ("minimum", "exclusiveMaximum", true),
        ("exclusiveMinimum", "maximum", true),
        ("exclusiveMinimum", "exclusiveMaximum", true),
        ("minLength", "maxLength", false),
        ("minItems", "maxItems", false),
    ] {
        if let (Some(low), Some(high)) = (bound(least), bound(most))
            && (low > high || is_open && low >= high)
        {
            let message = format!("`{least}: {low}` and `{most}: {high}` admit no value");
            errors.push(Diagnostic::new(format!("{pointer}/{least}"), message));
        }
    }
    let is_integer = schema.get("type").and_then(Value::as_str) == Some("integer");
    if let (Some(low), Some(high)) = (bound("minimum"), bound("maximum"))
        && is_integer
        && low <= high
        && low.ceil() > high.floor()
    {
        let message = format!("there is no integer from `minimum: {low}` to `maximum: {high}`");
        errors.push(Diagnostic::new(format!("{pointer}/minimum"), message));
    }
}

/// Reports each keyword that does not apply to values of this type. JSON Schema ignores such a
/// keyword, so a condition would always hold.
pub(crate) fn check_applies(
    schema: &Map<String, Value>,
    kind: &str,
    pointer: &str,
    errors: &mut Vec<Diagnostic>,
) {
    let applies = |keyword: &str| match keyword {
        "pattern" | "minLength" | "maxLength" | "format" => kind == "string",
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
            matches!(kind, "integer" | "number")
        }
        "items" | "minItems" | "maxItems" | "uniqueItems" => kind == "array",
        _ => true,
    };
    for (keyword, value) in schema {
        let here = format!("{pointer}/{}", pointer_segment(keyword));
        if !applies(keyword) {
            let error = Diagnostic::new(
                &here,
                format!("`{keyword}` does not apply to a value of type {kind}"),
            );
            errors.push(if kind == "array" {
                error.with_hint("put it under `items:`, which applies to each item")
            } else {
                error
            });
        }
        match (keyword.as_str(), value) {
            ("not", Value::Object(inner)) => check_applies(inner, kind, &here, errors),
            ("anyOf" | "allOf" | "oneOf", Value::Array(parts)) => {
                for (at, part) in
                    parts.iter().enumerate().filter_map(|(at, part)| Some((at, part.as_object()?)))
                {
                    check_applies(part, kind, &format!("{here}/{at}"), errors);
                }
            }
            _ => {}
        }
    }
}

/// Reports each keyword that no value satisfies, each reference to another document and each pattern
/// that does not run in linear time, and each unknown keyword, in a schema and in every schema below it.
pub(crate) fn check_subschemas(schema: &Map<String, Value>, pointer: &str) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    check_satisfiable(schema, pointer, &mut errors);
    check_required(schema, pointer, &mut errors);
    check_keywords(schema, pointer, &mut errors);
    let text = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
    if text("$ref").is_some_and(|target| !target.starts_with('#')) {
        let message = "a schema may only refer to itself: begin the reference with `#`";
        errors.push(Diagnostic::new(format!("{pointer}/$ref"), message));
    }
    if let Some(error) = text("pattern").and_then(|pattern| Regex::new(pattern).err()) {
        let message = format!("not a regular expression that runs in linear time: {error}");
        errors.push(Diagnostic::new(format!("{pointer}/pattern"), message));
    }
    for (keyword, value) in schema {
        let here = format!("{pointer}/{}", pointer_segment(keyword));
        match (keyword.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(parts),
            ) => {
                for (name, part) in parts {
                    let below = format!("{here}/{}", pointer_segment(name));
                    errors.extend(
                        part.as_object()
                            .map(|part| check_subschemas(part, &below))
                            .into_iter()
                            .flatten(),
                    );
                }
            }
            (
                "items"
                | "additionalItems"
                | "additionalProperties"
                | "contains"
                | "not"
                | "if"
                | "then"
                | "else"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                Value::Object(part),
            ) => {
                errors.extend(check_subschemas(part, &here));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(parts)) => {
                for (at, part) in parts.iter().enumerate() {
                    let below = format!("{here}/{at}");
                    errors.extend(
                        part.as_object()
                            .map(|part| check_subschemas(part, &below))
                            .into_iter()
                            .flatten(),
                    );
                }
            }
            _ => {}
        }
    }
    errors
}

/// Reports each required property that the schema itself excludes.
fn check_required(schema: &Map<String, Value>, pointer: &str, errors: &mut Vec<Diagnostic>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
        && !schema.contains_key("patternProperties");
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        let is_excluded = match properties.and_then(|properties| properties.get(name)) {
            Some(property) => *property == Value::Bool(false),
            None => is_closed,
        };
        if is_excluded {
            let message = format!("`{name}` is required, but the schema does not admit it");
            errors.push(Diagnostic::new(format!("{pointer}/required"), message));
        }
    }
}

/// The keywords of JSON Schema, drafts 7 and 2020-12.
const KEYWORDS: &str = "\
    $schema $id $ref $defs definitions $anchor $dynamicRef $dynamicAnchor $comment title description default examples \
    deprecated readOnly writeOnly type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum \
    maxLength minLength pattern format contentEncoding contentMediaType contentSchema items prefixItems \
    additionalItems contains maxContains minContains maxItems minItems uniqueItems properties patternProperties \
    additionalProperties propertyNames maxProperties minProperties required dependencies dependentRequired \
    dependentSchemas unevaluatedProperties unevaluatedItems allOf anyOf oneOf not if then else";

/// Reports each keyword that JSON Schema does not know, and would ignore.
fn check_keywords(schema: &Map<String, Value>, pointer: &str, errors: &mut Vec<Diagnostic>) {
    let known = || KEYWORDS.split_ascii_whitespace();
    for keyword in schema.keys().filter(|keyword| known().all(|known| known != *keyword)) {
        let here = format!("{pointer}/{}", pointer_segment(keyword));
        let error = Diagnostic::new(here, format!("unknown keyword `{keyword}` in a schema"));
        errors.push(match nearest(keyword, known()) {
            Some(name) => error.with_hint(format!("did you mean `{name}`?")),
            None => error,
        });
    }
}
