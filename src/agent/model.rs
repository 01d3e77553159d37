//! What the loop asks of a model, and what can go wrong with it.
//!
//! One call is one attempt: retries belong to the session, which writes each of them into the transcript. An answer is returned whole or not
//! at all; text that comes as it is made goes to a [`DeltaSink`] and is never acted upon (LLM-5).

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::shown::ToolDefinition;
use crate::domain::{FinishReason, StopReason, Turn, Usage};

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct ModelRequest<'a> {
    /// The system prompt.
    pub system: &'a str,
    /// How many bytes of it, from its beginning, are the same in every run of the job.
    pub stable: usize,
    /// Whether an answer may hold several calls.
    pub parallel_calls: bool,
    /// The history; the last turn is what is to be answered.
    pub history: &'a [Turn],
    /// The tools that the model may call.
    pub tools: &'a [ToolDefinition],
}

/// A call as the provider sent it; hostile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedCall {
    /// The provider's id; may be missing, empty or repeated.
    pub id: Option<String>,
    /// The name.
    pub name: String,
    /// The arguments, unparsed.
    pub arguments: String,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelReply {
    /// The text, without reasoning.
    pub text: String,
    /// The reasoning, where it is shown.
    pub reasoning: Option<String>,
    /// The calls, in order.
    pub calls: Vec<RequestedCall>,
    /// Why it stopped.
    pub finish_reason: FinishReason,
    /// The provider's own word for that.
    pub stop_reason: Option<String>,
    /// Why it declined, in words.
    pub explanation: Option<String>,
    /// Tokens, where they were counted.
    pub usage: Option<Usage>,
    /// Tokens of the input that the provider put into its cache.
    pub cache_write_tokens: u64,
    /// The provider's id of the answer.
    pub response_id: Option<String>,
    /// What the provider needs back, untouched.
    pub provider_data: Option<Value>,
}

/// What went wrong with a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The key was not accepted.
    Auth,
    /// The request was not accepted.
    BadRequest,
    /// The model or the address does not exist.
    NotFound,
    /// The prompt is longer than the model's window.
    ContextLength,
    /// Too many requests.
    RateLimit,
    /// The quota is spent.
    QuotaExhausted,
    /// The server has too much to do.
    Overloaded,
    /// The server failed.
    Server,
    /// The model wrote a call that the server could not read.
    BadToolGeneration,
    /// What came back could not be understood.
    MalformedResponse,
    /// The answer broke off.
    StreamInterrupted,
    /// No connection.
    Network,
    /// Nothing came in time.
    Timeout,
}

impl ErrorClass {
    /// Returns the word that stands in transcripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::BadRequest => "bad_request",
            Self::NotFound => "not_found",
            Self::ContextLength => "context_length",
            Self::RateLimit => "rate_limit",
            Self::QuotaExhausted => "quota_exhausted",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::BadToolGeneration => "bad_tool_generation",
            Self::MalformedResponse => "malformed_response",
            Self::StreamInterrupted => "stream_interrupted",
            Self::Network => "network",
            Self::Timeout => "timeout",
        }
    }

    /// Tells whether the same request may work later. A malformed call may work too, but only after the model was told.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Auth
            | Self::BadRequest
            | Self::NotFound
            | Self::ContextLength
            | Self::QuotaExhausted => false,
            Self::RateLimit
            | Self::Overloaded
            | Self::Server
            | Self::BadToolGeneration
            | Self::MalformedResponse
            | Self::StreamInterrupted
            | Self::Network
            | Self::Timeout => true,
        }
    }

    /// Returns the stop reason of a run that ends with it.
    #[must_use]
    pub fn stop_reason(self) -> StopReason {
        match self {
            Self::Auth => StopReason::ProviderAuth,
            Self::BadRequest | Self::NotFound => StopReason::ProviderRejected,
            Self::ContextLength => StopReason::ContextOverflow,
            Self::RateLimit
            | Self::QuotaExhausted
            | Self::Overloaded
            | Self::Server
            | Self::BadToolGeneration
            | Self::MalformedResponse
            | Self::StreamInterrupted
            | Self::Network
            | Self::Timeout => StopReason::ProviderUnavailable,
        }
    }
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What went wrong.
    pub class: ErrorClass,
    /// The provider's words, or ours.
    pub message: String,
    /// How long the provider asks to wait.
    pub retry_after: Option<Duration>,
}

impl ModelError {
    /// Returns an error of `class`.
    #[must_use]
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), retry_after: None }
    }
}

/// Takes text as it is made, for people who watch.
pub trait DeltaSink: Send + Sync {
    /// Takes a piece. Must not block.
    fn delta(&self, text: &str);
}

/// A model.
#[async_trait]
pub trait Model: Send + Sync {
    /// Makes one attempt.
    ///
    /// *Errors*: [`ModelError`]. *Cancel*: dropping the future closes the connection; nothing of the answer remains.
    async fn call(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError>;
}
