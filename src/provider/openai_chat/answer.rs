//! The answer, complete or assembled from the chunks of a stream.
//!
//! A complete answer is read as one chunk, so that each field is parsed in one place. Ids and names
//! are set once, not appended, because servers repeat them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::failure;
use super::super::format::{
    Progress, Reader, check_calls, drop_nameless, is_first, is_named, list, malformed, parse,
};
use super::super::think::{INLINE, Written};
use super::fragments::Fragments;
use crate::agent::{ErrorClass, ModelError, ModelReply, RequestedCall};
use crate::catalogue::CacheWrites;
use crate::domain::{FinishReason, Usage};
use crate::text::json;

/// The key in `provider_data` with the name of the field in which the reasoning came.
pub(super) const REASONING_FIELD: &str = "reasoning_field";

/// Maximum number of `reasoning_details` entries in one answer.
const MAX_DETAILS: usize = 10_000;

/// The answer received so far.
#[derive(Debug, Default)]
pub(in crate::provider) struct Answer {
    written: Written,
    reasoning: String,
    /// The field in which it came.
    reasoning_field: Option<&'static str>,
    refusal: String,
    calls: Vec<Call>,
    reasoning_details: Vec<Value>,
    finish: Option<String>,
    usage: Option<Usage>,
    cache_writes: CacheWrites,
    id: Option<String>,
    has_choice: bool,
    /// Whether the answer has ended: the stream sent `[DONE]`, or the answer arrived in one piece.
    done: bool,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: Fragments,
    /// The input of a custom (free-text) tool call.
    free_text: Option<String>,
    /// `extra_content`, sent back with the call: some servers put signatures there.
    extra: Option<Value>,
}

/// Fast path for the most frequent chunk: borrows instead of building a [`Value`]. A chunk with
/// anything but text takes the slow path.
#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    choices: Vec<DeltaChoice<'a>>,
    #[serde(rename = "error", default, deserialize_with = "absent")]
    _error: (),
    #[serde(rename = "usage", default, deserialize_with = "absent")]
    _usage: (),
    #[serde(rename = "x_groq", default, deserialize_with = "absent")]
    _x_groq: (),
}

#[derive(Deserialize)]
struct DeltaChoice<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow)]
    delta: DeltaMessage<'a>,
    #[serde(rename = "finish_reason", default, deserialize_with = "absent")]
    _finish_reason: (),
    #[serde(rename = "error", default, deserialize_with = "absent")]
    _error: (),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaMessage<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(rename = "role")]
    _role: Option<serde::de::IgnoredAny>,
}

/// Accepts only `null`.
fn absent<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    <()>::deserialize(deserializer)
}

