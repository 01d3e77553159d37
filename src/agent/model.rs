//! The interface between the loop and a model, and the errors of a model call.
//!
//! One model call is one attempt. The session retries and records each retry in the transcript. A
//! model call returns a complete reply or none. Streamed text goes to a [`DeltaSink`] and is never
//! acted upon (LLM-5).

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::shown::ToolDefinition;
use crate::catalogue::CacheWrites;
use crate::config::OutputSchema;
use crate::domain::{FinishReason, StopReason, Turn, Usage};

/// The longest pause before a retry that a provider can ask for. A run does not wait for longer.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A request to a model.
#[derive(Debug, Clone, Copy)]
pub struct ModelRequest<'a> {
    pub system: &'a str,
    /// Length in bytes of the prefix of `system` that is the same in every run of the job.
    pub stable: usize,
    /// Whether a reply may contain several tool calls.
    pub parallel_calls: bool,
    /// The history; the model replies to its last turn.
    pub history: &'a [Turn],
    /// The tools that the model may call.
    pub tools: &'a [ToolDefinition],
    /// Maximum output tokens of the reply. The limit in the model's settings also applies. `None` adds
    /// no limit to it.
    pub max_output_tokens: Option<u32>,
    /// Whether the last answer was cut off by the limit of output tokens. The request then asks for
    /// a higher limit, as far as the model and `max_output_tokens` allow.
    pub follows_cut: bool,
    /// The schema of the final answer, if the job has one.
    pub output_schema: Option<&'a OutputSchema>,
    /// An estimate of the tokens of the whole request.
    pub input_tokens: u64,
}

/// A tool call as the provider sent it, unvalidated and untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedCall {
    /// The provider's id; may be missing, empty or repeated.
    pub id: Option<String>,
    /// The tool name as the model wrote it.
    pub name: String,
    pub arguments: String,
}

/// A complete reply.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelReply {
    /// The text, without reasoning.
    pub text: String,
    /// The reasoning, if the provider shows it.
    pub reasoning: Option<String>,
    /// The tool calls, in order.
    pub calls: Vec<RequestedCall>,
    /// Why the model stopped.
    pub finish_reason: FinishReason,
    /// The provider's own word for `finish_reason`.
    pub stop_reason: Option<String>,
    /// The provider's explanation of a refusal.
    pub explanation: Option<String>,
    /// Token counts, if the provider reported them.
    pub usage: Option<Usage>,
    /// Input tokens that the provider wrote to its cache.
    pub cache_writes: CacheWrites,
    /// The provider's id of the reply.
    pub response_id: Option<String>,
    /// Data that later requests must return to the provider unchanged.
    pub provider_data: Option<Value>,
}

/// The class of a failed model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The provider rejected the key.
    Auth,
    /// The provider rejected the request.
    BadRequest,
    /// The model or the address does not exist.
    NotFound,
    /// The model takes no tools.
    ToolsRejected,
    /// The prompt is longer than the model's window.
    ContextLength,
    RateLimit,
    /// The quota is exhausted.
    QuotaExhausted,
    /// The server is overloaded.
    Overloaded,
    /// The server has started and still loads its model.
    Loading,
    /// The certificate of the server is not accepted, or no CA certificates can be read.
    Certificate,
    Server,
    /// The model wrote a tool call that the provider could not parse.
    BadToolGeneration,
    /// The response could not be parsed.
    MalformedResponse,
    /// The response ended early.
    StreamInterrupted,
    Network,
    /// The provider did not respond in time.
    Timeout,
}

