//! Builds a request: the history becomes contents made of parts.

use serde_json::{Map, Value, json};

use super::super::format::{
    arguments, content, images, kept, list, native_schema, output_limit, set, wire_name,
};
use super::NAME;
use crate::agent::ModelRequest;
use crate::catalogue::{Effort, ReasoningForm};
use crate::config::Remote;
use crate::domain::{AssistantTurn, Turn};

pub(super) fn body(settings: &Remote, request: ModelRequest<'_>) -> Value {
    let mut contents = Vec::new();
    // For each call of the last model turn: whether the provider gave it an id.
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
                let answers = results.iter().zip(with_ids).map(|(result, with_id)| {
                    let field = if result.is_error { "error" } else { "output" };
                    let mut response =
                        json!({"name": wire_name(&result.name), "response": {field: content(settings, result)}});
                    if with_id {
                        set(&mut response, "id", json!(result.call_id));
                    }
                    json!({"functionResponse": response})
                });
                // Images follow all results, so that the results stay together.
                let shown = results.iter().flat_map(|result| images(settings, result)).map(|image| {
                    json!({"inlineData": {"mimeType": image.media_type, "data": &*image.base64}})
                });
                push(&mut contents, "user", answers.chain(shown).collect());
            }
        }
    }
    end_with_user(&mut contents);
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
    if let Some(most) = output_limit(settings, &request) {
        generation.insert("maxOutputTokens".to_owned(), most.into());
    }
    if let Some(form) = native_schema(settings, &request) {
        generation.insert("responseMimeType".to_owned(), "application/json".into());
        generation.insert("responseJsonSchema".to_owned(), form.schema.clone());
    }
    if let Some(temperature) = settings.temperature {
        generation.insert("temperature".to_owned(), temperature.into());
    }
    if let Some(effort) = settings.sent_effort() {
        // Models up to 2.5 take a thinking budget in tokens, later ones a level.
        let thinking = match settings.traits.reasoning {
            Some(ReasoningForm::None) => None,
            Some(ReasoningForm::Budget) if effort == Effort::None => {
                Some(json!({"thinkingBudget": 0}))
            }
            Some(ReasoningForm::Budget) => {
                Some(json!({"includeThoughts": true, "thinkingBudget": match effort {
                    Effort::None | Effort::Minimal | Effort::Low => 1_024,
                    Effort::Medium => 8_192,
                    Effort::High | Effort::Xhigh | Effort::Max => 24_576,
                }}))
            }
            _ => Some(json!({"includeThoughts": true, "thinkingLevel": effort.as_str()})),
        };
        if let Some(thinking) = thinking {
            generation.insert("thinkingConfig".to_owned(), thinking);
        }
    } else if settings.reasons() == Some(true) && settings.traits.summary_on_request == Some(true) {
        generation.insert("thinkingConfig".to_owned(), json!({"includeThoughts": true}));
    }
    if !generation.is_empty() {
        set(&mut body, "generationConfig", generation);
    }
    body
}

/// Ends with a user content: newer models reject a request that ends with their own turn.
fn end_with_user(contents: &mut Vec<Value>) {
    if contents.last().is_some_and(|last| last["role"] == "model") {
        contents.push(json!({"role": "user", "parts": [{"text": "Continue."}]}));
    }
}

/// Appends parts; merges them into the last content if the role is the same.
fn push(contents: &mut Vec<Value>, role: &str, parts: Vec<Value>) {
    if parts.is_empty() {
        return;
    }
    if role == "model" {
        // The model had paused. This request repeats the one that let it continue.
        end_with_user(contents);
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
        // Replay the parts in their order, so that each signature stays with its part.
        Some(data) => parts.extend(list(data, "parts").iter().filter_map(|part| {
            let Some(function) = part.get("functionCall") else { return Some(part.clone()) };
            let call = calls.next()?;
            let (mut part, mut function) = (part.clone(), function.clone());
            if function.get("id").is_some() {
                set(&mut function, "id", json!(call.call_id));
            }
            set(&mut function, "args", arguments(call));
            set(&mut function, "name", wire_name(&call.name));
            set(&mut part, "functionCall", function);
            Some(part)
        })),
        None if turn.text.is_empty() => {}
        None => parts.push(json!({"text": turn.text})),
    }
    // A call of another model has no signature. Models from Gemini 3 on expect a placeholder on the
    // first such call of a turn.
    let is_old =
        matches!(settings.traits.reasoning, Some(ReasoningForm::None | ReasoningForm::Budget));
    for (at, call) in calls.enumerate() {
        let mut part =
            json!({"functionCall": {"name": wire_name(&call.name), "args": arguments(call)}});
        if !is_old && at == 0 {
            set(&mut part, "thoughtSignature", "skip_thought_signature_validator");
        }
        parts.push(part);
    }
    parts
}
