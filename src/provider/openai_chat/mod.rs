//! OpenAI Chat Completions and the many servers that are compatible with it.
//!
//! *Source*: the API reference of OpenAI (read 2026-11-21) and recordings of OpenAI, Azure, Groq,
//! DeepSeek, Mistral, OpenRouter, vLLM, llama.cpp, Ollama and GPUStack under
//! `tests/fixtures/providers/openai-chat`.

mod answer;
mod dialect;
mod fragments;
mod request;

use std::sync::atomic::{AtomicBool, Ordering};

use super::format::{Format, Outgoing, Reader};
use crate::agent::{ErrorClass, ModelError, ModelRequest};
use crate::config::Remote;
use dialect::Dialect;

const NAME: &str = "openai_chat";

pub(super) struct OpenaiChat {
    dialect: &'static Dialect,
    /// Whether the server rejected `stream_options`; a few do.
    refused_usage: AtomicBool,
}

impl OpenaiChat {
    pub(super) fn new(base_url: &str) -> Self {
        Self { dialect: Dialect::of(base_url), refused_usage: AtomicBool::new(false) }
    }
}

impl Format for OpenaiChat {
    fn name(&self) -> &'static str {
        NAME
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing {
        let ask_usage = !self.refused_usage.load(Ordering::Relaxed);
        Outgoing {
            path: settings.format.endpoint().to_owned(),
            body: request::body(settings, self.dialect, request, ask_usage),
        }
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(answer::Answer::default())
    }

    fn adapt(&self, error: &ModelError) -> bool {
        error.class == ErrorClass::BadRequest
            && (error.message.contains("stream_options") || error.message.contains("include_usage"))
            && !self.refused_usage.swap(true, Ordering::Relaxed)
    }
}
