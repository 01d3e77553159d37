//! Renders a transcript for people, event by event.
//!
//! Text from models and tools is escaped. A long text is folded: a mark in its middle tells how
//! many lines or characters are hidden there.

mod checks;
mod words;

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use owo_colors::OwoColorize as _;
use serde_json::Value;

use self::words::{argv, compaction, ending, fold, fold_line, given, moment, span, start};
use super::output::counted;
use super::wrap::Wrap;
use crate::store::RawLine;
use crate::text::escape::{for_terminal, one_line};

pub(crate) use self::words::is_shown_whole;

/// Milliseconds between the time of a run and its time of work from which on both are shown.
const GAP_MS: i64 = 1000;

/// Columns to the left of the bar (`|`) that begins each line of a text.
const TEXT_BAR: usize = 16;

/// Columns that the time of an entry occupies, before its label.
const LABEL: usize = 14;

/// Columns that the time and the label of an entry occupy, before its text.
const ENTRY: usize = 24;

pub(crate) struct Renderer {
    color: bool,
    /// Columns of a line; `None` disables wrapping.
    width: Option<usize>,
    pub(crate) with_system_prompt: bool,
    seen: Seen,
}

/// Facts from the lines that were rendered before.
#[derive(Default)]
struct Seen {
    /// The day of the last heading.
    day: String,
    began: Option<DateTime<Utc>>,
    last: Option<DateTime<Utc>>,
    /// Whether the last line says that the daemon stopped.
    is_suspended: bool,
    /// The last text of the model.
    answer: String,
}

/// The style of a label.
#[derive(Clone, Copy)]
enum Tone {
    Plain,
    Good,
    Bad,
    Odd,
    Faint,
}

impl Renderer {
    /// Creates a renderer that wraps lines at `width` columns; `None` disables wrapping.
    pub(crate) fn new(color: bool, width: Option<usize>) -> Self {
        Self { color, width, with_system_prompt: false, seen: Seen::default() }
    }

    /// Returns the prefix of each line of a text.
    pub(crate) fn margin(&self) -> String {
        format!("{:TEXT_BAR$}{} ", "", self.paint("|", Tone::Faint))
    }

    /// Returns the heading of an answer that arrives in pieces. It has no time, because the entry of
    /// an answer has the time of its end.
    pub(crate) fn answer_heading(&self) -> String {
        format!("{:LABEL$}{}\n", "", self.paint("answer", Tone::Plain))
    }

    /// Returns a wrapper for a text. The caller prints the margin of its first line.
    pub(crate) fn wrap_text(&self) -> Wrap {
        Wrap::new(self.width, self.margin(), TEXT_BAR + 2)
    }

    /// Renders an event, after a heading if it is the first of its day; empty if the event is not
    /// shown. Takes the lines of one run, in order.
    pub(crate) fn event(&mut self, line: &RawLine) -> String {
        let mut shown = self.rendered(line);
        let day = line.ts.get(..10).unwrap_or(&line.ts);
        if !shown.is_empty() && day != self.seen.day {
            let heading = self.paint(&format!("{} (UTC)", one_line(day)), Tone::Faint);
            shown.insert_str(0, &format!("{heading}\n"));
            day.clone_into(&mut self.seen.day);
        }
        self.seen.note(line);
        shown
    }

    /// Tells whether a text repeats the previous reply.
    pub(crate) fn repeats(&self, text: &str) -> bool {
        !text.trim().is_empty() && text == self.seen.answer
    }

    /// Renders the rest of a reply whose text is on the screen already: its tool calls.
    pub(crate) fn rest_of_reply(&mut self, line: &RawLine) -> String {
        let shown = self.calls(line);
        self.seen.note(line);
        shown
    }

