//! The parameters of a tool: one JSON Schema that the model sees and that validates its calls.
//!
//! A keyword that JSON Schema would ignore is an error in the declaration. Validation is stricter
//! than the schema alone: it applies default byte limits and rejects empty strings unless they are
//! allowed. Later stages judge, record, render and show valid arguments unchanged.

mod bounds;
mod format;
mod value;
mod whole;

pub use format::Names;
pub(crate) use format::judged_formats;
pub(crate) use value::plain_number;
use value::{numbers, texts};

use std::collections::BTreeMap;
use std::sync::Arc;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value, json};

use bounds::check_satisfiable;
pub(crate) use bounds::{check_applies, check_subschemas};

use super::{Diagnostic, pattern, pointer_segment};
use crate::domain::{CallError, ErrorKind};
use crate::text::redact::MARKER;
use crate::text::suggest::nearest;

/// Limit on a string without `maxLength`, in bytes, inclusive (ARG-7).
pub const DEFAULT_STRING_BYTES: usize = 4096;

/// Limit on the number of problems that one error reports to the model.
const TOLD_ERRORS: usize = 5;

/// Number of characters after which the text of a schema problem is cut.
const TOLD_CHARACTERS: usize = 300;

const SCHEMA_KEYWORDS: &[&str] = &[
    "type",
    "enum",
    "const",
    "title",
    "description",
    "examples",
    "pattern",
    "minLength",
    "maxLength",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "not",
    "anyOf",
    "allOf",
    "oneOf",
];

const OWN_KEYWORDS: &[&str] =
    &["optional", "default", "allow_leading_dash", "multiline", "unsafe_interpreter"];

/// The type of a parameter, or of the items of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Boolean,
}

/// The settings of a parameter beyond JSON Schema, and the facts that rendering needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    pub(crate) list: bool,
    pub(crate) optional: bool,
    pub(crate) default: Option<Value>,
    pub(crate) allow_leading_dash: bool,
    pub(crate) multiline: bool,
    pub(crate) unsafe_interpreter: bool,
    /// The kind of resource that a value names, if the gate judges it.
    pub(crate) names: Option<Names>,
    /// The strings of `enum` or `const`; empty without either.
    pub(crate) choices: Vec<String>,
    /// Whether the schema admits values that begin with a dash and are not in `choices`.
    pub(crate) dash_possible: bool,
    has_max_length: bool,
    may_be_empty: bool,
}

/// The compiled parameters of a tool.
#[derive(Debug, Clone)]
pub struct Parameters {
    schema: Value,
    validator: Arc<Validator>,
    list: BTreeMap<String, Parameter>,
}

impl PartialEq for Parameters {
    fn eq(&self, other: &Self) -> bool {
        self.schema == other.schema && self.list == other.list
    }
}

