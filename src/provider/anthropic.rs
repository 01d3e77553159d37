//! The Anthropic Messages API.
//!
//! *Source*: the API reference of Anthropic (read 2026-11-22) and recordings under
//! `tests/fixtures/providers/anthropic-messages`.

mod request;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::remove_entries;
use super::failure;
use super::format::{
    Format, Outgoing, Probe, Progress, Reader, check_calls, drop_nameless, is_named, list,
    malformed, number, parse, set, text,
};
use super::metadata;
use super::refusal::Optional;
use crate::agent::{ErrorClass, ModelError, ModelReply, ModelRequest, RequestedCall};
use crate::catalogue::CacheWrites;
use crate::config::Remote;
use crate::domain::{FinishReason, Usage};
use crate::text::json;

const NAME: &str = "anthropic";
const VERSION: &str = "2023-06-01";

pub(super) struct Anthropic;

const OPTIONAL: &[Optional] = &[
    Optional::at("temperature", "/temperature", &["temperature"]),
    Optional::at("reasoning_summary", "/thinking/display", &["display"]),
    Optional::at("reasoning_effort", "/output_config/effort", &["effort", "output_config"]),
    Optional::at("reasoning", "/thinking", &["thinking", "budget_tokens"]),
    Optional::at(
        "parallel_tool_calls",
        "/tool_choice",
        &["tool_choice", "disable_parallel_tool_use"],
    ),
    Optional::schema(
        &["/output_config/format"],
        &["output_config.format", "output_format", "structured output"],
    ),
    Optional::history("reasoning_history", &["thinking", "redacted_thinking", "signature"]),
];

impl Format for Anthropic {
    fn name(&self) -> &'static str {
        NAME
    }

    fn headers(&self, settings: &Remote) -> Vec<(&'static str, String)> {
        let mut headers = vec![("anthropic-version", VERSION.to_owned())];
        headers.extend(settings.api_key.clone().map(|key| ("x-api-key", key)));
        headers
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing {
        Outgoing {
            path: settings.format.endpoint().to_owned(),
            body: request::body(settings, request),
        }
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Answer::default())
    }

    fn read_metadata(&self, _model: &str, body: &[u8]) -> Result<Probe, ModelError> {
        Ok(metadata::of_anthropic(&super::http::json(body)?))
    }

    fn stop_words(&self) -> &'static [&'static str] {
        &[
            "end_turn",
            "max_tokens",
            "stop_sequence",
            "tool_use",
            "pause_turn",
            "refusal",
            "model_context_window_exceeded",
        ]
    }

    fn optional(&self) -> &'static [Optional] {
        OPTIONAL
    }

    fn strip_reasoning(&self, body: &mut Value) -> bool {
        let is_thinking = |block: &Value| text(block, "type").ends_with("thinking");
        remove_entries(body, "messages", "content", is_thinking)
    }
}

/// The answer received so far.
#[derive(Debug, Default)]
struct Answer {
    id: Option<String>,
    blocks: Vec<Block>,
    stop_reason: Option<String>,
    explanation: Option<String>,
    usage: Map<String, Value>,
    thinking_tokens: u64,
    /// Tokens written to the cache for an hour.
    long_writes: u64,
    done: bool,
}

/// A content block: its first event and the deltas that followed.
#[derive(Debug)]
struct Block {
    index: u64,
    start: Value,
    text: String,
    signature: String,
    input: String,
    citations: Vec<Value>,
    /// Whether its `content_block_stop` arrived.
    is_stopped: bool,
}

impl Block {
    fn new(index: u64, start: Value) -> Self {
        Self {
            index,
            start,
            text: String::new(),
            signature: String::new(),
            input: String::new(),
            citations: Vec::new(),
            is_stopped: false,
        }
    }

    fn kind(&self) -> &str {
        text(&self.start, "type")
    }

