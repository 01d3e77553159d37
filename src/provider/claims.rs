//! Collects what the body of an error says, also where one error is nested in another.
//!
//! Gateways wrap the error of a provider: in an object, in a list, or as JSON inside a message. The
//! innermost error is the most exact, so it comes first. The body is hostile: depth and number of the
//! claims are limited.

use serde_json::Value;

use crate::agent::Claim;

/// The deepest nesting that is read, and the most entries of a list.
const MAX_DEPTH: usize = 6;
const MAX_ENTRIES: usize = 8;

/// The most claims of one body.
const MAX_CLAIMS: usize = 64;

/// The keys under which an error holds another one.
const NESTED: &[&str] =
    &["error", "upstream_error", "message", "detail", "metadata", "raw", "cause"];

/// Returns the claims of a body, the innermost first. `parsed` is null if the body is not JSON.
pub(super) fn of_body(parsed: &Value, body: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    let is_page = body.trim_start().starts_with('<');
    if parsed.is_null() && !is_page && !body.trim().is_empty() {
        claims.push(Claim { message: body.to_owned(), ..Claim::default() });
    }
    collect(parsed, 0, &mut claims);
    claims.truncate(MAX_CLAIMS);
    claims.reverse();
    claims
}

fn collect(value: &Value, depth: usize, claims: &mut Vec<Claim>) {
    if depth > MAX_DEPTH || claims.len() >= MAX_CLAIMS {
        return;
    }
    match value {
        Value::Array(items) => {
            items.iter().take(MAX_ENTRIES).for_each(|item| collect(item, depth + 1, claims));
        }
        Value::Object(_) => {
            claims.extend(of_object(value));
            let nested = NESTED.iter().filter_map(|key| value.get(*key));
            nested.for_each(|inner| collect(inner, depth + 1, claims));
        }
        Value::String(text) => {
            let inner = text
                .find('{')
                .and_then(|at| text.get(at..))
                .map(|text| serde_json::Deserializer::from_str(text).into_iter::<Value>().next());
            if let Some(Some(Ok(inner))) = inner {
                collect(&inner, depth + 1, claims);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the claims of one object, the most exact last.
fn of_object(object: &Value) -> Vec<Claim> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let code = match object.get("code") {
        Some(Value::String(code)) => code.clone(),
        Some(Value::Number(code)) => code.to_string(),
        _ => text("type").to_owned(),
    };
    let mut claims = Vec::new();
    for key in ["detail", "error", "message", "msg"] {
        if let Some(message) = object.get(key).and_then(Value::as_str).filter(|m| !m.is_empty()) {
            claims.push(Claim { parameter: None, code: code.clone(), message: message.to_owned() });
        }
    }
    for (description, field) in violations(object) {
        let named = description.split_once("Unknown name \"").and_then(|(_, rest)| {
            let (name, _) = rest.split_once('"')?;
            Some(if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") })
        });
        claims.extend(named.map(|name| Claim {
            parameter: Some(name),
            code: "unknown_parameter".to_owned(),
            message: description.to_owned(),
        }));
    }
    let is_name =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '*' | '[' | ']' | '-');
    let named = object.get("param").and_then(Value::as_str);
    if let Some(name) = named.filter(|name| !name.is_empty() && name.chars().all(is_name)) {
        let code = object.get("code").and_then(Value::as_str).unwrap_or_default().to_owned();
        let message = text("message").to_owned();
        claims.push(Claim { parameter: Some(name.to_owned()), code, message });
    } else if let Some(message) = named.filter(|text| text.contains(' ')) {
        // MiMo writes its message here.
        claims.push(Claim { parameter: None, code, message: message.to_owned() });
    }
    if let Some(path) = object.get("loc").and_then(Value::as_array) {
        let parts = path.iter().map(|part| part.as_str().map_or(part.to_string(), str::to_owned));
        let parameter = Some(parts.collect::<Vec<_>>().join("."));
        let (code, message) = (text("type").to_owned(), text("msg").to_owned());
        claims.push(Claim { parameter, code, message });
    }
    claims
}

/// Returns the descriptions and fields of Google's `fieldViolations`.
fn violations(object: &Value) -> impl Iterator<Item = (&str, &str)> {
    let details = object.get("details").and_then(Value::as_array).into_iter().flatten();
    let lists = details.filter_map(|detail| detail.get("fieldViolations")?.as_array());
    lists.flatten().map(|violation| {
        let text = |key: &str| violation.get(key).and_then(Value::as_str).unwrap_or_default();
        (text("description"), text("field"))
    })
}
