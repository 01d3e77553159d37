//! Builds a request: the history becomes messages made of content blocks.

use serde_json::{Map, Value, json};

use super::super::format::{
    arguments, content, images, kept, list, native_schema, output_limit, set, text, wire_id,
    wire_name,
};
use super::NAME;
use crate::agent::ModelRequest;
use crate::catalogue::{Effort, ReasoningForm};
use crate::config::{Remote, WireFormat};
use crate::domain::{AssistantTurn, ToolCall, ToolResult, Turn};

/// Maximum length of a call id.
const ID: usize = 64;

/// The smallest thinking budget that the API accepts, in tokens.
const LEAST_BUDGET: u32 = 1024;

pub(super) fn body(settings: &Remote, request: ModelRequest<'_>) -> Value {
    let mut messages = Messages::default();
    for turn in request.history {
        match turn {
            Turn::User(text) | Turn::Steering(text) => {
                messages.push("user", vec![json!({"type": "text", "text": text})])
            }
            Turn::Assistant(turn) => messages.push("assistant", assistant(settings, turn)),
            Turn::ToolResults(results) => messages
                .push("user", results.iter().map(|result| tool_result(settings, result)).collect()),
        }
    }
    messages.end_with_user();
    messages.mark_for_cache();
    let mut body = Map::new();
    body.insert("model".to_owned(), settings.model.clone().into());
    // The API requires a limit.
    let most = output_limit(settings, &request).unwrap_or_else(|| settings.default_output_tokens());
    let (thinking, effort) = reasoning(settings, request.history, most);
    if let Some(thinking) = thinking {
        body.insert("thinking".to_owned(), thinking);
    }
    let mut output = Map::new();
    if let Some(effort) = effort {
        output.insert("effort".to_owned(), effort.as_str().into());
    }
    if let Some(form) = native_schema(settings, &request) {
        output.insert("format".to_owned(), json!({"type": "json_schema", "schema": form.schema}));
    }
    if !output.is_empty() {
        body.insert("output_config".to_owned(), output.into());
    }
    body.insert("max_tokens".to_owned(), most.into());
    body.insert("system".to_owned(), system(request).into());
    body.insert("messages".to_owned(), messages.0.into());
    if !request.tools.is_empty() {
        let tools: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters}))
            .collect();
        body.insert("tools".to_owned(), tools.into());
        if !request.parallel_calls {
            body.insert(
                "tool_choice".to_owned(),
                json!({"type": "auto", "disable_parallel_tool_use": true}),
            );
        }
    }
    if let Some(temperature) = settings.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    if settings.stream {
        body.insert("stream".to_owned(), true.into());
    }
    Value::Object(body)
}

/// Tells whether the calls since the last user message can be sent back with the thinking that led
/// to them; they cannot if another model made them. If they cannot, the request leaves thinking
/// off, because the model would not continue it.
fn thoughts_are_there(settings: &Remote, history: &[Turn]) -> bool {
    let said = |turn: &Turn| matches!(turn, Turn::User(_) | Turn::Steering(_));
    let since = history.iter().rposition(said).map_or(0, |at| at + 1);
    // Thinking precedes only the first of these calls, so only the first turn matters.
    let first = history.iter().skip(since).find_map(|turn| match turn {
        Turn::Assistant(turn) => Some(turn),
        _ => None,
    });
    first.is_none_or(|turn| turn.tool_calls.is_empty() || kept(turn, NAME, settings).is_some())
}

/// Returns the fields `thinking` and `effort` of a request with at most `most` output tokens.
fn reasoning(settings: &Remote, history: &[Turn], most: u32) -> (Option<Value>, Option<Effort>) {
    let traits = &settings.traits;
    let is_budget = traits.reasoning == Some(ReasoningForm::Budget);
    let mut adaptive = json!({"type": "adaptive"});
    if traits.summary_on_request == Some(true) {
        set(&mut adaptive, "display", "summarized");
    }
    match settings.sent_effort() {
        Some(Effort::None) if traits.reasons_by_default == Some(true) => {
            (Some(json!({"type": "disabled"})), None)
        }
        Some(Effort::None) => (None, None),
        Some(effort) if is_budget => {
            let budget = match effort {
                Effort::None | Effort::Minimal | Effort::Low => 2_048,
                Effort::Medium => 8_192,
                Effort::High | Effort::Xhigh | Effort::Max => 24_576,
            };
            // Thinking counts as output, and an answer must have room beside it.
            let budget = budget.min(most / 4 * 3);
            let fits = budget >= LEAST_BUDGET && thoughts_are_there(settings, history);
            (fits.then(|| json!({"type": "enabled", "budget_tokens": budget})), None)
        }
        Some(effort) => (Some(adaptive), Some(effort)),
        // The model reasons anyway, but shows it only on request.
        None if traits.reasons_by_default == Some(true) && adaptive.get("display").is_some() => {
            (Some(adaptive), None)
        }
        None => (None, None),
    }
}

