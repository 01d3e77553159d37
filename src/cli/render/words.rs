//! The words of a rendered entry: times, spans, argv, and folded texts.

use chrono::DateTime;
use serde_json::Value;

use super::super::output::counted;
use crate::text::escape::one_line;

/// Lines shown of a text. A longer text is folded and shows half as many at each end.
const SHOWN_LINES: usize = 24;

/// Characters shown of a folded line. A line that is at most a quarter longer is not folded.
const SHOWN_CHARACTERS: usize = 240;

/// Formats a time of a transcript with date and zone; returns a text that is not a time unchanged.
pub(super) fn moment(text: &str) -> String {
    let at = DateTime::parse_from_rfc3339(text).map(|at| at.to_utc());
    at.map_or_else(|_| text.to_owned(), |at| at.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

pub(super) fn span(seconds: i64) -> String {
    let span = std::time::Duration::from_secs(seconds.unsigned_abs());
    humantime::format_duration(span).to_string()
}

/// Tells whether [`fold`] shows all of a text.
pub(crate) fn is_shown_whole(text: &str) -> bool {
    fold(text) == text.trim_end().lines().map(one_line).collect::<Vec<String>>()
}

/// Describes how a run began.
pub(super) fn start(event: &Value) -> String {
    let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
    let slot = event
        .get("scheduled_for")
        .and_then(Value::as_str)
        .map(|due| format!(" for {}", moment(due)))
        .unwrap_or_default();
    let by = match person(event) {
        Some(person) => format!("{person} ({})", text("trigger")),
        None => text("trigger").to_owned(),
    };
    let tools = event.get("tools").and_then(Value::as_array).map_or(0, Vec::len);
    format!(
        "{} by {by}{slot}, model {} ({}), {}, on {}",
        text("job"),
        text("model"),
        text("provider"),
        counted(tools, "tool"),
        text("host")
    )
}

/// Describes how a run ended.
pub(super) fn ending(event: &Value) -> String {
    let number = |field: &str| event.get(field).and_then(Value::as_u64).unwrap_or_default();
    let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
    let tokens = event.get("usage").map_or(0, |usage| {
        let number = |field: &str| usage.get(field).and_then(Value::as_u64).unwrap_or_default();
        number("input_tokens") + number("output_tokens")
    });
    let is_estimated = event.get("cost_estimated").and_then(Value::as_bool) == Some(true);
    let estimated = if is_estimated { " (estimated)" } else { "" };
    let cost = match event.get("cost_usd").and_then(Value::as_f64) {
        Some(cost) if cost > 0.0 => format!(", {cost:.4} USD{estimated}"),
        Some(_) => String::new(),
        None => ", cost unknown".to_owned(),
    };
    let by = person(event).map(|person| format!(" by {person}")).unwrap_or_default();
    format!(
        "{} ({}){by} after {}, {}, {}{cost}, {} ms",
        text("outcome"),
        text("stop_reason"),
        counted(number("iterations"), "iteration"),
        counted(number("tool_calls"), "call"),
        counted(tokens, "token"),
        number("duration_ms")
    )
}

/// Describes a text that a person gave to the run.
pub(super) fn given(event: &Value) -> String {
    let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
    let kind = text("kind").replace('_', "-");
    let by = person(event).map(|person| format!(" by {person}")).unwrap_or_default();
    format!("{kind}{by}, {} characters", text("text").chars().count())
}

/// Returns the person who began or cancelled the run.
fn person(event: &Value) -> Option<&str> {
    event.get("by")?.get("user")?.as_str()
}

/// Returns the words of a program as a shell could read them, folded.
pub(super) fn argv(event: &Value) -> String {
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

/// Returns the lines of a text, each escaped. Leaves out the middle of a long text.
pub(super) fn fold(text: &str) -> Vec<String> {
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

/// Escapes a line, and leaves out the middle of a long one.
pub(super) fn fold_line(line: &str) -> String {
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

/// Says how much shorter the history became.
pub(super) fn compaction(event: &Value) -> String {
    let count = event.get("call_ids").and_then(Value::as_array).map_or(0, Vec::len);
    let size = |key: &str| event.pointer(key).unwrap_or(&Value::Null);
    let (before, after) = (size("/estimated_tokens/before"), size("/estimated_tokens/after"));
    format!("{count} old results removed: about {before} tokens before, {after} after")
}
