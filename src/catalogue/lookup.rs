//! Finds the rows of a model: its own, those of its family, its prices and its provider.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use chrono::{DateTime, NaiveDate, Utc};

use super::facts::{Facts, Origin, SourceKind};
use super::id::{ModelId, Version};
use super::price::Prices;
use super::rows::{CatalogueFile, ChatRules, FamilyRow, ModelRow, ProviderRow};
use crate::text::suggest::nearest;

/// The catalogue that is built in.
const BUILT_IN: &str = include_str!("catalogue.json");

static PARSED: LazyLock<Result<Arc<Indexed>, String>> =
    LazyLock::new(|| match serde_json::from_str(BUILT_IN) {
        Ok(file) => Ok(Arc::new(Indexed::new(file))),
        Err(error) => Err(error.to_string()),
    });

/// A file with its models by id and by canonical name.
#[derive(Debug)]
struct Indexed {
    file: CatalogueFile,
    by_id: HashMap<String, Vec<usize>>,
    by_name: HashMap<String, Vec<usize>>,
}

impl Indexed {
    fn new(file: CatalogueFile) -> Self {
        let (mut by_id, mut by_name) = (HashMap::new(), HashMap::new());
        for (at, row) in file.models.iter().enumerate() {
            for id in std::iter::once(&row.id).chain(&row.aliases) {
                let id = ModelId::parse(id);
                for (map, key) in [(&mut by_id, id.bare), (&mut by_name, id.name)] {
                    let rows: &mut Vec<usize> = map.entry(key).or_default();
                    if !rows.contains(&at) {
                        rows.push(at);
                    }
                }
            }
        }
        Self { file, by_id, by_name }
    }

    /// Returns the rows of an id: those with this very id, which may name a dated version, else those
    /// with its canonical name. A shorter id comes first: it has no date.
    fn rows(&self, id: &ModelId) -> Vec<&ModelRow> {
        let found = self.by_id.get(&id.bare).or_else(|| self.by_name.get(&id.name));
        let found = found.into_iter().flatten();
        let mut rows: Vec<&ModelRow> = found.filter_map(|at| self.file.models.get(*at)).collect();
        rows.sort_by_key(|row| row.id.len());
        rows
    }
}

/// The files of facts about models, the most important first.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    files: Vec<(Arc<Indexed>, SourceKind)>,
}

/// What the catalogue has for one id.
#[derive(Debug, Clone)]
pub struct Found {
    /// The traits of the model.
    pub facts: Facts,
    /// The rows of the model itself, the most important first.
    rows: Vec<(ModelRow, SourceKind)>,
    /// Whether a family with rules has this id.
    pub has_family: bool,
    id: ModelId,
    /// The provider at the host.
    provider: Option<String>,
}

impl Catalogue {
    /// Returns the built-in catalogue.
    ///
    /// *Errors*: the built-in file cannot be read; a test makes sure that it can.
    pub fn built_in() -> Result<Self, String> {
        let file = PARSED.as_ref().map_err(String::clone)?;
        Ok(Self { files: vec![(file.clone(), SourceKind::Catalogue)] })
    }

    /// Adds files of the operator, which take precedence over the built-in catalogue.
    #[must_use]
    pub fn with(self, files: Vec<CatalogueFile>) -> Self {
        let own = files.into_iter().map(|file| (Arc::new(Indexed::new(file)), SourceKind::ModelsD));
        Self { files: own.chain(self.files).collect() }
    }

    /// Returns the day on which the built-in catalogue was checked.
    #[must_use]
    pub fn as_of(&self) -> Option<NaiveDate> {
        let built_in = self.files.iter().find(|(_, kind)| *kind == SourceKind::Catalogue);
        built_in.map(|(indexed, _)| indexed.file.as_of)
    }

    /// Looks up an id, as vendors and gateways write it. A row of the provider with this host comes
    /// before the rows of others.
    #[must_use]
    pub fn find(&self, id: &str, host: Option<&str>) -> Found {
        let id = ModelId::parse(id);
        let provider = host.and_then(|host| self.provider_at(host)).map(|of| of.name.clone());
        let mut facts = Facts::default();
        let mut rows = Vec::new();
        let mut has_family = false;
        for (indexed, kind) in &self.files {
            let mut of_file = indexed.rows(&id);
            of_file.sort_by_key(|row| Some(&row.provider) != provider.as_ref());
            for row in of_file {
                facts.add(&row.traits, Origin { source: *kind, as_of: Some(row.as_of) });
                rows.push((row.clone(), *kind));
            }
        }
        for (indexed, kind) in &self.files {
            let Some(family) = family_of(&indexed.file, &id) else { continue };
            has_family = true;
            let source = if *kind == SourceKind::ModelsD { *kind } else { SourceKind::Family };
            // The first source of a trait counts, and a later rule replaces an earlier one.
            for rule in family.rules.iter().rev() {
                let from = rule.from.as_deref().and_then(Version::parse);
                if id.has(&rule.words) && from.is_none_or(|from| id.is_at_least(&from)) {
                    facts.add(&rule.traits, Origin { source, as_of: Some(rule.as_of) });
                }
            }
        }
        Found { facts, rows, has_family, id, provider }
    }