    /// Returns the field `name` of the first event, followed by the deltas in `added`.
    fn full(&self, name: &str, added: &str) -> String {
        format!("{}{added}", text(&self.start, name))
    }

    /// Returns the arguments as JSON text; `{}` if there are none.
    fn arguments(&self) -> String {
        match self.start.get("input").filter(|_| self.input.is_empty()) {
            None if self.input.is_empty() => "{}".to_owned(),
            None => self.input.clone(),
            Some(input) => input.to_string(),
        }
    }

    /// Returns the complete block, in the form in which we send it back to the provider.
    fn whole(&self) -> Value {
        let mut block = self.start.clone();
        match self.kind() {
            "text" => {
                set(&mut block, "text", self.full("text", &self.text));
                if !self.citations.is_empty() {
                    set(&mut block, "citations", self.citations.clone());
                }
            }
            "thinking" => {
                set(&mut block, "thinking", self.full("thinking", &self.text));
                set(&mut block, "signature", self.full("signature", &self.signature));
            }
            _ if !self.input.is_empty() => {
                set(
                    &mut block,
                    "input",
                    serde_json::from_str(&self.input).unwrap_or_else(|_| json!({})),
                );
            }
            _ => {}
        }
        block
    }
}

/// Fast path for the most frequent event: borrows instead of building a [`Value`]. Any other event
/// takes the slow path.
#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    index: u64,
    #[serde(borrow)]
    delta: DeltaBody<'a>,
}

#[derive(Deserialize)]
struct DeltaBody<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(borrow, default)]
    thinking: Cow<'a, str>,
    #[serde(borrow, default)]
    partial_json: Cow<'a, str>,
    #[serde(borrow, default)]
    signature: Cow<'a, str>,
}

impl Answer {
    fn block(&mut self, index: u64) -> Option<&mut Block> {
        self.blocks.iter_mut().rev().find(|block| block.index == index)
    }

    /// Applies a delta to its block. Returns false if there is no such block, or if the type of the
    /// delta is unknown.
    fn add(&mut self, index: u64, delta: &DeltaBody<'_>, new: &mut String) -> bool {
        let Some(block) = self.block(index) else { return false };
        match delta.kind {
            "text_delta" => {
                block.text.push_str(&delta.text);
                new.push_str(&delta.text);
            }
            "thinking_delta" => block.text.push_str(&delta.thinking),
            "signature_delta" => block.signature.push_str(&delta.signature),
            "input_json_delta" => block.input.push_str(&delta.partial_json),
            _ => return false,
        }
        true
    }

