//! Gemini `generateContent` and `streamGenerateContent`.
//!
//! *Source*: the API reference of Google (read 2026-11-22) and recordings under `tests/fixtures/providers/gemini`.

mod partial;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::failure;
use super::format::{
    Format, Outgoing, Progress, Reader, arguments, check_calls, kept, list, malformed, number,
    parse, set, text,
};
use crate::agent::{ModelError, ModelReply, ModelRequest, RequestedCall};
use crate::config::{Effort, Remote};
use crate::domain::{AssistantTurn, FinishReason, Turn, Usage};

const NAME: &str = "gemini";

pub(super) struct Gemini;

impl Format for Gemini {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The key goes in a header: an address ends up in logs.
    fn headers(&self, settings: &Remote) -> Vec<(&'static str, String)> {
        settings.api_key.iter().map(|key| ("x-goog-api-key", key.clone())).collect()
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing {
        let method =
            if settings.stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        let model = settings.model.trim_start_matches("models/");
        Outgoing { path: format!("/models/{model}:{method}"), body: body(settings, request) }
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Answer::default())
    }
}

fn body(settings: &Remote, request: ModelRequest<'_>) -> Value {
    let mut contents = Vec::new();
    // Whether the calls that wait for their results had ids of the provider.
    let mut had_ids = Vec::new();
    for turn in request.history {
        match turn {
            Turn::User(text) | Turn::Steering(text) => {
                push(&mut contents, "user", vec![json!({"text": text})])
            }
            Turn::Assistant(turn) => {
                let parts = assistant(settings, turn);
                had_ids = parts
                    .iter()
                    .filter_map(|part| Some(part.get("functionCall")?.get("id").is_some()))
                    .collect();
                push(&mut contents, "model", parts);
            }
            Turn::ToolResults(results) => {
                let with_ids = had_ids.iter().copied().chain(std::iter::repeat(false));
                let parts = results.iter().zip(with_ids).map(|(result, with_id)| {
                    let field = if result.is_error { "error" } else { "output" };
                    let mut response =
                        json!({"name": result.name, "response": {field: result.content}});
                    if with_id {
                        set(&mut response, "id", json!(result.call_id));
                    }
                    json!({"functionResponse": response})
                });
                push(&mut contents, "user", parts.collect());
            }
        }
    }
    let mut body = json!({
        "systemInstruction": {"parts": [{"text": request.system}]},
        "contents": contents,
    });
    if !request.tools.is_empty() {
        let tools: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}))
            .collect();
        set(&mut body, "tools", json!([{"functionDeclarations": tools}]));
    }
    let mut generation = Map::new();
    if let Some(most) = settings.max_output_tokens {
        generation.insert("maxOutputTokens".to_owned(), most.into());
    }
    if let Some(temperature) = settings.temperature {
        generation.insert("temperature".to_owned(), temperature.into());
    }
    if let Some(effort) = settings.reasoning_effort {
        // Up to 2.5 the model is told how many tokens it may think, later a level.
        let thinking = match ["gemini-2", "gemini-1"].iter().any(|old| settings.model.contains(old))
        {
            true => json!({"includeThoughts": true, "thinkingBudget": match effort {
                Effort::Low => 1_024,
                Effort::Medium => 8_192,
                Effort::High => 24_576,
            }}),
            false => json!({"includeThoughts": true, "thinkingLevel": effort.as_str()}),
        };
        generation.insert("thinkingConfig".to_owned(), thinking);
    }
    if !generation.is_empty() {
        set(&mut body, "generationConfig", generation);
    }
    body
}

/// Adds parts; neighbours of one role are one content.
fn push(contents: &mut Vec<Value>, role: &str, parts: Vec<Value>) {
    if parts.is_empty() {
        return;
    }
    if let Some(last) = contents.last_mut()
        && last["role"] == role
        && let Some(known) = last["parts"].as_array_mut()
    {
        known.extend(parts);
        return;
    }
    contents.push(json!({"role": role, "parts": parts}));
}

fn assistant(settings: &Remote, turn: &AssistantTurn) -> Vec<Value> {
    let mut calls = turn.tool_calls.iter();
    let mut parts = Vec::new();
    match kept(turn, NAME, settings) {
        // As they came, so that each signature stays with its part.
        Some(data) => parts.extend(list(data, "parts").iter().filter_map(|part| {
            let Some(function) = part.get("functionCall") else { return Some(part.clone()) };
            let call = calls.next()?;
            let (mut part, mut function) = (part.clone(), function.clone());
            if function.get("id").is_some() {
                set(&mut function, "id", json!(call.call_id));
            }
            set(&mut function, "args", arguments(call));
            set(&mut part, "functionCall", function);
            Some(part)
        })),
        None if turn.text.is_empty() => {}
        None => parts.push(json!({"text": turn.text})),
    }
    parts.extend(
        calls.map(|call| json!({"functionCall": {"name": call.name, "args": arguments(call)}})),
    );
    parts
}

