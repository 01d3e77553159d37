//! The differences between compatible servers, as data.

use super::super::format::{derived_id, wire_id};
use crate::domain::CallId;

/// The properties in which compatible servers differ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect {
    /// A substring of the base URL that identifies the server.
    host: &'static str,
    /// The name of the request field that limits the output tokens.
    pub(super) most_tokens: &'static str,
    /// Fields of an assistant message that are sent back unaltered.
    pub(super) replayed: &'static [&'static str],
    /// Whether an assistant message with calls is sent back with its reasoning, as
    /// `reasoning_content`.
    pub(super) replays_reasoning: bool,
    /// Whether the server accepts `parallel_tool_calls`.
    pub(super) parallel_key: bool,
    /// Maximum length of a call id.
    pub(super) id: usize,
    /// Whether the server follows Mistral's rules: a call id consists of exactly nine letters or
    /// digits, and a user message does not follow a tool message.
    pub(super) is_mistral: bool,
}

/// The dialect of most servers.
const COMMON: Dialect = Dialect {
    host: "",
    most_tokens: "max_tokens",
    replayed: &["reasoning_details"],
    replays_reasoning: false,
    parallel_key: false,
    id: 64,
    is_mistral: false,
};

/// *Source*: the API documents of these providers, read 2026-11-22.
const DIALECTS: &[Dialect] = &[
    Dialect {
        host: "api.openai.com",
        most_tokens: "max_completion_tokens",
        parallel_key: true,
        id: 40,
        ..COMMON
    },
    Dialect {
        host: "openai.azure.com",
        most_tokens: "max_completion_tokens",
        parallel_key: true,
        id: 40,
        ..COMMON
    },
    Dialect {
        host: "api.groq.com",
        most_tokens: "max_completion_tokens",
        parallel_key: true,
        ..COMMON
    },
    Dialect {
        host: "api.cerebras.ai",
        most_tokens: "max_completion_tokens",
        parallel_key: true,
        ..COMMON
    },
    // The thinking models of the next two providers reject a history of calls without the
    // reasoning.
    Dialect { host: "api.deepseek.com", replays_reasoning: true, ..COMMON },
    Dialect { host: "api.moonshot", replays_reasoning: true, ..COMMON },
    Dialect { host: "openrouter.ai", parallel_key: true, ..COMMON },
    Dialect { host: "api.mistral.ai", parallel_key: true, id: 9, is_mistral: true, ..COMMON },
];

impl Dialect {
    /// Returns the dialect of the server at `base_url`.
    pub(super) fn of(base_url: &str) -> &'static Self {
        DIALECTS.iter().find(|dialect| base_url.contains(dialect.host)).unwrap_or(&COMMON)
    }

    /// Returns an id that the server accepts.
    pub(super) fn id(&self, call_id: &CallId) -> String {
        let id = call_id.as_str();
        if self.is_mistral
            && !(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        {
            return derived_id(call_id, self.id);
        }
        wire_id(call_id, self.id)
    }
}
