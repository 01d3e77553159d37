//! The history of a session: inputs, replies and tool results.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::ToolCall;
use super::ids::CallId;

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model finished its reply.
    Stop,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// The token limit cut the reply.
    Length,
    Refusal,
    /// The provider's filter cut the reply.
    ContentFilter,
    /// The model wants the same history again, to continue.
    Pause,
    /// The provider reports that its model wrote an invalid call.
    InvalidToolCall,
}

/// Numbers of tokens that a model call or a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// All input tokens, including cached ones.
    pub input_tokens: u64,
    /// All output tokens, including reasoning.
    pub output_tokens: u64,
    /// The part of the input that came from the provider's cache.
    pub cached_input_tokens: u64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Returns the sum of input and output tokens.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Adds the tokens of another call. Saturates on overflow.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_input_tokens =
            self.cached_input_tokens.saturating_add(other.cached_input_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}

/// The complete reply of a model, or the message with which the loop ends the run at a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantTurn {
    /// The text, without reasoning.
    pub text: String,
    /// The reasoning, if the provider shows it.
    pub reasoning: Option<String>,
    /// The calls that the model asks for, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Why the model stopped.
    pub finish_reason: FinishReason,
    /// The provider's own word for `finish_reason`.
    pub stop_reason: Option<String>,
    /// Token counts, if the provider reported them.
    pub usage: Option<Usage>,
    /// The provider's id of the reply.
    pub response_id: Option<String>,
    /// Data that later requests must return to the provider unchanged.
    pub provider_data: Option<Value>,
}

/// An image that a tool returned.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// The media type, such as `image/png`.
    pub media_type: &'static str,
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
    /// The image file in base64, shared by the histories that contain it.
    pub base64: Arc<str>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.about())
    }
}

impl Image {
    /// Describes the image in words: type and size.
    #[must_use]
    pub fn about(&self) -> String {
        format!("{}, {} x {} pixels", self.media_type, self.width, self.height)
    }
}

/// The one answer to a call, as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The id of the call.
    pub call_id: CallId,
    /// The name as the model wrote it.
    pub name: String,
    /// The model's view of the output.
    pub content: String,
    /// Images that belong to the result, for models that accept them.
    pub images: Vec<Image>,
    /// Whether the call failed.
    pub is_error: bool,
}

/// One entry of a history.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// Input from the job, from a person, or from the loop (see `InputSource`).
    User(String),
    /// A reply of the model, or the message with which the loop ends the run at a limit.
    Assistant(Box<AssistantTurn>),
    /// One result for each call of the previous turn, in call order.
    ToolResults(Vec<ToolResult>),
    /// Text added while the run works; a user message on the wire.
    Steering(String),
}
