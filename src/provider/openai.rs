//! The OpenAI Responses API, without state on the provider's side.
//!
//! *Source*: the API reference of OpenAI (read 2026-11-22) and recordings under
//! `tests/fixtures/providers/openai-responses`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::failure;
use super::format::{
    Format, Outgoing, Probe, Progress, Reader, SCHEMA_NAME, arguments, check_calls, content,
    data_url, drop_nameless, images, is_named, kept, list, malformed, native_schema, number,
    output_limit, parse, set, text, wire_id, wire_name,
};
use super::metadata;
use super::refusal::Optional;
use crate::agent::{ErrorClass, ModelError, ModelReply, ModelRequest, RequestedCall};
use crate::argv::parse_arguments;
use crate::catalogue::{CacheWrites, Effort, ReasoningForm};
use crate::config::Remote;
use crate::domain::{AssistantTurn, CallId, FinishReason, Turn, Usage};
use crate::text::json;

const NAME: &str = "openai";

/// Maximum length of a call id.
const ID: usize = 64;

pub(super) struct Openai;

const OPTIONAL: &[Optional] = &[
    Optional::at("temperature", "/temperature", &["temperature"]),
    Optional::at("reasoning_summary", "/reasoning/summary", &["summary"]),
    Optional::at("reasoning_effort", "/reasoning/effort", &["effort", "reasoning_effort"]),
    Optional::at("reasoning", "/reasoning", &["reasoning"]),
    Optional::at("encrypted_content", "/include", &["include", "encrypted_content", "encrypted"]),
    Optional::at("parallel_tool_calls", "/parallel_tool_calls", &["parallel_tool_calls"]),
    Optional::schema(&["/text/format"], &["text.format", "response_format", "structured output"]),
    Optional::history("reasoning_history", &["encrypted_content", "reasoning"]),
];

impl Format for Openai {
    fn name(&self) -> &'static str {
        NAME
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing {
        // A model that does not reason rejects a request for encrypted reasoning.
        let asks = settings.reasoning_effort.is_some_and(|effort| effort != Effort::None)
            || settings.traits.reasoning.is_some_and(|form| form != ReasoningForm::None);
        Outgoing {
            path: settings.format.endpoint().to_owned(),
            body: body(settings, request, asks),
        }
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Answer::default())
    }

    fn read_metadata(&self, _model: &str, body: &[u8]) -> Result<Probe, ModelError> {
        Ok(metadata::of_model(&super::http::json(body)?))
    }

    fn stop_words(&self) -> &'static [&'static str] {
        &["completed", "incomplete", "failed", "cancelled"]
    }

    fn optional(&self) -> &'static [Optional] {
        OPTIONAL
    }

    fn strip_reasoning(&self, body: &mut Value) -> bool {
        let Some(input) = body.get_mut("input").and_then(Value::as_array_mut) else { return false };
        let count = input.len();
        input.retain(|item| text(item, "type") != "reasoning");
        input.len() < count
    }
}

fn body(settings: &Remote, request: ModelRequest<'_>, asks_encrypted: bool) -> Value {
    let mut input = Vec::new();
    // Results of custom (free-text) tool calls have their own item type.
    let mut custom = BTreeSet::new();
    for turn in request.history {
        match turn {
            Turn::User(text) | Turn::Steering(text) => {
                input.push(json!({"role": "user", "content": text}))
            }
            Turn::Assistant(turn) => assistant(settings, turn, &mut input, &mut custom),
            Turn::ToolResults(results) => input.extend(results.iter().map(|result| {
                let kind = if custom.contains(&result.call_id) {
                    "custom_tool_call_output"
                } else {
                    "function_call_output"
                };
                let text = content(settings, result);
                let shown = images(settings, result)
                    .iter()
                    .map(|image| json!({"type": "input_image", "image_url": data_url(image)}));
                let output: Value = if images(settings, result).is_empty() {
                    json!(text)
                } else {
                    std::iter::once(json!({"type": "input_text", "text": text}))
                        .chain(shown)
                        .collect()
                };
                json!({"type": kind, "call_id": wire_id(&result.call_id, ID), "output": output})
            })),
        }
    }
    let mut body = Map::new();
    body.insert("model".to_owned(), settings.model.clone().into());
    body.insert("instructions".to_owned(), request.system.into());
    body.insert("input".to_owned(), input.into());
    if !request.tools.is_empty() {
        let tools: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| json!({"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": false}))
            .collect();
        body.insert("tools".to_owned(), tools.into());
        body.insert("parallel_tool_calls".to_owned(), request.parallel_calls.into());
    }
    // Store nothing at the provider: encrypted reasoning comes back to us and is sent with the next
    // request.
    body.insert("store".to_owned(), false.into());
    if asks_encrypted {
        body.insert("include".to_owned(), json!(["reasoning.encrypted_content"]));
    }
    let mut reasoning = Map::new();
    if let Some(effort) = settings.sent_effort() {
        reasoning.insert("effort".to_owned(), effort.as_str().into());
    }
    if settings.reasons() == Some(true) && settings.traits.summary_on_request == Some(true) {
        reasoning.insert("summary".to_owned(), "auto".into());
    }
    if !reasoning.is_empty() {
        body.insert("reasoning".to_owned(), reasoning.into());
    }
    if let Some(form) = native_schema(settings, &request) {
        let format = json!({"type": "json_schema", "name": SCHEMA_NAME, "schema": form.schema, "strict": form.is_strict});
        body.insert("text".to_owned(), json!({"format": format}));
    }
    if let Some(most) = output_limit(settings, &request) {
        body.insert("max_output_tokens".to_owned(), most.into());
    }
    if let Some(temperature) = settings.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    if settings.stream {
        body.insert("stream".to_owned(), true.into());
    }
    Value::Object(body)
}