    fn rendered(&self, line: &RawLine) -> String {
        let event = &line.event;
        let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
        let number = |field: &str| event.get(field).and_then(Value::as_u64).unwrap_or_default();
        match text("type") {
            "session_start" => self.entry(line, "start", Tone::Faint, &start(event)),
            "system_prompt" if self.with_system_prompt => {
                self.block(line, "system", Tone::Faint, "", text("text"))
            }
            "session_suspended" => self.entry(line, "stopped", Tone::Odd, text("reason")),
            "session_resumed" => self.entry(line, "resumed", Tone::Odd, &self.resumption(line)),
            "input_queued" => self.entry(line, "given", Tone::Odd, &given(event)),
            "user_input" => self.input(line),
            "assistant_text_end" => self.answer(line),
            "policy_decision" if text("decision") == "allow" => String::new(),
            "policy_decision" => {
                let what = format!(
                    "{} ({}) by rule {}: {}",
                    text("name"),
                    text("category"),
                    text("rule"),
                    text("reason")
                );
                if text("decision") == "ask" {
                    self.entry(line, "asked", Tone::Odd, &what)
                } else {
                    self.entry(line, "refused", Tone::Bad, &what)
                }
            }
            // Without a program, the entries for the call and its end say enough.
            "tool_call_start" if argv(event).is_empty() => String::new(),
            "tool_call_start" => {
                self.entry(line, "run", Tone::Plain, &format!("$ {}", argv(event)))
            }
            "approval_requested" => {
                let until = moment(text("expires_at"));
                let what = format!("{} until {until}", text("approval_id"));
                self.entry(line, "waits", Tone::Odd, &what)
            }
            "approval_resolved" => self.resolved(line),
            "plan_step" => {
                let what = match argv(event) {
                    argv if argv.is_empty() => text("name").to_owned(),
                    argv => format!("$ {argv}"),
                };
                let what = format!("step {}: {what}", number("step"));
                self.block(line, "planned", Tone::Odd, &what, text("stdin"))
            }
            "tool_call_end" => self.call_end(line),
            "mcp_server_start" => {
                self.entry(line, "server", Tone::Faint, &format!("{} starts", text("server")))
            }
            "mcp_server_ready" => self.server(line),
            "steering_injected" => {
                self.block(line, "steering", Tone::Odd, text("source"), text("text"))
            }
            "turn_limit" => {
                let value = event.get("value").unwrap_or(&Value::Null);
                self.entry(line, "limit", Tone::Bad, &format!("{} = {value}", text("limit")))
            }
            "loop_detection" => self.entry(
                line,
                "loop",
                Tone::Odd,
                &format!(
                    "a pattern of {} calls repeats (repetition {} in this run)",
                    number("pattern_length"),
                    number("count")
                ),
            ),
            "compaction" => self.entry(line, "history", Tone::Odd, &compaction(event)),
            "preflight" => self.preflight(line),
            "verify" => {
                let what = format!("{}: {}", text("tool"), text("detail"));
                if event.get("ok") == Some(&Value::Bool(true)) {
                    self.entry(line, "verified", Tone::Good, &what)
                } else {
                    self.entry(line, "failed", Tone::Bad, &what)
                }
            }
            "warning" => self.entry(
                line,
                "warning",
                Tone::Odd,
                &format!("{}: {}", text("code"), text("message")),
            ),
            "error" => self.entry(
                line,
                "error",
                Tone::Bad,
                &format!("{}: {}", text("code"), text("message")),
            ),
            "session_end" => self.entry(
                line,
                "end",
                if text("outcome") == "succeeded" { Tone::Good } else { Tone::Bad },
                &self.ending(line),
            ),
            "system_prompt" | "processing_end" => String::new(),
            other => self.entry(line, other, Tone::Faint, ""),
        }
    }

    /// Renders the outcome with the result, which `show` prints first and `run` prints last. Each
    /// line of the result is marked: it comes from a model and could look like an entry (LOG-4).
    pub(crate) fn result(&self, end: &Value) -> String {
        self.outcome(end) + &self.final_answer(end)
    }

    /// Renders the result alone, after an empty line; empty if there is none.
    pub(crate) fn final_answer(&self, end: &Value) -> String {
        let text = match end.get("result") {
            Some(Value::String(text)) => text.trim_end().to_owned(),
            Some(Value::Null) | None => return String::new(),
            Some(value) => {
                serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
            }
        };
        format!("\n{}", self.marked(&text))
    }

    /// Renders the outcome without the result.
    pub(crate) fn outcome(&self, end: &Value) -> String {
        let text = |field: &str| end.get(field).and_then(Value::as_str).unwrap_or_default();
        let outcome = text("outcome");
        let tone = if outcome == "succeeded" { Tone::Good } else { Tone::Bad };
        let mut out = format!("{} ({})", self.paint(outcome, tone), text("stop_reason"));
        if let Some(verdict) = end.get("verdict").and_then(Value::as_str) {
            let _ = write!(out, ", verdict {}", one_line(verdict));
        }
        out.push('\n');
        // The error of a step of a plan contains what its program printed.
        if let Some(error) = end.get("error").and_then(Value::as_str) {
            out.push_str(&self.marked(error));
        }
        out
    }

