//! Reasoning that a model writes into its text, between `<think>` and `</think>`.
//!
//! A server that does not parse the reasoning of its model passes it on as text. It is not a part
//! of the answer. Only tags at the start of the text count, because an answer may quote them; a
//! closing tag without an opening one counts at the end of a line.

use serde_json::Value;

use crate::domain::AssistantTurn;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// The marks of other models before and after their reasoning.
const OTHERS: &[(&str, &str)] = &[
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
];

/// Most reasoning blocks of an answer, and most bytes of white space before the first. Beyond them,
/// everything is text, so that a hostile answer costs neither time nor stack.
const MAX_BLOCKS: usize = 16;
const MAX_SPACE: usize = 256;

/// The key in `provider_data` with the whole text of a turn whose reasoning came as text.
pub(super) const INLINE: &str = "inline_reasoning";

/// The text of an answer, as it arrives.
#[derive(Debug, Default)]
pub(super) struct Written {
    text: String,
    reasoning: String,
    /// The whole text as it came, unless it is certain that it begins with no reasoning.
    raw: String,
    part: Part,
    blocks: usize,
}

/// The part of the text that the next piece belongs to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// White space, or the first characters of a tag.
    #[default]
    Start,
    Reasoning,
    Answer,
}

impl Written {
    /// Takes a piece of the text, and appends new text of the answer to `new`.
    pub(super) fn push(&mut self, piece: &str, new: &mut String) {
        if self.part != Part::Answer || self.blocks > 0 {
            self.raw.push_str(piece);
        }
        self.advance(piece, new);
        if self.part == Part::Answer && self.blocks == 0 {
            self.raw.clear();
        }
    }

    fn advance(&mut self, piece: &str, new: &mut String) {
        match self.part {
            Part::Start => {
                self.text.push_str(piece);
                self.begin(new);
            }
            Part::Reasoning => {
                let known = self.reasoning.len();
                self.reasoning.push_str(piece);
                self.end_reasoning(known, new);
            }
            Part::Answer => {
                self.text.push_str(piece);
                new.push_str(piece);
            }
        }
    }

    fn begin(&mut self, new: &mut String) {
        let begun = self.text.trim_start();
        if let Some(rest) = begun.strip_prefix(OPEN).filter(|_| self.blocks < MAX_BLOCKS) {
            let rest = rest.to_owned();
            self.text.clear();
            self.part = Part::Reasoning;
            self.blocks += 1;
            self.advance(&rest, new);
        } else if !OPEN.starts_with(begun) || self.text.len() > MAX_SPACE {
            if self.blocks > 0 {
                self.text = begun.to_owned();
            }
            self.part = Part::Answer;
            new.push_str(&self.text);
        }
    }

    /// Ends the reasoning if its tag has arrived. The tag is not in the first `known` bytes, except
    /// for its beginning.
    fn end_reasoning(&mut self, known: usize, new: &mut String) {
        let mut before = (0..=known.saturating_sub(CLOSE.len())).rev();
        let from = before.find(|at| self.reasoning.is_char_boundary(*at)).unwrap_or(0);
        let unseen = self.reasoning.get(from..).unwrap_or_default();
        let Some((before, rest)) = unseen.split_once(CLOSE) else { return };
        let (end, rest) = (from + before.len(), rest.to_owned());
        self.reasoning.truncate(end);
        self.part = Part::Start;
        self.advance(&rest, new);
    }

    /// Ends the text of an answer without calls. Some chat templates write the opening tag into the
    /// prompt, so that only the closing one arrives; the text before it is then reasoning too.
    pub(super) fn end(&mut self) {
        if self.blocks > 0 {
            return;
        }
        let begun = self.text.trim_start();
        let mut others = OTHERS.iter();
        if let Some((rest, close)) =
            others.find_map(|(open, close)| Some((begun.strip_prefix(*open)?, *close)))
        {
            let (reasoning, answer) = rest.split_once(close).unwrap_or((rest, ""));
            let (reasoning, answer) = (reasoning.to_owned(), answer.trim_start().to_owned());
            self.raw = std::mem::replace(&mut self.text, answer);
            self.reasoning = reasoning;
            self.blocks = 1;
            return;
        }
        let Some((before, after)) = self.text.split_once(CLOSE) else { return };
        let is_last_of_line = after.is_empty() || after.starts_with(['\n', '\r']);
        let is_first_of_line = before.trim_end_matches([' ', '\t']).ends_with('\n');
        // An answer may quote the tag, such as in a block of code.
        let is_quoted = before.contains(OPEN) || before.matches("```").count() % 2 == 1;
        if is_quoted || !before.trim().is_empty() && !is_last_of_line && !is_first_of_line {
            return;
        }
        let (reasoning, answer) = (before.to_owned(), after.trim_start().to_owned());
        self.raw = std::mem::replace(&mut self.text, answer);
        self.reasoning = reasoning;
        self.blocks = 1;
    }

