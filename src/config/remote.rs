//! A model behind a network API: its wire format, its address and its settings.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::profile::Profile;
use super::raw::RawProfile;
use crate::catalogue::{ChatRules, Effort, ReasoningForm, Traits};

/// The default limit of output tokens, which leaves room for reasoning, and the one from the effort
/// `high` on.
const OUTPUT_TOKENS: u32 = 32_000;
const OUTPUT_TOKENS_OF_HIGH_EFFORT: u32 = 64_000;

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

/// What is known of a wire format without a request. A new format needs a row here, a value of
/// `provider`, and a file in `provider/`.
struct FormatRow {
    /// The value of `provider` in `config.yaml`.
    word: &'static str,
    base_url: &'static str,
    /// The path, below the base URL, of a request for an answer.
    endpoint: &'static str,
    profile: RawProfile,
    /// Whether the operator runs the server.
    is_self_hosted: bool,
    /// Whether the URL of a request contains the name of the model.
    has_model_in_url: bool,
    /// The highest temperature that the provider accepts, and its name.
    highest_temperature: Option<Bound<f64>>,
    /// The lowest limit on output tokens that the provider accepts, and its name.
    lowest_output_tokens: Option<Bound<u32>>,
}

/// A bound that a provider sets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<T> {
    pub(super) value: T,
    /// The name of the provider, for people.
    pub(super) provider: &'static str,
}

/// OpenAI's row, on which the others build.
const OPENAI: FormatRow = FormatRow {
    word: "openai",
    base_url: "https://api.openai.com/v1",
    endpoint: "/responses",
    profile: RawProfile::Openai,
    is_self_hosted: false,
    has_model_in_url: false,
    highest_temperature: None,
    lowest_output_tokens: Some(Bound { value: 16, provider: "OpenAI" }),
};

const OPENAI_CHAT: FormatRow = FormatRow {
    word: "openai_chat",
    endpoint: "/chat/completions",
    profile: RawProfile::Generic,
    lowest_output_tokens: None,
    ..OPENAI
};

const ANTHROPIC: FormatRow = FormatRow {
    word: "anthropic",
    base_url: "https://api.anthropic.com/v1",
    endpoint: "/messages",
    profile: RawProfile::Anthropic,
    highest_temperature: Some(Bound { value: 1.0, provider: "Anthropic" }),
    ..OPENAI_CHAT
};

const GEMINI: FormatRow = FormatRow {
    word: "gemini",
    base_url: "https://generativelanguage.googleapis.com/v1beta",
    // It continues with the model.
    endpoint: "/models",
    profile: RawProfile::Gemini,
    has_model_in_url: true,
    ..OPENAI_CHAT
};

const OLLAMA: FormatRow = FormatRow {
    word: "ollama",
    base_url: "http://127.0.0.1:11434",
    endpoint: "/api/chat",
    is_self_hosted: true,
    ..OPENAI_CHAT
};

impl WireFormat {
    /// Every wire format.
    pub const ALL: [Self; 5] =
        [Self::Anthropic, Self::Openai, Self::OpenaiChat, Self::Gemini, Self::Ollama];

