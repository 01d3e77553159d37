//! Generates JSON Schemas from the raw types and validates files with them.
//!
//! `dutyd schema` prints the schema that the loader validates with. Violations become errors with
//! their locations, until a file has 200. Each invalid part is removed from a copy of the file's
//! value, so that the loader can still check the rest of the entry.

use std::borrow::Cow;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::document::{Document, MAX_ERRORS};
use super::raw::{DURATION, RawJobs, RawScript, RawSettings, RawTools, SIZE};
use super::{ConfigError, remedy, reserved};
use crate::catalogue::CatalogueFile;
use crate::domain::{Event, Line};
use crate::text::suggest::nearest;

/// The kinds of schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaName {
    /// `config.yaml`
    Config,
    /// `jobs.yaml`
    Jobs,
    /// `tools.yaml`
    Tools,
    /// The script of a scripted model.
    Script,
    /// `models.d/*.json`
    Models,
    /// A line of a transcript.
    Event,
}

impl SchemaName {
    /// Returns the argument of `dutyd schema`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Jobs => "jobs",
            Self::Tools => "tools",
            Self::Script => "script",
            Self::Models => "models",
            Self::Event => "event",
        }
    }
}

/// Returns the JSON Schema (draft-07) of a file or of a transcript line.
#[must_use]
pub fn json_schema(name: SchemaName) -> Value {
    let generator = SchemaSettings::draft07().into_generator();
    let schema = match name {
        SchemaName::Config => generator.into_root_schema_for::<RawSettings>(),
        SchemaName::Jobs => generator.into_root_schema_for::<RawJobs>(),
        SchemaName::Tools => generator.into_root_schema_for::<RawTools>(),
        SchemaName::Script => generator.into_root_schema_for::<RawScript>(),
        SchemaName::Models => generator.into_root_schema_for::<CatalogueFile>(),
        SchemaName::Event => return generator.into_root_schema_for::<Line<Event>>().to_value(),
    };
    let mut schema = schema.to_value();
    without_null(&mut schema);
    if let Some(title) = schema.get_mut("title") {
        *title = format!("dutyd {}", name.as_str()).into();
    }
    schema
}

/// Removes null from the types of optional keys, because a key that is present must have a value.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|word| word != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    map.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(branches)) = map.get_mut("anyOf") {
                branches.retain(|branch| branch.get("type").is_none_or(|word| word != "null"));
                if let [only] = branches.as_slice() {
                    let only = only.clone();
                    map.remove("anyOf");
                    map.insert("allOf".to_owned(), Value::Array(vec![only]));
                }
            }
            map.values_mut().for_each(without_null);
        }
        Value::Array(items) => items.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// The compiled schema of one kind of file.
pub(crate) struct FileSchema {
    name: SchemaName,
    schema: Value,
    validator: Option<Validator>,
}

impl FileSchema {
    pub(crate) fn new(name: SchemaName) -> Self {
        let schema = json_schema(name);
        let validator = jsonschema::draft7::options().build(&schema).ok();
        Self { name, schema, validator }
    }

    pub(crate) fn name(&self) -> SchemaName {
        self.name
    }

    /// Validates `document`. Returns the errors, and the value without its invalid parts.
    pub(crate) fn check(&self, document: &Document) -> (Vec<ConfigError>, Value) {
        let mut value = document.value.clone();
        let mut errors = Vec::new();
        let Some(validator) = &self.validator else {
            errors.push(ConfigError::of_file(
                &document.file,
                "the built-in schema does not compile; this is a bug in dutyd",
            ));
            return (errors, value);
        };
        for error in validator.iter_errors(&document.value) {
            self.explain(document, &error, &mut errors, &mut value);
            if errors.len() >= MAX_ERRORS {
                errors.push(ConfigError::of_file(
                    &document.file,
                    format!("this file has more than {MAX_ERRORS} errors: fix these first"),
                ));
                break;
            }
        }
        (errors, value)
    }