fn assistant(
    settings: &Remote,
    turn: &AssistantTurn,
    input: &mut Vec<Value>,
    custom: &mut BTreeSet<CallId>,
) {
    let mut calls = turn.tool_calls.iter();
    let function_call = |call: &crate::domain::ToolCall| {
        let arguments = Value::Object(arguments(call)).to_string();
        json!({"type": "function_call", "call_id": wire_id(&call.call_id, ID), "name": wire_name(&call.name), "arguments": arguments})
    };
    match kept(turn, NAME, settings) {
        Some(data) => {
            let items = list(data, "items");
            // The API rejects a reasoning item that no other item follows.
            let leads_on = |item: &Value| {
                matches!(text(item, "type"), "function_call" | "custom_tool_call" | "message")
            };
            let last = items.iter().rposition(leads_on).unwrap_or(0);
            for (at, item) in items.iter().enumerate() {
                match text(item, "type") {
                    "function_call" => input.extend(calls.next().map(function_call)),
                    "custom_tool_call" => {
                        if let Some(call) = calls.next() {
                            custom.insert(call.call_id.clone());
                            input.push(json!({"type": "custom_tool_call", "call_id": wire_id(&call.call_id, ID), "name": wire_name(&call.name), "input": text(item, "input")}));
                        }
                    }
                    // Without encrypted content the provider would look the item up in its storage,
                    // where nothing is kept.
                    "reasoning"
                        if at < last
                            && item.get("encrypted_content").is_some_and(Value::is_string) =>
                    {
                        let mut reasoning = json!({"type": "reasoning", "summary": list(item, "summary"), "encrypted_content": item["encrypted_content"]});
                        if let Some(id) = item.get("id") {
                            set(&mut reasoning, "id", id.clone());
                        }
                        input.push(reasoning);
                    }
                    "message" => input.push(item.clone()),
                    _ => {}
                }
            }
        }
        None if turn.text.is_empty() => {}
        None => input.push(json!({"role": "assistant", "content": turn.text})),
    }
    input.extend(calls.map(function_call));
}

/// The answer received so far.
#[derive(Debug, Default)]
struct Answer {
    id: Option<String>,
    /// Items by output index: first as announced, then as completed.
    items: BTreeMap<u64, Item>,
    status: Option<String>,
    incomplete: Option<String>,
    usage: Option<Usage>,
    cache_writes: CacheWrites,
}

#[derive(Debug, Default)]
struct Item {
    value: Value,
    /// Argument deltas since the item was announced.
    added: String,
    /// Text deltas; some servers never send the complete text.
    text: String,
    is_done: bool,
}

/// Fast path for the most frequent events: borrows instead of building a [`Value`].
#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(default)]
    output_index: u64,
    #[serde(borrow)]
    delta: Cow<'a, str>,
}

