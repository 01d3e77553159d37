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
        Ok(file) => Ok(Arc::new(Indexed::new(file, SourceKind::Catalogue))),
        Err(error) => Err(error.to_string()),
    });

/// A file with its models by id and by canonical name.
#[derive(Debug)]
struct Indexed {
    file: CatalogueFile,
    by_id: HashMap<String, Vec<usize>>,
    by_name: HashMap<String, Vec<usize>>,
    /// The rows of an operator's file whose id has a path or a tag (`x:free`, `qwen3:8b`). Each names
    /// only this very id.
    by_whole_id: HashMap<String, Vec<usize>>,
}

impl Indexed {
    fn new(file: CatalogueFile, kind: SourceKind) -> Self {
        let (mut by_id, mut by_name) = (HashMap::new(), HashMap::new());
        let mut by_whole_id = HashMap::new();
        let add = |map: &mut HashMap<String, Vec<usize>>, key: String, at: usize| {
            let rows = map.entry(key).or_default();
            if !rows.contains(&at) {
                rows.push(at);
            }
        };
        for (at, row) in file.models.iter().enumerate() {
            for id in std::iter::once(&row.id).chain(&row.aliases) {
                let (whole, id) = (whole_id(id), ModelId::parse(id));
                if kind == SourceKind::ModelsD && whole != id.bare {
                    add(&mut by_whole_id, whole, at);
                } else {
                    add(&mut by_id, id.bare, at);
                    add(&mut by_name, id.name, at);
                }
            }
        }
        Self { file, by_id, by_name, by_whole_id }
    }

    /// Returns the family with the most words of the id; among equals, the one that begins like the
    /// id. `None` if the id has no version, and has a word that neither a rule nor a row of the family
    /// has: it may be older than all rules (`deepseek-coder-6.7b`).
    fn family_of(&self, id: &ModelId) -> Option<&FamilyRow> {
        let begins = |family: &FamilyRow| family.words.first() == id.words.first();
        let is_of = |family: &&FamilyRow| {
            // A single letter is the name of a family only at the start: `MiniCPM-o` is not an `o3`.
            let is_letter = family.words.iter().all(|word| word.len() == 1);
            id.has(&family.words) && (!is_letter || begins(family))
        };
        let families = self.file.families.iter().filter(is_of);
        let found = families.max_by_key(|family| (family.words.len(), begins(family)))?;
        let has_floors = found.rules.iter().any(|rule| rule.from.is_some());
        let is_clear = id.version.is_some() || !has_floors;
        (is_clear || id.words.iter().all(|word| self.has_word(found, word))).then_some(found)
    }

    /// Tells whether a rule of the family, or the id of one of its models, has the word.
    fn has_word(&self, family: &FamilyRow, word: &String) -> bool {
        let mut words = family.words.iter().chain(family.rules.iter().flat_map(|rule| &rule.words));
        // A model that is shut down is not the newest of its family.
        let served = self.file.models.iter().filter(|row| row.shutdown.is_none());
        let ids = served.flat_map(|row| std::iter::once(&row.id).chain(&row.aliases));
        words.any(|known| known == word)
            || ids
                .map(|id| ModelId::parse(id))
                .any(|id| id.has(&family.words) && id.words.contains(word))
    }