    fn explain(
        &self,
        document: &Document,
        error: &ValidationError<'_>,
        errors: &mut Vec<ConfigError>,
        value: &mut Value,
    ) {
        let pointer = error.instance_path().as_str();
        let place = reserved::place_of(self.name.as_str(), pointer);
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let known = self.known_keys(error.schema_path().as_str());
                for name in unexpected.iter().take(MAX_ERRORS) {
                    let below = format!("{pointer}/{}", crate::argv::pointer_segment(name));
                    errors.push(if reserved::is_reserved_key(&place, name) {
                        document
                            .key_error(&below, format!("`{name}` is not in this version"))
                            .with_hint("remove it: it would have no effect")
                    } else {
                        let error = document.key_error(&below, format!("unknown key `{name}`"));
                        let near = nearest(name, known.iter().map(String::as_str));
                        let hint = remedy::of_key(&place, name, document.value.pointer(&below))
                            .or_else(|| near.map(|known| format!("did you mean `{known}`?")));
                        error.with_hint(
                            hint.unwrap_or_else(|| format!("known keys: {}", known.join(", "))),
                        )
                    });
                    cut(value, &below);
                }
            }
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                errors.push(
                    document
                        .error(pointer, format!("`{name}` is missing"))
                        .with_hint(format!("add `{name}:`")),
                );
            }
            ValidationErrorKind::AnyOf { context }
            | ValidationErrorKind::OneOfNotValid { context } => {
                // Assume that the operator meant the branch whose type matches, and report its
                // errors.
                let fits = |branch: &&Vec<ValidationError<'static>>| {
                    !branch.iter().any(|nested| {
                        nested.instance_path().as_str() == pointer
                            && matches!(nested.kind(), ValidationErrorKind::Type { .. })
                    })
                };
                let choices: Vec<String> =
                    context.iter().flatten().flat_map(|nested| choices_of(nested.kind())).collect();
                match context.iter().find(fits) {
                    Some(branch) if choices.is_empty() => {
                        for nested in branch {
                            self.explain(document, nested, errors, value);
                        }
                    }
                    _ => {
                        errors.push(wrong_value(
                            document,
                            pointer,
                            &place,
                            error.instance(),
                            &choices,
                            &kinds_of(context),
                        ));
                        cut(value, pointer);
                    }
                }
            }
            kind => {
                let choices = choices_of(kind);
                errors.push(match kind {
                    ValidationErrorKind::Type { kind } => {
                        let (found, words) = (error.instance(), type_words(kind));
                        let pattern = self.pattern(error.schema_path().as_str());
                        let hint = remedy::of_value(&place, pointer, found, pattern);
                        let error = wrong_value(document, pointer, &place, found, &[], &words);
                        match hint {
                            Some(hint) => error.with_hint(hint),
                            None => error,
                        }
                    }
                    _ if !choices.is_empty() => {
                        wrong_value(document, pointer, &place, error.instance(), &choices, &[])
                    }
                    ValidationErrorKind::Pattern { pattern } => {
                        document.error(pointer, pattern_message(pattern, error.instance()))
                    }
                    _ => document.error(pointer, error.to_string()),
                });
                cut(value, pointer);
            }
        }
    }

    /// Returns the pattern of the string whose `type` failed.
    fn pattern(&self, schema_path: &str) -> Option<&str> {
        let (parent, _) = schema_path.rsplit_once('/')?;
        self.schema.pointer(parent)?.get("pattern")?.as_str()
    }

    /// Returns the known keys of the object whose `additionalProperties` failed.
    fn known_keys(&self, schema_path: &str) -> Vec<String> {
        schema_path
            .rsplit_once('/')
            .and_then(|(parent, _)| self.schema.pointer(parent))
            .and_then(|parent| parent.get("properties"))
            .and_then(Value::as_object)
            .map(|properties| properties.keys().cloned().collect())
            .unwrap_or_default()
    }
}

