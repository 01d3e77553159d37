//! Prints a run as it happens: each transcript line as it arrives, and the model's text as it
//! streams.

use serde_json::Value;

use super::args::OutputForm;
use super::output;
use super::render::Renderer;
use super::wrap::{Wrap, terminal_width};
use crate::store::RawLine;
use crate::text::escape::for_terminal;

/// Prints the events of a run and tracks what is on the screen.
pub(crate) struct LivePrinter {
    form: OutputForm,
    renderer: Renderer,
    /// Wraps the lines of the streaming answer; `None` until its first text arrives.
    answer: Option<Wrap>,
}

impl LivePrinter {
    pub(crate) fn new(form: OutputForm, color: bool) -> Self {
        Self { form, renderer: Renderer::new(color, terminal_width()), answer: None }
    }

    /// Prints a transcript line or a live-only event; nothing in the formats `json` and `yaml`, in
    /// which `run` prints a single value at the end.
    pub(crate) fn line(&mut self, text: &str) {
        match self.form {
            OutputForm::Jsonl => output::raw(format!("{text}\n").as_bytes()),
            OutputForm::Table => match serde_json::from_str::<RawLine>(text) {
                Ok(line) => self.print_line(&line),
                Err(_) => self.print_delta(text),
            },
            OutputForm::Json | OutputForm::Yaml => {}
        }
    }

    fn print_line(&mut self, line: &RawLine) {
        let is_answer =
            line.event.get("type").and_then(Value::as_str) == Some("assistant_text_end");
        let text = match self.answer.take().is_some() {
            // The streamed text is on the screen already.
            true if is_answer => format!("\n{}", self.renderer.calls(line)),
            true => format!("\n{}", self.renderer.event(line)),
            false => self.renderer.event(line),
        };
        output::raw(text.as_bytes());
    }

    /// Prints a piece of the model's text.
    fn print_delta(&mut self, text: &str) {
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        let piece = event.get("text").and_then(Value::as_str).unwrap_or_default();
        if piece.is_empty() {
            return;
        }
        let answer = self.answer.get_or_insert_with(|| {
            output::raw(self.renderer.margin().as_bytes());
            self.renderer.wrap_text()
        });
        output::raw(answer.push(&for_terminal(piece)).as_bytes());
    }
}
