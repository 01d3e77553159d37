//! Arguments that arrive in parts, each with a JSON path.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::super::format::{malformed, text};
use crate::agent::ModelError;

/// Maximum length of a list in such arguments.
const MAX_ITEMS: usize = 10_000;

/// Maximum number of steps in a path.
const DEEPEST: usize = 64;

/// Stores one part of the arguments at its path, such as `$.a.b[0]`. A string is appended to an
/// earlier part at the same path.
pub(super) fn put(args: &mut Value, partial: &Value) -> Result<(), ModelError> {
    let path = text(partial, "jsonPath");
    let wrong =
        || malformed(format!("a call has a partial argument with the invalid path `{path}`"));
    let steps = steps(path).ok_or_else(wrong)?;
    let mut at = args;
    for step in &steps {
        at = match step {
            Step::Name(name) => {
                if at.is_null() {
                    *at = json!({});
                }
                at.as_object_mut().ok_or_else(wrong)?.entry(name.as_ref()).or_insert(Value::Null)
            }
            Step::Item(index) => {
                if at.is_null() {
                    *at = json!([]);
                }
                let items = at.as_array_mut().ok_or_else(wrong)?;
                // An index must not skip entries; otherwise, a large index would make us allocate a
                // long list.
                if *index == items.len() {
                    items.push(Value::Null);
                }
                items.get_mut(*index).ok_or_else(wrong)?
            }
        };
    }
    if let Some(piece) = partial.get("stringValue").and_then(Value::as_str) {
        match at {
            Value::String(known) => known.push_str(piece),
            Value::Null => *at = piece.into(),
            _ => return Err(wrong()),
        }
    } else if let Some(value) = partial.get("numberValue").or_else(|| partial.get("boolValue")) {
        *at = value.clone();
    } else if partial.get("nullValue").is_some() {
        *at = Value::Null;
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Step<'a> {
    Name(Cow<'a, str>),
    Item(usize),
}

/// Returns the steps of a path; `None` if the path is invalid.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == DEEPEST {
            return None;
        }
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, tail) = after.split_at_checked(end)?;
            if name.is_empty() {
                return None;
            }
            steps.push(Step::Name(name.into()));
            rest = tail;
        } else if let Some(quoted) = rest.strip_prefix("['").or_else(|| rest.strip_prefix("[\"")) {
            let quote = if rest.starts_with("['") { "']" } else { "\"]" };
            let (name, tail) = quoted.split_once(quote)?;
            steps.push(Step::Name(name.into()));
            rest = tail;
        } else {
            let (index, tail) = rest.strip_prefix('[')?.split_once(']')?;
            steps.push(Step::Item(index.parse().ok().filter(|index| *index < MAX_ITEMS)?));
            rest = tail;
        }
    }
    (!steps.is_empty()).then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_or_refused() {
        let name = |name: &'static str| Step::Name(name.into());
        assert_eq!(
            steps("$.a.b[0]['c d']"),
            Some(vec![name("a"), name("b"), Step::Item(0), name("c d")])
        );
        for wrong in ["", "a", "$", "$..a", "$[x]", "$[99999999]", "$.a[", "$['a"] {
            assert_eq!(steps(wrong), None, "{wrong}");
        }
    }
}