impl ErrorClass {
    /// Returns the word used in transcripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::BadRequest => "bad_request",
            Self::NotFound => "not_found",
            Self::ToolsRejected => "tools_rejected",
            Self::ContextLength => "context_length",
            Self::RateLimit => "rate_limit",
            Self::QuotaExhausted => "quota_exhausted",
            Self::Overloaded => "overloaded",
            Self::Loading => "loading",
            Self::Certificate => "certificate",
            Self::Server => "server",
            Self::BadToolGeneration => "bad_tool_generation",
            Self::MalformedResponse => "malformed_response",
            Self::StreamInterrupted => "stream_interrupted",
            Self::Network => "network",
            Self::Timeout => "timeout",
        }
    }

    /// Returns the class with this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        use ErrorClass::{
            Auth, BadRequest, BadToolGeneration, Certificate, ContextLength, Loading,
            MalformedResponse, Network, NotFound, Overloaded, QuotaExhausted, RateLimit, Server,
            StreamInterrupted, Timeout, ToolsRejected,
        };
        let all = [
            Auth,
            BadRequest,
            BadToolGeneration,
            Certificate,
            ContextLength,
            Loading,
            MalformedResponse,
            Network,
            NotFound,
            Overloaded,
            QuotaExhausted,
            RateLimit,
            Server,
            StreamInterrupted,
            Timeout,
            ToolsRejected,
        ];
        all.into_iter().find(|class| class.as_str() == word)
    }

    /// Tells whether the provider may have worked on the request, and so may charge for it.
    #[must_use]
    pub fn is_broken_off(self) -> bool {
        match self {
            Self::MalformedResponse | Self::StreamInterrupted | Self::Timeout => true,
            Self::Auth
            | Self::BadRequest
            | Self::NotFound
            | Self::ToolsRejected
            | Self::ContextLength
            | Self::RateLimit
            | Self::QuotaExhausted
            | Self::Overloaded
            | Self::Loading
            | Self::Certificate
            | Self::Server
            | Self::BadToolGeneration
            | Self::Network => false,
        }
    }

    /// Tells whether a retry may succeed. The session retries [`Self::Loading`] by a rule of its
    /// own, and leaves [`Self::BadToolGeneration`] to the
    /// machine, which first tells the model what was wrong.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Auth
            | Self::BadRequest
            | Self::NotFound
            | Self::ToolsRejected
            | Self::ContextLength
            | Self::Certificate
            | Self::QuotaExhausted => false,
            Self::RateLimit
            | Self::Overloaded
            | Self::Loading
            | Self::Server
            | Self::BadToolGeneration
            | Self::MalformedResponse
            | Self::StreamInterrupted
            | Self::Network
            | Self::Timeout => true,
        }
    }

    /// Tells whether the model gives no answer to any run now. A malformed call is an answer.
    #[must_use]
    pub fn is_outage(self) -> bool {
        match self {
            Self::BadRequest
            | Self::NotFound
            | Self::Certificate
            | Self::ToolsRejected
            | Self::ContextLength
            | Self::BadToolGeneration => false,
            Self::Auth
            | Self::RateLimit
            | Self::QuotaExhausted
            | Self::Overloaded
            | Self::Loading
            | Self::Server
            | Self::MalformedResponse
            | Self::StreamInterrupted
            | Self::Network
            | Self::Timeout => true,
        }
    }

    /// Tells whether the error shows that the model answers requests, although it does not answer this
    /// one.
    #[must_use]
    pub fn is_answer(self) -> bool {
        matches!(
            self,
            Self::BadRequest | Self::ToolsRejected | Self::ContextLength | Self::BadToolGeneration
        )
    }

    /// Returns the stop reason of a run that this error ends.
    #[must_use]
    pub fn stop_reason(self) -> StopReason {
        match self {
            Self::Auth => StopReason::ProviderAuth,
            Self::BadRequest | Self::NotFound | Self::ToolsRejected | Self::Certificate => {
                StopReason::ProviderRejected
            }
            Self::ContextLength => StopReason::ContextOverflow,
            Self::RateLimit
            | Self::QuotaExhausted
            | Self::Overloaded
            | Self::Loading
            | Self::Server
            | Self::BadToolGeneration
            | Self::MalformedResponse
            | Self::StreamInterrupted
            | Self::Network
            | Self::Timeout => StopReason::ProviderUnavailable,
        }
    }
}

/// What one object in the body of an error says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// The parameter of the request that the error is about, as the provider names it.
    pub parameter: Option<String>,
    /// The code or the type of the error; empty if it has none.
    pub code: String,
    pub message: String,
}

/// A failed attempt to call a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// The class of the error.
    pub class: ErrorClass,
    /// The provider's message, or ours.
    pub message: String,
    /// How long the provider asks us to wait before a retry.
    pub retry_after: Option<Duration>,
    /// What the body of the error says, the innermost of nested errors first.
    pub claims: Vec<Claim>,
    /// The optional parameter that the model leaves out from now on, because this error refuses it.
    /// The same request can then be sent again.
    pub dropped: Option<&'static str>,
}

impl ModelError {
    /// Returns an error of `class`.
    #[must_use]
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            retry_after: None,
            claims: Vec::new(),
            dropped: None,
        }
    }

    /// Tells whether the provider asks for a longer pause than a run waits for.
    #[must_use]
    pub fn has_long_pause(&self) -> bool {
        self.retry_after.is_some_and(|pause| pause > LONGEST_RETRY_AFTER)
    }
}

/// Receives text as the model generates it, for people who watch.
pub trait DeltaSink: Send + Sync {
    /// Records that bytes of an answer have arrived. Must not block.
    fn begin_answer(&self) {}

    /// Receives the provider's word for why the model stopped, if dutyd does not know it. Must not
    /// block.
    fn stopped_unknown(&self, _word: &str) {}

    /// Receives a piece of text. Must not block.
    fn delta(&self, text: &str);
}

/// A model that the loop can call.
#[async_trait]
pub trait Model: Send + Sync {
    /// Makes one attempt to get a reply.
    ///
    /// *Errors*: [`ModelError`]. *Cancel*: dropping the future closes the connection and discards
    /// the partial reply.
    async fn call(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError>;
}
