//! What a model of `config.yaml` means.

use std::collections::BTreeMap;
use std::time::Duration;

use super::price::Price;
use super::profile::Profile;
use super::raw::{RawEffort, RawModel, RawProfile, RawProvider};
use super::script::Script;
use super::web::{is_exposed, service_address};
use crate::argv::Diagnostics;
use crate::text::quantity;

/// Families of Anthropic's models that cannot be told how long to think.
const WITHOUT_EFFORT: &[&str] =
    &["claude-3-5", "claude-3-opus", "claude-3-sonnet", "claude-3-haiku", "claude-2"];

/// A model that jobs can name.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its name in `models`.
    pub name: String,
    /// Who serves it.
    pub provider: Provider,
    /// What its family was trained on.
    pub profile: &'static Profile,
    /// Tokens that it can take in.
    pub context_window: u64,
    /// Retries of one call.
    pub max_retries: u32,
    /// What it costs; `None` is unknown.
    pub price: Option<Price>,
    /// Models to try when it is unavailable, in order.
    pub fallback: Vec<String>,
}

/// Who serves a model.
#[derive(Debug, Clone)]
pub enum Provider {
    /// A server.
    Remote(Remote),
    /// A script.
    Scripted(Script),
}

/// What is spoken with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireFormat {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Responses.
    Openai,
    /// OpenAI Chat Completions and compatible servers.
    OpenaiChat,
    /// Gemini.
    Gemini,
    /// Ollama's own chat.
    Ollama,
}

impl WireFormat {
    /// Returns the word in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Openai => "openai",
            Self::OpenaiChat => "openai_chat",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }

    /// Returns the provider's own address.
    #[must_use]
    pub fn base_url(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com/v1",
            Self::Openai | Self::OpenaiChat => "https://api.openai.com/v1",
            Self::Gemini => "https://generativelanguage.googleapis.com/v1beta",
            Self::Ollama => "http://127.0.0.1:11434",
        }
    }

    fn profile(self) -> RawProfile {
        match self {
            Self::Anthropic => RawProfile::Anthropic,
            Self::Openai => RawProfile::Openai,
            Self::Gemini => RawProfile::Gemini,
            Self::OpenaiChat | Self::Ollama => RawProfile::Generic,
        }
    }
}

/// How long a model may think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Little.
    Low,
    /// As most tasks need.
    Medium,
    /// Much.
    High,
}

impl Effort {
    /// Returns the word that providers know.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A model behind a server.
#[derive(Clone)]
pub struct Remote {
    /// What is spoken.
    pub format: WireFormat,
    /// The model as the server knows it.
    pub model: String,
    /// The key; many local servers need none.
    pub api_key: Option<String>,
    /// The address up to the version, without a slash at its end.
    pub base_url: String,
    /// Whether the model sees pictures.
    pub sees_images: bool,
    /// Whether answers are streamed.
    pub stream: bool,
    /// The most tokens of one answer.
    pub max_output_tokens: Option<u32>,
    /// 0 is the most predictable.
    pub temperature: Option<f64>,
    /// How long it may think.
    pub reasoning_effort: Option<Effort>,
    /// Tokens that it can take in; a local server is told.
    pub context_window: u64,
    /// For the whole response.
    pub timeout: Duration,
    /// Without any byte.
    pub idle_timeout: Duration,
    /// Further request headers.
    pub headers: BTreeMap<String, String>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Key and headers are secrets.
        f.debug_struct("Remote")
            .field("format", &self.format)
            .field("model", &self.model)
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Returns the provider's word in files.
    #[must_use]
    pub fn provider_word(&self) -> &'static str {
        match &self.provider {
            Provider::Remote(remote) => remote.format.as_str(),
            Provider::Scripted(_) => "scripted",
        }
    }

    /// Returns the model as the provider knows it.
    #[must_use]
    pub fn model_word(&self) -> &str {
        match &self.provider {
            Provider::Remote(remote) => &remote.model,
            Provider::Scripted(_) => &self.name,
        }
    }

