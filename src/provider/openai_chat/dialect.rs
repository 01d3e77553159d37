//! How compatible servers differ, as data.

use super::super::format::{derived_id, wire_id};
use crate::domain::CallId;

/// What a server wants otherwise than most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect {
    /// A part of the base address that tells it.
    host: &'static str,
    /// The name of the limit of an answer.
    pub(super) most_tokens: &'static str,
    /// Fields of an assistant message that go back as they came.
    pub(super) replayed: &'static [&'static str],
    /// Whether the reasoning goes back, as `reasoning_content`, with the calls that it led to.
    pub(super) replays_reasoning: bool,
    /// Whether `parallel_tool_calls` is known.
    pub(super) parallel_key: bool,
    /// The longest id of a call.
    pub(super) id: usize,
    /// Whether an id is nine letters and digits, and a user speaks only after the assistant.
    pub(super) is_mistral: bool,
}

/// What most servers know.
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
    // Their models that think refuse a history of calls without the thoughts.
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

    /// Returns an id as the server takes it.
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