impl Parameters {
    /// Compiles the `parameters` of a declaration, and returns all errors with pointers that begin
    /// with `/parameters`. The result has the valid parameters even if others are invalid, so that
    /// the caller can check the templates that use them.
    pub(crate) fn compile(declared: &Map<String, Value>) -> (Option<Self>, Vec<Diagnostic>) {
        let mut errors = Vec::new();
        let mut list = BTreeMap::new();
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, declaration) in declared {
            let pointer = format!("/parameters/{}", pointer_segment(name));
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                errors.push(Diagnostic::new(
                    &pointer,
                    format!("the parameter name `{name}` may contain only letters, digits and `_`"),
                ));
                continue;
            }
            let Some(declaration) = declaration.as_object() else {
                errors.push(Diagnostic::new(&pointer, "a parameter must be a JSON Schema object"));
                continue;
            };
            if let Some((parameter, schema)) = compile_one(declaration, &pointer, &mut errors) {
                if !parameter.optional && parameter.default.is_none() {
                    required.push(Value::from(name.as_str()));
                }
                list.insert(name.clone(), parameter);
                properties.insert(name.clone(), schema);
            }
        }
        let schema = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        match build(&schema) {
            Ok(validator) => {
                let parameters = Self { schema, validator: Arc::new(validator), list };
                parameters.check_defaults(&mut errors);
                (Some(parameters), errors)
            }
            Err(message) => {
                errors.push(Diagnostic::new("/parameters", message));
                (None, errors)
            }
        }
    }

    /// Returns the type of a parameter, and that of its items if it is a list.
    pub(crate) fn type_of(&self, name: &str) -> (&str, Option<&str>) {
        let schema = self.schema.get("properties").and_then(|properties| properties.get(name));
        fn get<'a>(schema: Option<&'a Value>, key: &str) -> Option<&'a Value> {
            schema.and_then(|schema| schema.get(key))
        }
        (
            get(schema, "type").and_then(Value::as_str).unwrap_or_default(),
            get(get(schema, "items"), "type").and_then(Value::as_str),
        )
    }

    /// Returns the JSON Schema for the model.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Parameter> {
        self.list.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        self.list.iter().map(|(name, parameter)| (name.as_str(), parameter))
    }

    /// Validates arguments and fills in defaults.
    ///
    /// `text_limit` returns the byte limit of a string of a parameter without `maxLength`.
    ///
    /// *Errors*: `invalid_arguments`, with at most five problems, written for the model.
    pub(crate) fn validate(
        &self,
        arguments: &Map<String, Value>,
        text_limit: impl Fn(&str) -> usize,
    ) -> Result<Map<String, Value>, CallError> {
        let mut problems: Vec<String> = Vec::new();
        let instance = Value::Object(arguments.clone());
        for error in self.validator.iter_errors(&instance).take(TOLD_ERRORS) {
            let path = error.instance_path().as_str().trim_start_matches('/').to_owned();
            let text: String = error.to_string().chars().take(TOLD_CHARACTERS).collect();
            problems.push(if path.is_empty() { text } else { format!("{path}: {text}") });
        }
        for (name, value) in arguments {
            let known = self.list.get(name);
            for text in texts(value) {
                if text.contains(MARKER) {
                    problems.push(format!(
                        "{name}: contains a redaction marker; send the real value or skip this call"
                    ));
                } else if text.is_empty() && known.is_some_and(|known| !known.may_be_empty) {
                    problems.push(format!("{name}: must not be empty"));
                } else if text.contains('\0') {
                    problems.push(format!("{name}: contains a NUL byte"));
                } else if known.is_none_or(|known| !known.has_max_length)
                    && text.len() > text_limit(name)
                {
                    problems.push(format!(
                        "{name}: {} bytes exceed the limit of {}",
                        text.len(),
                        text_limit(name)
                    ));
                }
            }
            if let Some(number) = numbers(value).find(|number| plain_number(number).is_none()) {
                problems.push(format!(
                    "{name}: the number {number} cannot be written in plain decimal"
                ));
            }
        }
        if !problems.is_empty() {
            problems.truncate(TOLD_ERRORS);
            return Err(CallError::new(
                ErrorKind::InvalidArguments,
                format!(
                    "The arguments are not valid, so nothing was run: {}. Correct them and call again.",
                    problems.join("; ")
                ),
            ));
        }
        let mut filled = arguments.clone();
        for (name, parameter) in &self.list {
            if let Some(default) = &parameter.default
                && !filled.contains_key(name)
            {
                filled.insert(name.clone(), default.clone());
            }
        }
        Ok(filled)
    }

    fn check_defaults(&self, errors: &mut Vec<Diagnostic>) {
        for (name, parameter) in &self.list {
            let Some(default) = &parameter.default else { continue };
            let pointer = format!("/parameters/{}/default", pointer_segment(name));
            let Some(schema) =
                self.schema.pointer(&format!("/properties/{}", pointer_segment(name)))
            else {
                continue;
            };
            let fits = build(schema).is_ok_and(|validator| validator.is_valid(default));
            if !fits {
                errors.push(Diagnostic::new(
                    pointer,
                    format!("the default {default} does not match the parameter's own schema"),
                ));
            }
        }
    }
}