    fn take_event(&mut self, event: Value, new: &mut String) -> Result<(), ModelError> {
        match text(&event, "type") {
            "message_start" => {
                // Some gateways send this event twice; the second one starts the answer over.
                *self = Self::default();
                self.take_head(event.get("message").unwrap_or(&Value::Null));
            }
            "content_block_start" => {
                let start = event.get("content_block").cloned().unwrap_or_default();
                if text(&start, "type") == "text" {
                    new.push_str(text(&start, "text"));
                }
                self.blocks.push(Block::new(number(&event, "/index"), start));
                check_calls(self.blocks.len())?;
            }
            "content_block_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                let index = number(&event, "/index");
                if text(delta, "type") == "citations_delta" {
                    let citation = delta.get("citation").cloned();
                    if let Some(block) = self.block(index) {
                        block.citations.extend(citation);
                    }
                    return Ok(());
                }
                let body = DeltaBody {
                    kind: text(delta, "type"),
                    text: text(delta, "text").into(),
                    thinking: text(delta, "thinking").into(),
                    partial_json: text(delta, "partial_json").into(),
                    signature: text(delta, "signature").into(),
                };
                self.add(index, &body, new);
            }
            "content_block_stop" => {
                if let Some(block) = self.block(number(&event, "/index")) {
                    block.is_stopped = true;
                }
            }
            "message_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                self.take_end(delta);
                self.take_usage(event.get("usage"));
            }
            "message_stop" => self.done = true,
            "error" => return Err(failure::of_body(None, &event, "")),
            _ if failure::has_error(&event) => return Err(failure::of_body(None, &event, "")),
            // Ignore `ping`, and event types that the API adds later.
            _ => {}
        }
        Ok(())
    }

    fn take_head(&mut self, message: &Value) {
        self.id = Some(text(message, "id").to_owned()).filter(|id| !id.is_empty());
        self.take_usage(message.get("usage"));
        for (block, index) in list(message, "content").iter().zip(0..) {
            self.blocks.push(Block::new(index, block.clone()));
        }
        self.take_end(message);
    }

    fn take_end(&mut self, message: &Value) {
        if let Some(reason) = message.get("stop_reason").and_then(Value::as_str) {
            self.stop_reason = Some(reason.to_owned());
        }
        let explanation = message.pointer("/stop_details/explanation").and_then(Value::as_str);
        self.explanation = explanation.map(str::to_owned).or_else(|| self.explanation.take());
    }

    /// Merges usage fields: a later number replaces the earlier one of the same name.
    fn take_usage(&mut self, usage: Option<&Value>) {
        let thinking =
            usage.and_then(|usage| usage.pointer("/output_tokens_details/thinking_tokens"));
        self.thinking_tokens = thinking.and_then(Value::as_u64).unwrap_or(self.thinking_tokens);
        let long =
            usage.and_then(|usage| usage.pointer("/cache_creation/ephemeral_1h_input_tokens"));
        self.long_writes = long.and_then(Value::as_u64).unwrap_or(self.long_writes);
        let usage = usage.and_then(Value::as_object).into_iter().flatten();
        for (name, value) in usage.filter(|(_, value)| value.is_number()) {
            self.usage.insert(name.clone(), value.clone());
        }
    }

    fn cache_writes(&self) -> CacheWrites {
        let all = self.usage.get("cache_creation_input_tokens").and_then(Value::as_u64);
        CacheWrites { all: all.unwrap_or(0), long: self.long_writes }
    }

    fn usage(&self) -> Option<Usage> {
        if self.usage.is_empty() {
            return None;
        }
        let number = |name: &str| self.usage.get(name).and_then(Value::as_u64).unwrap_or(0);
        let (written, cached) =
            (number("cache_creation_input_tokens"), number("cache_read_input_tokens"));
        Some(Usage {
            input_tokens: number("input_tokens").saturating_add(written).saturating_add(cached),
            output_tokens: number("output_tokens"),
            cached_input_tokens: cached,
            reasoning_tokens: self.thinking_tokens,
        })
    }
}

/// Tells whether the history can rebuild the blocks from the text and the calls of the turn: at most
/// one text, which is not blank, then calls without further fields.
fn is_plain(blocks: &[Block]) -> bool {
    blocks.iter().enumerate().all(|(at, block)| match block.kind() {
        "text" => at == 0 && !block.full("text", &block.text).trim().is_empty(),
        "tool_use" => {
            let fields = block.start.as_object().into_iter().flatten();
            let mut names = fields.map(|(name, _)| name.as_str());
            names.all(|name| matches!(name, "type" | "id" | "name" | "input"))
        }
        _ => false,
    })
}

impl Reader for Answer {
    fn take(&mut self, data: &str, text: &mut String) -> Result<(), ModelError> {
        if let Ok(event) = serde_json::from_str::<Delta<'_>>(data)
            && event.kind == "content_block_delta"
            && self.add(event.index, &event.delta, text)
        {
            return Ok(());
        }
        self.take_event(parse(data)?, text)
    }

    fn take_whole(&mut self, body: Value) -> Result<(), ModelError> {
        if text(&body, "type") == "error" || failure::has_error(&body) {
            return Err(failure::of_body(None, &body, ""));
        }
        if !body.get("content").is_some_and(Value::is_array) {
            return Err(malformed("the response has no `content` list"));
        }
        self.take_head(&body);
        self.done = true;
        Ok(())
    }