    /// Returns `text` with a mark before each line.
    fn marked(&self, text: &str) -> String {
        let mark = format!("{} ", self.paint("|", Tone::Faint));
        let line = |line: &str| {
            let wrapped = Wrap::new(self.width, mark.clone(), 2).push(&for_terminal(line));
            format!("{mark}{wrapped}\n")
        };
        text.lines().map(line).collect()
    }

    /// Renders a user turn. The question of the double confirmation is not shown as a task.
    fn input(&self, line: &RawLine) -> String {
        let text = |field: &str| line.event.get(field).and_then(Value::as_str).unwrap_or_default();
        let (word, tone, what) = match text("source") {
            "confirmation" => {
                let what = "dutyd asks the model to check its answer";
                return self.entry(line, "confirm", Tone::Faint, what);
            }
            "correction" => ("correct", Tone::Odd, ""),
            "follow_up" => ("follow-up", Tone::Plain, ""),
            "repository" => ("project", Tone::Faint, ""),
            "job" => ("task", Tone::Plain, ""),
            other => ("task", Tone::Plain, other),
        };
        self.block(line, word, tone, what, text("text"))
    }

    /// Describes why a run continues, and after how long.
    fn resumption(&self, line: &RawLine) -> String {
        let number =
            |field: &str| line.event.get(field).and_then(Value::as_u64).unwrap_or_default();
        let cause =
            if self.seen.is_suspended { "the daemon was stopped" } else { "the daemon died" };
        let mut what = cause.to_owned();
        if let Some((last, now)) = self.seen.last.zip(time(line)) {
            let _ = write!(what, "; the line before is {} old", span((now - last).num_seconds()));
        }
        if number("killed") > 0 {
            let _ = write!(what, ", killed {}", counted(number("killed"), "orphaned tool"));
        }
        if number("count") > 1 {
            let _ = write!(what, ", resumption {}", number("count"));
        }
        what
    }

    /// Describes how a run ended. If time passed in which the run did not work, adds the whole time.
    fn ending(&self, line: &RawLine) -> String {
        let mut what = ending(&line.event);
        let worked = line.event.get("duration_ms").and_then(Value::as_i64);
        let whole = self.seen.began.zip(time(line)).map(|(began, now)| now - began);
        if let Some((worked, whole)) = worked.zip(whole)
            && whole.num_milliseconds() - worked >= GAP_MS
        {
            let _ = write!(what, " of work within {}", span(whole.num_seconds()));
        }
        what
    }

    fn resolved(&self, line: &RawLine) -> String {
        let event = &line.event;
        let text = |field: &str| event.get(field).and_then(Value::as_str);
        let waited = event.get("waited_ms").and_then(Value::as_u64).unwrap_or_default();
        let mut what = match (text("by"), text("reason")) {
            (Some(by), _) => format!("by {by} after {waited} ms"),
            (None, Some(_)) => format!("after {waited} ms"),
            (None, None) => format!("no answer within {waited} ms"),
        };
        if let Some(reason) = text("reason") {
            let _ = write!(what, ": {reason}");
        }
        match event.get("approved").and_then(Value::as_bool) {
            Some(true) => self.entry(line, "approved", Tone::Good, &what),
            _ => self.entry(line, "denied", Tone::Bad, &what),
        }
    }

    fn answer(&self, line: &RawLine) -> String {
        let text = line.event.get("text").and_then(Value::as_str).unwrap_or_default();
        let calls = self.calls(line);
        let mut out = String::new();
        if !text.trim().is_empty() || calls.is_empty() {
            let (what, text) = match text.trim() {
                "" => ("", "(nothing)"),
                _ if self.repeats(text) => ("unchanged", ""),
                _ => ("", text),
            };
            out.push_str(&self.block(line, "answer", Tone::Plain, what, text));
        }
        out + &calls
    }

    /// Renders the tool calls of an answer; empty if it has none.
    fn calls(&self, line: &RawLine) -> String {
        let calls = line.event.get("tool_calls").and_then(Value::as_array);
        calls
            .into_iter()
            .flatten()
            .map(|call| {
                let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
                let arguments = call
                    .get("arguments")
                    .or_else(|| call.get("arguments_text"))
                    .map(Value::to_string)
                    .unwrap_or_default();
                let what = format!("{name} {}", fold_line(&arguments));
                self.entry(line, "call", Tone::Plain, &what)
            })
            .collect()
    }