    /// Returns the provider with this host in its base URL.
    #[must_use]
    pub fn provider_at(&self, host: &str) -> Option<&ProviderRow> {
        let is_own = |known: &String| {
            host.strip_suffix(known.as_str()).is_some_and(|r| r.is_empty() || r.ends_with('.'))
        };
        let mut providers = self.files.iter().flat_map(|(indexed, _)| &indexed.file.providers);
        providers.find(|provider| provider.hosts.iter().any(is_own))
    }

    /// Returns the rules of the Chat Completions server with this host: those that most servers have
    /// in common, if no provider has the host.
    #[must_use]
    pub fn chat_rules(&self, host: &str) -> ChatRules {
        self.provider_at(host).map(|provider| provider.chat.clone()).unwrap_or_default()
    }

    /// Returns the price of the relative of `id` that costs most: of the models with the same words,
    /// else of all models whose id begins with the same word. Leaves out models that are shut down.
    #[must_use]
    pub fn dearest_relative(&self, found: &Found, now: DateTime<Utc>) -> Option<Prices> {
        let first = found.id.words.first()?;
        let of = |fits: &dyn Fn(&ModelId) -> bool| {
            let rows = self.files.iter().flat_map(|(indexed, _)| &indexed.file.models);
            let served = rows.filter(|row| row.shutdown.is_none_or(|day| day > now.date_naive()));
            let fitting = served.filter(|row| fits(&ModelId::parse(&row.id)));
            let priced = fitting.filter_map(|row| {
                let prices = Prices::new(row.prices.clone());
                Some((prices.at(now)?.rank(), prices))
            });
            priced.max_by(|(one, _), (other, _)| {
                one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal)
            })
        };
        let same = of(&|id| id.words == found.id.words);
        let dearest = same.or_else(|| of(&|id| id.words.first() == Some(first)));
        dearest.map(|(_, prices)| prices.estimated())
    }

    /// Returns the known id that is nearest to a misspelled one.
    #[must_use]
    pub fn nearest(&self, id: &str) -> Option<&str> {
        let rows = self.files.iter().flat_map(|(indexed, _)| &indexed.file.models);
        nearest(id, rows.map(|row| row.id.as_str()))
    }
}

/// Returns the family with the most words of the id; among equals, the one that begins like the id.
fn family_of<'a>(file: &'a CatalogueFile, id: &ModelId) -> Option<&'a FamilyRow> {
    let families = file.families.iter().filter(|family| id.has(&family.words));
    families.max_by_key(|family| (family.words.len(), family.words.first() == id.words.first()))
}

impl Found {
    /// Tells whether a row names the model.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Returns the prices of the model at the provider of the host, from the first row that has one
    /// in effect. A row of the operator applies at any provider.
    #[must_use]
    pub fn prices(&self, now: DateTime<Utc>) -> Option<(Prices, Origin)> {
        let applies = |(row, kind): &&(ModelRow, SourceKind)| {
            *kind == SourceKind::ModelsD || Some(&row.provider) == self.provider.as_ref()
        };
        self.rows.iter().filter(applies).find_map(|(row, kind)| {
            let prices = Prices::new(row.prices.clone());
            let origin = Origin { source: *kind, as_of: Some(row.as_of) };
            prices.is_known(now).then_some((prices, origin))
        })
    }

    /// Returns the prices of the model at whatever provider.
    #[must_use]
    pub fn prices_anywhere(&self, now: DateTime<Utc>) -> Option<Prices> {
        let mut prices = self.rows.iter().map(|(row, _)| Prices::new(row.prices.clone()));
        prices.find(|prices| prices.is_known(now))
    }

