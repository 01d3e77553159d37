//! Finds schema keywords that cannot work: those for another type, and those that no value
//! satisfies.

use serde_json::{Map, Value};

use crate::argv::{Diagnostic, pointer_segment};

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