    fn row(self) -> &'static FormatRow {
        match self {
            Self::Anthropic => &ANTHROPIC,
            Self::Openai => &OPENAI,
            Self::OpenaiChat => &OPENAI_CHAT,
            Self::Gemini => &GEMINI,
            Self::Ollama => &OLLAMA,
        }
    }

    /// Returns the value of `provider` in `config.yaml`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().word
    }

    /// Returns the default base URL of the provider.
    #[must_use]
    pub fn base_url(self) -> &'static str {
        self.row().base_url
    }

    /// Returns the path, below the base URL, of a request for an answer. Gemini's continues with
    /// the model.
    #[must_use]
    pub fn endpoint(self) -> &'static str {
        self.row().endpoint
    }

    /// Tells whether the operator runs the server. Such a server needs no key, has no price, and
    /// reserves memory for the whole context window.
    #[must_use]
    pub fn is_self_hosted(self) -> bool {
        self.row().is_self_hosted
    }

    pub(super) fn profile(self) -> RawProfile {
        self.row().profile
    }

    pub(super) fn has_model_in_url(self) -> bool {
        self.row().has_model_in_url
    }

    pub(super) fn highest_temperature(self) -> Option<Bound<f64>> {
        self.row().highest_temperature
    }

    pub(super) fn lowest_output_tokens(self) -> Option<Bound<u32>> {
        self.row().lowest_output_tokens
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
    /// What holds for the model.
    pub traits: Traits,
    /// Whether the address is that of a provider of the catalogue. Another server may serve a model of
    /// the same name with a smaller window.
    pub is_at_provider: bool,
    /// The rules of its server, if that is a Chat Completions server.
    pub chat: ChatRules,
    /// Whether to stream responses.
    pub stream: bool,
    /// Maximum number of output tokens per response, if the configuration sets it.
    pub max_output_tokens: Option<u32>,
    /// The sampling temperature; 0 is the most predictable.
    pub temperature: Option<f64>,
    /// How much the model may reason before it answers.
    pub reasoning_effort: Option<Effort>,
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

    /// Returns the digest (SHA-256, hex) of what decides whether the model answers: its server, its name
    /// there, the key and the headers.
    #[must_use]
    pub fn access_digest(&self) -> String {
        let Self { format, base_url, model, api_key, headers, .. } = self;
        let access = serde_json::json!([format.as_str(), base_url, model, api_key, headers]);
        hex::encode(Sha256::digest(access.to_string()))
    }

    /// Returns the context window in tokens.
    #[must_use]
    pub fn context_window(&self) -> u64 {
        self.traits.context_window.unwrap_or(Profile::generic().context_window)
    }

    /// Tells whether the model takes images.
    #[must_use]
    pub fn sees_images(&self) -> bool {
        self.traits.images == Some(true)
    }

    /// Tells whether a request may have a schema of the answer. Ollama forces each answer into the schema,
    /// so that the model could not call a tool.
    #[must_use]
    pub fn takes_schema(&self, has_tools: bool) -> bool {
        match self.format {
            WireFormat::Ollama => !has_tools,
            _ => self.is_at_provider && self.traits.schema_beside_tools == Some(true),
        }
    }

    /// Tells whether the model reasons before it answers; `None` if unknown.
    #[must_use]
    pub fn reasons(&self) -> Option<bool> {
        match self.reasoning_effort {
            Some(effort) => Some(effort != Effort::None),
            None => self.traits.reasons_by_default,
        }
    }

    /// Returns the limit of output tokens that requests set; `None` if they leave it to the provider.
    #[must_use]
    pub fn sent_output_tokens(&self) -> Option<u32> {
        let is_known = self.is_at_provider && self.traits.output_limit.is_some();
        let needs_one = self.format == WireFormat::Anthropic || is_known;
        self.max_output_tokens.or_else(|| needs_one.then(|| self.default_output_tokens()))
    }

    /// Returns the limit of output tokens for a request after an answer that the server's own limit cut
    /// off: what the model can write, or at most half of the window if that is unknown.
    #[must_use]
    pub fn raised_output_tokens(&self) -> u32 {
        let half = u32::try_from(self.context_window() / 2).unwrap_or(u32::MAX);
        self.traits.output_limit.unwrap_or(OUTPUT_TOKENS_OF_HIGH_EFFORT.min(half))
    }

    /// Returns the effort that requests ask for. A model that does not reason rejects even `none`.
    #[must_use]
    pub fn sent_effort(&self) -> Option<Effort> {
        let cannot = self.traits.reasoning == Some(ReasoningForm::None);
        self.reasoning_effort.filter(|effort| *effort != Effort::None || !cannot)
    }

    /// Returns the limit of output tokens for a request that sets none: as much as leaves room for
    /// reasoning and the model can write.
    #[must_use]
    pub fn default_output_tokens(&self) -> u32 {
        let is_high = self.reasoning_effort.is_some_and(|effort| effort >= Effort::High);
        let room = if is_high { OUTPUT_TOKENS_OF_HIGH_EFFORT } else { OUTPUT_TOKENS };
        self.traits.output_limit.map_or(room, |most| most.min(room))
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

/// Returns the host of a base URL.
pub(super) fn host_of(base_url: &str) -> Option<String> {
    let url = reqwest::Url::parse(base_url).ok()?;
    url.host_str().map(str::to_ascii_lowercase)
}
