//! OpenAI Chat Completions and the many servers that are compatible with it.
//!
//! *Source*: the API reference of OpenAI (read 2026-11-21) and recordings of OpenAI, Azure, Groq,
//! DeepSeek, Mistral, OpenRouter, vLLM, llama.cpp, Ollama and GPUStack under
//! `tests/fixtures/providers/openai-chat`.

mod answer;
mod fragments;
mod request;

use serde_json::Value;

use super::body::remove_fields;
use super::format::{Format, MetadataRequest, Outgoing, Probe, Reader, derived_id, wire_id};
use super::metadata;
use super::refusal::Optional;
use crate::agent::{ModelError, ModelRequest};
use crate::config::Remote;
use crate::domain::CallId;

const NAME: &str = "openai_chat";

pub(super) struct OpenaiChat;

/// The fields in which servers want reasoning back.
const REASONING_FIELDS: &[&str] = &["reasoning_content", "reasoning", "reasoning_details"];

const OPTIONAL: &[Optional] = &[
    Optional::at("temperature", "/temperature", &["temperature"]),
    Optional::at("reasoning_effort", "/reasoning_effort", &["reasoning_effort"]).also(&[
        "effort",
        "reasoning",
        "think",
        "thinking",
    ]),
    Optional::at("stream_options", "/stream_options", &["stream_options", "include_usage"]),
    Optional::at("parallel_tool_calls", "/parallel_tool_calls", &["parallel_tool_calls"]),
    // Each server knows one of the names. A body never has both.
    Optional::renamed("max_tokens", "max_tokens", "max_completion_tokens", &["max_tokens"]),
    Optional::renamed(
        "max_completion_tokens",
        "max_completion_tokens",
        "max_tokens",
        &["max_completion_tokens"],
    ),
    Optional::schema(&["/response_format"], &["response_format", "structured output"]),
    Optional::history("reasoning_history", REASONING_FIELDS),
    // The turn of another model has no reasoning that could go back.
    Optional::without("history_without_reasoning", REASONING_FIELDS),
];

/// Returns an id that the server accepts.
fn wire_call_id(settings: &Remote, call_id: &CallId) -> String {
    let id = call_id.as_str();
    let is_short = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if settings.chat.nine_character_ids && !is_short {
        return derived_id(call_id, 9);
    }
    wire_id(call_id, settings.chat.call_id_length)
}

impl Format for OpenaiChat {
    fn name(&self) -> &'static str {
        NAME
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing {
        Outgoing {
            path: settings.format.endpoint().to_owned(),
            body: request::body(settings, request),
        }
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(answer::Answer::default())
    }

    // Few compatible servers implement the endpoint for a single model.
    fn metadata_request(&self, _model: &str) -> MetadataRequest {
        MetadataRequest { path: "/models".to_owned(), body: None }
    }

    fn read_metadata(&self, model: &str, body: &[u8]) -> Result<Probe, ModelError> {
        metadata::of_list(model, body)
    }

    fn stop_words(&self) -> &'static [&'static str] {
        &[
            "stop",
            "length",
            "tool_calls",
            "function_call",
            "content_filter",
            "max_tokens",
            "model_length",
            "max_output_tokens",
            "model_context_window_exceeded",
            "refusal",
            "sensitive",
            "safety",
            "recitation",
            "eos",
            "eos_token",
            "end_turn",
            "stop_sequence",
            "tool_use",
            "complete",
            "function_call_filter",
        ]
    }

    fn optional(&self) -> &'static [Optional] {
        OPTIONAL
    }

    fn strip_reasoning(&self, body: &mut Value) -> bool {
        remove_fields(body, "messages", REASONING_FIELDS)
    }
}