    /// Returns what `raw` means; the pointers of its errors are below the model. `script` loads a script.
    pub(crate) fn from_raw(
        name: &str,
        raw: &RawModel,
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
        let context_window = raw.context_window.unwrap_or(profile.context_window);
        let provider = match format {
            None => {
                for (key, is_set) in remote_keys(raw) {
                    if is_set {
                        diagnostics.error(
                            &format!("/{key}"),
                            format!("`{key}` says nothing to the scripted model: take it out"),
                        );
                    }
                }
                let Some(path) = &raw.script else {
                    diagnostics.error(
                        "",
                        "the scripted model needs `script:`, the file that it plays".to_owned(),
                    );
                    return None;
                };
                Provider::Scripted(script(path)?)
            }
            Some(format) => {
                if raw.script.is_some() {
                    diagnostics.error(
                        "/script",
                        "`script` is for the scripted model only: take it out".to_owned(),
                    );
                }
                Provider::Remote(remote(format, raw, (profile, context_window), diagnostics)?)
            }
        };
        let price = match (&raw.price, &provider) {
            (Some(price), _) => Price::from_raw(price),
            (None, Provider::Scripted(_)) => Some(Price::free()),
            (None, Provider::Remote(remote)) => known_price(remote),
        };
        Some(Self {
            name: name.to_owned(),
            provider,
            profile,
            context_window,
            max_retries: raw.max_retries.unwrap_or(4),
            price,
            fallback: raw.fallback.clone().unwrap_or_default(),
        })
    }
}

/// The names of models are the providers' own; another server may mean and cost something else.
fn known_price(remote: &Remote) -> Option<Price> {
    let is_own = remote.base_url == remote.format.base_url();
    is_own.then(|| Price::of(&remote.model)).flatten()
}

fn remote_keys(raw: &RawModel) -> [(&'static str, bool); 12] {
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
        ("idle_timeout", raw.idle_timeout.is_some()),
        ("headers", raw.headers.is_some()),
        ("fallback", raw.fallback.is_some()),
    ]
}

fn remote(
    format: WireFormat,
    raw: &RawModel,
    (profile, context_window): (&Profile, u64),
    diagnostics: &mut Diagnostics,
) -> Option<Remote> {
    let mut duration = |key: &str, text: &Option<String>, default: u64| match text
        .as_deref()
        .map(quantity::duration)
    {
        None => Duration::from_secs(default),
        Some(Ok(duration)) if !duration.is_zero() => duration,
        Some(Ok(_)) => {
            diagnostics
                .error(&format!("/{key}"), "a timeout of zero would end every call".to_owned());
            Duration::from_secs(default)
        }
        Some(Err(message)) => {
            diagnostics.error(&format!("/{key}"), message);
            Duration::from_secs(default)
        }
    };
    let timeout = duration("timeout", &raw.timeout, 600);
    let idle_timeout = duration("idle_timeout", &raw.idle_timeout, 60);
    check_address(format, raw, diagnostics);
    check_thinking(format, raw, diagnostics);
    let Some(model) = raw.model.clone() else {
        diagnostics.error("", "`model` is missing: the model as the server knows it".to_owned());
        return None;
    };
    // A model's name becomes a part of Gemini's address.
    let is_name =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@');
    if format == WireFormat::Gemini && !model.chars().all(is_name) {
        diagnostics.error("/model", format!("`{model}` is not a valid model name"));
    }
    let base_url = raw.base_url.clone().unwrap_or_else(|| format.base_url().to_owned());
    Some(Remote {
        sees_images: profile.sees_images,
        format,
        model,
        api_key: raw.api_key.clone(),
        base_url: base_url.trim_end_matches('/').to_owned(),
        stream: raw.stream.unwrap_or(true),
        max_output_tokens: raw.max_output_tokens,
        temperature: raw.temperature,
        reasoning_effort: raw.reasoning_effort.map(effort),
        context_window,
        timeout,
        idle_timeout,
        headers: raw.headers.clone().unwrap_or_default(),
    })
}

fn effort(raw: RawEffort) -> Effort {
    match raw {
        RawEffort::Low => Effort::Low,
        RawEffort::Medium => Effort::Medium,
        RawEffort::High => Effort::High,
    }
}

/// Tells whether requests carry something that opens the provider's door.
fn sends_key(raw: &RawModel) -> bool {
    let is_key = |name: &String| {
        let name = name.to_ascii_lowercase();
        ["auth", "key", "token", "secret", "cookie"].iter().any(|word| name.contains(word))
    };
    raw.api_key.is_some() || raw.headers.iter().flat_map(BTreeMap::keys).any(is_key)
}