    /// Returns the reasoning between tags; `None` without tags.
    pub(super) fn reasoning(&self) -> Option<&str> {
        (self.blocks > 0).then(|| self.reasoning.trim())
    }

    /// Returns the bytes of text and reasoning so far.
    pub(super) fn size(&self) -> usize {
        self.text.len() + self.reasoning.len() + self.raw.len()
    }

    /// Returns the whole text as it came, if it has reasoning between tags.
    pub(super) fn raw(&self) -> Option<&str> {
        (self.blocks > 0).then_some(self.raw.as_str())
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// Returns the text of a turn as the model wrote it, if it wrote its reasoning into it. `kept` is the
/// `provider_data` of the turn.
pub(super) fn inline_text(turn: &AssistantTurn, kept: Option<&Value>) -> Option<String> {
    match kept?.get(INLINE)? {
        Value::String(raw) => Some(raw.clone()),
        // A transcript of an earlier version.
        _ => {
            let reasoning = turn.reasoning.as_deref().unwrap_or_default();
            Some(format!("{OPEN}\n{reasoning}\n{CLOSE}\n\n{}", turn.text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, answer: &str, reasoning: Option<&str>) {
        for size in [1, 2, 3, 1000] {
            let (mut written, mut new) = (Written::default(), String::new());
            let characters: Vec<char> = text.chars().collect();
            for piece in characters.chunks(size) {
                written.push(&piece.iter().collect::<String>(), &mut new);
            }
            assert_eq!((written.text.as_str(), written.reasoning()), (answer, reasoning), "{text}");
            assert!(answer.starts_with(&new), "{text}: {new}");
        }
    }

    #[test]
    fn reasoning_between_tags_is_not_a_part_of_the_answer() {
        check("<think>\nI look – first.\n</think>\n\n{}", "{}", Some("I look – first."));
        check(" <think></think>done", "done", Some(""));
        check("<think>a</think>\n<think>b</think> c", "c", Some("ab"));
        check("<think>never closed", "", Some("never closed"));
        check("done", "done", None);
        check("  done", "  done", None);
        check("the tag <think>x</think>", "the tag <think>x</think>", None);
        check("<thinking> is", "<thinking> is", None);
        check("<thi", "<thi", None);
    }

    #[test]
    fn reasoning_whose_opening_tag_is_in_the_prompt_is_not_a_part_of_the_answer() {
        for (text, answer, reasoning) in [
            (
                "I look.\n</think>\n\n{\"status\": \"failed\"}",
                "{\"status\": \"failed\"}",
                Some("I look."),
            ),
            ("I look.</think>\ndone", "done", Some("I look.")),
            ("I look.\n</think> done", "done", Some("I look.")),
            ("</think>", "", Some("")),
            ("[THINK]I look.[/THINK]\ndone", "done", Some("I look.")),
            ("<thinking>never closed", "", Some("never closed")),
            (
                "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>done",
                "done",
                Some("I look.<|end|><|start|>assistant"),
            ),
            ("</think>done", "done", Some("")),
            ("The tag `</think>` ends it", "The tag `</think>` ends it", None),
            ("As in:\n```\n</think>\n```", "As in:\n```\n</think>\n```", None),
            ("a <think>b\n</think>\nc", "a <think>b\n</think>\nc", None),
        ] {
            let mut written = Written::default();
            written.push(text, &mut String::new());
            written.end();
            assert_eq!((written.text.as_str(), written.reasoning()), (answer, reasoning), "{text}");
        }
    }
}