fn wrong_value(
    document: &Document,
    pointer: &str,
    place: &str,
    found: &Value,
    choices: &[String],
    kinds: &[&str],
) -> ConfigError {
    if found.is_object() && reserved::is_reserved_mapping(place) {
        return document
            .error(pointer, "a mapping here is not in this version")
            .with_hint(format!("write {}", kinds.join(" or ")));
    }
    let mut expected: Vec<Cow<'_, str>> =
        choices.iter().map(|choice| Cow::Owned(format!("`{choice}`"))).collect();
    // The choices are strings, so "a string" would repeat them.
    expected.extend(
        kinds
            .iter()
            .filter(|kind| choices.is_empty() || **kind != "a string")
            .map(|kind| Cow::Borrowed(*kind)),
    );
    let error = document
        .error(pointer, format!("expected {}, found {}", expected.join(" or "), describe(found)));
    let known = choices.iter().map(String::as_str);
    match found.as_str().and_then(|text| nearest(text, known)) {
        Some(near) => error.with_hint(format!("did you mean `{near}`?")),
        None => error,
    }
}

fn choices_of(kind: &ValidationErrorKind) -> Vec<String> {
    match kind {
        ValidationErrorKind::Enum { options } => options
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|option| option.as_str().map(str::to_owned))
            .collect(),
        ValidationErrorKind::Constant { expected_value } => {
            expected_value.as_str().map(str::to_owned).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn kinds_of(context: &[Vec<ValidationError<'static>>]) -> Vec<&'static str> {
    let mut kinds: Vec<&'static str> = context
        .iter()
        .flatten()
        .filter_map(|nested| match nested.kind() {
            ValidationErrorKind::Type { kind } => Some(type_words(kind)),
            _ => None,
        })
        .flatten()
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn type_words(kind: &TypeKind) -> Vec<&'static str> {
    let word = |name: &str| match name {
        "string" => "a string",
        "integer" => "an integer",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        "object" => "a mapping",
        _ => "nothing",
    };
    match kind {
        TypeKind::Single(name) => vec![word(name.as_str())],
        TypeKind::Multiple(names) => names.iter().map(|name| word(name.as_str())).collect(),
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("`{value}`"),
        // The beginning of a long string could be part of a secret, which would not be redacted.
        Value::String(text) => match text.chars().count() {
            0..=60 => format!("the string `{text}`"),
            count => format!("a string of {count} characters"),
        },
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}

fn pattern_message(pattern: &str, found: &Value) -> String {
    let found = found.as_str().unwrap_or_default();
    match pattern {
        DURATION => format!(
            "`{found}` is not a duration: write a number and a unit, such as 90s, 15m, 2h or 1d"
        ),
        SIZE => {
            format!("`{found}` is not a size: write a number and a unit, such as 200KB or 64MiB")
        }
        _ => format!("`{found}` does not match {pattern}"),
    }
}

/// Tells whether the list at `pointer` contains tool names. In such a list, an invalid entry must
/// not hide errors in the other entries.
fn is_list_of_names(pointer: &str) -> bool {
    matches!(
        pointer.split('/').skip(1).collect::<Vec<_>>().as_slice(),
        ["jobs", _, "tools", "read" | "write" | "admin" | "approve" | "deny"]
    )
}

/// Tells whether a tool in the list at `pointer` is always a name. In the other lists, it can be a
/// mapping.
fn takes_only_names(pointer: &str) -> bool {
    is_list_of_names(pointer) && (pointer.ends_with("/approve") || pointer.ends_with("/deny"))
}

/// Removes the value at `pointer` from its object. An entry of a list is replaced by a placeholder,
/// or removed with its whole list.
fn cut(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    let last = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(map)) => drop(map.shift_remove(&last)),
        Some(Value::Array(items)) => {
            match last.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                // Replace the entry instead of removing it, so that the other entries keep their
                // positions. Later checks skip null entries and empty names.
                Some(item) if item.is_object() && !takes_only_names(parent) => {
                    *item = Value::Object(serde_json::Map::new());
                }
                Some(item) if is_list_of_names(parent) => *item = Value::String(String::new()),
                Some(item) if parent == "/jobs" || parent == "/tools" => *item = Value::Null,
                Some(_) => cut(value, parent),
                None => {}
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loader redacts only finished messages. If a message quoted only a part of a secret,
    /// redaction would not find that part.
    // proves SEC-2
    #[test]
    fn a_long_text_is_not_quoted_in_part() {
        assert_eq!(describe(&"x".repeat(61).into()), "a string of 61 characters");
        assert_eq!(describe(&"x".into()), "the string `x`");
    }
}
