//! Decides whether a response without calls is an answer, and ends the run with it.
//!
//! A response that is empty, was cut off, or only spells a call is not an answer: the loop corrects
//! the model once, and ends the run if the fault returns. A call that is written as text is only
//! recognized here; it never runs (LLM-2). *Source*: `docs/design/loop.md`, "Errors are content".

use serde_json::{Map, Value};

use super::{Action, Machine};
use crate::domain::{Event, FinishReason, InputSource, StopReason};
use crate::text::escape::is_deceptive;

const CONFIRMATION: &str = "Before this is accepted as the final answer, check that every part of the task is done and that the tool results support each claim. If anything is missing, keep working. Otherwise, restate the final answer in full.";

/// The beginning of the confirmation in a run in which no call has worked.
const NOTHING_DONE: &str = "This run has no successful tool call yet. An answer without a tool result does not count: call the tools, or state why you cannot.";

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
    ("<invoke name=\"", "</invoke>"),
];

/// The marks with which other chat templates begin a call; its form differs. They are tokens of
/// models, which no answer contains by chance.
const TOKENS: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<minimax:tool_call>",
    "<|channel|>commentary to=",
    "<|START_ACTION|>",
];

/// The marks with which chat templates end a turn.
const END_MARKS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|return|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "</think>",
];

/// The keys under which models write the name of a tool, and its arguments.
const NAMES: &[&str] = &["name", "tool", "tool_name", "function", "recipient_name"];
const ARGUMENTS: &[&str] = &["arguments", "parameters", "args", "params", "input", "tool_input"];

/// The other keys of a call, or of a list of calls. An object with any further key, such as the
/// `status` of a verdict, is a document that mentions a call.
const BESIDE: &[&str] = &[
    "type",
    "id",
    "call_id",
    "tool_call_id",
    "index",
    "role",
    "content",
    "thought",
    "thoughts",
    "reasoning",
];
const CALLS: &[&str] = &["tool_calls", "function"];

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
    pub(super) const ALL: [Self; 3] = [Self::Empty, Self::Cut, Self::SpelledCall];

    /// Returns the word of the fault in `user_input`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Cut => "cut",
            Self::SpelledCall => "spelled_call",
        }
    }

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
        if self.waiting.steering {
            return Action::CallModel;
        }
        if let Some(fault) = self.fault_of(text, finish_reason) {
            return self.on_fault(fault, events);
        }
        self.faults.clear();
        if !self.confirmed {
            self.confirmed = true;
            let text = if self.has_looked {
                CONFIRMATION.to_owned()
            } else {
                format!("{NOTHING_DONE} {CONFIRMATION}")
            };
            self.say(text, InputSource::Confirmation, events);
            return self.ask_or_stop(events);
        }
        if self.waiting.follow_up {
            return Action::NextInput;
        }
        if !self.changes.steps.is_empty() {
            return self.end(StopReason::Planned, None, events);
        }
        if !self.has_looked {
            let error =
                "no call of the run worked: set `allow_no_calls: true` if this job needs none";
            return self.end(StopReason::NothingDone, Some(error.to_owned()), events);
        }
        self.on_final_answer(text, events)
    }

    /// Tells whether the last answer was cut off, so that the next request needs a higher limit.
    pub(in crate::agent) fn follows_cut(&self) -> bool {
        self.faults.contains(&AnswerFault::Cut)
    }

    fn fault_of(&self, text: &str, finish_reason: FinishReason) -> Option<AnswerFault> {
        if finish_reason == FinishReason::Length {
            return Some(AnswerFault::Cut);
        }
        if is_blank(text) {
            return Some(AnswerFault::Empty);
        }
        let is_tool = |name: &str| self.toolbox.find(name).is_some();
        spells_call(text, &is_tool).then_some(AnswerFault::SpelledCall)
    }

    fn on_fault(&mut self, fault: AnswerFault, events: &mut Vec<Event>) -> Action {
        if !self.faults.insert(fault) {
            return self.end(StopReason::NoAnswer, Some(fault.error().to_owned()), events);
        }
        if fault == AnswerFault::Empty && self.has_looked {
            // The correction asks what the confirmation would ask.
            self.confirmed = true;
        }
        self.correct(fault.correction().to_owned(), Some(fault.as_str().to_owned()), events);
        self.ask_or_stop(events)
    }
}

