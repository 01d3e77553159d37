//! The rows of a catalogue file: providers, families and models, each with its date and source.
//!
//! `dutyd schema models` prints the schema of these types. The built-in catalogue and the files of
//! `models.d` have the same form.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{ModelId, Version};
use super::price::{PriceRow, Prices};

/// A file of facts about models.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CatalogueFile {
    /// Version of the file format.
    #[schemars(range(min = 1, max = 1))]
    #[serde(rename = "version")]
    pub(crate) _version: u32,
    /// Day on which the file was checked as a whole.
    pub as_of: NaiveDate,
    /// Sources by the key that rows use for them.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// Providers and the rules of their servers.
    #[serde(default)]
    pub providers: Vec<ProviderRow>,
    /// Families of models and their rules.
    #[serde(default)]
    pub families: Vec<FamilyRow>,
    /// Models.
    #[serde(default)]
    pub models: Vec<ModelRow>,
}

impl CatalogueFile {
    /// Returns what is wrong with the rows, each with the JSON pointer of its place.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut known: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for (at, row) in self.models.iter().enumerate() {
            let place = format!("/models/{at}");
            for (id, pointer) in std::iter::once((&row.id, "id".to_owned()))
                .chain(row.aliases.iter().enumerate().map(|(n, id)| (id, format!("aliases/{n}"))))
            {
                // `4.8` and `4-8` are one version.
                let name = id.trim().to_ascii_lowercase().replace(['.', '_', ' '], "-");
                let pointer = format!("{place}/{pointer}");
                if ModelId::parse(id).bare.is_empty() {
                    problems.push((pointer, "this is not an id of a model".to_owned()));
                    continue;
                }
                let before = known.insert((&row.provider, name), at).filter(|before| *before != at);
                let Some(other) = before.and_then(|before| self.models.get(before)) else {
                    continue;
                };
                let message = if other.id == row.id {
                    format!("a second row for `{id}`")
                } else {
                    format!("the row of `{}` names the same model", other.id)
                };
                problems.push((pointer, message));
            }
            let prices = Prices::problems_of(&row.prices).into_iter();
            problems.extend(prices.map(|message| (format!("{place}/prices"), message)));
        }
        for (at, family) in self.families.iter().enumerate() {
            if family.words.is_empty() {
                let message = "a family needs at least one word";
                problems.push((format!("/families/{at}/words"), message.to_owned()));
            }
            for (of_word, word) in family.words.iter().enumerate() {
                if ModelId::parse(word).words != [word.clone()] {
                    let message = format!(
                        "no id has the word `{word}`: write one lower-case word without a version"
                    );
                    problems.push((format!("/families/{at}/words/{of_word}"), message));
                }
            }
            for (of_rule, rule) in family.rules.iter().enumerate() {
                if let Some(from) = &rule.from
                    && Version::parse(from).is_none()
                {
                    let message = format!("`{from}` is not a version: write numbers, such as 4.7");
                    problems.push((format!("/families/{at}/rules/{of_rule}/from"), message));
                }
            }
        }
        problems
    }
}

/// A provider and the rules of its Chat Completions server.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderRow {
    /// Name of the provider, to which rows of models refer.
    pub name: String,
    /// Hosts of its API; subdomains of them count too.
    pub hosts: Vec<String>,
    /// Rules of its Chat Completions server.
    #[serde(default)]
    pub chat: ChatRules,
    /// Day on which the source said so.
    pub as_of: NaiveDate,
    /// Source of the row: a key of `sources`, or text.
    pub source: String,
}

/// The rules in which Chat Completions servers differ.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChatRules {
    /// Name of the field that limits the output tokens.
    pub output_limit_field: String,
    /// Whether the server takes `parallel_tool_calls`.
    pub parallel_tool_calls: bool,
    /// Maximum length of a call id in characters.
    #[schemars(range(min = 8, max = 256))]
    pub call_id_length: usize,
    /// Whether a call id must have exactly nine letters or digits, and a user message may not
    /// follow the message of a tool.
    pub nine_character_ids: bool,
}

