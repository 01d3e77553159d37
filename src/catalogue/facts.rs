//! The traits of one model, each from the first source that knows it.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::rows::Traits;

/// Where a value comes from. An earlier source takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SourceKind {
    #[serde(rename = "config")]
    Config,
    #[serde(rename = "models.d")]
    ModelsD,
    /// A provider refused a parameter.
    #[serde(rename = "learned")]
    Learned,
    /// The provider said so when it was asked.
    #[serde(rename = "provider")]
    Provider,
    #[serde(rename = "catalogue")]
    Catalogue,
    #[serde(rename = "family")]
    Family,
    #[serde(rename = "default")]
    Default,
}

/// The source of a value and its date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Origin {
    pub source: SourceKind,
    /// The day on which the source said so; `None` for the configuration and for defaults.
    pub as_of: Option<NaiveDate>,
}

/// The traits of a model with the source of each.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    values: BTreeMap<String, (Value, Origin)>,
    traits: Traits,
}

impl Facts {
    /// Adds the traits of a source. A trait that an earlier or equal source gave stays; one of a
    /// later source is replaced.
    pub fn add(&mut self, traits: &Traits, origin: Origin) {
        let Ok(Value::Object(map)) = serde_json::to_value(traits) else { return };
        for (key, value) in map {
            let known = self.values.get(&key);
            if known.is_none_or(|(_, of)| origin.source < of.source) {
                self.values.insert(key, (value, origin));
            }
        }
        self.read();
    }

    /// Removes a trait.
    pub fn forget(&mut self, key: &str) {
        self.values.remove(key);
        self.read();
    }

    fn read(&mut self) {
        let map: Map<String, Value> =
            self.values.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect();
        // The values come from `Traits`, so they form one.
        if let Ok(traits) = serde_json::from_value(Value::Object(map)) {
            self.traits = traits;
        }
    }

    /// Returns the traits, each from the first source that knows it.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Returns the source of a trait; `None` if the trait is unknown.
    #[must_use]
    pub fn origin(&self, key: &str) -> Option<Origin> {
        self.values.get(key).map(|(_, origin)| *origin)
    }

    /// Returns every known trait with its value and its source, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value, Origin)> {
        self.values.iter().map(|(key, (value, origin))| (key.as_str(), value, *origin))
    }
}