/// Tells whether `text` shows nothing: white space, invisible characters, marks of the end of a
/// turn, or an empty Markdown fence.
fn is_blank(text: &str) -> bool {
    let mut rest = without_fence(text.trim());
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || is_deceptive(c));
        match END_MARKS.iter().find_map(|mark| rest.strip_prefix(*mark)) {
            Some(after) => rest = after,
            None => return rest.is_empty(),
        }
    }
}

/// Tells whether `text` only spells calls of known tools: as marked calls at its end, or as JSON.
fn spells_call(text: &str, is_tool: &dyn Fn(&str) -> bool) -> bool {
    if text.len() > LONGEST_CALL {
        return false;
    }
    let text = without_fence(text.trim());
    is_marked_call(text, is_tool)
        || has_token(text, is_tool)
        || are_calls(text, &|call| has_call(call, is_tool))
}

/// Tells whether a tool is named after a token with which a model begins a call.
fn has_token(text: &str, is_tool: &dyn Fn(&str) -> bool) -> bool {
    let is_end = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-');
    let mut called = TOKENS.iter().filter_map(|token| text.split_once(*token));
    called.any(|(_, call)| call.split(is_end).any(is_tool))
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
                let is_alone = !call.contains(*close);
                is_alone && names_tool(call, is_tool)
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
        Value::Object(map) => match CALLS.iter().find_map(|key| map.get(*key)) {
            Some(inner @ (Value::Array(_) | Value::Object(_))) => {
                has_only(map, &[CALLS, BESIDE]) && is_each_a_call(inner, is_call)
            }
            _ => is_call(map),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn has_call(map: &Map<String, Value>, is_tool: &dyn Fn(&str) -> bool) -> bool {
    tool_name(map).is_some_and(is_tool)
        && ARGUMENTS.iter().any(|key| map.contains_key(*key))
        && has_only(map, &[NAMES, ARGUMENTS, BESIDE])
}

fn has_only(map: &Map<String, Value>, lists: &[&[&str]]) -> bool {
    map.keys().all(|key| lists.iter().any(|list| list.contains(&key.as_str())))
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

    #[test]
    fn a_text_that_shows_nothing_is_empty() {
        for text in [
            "",
            " \n",
            "\u{200b}",
            "\u{feff}\u{2060} ",
            "```json\n```",
            "<|im_end|>",
            "</think>\n</s>",
        ] {
            assert!(is_blank(text), "{text:?}");
        }
        for text in ["0", ".", "{}", "ok<|im_end|>", "`</s>`"] {
            assert!(!is_blank(text), "{text:?}");
        }
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
            "I look: <invoke name=\"uptime\">\n</invoke>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>uptime\n```json\n{}\n```<｜tool▁call▁end｜>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.uptime:0<|tool_call_argument_begin|>{}",
            "<|channel|>commentary to=functions.uptime <|constrain|>json<|message|>{}",
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
            "{\"status\": \"ok\", \"tool\": \"uptime\", \"input\": \"none\"}",
            "{\"name\": \"uptime\", \"description\": \"d\", \"parameters\": {}}",
            "{\"status\": \"ok\", \"tool_calls\": [{\"name\": \"uptime\", \"arguments\": {}}]}",
            "The template writes <|tool_call_begin|> before a call.",
            "I called <function=uptime>{}</function>, and the host is up.",
            "[]",
            "I called <tool_call>{\"name\": \"uptime\"}</tool_call>, and the host is up.",
            "The result of {\"name\": \"uptime\", \"arguments\": {}} is 3 days.",
            "<tool_call>",
        ] {
            check(text, false);
        }
    }
}