/// Compiles a JSON Schema without network access, with linear-time patterns and format checks.
///
/// *Errors*: the schema is invalid; the message contains the library's.
pub(crate) fn build(schema: &Value) -> Result<Validator, String> {
    jsonschema::options()
        .with_draft(Draft::Draft7)
        .with_pattern_options(PatternOptions::regex())
        .should_validate_formats(true)
        .should_ignore_unknown_formats(false)
        .build(schema)
        .map_err(|error| format!("this is not JSON Schema: {error}"))
}

/// Checks a schema and everything below it, and wraps its patterns so that they match whole values.
/// Leaves out the keywords in `own` and the formats that the gate judges.
pub(crate) fn tighten(
    schema: &Map<String, Value>,
    pointer: &str,
    own: &[&str],
    errors: &mut Vec<Diagnostic>,
) -> Map<String, Value> {
    check_satisfiable(schema, pointer, errors);
    let mut out = Map::new();
    for (keyword, value) in schema {
        if own.contains(&keyword.as_str()) {
            continue;
        }
        let here = format!("{pointer}/{}", pointer_segment(keyword));
        if !SCHEMA_KEYWORDS.contains(&keyword.as_str()) {
            let known = SCHEMA_KEYWORDS.iter().chain(own).copied();
            let error =
                Diagnostic::new(&here, format!("unknown keyword `{keyword}` in a parameter"));
            errors.push(match nearest(keyword, known) {
                Some(name) => error.with_hint(format!("did you mean `{name}`?")),
                None => error,
            });
            continue;
        }
        let tightened = match (keyword.as_str(), value) {
            ("pattern", Value::String(text)) => match pattern::whole(text) {
                Ok(wrapped) => Value::String(wrapped),
                Err(message) => {
                    errors.push(Diagnostic::new(&here, message));
                    continue;
                }
            },
            ("format", Value::String(format)) => match format::is_checked(format, &here) {
                Ok(true) => value.clone(),
                Ok(false) => continue,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            },
            ("items" | "not", Value::Object(inner)) => {
                Value::Object(tighten(inner, &here, &[], errors))
            }
            ("anyOf" | "allOf" | "oneOf", Value::Array(parts)) => Value::Array(
                parts
                    .iter()
                    .enumerate()
                    .map(|(at, part)| match part {
                        Value::Object(inner) => {
                            Value::Object(tighten(inner, &format!("{here}/{at}"), &[], errors))
                        }
                        other => other.clone(),
                    })
                    .collect(),
            ),
            _ => value.clone(),
        };
        out.insert(keyword.clone(), tightened);
    }
    check_choices(&out, pointer, errors);
    out
}

/// Reports an `enum` or `const` without a value that the rest of the schema admits.
fn check_choices(schema: &Map<String, Value>, pointer: &str, errors: &mut Vec<Diagnostic>) {
    // Another check reports an invalid schema.
    let Ok(validator) = build(&Value::Object(schema.clone())) else { return };
    if let Some(values) = schema.get("enum").and_then(Value::as_array)
        && !values.is_empty()
        && !values.iter().any(|value| validator.is_valid(value))
    {
        let message = "no value of `enum` matches the rest of the schema";
        errors.push(Diagnostic::new(format!("{pointer}/enum"), message));
    } else if let Some(value) = schema.get("const")
        && !validator.is_valid(value)
    {
        let message = format!("`const: {value}` does not match the rest of the schema");
        errors.push(Diagnostic::new(format!("{pointer}/const"), message));
    }
}

