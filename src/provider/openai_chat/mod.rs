//! OpenAI Chat Completions and the many servers that are compatible with it.
//!
//! *Source*: the API reference of OpenAI (read 2026-11-21) and recordings of OpenAI, Azure, Groq, DeepSeek, Mistral, OpenRouter, vLLM,
//! llama.cpp, Ollama and GPUStack under `tests/fixtures/providers/openai-chat`.

mod answer;
mod model;
mod request;

pub use model::OpenaiChat;

/// Reads a stream as an answer, for the fuzz target.
///
/// *Errors*: as any answer.
#[doc(hidden)]
pub async fn read_chat_stream<E: std::fmt::Display>(
    pieces: impl futures_util::Stream<Item = Result<bytes::Bytes, E>> + Unpin,
) -> Result<crate::agent::ModelReply, crate::agent::ModelError> {
    struct Nobody;
    impl crate::agent::DeltaSink for Nobody {
        fn delta(&self, _: &str) {}
    }
    model::read_stream(pieces, &Nobody).await
}