impl Answer {
    fn take_chunk(
        &mut self,
        chunk: &Value,
        part: &str,
        new: &mut String,
    ) -> Result<(), ModelError> {
        let is_bare_error = chunk.get("choices").is_none()
            && (chunk.get("object").and_then(Value::as_str) == Some("error")
                || chunk.get("message").is_some());
        if is_bare_error || failure::has_error(chunk) {
            return Err(failure::of_body(None, chunk, ""));
        }
        if !chunk.is_object() {
            return Err(malformed("the response is not a JSON object"));
        }
        if let Some(id) = chunk.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()) {
            self.id.get_or_insert_with(|| id.to_owned());
        }
        let usage = [chunk.get("usage"), chunk.pointer("/x_groq/usage")]
            .into_iter()
            .flatten()
            .find(|usage| usage.is_object());
        if let Some(usage) = usage {
            self.take_usage(usage);
        }
        if let Some(usage) = chunk.pointer("/choices/0/usage").filter(|usage| usage.is_object()) {
            self.take_usage(usage);
        }
        let Some(choice) = list(chunk, "choices").iter().find(|choice| is_first(choice)) else {
            return Ok(());
        };
        if failure::has_error(choice) {
            return Err(failure::of_body(None, choice, ""));
        }
        self.has_choice = true;
        if let Some(message) = choice.get(part).filter(|message| message.is_object()) {
            self.take_message(message, part == "message", new)?;
        }
        if let Some(finish) =
            choice.get("finish_reason").and_then(Value::as_str).filter(|finish| !finish.is_empty())
        {
            self.finish = Some(finish.to_owned());
        }
        Ok(())
    }

    fn take_usage(&mut self, usage: &Value) {
        let written = usage.pointer("/prompt_tokens_details/cache_write_tokens");
        let all = written.and_then(Value::as_u64).unwrap_or(self.cache_writes.all);
        self.cache_writes = CacheWrites { all, long: 0 };
        self.usage = Some(read_usage(usage));
    }

    fn take_message(
        &mut self,
        message: &Value,
        whole: bool,
        new: &mut String,
    ) -> Result<(), ModelError> {
        let mut said = String::new();
        match message.get("content") {
            Some(Value::String(text)) => said.push_str(text),
            Some(Value::Array(parts)) => {
                parts.iter().for_each(|part| self.take_part(part, &mut said));
            }
            _ => {}
        }
        self.written.push(&said, new);
        self.refusal.push_str(message.get("refusal").and_then(Value::as_str).unwrap_or_default());
        // Servers use two names for this field. Those that send both send the same text twice, so
        // take one.
        let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|field| {
            let text = message.get(*field).and_then(Value::as_str);
            Some((*field, text.filter(|text| !text.is_empty())?))
        });
        if let Some((field, text)) = reasoning {
            self.reasoning.push_str(text);
            self.reasoning_field = Some(field);
        }
        for detail in
            message.get("reasoning_details").and_then(Value::as_array).into_iter().flatten()
        {
            self.take_detail(detail, whole)?;
        }
        for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.take_call(call, whole)?;
        }
        // The deprecated field for a single call.
        if let Some(call) = message.get("function_call").filter(|call| call.is_object()) {
            self.take_call(call, whole)?;
        }
        Ok(())
    }

    /// Takes a typed part of a message: text, a refusal, or thinking, which may have parts of its
    /// own.
    fn take_part(&mut self, part: &Value, new: &mut String) {
        match part.get("type").and_then(Value::as_str) {
            Some("text") => {
                new.push_str(part.get("text").and_then(Value::as_str).unwrap_or_default())
            }
            Some("thinking") => match part.get("thinking") {
                Some(Value::String(text)) => self.reasoning.push_str(text),
                Some(Value::Array(parts)) => {
                    for text in
                        parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str))
                    {
                        self.reasoning.push_str(text);
                    }
                }
                _ => {}
            },
            Some("refusal") => self
                .refusal
                .push_str(part.get("refusal").and_then(Value::as_str).unwrap_or_default()),
            _ => {}
        }
    }

    /// Takes a reasoning detail, or a fragment of one. A fragment is merged into its detail: text
    /// is appended, and any other field takes the newest value that is not null.
    ///
    /// *Errors*: more than [`MAX_DETAILS`] details.
    fn take_detail(&mut self, detail: &Value, whole: bool) -> Result<(), ModelError> {
        let index = detail.get("index");
        let is_other = |known: &Value| {
            let ids =
                (known.get("id").and_then(Value::as_str), detail.get("id").and_then(Value::as_str));
            matches!(ids, (Some(known), Some(new)) if known != new)
        };
        let mut details = self.reasoning_details.iter_mut();
        let Some(known) = details.find(|known| {
            !whole
                && index.is_some()
                && known.get("index") == index
                && known.get("type") == detail.get("type")
                && !is_other(known)
        }) else {
            self.reasoning_details.push(detail.clone());
            return if self.reasoning_details.len() > MAX_DETAILS {
                Err(malformed(format!("the answer has more than {MAX_DETAILS} reasoning details")))
            } else {
                Ok(())
            };
        };
        let (Some(known), Some(new)) = (known.as_object_mut(), detail.as_object()) else {
            return Ok(());
        };
        for (field, value) in new {
            match (known.get_mut(field), value) {
                (Some(Value::String(text)), Value::String(more))
                    if matches!(field.as_str(), "text" | "summary" | "data") =>
                {
                    text.push_str(more)
                }
                _ if value.is_null() => {}
                _ => drop(known.insert(field.clone(), value.clone())),
            }
        }
        Ok(())
    }

    /// Takes a call or a fragment of one. If `whole`, every entry is a separate call.
    fn take_call(&mut self, delta: &Value, whole: bool) -> Result<(), ModelError> {
        let index = delta.get("index").and_then(Value::as_u64);
        let id = delta.get("id").and_then(Value::as_str).unwrap_or_default();
        let function =
            ["function", "custom"].iter().find_map(|field| delta.get(*field)).unwrap_or(delta);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let brings = function
            .get("arguments")
            .and_then(Value::as_str)
            .is_some_and(|text| !text.trim().is_empty());
        // Some servers give every call the index 0. A name with another id begins a new call.
        // Without an id, a name after complete arguments begins one, unless it is the same name
        // and no arguments come with it. An id alone does not begin a call, because other servers
        // send a new id with each fragment.
        let begins = |call: &Call| match (id.is_empty(), call.id.is_empty()) {
            _ if name.is_empty() => false,
            (false, false) if call.id != id => true,
            // Some servers give every call the same id.
            (false, false) => {
                !call.name.is_empty() && name != call.name && call.arguments.are_complete()
            }
            (true, _) => (brings || name != call.name) && call.arguments.are_complete(),
            (false, true) => false,
        };
        let continues = |call: &Call| match index {
            Some(_) => call.index == index && !begins(call),
            None if id.is_empty() && name.is_empty() => true,
            None => !id.is_empty() && call.id == id && !begins(call),
        };
        let at = match self.calls.iter().rposition(|call| !whole && continues(call)) {
            Some(at) => at,
            None => {
                self.calls.push(Call { index, ..Call::default() });
                check_calls(self.calls.len())?;
                self.calls.len() - 1
            }
        };
        let Some(call) = self.calls.get_mut(at) else { return Ok(()) };
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        if let Some(extra) = delta.get("extra_content").filter(|extra| extra.is_object()) {
            call.extra = Some(extra.clone());
        }
        if let Some(input) = function.get("input").and_then(Value::as_str) {
            // A custom (free-text) tool call, as in the Responses API.
            call.free_text.get_or_insert_default().push_str(input);
        }
        match function.get("arguments") {
            Some(Value::String(text)) => call.arguments.push(text),
            Some(Value::Null) | None => {}
            Some(object) => call.arguments.push(&object.to_string()),
        }
        Ok(())
    }
}

