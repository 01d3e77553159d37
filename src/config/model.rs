//! A checked model of `config.yaml`, with every default filled in.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};

use super::model_advice::{advise, vendor};
use super::model_price::{Priced, price_of};
use super::profile::Profile;
use super::raw::{RawModel, RawProvider};
use super::remote::{Bound, Remote, WireFormat, host_of};
use super::script::Script;
use super::web::{is_exposed, service_address, suggests_credential};
use crate::argv::Diagnostics;
use crate::catalogue::{Catalogue, Effort, Facts, Found, Origin, Price, SourceKind, Traits};
use crate::text::quantity;

/// A model that jobs can name.
#[derive(Debug, Clone)]
pub struct Model {
    /// The key in `models`.
    pub name: String,
    /// The API or script that serves the model.
    pub provider: Provider,
    /// The prompt and tools for the model's family.
    pub profile: &'static Profile,
    /// What is known of the model, with the source of each value.
    pub facts: Facts,
    /// Retries per model call.
    pub max_retries: u32,
    /// The prices; `None` if unknown.
    pub prices: Option<Priced>,
    /// The day from which the provider does not serve the model, with its source.
    pub shutdown: Option<(NaiveDate, Origin)>,
    /// Whether the catalogue or the operator has a row for the model.
    pub is_known: bool,
    /// What is out of date, and what the provider will refuse: `config.yaml:4: …`. The loader of the
    /// file adds them.
    pub warnings: Vec<String>,
    /// Whether the provider rejects each request with tools over this wire format.
    pub rejects_tools: bool,
    /// Models to try, in order, when this one is unavailable.
    pub fallback: Vec<String>,
}

/// The API or script that serves a model.
#[derive(Debug, Clone)]
pub enum Provider {
    /// A model behind a network API.
    Remote(Box<Remote>),
    /// A scripted model, which makes no network calls.
    Scripted(Script),
}

