//! Compiles the JSON Schemas that an operator writes for data: `output_schema`, and `json_schema` of
//! an `expect`.

use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

use crate::argv::{Diagnostics, check_subschemas};

/// Compiles a schema; `pointer` is its place in the declaration.
///
/// *Errors*: added to `diagnostics`: an unknown keyword, which JSON Schema would ignore, a reference to
/// another document, a pattern that does not run in linear time, keywords that no value satisfies, and an
/// invalid schema.
pub(super) fn compile(
    schema: &Map<String, Value>,
    pointer: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Validator> {
    let errors = check_subschemas(schema, pointer);
    if !errors.is_empty() {
        diagnostics.errors.extend(errors);
        return None;
    }
    let compiled = jsonschema::options()
        .with_pattern_options(PatternOptions::regex())
        .should_validate_formats(true)
        .should_ignore_unknown_formats(false)
        .build(&Value::Object(schema.clone()));
    compiled.map_err(|error| diagnostics.error(pointer, format!("invalid schema: {error}"))).ok()
}
