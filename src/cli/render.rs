//! Renders a transcript for people, event by event.
//!
//! Text from models and tools is escaped. A long text is folded: a mark in its middle tells how
//! many lines or characters are hidden there.

use std::fmt::Write as _;

use owo_colors::OwoColorize as _;
use serde_json::Value;

use super::output::counted;
use super::wrap::Wrap;
use crate::store::RawLine;
use crate::text::escape::{for_terminal, one_line};

/// Lines shown of a text. A longer text is folded and shows half as many at each end.
const SHOWN_LINES: usize = 24;

/// Characters shown of a folded line. A line that is at most a quarter longer is not folded.
const SHOWN_CHARACTERS: usize = 240;

/// Columns to the left of the bar (`|`) that begins each line of a text.
const TEXT_BAR: usize = 16;

/// Columns that the time and the label of an entry occupy, before its text.
const ENTRY: usize = 24;

pub(crate) struct Renderer {
    color: bool,
    /// Columns of a line; `None` disables wrapping.
    width: Option<usize>,
    pub(crate) with_system_prompt: bool,
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
        Self { color, width, with_system_prompt: false }
    }

    /// Returns the prefix of each line of a text.
    pub(crate) fn margin(&self) -> String {
        format!("{:TEXT_BAR$}{} ", "", self.paint("|", Tone::Faint))
    }

    /// Returns a wrapper for a text. The caller prints the margin of its first line.
    pub(crate) fn wrap_text(&self) -> Wrap {
        Wrap::new(self.width, self.margin(), TEXT_BAR + 2)
    }

    /// Renders an event; empty if the event is not shown.
    pub(crate) fn event(&self, line: &RawLine) -> String {
        let event = &line.event;
        let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
        let number = |field: &str| event.get(field).and_then(Value::as_u64).unwrap_or_default();
        match text("type") {
            "session_start" => self.entry(line, "start", Tone::Faint, &start(event)),
            "system_prompt" if self.with_system_prompt => {
                self.block(line, "system", Tone::Faint, "", text("text"))
            }
            "user_input" => {
                self.block(line, "task", Tone::Plain, source(text("source")), text("text"))
            }
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
                let what = format!("{} until {}", text("approval_id"), text("expires_at"));
                self.entry(line, "waits", Tone::Odd, &what)
            }
            "approval_resolved" => self.resolved(line),
            "plan_step" => {
                let what = match argv(event) {
                    argv if argv.is_empty() => text("name").to_owned(),
                    argv => format!("$ {argv}"),
                };
                self.entry(line, "planned", Tone::Odd, &format!("step {}: {what}", number("step")))
            }
            "tool_call_end" => self.call_end(line),
            "steering_injected" => {
                self.block(line, "steering", Tone::Odd, text("source"), text("text"))
            }
            "turn_limit" => self.entry(
                line,
                "limit",
                Tone::Bad,
                &format!("{} = {}", text("limit"), event.get("value").unwrap_or(&Value::Null)),
            ),
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
            "preflight" => self.preflight(line),
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
                &ending(event),
            ),
            "system_prompt" | "processing_end" => String::new(),
            other => self.entry(line, other, Tone::Faint, ""),
        }
    }

    /// Renders the outcome with the result, which `show` prints first and `run` prints last.
    pub(crate) fn result(&self, end: &Value) -> String {
        let text = |field: &str| end.get(field).and_then(Value::as_str).unwrap_or_default();
        let outcome = text("outcome");
        let tone = if outcome == "succeeded" { Tone::Good } else { Tone::Bad };
        let mut out = format!("{} ({})", self.paint(outcome, tone), text("stop_reason"));
        if let Some(verdict) = end.get("verdict").and_then(Value::as_str) {
            let _ = write!(out, ", verdict {}", one_line(verdict));
        }
        out.push('\n');
        if let Some(error) = end.get("error").and_then(Value::as_str) {
            let error = Wrap::new(self.width, String::new(), 0).push(&for_terminal(error));
            let _ = writeln!(out, "{}", self.paint(&error, Tone::Bad));
        }
        match end.get("result") {
            Some(Value::String(text)) => {
                let _ = writeln!(out, "\n{}", for_terminal(text.trim_end()));
            }
            Some(Value::Null) | None => {}
            Some(object) => {
                let _ = writeln!(
                    out,
                    "\n{}",
                    for_terminal(&serde_json::to_string_pretty(object).unwrap_or_default())
                );
            }
        }
        out
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
            let text = if text.trim().is_empty() { "(nothing)" } else { text };
            out.push_str(&self.block(line, "answer", Tone::Plain, "", text));
        }
        out + &calls
    }

    /// Renders the tool calls of an answer; empty if it has none.
    pub(crate) fn calls(&self, line: &RawLine) -> String {
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
                &format!("all {} items ok", items.map_or(0, Vec::len)),
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

fn clock(line: &RawLine) -> String {
    line.ts.get(11..23).unwrap_or(&line.ts).to_owned()
}

fn start(event: &Value) -> String {
    let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
    let slot = event
        .get("scheduled_for")
        .and_then(Value::as_str)
        .map(|due| format!(" for {due}"))
        .unwrap_or_default();
    let tools = event.get("tools").and_then(Value::as_array).map_or(0, Vec::len);
    format!(
        "{} by {}{slot}, model {} ({}), {}, on {}",
        text("job"),
        text("trigger"),
        text("model"),
        text("provider"),
        counted(tools, "tool"),
        text("host")
    )
}

fn ending(event: &Value) -> String {
    let number = |field: &str| event.get(field).and_then(Value::as_u64).unwrap_or_default();
    let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
    let tokens = event.get("usage").map_or(0, |usage| {
        let number = |field: &str| usage.get(field).and_then(Value::as_u64).unwrap_or_default();
        number("input_tokens") + number("output_tokens")
    });
    let cost = match event.get("cost_usd").and_then(Value::as_f64) {
        Some(cost) if cost > 0.0 => format!(", {cost:.4} USD"),
        Some(_) => String::new(),
        None => ", cost unknown".to_owned(),
    };
    format!(
        "{} ({}) after {}, {}, {}{cost}, {} ms",
        text("outcome"),
        text("stop_reason"),
        counted(number("iterations"), "iteration"),
        counted(number("tool_calls"), "call"),
        counted(tokens, "token"),
        number("duration_ms")
    )
}

fn source(word: &str) -> &str {
    match word {
        "job" => "",
        other => other,
    }
}

fn argv(event: &Value) -> String {
    let words: Vec<String> = event
        .get("argv")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|word| {
            let plain = !word.is_empty()
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&b));
            if plain { word.to_owned() } else { Value::from(word).to_string() }
        })
        .collect();
    fold_line(&words.join(" "))
}

fn fold(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let shown = |lines: &[&str]| lines.iter().map(|line| fold_line(line)).collect::<Vec<_>>();
    if lines.len() <= SHOWN_LINES {
        return shown(&lines);
    }
    let half = SHOWN_LINES / 2;
    let (head, rest) = lines.split_at(half);
    let (middle, tail) = rest.split_at(rest.len() - half);
    let mut out = shown(head);
    out.push(format!("… {} lines …", middle.len()));
    out.extend(shown(tail));
    out
}

fn fold_line(line: &str) -> String {
    let line = one_line(line);
    let count = line.chars().count();
    if count <= SHOWN_CHARACTERS + SHOWN_CHARACTERS / 4 {
        return line;
    }
    let half = SHOWN_CHARACTERS / 2;
    let head: String = line.chars().take(half).collect();
    let tail: String = line.chars().skip(count - half).collect();
    format!("{head} … {} characters … {tail}", count - 2 * half)
}
