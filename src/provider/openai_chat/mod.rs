//! OpenAI Chat Completions and the many servers that are compatible with it.
//!
//! *Source*: the API reference of OpenAI (read 2026-11-21) and recordings of OpenAI, Azure, Groq, DeepSeek, Mistral, OpenRouter, vLLM,
//! llama.cpp, Ollama and GPUStack under `tests/fixtures/providers/openai-chat`.

mod answer;
mod model;
mod request;

pub use model::OpenaiChat;
