//! The request: history as messages, tools as functions.

use serde_json::{Map, Value, json};

use super::super::format::{
    SCHEMA_NAME, arguments, content, data_url, images, kept, native_schema, output_limit,
    push_user, set, text as text_of, wire_name,
};
use super::super::think::inline_text;
use super::answer::REASONING_FIELD;
use super::wire_call_id;
use crate::agent::ModelRequest;
use crate::config::Remote;
use crate::domain::{AssistantTurn, Turn};

/// Returns the body of a request. Asks a streaming server to report usage at the end.
pub(super) fn body(settings: &Remote, request: ModelRequest<'_>) -> Value {
    let mut messages = vec![json!({"role": "system", "content": request.system})];
    for turn in request.history {
        match turn {
            Turn::User(text) | Turn::Steering(text) => {
                let after_tool =
                    messages.last().is_some_and(|last| text_of(last, "role") == "tool");
                if settings.chat.nine_character_ids && after_tool {
                    messages.push(json!({"role": "assistant", "content": "Noted."}));
                }
                push_user(&mut messages, text);
            }
            // Some servers reject an empty message.
            Turn::Assistant(turn) if turn.text.is_empty() && turn.tool_calls.is_empty() => {}
            Turn::Assistant(turn) => messages.push(assistant(settings, turn)),
            Turn::ToolResults(results) => {
                messages.extend(results.iter().map(|result| {
                    json!({"role": "tool", "tool_call_id": wire_call_id(settings, &result.call_id), "name": wire_name(&result.name), "content": content(settings, result)})
                }));
                // A tool message can contain only text, so the images follow in a user message.
                let shown = results.iter().flat_map(|result| images(settings, result));
                let shown: Vec<Value> = shown
                    .map(
                        |image| json!({"type": "image_url", "image_url": {"url": data_url(image)}}),
                    )
                    .collect();
                if !shown.is_empty() {
                    if settings.chat.nine_character_ids {
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
        if settings.chat.parallel_tool_calls {
            body.insert("parallel_tool_calls".to_owned(), request.parallel_calls.into());
        }
    }
    if settings.stream {
        body.insert("stream".to_owned(), true.into());
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    if let Some(most) = output_limit(settings, &request) {
        body.insert(settings.chat.output_limit_field.clone(), most.into());
    }
    if let Some(temperature) = settings.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    if let Some(effort) = settings.sent_effort() {
        body.insert("reasoning_effort".to_owned(), effort.as_str().into());
    }
    if let Some(form) = native_schema(settings, &request) {
        let schema = json!({"name": SCHEMA_NAME, "schema": form.schema, "strict": form.is_strict});
        body.insert(
            "response_format".to_owned(),
            json!({"type": "json_schema", "json_schema": schema}),
        );
    }
    Value::Object(body)
}

fn assistant(settings: &Remote, turn: &AssistantTurn) -> Value {
    let kept = kept(turn, super::NAME, settings);
    let inline = inline_text(turn, kept);
    let is_inline = inline.is_some();
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    let content = inline.unwrap_or_else(|| turn.text.clone());
    message.insert("content".to_owned(), content.into());
    if !turn.tool_calls.is_empty() {
        let calls: Vec<Value> = turn
            .tool_calls
            .iter()
            .enumerate()
            .map(|(at, call)| {
                let arguments = Value::Object(arguments(call)).to_string();
                let mut sent = json!({"id": wire_call_id(settings, &call.call_id), "type": "function", "function": {"name": wire_name(&call.name), "arguments": arguments}});
                let extra = kept.and_then(|data| data.get("extra_content")?.get(at));
                if let Some(extra) = extra.filter(|extra| extra.is_object()) {
                    set(&mut sent, "extra_content", extra.clone());
                }
                sent
            })
            .collect();
        message.insert("tool_calls".to_owned(), calls.into());
    }
    // Reasoning goes back in the field in which it came. Some models reject a history without it.
    let details = kept.and_then(|data| data.get("reasoning_details"));
    let field = kept.and_then(|data| data.get(REASONING_FIELD)?.as_str());
    match (details, field, &turn.reasoning) {
        (Some(details), ..) => {
            message.insert("reasoning_details".to_owned(), details.clone());
        }
        (None, Some(field), Some(reasoning)) if !is_inline => {
            message.insert(field.to_owned(), reasoning.clone().into());
        }
        _ => {}
    }
    Value::Object(message)
}
