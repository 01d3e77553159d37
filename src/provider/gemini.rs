//! The Gemini API: `generateContent` and `streamGenerateContent`.
//!
//! *Source*: the API reference of Google (read 2026-11-22) and recordings under
//! `tests/fixtures/providers/gemini`.

mod partial;
mod request;

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::{objects_mut, remove_entries};
use super::failure;
use super::format::{
    Format, MetadataRequest, Outgoing, Probe, Progress, Reader, check_calls, drop_nameless,
    is_first, is_named, list, malformed, parse, set, text,
};
use super::metadata;
use super::refusal::Optional;
use crate::agent::{ErrorClass, ModelError, ModelReply, ModelRequest, RequestedCall};
use crate::catalogue::CacheWrites;
use crate::config::Remote;
use crate::domain::{FinishReason, Usage};
use crate::text::json;

const NAME: &str = "gemini";

pub(super) struct Gemini;

const OPTIONAL: &[Optional] = &[
    Optional::at("temperature", "/generationConfig/temperature", &["temperature"]),
    Optional::at(
        "reasoning_summary",
        "/generationConfig/thinkingConfig/includeThoughts",
        &["includeThoughts", "include_thoughts"],
    ),
    Optional::at(
        "reasoning_effort",
        "/generationConfig/thinkingConfig",
        &[
            "thinkingConfig",
            "thinking_config",
            "thinkingLevel",
            "thinking_level",
            "thinkingBudget",
            "thinking_budget",
            "thinking",
        ],
    ),
    Optional::schema(
        &["/generationConfig/responseJsonSchema", "/generationConfig/responseMimeType"],
        &["responsejson", "response_json", "responseschema", "response_schema", "response mime"],
    ),
    Optional::history("reasoning_history", &["thoughtSignature", "thought_signature", "thought"]),
];

impl Format for Gemini {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Sends the key in a header, because URLs end up in logs.
    fn headers(&self, settings: &Remote) -> Vec<(&'static str, String)> {
        settings.api_key.iter().map(|key| ("x-goog-api-key", key.clone())).collect()
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing {
        let method =
            if settings.stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        let model = settings.model.trim_start_matches("models/");
        Outgoing {
            path: format!("/models/{model}:{method}"),
            body: request::body(settings, request),
        }
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Answer::default())
    }

    fn metadata_request(&self, model: &str) -> MetadataRequest {
        let name = model.trim_start_matches("models/");
        MetadataRequest { path: format!("/models/{name}"), body: None }
    }

    fn read_metadata(&self, _model: &str, body: &[u8]) -> Result<Probe, ModelError> {
        Ok(metadata::of_gemini(&super::http::json(body)?))
    }

    fn stop_words(&self) -> &'static [&'static str] {
        &[
            "stop",
            "max_tokens",
            "safety",
            "recitation",
            "language",
            "blocklist",
            "prohibited_content",
            "spii",
            "image_safety",
            "image_prohibited_content",
            "image_recitation",
            "model_armor",
            "malformed_function_call",
            "unexpected_tool_call",
            "too_many_tool_calls",
            "other",
            "finish_reason_unspecified",
        ]
    }

    fn optional(&self) -> &'static [Optional] {
        OPTIONAL
    }

    fn strip_reasoning(&self, body: &mut Value) -> bool {
        let is_thought = |part: &Value| part.get("thought") == Some(&Value::Bool(true));
        let mut had = remove_entries(body, "contents", "parts", is_thought);
        for content in objects_mut(body, "contents") {
            let parts = content.get_mut("parts").and_then(Value::as_array_mut);
            for part in parts.into_iter().flatten().filter_map(Value::as_object_mut) {
                had |= part.shift_remove("thoughtSignature").is_some();
            }
        }
        had
    }
}

/// The answer received so far.
#[derive(Debug, Default)]
struct Answer {
    id: Option<String>,
    /// The parts in their order; adjacent text parts of the same kind (answer or thought) are
    /// merged if they have no signature.
    parts: Vec<Value>,
    /// Index in `parts` of the call to which a following part without a name adds arguments.
    open: Option<usize>,
    /// Indexes in `parts` of the calls that are not finished.
    unclosed: BTreeSet<usize>,
    has_candidate: bool,
    finish: Option<String>,
    blocked: bool,
    explanation: Option<String>,
    usage: DeltaUsage,
}

