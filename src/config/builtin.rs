//! The declarations of the built-in tools. `builtins.json` holds names, categories, descriptions
//! and parameters; `tools/` implements the tools.
//!
//! *Source*: `docs/design/tools.md`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::argv::Parameters;
use crate::domain::Category;

/// The declaration of a built-in tool.
#[derive(Debug)]
pub struct Builtin {
    /// The name in policies and transcripts; a profile may show the tool under another name.
    pub name: &'static str,
    /// The category of a call, unless the gate raises it.
    pub category: Category,
    /// The description for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Parameters,
}

#[derive(Deserialize)]
struct Declared {
    name: &'static str,
    category: Category,
    description: String,
    parameters: Map<String, Value>,
    required: Vec<String>,
}

static BUILTINS: LazyLock<BTreeMap<&'static str, Builtin>> = LazyLock::new(|| {
    let declared: Vec<Declared> =
        serde_json::from_str(include_str!("builtins.json")).unwrap_or_default();
    declared.into_iter().filter_map(|tool| Some((tool.name, Builtin::new(tool)?))).collect()
});

impl Builtin {
    /// Returns every built-in tool, by name.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        BUILTINS.values()
    }

    /// Returns the built-in tool of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        BUILTINS.get(name)
    }

    fn new(declared: Declared) -> Option<Self> {
        let schema = json!({
            "type": "object",
            "properties": declared.parameters,
            "required": declared.required,
            "additionalProperties": false,
        });
        Some(Self {
            name: declared.name,
            category: declared.category,
            description: declared.description,
            parameters: Parameters::of_schema(schema).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declaration_is_whole() {
        let declared: Vec<Declared> = serde_json::from_str(include_str!("builtins.json")).unwrap();
        assert_eq!(Builtin::all().count(), declared.len());
    }
}