impl Default for ChatRules {
    fn default() -> Self {
        Self {
            output_limit_field: "max_tokens".to_owned(),
            parallel_tool_calls: false,
            call_id_length: 64,
            nine_character_ids: false,
        }
    }
}

/// A family of models, found by the words of an id.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FamilyRow {
    /// Words that the id of each model of the family has. The family with the most words wins.
    pub words: Vec<String>,
    /// Rules from a version on. A later rule replaces the traits of an earlier one.
    pub rules: Vec<FamilyRule>,
}

/// A rule of a family from a version on.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FamilyRule {
    /// Further words that the id must have.
    #[serde(default)]
    pub words: Vec<String>,
    /// First version to which the rule applies, such as 4.7. Without it, the rule applies to all.
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)*$"))]
    pub from: Option<String>,
    /// Traits from this version on.
    pub traits: Traits,
    /// Day on which the source said so.
    pub as_of: NaiveDate,
    /// Source of the row: a key of `sources`, or text.
    pub source: String,
}

/// A model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelRow {
    /// Name of the provider at whose hosts the price applies.
    pub provider: String,
    /// Id of the model at its provider.
    pub id: String,
    /// Other ids of the same model.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Traits of the model; each replaces that of its family.
    #[serde(default)]
    pub traits: Traits,
    /// Prices, by the days on which they apply.
    #[serde(default)]
    pub prices: Vec<PriceRow>,
    /// Day from which the provider does not serve the model.
    pub shutdown: Option<NaiveDate>,
    /// Id of the model that the provider serves in its place from then on.
    pub routed_to: Option<String>,
    /// Whether the provider itself said so. Defaults to true.
    #[serde(default = "yes")]
    pub confirmed: bool,
    /// Day on which the source said so.
    pub as_of: NaiveDate,
    /// Source of the row: a key of `sources`, or text.
    pub source: String,
}

fn yes() -> bool {
    true
}

/// The traits of a model. An absent trait is unknown to this source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traits {
    /// Context window in tokens.
    #[schemars(range(min = 256, max = 100_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// Maximum number of input tokens, if it is smaller than the context window.
    #[schemars(range(min = 256, max = 100_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_limit: Option<u64>,
    /// Maximum number of output tokens, reasoning included.
    #[schemars(range(min = 1, max = 10_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u32>,
    /// Whether the model takes images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<bool>,
    /// Whether the model takes a temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<TemperatureRule>,
    /// How a request asks for reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningForm>,
    /// Whether the model reasons unless a request turns it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons_by_default: Option<bool>,
    /// Whether the provider shows its reasoning, or a summary of it, only on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_on_request: Option<bool>,
    /// Whether the model rejects a history whose earlier parts differ from what it wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_history: Option<bool>,
    /// Values of `reasoning_effort` that the model takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efforts: Option<Vec<Effort>>,
    /// Whether Ollama takes the effort as a level; for other models, it turns reasoning on or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ollama_levels: Option<bool>,
    /// Whether the model, at its own provider, takes a schema of its answer beside tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_beside_tools: Option<bool>,
    /// Whether Chat Completions at the model's own provider takes tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_with_tools: Option<bool>,
    /// Characters per token of ordinary text, to estimate what the provider has not counted yet.
    #[schemars(range(min = 0.5, max = 10))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub characters_per_token: Option<f64>,
}

/// Whether a model takes a temperature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemperatureRule {
    Taken,
    /// A request with a temperature is rejected.
    Refused,
    /// A request with a temperature is rejected while the model reasons.
    RefusedWhileReasoning,
    /// Only 1 is taken.
    OnlyOne,
    /// A temperature has no effect.
    Ignored,
}

/// How a request asks for reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningForm {
    /// The model does not reason.
    None,
    /// With a budget of tokens.
    Budget,
    /// With a level of effort.
    Level,
    /// Turned on or off.
    Switch,
}

/// How much a model may reason before it answers, in ascending order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl Traits {
    /// Returns the most tokens that a request may have: the smaller one of context window and input
    /// limit.
    #[must_use]
    pub fn most_input(&self) -> Option<u64> {
        self.context_window.into_iter().chain(self.input_limit).min()
    }
}

impl Effort {
    /// Returns the value in the configuration and in requests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}
