//! Views of the configured models, with the source of each value, for `dutyd models`.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::host::Host;
use super::lessons::{Learned, ask, remember};
use crate::catalogue::{Facts, Origin, Price, PriceRow, Prices, SourceKind};
use crate::config::{Config, Model, Priced, Provider, Remote};
use crate::provider::Probe;
use crate::store::{LessonRow, SaidRow};

/// A server that states less than this part of the known price is not believed.
const FAR_BELOW: f64 = 100.0;

/// A configured model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelView {
    /// The key in `models`.
    pub name: String,
    /// The id of the model at its provider.
    pub model: String,
    /// The value of `provider`.
    pub provider: String,
    /// Whether the catalogue or `models.d` has a row for the model.
    pub known: bool,
    pub values: BTreeMap<String, ModelValue>,
    pub warnings: Vec<String>,
}

/// A value, where it comes from, and from which day it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelValue {
    pub value: Value,
    pub source: SourceKind,
    pub as_of: Option<NaiveDate>,
}

/// Returns the facts of a model with what its provider said.
pub(super) fn facts_with(model: &Model, said: Option<&SaidRow>) -> Facts {
    let mut facts = model.facts.clone();
    let Some((probe, as_of)) = said.and_then(read) else { return facts };
    let mut traits = probe.traits;
    if matches!(&model.provider, Provider::Remote(remote) if remote.format.is_self_hosted()) {
        // The server reserves memory for the whole window: the model's own only bounds the default.
        traits.context_window = traits.context_window.map(|most| most.min(model.context_window()));
    }
    facts.add(&traits, Origin { source: SourceKind::Provider, as_of: Some(as_of) });
    facts
}

/// Returns the prices of a model with what its provider said.
pub(super) fn prices_with(model: &Model, said: Option<&SaidRow>) -> Option<Priced> {
    // Any server can say that it costs next to nothing. A cost limit must not lose its effect by that.
    let is_believed = |price: &PriceRow| is_at_provider(model) || !is_far_below(price, model, said);
    let of_provider = said.and_then(read).and_then(|(probe, as_of)| {
        let origin = Origin { source: SourceKind::Provider, as_of: Some(as_of) };
        Some(Priced { prices: Prices::new(vec![probe.price.filter(is_believed)?]), origin })
    });
    match (&model.prices, of_provider) {
        (Some(known), Some(_)) if known.origin.source <= SourceKind::Provider => {
            Some(known.clone())
        }
        (_, Some(said)) => Some(said),
        (known, None) => known.clone(),
    }
}

/// Tells whether a stated price is 0, or far below the price that is known for the model.
fn is_far_below(stated: &PriceRow, model: &Model, said: Option<&SaidRow>) -> bool {
    let known = said.and_then(|said| model.prices.as_ref()?.prices.at(said.said_at));
    let least = |known: f64| known / FAR_BELOW;
    let (input, output) = known.map_or((0.0, 0.0), |known| {
        let rates = known.rates();
        (least(rates.input), least(rates.output))
    });
    stated.input <= input || stated.output <= output
}

fn is_at_provider(model: &Model) -> bool {
    matches!(&model.provider, Provider::Remote(remote) if remote.is_at_provider)
}

/// Returns what a provider said and on which day; `None`, with a log line, if the row cannot be
/// read; the next answer of the provider replaces it.
fn read(row: &SaidRow) -> Option<(Probe, NaiveDate)> {
    let probe = serde_json::from_str(&row.said);
    let probe = probe.inspect_err(|error| {
        tracing::warn!(%error, model = row.model, "failed to read what a provider said of its model");
    });
    Some((probe.ok()?, row.said_at.date_naive()))
}

/// Returns the models of a configuration, by name.
#[must_use]
pub fn model_views(config: &Config, learned: &Learned, now: DateTime<Utc>) -> Vec<ModelView> {
    config.models.values().map(|model| view(model, learned, now)).collect()
}

