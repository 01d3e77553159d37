//! Ollama's native chat API.
//!
//! *Source*: Ollama's API document (read 2026-11-22) and recordings under
//! `tests/fixtures/providers/ollama-chat`.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::remove_fields;
use super::failure;
use super::format::{
    Format, Framing, MetadataRequest, Outgoing, Probe, Progress, Reader, arguments, check_calls,
    content, drop_nameless, images, kept, list, malformed, native_schema, number, output_limit,
    parse, push_user, set, text, wire_id, wire_name,
};
use super::metadata;
use super::refusal::Optional;
use super::think::{INLINE, Written, inline_text};
use crate::agent::{ErrorClass, ModelError, ModelReply, ModelRequest, RequestedCall};
use crate::catalogue::{CacheWrites, Effort};
use crate::config::Remote;
use crate::domain::{AssistantTurn, FinishReason, Turn, Usage};

const NAME: &str = "ollama";

pub(super) struct Ollama;

const OPTIONAL: &[Optional] = &[
    Optional::at("temperature", "/options/temperature", &["temperature"]),
    Optional::at("reasoning_effort", "/think", &["think", "thinking"]),
    Optional::schema(&["/format"], &["invalid format", "schema in format"]),
    Optional::history("reasoning_history", &["thinking"]),
];

impl Format for Ollama {
    fn name(&self) -> &'static str {
        NAME
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing {
        Outgoing { path: settings.format.endpoint().to_owned(), body: body(settings, request) }
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Answer::default())
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn metadata_request(&self, model: &str) -> MetadataRequest {
        let body = Some(json!({"model": model}));
        MetadataRequest { path: "/api/show".to_owned(), body }
    }

    fn read_metadata(&self, _model: &str, body: &[u8]) -> Result<Probe, ModelError> {
        Ok(metadata::of_ollama(&super::http::json(body)?))
    }

    fn stop_words(&self) -> &'static [&'static str] {
        &["stop", "length", "load", "unload"]
    }

    fn optional(&self) -> &'static [Optional] {
        OPTIONAL
    }

    fn strip_reasoning(&self, body: &mut Value) -> bool {
        remove_fields(body, "messages", &["thinking"])
    }
}

