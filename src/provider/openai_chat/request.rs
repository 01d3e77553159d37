//! The request: history and tools as messages and functions.

use serde_json::{Map, Value, json};

use crate::agent::ModelRequest;
use crate::config::ChatModel;
use crate::domain::{Arguments, AssistantTurn, Turn};

/// Fields of an assistant message that are given back as they came.
pub(super) const REPLAYED: &[&str] = &["reasoning_details"];

/// Returns the body of a request. With `ask_usage` a stream is asked to end with its usage.
pub(super) fn body(settings: &ChatModel, request: ModelRequest<'_>, ask_usage: bool) -> Value {
    let mut messages = vec![json!({"role": "system", "content": request.system})];
    for turn in request.history {
        match turn {
            Turn::User(text) | Turn::Steering(text) => messages.push(json!({"role": "user", "content": text})),
            Turn::Assistant(turn) => messages.push(assistant(turn)),
            Turn::ToolResults(results) => messages.extend(
                results.iter().map(|result| json!({"role": "tool", "tool_call_id": result.call_id, "content": result.content})),
            ),
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
    }
    if settings.stream {
        body.insert("stream".to_owned(), true.into());
        if ask_usage {
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
    }
    if let Some(most) = settings.max_output_tokens {
        // OpenAI's own models know only the newer name, most compatible servers only the older.
        let is_openai = settings.base_url.contains("api.openai.com");
        body.insert(
            if is_openai { "max_completion_tokens" } else { "max_tokens" }.to_owned(),
            most.into(),
        );
    }
    if let Some(temperature) = settings.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    if let Some(effort) = settings.reasoning_effort {
        body.insert("reasoning_effort".to_owned(), effort.into());
    }
    Value::Object(body)
}

fn assistant(turn: &AssistantTurn) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), turn.text.clone().into());
    if !turn.tool_calls.is_empty() {
        let calls: Vec<Value> = turn
            .tool_calls
            .iter()
            .map(|call| {
                // A server that parses its own history would refuse what does not parse.
                let arguments = match &call.arguments {
                    Arguments::Parsed(arguments) => Value::Object(arguments.clone()).to_string(),
                    Arguments::Invalid { .. } => "{}".to_owned(),
                };
                json!({"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
            })
            .collect();
        message.insert("tool_calls".to_owned(), calls.into());
    }
    for field in REPLAYED {
        if let Some(value) = turn.provider_data.as_ref().and_then(|data| data.get(field)) {
            message.insert((*field).to_owned(), value.clone());
        }
    }
    Value::Object(message)
}
