//! The history of a session: what was said, asked for and answered.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::ToolCall;
use super::ids::CallId;

/// Why a model stopped talking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// It was done.
    Stop,
    /// It waits for the results of its calls.
    ToolCalls,
    /// The token limit cut it.
    Length,
    /// It declined.
    Refusal,
    /// The provider's filter cut it.
    ContentFilter,
    /// It wants the same history back, to go on.
    Pause,
    /// The provider says that its model wrote a call that is none.
    InvalidToolCall,
}

/// Tokens of a model call or a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// All input, cached included.
    pub input_tokens: u64,
    /// All output, reasoning included.
    pub output_tokens: u64,
    /// The part of the input that came from the provider's cache.
    pub cached_input_tokens: u64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Returns input and output together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Adds another call's tokens; absurd numbers saturate.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_input_tokens =
            self.cached_input_tokens.saturating_add(other.cached_input_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}

/// What a model answered, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantTurn {
    /// The text, without reasoning.
    pub text: String,
    /// The reasoning, where the provider shows it.
    pub reasoning: Option<String>,
    /// The calls it asks for, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Why it stopped.
    pub finish_reason: FinishReason,
    /// The provider's own word for that.
    pub stop_reason: Option<String>,
    /// Tokens, where the provider counted them.
    pub usage: Option<Usage>,
    /// The provider's id of this answer.
    pub response_id: Option<String>,
    /// What the provider needs back, untouched.
    pub provider_data: Option<Value>,
}

/// A picture that a tool gave back.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// Such as `image/png`.
    pub media_type: &'static str,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// The picture's file in base64, shared with the histories that hold it.
    pub base64: Arc<str>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.about())
    }
}

impl Image {
    /// Returns what it is, in words.
    #[must_use]
    pub fn about(&self) -> String {
        format!("{}, {} x {} pixels", self.media_type, self.width, self.height)
    }
}

/// The one answer to a call, as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The call it answers.
    pub call_id: CallId,
    /// The name as the model wrote it.
    pub name: String,
    /// The model's view of the output.
    pub content: String,
    /// Pictures that belong to it, for models that see.
    pub images: Vec<Image>,
    /// Whether it failed.
    pub is_error: bool,
}

/// One entry of a history.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// What the job or a person asked.
    User(String),
    /// What the model answered.
    Assistant(Box<AssistantTurn>),
    /// One result for each call of the turn before, in call order.
    ToolResults(Vec<ToolResult>),
    /// Text put in while the run works; a user message on the wire.
    Steering(String),
}
