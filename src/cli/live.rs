//! Prints a run as it happens: each transcript line as it arrives, and the model's text as it
//! streams.

use serde_json::Value;

use super::args::OutputForm;
use super::output;
use super::render::{Renderer, is_shown_whole};
use super::wrap::{Wrap, terminal_width};
use crate::store::RawLine;
use crate::text::escape::{for_terminal, json_line};

/// Prints the events of a run and tracks what is on the screen.
pub(crate) struct LivePrinter {
    form: OutputForm,
    renderer: Renderer,
    /// Wraps the lines of the streaming answer; `None` until its first text arrives.
    answer: Option<Wrap>,
    /// Whether the reply to come answers the double confirmation. It mostly repeats the answer that
    /// is on the screen, so nothing is shown before it is complete.
    is_confirming: bool,
    /// The pieces of the current reply that are on the screen. The last ones may be missing: the
    /// sink holds back what may be the beginning of a secret.
    streamed: String,
    /// The last reply, if all of its text is on the screen.
    on_screen: Option<String>,
}

impl LivePrinter {
    pub(crate) fn new(form: OutputForm, color: bool) -> Self {
        let renderer = Renderer::new(color, terminal_width());
        Self {
            form,
            renderer,
            answer: None,
            is_confirming: false,
            streamed: String::new(),
            on_screen: None,
        }
    }

    /// Returns the text of the last reply, if all of it is on the screen.
    pub(crate) fn into_answer(self) -> Option<String> {
        self.on_screen
    }

    /// Prints a transcript line or a live-only event; nothing in the formats `json` and `yaml`, in
    /// which `run` prints a single value at the end.
    pub(crate) fn line(&mut self, text: &str) {
        match self.form {
            // A live event is not escaped yet, as a line of the transcript is.
            OutputForm::Jsonl => {
                output::raw(format!("{}\n", json_line(text.to_owned())).as_bytes());
            }
            OutputForm::Table => match serde_json::from_str::<RawLine>(text) {
                Ok(line) => self.print_line(&line),
                Err(_) => self.print_delta(text),
            },
            OutputForm::Json | OutputForm::Yaml => {}
        }
    }

    fn print_line(&mut self, line: &RawLine) {
        let field = |name: &str| line.event.get(name).and_then(Value::as_str).unwrap_or_default();
        let is_answer = field("type") == "assistant_text_end";
        let was_streamed = self.answer.take().is_some();
        let is_repeated = self.renderer.repeats(field("text"));
        let text = match was_streamed {
            // The streamed text is on the screen already.
            true if is_answer => format!("\n{}", self.renderer.rest_of_reply(line)),
            true => format!("\n{}", self.renderer.event(line)),
            false => self.renderer.event(line),
        };
        output::raw(text.as_bytes());
        if is_answer {
            let answer = field("text");
            let is_whole = if was_streamed {
                std::mem::take(&mut self.streamed).trim_end() == answer.trim_end()
            } else if is_repeated {
                self.on_screen.as_deref() == Some(answer)
            } else {
                is_shown_whole(answer)
            };
            self.on_screen = is_whole.then(|| answer.to_owned());
            self.is_confirming = false;
        } else if field("type") == "user_input" {
            self.is_confirming = field("source") == "confirmation";
        }
    }

    /// Prints a piece of the model's text.
    fn print_delta(&mut self, text: &str) {
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        let piece = event.get("text").and_then(Value::as_str).unwrap_or_default();
        if piece.is_empty() || self.is_confirming {
            return;
        }
        self.streamed.push_str(piece);
        let answer = self.answer.get_or_insert_with(|| {
            let begin = self.renderer.answer_heading() + &self.renderer.margin();
            output::raw(begin.as_bytes());
            self.renderer.wrap_text()
        });
        output::raw(answer.push(&for_terminal(piece)).as_bytes());
    }
}