impl Answer {
    fn take_event(&mut self, event: &Value, new: &mut String) -> Result<(), ModelError> {
        let kind = text(event, "type");
        let index = number(event, "/output_index");
        match kind {
            "response.output_text.delta" => {
                self.add_text(index, text(event, "delta"), new);
                check_calls(self.items.len())?;
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.items.entry(index).or_default().added.push_str(text(event, "delta"));
                check_calls(self.items.len())?;
            }
            "response.output_item.added" | "response.output_item.done" => {
                let item = self.items.entry(index).or_default();
                item.value = event.get("item").cloned().unwrap_or_default();
                item.is_done = kind.ends_with("done");
                check_calls(self.items.len())?;
            }
            "response.created" | "response.in_progress" | "response.queued" => {
                self.take_head(event.get("response").unwrap_or(&Value::Null));
            }
            "response.completed"
            | "response.done"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => {
                let response = event.get("response").unwrap_or(&Value::Null);
                self.take_response(response)?;
                // If the response still claims to be in progress, trust the name of the event.
                self.status = self
                    .status
                    .take()
                    .filter(|status| !matches!(status.as_str(), "queued" | "in_progress"));
                let status = kind.trim_start_matches("response.").replace("done", "completed");
                self.status.get_or_insert(status);
            }
            "error" => return Err(failure::of_body(None, event, "")),
            _ if failure::has_error(event) => return Err(failure::of_body(None, event, "")),
            _ => {}
        }
        Ok(())
    }

    fn add_text(&mut self, index: u64, piece: &str, new: &mut String) {
        self.items.entry(index).or_default().text.push_str(piece);
        new.push_str(piece);
    }

    fn take_head(&mut self, response: &Value) {
        self.id = Some(text(response, "id").to_owned())
            .filter(|id| !id.is_empty())
            .or_else(|| self.id.take());
    }

    fn take_response(&mut self, response: &Value) -> Result<(), ModelError> {
        if failure::has_error(response) {
            return Err(failure::of_body(None, response, ""));
        }
        self.take_head(response);
        let output = list(response, "output");
        check_calls(output.len())?;
        let done = self.items.values().filter(|item| item.is_done).count();
        if !output.is_empty() && done != output.len() {
            // The final response repeats all items. If we do not have as many finished items, use
            // its items: some servers omit the indexes or announce only some items.
            let whole =
                |item: &Value| Item { value: item.clone(), is_done: true, ..Item::default() };
            self.items = (0..).zip(output.iter().map(whole)).collect();
        }
        self.status = Some(text(response, "status").to_owned()).filter(|status| !status.is_empty());
        self.incomplete = response
            .pointer("/incomplete_details/reason")
            .and_then(Value::as_str)
            .map(str::to_owned);
        if let Some(usage) = response.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(Usage {
                input_tokens: number(usage, "/input_tokens"),
                output_tokens: number(usage, "/output_tokens"),
                cached_input_tokens: number(usage, "/input_tokens_details/cached_tokens"),
                reasoning_tokens: number(usage, "/output_tokens_details/reasoning_tokens"),
            });
            let written = number(usage, "/input_tokens_details/cache_write_tokens");
            self.cache_writes = CacheWrites { all: written, long: 0 };
        }
        Ok(())
    }
}

impl Item {
    /// Returns the item as a call; `None` if it is not one.
    fn call(&self) -> Option<RequestedCall> {
        let is_cut = !self.is_done || text(&self.value, "status") == "incomplete";
        // If the item was cut, keep the partial arguments for the transcript, but make them
        // invalid, so that they cannot be executed.
        let sent = |field: &str| match text(&self.value, field) {
            "" if is_cut => self.added.clone(),
            sent => sent.to_owned(),
        };
        let arguments = match text(&self.value, "type") {
            "function_call" => sent("arguments"),
            "custom_tool_call" if is_cut => sent("input"),
            "custom_tool_call" => json!({"input": sent("input")}).to_string(),
            _ => return None,
        };
        let arguments = match arguments {
            whole if !is_cut => whole,
            cut if parse_arguments(&cut).is_err() => cut,
            cut if cut.trim().is_empty() => "{".to_owned(),
            cut => {
                let mut cut = cut.trim_end().to_owned();
                cut.pop();
                cut
            }
        };
        let id = ["call_id", "id"].map(|field| text(&self.value, field));
        Some(RequestedCall {
            id: id.into_iter().find(|id| !id.is_empty()).map(str::to_owned),
            name: text(&self.value, "name").to_owned(),
            arguments,
        })
    }
}

