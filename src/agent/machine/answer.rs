//! Decides whether a response without calls is an answer, and ends the run with it.
//!
//! A response that is empty, was cut off, or only spells a call is not an answer: the loop corrects
//! the model once, and ends the run if the fault returns. A call that is written as text is only
//! recognized here; it never runs (LLM-2). *Source*: `docs/design/loop.md`, "Errors are content".

use serde_json::{Map, Value};

use super::{Action, Machine};
use crate::domain::{Event, FinishReason, InputSource, StopReason};

const CONFIRMATION: &str = "Before this is accepted as the final answer, check that every part of the task is done and that the tool results support each claim. If anything is missing, keep working. Otherwise, restate the final answer in full.";

/// The longest text in bytes that is searched for a call; a longer one is prose.
const LONGEST_CALL: usize = 64 * 1024;

/// The marks with which chat templates write a call: the one before it, and the one after it.
const MARKS: &[(&str, &str)] = &[
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),
    ("<function_call>", "</function_call>"),
    ("<function_calls>", "</function_calls>"),
    ("<function=", "</function>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("<|python_tag|>", "<|eom_id|>"),
    ("[TOOL_CALLS]", "</s>"),
];

/// The keys under which models write the name of a tool, and its arguments.
const NAMES: &[&str] = &["name", "tool", "tool_name", "function", "recipient_name"];
const ARGUMENTS: &[&str] = &["arguments", "parameters", "args", "params", "input", "tool_input"];

/// Why a response without calls is not an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AnswerFault {
    /// It has no text; reasoning alone is not an answer.
    Empty,
    /// The token limit cut it off.
    Cut,
    /// Its text only spells a call of a tool of the run.
    SpelledCall,
}

impl AnswerFault {
    /// Returns the correction for the model.
    fn correction(self) -> &'static str {
        match self {
            Self::Empty => {
                "Your last response had neither text nor a tool call. Check that every part of the task is done and that the tool results support each claim. If anything is missing, keep working. Otherwise, give the final answer in full, as text."
            }
            Self::Cut => {
                "The token limit cut off your last response, so it does not count. Give the final answer again, complete but shorter."
            }
            Self::SpelledCall => {
                "Your last response only spelled a tool call as text, so nothing ran. To use a tool, make a real tool call instead of writing it into the text. If the task is done, give the final answer in words."
            }
        }
    }

    /// Returns the error for the operator.
    fn error(self) -> &'static str {
        match self {
            Self::Empty => "the final answer was empty, also when the model was asked again",
            Self::Cut => {
                "the token limit cut off the final answer twice: raise `max_output_tokens` of the model, or ask for a shorter answer"
            }
            Self::SpelledCall => {
                "the model wrote a tool call as text twice, so nothing ran: check that its server parses the tool calls of this model"
            }
        }
    }
}

impl Machine {
    /// Handles a response without calls.
    pub(super) fn on_answer(
        &mut self,
        text: &str,
        finish_reason: FinishReason,
        events: &mut Vec<Event>,
    ) -> Action {
        if let Some(fault) = self.fault_of(text, finish_reason) {
            return self.on_fault(fault, events);
        }
        self.faults.clear();
        if !self.confirmed {
            self.confirmed = true;
            self.say(CONFIRMATION.to_owned(), InputSource::Confirmation, events);
            return self.ask_or_stop(events);
        }
        let is_planned = !self.changes.steps.is_empty();
        let reason = if is_planned { StopReason::Planned } else { StopReason::Completed };
        self.end(reason, None, events)
    }

    fn fault_of(&self, text: &str, finish_reason: FinishReason) -> Option<AnswerFault> {
        if finish_reason == FinishReason::Length {
            return Some(AnswerFault::Cut);
        }
        if text.trim().is_empty() {
            return Some(AnswerFault::Empty);
        }
        let is_tool = |name: &str| self.toolbox.find(name).is_some();
        spells_call(text, &is_tool).then_some(AnswerFault::SpelledCall)
    }

    fn on_fault(&mut self, fault: AnswerFault, events: &mut Vec<Event>) -> Action {
        if !self.faults.insert(fault) {
            return self.end(StopReason::NoAnswer, Some(fault.error().to_owned()), events);
        }
        if fault == AnswerFault::Empty {
            // The correction asks what the confirmation would ask.
            self.confirmed = true;
        }
        self.say(fault.correction().to_owned(), InputSource::Correction, events);
        self.ask_or_stop(events)
    }
}

/// Tells whether `text` only spells calls of known tools: as marked calls at its end, or as JSON.
fn spells_call(text: &str, is_tool: &dyn Fn(&str) -> bool) -> bool {
    if text.len() > LONGEST_CALL {
        return false;
    }
    let text = without_fence(text.trim());
    is_marked_call(text, is_tool) || are_calls(text, &|call| has_call(call, is_tool))
}