impl Reader for Answer {
    fn take(&mut self, data: &str, text: &mut String) -> Result<(), ModelError> {
        if data.trim() == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        if let Ok(chunk) = serde_json::from_str::<Delta<'_>>(data)
            && let [choice] = chunk.choices.as_slice()
            && choice.index.unwrap_or(0) == 0
            && self.id.is_some()
        {
            self.has_choice = true;
            self.written.push(&choice.delta.content, text);
            return Ok(());
        }
        self.take_chunk(&parse(data)?, "delta", text)
    }

    fn take_whole(&mut self, body: Value) -> Result<(), ModelError> {
        self.take_chunk(&body, "message", &mut String::new())?;
        self.done = true;
        Ok(())
    }

    fn size(&self) -> usize {
        let of_call = |call: &Call| {
            let free_text = call.free_text.as_ref().map_or(0, String::len);
            let extra = call.extra.as_ref().map_or(0, json::memory);
            call.id.len() + call.name.len() + call.arguments.size() + free_text + extra
        };
        let calls: usize = self.calls.iter().map(of_call).sum();
        let details: usize = self.reasoning_details.iter().map(json::memory).sum();
        self.written.size() + self.reasoning.len() + self.refusal.len() + calls + details
    }

    fn progress(&self) -> Progress {
        match (self.done, &self.finish) {
            (true, _) => Progress::Done,
            (false, Some(_)) => Progress::Whole,
            (false, None) => Progress::Open,
        }
    }