impl Reader for Answer {
    fn take(&mut self, data: &str, text: &mut String) -> Result<(), ModelError> {
        if data.trim() == "[DONE]" {
            return Ok(());
        }
        if let Ok(event) = serde_json::from_str::<Delta<'_>>(data) {
            match event.kind {
                "response.output_text.delta" => {
                    self.add_text(event.output_index, &event.delta, text);
                    return check_calls(self.items.len());
                }
                "response.function_call_arguments.delta" => {
                    let item = self.items.entry(event.output_index).or_default();
                    item.added.push_str(&event.delta);
                    return check_calls(self.items.len());
                }
                _ => {}
            }
        }
        self.take_event(&parse(data)?, text)
    }

    fn take_whole(&mut self, body: Value) -> Result<(), ModelError> {
        let has_output = body.get("output").is_some_and(Value::is_array);
        if !has_output && !failure::has_error(&body) {
            return Err(match body.get("message").or_else(|| body.get("detail")) {
                Some(_) => failure::of_body(None, &body, ""),
                None => malformed("the response has no `output` list"),
            });
        }
        self.take_response(&body)?;
        self.status.get_or_insert_with(|| "completed".to_owned());
        Ok(())
    }

    fn size(&self) -> usize {
        let of_item = |item: &Item| json::memory(&item.value) + item.added.len() + item.text.len();
        self.items.values().map(of_item).sum()
    }

    fn progress(&self) -> Progress {
        if self.status.is_some() { Progress::Done } else { Progress::Open }
    }

    fn finish(self: Box<Self>) -> Result<ModelReply, ModelError> {
        let (mut answer, mut refusal, mut reasoning) =
            (String::new(), String::new(), String::new());
        let (mut calls, mut items) = (Vec::new(), Vec::new());
        // Commentary beside calls announces them; alone, it is not an answer.
        let has_calls = self.items.values().any(|item| item.call().is_some());
        for item in self.items.into_values() {
            calls.extend(item.call());
            if text(&item.value, "phase") == "commentary" && !has_calls {
                items.push(item.value);
                continue;
            }
            let before = answer.len();
            for part in list(&item.value, "content") {
                match text(part, "type") {
                    "output_text" => answer.push_str(text(part, "text")),
                    "refusal" => refusal.push_str(text(part, "refusal")),
                    "reasoning_text" => reasoning.push_str(text(part, "text")),
                    _ => {}
                }
            }
            if answer.len() == before {
                answer.push_str(&item.text);
            }
            for part in list(&item.value, "summary") {
                if !reasoning.is_empty() {
                    reasoning.push_str("\n\n");
                }
                reasoning.push_str(text(part, "text"));
            }
            // Leave out calls without a name here too: when we send items and calls back, we match
            // them by position.
            let is_call = matches!(text(&item.value, "type"), "function_call" | "custom_tool_call");
            if !is_call || is_named(text(&item.value, "name")) {
                items.push(item.value);
            }
        }
        let is_invalid = drop_nameless(&mut calls);
        let finish_reason = match (self.status.as_deref(), self.incomplete.as_deref()) {
            (_, Some("content_filter")) => FinishReason::ContentFilter,
            // Do not run calls that accompany a refusal.
            (Some("completed" | "incomplete"), _) if !refusal.is_empty() => FinishReason::Refusal,
            (Some("incomplete"), _) => FinishReason::Length,
            (Some("completed"), _) if is_invalid => FinishReason::InvalidToolCall,
            (Some("completed"), _) if !calls.is_empty() => FinishReason::ToolCalls,
            (Some("completed"), _) => FinishReason::Stop,
            (status, _) => {
                let status = status.unwrap_or("missing");
                let message = format!("the answer is incomplete: status {status}");
                // While the provider is still generating, do not retry: we would pay twice.
                let class = match status {
                    "queued" | "in_progress" => ErrorClass::BadRequest,
                    _ => ErrorClass::Server,
                };
                return Err(ModelError::new(class, message));
            }
        };
        let is_plain = items.iter().all(|item| match text(item, "type") {
            "function_call" => true,
            "message" => item.get("phase").is_none_or(Value::is_null),
            _ => false,
        });
        Ok(ModelReply {
            text: answer,
            explanation: Some(refusal).filter(|text| !text.is_empty()),
            reasoning: Some(reasoning).filter(|text| !text.is_empty()),
            calls,
            finish_reason,
            stop_reason: self.status,
            usage: self.usage,
            cache_writes: self.cache_writes,
            response_id: self.id,
            provider_data: (!is_plain).then(|| json!({"items": items})),
        })
    }
}