    fn size(&self) -> usize {
        let of_block = |block: &Block| {
            let kept: usize = block.citations.iter().map(json::memory).sum();
            let added = block.text.len() + block.signature.len() + block.input.len();
            json::memory(&block.start) + kept + added
        };
        let usage: usize =
            self.usage.iter().map(|(name, value)| name.len() + json::memory(value)).sum();
        usage + self.blocks.iter().map(of_block).sum::<usize>()
    }

    fn progress(&self) -> Progress {
        match (self.done, &self.stop_reason) {
            (true, _) => Progress::Done,
            (false, Some(_)) => Progress::Whole,
            (false, None) => Progress::Open,
        }
    }

    fn finish(self: Box<Self>) -> Result<ModelReply, ModelError> {
        if self.stop_reason.is_none() && self.blocks.is_empty() {
            return Err(malformed("the response contains no message"));
        }
        let of_kind =
            |kind: &'static str| self.blocks.iter().filter(move |block| block.kind() == kind);
        let answer: String = of_kind("text").map(|block| block.full("text", &block.text)).collect();
        let reasoning: String =
            of_kind("thinking").map(|block| block.full("thinking", &block.text)).collect();
        let is_cut = matches!(
            self.stop_reason.as_deref(),
            Some("max_tokens" | "model_context_window_exceeded")
        );
        let (no_reason, last) =
            (self.stop_reason.is_none(), self.blocks.last().map(|block| block.index));
        let arguments = |block: &Block| match block.arguments() {
            // The answer was cut within or before arguments that came in one piece, so they may lack
            // a part. Make them invalid, so that the call is not executed.
            whole if is_cut && block.input.is_empty() && Some(block.index) == last => {
                whole.strip_suffix('}').unwrap_or("{").to_owned()
            }
            none if no_reason && none == "{}" && !block.is_stopped => "{".to_owned(),
            arguments => arguments,
        };
        let mut calls: Vec<RequestedCall> = of_kind("tool_use")
            .map(|block| RequestedCall {
                id: Some(text(&block.start, "id").to_owned()).filter(|id| !id.is_empty()),
                name: text(&block.start, "name").to_owned(),
                arguments: arguments(block),
            })
            .collect();
        let is_invalid = drop_nameless(&mut calls);
        let finish_reason = match self.stop_reason.as_deref() {
            _ if is_cut => FinishReason::Length,
            Some("refusal") => FinishReason::Refusal,
            Some("pause_turn") => FinishReason::Pause,
            _ if is_invalid => FinishReason::InvalidToolCall,
            _ if !calls.is_empty() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        if self.stop_reason.as_deref() == Some("tool_use") && calls.is_empty() && !is_invalid {
            return Err(malformed("the response announces tool calls and contains none"));
        }
        if self.stop_reason.as_deref() == Some("model_context_window_exceeded")
            && calls.is_empty()
            && answer.is_empty()
        {
            return Err(ModelError::new(ErrorClass::ContextLength, "the context window is full"));
        }
        let is_plain = is_plain(&self.blocks);
        // Do not send back a call without a name: it gets no result, and the provider rejects a
        // history in which a call has no result.
        let is_nameless =
            |block: &&Block| block.kind() == "tool_use" && !is_named(text(&block.start, "name"));
        let kept = self.blocks.iter().filter(|block| !is_nameless(block));
        let content: Vec<Value> = kept.map(Block::whole).collect();
        let (usage, cache_writes) = (self.usage(), self.cache_writes());
        Ok(ModelReply {
            text: answer,
            explanation: self.explanation,
            reasoning: Some(reasoning).filter(|text| !text.is_empty()),
            calls,
            finish_reason,
            usage,
            cache_writes,
            stop_reason: self.stop_reason,
            response_id: self.id,
            provider_data: (!is_plain).then(|| json!({"content": content})),
        })
    }
}
