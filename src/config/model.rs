//! A checked model of `config.yaml`, with every default filled in.

use std::collections::BTreeMap;
use std::time::Duration;

use super::price::Price;
use super::profile::Profile;
use super::raw::{RawEffort, RawModel, RawProfile, RawProvider};
use super::script::Script;
use super::web::{is_exposed, service_address, suggests_credential};
use crate::argv::Diagnostics;
use crate::text::quantity;

/// Prefixes of Anthropic models that do not support `reasoning_effort`.
const WITHOUT_EFFORT: &[&str] =
    &["claude-3-5", "claude-3-opus", "claude-3-sonnet", "claude-3-haiku", "claude-2"];

/// A model that jobs can name.
#[derive(Debug, Clone)]
pub struct Model {
    /// The key in `models`.
    pub name: String,
    /// The API or script that serves the model.
    pub provider: Provider,
    /// The prompt and tools for the model's family.
    pub profile: &'static Profile,
    /// The context window in tokens.
    pub context_window: u64,
    /// Retries per model call.
    pub max_retries: u32,
    /// The price; `None` if unknown.
    pub price: Option<Price>,
    /// Models to try, in order, when this one is unavailable.
    pub fallback: Vec<String>,
}

/// The API or script that serves a model.
#[derive(Debug, Clone)]
pub enum Provider {
    /// A model behind a network API.
    Remote(Remote),
    /// A scripted model, which makes no network calls.
    Scripted(Script),
}

/// The wire format of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireFormat {
    Anthropic,
    Openai,
    /// OpenAI Chat Completions and compatible servers.
    OpenaiChat,
    Gemini,
    /// Ollama's native chat API.
    Ollama,
}

impl WireFormat {
    /// Returns the value of `provider` in `config.yaml`.
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

    /// Returns the default base URL of the provider.
    #[must_use]
    pub fn base_url(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com/v1",
            Self::Openai | Self::OpenaiChat => "https://api.openai.com/v1",
            Self::Gemini => "https://generativelanguage.googleapis.com/v1beta",
            Self::Ollama => "http://127.0.0.1:11434",
        }
    }

    /// Every wire format.
    pub const ALL: [Self; 5] =
        [Self::Anthropic, Self::Openai, Self::OpenaiChat, Self::Gemini, Self::Ollama];

    /// Returns the path, below the base URL, of a request for an answer. Gemini's continues with
    /// the model.
    #[must_use]
    pub fn endpoint(self) -> &'static str {
        match self {
            Self::Anthropic => "/messages",
            Self::Openai => "/responses",
            Self::OpenaiChat => "/chat/completions",
            Self::Gemini => "/models",
            Self::Ollama => "/api/chat",
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

/// How much a model may reason before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Low,
    Medium,
    High,
}

