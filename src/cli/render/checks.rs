//! Renders the last round of checks of a run, which `show` prints before the answer.

use serde_json::Value;

use super::words::fold;
use super::{Renderer, Tone};
use crate::store::RawLine;
use crate::text::escape::one_line;

impl Renderer {
    /// Renders each check of the last round, with the output of its call; empty if the run made none.
    pub(crate) fn checks(&self, lines: &[RawLine]) -> String {
        let of_type = |kind: &'static str| {
            lines.iter().map(|line| &line.event).filter(move |event| text(event, "type") == kind)
        };
        let Some(last) = of_type("verify").next_back().map(round) else { return String::new() };
        let mut out = String::new();
        for check in of_type("verify").filter(|check| round(check) == last) {
            let ok = check.get("ok").and_then(Value::as_bool) == Some(true);
            let (word, tone) = if ok { ("passed", Tone::Good) } else { ("failed", Tone::Bad) };
            let what = format!("{}: {}", text(check, "tool"), text(check, "detail"));
            out.push_str(&format!("check {} {}\n", self.paint(word, tone), one_line(&what)));
            let is_own = |end: &&Value| text(end, "call_id") == text(check, "call_id");
            let output = of_type("tool_call_end").find(is_own);
            let shown = output.map_or("", |end| match text(end, "output") {
                "" => text(end, "view"),
                output => output,
            });
            out.push_str(&self.marked(&fold(shown).join("\n")));
        }
        out
    }
}

fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    event.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the part of the id of a check that names its round.
fn round(check: &Value) -> &str {
    text(check, "call_id").rsplit_once('_').map_or("", |(round, _)| round)
}