fn view(model: &Arc<Model>, learned: &Learned, now: DateTime<Utc>) -> ModelView {
    let mut values = BTreeMap::new();
    let mut add = |key: &str, value: Value, origin: Origin| {
        let Origin { source, as_of } = origin;
        values.insert(key.to_owned(), ModelValue { value, source, as_of });
    };
    if let Provider::Remote(remote) = &model.provider {
        let said = learned.said_of(remote);
        for (key, value, origin) in facts_with(model, said).iter() {
            add(key, value.clone(), origin);
        }
        add_settings(remote, &mut add);
        if let Some(priced) = prices_with(model, said)
            && let Some(price) = priced.prices.at(now)
        {
            add("price", price_value(&price), priced.origin);
        }
        let said_shutdown = said.and_then(read).and_then(|(probe, as_of)| {
            let origin = Origin { source: SourceKind::Provider, as_of: Some(as_of) };
            Some((probe.shutdown?, origin))
        });
        if let Some((day, origin)) = said_shutdown.or(model.shutdown) {
            add("shutdown", json!(day), origin);
        }
        let lessons: Vec<&LessonRow> = learned.lessons_of(remote).collect();
        if let Some(last) = lessons.iter().map(|row| row.learned_at).max() {
            let names: Vec<&str> = lessons.iter().map(|row| row.parameter.as_str()).collect();
            let as_of = Some(last.date_naive());
            add("refused", json!(names), Origin { source: SourceKind::Learned, as_of });
        }
    }
    ModelView {
        name: model.name.clone(),
        model: model.model_word().to_owned(),
        provider: model.provider_word().to_owned(),
        known: model.is_known,
        values,
        warnings: model.warnings.clone(),
    }
}

fn add_settings(remote: &Remote, add: &mut dyn FnMut(&str, Value, Origin)) {
    let origin = |source| Origin { source, as_of: None };
    let limit = match remote.max_output_tokens {
        Some(own) => Some((own, origin(SourceKind::Config))),
        None => remote.sent_output_tokens().map(|own| (own, origin(SourceKind::Default))),
    };
    if let Some((limit, origin)) = limit {
        add("max_output_tokens", json!(limit), origin);
    }
    if let Some(effort) = remote.reasoning_effort {
        add("reasoning_effort", json!(effort), origin(SourceKind::Config));
    }
}

fn price_value(price: &Price) -> Value {
    let rates = price.rates();
    let mut value = json!({"input": rates.input, "output": rates.output});
    let others = [
        ("cached_input", rates.cached_input),
        ("cache_write", rates.cache_write),
        ("cache_write_long", rates.cache_write_long),
    ];
    if let Some(map) = value.as_object_mut() {
        for (key, rate) in others {
            if let Some(rate) = rate {
                map.insert(key.to_owned(), json!(rate));
            }
        }
        if price.is_estimated {
            map.insert("estimated".to_owned(), true.into());
        }
    }
    value
}

/// Asks the providers of all models of a configuration what they say of them, and remembers it.
/// Returns a message for each that did not answer.
pub async fn ask_providers(config: &Config, host: &Host) -> Vec<String> {
    let remotes = config.models.values().filter_map(|model| match &model.provider {
        Provider::Remote(remote) => Some((&model.name, remote.as_ref())),
        Provider::Scripted(_) => None,
    });
    let asked = remotes.map(|(name, remote)| async move {
        match ask(config, remote, host).await {
            Ok(probe) if probe == Probe::default() => {
                Some(format!("`{name}`: the provider's answer has no facts about the model"))
            }
            Ok(probe) if probe.is_known == Some(false) => {
                Some(format!("`{name}`: the provider does not list the model"))
            }
            Ok(probe) => remember(remote, &probe, host).await.err().map(|error| {
                format!("`{name}`: failed to remember what the provider said: {error}")
            }),
            Err(error) => Some(format!("`{name}`: {error}")),
        }
    });
    futures_util::future::join_all(asked).await.into_iter().flatten().collect()
}