fn compile_one(
    declaration: &Map<String, Value>,
    pointer: &str,
    errors: &mut Vec<Diagnostic>,
) -> Option<(Parameter, Value)> {
    let before = errors.len();
    let flag = |name: &str, errors: &mut Vec<Diagnostic>| match declaration.get(name) {
        None => false,
        Some(Value::Bool(value)) => *value,
        Some(_) => {
            errors.push(Diagnostic::new(
                format!("{pointer}/{name}"),
                format!("`{name}` must be true or false"),
            ));
            false
        }
    };
    let (optional, allow_leading_dash) =
        (flag("optional", errors), flag("allow_leading_dash", errors));
    let (multiline, unsafe_interpreter) =
        (flag("multiline", errors), flag("unsafe_interpreter", errors));
    let mut schema = tighten(declaration, pointer, OWN_KEYWORDS, errors);
    if let Some(word) = schema.get("type").and_then(Value::as_str) {
        check_applies(&schema, word, pointer, errors);
        if let (Some(inner), Some(word)) = (
            schema.get("items").and_then(Value::as_object),
            schema.get("items").and_then(|items| items.get("type")).and_then(Value::as_str),
        ) {
            check_applies(inner, word, &format!("{pointer}/items"), errors);
        }
    }
    let list = schema.get("type").and_then(Value::as_str) == Some("array");
    let element = if list {
        schema.get("items").and_then(Value::as_object).cloned().unwrap_or_default()
    } else {
        schema.clone()
    };
    let kind = kind_of(
        &element,
        if list { "items of an array parameter" } else { "a parameter" },
        pointer,
        errors,
    );
    let elements =
        if list { declaration.get("items").and_then(Value::as_object) } else { Some(declaration) };
    let names = Names::of(elements).filter(|_| kind == Some(Kind::Text));
    if format::judged_formats(declaration) != usize::from(names.is_some()) {
        let message = "the formats `path` and `url` are allowed only on a string or on the items of a list of strings";
        errors.push(Diagnostic::new(pointer, message));
    }
    if errors.len() > before {
        return None;
    }
    if let Err(message) = build(&Value::Object(schema.clone())) {
        errors.push(Diagnostic::new(pointer, message));
        return None;
    }
    let kind = kind?;
    let choices: Vec<String> = match (element.get("enum"), element.get("const")) {
        (Some(Value::Array(values)), _) => {
            values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        (_, Some(Value::String(value))) => vec![value.clone()],
        _ => Vec::new(),
    };
    let dash_possible = may_begin_with_dash(kind, &element, &choices);
    let default = declaration.get("default").cloned();
    if let Some(default) = &default {
        schema.insert("default".to_owned(), default.clone());
    }
    let parameter = Parameter {
        list,
        optional,
        default,
        allow_leading_dash,
        multiline,
        unsafe_interpreter,
        names,
        dash_possible,
        has_max_length: element.contains_key("maxLength"),
        may_be_empty: element.get("minLength").and_then(Value::as_u64) == Some(0)
            || choices.iter().any(String::is_empty),
        choices,
    };
    Some((parameter, Value::Object(schema)))
}

fn may_begin_with_dash(kind: Kind, element: &Map<String, Value>, choices: &[String]) -> bool {
    match kind {
        Kind::Boolean => false,
        Kind::Number => !["minimum", "exclusiveMinimum"].iter().any(|bound| {
            element.get(*bound).and_then(Value::as_f64).is_some_and(|least| least >= 0.0)
        }),
        Kind::Text => {
            let pattern = element.get("pattern").and_then(Value::as_str);
            choices.is_empty() && pattern.is_none_or(pattern::admits_leading_dash)
        }
    }
}

fn kind_of(
    schema: &Map<String, Value>,
    what: &str,
    pointer: &str,
    errors: &mut Vec<Diagnostic>,
) -> Option<Kind> {
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => Some(Kind::Text),
        Some("integer" | "number") => Some(Kind::Number),
        Some("boolean") => Some(Kind::Boolean),
        other => {
            let found = other.map_or_else(|| "missing".to_owned(), |word| format!("`{word}`"));
            errors.push(
                Diagnostic::new(pointer, format!("the type of {what} is {found}"))
                    .with_hint("use string, integer, number, boolean, or an array of one of these"),
            );
            None
        }
    }
}
