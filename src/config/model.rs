//! What a model of `config.yaml` means.

use std::collections::BTreeMap;
use std::time::Duration;

use super::raw::{RawEffort, RawModel, RawProvider};
use super::script::Script;
use crate::text::quantity;

/// A model that jobs can name.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its name in `models`.
    pub name: String,
    /// Who serves it.
    pub provider: Provider,
    /// Tokens that it can take in.
    pub context_window: u64,
    /// Retries of one call.
    pub max_retries: u32,
}

/// Who serves a model.
#[derive(Debug, Clone)]
pub enum Provider {
    /// OpenAI Chat Completions and compatible servers.
    OpenaiChat(ChatModel),
    /// A script.
    Scripted(Script),
}

/// A model behind OpenAI Chat Completions.
#[derive(Clone)]
pub struct ChatModel {
    /// The model as the server knows it.
    pub model: String,
    /// The key; many local servers need none.
    pub api_key: Option<String>,
    /// The address up to the version, without a slash at its end.
    pub base_url: String,
    /// Whether answers are streamed.
    pub stream: bool,
    /// The most tokens of one answer.
    pub max_output_tokens: Option<u32>,
    /// 0 is the most predictable.
    pub temperature: Option<f64>,
    /// `low`, `medium` or `high`.
    pub reasoning_effort: Option<&'static str>,
    /// For the whole response.
    pub timeout: Duration,
    /// Without any byte.
    pub idle_timeout: Duration,
    /// Further request headers.
    pub headers: BTreeMap<String, String>,
}

impl std::fmt::Debug for ChatModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Key and headers are secrets.
        f.debug_struct("ChatModel")
            .field("model", &self.model)
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Returns the provider's word in files.
    #[must_use]
    pub fn provider_word(&self) -> &'static str {
        match self.provider {
            Provider::OpenaiChat(_) => "openai_chat",
            Provider::Scripted(_) => "scripted",
        }
    }

    /// Returns the model as the provider knows it.
    #[must_use]
    pub fn model_word(&self) -> &str {
        match &self.provider {
            Provider::OpenaiChat(chat) => &chat.model,
            Provider::Scripted(_) => &self.name,
        }
    }

    /// Returns what `raw` means; `complain` is given the pointer below the model and the text of each error. `script` loads a script.
    pub(crate) fn from_raw(
        name: &str,
        raw: &RawModel,
        mut complain: impl FnMut(&str, String),
        script: impl FnOnce(&str) -> Option<Script>,
    ) -> Option<Self> {
        let provider = match raw.provider? {
            RawProvider::Scripted => {
                for (key, is_set) in chat_keys(raw) {
                    if is_set {
                        complain(
                            &format!("/{key}"),
                            format!("`{key}` says nothing to the scripted model: take it out"),
                        );
                    }
                }
                let Some(path) = &raw.script else {
                    complain(
                        "",
                        "the scripted model needs `script:`, the file that it plays".to_owned(),
                    );
                    return None;
                };
                Provider::Scripted(script(path)?)
            }
            RawProvider::OpenaiChat => {
                if raw.script.is_some() {
                    complain(
                        "/script",
                        "`script` is for the scripted model only: take it out".to_owned(),
                    );
                }
                Provider::OpenaiChat(chat(raw, &mut complain)?)
            }
        };
        Some(Self {
            name: name.to_owned(),
            provider,
            context_window: raw.context_window.unwrap_or(128_000),
            max_retries: raw.max_retries.unwrap_or(4),
        })
    }
}

fn chat_keys(raw: &RawModel) -> [(&'static str, bool); 9] {
    [
        ("model", raw.model.is_some()),
        ("api_key", raw.api_key.is_some()),
        ("base_url", raw.base_url.is_some()),
        ("stream", raw.stream.is_some()),
        ("max_output_tokens", raw.max_output_tokens.is_some()),
        ("temperature", raw.temperature.is_some()),
        ("reasoning_effort", raw.reasoning_effort.is_some()),
        ("timeout", raw.timeout.is_some() || raw.idle_timeout.is_some()),
        ("headers", raw.headers.is_some()),
    ]
}

fn chat(raw: &RawModel, complain: &mut impl FnMut(&str, String)) -> Option<ChatModel> {
    let mut duration = |key: &str, text: &Option<String>, default: u64| match text
        .as_deref()
        .map(quantity::duration)
    {
        None => Duration::from_secs(default),
        Some(Ok(duration)) if !duration.is_zero() => duration,
        Some(Ok(_)) => {
            complain(&format!("/{key}"), "a timeout of zero would end every call".to_owned());
            Duration::from_secs(default)
        }
        Some(Err(message)) => {
            complain(&format!("/{key}"), message);
            Duration::from_secs(default)
        }
    };
    let timeout = duration("timeout", &raw.timeout, 600);
    let idle_timeout = duration("idle_timeout", &raw.idle_timeout, 60);
    let base_url = raw.base_url.clone().unwrap_or_else(|| "https://api.openai.com/v1".to_owned());

    let is_url = reqwest::Url::parse(&base_url)
        .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
    if !is_url {
        complain(
            "/base_url",
            format!(
                "`{base_url}` is no address: write it up to the version, such as https://api.openai.com/v1"
            ),
        );
    }
    for name in raw.headers.iter().flat_map(BTreeMap::keys) {
        if reqwest::header::HeaderName::try_from(name.as_str()).is_err() {
            complain(
                &format!("/headers/{}", crate::call::pointer_segment(name)),
                format!("`{name}` is no name of a header"),
            );
        }
    }
    let Some(model) = raw.model.clone() else {
        complain("", "`model` is missing: the model as the server knows it".to_owned());
        return None;
    };
    Some(ChatModel {
        model,
        api_key: raw.api_key.clone(),
        base_url: base_url.trim_end_matches('/').to_owned(),
        stream: raw.stream.unwrap_or(true),
        max_output_tokens: raw.max_output_tokens,
        temperature: raw.temperature,
        reasoning_effort: raw.reasoning_effort.map(|effort| match effort {
            RawEffort::Low => "low",
            RawEffort::Medium => "medium",
            RawEffort::High => "high",
        }),
        timeout,
        idle_timeout,
        headers: raw.headers.clone().unwrap_or_default(),
    })
}
