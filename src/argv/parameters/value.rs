//! The numbers and strings inside argument values.

use serde_json::Value;

/// Formats a number in plain decimal, without an exponent; `None` if that cannot be exact (ARG-9).
pub(crate) fn plain_number(number: &serde_json::Number) -> Option<String> {
    /// 2^53: above this, `f64` cannot represent every integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.is_i64() || number.is_u64() {
        return Some(number.to_string());
    }
    let float = number.as_f64().filter(|f| f.is_finite() && f.abs() < EXACT)?;
    let plain = format!("{float}");
    Some(if plain == "-0" { "0".to_owned() } else { plain })
}

/// Returns every string in a value, at any depth; object keys are not included.
pub(super) fn texts(value: &Value) -> Box<dyn Iterator<Item = &str> + '_> {
    match value {
        Value::String(text) => Box::new(std::iter::once(text.as_str())),
        Value::Array(items) => Box::new(items.iter().flat_map(texts)),
        Value::Object(fields) => Box::new(fields.values().flat_map(texts)),
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns every number in a scalar or a list; objects are not searched.
pub(super) fn numbers(value: &Value) -> Box<dyn Iterator<Item = &serde_json::Number> + '_> {
    match value {
        Value::Number(number) => Box::new(std::iter::once(number)),
        Value::Array(items) => Box::new(items.iter().flat_map(numbers)),
        _ => Box::new(std::iter::empty()),
    }
}
