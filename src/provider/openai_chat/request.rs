//! The request: history as messages, tools as functions.

use serde_json::{Map, Value, json};

use super::super::format::{
    arguments, content, data_url, images, kept, output_limit, set, text as text_of, wire_name,
};
use super::super::think::{INLINE, with_reasoning};
use super::dialect::Dialect;
use crate::agent::ModelRequest;
use crate::config::Remote;
use crate::domain::{AssistantTurn, Turn};

/// Returns the body of a request. With `ask_usage`, asks a streaming server to report usage at the
/// end.
pub(super) fn body(
    settings: &Remote,
    dialect: &Dialect,
    request: ModelRequest<'_>,
    ask_usage: bool,
) -> Value {
    let mut messages = vec![json!({"role": "system", "content": request.system})];
    for turn in request.history {
        match turn {
            Turn::User(text) | Turn::Steering(text) => {
                let after_tool =
                    messages.last().is_some_and(|last| text_of(last, "role") == "tool");
                if dialect.is_mistral && after_tool {
                    messages.push(json!({"role": "assistant", "content": "Noted."}));
                }
                messages.push(json!({"role": "user", "content": text}))
            }
            // Some servers reject an empty message.
            Turn::Assistant(turn) if turn.text.is_empty() && turn.tool_calls.is_empty() => {}
            Turn::Assistant(turn) => messages.push(assistant(settings, dialect, turn)),
            Turn::ToolResults(results) => {
                messages.extend(results.iter().map(|result| {
                    json!({"role": "tool", "tool_call_id": dialect.id(&result.call_id), "content": content(settings, result)})
                }));
                // A tool message can contain only text, so the images follow in a user message.
                let shown = results.iter().flat_map(|result| images(settings, result));
                let shown: Vec<Value> = shown
                    .map(
                        |image| json!({"type": "image_url", "image_url": {"url": data_url(image)}}),
                    )
                    .collect();
                if !shown.is_empty() {
                    if dialect.is_mistral {
                        messages.push(json!({"role": "assistant", "content": "Noted."}));
                    }
                    let said = json!({"type": "text", "text": "Images of the tool results above, in order:"});
                    let parts: Value = std::iter::once(said).chain(shown).collect();
                    messages.push(json!({"role": "user", "content": parts}));
                }
            }
        }
    }
    let mut body = Map::new();
    body.insert("model".to_owned(), settings.model.clone().into());
    body.insert("messages".to_owned(), messages.into());
    if !request.tools.is_empty() {
        let tools: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| json!({"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}))
            .collect();
        body.insert("tools".to_owned(), tools.into());
        if dialect.parallel_key {
            body.insert("parallel_tool_calls".to_owned(), request.parallel_calls.into());
        }
    }
    if settings.stream {
        body.insert("stream".to_owned(), true.into());
        if ask_usage {
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
    }
    if let Some(most) = output_limit(settings, &request) {
        body.insert(dialect.most_tokens.to_owned(), most.into());
    }
    if let Some(temperature) = settings.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    if let Some(effort) = settings.reasoning_effort {
        body.insert("reasoning_effort".to_owned(), effort.as_str().into());
    }
    Value::Object(body)
}

fn assistant(settings: &Remote, dialect: &Dialect, turn: &AssistantTurn) -> Value {
    let kept = kept(turn, super::NAME, settings);
    let is_inline = kept.is_some_and(|data| data.get(INLINE).is_some());
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    let content = if is_inline { with_reasoning(turn) } else { turn.text.clone() };
    message.insert("content".to_owned(), content.into());
    if !turn.tool_calls.is_empty() {
        let calls: Vec<Value> = turn
            .tool_calls
            .iter()
            .enumerate()
            .map(|(at, call)| {
                let arguments = Value::Object(arguments(call)).to_string();
                let mut sent = json!({"id": dialect.id(&call.call_id), "type": "function", "function": {"name": wire_name(&call.name), "arguments": arguments}});
                let extra = kept.and_then(|data| data.get("extra_content")?.get(at));
                if let Some(extra) = extra.filter(|extra| extra.is_object()) {
                    set(&mut sent, "extra_content", extra.clone());
                }
                sent
            })
            .collect();
        message.insert("tool_calls".to_owned(), calls.into());
        if dialect.replays_reasoning && !is_inline {
            let reasoning = turn.reasoning.clone().unwrap_or_default();
            message.insert("reasoning_content".to_owned(), reasoning.into());
        }
    }
    for field in dialect.replayed {
        if let Some(value) = kept.and_then(|data| data.get(field)) {
            message.insert((*field).to_owned(), value.clone());
        }
    }
    Value::Object(message)
}