/// Fast path for the most frequent chunk: borrows instead of building a [`Value`]. A chunk with any
/// other field takes the slow path.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delta<'a> {
    #[serde(borrow)]
    candidates: [DeltaCandidate<'a>; 1],
    #[serde(rename = "usageMetadata")]
    usage: DeltaUsage,
    #[serde(rename = "modelVersion")]
    _model_version: Option<serde::de::IgnoredAny>,
    #[serde(rename = "createTime")]
    _create_time: Option<serde::de::IgnoredAny>,
    #[serde(rename = "responseId", borrow)]
    response_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaCandidate<'a> {
    #[serde(borrow)]
    content: DeltaContent<'a>,
    #[serde(default)]
    index: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaContent<'a> {
    #[serde(borrow)]
    parts: [DeltaPart<'a>; 1],
    #[serde(rename = "role")]
    _role: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaPart<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeltaUsage {
    prompt_token_count: Option<u64>,
    tool_use_prompt_token_count: Option<u64>,
    candidates_token_count: Option<u64>,
    thoughts_token_count: Option<u64>,
    cached_content_token_count: Option<u64>,
}

impl Answer {
    fn take_chunk(&mut self, chunk: &Value, new: &mut String) -> Result<(), ModelError> {
        if failure::has_error(chunk) {
            return Err(failure::of_body(None, chunk, ""));
        }
        if !chunk.is_object() {
            return Err(malformed("the response is not a JSON object"));
        }
        if !text(chunk, "responseId").is_empty() {
            self.id = Some(text(chunk, "responseId").to_owned());
        }
        if let Some(usage) = chunk.get("usageMetadata") {
            self.take_usage(&DeltaUsage::deserialize(usage).unwrap_or_default());
        }
        if let Some(reason) = chunk.pointer("/promptFeedback/blockReason").and_then(Value::as_str) {
            self.blocked = true;
            let message =
                chunk.pointer("/promptFeedback/blockReasonMessage").and_then(Value::as_str);
            self.explanation = Some(message.unwrap_or(reason).to_owned());
        }
        let mut candidates = list(chunk, "candidates").iter();
        let Some(candidate) = candidates.find(|candidate| is_first(candidate)) else {
            return Ok(());
        };
        self.has_candidate = true;
        for part in
            candidate.get("content").map(|content| list(content, "parts")).unwrap_or_default()
        {
            self.take_part(part, new)?;
        }
        if let Some(finish) = candidate.get("finishReason").and_then(Value::as_str) {
            self.finish = Some(finish.to_owned());
            self.explanation =
                candidate.get("finishMessage").and_then(Value::as_str).map(str::to_owned);
        }
        Ok(())
    }

    /// Merges usage fields: a later number replaces the earlier one of the same name.
    fn take_usage(&mut self, new: &DeltaUsage) {
        let known = &mut self.usage;
        for (known, new) in [
            (&mut known.prompt_token_count, new.prompt_token_count),
            (&mut known.tool_use_prompt_token_count, new.tool_use_prompt_token_count),
            (&mut known.candidates_token_count, new.candidates_token_count),
            (&mut known.thoughts_token_count, new.thoughts_token_count),
            (&mut known.cached_content_token_count, new.cached_content_token_count),
        ] {
            *known = new.or(*known);
        }
    }

    fn usage(&self) -> Option<Usage> {
        let usage = &self.usage;
        let (prompt, thoughts) =
            (usage.prompt_token_count?, usage.thoughts_token_count.unwrap_or(0));
        Some(Usage {
            input_tokens: prompt.saturating_add(usage.tool_use_prompt_token_count.unwrap_or(0)),
            output_tokens: usage.candidates_token_count.unwrap_or(0).saturating_add(thoughts),
            cached_input_tokens: usage.cached_content_token_count.unwrap_or(0),
            reasoning_tokens: thoughts,
        })
    }

    fn take_part(&mut self, part: &Value, new: &mut String) -> Result<(), ModelError> {
        if let Some(call) = part.get("functionCall").filter(|call| call.is_object()) {
            return self.take_call(part, call);
        }
        let Some(piece) = part.get("text").and_then(Value::as_str) else {
            if part.as_object().is_some_and(|part| !part.is_empty()) {
                self.parts.push(part.clone());
            }
            return check_calls(self.parts.len());
        };
        let is_thought = part.get("thought") == Some(&Value::Bool(true));
        if !is_thought {
            new.push_str(piece);
        }
        let signed = part.get("thoughtSignature").is_some();
        self.add_text(piece, is_thought, signed.then_some(part));
        check_calls(self.parts.len())
    }

    fn add_text(&mut self, piece: &str, is_thought: bool, signed: Option<&Value>) {
        if let Some(part) = signed {
            self.parts.push(part.clone());
            return;
        }
        if piece.is_empty() {
            return;
        }
        let goes_on = |last: &&mut Value| {
            last.get("text").is_some()
                && last.get("thoughtSignature").is_none()
                && (last.get("thought") == Some(&Value::Bool(true))) == is_thought
        };
        if let Some(Value::String(known)) =
            self.parts.last_mut().filter(goes_on).and_then(|last| last.get_mut("text"))
        {
            known.push_str(piece);
            return;
        }
        self.parts.push(if is_thought {
            json!({"text": piece, "thought": true})
        } else {
            json!({"text": piece})
        });
    }

    /// Takes a call or a part of one: a part without a name continues the open call.
    fn take_call(&mut self, part: &Value, call: &Value) -> Result<(), ModelError> {
        let known = self.open.filter(|_| !is_named(text(call, "name")));
        if known.is_none() && call.as_object().is_none_or(Map::is_empty) {
            return Ok(());
        }
        let at = known.unwrap_or(self.parts.len());
        if known.is_none() {
            let mut part = part.clone();
            if let Some(call) = part.get_mut("functionCall").and_then(Value::as_object_mut) {
                call.remove("partialArgs");
                call.remove("willContinue");
                call.entry("args").or_insert_with(|| json!({}));
            }
            self.parts.push(part);
            check_calls(self.parts.len())?;
        }
        let Some(place) = self.parts.get_mut(at) else { return Ok(()) };
        if let Some(signature) = part.get("thoughtSignature") {
            set(place, "thoughtSignature", signature.clone());
        }
        if let Some(args) = place.pointer_mut("/functionCall/args") {
            if let Some(more) =
                call.get("args").and_then(Value::as_object).filter(|_| known.is_some())
            {
                more.iter().for_each(|(name, value)| set(args, name, value.clone()));
            }
            for partial in list(call, "partialArgs") {
                partial::put(args, partial)?;
            }
        }
        if call.get("willContinue") == Some(&Value::Bool(true)) {
            self.open = Some(at);
            self.unclosed.insert(at);
        } else {
            self.open = None;
            self.unclosed.remove(&at);
        }
        Ok(())
    }

    fn texts(&self, thought: bool) -> String {
        self.parts
            .iter()
            .filter(|part| (part.get("thought") == Some(&Value::Bool(true))) == thought)
            .map(|part| text(part, "text"))
            .collect()
    }
}

impl Reader for Answer {
    fn take(&mut self, data: &str, new: &mut String) -> Result<(), ModelError> {
        if let Ok(chunk) = serde_json::from_str::<Delta<'_>>(data) {
            let ([candidate], is_new) = (chunk.candidates, self.id.is_none());
            if candidate.index.unwrap_or(0) == 0 {
                let [part] = candidate.content.parts;
                self.has_candidate = true;
                self.take_usage(&chunk.usage);
                if is_new {
                    self.id = chunk.response_id.map(Cow::into_owned);
                }
                new.push_str(&part.text);
                self.add_text(&part.text, false, None);
                return Ok(());
            }
        }
        self.take_chunk(&parse(data)?, new)
    }

    fn take_whole(&mut self, body: Value) -> Result<(), ModelError> {
        self.take_chunk(&body, &mut String::new())?;
        if !self.has_candidate && !self.blocked {
            return Err(malformed("the response has no candidates"));
        }
        // A response in one piece is complete, with or without a finish reason.
        self.finish.get_or_insert_default();
        Ok(())
    }

    fn size(&self) -> usize {
        self.parts.iter().map(json::memory).sum()
    }

    fn progress(&self) -> Progress {
        if self.finish.is_some() || self.blocked { Progress::Whole } else { Progress::Open }
    }

    fn finish(mut self: Box<Self>) -> Result<ModelReply, ModelError> {
        let mut calls: Vec<RequestedCall> = self
            .parts
            .iter()
            .enumerate()
            .filter_map(|(at, part)| Some((at, part.get("functionCall")?)))
            .map(|(at, call)| {
                let mut arguments = call.get("args").unwrap_or(&Value::Null).to_string();
                if self.unclosed.contains(&at) {
                    // The call never finished. Make its arguments invalid, so that they cannot be
                    // executed.
                    arguments.pop();
                }
                RequestedCall {
                    id: Some(text(call, "id").to_owned()).filter(|id| !id.is_empty()),
                    name: text(call, "name").to_owned(),
                    arguments,
                }
            })
            .collect();
        let answer = self.texts(false);
        let is_invalid = drop_nameless(&mut calls);
        // Drop the calls without a name from the parts too: when we send parts and calls back, we
        // match them by position.
        let is_nameless = |call: &Value| !is_named(text(call, "name"));
        self.parts.retain(|part| !part.get("functionCall").is_some_and(is_nameless));
        let says_nothing = self
            .parts
            .iter()
            .all(|part| part.get("functionCall").is_none() && text(part, "text").is_empty());
        match self.finish.as_deref() {
            Some("MALFORMED_RESPONSE") => {
                return Err(malformed("the model produced a malformed answer"));
            }
            Some("MISSING_THOUGHT_SIGNATURE") => {
                let message = "the history lacks a thought signature";
                return Err(ModelError::new(ErrorClass::BadRequest, message));
            }
            Some(word @ ("OTHER" | "FINISH_REASON_UNSPECIFIED")) if says_nothing => {
                let message = format!("the model stopped without an answer (finish reason {word})");
                return Err(ModelError::new(ErrorClass::Server, message));
            }
            _ => {}
        }
        let finish_reason = match self.finish.as_deref() {
            Some("MAX_TOKENS") => FinishReason::Length,
            Some(
                "SAFETY"
                | "RECITATION"
                | "LANGUAGE"
                | "BLOCKLIST"
                | "PROHIBITED_CONTENT"
                | "SPII"
                | "IMAGE_SAFETY"
                | "IMAGE_PROHIBITED_CONTENT"
                | "IMAGE_RECITATION"
                | "MODEL_ARMOR",
            ) => FinishReason::ContentFilter,
            Some("MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" | "TOO_MANY_TOOL_CALLS") => {
                FinishReason::InvalidToolCall
            }
            _ if self.blocked && (self.parts.is_empty() || !calls.is_empty()) => {
                FinishReason::ContentFilter
            }
            _ if is_invalid => FinishReason::InvalidToolCall,
            _ if !calls.is_empty() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        let (reasoning, usage) = (self.texts(true), self.usage());
        // Do not send thoughts back, except signed parts, which must keep their place.
        let is_plain = self.parts.iter().all(|part| {
            part.get("thoughtSignature").is_none()
                && part.pointer("/functionCall/id").is_none()
                && (part.get("text").is_some() || part.get("functionCall").is_some())
        });
        let replayed: Vec<Value> = self
            .parts
            .into_iter()
            .filter(|part| {
                part.get("thought") != Some(&Value::Bool(true))
                    || part.get("thoughtSignature").is_some()
            })
            .collect();
        Ok(ModelReply {
            text: answer,
            explanation: self.explanation,
            reasoning: Some(reasoning).filter(|text| !text.is_empty()),
            calls,
            finish_reason,
            stop_reason: self.finish.filter(|finish| !finish.is_empty()),
            usage,
            cache_writes: CacheWrites::default(),
            response_id: self.id,
            provider_data: (!is_plain).then(|| json!({"parts": replayed})),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves LLM-5
    #[test]
    fn arguments_that_come_in_parts_are_put_together_or_never_parse() {
        let chunk = |call: Value| {
            json!({"candidates": [{"content": {"parts": [{"functionCall": call}]}}]}).to_string()
        };
        let mut answer = Answer::default();
        let mut new = String::new();
        for call in [
            json!({"name": "scale", "willContinue": true}),
            json!({"partialArgs": [{"jsonPath": "$.name", "stringValue": "we", "willContinue": true}], "willContinue": true}),
            json!({"partialArgs": [{"jsonPath": "$.name", "stringValue": "b"}, {"jsonPath": "$.to[0]", "numberValue": 3}], "willContinue": true}),
        ] {
            answer.take(&chunk(call), &mut new).unwrap();
        }
        let far = json!({"partialArgs": [{"jsonPath": "$.to[9000]", "boolValue": true}], "willContinue": true});
        assert!(answer.take(&chunk(far), &mut new).is_err());
        answer.finish = Some("MAX_TOKENS".to_owned());
        let cut = Box::new(answer).finish().unwrap();
        assert!(crate::argv::parse_arguments(&cut.calls[0].arguments).is_err(), "{:?}", cut.calls);
        assert_eq!(cut.calls[0].arguments, r#"{"name":"web","to":[3]"#);
    }
}