    /// Renders how the start of an MCP server ended. A warning gives the reason of a failure.
    fn server(&self, line: &RawLine) -> String {
        let event = &line.event;
        let name = event.get("server").and_then(Value::as_str).unwrap_or_default();
        let tools = event.get("tools").and_then(Value::as_array).map_or(0, Vec::len);
        match event.get("error") {
            None | Some(Value::Null) => {
                let what = format!("{name} is ready ({})", counted(tools, "tool"));
                self.entry(line, "server", Tone::Faint, &what)
            }
            Some(_) => self.entry(line, "server", Tone::Bad, &format!("{name} cannot be used")),
        }
    }

    fn call_end(&self, line: &RawLine) -> String {
        let event = &line.event;
        let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
        let mut facts = Vec::new();
        if let Some(code) = event.get("exit_code").and_then(Value::as_i64) {
            facts.push(format!("exit {code}"));
        }
        if let Some(signal) = event.get("signal").and_then(Value::as_i64) {
            facts.push(format!("signal {signal}"));
        }
        facts.push(format!(
            "{} ms",
            event.get("duration_ms").and_then(Value::as_u64).unwrap_or_default()
        ));
        facts.push(format!(
            "{} bytes",
            event.get("output_bytes").and_then(Value::as_u64).unwrap_or_default()
        ));
        if !text("output_file").is_empty() {
            facts.push(format!("full output in {}", text("output_file")));
        }
        let is_error = event.get("is_error").and_then(Value::as_bool).unwrap_or_default();
        let (word, tone) =
            if is_error { (text("error_kind"), Tone::Bad) } else { ("done", Tone::Good) };
        self.block(
            line,
            word,
            tone,
            &format!("{} ({})", text("name"), facts.join(", ")),
            text("output"),
        )
    }

    fn preflight(&self, line: &RawLine) -> String {
        let items = line.event.get("items").and_then(Value::as_array);
        let failed: Vec<String> = items
            .into_iter()
            .flatten()
            .filter(|item| item.get("ok") == Some(&Value::Bool(false)))
            .map(|item| {
                let text =
                    |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default();
                format!("{}: {}", text("name"), text("detail"))
            })
            .collect();
        if failed.is_empty() {
            self.entry(
                line,
                "check",
                Tone::Good,
                &format!("all {} ok", counted(items.map_or(0, Vec::len), "item")),
            )
        } else {
            self.entry(line, "check", Tone::Bad, &failed.join("; "))
        }
    }

    fn entry(&self, line: &RawLine, word: &str, tone: Tone, what: &str) -> String {
        if what.is_empty() {
            return format!(
                "{}  {}\n",
                self.paint(&clock(line), Tone::Faint),
                self.paint(&one_line(word), tone)
            );
        }
        let padded = format!("{:<9}", one_line(word));
        format!(
            "{}  {} {}\n",
            self.paint(&clock(line), Tone::Faint),
            self.paint(&padded, tone),
            Wrap::new(self.width, " ".repeat(ENTRY), ENTRY).push(&one_line(what))
        )
    }

    fn block(&self, line: &RawLine, word: &str, tone: Tone, what: &str, text: &str) -> String {
        let mut out = self.entry(line, word, tone, what);
        for shown in fold(text) {
            let _ = writeln!(out, "{}{}", self.margin(), self.wrap_text().push(&shown));
        }
        out
    }

    fn paint(&self, text: &str, tone: Tone) -> String {
        if !self.color {
            return text.to_owned();
        }
        match tone {
            Tone::Plain => text.bold().to_string(),
            Tone::Good => text.green().to_string(),
            Tone::Bad => text.red().to_string(),
            Tone::Odd => text.yellow().to_string(),
            Tone::Faint => text.dimmed().to_string(),
        }
    }
}

impl Seen {
    fn note(&mut self, line: &RawLine) {
        let text = |field: &str| line.event.get(field).and_then(Value::as_str).unwrap_or_default();
        let at = time(line);
        self.began = self.began.or(at);
        self.last = at.or(self.last);
        self.is_suspended = text("type") == "session_suspended";
        if text("type") == "assistant_text_end" {
            text("text").clone_into(&mut self.answer);
        }
    }
}

/// Returns the time of day of a line; the heading above has the day and the zone.
fn clock(line: &RawLine) -> String {
    line.ts.get(11..23).unwrap_or(&line.ts).to_owned()
}

fn time(line: &RawLine) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(&line.ts).ok().map(|at| at.to_utc())
}