fn check_address(format: WireFormat, raw: &RawModel, diagnostics: &mut Diagnostics) {
    if let Some(base_url) = &raw.base_url {
        let how = format!("up to the version, such as {}", format.base_url());
        let may_be_plain = raw.allow_plain_http == Some(true) || !sends_key(raw);
        match service_address(base_url, &how) {
            Err(message) => diagnostics.error("/base_url", message),
            Ok(url) if is_exposed(&url) && !may_be_plain => diagnostics.error(
                "/base_url",
                "the key would go over plain HTTP to a host that is not loopback: write https://, or `allow_plain_http: true`"
                    .to_owned(),
            ),
            Ok(_) => {}
        }
    }
    let has_key = raw.api_key.is_some()
        || raw.headers.iter().flat_map(BTreeMap::keys).any(|name| {
            ["authorization", "x-api-key", "x-goog-api-key"]
                .contains(&name.to_ascii_lowercase().as_str())
        });
    if raw.base_url.is_none() && !has_key && format != WireFormat::Ollama {
        let host = format.base_url();
        diagnostics.error("", format!("`api_key` is missing: {host} answers nobody without one"));
    }
    for (name, value) in raw.headers.iter().flatten() {
        let place = || format!("/headers/{}", crate::argv::pointer_segment(name));
        if reqwest::header::HeaderName::try_from(name.as_str()).is_err() {
            diagnostics.error(&place(), format!("`{name}` is not a valid header name"));
        }
        if reqwest::header::HeaderValue::try_from(value.as_str()).is_err() {
            diagnostics.error(&place(), format!("the value of `{name}` cannot stand in a header"));
        }
    }
    if raw
        .api_key
        .as_deref()
        .is_some_and(|key| reqwest::header::HeaderValue::try_from(key).is_err())
    {
        diagnostics.error(
            "/api_key",
            "the key holds a line break or another control character".to_owned(),
        );
    }
}

/// What a provider would answer with a 400 at night.
fn check_thinking(format: WireFormat, raw: &RawModel, diagnostics: &mut Diagnostics) {
    let model = raw.model.as_deref().unwrap_or_default();
    let thinks = raw.reasoning_effort.is_some();
    match format {
        WireFormat::Anthropic => {
            if raw.temperature.is_some_and(|temperature| temperature > 1.0) {
                diagnostics.error("/temperature", "Anthropic takes at most 1".to_owned());
            }
            if thinks && raw.temperature.is_some() {
                diagnostics.error(
                    "/temperature",
                    "a model of Anthropic that thinks takes no `temperature`: take it or `reasoning_effort` out".to_owned(),
                );
            }
            if thinks && WITHOUT_EFFORT.iter().any(|known| model.starts_with(known)) {
                diagnostics.error(
                    "/reasoning_effort",
                    format!("`{model}` cannot be told how long to think"),
                );
            }
        }
        WireFormat::Openai => {
            if thinks && raw.temperature.is_some() {
                diagnostics.error(
                    "/temperature",
                    "a model of OpenAI that reasons takes no `temperature`: take it or `reasoning_effort` out".to_owned(),
                );
            }
            let begins = |list: &[&str]| list.iter().any(|known| model.starts_with(known));
            let is_own = raw.base_url.is_none();
            // From gpt-5.1 on, a model reasons only if it is told to.
            let reasons = begins(&["o1", "o3", "o4", "gpt-5-"]) || model == "gpt-5";
            if is_own && raw.temperature.is_some() && !thinks && reasons {
                diagnostics.error(
                    "/temperature",
                    format!("`{model}` reasons, and takes no `temperature`"),
                );
            }
            if is_own && thinks && begins(&["gpt-3", "gpt-4", "chatgpt"]) {
                diagnostics.error("/reasoning_effort", format!("`{model}` does not reason"));
            }
            if raw.max_output_tokens.is_some_and(|most| most < 16) {
                diagnostics.error("/max_output_tokens", "OpenAI wants at least 16".to_owned());
            }
        }
        WireFormat::Gemini => {
            let is_medium = matches!(raw.reasoning_effort, Some(RawEffort::Medium));
            if is_medium && model.trim_start_matches("models/").starts_with("gemini-3-pro") {
                let message = format!("`{model}` knows low and high only");
                diagnostics.error("/reasoning_effort", message);
            }
        }
        WireFormat::OpenaiChat | WireFormat::Ollama => {}
    }
}