    /// Returns the day from which the provider does not serve the model, the model that it serves
    /// in its place, and the source.
    #[must_use]
    pub fn shutdown(&self) -> Option<(NaiveDate, Option<&str>, Origin)> {
        self.rows.iter().find_map(|(row, kind)| {
            let origin = Origin { source: *kind, as_of: Some(row.as_of) };
            Some((row.shutdown?, row.routed_to.as_deref(), origin))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> DateTime<Utc> {
        "2026-11-25T12:00:00Z".parse().unwrap()
    }

    fn catalogue(text: &str) -> Catalogue {
        Catalogue::built_in().unwrap().with(vec![serde_json::from_str(text).unwrap()])
    }

    #[test]
    fn the_built_in_catalogue_is_whole() {
        let file: CatalogueFile = serde_json::from_str(BUILT_IN).unwrap();
        assert_eq!(file.problems(), []);
        for family in &file.families {
            for rule in &family.rules {
                let from = rule.from.as_deref();
                assert!(from.is_none_or(|from| Version::parse(from).is_some()), "{from:?}");
            }
        }
        let providers: Vec<&String> = file.providers.iter().map(|row| &row.name).collect();
        for row in &file.models {
            assert!(providers.contains(&&row.provider), "{}", row.id);
            assert!(!row.source.is_empty(), "{}", row.id);
        }
    }

    #[test]
    fn an_unknown_model_gets_the_newest_rules_that_are_not_newer_than_it() {
        let catalogue = Catalogue::built_in().unwrap();
        let traits = |id: &str| catalogue.find(id, None).facts.traits().clone();
        use crate::catalogue::{Effort, ReasoningForm, TemperatureRule};
        assert_eq!(traits("claude-opus-9").temperature, Some(TemperatureRule::Refused));
        assert_eq!(traits("claude-opus-9").efforts, traits("claude-opus-5-5").efforts);
        assert_eq!(traits("claude-opus-4-5-20251101").reasoning, Some(ReasoningForm::Budget));
        assert_eq!(traits("claude-opus-4-4").reasoning, Some(ReasoningForm::Budget));
        let efforts = traits("us.anthropic.claude-opus-4-9-v1:0").efforts.unwrap();
        assert!(efforts.contains(&Effort::Xhigh));
        assert_eq!(traits("gpt-oss:20b").chat_with_tools, None);
        assert_eq!(traits("gpt-7-nova").chat_with_tools, Some(false));
        assert_eq!(traits("gpt-4o").efforts, Some(vec![Effort::None]));
        assert_eq!(traits("unheard-of").efforts, None);
    }

    #[test]
    fn a_price_is_that_of_the_provider_or_an_estimate() {
        let catalogue = Catalogue::built_in().unwrap();
        let own = catalogue.find("claude-opus-5-5", Some("api.anthropic.com"));
        assert!(own.prices(now()).is_some_and(|(prices, _)| !prices.is_estimated()));
        let elsewhere = catalogue.find("anthropic/claude-opus-5.5", Some("openrouter.ai"));
        assert!(elsewhere.prices(now()).is_none() && elsewhere.prices_anywhere(now()).is_some());
        let new = catalogue.find("claude-haiku-9", Some("api.anthropic.com"));
        let dearest = catalogue.dearest_relative(&new, now()).unwrap();
        assert!(dearest.is_estimated());
        // The dearest price of the words `claude haiku`, not of every Claude.
        let (output, _) = dearest.at(now()).unwrap().rank();
        assert!((1.0..=10.0).contains(&output), "{output}");
        let unknown = catalogue.find("unheard-of", Some("api.anthropic.com"));
        assert!(catalogue.dearest_relative(&unknown, now()).is_none());
    }

    #[test]
    fn a_row_of_the_operator_comes_first() {
        let own = catalogue(
            r#"{"version": 1, "as_of": "2026-11-24", "models": [
                {"provider": "own", "id": "claude-opus-5-5", "traits": {"context_window": 5000},
                 "prices": [{"input": 1, "output": 2}], "as_of": "2026-11-24", "source": "contract"},
                {"provider": "own", "id": "tuned-1", "traits": {"efforts": ["low"]},
                 "prices": [{"input": 1, "output": 2, "from": "2026-11-26"}],
                 "as_of": "2026-11-24", "source": "contract"}]}"#,
        );
        let found = own.find("claude-opus-5-5", Some("api.anthropic.com"));
        assert_eq!(found.facts.traits().context_window, Some(5000));
        let origin = found.facts.origin("context_window").unwrap();
        assert_eq!(origin.source, SourceKind::ModelsD);
        assert_eq!(found.facts.origin("output_limit").unwrap().source, SourceKind::Catalogue);
        let (prices, origin) = found.prices(now()).unwrap();
        assert_eq!(origin.source, SourceKind::ModelsD);
        assert!((prices.at(now()).unwrap().rates().input - 1.0).abs() < 1e-9);
        let tomorrow = own.find("tuned-1", None);
        assert!(tomorrow.is_known() && tomorrow.prices(now()).is_none());
    }

    #[test]
    fn the_host_of_a_server_decides_and_not_a_part_of_its_address() {
        let catalogue = Catalogue::built_in().unwrap();
        let name = |host: &str| catalogue.provider_at(host).map(|row| row.name.as_str());
        assert_eq!(name("api.openai.com"), Some("openai"));
        assert_eq!(name("x.openai.azure.com"), Some("azure"));
        assert_eq!(name("api.openai.com.example.org"), None);
        assert_eq!(name("notapi.openai.com.evil"), None);
        assert_eq!(name("xapi.openai.com"), None);
        assert!(catalogue.chat_rules("api.mistral.ai").nine_character_ids);
    }
}
