//! The formats of strings. The schema validator checks most of them; the gate judges `path` and
//! `url`.

use serde_json::{Map, Value};

use super::value::texts;
use super::{Diagnostic, Parameters};

/// Formats that the schema validator checks.
const CHECKED: &[&str] =
    &["date", "date-time", "time", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "regex"];

/// The kind of resource that a parameter names for the tool's program (ARG-12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// A file or directory; the gate judges it like a path of the file tools.
    Path,
    /// A URL; the gate judges it like a URL of `web_fetch`.
    Url,
}

impl Names {
    fn of_word(word: &str) -> Option<Self> {
        match word {
            "path" => Some(Self::Path),
            "url" => Some(Self::Url),
            _ => None,
        }
    }

    /// Returns the kind of resource that the `format` of `element` declares. `element` is the
    /// schema of a parameter, or of its items if it is a list.
    pub(super) fn of(element: Option<&Map<String, Value>>) -> Option<Self> {
        element?.get("format")?.as_str().and_then(Self::of_word)
    }
}

/// Tells whether the schema validator checks a format. Returns `false` for a format that the gate
/// judges; the caller then removes it from the schema.
///
/// *Errors*: the format is unknown.
pub(super) fn is_checked(format: &str, here: &str) -> Result<bool, Diagnostic> {
    if Names::of_word(format).is_some() {
        return Ok(false);
    }
    if CHECKED.contains(&format) {
        return Ok(true);
    }
    Err(Diagnostic::new(here, format!("unknown format `{format}`"))
        .with_hint(format!("known formats: path, url, {}", CHECKED.join(", "))))
}

/// Counts the formats in a schema, at every depth. Only formats that the gate judges count.
pub(crate) fn judged_formats(schema: &Map<String, Value>) -> usize {
    fn of_value(value: &Value) -> usize {
        match value {
            Value::Object(schema) => judged_formats(schema),
            Value::Array(items) => items.iter().map(of_value).sum(),
            _ => 0,
        }
    }
    let own = usize::from(Names::of(Some(schema)).is_some());
    own + schema.values().map(of_value).sum::<usize>()
}

impl Parameters {
    /// Returns the resources that validated arguments name, as (parameter, kind, value).
    pub fn named<'a>(
        &'a self,
        arguments: &'a Map<String, Value>,
    ) -> impl Iterator<Item = (&'a str, Names, &'a str)> {
        self.list.iter().flat_map(|(name, parameter)| {
            let values = arguments.get(name).into_iter().flat_map(texts);
            values.filter_map(|text| Some((name.as_str(), parameter.names?, text)))
        })
    }
}