    /// Returns the rows of an id: those with this very id, which may name a dated version, else those
    /// with its canonical name. A shorter id comes first: it has no date.
    fn rows(&self, whole: &str, id: &ModelId) -> Vec<&ModelRow> {
        let exact = self.by_whole_id.get(whole).or_else(|| self.by_id.get(&id.bare));
        let found = exact.or_else(|| self.by_name.get(&id.name)).into_iter().flatten();
        let found = found.filter_map(|at| self.file.models.get(*at));
        // Another date is another generation, with its own price and limits.
        let is_same = |row: &&ModelRow| {
            let dates = ModelId::parse(&row.id).date.zip(id.date.as_ref());
            exact.is_some() || dates.is_none_or(|(of_row, date)| of_row == *date)
        };
        let mut rows: Vec<&ModelRow> = found.filter(is_same).collect();
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
        let kind = SourceKind::ModelsD;
        let own = files.into_iter().map(|file| (Arc::new(Indexed::new(file, kind)), kind));
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
        let (whole, id) = (whole_id(id), ModelId::parse(id));
        let provider = host.and_then(|host| self.provider_at(host)).map(|of| of.name.clone());
        let mut facts = Facts::default();
        let mut rows = Vec::new();
        let mut has_family = false;
        for (indexed, kind) in &self.files {
            let mut of_file = indexed.rows(&whole, &id);
            of_file.sort_by_key(|row| Some(&row.provider) != provider.as_ref());
            for row in of_file {
                facts.add(&row.traits, Origin { source: *kind, as_of: Some(row.as_of) });
                rows.push((row.clone(), *kind));
            }
        }
        for (indexed, kind) in &self.files {
            let Some(family) = indexed.family_of(&id) else { continue };
            has_family = true;
            let source = if *kind == SourceKind::ModelsD { *kind } else { SourceKind::Family };
            // The first source of a trait counts, and a later rule replaces an earlier one.
            for rule in family.rules.iter().rev() {
                let has_begun = rule.from.as_deref().is_none_or(|from| {
                    Version::parse(from).is_some_and(|from| id.is_at_least(&from))
                });
                if id.has(&rule.words) && has_begun {
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

    /// Tells whether there is a row for any model of a provider.
    #[must_use]
    pub fn has_models_of(&self, provider: &str) -> bool {
        let mut models = self.files.iter().flat_map(|(indexed, _)| &indexed.file.models);
        models.any(|row| row.provider == provider)
    }

    /// Returns the rules of the Chat Completions server with this host: those that most servers have
    /// in common, if no provider has the host.
    #[must_use]
    pub fn chat_rules(&self, host: &str) -> ChatRules {
        self.provider_at(host).map(|provider| provider.chat.clone()).unwrap_or_default()
    }

    /// Returns the highest price among the relatives of `found`, marked as estimated: of the models
    /// with the same words, else of all models whose id begins with the same word. Leaves out models
    /// that are shut down, and those that cost nothing: their provider gives them away.
    #[must_use]
    pub fn dearest_relative(&self, found: &Found, now: DateTime<Utc>) -> Option<Prices> {
        let first = found.id.words.first()?;
        let of = |fits: &dyn Fn(&ModelId) -> bool| {
            let rows = self.files.iter().flat_map(|(indexed, _)| &indexed.file.models);
            let served = rows.filter(|row| row.shutdown.is_none_or(|day| day > now.date_naive()));
            let fitting = served.filter(|row| fits(&ModelId::parse(&row.id)));
            dearest(fitting.map(|row| Prices::new(row.prices.clone())), now)
        };
        let same = of(&|id| id.words == found.id.words);
        let dearest = same.or_else(|| of(&|id| id.words.first() == Some(first)));
        dearest.map(|prices| prices.estimated())
    }

    /// Returns the known id that is nearest to a misspelled one.
    #[must_use]
    pub fn nearest(&self, id: &str) -> Option<&str> {
        let rows = self.files.iter().flat_map(|(indexed, _)| &indexed.file.models);
        nearest(id, rows.map(|row| row.id.as_str()))
    }
}

/// Returns the prices that are the highest at a moment; `None` if all of them are 0 or unknown.
fn dearest(all: impl Iterator<Item = Prices>, now: DateTime<Utc>) -> Option<Prices> {
    let ranked = all.filter_map(|prices| Some((prices.at(now)?, prices)));
    let ranked = ranked.filter(|(price, _)| !price.is_free());
    let ranked = ranked.map(|(price, prices)| (price.rank(), prices));
    let highest = ranked
        .max_by(|(one, _), (other, _)| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    highest.map(|(_, prices)| prices)
}

/// Returns an id with its path and its tag.
fn whole_id(id: &str) -> String {
    id.trim().to_ascii_lowercase()
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
        // A provider charges more for a model that a customer has tuned.
        let applies = |(row, kind): &&(ModelRow, SourceKind)| {
            *kind == SourceKind::ModelsD
                || (Some(&row.provider) == self.provider.as_ref() && !self.id.is_tuned)
        };
        self.rows.iter().filter(applies).find_map(|(row, kind)| {
            let prices = Prices::new(row.prices.clone());
            let origin = Origin { source: *kind, as_of: Some(row.as_of) };
            prices.is_known(now).then_some((prices, origin))
        })
    }

    /// Returns the prices of the model at any provider: those of the operator, else the highest.
    /// `None` if they are unknown, or if every provider gives the model away.
    #[must_use]
    pub fn prices_anywhere(&self, now: DateTime<Utc>) -> Option<Prices> {
        let of = |wanted: SourceKind| {
            let rows = self.rows.iter().filter(move |(_, kind)| *kind == wanted);
            rows.map(|(row, _)| Prices::new(row.prices.clone()))
        };
        dearest(of(SourceKind::ModelsD), now).or_else(|| dearest(of(SourceKind::Catalogue), now))
    }

    /// Returns the day from which the provider does not serve the model, the model that it serves
    /// in its place, and the source. At an unknown server, which may pass requests on, the row of
    /// `vendor` applies: the provider whose API the server has.
    #[must_use]
    pub fn shutdown(&self, vendor: Option<&str>) -> Option<(NaiveDate, Option<&str>, Origin)> {
        let provider = self.provider.as_deref().or(vendor);
        let applies = |(row, kind): &&(ModelRow, SourceKind)| {
            *kind == SourceKind::ModelsD
                || (Some(row.provider.as_str()) == provider && !self.id.is_tuned)
        };
        self.rows.iter().filter(applies).find_map(|(row, kind)| {
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
        // Its provider gives it away; another server does not.
        let free = catalogue.find("glm-4.7-flash", Some("api.z.ai"));
        assert!(free.prices(now()).unwrap().0.at(now()).unwrap().is_free());
        let elsewhere = catalogue.find("z-ai/glm-4.7-flash", Some("openrouter.ai"));
        assert_eq!(elsewhere.prices_anywhere(now()), None);
        let estimate = catalogue.dearest_relative(&elsewhere, now()).unwrap();
        assert!(!estimate.at(now()).unwrap().is_free());
        // Two providers have a price of the same model: the higher one is the estimate.
        let two = catalogue.find("gpt-oss-120b", Some("127.0.0.1")).prices_anywhere(now()).unwrap();
        for host in ["api.groq.com", "api.cerebras.ai"] {
            let one = catalogue.find("gpt-oss-120b", Some(host)).prices(now()).unwrap().0;
            assert!(two.at(now()).unwrap().rank() >= one.at(now()).unwrap().rank(), "{host}");
        }
    }

    #[test]
    fn a_shutdown_is_of_the_provider_and_not_of_every_server() {
        let own = r#"{"version": 1, "as_of": "2026-11-24", "models": [
            {"provider": "zai", "id": "glm-9", "shutdown": "2026-01-01", "as_of": "2026-11-24", "source": "x"}]}"#;
        let file: CatalogueFile = serde_json::from_str(own).unwrap();
        let mut catalogue = Catalogue::built_in().unwrap();
        catalogue.files = vec![
            (Arc::new(Indexed::new(file, SourceKind::Catalogue)), SourceKind::Catalogue),
            catalogue.files.remove(0),
        ];
        let ends = |id: &str, host: &str, vendor: Option<&str>| {
            catalogue.find(id, Some(host)).shutdown(vendor).is_some()
        };
        assert!(ends("glm-9", "api.z.ai", Some("openai")));
        assert!(!ends("glm-9", "127.0.0.1", Some("openai")));
        assert!(!ends("z-ai/glm-9", "openrouter.ai", Some("openai")));
        assert!(ends("claude-opus-4-1", "127.0.0.1", Some("anthropic")));
        assert!(!ends("claude-opus-4-1", "openrouter.ai", Some("openai")));
    }

    #[test]
    fn an_id_without_a_version_is_the_newest_only_if_its_words_are_known() {
        let catalogue = Catalogue::built_in().unwrap();
        for id in
            ["deepseek-coder-6.7b-instruct", "gpt-j-6b", "openbmb/MiniCPM-o-2_6", "claude-instant"]
        {
            let found = catalogue.find(id, None);
            assert!(!found.has_family, "{id}: {:?}", found.facts.traits());
        }
        for id in
            ["claude-opus-latest", "gpt-oss-safeguard-120b", "o3-2025-04-16", "codex-mini-latest"]
        {
            assert!(catalogue.find(id, None).has_family, "{id}");
        }
        let newest = catalogue.find("claude-sonnet-latest", None).facts.traits().clone();
        assert_eq!(newest, catalogue.find("claude-sonnet-99", None).facts.traits().clone());
        // The date is not a version, and the version is not a part of the date.
        let dated = catalogue.find("gpt-5-2025-08-07", None).facts.traits().clone();
        assert_eq!(dated.chat_with_tools, Some(true));
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
    fn a_row_with_a_path_or_a_tag_names_only_itself() {
        let own = catalogue(
            r#"{"version": 1, "as_of": "2026-11-24", "models": [
                {"provider": "own", "id": "meta-llama/llama-9:free", "prices": [{"input": 0, "output": 0}],
                 "as_of": "2026-11-24", "source": "x"},
                {"provider": "own", "id": "qwen3:8b", "traits": {"context_window": 4096},
                 "as_of": "2026-11-24", "source": "x"}]}"#,
        );
        let is_known = |id: &str| own.find(id, None).is_known();
        assert!(is_known("meta-llama/llama-9:free") && is_known("Qwen3:8b"));
        for id in ["meta-llama/llama-9", "acme/llama-9:free", "qwen3:235b", "qwen3"] {
            let found = own.find(id, None);
            let is_of_operator = found.rows.iter().any(|(_, kind)| *kind == SourceKind::ModelsD);
            assert!(!is_of_operator, "{id}");
        }
    }

    #[test]
    fn another_date_is_another_model_and_a_tuned_one_has_its_own_price() {
        let catalogue = Catalogue::built_in().unwrap();
        let dated = catalogue.find("mistral-large-2411", Some("api.mistral.ai"));
        assert!(!dated.is_known() && dated.prices(now()).is_none());
        let known = catalogue.find("mistral-large-2512", Some("api.mistral.ai"));
        assert!(known.is_known() && known.prices(now()).is_some());
        let undated = catalogue.find("claude-opus-4-8-20260301", Some("api.anthropic.com"));
        assert!(undated.prices(now()).is_some());
        let sibling = catalogue.find("mistral-medium-2611", Some("api.mistral.ai"));
        assert_eq!(sibling.shutdown(None), None);
        let tuned = catalogue.find("ft:gpt-4.1-2025-04-14:acme::b1", Some("api.openai.com"));
        assert!(tuned.prices(now()).is_none() && tuned.prices_anywhere(now()).is_some());
        assert_eq!(tuned.facts.traits().output_limit, Some(32_768));
        let nano = catalogue.find("ft:gpt-4.1-nano-2025-04-14:acme::b1", Some("api.openai.com"));
        assert_eq!(nano.shutdown(Some("openai")), None);
        assert!(!catalogue.find("deepseek-chat", Some("openrouter.ai")).has_family);
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