    fn finish(mut self: Box<Self>) -> Result<ModelReply, ModelError> {
        if self.calls.is_empty() {
            self.written.end();
        }
        if let Some(word @ ("error" | "abort" | "network_error" | "insufficient_system_resource")) =
            self.finish.as_deref()
        {
            return Err(ModelError::new(
                ErrorClass::Server,
                format!("the server failed to complete the answer: finish reason {word}"),
            ));
        }
        if !self.has_choice {
            return Err(malformed("the response has no choices"));
        }
        let word = self.finish.as_deref().unwrap_or_default().to_ascii_lowercase();
        let finish_reason = match word.as_str() {
            "refusal" => FinishReason::Refusal,
            "sensitive" | "safety" | "recitation" => FinishReason::ContentFilter,
            word if word.starts_with("content_filter") => FinishReason::ContentFilter,
            word if word.starts_with("function_call_filter") => FinishReason::InvalidToolCall,
            // A refusal overrides the finish reasons below, so that calls that accompany it are not
            // executed.
            _ if !self.refusal.is_empty() => FinishReason::Refusal,
            "length"
            | "max_tokens"
            | "model_length"
            | "max_output_tokens"
            | "model_context_window_exceeded" => FinishReason::Length,
            _ if self.calls.iter().any(|call| is_named(&call.name)) => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };

        // Keep one entry for each call with a name, in order: when we send the entries back, we
        // match them with the calls by position.
        let named = self.calls.iter().filter(|call| is_named(&call.name));
        let extras: Vec<_> = named.map(|call| call.extra.clone()).collect();
        let mut kept = Map::new();
        if let Some(field) = self.reasoning_field {
            kept.insert(REASONING_FIELD.to_owned(), field.into());
        }
        if let Some(inline) = self.written.reasoning() {
            // Reasoning that came in a field of its own goes back as that.
            if let Some(raw) = self.written.raw().filter(|_| self.reasoning.is_empty()) {
                kept.insert(INLINE.to_owned(), raw.into());
            }
            self.reasoning.push_str(inline);
        }
        if !self.reasoning_details.is_empty() {
            kept.insert("reasoning_details".to_owned(), self.reasoning_details.into());
        }
        if extras.iter().any(Option::is_some) {
            kept.insert("extra_content".to_owned(), json!(extras));
        }
        let mut calls: Vec<RequestedCall> = self
            .calls
            .into_iter()
            .map(|call| RequestedCall {
                arguments: match call.free_text {
                    // A truncated free text must not be executed.
                    Some(_) if finish_reason == FinishReason::Length => "{".to_owned(),
                    Some(input) => json!({"input": input}).to_string(),
                    None => call.arguments.into_text(),
                },
                id: Some(call.id).filter(|id| !id.is_empty()),
                name: call.name,
            })
            .collect();
        let is_invalid = drop_nameless(&mut calls);
        let finish_reason = match finish_reason {
            FinishReason::Stop if is_invalid => FinishReason::InvalidToolCall,
            FinishReason::Stop
                if calls.is_empty() && matches!(word.as_str(), "tool_calls" | "function_call") =>
            {
                return Err(malformed("the response announces tool calls and contains none"));
            }
            other => other,
        };
        Ok(ModelReply {
            text: self.written.into_text(),
            explanation: Some(self.refusal).filter(|text| !text.is_empty()),
            reasoning: Some(self.reasoning).filter(|text| !text.is_empty()),
            calls,
            finish_reason,
            stop_reason: self.finish,
            usage: self.usage,
            cache_writes: self.cache_writes,
            response_id: self.id,
            provider_data: (!kept.is_empty()).then_some(Value::Object(kept)),
        })
    }
}

fn read_usage(usage: &Value) -> Usage {
    let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let (input, output) = (number("/prompt_tokens"), number("/completion_tokens"));
    let reasoning = number("/completion_tokens_details/reasoning_tokens");
    // One provider excludes reasoning from the completion tokens; its total shows that.
    let is_beside = reasoning > output
        || reasoning > 0
            && number("/total_tokens") == input.saturating_add(output).saturating_add(reasoning);
    Usage {
        input_tokens: input,
        output_tokens: if is_beside { output.saturating_add(reasoning) } else { output },
        cached_input_tokens: number("/prompt_tokens_details/cached_tokens")
            .max(number("/prompt_cache_hit_tokens"))
            .max(number("/cached_tokens")),
        reasoning_tokens: reasoning,
    }
}