impl Model {
    /// Returns the value of `provider` in `config.yaml`; `scripted` for a scripted model.
    #[must_use]
    pub fn provider_word(&self) -> &'static str {
        match &self.provider {
            Provider::Remote(remote) => remote.format.as_str(),
            Provider::Scripted(_) => "scripted",
        }
    }

    /// Returns the name of the model at the provider; for a scripted model, its key in `models`.
    #[must_use]
    pub fn model_word(&self) -> &str {
        match &self.provider {
            Provider::Remote(remote) => &remote.model,
            Provider::Scripted(_) => &self.name,
        }
    }

    /// Returns the price of a call that is made now; `None` if unknown.
    #[must_use]
    pub fn price(&self, now: DateTime<Utc>) -> Option<Price> {
        self.prices.as_ref()?.prices.at(now)
    }

    /// Returns why the model does not take an effort; `None` if it takes it or if that is unknown.
    #[must_use]
    pub fn why_effort_refused(&self, effort: Effort) -> Option<String> {
        why_effort_refused(self.model_word(), effort, self.facts.traits())
    }

    /// Returns the part of the context window that requests may fill, in tokens.
    #[must_use]
    pub fn context_window(&self) -> u64 {
        self.facts.traits().most_input().unwrap_or(self.profile.context_window)
    }

    /// Returns a model of OpenAI, or of the compatible server at `base_url`. `None` if the address or
    /// the key is not valid.
    #[must_use]
    pub fn of_openai(
        name: &str,
        model: &str,
        api_key: &str,
        base_url: Option<&str>,
        now: DateTime<Utc>,
    ) -> Option<Self> {
        let raw = match base_url {
            None => serde_json::json!({"provider": "openai", "model": model, "api_key": api_key}),
            Some(base_url) => {
                serde_json::json!({"provider": "openai_chat", "model": model, "api_key": api_key, "base_url": base_url})
            }
        };
        let raw: RawModel = serde_json::from_value(raw).ok()?;
        let catalogue = Catalogue::built_in().ok()?;
        let mut diagnostics = Diagnostics::default();
        let made = Self::from_raw(name, &raw, &catalogue, now, &mut diagnostics, |_| None);
        made.filter(|_| diagnostics.errors.is_empty())
    }

    /// Checks `raw` and fills in the defaults. The pointers of the diagnostics are relative to the
    /// model. `script` loads a script.
    pub(crate) fn from_raw(
        name: &str,
        raw: &RawModel,
        catalogue: &Catalogue,
        now: DateTime<Utc>,
        diagnostics: &mut Diagnostics,
        script: impl FnOnce(&str) -> Option<Script>,
    ) -> Option<Self> {
        let format = match raw.provider? {
            RawProvider::Scripted => None,
            RawProvider::Anthropic => Some(WireFormat::Anthropic),
            RawProvider::Openai => Some(WireFormat::Openai),
            RawProvider::OpenaiChat => Some(WireFormat::OpenaiChat),
            RawProvider::Gemini => Some(WireFormat::Gemini),
            RawProvider::Ollama => Some(WireFormat::Ollama),
        };
        let profile = raw.profile.or_else(|| format.map(WireFormat::profile));
        let profile = profile.map_or_else(Profile::generic, Profile::of);
        let address = raw.base_url.as_deref().or_else(|| Some(format?.base_url()));
        let host = address.and_then(host_of);
        let mut found = catalogue.find(raw.model.as_deref().unwrap_or_default(), host.as_deref());
        complete(&mut found, format, raw, profile);
        let provider = match format {
            None => {
                for (key, is_set) in remote_keys(raw) {
                    if is_set {
                        diagnostics.error(
                            &format!("/{key}"),
                            format!("`{key}` does not apply to the scripted model: remove it"),
                        );
                    }
                }
                let Some(path) = &raw.script else {
                    diagnostics.error(
                        "",
                        "the scripted model needs `script:`: set the file to play".to_owned(),
                    );
                    return None;
                };
                Provider::Scripted(script(path)?)
            }
            Some(format) => {
                if raw.script.is_some() {
                    diagnostics.error(
                        "/script",
                        "`script` applies only to the scripted model: remove it".to_owned(),
                    );
                }
                let remote = remote(format, raw, &found, catalogue, diagnostics)?;
                Provider::Remote(Box::new(remote))
            }
        };
        let prices = match &provider {
            Provider::Scripted(_) => Some(Priced::free()),
            Provider::Remote(remote) => {
                let prices =
                    price_of(raw.price.as_ref(), remote, &found, catalogue, now, diagnostics);
                advise(remote, &found, catalogue, prices.as_ref(), now, diagnostics);
                prices
            }
        };
        let rejects_tools = match &provider {
            Provider::Scripted(_) => false,
            Provider::Remote(remote) => rejects_tools(remote, catalogue),
        };
        let vendor = format.and_then(|format| vendor(format, catalogue));
        let shutdown = found.shutdown(vendor).map(|(day, _, origin)| (day, origin));
        let is_known = found.is_known() || format.is_none();
        Some(Self {
            name: name.to_owned(),
            provider,
            profile,
            facts: found.facts,
            max_retries: raw.max_retries.unwrap_or(4),
            prices,
            shutdown,
            is_known,
            warnings: Vec::new(),
            rejects_tools,
            fallback: raw.fallback.clone().unwrap_or_default(),
        })
    }
}

/// Adds what the configuration says of the model, and the defaults of its profile.
fn complete(found: &mut Found, format: Option<WireFormat>, raw: &RawModel, profile: &Profile) {
    let is_of_operator =
        found.facts.origin("context_window").is_some_and(|of| of.source == SourceKind::ModelsD);
    if format.is_none_or(WireFormat::is_self_hosted) && !is_of_operator {
        // The server reserves memory for the whole window, so the default is not the largest one.
        found.facts.forget("context_window");
    }
    let origin = |source| Origin { source, as_of: None };
    let own = Traits { context_window: raw.context_window, ..Traits::default() };
    found.facts.add(&own, origin(SourceKind::Config));
    let of_profile = Traits {
        context_window: Some(profile.context_window),
        images: Some(profile.sees_images),
        ..Traits::default()
    };
    found.facts.add(&of_profile, origin(SourceKind::Default));
}