fn body(settings: &Remote, request: ModelRequest<'_>) -> Value {
    let mut messages = vec![json!({"role": "system", "content": request.system})];
    for turn in request.history {
        match turn {
            Turn::User(text) | Turn::Steering(text) => {
                push_user(&mut messages, text);
            }
            Turn::Assistant(turn) => messages.push(assistant(settings, turn)),
            Turn::ToolResults(results) => messages.extend(results.iter().map(|result| {
                let mut message = json!({"role": "tool", "tool_name": wire_name(&result.name), "tool_call_id": wire_id(&result.call_id, 64), "content": content(settings, result)});
                let shown: Vec<&str> =
                    images(settings, result).iter().map(|image| &*image.base64).collect();
                if !shown.is_empty() {
                    set(&mut message, "images", shown);
                }
                message
            })),
        }
    }
    // By default, the server keeps a few thousand tokens and silently drops the rest of the prompt.
    let mut options = Map::from_iter([("num_ctx".to_owned(), settings.context_window().into())]);
    if let Some(most) = output_limit(settings, &request) {
        options.insert("num_predict".to_owned(), most.into());
    }
    if let Some(temperature) = settings.temperature {
        options.insert("temperature".to_owned(), temperature.into());
    }
    let mut body = json!({"model": settings.model, "messages": messages, "stream": settings.stream, "options": options});
    if !request.tools.is_empty() {
        set(&mut body, "tools", request
            .tools
            .iter()
            .map(|tool| json!({"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}))
            .collect::<Value>());
    }
    if let Some(form) = native_schema(settings, &request) {
        set(&mut body, "format", form.schema.clone());
    }
    if let Some(effort) = settings.sent_effort() {
        // For a model without levels, thinking is on or off.
        let has_levels = settings.traits.ollama_levels == Some(true);
        let think = if has_levels && effort != Effort::None {
            Value::from(effort.as_str())
        } else {
            (effort != Effort::None).into()
        };
        set(&mut body, "think", think);
    }
    body
}

fn assistant(settings: &Remote, turn: &AssistantTurn) -> Value {
    let inline = inline_text(turn, kept(turn, NAME, settings));
    let is_inline = inline.is_some();
    let content = inline.unwrap_or_else(|| turn.text.clone());
    let mut message = json!({"role": "assistant", "content": content});
    if let Some(reasoning) = turn.reasoning.as_ref().filter(|_| !is_inline) {
        set(&mut message, "thinking", reasoning.clone());
    }
    if !turn.tool_calls.is_empty() {
        set(&mut message, "tool_calls", turn
            .tool_calls
            .iter()
            .map(|call| json!({"id": wire_id(&call.call_id, 64), "function": {"name": wire_name(&call.name), "arguments": arguments(call)}}))
            .collect::<Value>());
    }
    message
}

/// The answer received so far.
#[derive(Debug, Default)]
struct Answer {
    written: Written,
    reasoning: String,
    calls: Vec<RequestedCall>,
    has_message: bool,
    done: bool,
    done_reason: Option<String>,
    usage: Option<Usage>,
}

/// Fast path for the most frequent line: borrows instead of building a [`Value`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delta<'a> {
    #[serde(rename = "model")]
    _model: &'a str,
    #[serde(rename = "created_at")]
    _created_at: &'a str,
    #[serde(borrow)]
    message: DeltaMessage<'a>,
    done: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaMessage<'a> {
    #[serde(rename = "role")]
    _role: &'a str,
    #[serde(borrow)]
    content: std::borrow::Cow<'a, str>,
}

impl Answer {
    fn take_line(&mut self, line: &Value, new: &mut String) -> Result<(), ModelError> {
        if failure::has_error(line) {
            return Err(failure::of_body(None, line, ""));
        }
        if let Some(message) = line.get("message").filter(|message| message.is_object()) {
            self.has_message = true;
            self.written.push(text(message, "content"), new);
            self.reasoning.push_str(text(message, "thinking"));
            for call in list(message, "tool_calls") {
                let function = call.get("function").unwrap_or(call);
                let id = [text(call, "id"), text(function, "id")];
                self.calls.push(RequestedCall {
                    id: id.into_iter().find(|id| !id.is_empty()).map(str::to_owned),
                    name: text(function, "name").to_owned(),
                    arguments: match function.get("arguments") {
                        None | Some(Value::Null) => "{}".to_owned(),
                        Some(Value::String(text)) => text.clone(),
                        Some(arguments) => arguments.to_string(),
                    },
                });
                check_calls(self.calls.len())?;
            }
        }
        if line.get("done").and_then(Value::as_bool) == Some(true) {
            self.done = true;
            self.done_reason =
                Some(text(line, "done_reason").to_owned()).filter(|reason| !reason.is_empty());
            if line.get("eval_count").or_else(|| line.get("prompt_eval_count")).is_some() {
                self.usage = Some(Usage {
                    input_tokens: number(line, "/prompt_eval_count"),
                    output_tokens: number(line, "/eval_count"),
                    ..Usage::default()
                });
            }
        }
        Ok(())
    }
}

impl Reader for Answer {
    fn take(&mut self, data: &str, text: &mut String) -> Result<(), ModelError> {
        if let Ok(line) = serde_json::from_str::<Delta<'_>>(data)
            && !line.done
        {
            self.has_message = true;
            self.written.push(&line.message.content, text);
            return Ok(());
        }
        self.take_line(&parse(data)?, text)
    }

    fn take_whole(&mut self, body: Value) -> Result<(), ModelError> {
        self.take_line(&body, &mut String::new())
    }

    fn size(&self) -> usize {
        let of_call = |call: &RequestedCall| {
            call.id.as_ref().map_or(0, String::len) + call.name.len() + call.arguments.len()
        };
        let calls = self.calls.iter().map(of_call);
        self.written.size() + self.reasoning.len() + calls.sum::<usize>()
    }

    fn progress(&self) -> Progress {
        if self.done { Progress::Done } else { Progress::Open }
    }

    fn finish(mut self: Box<Self>) -> Result<ModelReply, ModelError> {
        if !self.has_message {
            return Err(malformed("the response contains no message"));
        }
        if self.calls.is_empty() {
            self.written.end();
        }
        let is_invalid = drop_nameless(&mut self.calls);
        let inline = self.written.raw().filter(|_| self.reasoning.is_empty()).map(str::to_owned);
        self.reasoning.push_str(self.written.reasoning().unwrap_or_default());
        let finish_reason = match self.done_reason.as_deref() {
            Some("length") => FinishReason::Length,
            Some("load" | "unload") => {
                let message = "the server only loaded or unloaded the model";
                return Err(ModelError::new(ErrorClass::Server, message));
            }
            _ if is_invalid => FinishReason::InvalidToolCall,
            _ if !self.calls.is_empty() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        Ok(ModelReply {
            text: self.written.into_text(),
            explanation: None,
            reasoning: Some(self.reasoning).filter(|text| !text.is_empty()),
            calls: self.calls,
            finish_reason,
            stop_reason: self.done_reason,
            usage: self.usage,
            cache_writes: CacheWrites::default(),
            response_id: None,
            provider_data: inline.map(|raw| json!({INLINE: raw})),
        })
    }
}
