//! Turns a model reply into an assistant turn. A call with an unusable provider id gets a new id,
//! and arguments are parsed here, once.

use std::time::Duration;

use serde_json::{Value, json};

use super::Machine;
use crate::agent::counters::Charge;
use crate::agent::model::{ModelReply, RequestedCall};
use crate::agent::tool::Toolbox;
use crate::argv::parse_arguments;
use crate::catalogue::CacheWrites;
use crate::domain::{Arguments, AssistantTurn, CallId, Event, FinishReason, ToolCall};

impl Machine {
    pub(super) fn assistant_turn(&mut self, reply: ModelReply) -> AssistantTurn {
        let calls = reply
            .calls
            .into_iter()
            .enumerate()
            .map(|(at, call)| self.adopt(call, at, reply.finish_reason))
            .collect();
        AssistantTurn {
            text: reply.text,
            reasoning: reply.reasoning,
            tool_calls: calls,
            finish_reason: reply.finish_reason,
            stop_reason: reply.stop_reason,
            usage: reply.usage,
            response_id: reply.response_id,
            provider_data: reply.provider_data,
        }
    }

    /// Gives a call an id that is unique in this run: the provider's id if it is usable, otherwise
    /// a generated one (LLM-6).
    fn adopt(&mut self, call: RequestedCall, at: usize, finish_reason: FinishReason) -> ToolCall {
        let theirs = call
            .id
            .as_deref()
            .and_then(|id| CallId::parse(id).ok())
            .filter(|id| !id.is_reserved() && !self.call_ids.contains(id));
        let generated = (0_u32..).filter_map(|nth| {
            let suffix = if nth == 0 { String::new() } else { format!("_{nth}") };
            CallId::parse(&format!("call_{}_{}{suffix}", self.counters.iterations, at + 1)).ok()
        });
        let call_id = theirs.into_iter().chain(generated).find(|id| !self.call_ids.contains(id));
        // `generated` is endless in practice, so this default is never used.
        let call_id = call_id.unwrap_or_else(CallId::unpaired);
        self.call_ids.insert(call_id.clone());
        // Empty text means no arguments, unless the token limit may have cut them off.
        let cut = finish_reason == FinishReason::Length && call.arguments.trim().is_empty();
        let arguments = match parse_arguments(&call.arguments) {
            Ok(_) if cut => {
                Arguments::Invalid { text: call.arguments, message: "the text is empty".to_owned() }
            }
            Ok(arguments) => Arguments::Parsed(arguments),
            Err(message) => Arguments::Invalid { text: call.arguments, message },
        };
        ToolCall { call_id, name: call.name, arguments }
    }
}

/// When a reply came.
pub(super) struct Timing {
    pub(super) latency_ms: u64,
    pub(super) first_token_ms: Option<u64>,
    /// How long the run had worked.
    pub(super) elapsed: Duration,
}

/// The facts about a reply that its turn does not contain.
pub(super) struct ReplyFacts {
    /// The name of the model in the configuration; `None` for a message of the loop.
    pub(super) model: Option<String>,
    pub(super) charge: Charge,
    pub(super) cache_writes: CacheWrites,
    pub(super) timing: Timing,
}

pub(super) fn assistant_event(
    turn: &AssistantTurn,
    toolbox: &Toolbox,
    ReplyFacts { model, charge, cache_writes, timing }: ReplyFacts,
) -> Event {
    let tool_calls: Vec<Value> = turn
        .tool_calls
        .iter()
        .map(|call| {
            let name = toolbox.canonical(&call.name);
            let mut value = json!({"call_id": call.call_id, "name": name});
            if name != call.name {
                set(&mut value, "shown_as", Value::from(call.name.as_str()));
            }
            match &call.arguments {
                Arguments::Parsed(arguments) => {
                    let own = toolbox.own_arguments(&call.name, arguments);
                    if own != *arguments {
                        set(&mut value, "shown_arguments", Value::Object(arguments.clone()));
                    }
                    set(&mut value, "arguments", Value::Object(own));
                }
                Arguments::Invalid { text, .. } => {
                    set(&mut value, "arguments_text", Value::from(text.as_str()));
                }
            }
            value
        })
        .collect();
    Event::AssistantTextEnd {
        text: turn.text.clone(),
        reasoning: turn.reasoning.clone(),
        tool_calls,
        finish_reason: turn.finish_reason,
        stop_reason: turn.stop_reason.clone(),
        usage: turn.usage,
        cache_write_tokens: cache_writes.all,
        cache_write_long_tokens: cache_writes.long,
        cost_usd: charge.usd,
        cost_estimated: charge.is_estimated,
        model,
        elapsed_ms: u64::try_from(timing.elapsed.as_millis()).unwrap_or(u64::MAX),
        latency_ms: timing.latency_ms,
        first_token_ms: timing.first_token_ms,
        response_id: turn.response_id.clone(),
        provider_data: turn.provider_data.clone(),
    }
}

fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}