/// Returns the system prompt in two parts, each marked for the cache. All runs of the job share the
/// first part; only the requests of this run share the second.
fn system(request: ModelRequest<'_>) -> Vec<Value> {
    let (stable, rest) =
        request.system.split_at_checked(request.stable).unwrap_or((request.system, ""));
    [stable, rest]
        .into_iter()
        .filter(|part| !part.trim().is_empty())
        .map(|part| json!({"type": "text", "text": part, "cache_control": {"type": "ephemeral"}}))
        .collect()
}

/// Messages with alternating roles: tool results and the text that follows them form one user
/// message.
#[derive(Default)]
struct Messages(Vec<Value>);

impl Messages {
    fn push(&mut self, role: &str, blocks: Vec<Value>) {
        if blocks.is_empty() {
            // The provider rejects a message without content.
            return;
        }
        if role == "assistant" {
            // The model had paused. This request repeats the one that let it continue.
            self.end_with_user();
        }
        if let Some(last) = self.0.last_mut()
            && last["role"] == role
            && let Some(content) = last["content"].as_array_mut()
        {
            content.extend(blocks);
            return;
        }
        self.0.push(json!({"role": role, "content": blocks}));
    }

    /// Ends with a user message: newer models reject a request that ends with their own turn.
    fn end_with_user(&mut self) {
        if self.0.last().is_some_and(|last| last["role"] == "assistant") {
            self.push("user", vec![json!({"type": "text", "text": "Continue."})]);
        }
    }

    /// Marks the end of the history for the cache, so that the next request of the run reads the
    /// whole history from the cache.
    fn mark_for_cache(&mut self) {
        let last = self.0.last_mut().filter(|message| message["role"] == "user");
        let block = last.and_then(|message| message["content"].as_array_mut()?.last_mut());
        if let Some(block) = block.and_then(Value::as_object_mut) {
            block.insert("cache_control".to_owned(), json!({"type": "ephemeral"}));
        }
    }
}

fn tool_result(settings: &Remote, result: &ToolResult) -> Value {
    let text = content(settings, result);
    // The API accepts only text in a result that is an error.
    let images = if result.is_error { &[] } else { images(settings, result) };
    let shown = images.iter().map(|image| {
        json!({"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": &*image.base64}})
    });
    let content = if images.is_empty() {
        json!(text)
    } else {
        std::iter::once(json!({"type": "text", "text": text})).chain(shown).collect()
    };
    let mut block = json!({"type": "tool_result", "tool_use_id": wire_id(&result.call_id, ID), "content": content});
    if result.is_error {
        set(&mut block, "is_error", true);
    }
    block
}

fn assistant(settings: &Remote, turn: &AssistantTurn) -> Vec<Value> {
    let mut calls = turn.tool_calls.iter();
    let mut blocks = Vec::new();
    // A newer model checks that its turn comes back as it was. The API takes a blank text only beside
    // a call or another text, and never an empty one.
    let keeps_blank = settings.traits.bound_history == Some(true)
        && (!turn.tool_calls.is_empty() || !turn.text.trim().is_empty());
    match kept(turn, NAME, settings) {
        // Keep the blocks and their order. The calls get the ids that their results use.
        Some(data) => blocks.extend(list(data, "content").iter().filter_map(|block| {
            match text(block, "type") {
                "tool_use" => calls.next().map(|call| as_it_came(block, call)),
                "text" => {
                    let text = text(block, "text");
                    let is_sent = !text.trim().is_empty() || (keeps_blank && !text.is_empty());
                    is_sent.then(|| block.clone())
                }
                // Anthropic rejects thinking that was cut before its signature. Compatible servers
                // do not sign thinking.
                "thinking" if settings.base_url == WireFormat::Anthropic.base_url() => {
                    (!text(block, "signature").is_empty()).then(|| block.clone())
                }
                _ => Some(block.clone()),
            }
        })),
        None if turn.text.trim().is_empty() => {}
        None => blocks.push(json!({"type": "text", "text": turn.text})),
    }
    blocks.extend(calls.map(tool_use));
    blocks
}

fn tool_use(call: &ToolCall) -> Value {
    json!({"type": "tool_use", "id": wire_id(&call.call_id, ID), "name": wire_name(&call.name), "input": arguments(call)})
}

/// Returns the block of a call with all fields that it came with. The id, the name and the input are
/// those of the history.
fn as_it_came(block: &Value, call: &ToolCall) -> Value {
    let mut block = block.clone();
    let Value::Object(fields) = tool_use(call) else { return block };
    for (field, value) in fields {
        if block.get(&field) != Some(&value) {
            set(&mut block, &field, value);
        }
    }
    block
}