/// An answer as far as it has come.
#[derive(Debug, Default)]
struct Answer {
    id: Option<String>,
    /// As they came; neighbouring texts of one kind are one.
    parts: Vec<Value>,
    /// Whether the last call has more arguments to come.
    is_open: bool,
    has_candidate: bool,
    finish: Option<String>,
    blocked: bool,
    explanation: Option<String>,
    usage: Option<Usage>,
}

/// The chunk that comes most, read without a tree. Whatever holds more than text is read in full.
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
    index: u64,
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct DeltaUsage {
    prompt_token_count: Option<u64>,
    tool_use_prompt_token_count: u64,
    candidates_token_count: u64,
    thoughts_token_count: u64,
    cached_content_token_count: u64,
}

impl Answer {
    fn take_chunk(&mut self, chunk: &Value, new: &mut String) -> Result<(), ModelError> {
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(failure::of_body(None, chunk, ""));
        }
        if !chunk.is_object() {
            return Err(malformed("the answer is no JSON object"));
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
        // Of several candidates only the first counts.
        let first = |candidate: &&Value| number(candidate, "/index") == 0;
        let Some(candidate) = list(chunk, "candidates").iter().find(first) else { return Ok(()) };
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

    fn take_usage(&mut self, usage: &DeltaUsage) {
        // Some servers announce the object with nothing in it.
        let Some(prompt) = usage.prompt_token_count else { return };
        self.usage = Some(Usage {
            input_tokens: prompt.saturating_add(usage.tool_use_prompt_token_count),
            output_tokens: usage.candidates_token_count.saturating_add(usage.thoughts_token_count),
            cached_input_tokens: usage.cached_content_token_count,
            reasoning_tokens: usage.thoughts_token_count,
        });
    }

    fn take_part(&mut self, part: &Value, new: &mut String) -> Result<(), ModelError> {
        if let Some(call) = part.get("functionCall") {
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
        self.parts.push(match is_thought {
            true => json!({"text": piece, "thought": true}),
            false => json!({"text": piece}),
        });
    }

    /// Takes a call, or a part of one: without a name it goes on with the last.
    fn take_call(&mut self, part: &Value, call: &Value) -> Result<(), ModelError> {
        let goes_on = call.get("name").is_none() && self.is_open;
        if !goes_on && call.as_object().is_none_or(Map::is_empty) {
            return Ok(());
        }
        if !goes_on {
            let mut part = part.clone();
            if let Some(call) = part.get_mut("functionCall").and_then(Value::as_object_mut) {
                call.remove("partialArgs");
                call.remove("willContinue");
                call.entry("args").or_insert_with(|| json!({}));
            }
            self.parts.push(part);
            check_calls(self.parts.len())?;
        }
        self.is_open = call.get("willContinue") == Some(&Value::Bool(true));
        let args = self.parts.last_mut().and_then(|last| last.pointer_mut("/functionCall/args"));
        if let Some(args) = args {
            for partial in list(call, "partialArgs") {
                partial::put(args, partial)?;
            }
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
            let ([candidate], is_first) = (chunk.candidates, self.id.is_none());
            if candidate.index == 0 {
                let [part] = candidate.content.parts;
                self.has_candidate = true;
                self.take_usage(&chunk.usage);
                if is_first {
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
            return Err(malformed("the answer has no candidates"));
        }
        // Whole as it is, with or without a word for its end.
        self.finish.get_or_insert_default();
        Ok(())
    }

    fn progress(&self) -> Progress {
        if self.finish.is_some() || self.blocked { Progress::Whole } else { Progress::Open }
    }

    fn finish(self: Box<Self>) -> Result<ModelReply, ModelError> {
        let last = self.parts.iter().filter(|part| part.get("functionCall").is_some()).count();
        let calls: Vec<RequestedCall> = self
            .parts
            .iter()
            .filter_map(|part| part.get("functionCall"))
            .enumerate()
            .map(|(at, call)| {
                let mut arguments = call.get("args").unwrap_or(&Value::Null).to_string();
                if self.is_open && at + 1 == last {
                    // Its end never came, so that it must not parse.
                    arguments.pop();
                }
                RequestedCall {
                    id: Some(text(call, "id").to_owned()).filter(|id| !id.is_empty()),
                    name: text(call, "name").to_owned(),
                    arguments,
                }
            })
            .collect();
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
            _ if self.blocked && self.parts.is_empty() => FinishReason::ContentFilter,
            _ if !calls.is_empty() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        let (answer, reasoning) = (self.texts(false), self.texts(true));
        // Thoughts are the model's, not ours to send; what is signed goes back where it was.
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
            usage: self.usage,
            cache_write_tokens: 0,
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
        assert!(crate::call::parse_arguments(&cut.calls[0].arguments).is_err(), "{:?}", cut.calls);
        assert_eq!(cut.calls[0].arguments, r#"{"name":"web","to":[3]"#);
    }
}