fn remote_keys(raw: &RawModel) -> [(&'static str, bool); 13] {
    [
        ("model", raw.model.is_some()),
        ("api_key", raw.api_key.is_some()),
        ("allow_plain_http", raw.allow_plain_http.is_some()),
        ("base_url", raw.base_url.is_some()),
        ("stream", raw.stream.is_some()),
        ("max_output_tokens", raw.max_output_tokens.is_some()),
        ("temperature", raw.temperature.is_some()),
        ("reasoning_effort", raw.reasoning_effort.is_some()),
        ("timeout", raw.timeout.is_some()),
        ("first_byte_timeout", raw.first_byte_timeout.is_some()),
        ("idle_timeout", raw.idle_timeout.is_some()),
        ("headers", raw.headers.is_some()),
        ("fallback", raw.fallback.is_some()),
    ]
}

fn remote(
    format: WireFormat,
    raw: &RawModel,
    found: &Found,
    catalogue: &Catalogue,
    diagnostics: &mut Diagnostics,
) -> Option<Remote> {
    let mut duration = |key: &str, text: &Option<String>, default: Duration| match text
        .as_deref()
        .map(quantity::duration)
    {
        None => default,
        Some(Ok(duration)) if !duration.is_zero() => duration,
        Some(Ok(_)) => {
            diagnostics.error(
                &format!("/{key}"),
                "a timeout of zero would end every call: use a value above 0s".to_owned(),
            );
            default
        }
        Some(Err(message)) => {
            diagnostics.error(&format!("/{key}"), message);
            default
        }
    };
    let timeout = duration("timeout", &raw.timeout, Duration::from_mins(10));
    let idle_timeout = duration("idle_timeout", &raw.idle_timeout, Duration::from_mins(1));
    let first_byte_timeout = duration("first_byte_timeout", &raw.first_byte_timeout, idle_timeout);
    check_address(format, raw, diagnostics);
    check_limits(format, raw, found, diagnostics);
    let Some(model) = raw.model.clone() else {
        diagnostics
            .error("", "`model` is missing: set the name of the model at the server".to_owned());
        return None;
    };
    let is_name =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@');
    if format.has_model_in_url() && !model.chars().all(is_name) {
        diagnostics.error("/model", format!("`{model}` is not a valid model name"));
    }
    let base_url = raw.base_url.clone().unwrap_or_else(|| format.base_url().to_owned());
    let base_url = base_url.trim_end_matches('/').to_owned();
    let host = host_of(&base_url);
    let is_at_provider = host.as_deref().is_some_and(|host| catalogue.provider_at(host).is_some());
    let chat = host.map(|host| catalogue.chat_rules(&host)).unwrap_or_default();
    Some(Remote {
        traits: found.facts.traits().clone(),
        is_at_provider,
        chat,
        format,
        model,
        api_key: raw.api_key.clone(),
        base_url,
        stream: raw.stream.unwrap_or(true),
        max_output_tokens: raw.max_output_tokens,
        temperature: raw.temperature,
        reasoning_effort: raw.reasoning_effort,
        timeout,
        first_byte_timeout,
        idle_timeout,
        headers: raw.headers.clone().unwrap_or_default(),
    })
}

/// Tells whether requests carry a credential: the API key, or a header whose name suggests one.
fn sends_key(raw: &RawModel) -> bool {
    let mut names = raw.headers.iter().flat_map(BTreeMap::keys);
    raw.api_key.is_some() || names.any(|name| suggests_credential(name))
}

fn check_address(format: WireFormat, raw: &RawModel, diagnostics: &mut Diagnostics) {
    if let Some(base_url) = &raw.base_url {
        let how = format!("up to the version, such as {}", format.base_url());
        let may_be_plain = raw.allow_plain_http == Some(true) || !sends_key(raw);
        match service_address(base_url, &how) {
            Err(message) => diagnostics.error("/base_url", message),
            Ok(url) if is_exposed(&url) && !may_be_plain => diagnostics.error(
                "/base_url",
                "the key would be sent over plain HTTP to a host that is not loopback: use https://, or set `allow_plain_http: true`"
                    .to_owned(),
            ),
            Ok(_) if base_url.trim_end_matches('/').ends_with(format.endpoint()) => {
                let path = format.endpoint();
                let message = format!("`base_url` ends at the version, because dutyd appends `{path}` itself: remove `{path}`");
                diagnostics.error("/base_url", message);
            }
            Ok(_) => {}
        }
    }
    let has_key = raw.api_key.is_some()
        || raw.headers.iter().flat_map(BTreeMap::keys).any(|name| {
            ["authorization", "x-api-key", "x-goog-api-key"]
                .contains(&name.to_ascii_lowercase().as_str())
        });
    if raw.base_url.is_none() && !has_key && !format.is_self_hosted() {
        let host = format.base_url();
        diagnostics.error("", format!("`api_key` is missing: {host} requires one"));
    }
    for (name, value) in raw.headers.iter().flatten() {
        let place = || format!("/headers/{}", crate::argv::pointer_segment(name));
        if reqwest::header::HeaderName::try_from(name.as_str()).is_err() {
            diagnostics.error(&place(), format!("`{name}` is not a valid header name"));
        }
        if reqwest::header::HeaderValue::try_from(value.as_str()).is_err() {
            diagnostics
                .error(&place(), format!("the value of `{name}` is not a valid header value"));
        }
    }
    if raw
        .api_key
        .as_deref()
        .is_some_and(|key| reqwest::header::HeaderValue::try_from(key).is_err())
    {
        diagnostics.error(
            "/api_key",
            "the key contains a line break or another control character".to_owned(),
        );
    }
}

/// Returns why a model does not take an effort; `None` if it takes it or if that is unknown.
fn why_effort_refused(model: &str, effort: Effort, traits: &Traits) -> Option<String> {
    let efforts = traits.efforts.as_ref().filter(|efforts| !efforts.contains(&effort))?;
    let words: Vec<&str> = efforts.iter().map(|effort| effort.as_str()).collect();
    Some(match words.as_slice() {
        ["none"] | [] => format!("`{model}` does not reason: remove `reasoning_effort`"),
        words => format!("`{model}` takes only {}", words.join(", ")),
    })
}

/// Reports settings that no request can carry: an effort that the model does not take, and values
/// outside the range of the format.
fn check_limits(format: WireFormat, raw: &RawModel, found: &Found, diagnostics: &mut Diagnostics) {
    let model = raw.model.as_deref().unwrap_or_default();
    let traits = found.facts.traits();
    let effort = raw.reasoning_effort;
    if let Some(message) = effort.and_then(|effort| why_effort_refused(model, effort, traits)) {
        diagnostics.error("/reasoning_effort", message);
    }
    if let Some(Bound { value, provider }) = format.highest_temperature()
        && raw.temperature.is_some_and(|temperature| temperature > value)
    {
        diagnostics.error("/temperature", format!("{provider} accepts at most {value}"));
    }
    if let Some(Bound { value, provider }) = format.lowest_output_tokens()
        && raw.max_output_tokens.is_some_and(|most| most < value)
    {
        diagnostics.error("/max_output_tokens", format!("{provider} requires at least {value}"));
    }
}

/// Tells whether OpenAI rejects each request with tools for the model, because it comes over Chat
/// Completions.
fn rejects_tools(remote: &Remote, catalogue: &Catalogue) -> bool {
    let provider = |base_url: &str| catalogue.provider_at(&host_of(base_url)?);
    let own = provider(WireFormat::OpenaiChat.base_url());
    // OpenAI has hosts of regions too.
    let is_at_openai =
        own.zip(provider(&remote.base_url)).is_some_and(|(own, at)| own.name == at.name);
    remote.format == WireFormat::OpenaiChat
        && remote.traits.chat_with_tools == Some(false)
        && remote.reasoning_effort != Some(Effort::None)
        && is_at_openai
}