impl Effort {
    /// Returns the value in provider requests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A model behind a network API.
#[derive(Clone)]
pub struct Remote {
    /// The wire format of the server.
    pub format: WireFormat,
    /// The name of the model at the server.
    pub model: String,
    /// The API key; many local servers do not need one.
    pub api_key: Option<String>,
    /// The base URL up to and including the version, without a trailing slash.
    pub base_url: String,
    /// Whether the model accepts images.
    pub sees_images: bool,
    /// Whether to stream responses.
    pub stream: bool,
    /// Maximum number of output tokens per response.
    pub max_output_tokens: Option<u32>,
    /// The sampling temperature; 0 is the most predictable.
    pub temperature: Option<f64>,
    /// How much the model may reason before it answers.
    pub reasoning_effort: Option<Effort>,
    /// The context window in tokens; only requests to Ollama include it.
    pub context_window: u64,
    /// The timeout for the whole response.
    pub timeout: Duration,
    /// The timeout for the first byte of a streamed response, from the request on.
    pub first_byte_timeout: Duration,
    /// The timeout for the next byte of a response.
    pub idle_timeout: Duration,
    pub headers: BTreeMap<String, String>,
}

impl Remote {
    /// Returns the timeout for the first byte of a response. Without streaming, no byte arrives before
    /// the answer is complete, so only the total timeout limits the wait.
    #[must_use]
    pub fn first_byte(&self) -> Duration {
        if self.stream { self.first_byte_timeout } else { self.timeout }
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key and the headers are secrets.
        f.debug_struct("Remote")
            .field("format", &self.format)
            .field("model", &self.model)
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
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

    /// Checks `raw` and fills in the defaults. The pointers of the diagnostics are relative to the
    /// model. `script` loads a script.
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

/// Returns the built-in price if the base URL is that of the provider. At another server, the same
/// name may mean another model with another price.
fn known_price(remote: &Remote) -> Option<Price> {
    let is_own = remote.base_url == remote.format.base_url();
    is_own.then(|| Price::of(&remote.model)).flatten()
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
    (profile, context_window): (&Profile, u64),
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
    check_thinking(format, raw, diagnostics);
    let Some(model) = raw.model.clone() else {
        diagnostics
            .error("", "`model` is missing: set the name of the model at the server".to_owned());
        return None;
    };
    // The URL of a Gemini request contains the model's name.
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
        first_byte_timeout,
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
    if raw.base_url.is_none() && !has_key && format != WireFormat::Ollama {
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

/// Reports settings that the provider would reject at run time with status 400, alone or together.
fn check_thinking(format: WireFormat, raw: &RawModel, diagnostics: &mut Diagnostics) {
    let model = raw.model.as_deref().unwrap_or_default();
    let thinks = raw.reasoning_effort.is_some();
    match format {
        WireFormat::Anthropic => {
            if raw.temperature.is_some_and(|temperature| temperature > 1.0) {
                diagnostics.error("/temperature", "Anthropic accepts at most 1".to_owned());
            }
            if thinks && raw.temperature.is_some() {
                diagnostics.error(
                    "/temperature",
                    "an Anthropic model that reasons does not accept `temperature`: remove it or `reasoning_effort`".to_owned(),
                );
            }
            if thinks && WITHOUT_EFFORT.iter().any(|known| model.starts_with(known)) {
                diagnostics.error(
                    "/reasoning_effort",
                    format!("`{model}` does not support `reasoning_effort`"),
                );
            }
        }
        WireFormat::Openai => {
            if thinks && raw.temperature.is_some() {
                diagnostics.error(
                    "/temperature",
                    "an OpenAI model that reasons does not accept `temperature`: remove it or `reasoning_effort`".to_owned(),
                );
            }
            let begins = |list: &[&str]| list.iter().any(|known| model.starts_with(known));
            let is_own = raw.base_url.is_none();
            // From gpt-5.1 on, a model reasons only if the request asks for it.
            let reasons = begins(&["o1", "o3", "o4", "gpt-5-"]) || model == "gpt-5";
            if is_own && raw.temperature.is_some() && !thinks && reasons {
                diagnostics.error(
                    "/temperature",
                    format!("`{model}` reasons and does not accept `temperature`"),
                );
            }
            if is_own && thinks && begins(&["gpt-3", "gpt-4", "chatgpt"]) {
                diagnostics.error("/reasoning_effort", format!("`{model}` does not reason"));
            }
            if raw.max_output_tokens.is_some_and(|most| most < 16) {
                diagnostics.error("/max_output_tokens", "OpenAI requires at least 16".to_owned());
            }
        }
        WireFormat::Gemini => {
            let is_medium = matches!(raw.reasoning_effort, Some(RawEffort::Medium));
            if is_medium && model.trim_start_matches("models/").starts_with("gemini-3-pro") {
                let message = format!("`{model}` supports only low and high: choose one of them");
                diagnostics.error("/reasoning_effort", message);
            }
        }
        WireFormat::OpenaiChat | WireFormat::Ollama => {}
    }
}