/// Removes the Markdown fence around a text.
fn without_fence(text: &str) -> &str {
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    // The first line of a fence names the language.
    inner.and_then(|inner| inner.split_once('\n')).map_or(text, |(_, inner)| inner.trim())
}

/// Tells whether `text` ends with marked calls. Text before the first mark announces them.
fn is_marked_call(text: &str, is_tool: &dyn Fn(&str) -> bool) -> bool {
    MARKS.iter().any(|(open, close)| {
        let mut calls = text.split(*open).skip(1).peekable();
        calls.peek().is_some()
            && calls.all(|call| {
                let call = call.trim();
                let call = call.strip_suffix(*close).unwrap_or(call).trim();
                names_tool(call, is_tool)
                    || are_calls(call, &|call| tool_name(call).is_some_and(is_tool))
            })
    })
}

/// Tells whether a marked call begins with the name of a tool, as in `<function=uptime>{}` and
/// `<invoke name="uptime">`.
fn names_tool(call: &str, is_tool: &dyn Fn(&str) -> bool) -> bool {
    let call = call.strip_prefix("<function=").unwrap_or(call);
    let call = call.strip_prefix("<invoke name=\"").unwrap_or(call);
    let is_end = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.');
    call.split(is_end).next().is_some_and(is_tool)
}

/// Tells whether `text` is one or more JSON values, each of which is a call or a list of calls.
fn are_calls(text: &str, is_call: &dyn Fn(&Map<String, Value>) -> bool) -> bool {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>().peekable();
    values.peek().is_some()
        && values.all(|value| value.is_ok_and(|value| is_each_a_call(&value, is_call)))
}

fn is_each_a_call(value: &Value, is_call: &dyn Fn(&Map<String, Value>) -> bool) -> bool {
    match value {
        Value::Array(items) => {
            !items.is_empty() && items.iter().all(|item| is_each_a_call(item, is_call))
        }
        Value::Object(map) => match map.get("tool_calls").or_else(|| map.get("function")) {
            Some(inner @ (Value::Array(_) | Value::Object(_))) => is_each_a_call(inner, is_call),
            _ => is_call(map),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn has_call(map: &Map<String, Value>, is_tool: &dyn Fn(&str) -> bool) -> bool {
    tool_name(map).is_some_and(is_tool) && ARGUMENTS.iter().any(|key| map.contains_key(*key))
}

fn tool_name(map: &Map<String, Value>) -> Option<&str> {
    let name = NAMES.iter().find_map(|key| map.get(*key)?.as_str())?;
    Some(name.strip_prefix("functions.").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: bool) {
        assert_eq!(spells_call(text, &|name| name == "uptime"), expected, "{text}");
    }

    // proves LLM-2
    #[test]
    fn a_text_that_only_spells_a_call_of_a_known_tool_is_recognized() {
        for text in [
            "<tool_call>\n{\"name\": \"uptime\", \"arguments\": {}}\n</tool_call>",
            "I look.\n<tool_call>{\"name\": \"uptime\"}</tool_call>\n<tool_call>{\"name\": \"uptime\"}",
            "<tool_call>\n<function=uptime>\n</function>\n</tool_call>",
            "<function=uptime>{}</function>",
            "<function_calls>\n<invoke name=\"uptime\">\n</invoke>\n</function_calls>",
            "[TOOL_CALLS][{\"name\": \"uptime\", \"arguments\": {}}]",
            "[TOOL_CALLS]uptime{}",
            "<|python_tag|>{\"type\": \"function\", \"name\": \"uptime\", \"parameters\": {}}",
            "{\"name\": \"uptime\", \"parameters\": {}}",
            "```json\n{\"tool\": \"uptime\", \"args\": {}}\n```",
            "{\"name\": \"uptime\", \"arguments\": {}}\n{\"name\": \"functions.uptime\", \"arguments\": {}}",
            "{\"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"uptime\", \"arguments\": \"{}\"}}]}",
        ] {
            check(text, true);
        }
        for text in [
            "The host is up.",
            "uptime",
            "{\"status\": \"ok\", \"summary\": \"up\"}",
            "{\"name\": \"uptime\", \"status\": \"ok\"}",
            "{\"name\": \"other\", \"arguments\": {}}",
            "[]",
            "I called <tool_call>{\"name\": \"uptime\"}</tool_call>, and the host is up.",
            "The result of {\"name\": \"uptime\", \"arguments\": {}} is 3 days.",
            "<tool_call>",
        ] {
            check(text, false);
        }
    }
}
