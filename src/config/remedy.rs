//! The lines to write instead of keys and values that other agents and schedulers take, or that are
//! easily mistyped. The hints of schema errors come from here.

use serde_json::Value;

use super::raw::{DURATION, SIZE};
use super::shell_syntax;

/// Keys of a job that are limits of its runs.
const LIMITS: &[&str] = &[
    "max_iterations",
    "max_tool_calls",
    "max_duration",
    "max_tokens",
    "max_cost_usd",
    "tool_timeout",
    "output_limit",
];

/// Returns what to write instead of the unknown key `key` of the object at `place`, in the notation
/// of `reserved.rs`; `None` if we do not know what it was meant for.
pub(super) fn of_key(place: &str, key: &str, value: Option<&Value>) -> Option<String> {
    match (place, key) {
        ("tools.tools[]", "command" | "run" | "shell") => of_command(value),
        ("jobs.jobs[]", "timeout") => {
            let span = value.and_then(duration).unwrap_or_else(|| "30m".to_owned());
            Some(format!(
                "write `limits: {{max_duration: {span}}}` for a run, or `limits: {{tool_timeout: {span}}}` for each call"
            ))
        }
        ("jobs.jobs[]", "cron") => {
            let text = value.and_then(Value::as_str).unwrap_or("0 9 * * *");
            Some(format!("write `schedule: {}`", Value::from(text)))
        }
        ("jobs.jobs[]", "interval") => {
            let span = value.and_then(duration).unwrap_or_else(|| "10m".to_owned());
            Some(format!("write `every: {span}`"))
        }
        ("jobs.jobs[]", key) if LIMITS.contains(&key) => {
            let value = value.filter(|value| value.is_number() || value.is_string());
            let value = value.map_or("…".to_owned(), |value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            Some(format!("write `limits: {{{key}: {value}}}`"))
        }
        _ => None,
    }
}

fn of_command(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(line) => Some(shell_syntax::keys_for(line)),
        Value::Array(words) => {
            let (program, args) = words.split_first()?;
            let args = Value::from(args.to_vec());
            Some(format!("write `cmd: {}` and `args: {args}`", program.as_str()?))
        }
        _ => None,
    }
}

/// Returns what to write instead of `found`, a value of the wrong type at `pointer`. `pattern` is
/// that of the string which the schema wants there.
pub(super) fn of_value(
    place: &str,
    pointer: &str,
    found: &Value,
    pattern: Option<&str>,
) -> Option<String> {
    let key = pointer.rsplit('/').next().unwrap_or_default();
    match (pattern, found) {
        (Some(DURATION), Value::Number(number)) => Some(format!(
            "write a number and a unit: `{key}: {number}s` for seconds, `{key}: {number}m` for minutes"
        )),
        (Some(SIZE), Value::Number(number)) => {
            Some(format!("write a number and a unit, such as `{key}: {number}MiB`"))
        }
        (None, Value::Array(names)) if place == "jobs.jobs[].tools" => {
            let names: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
            let names = names?.join(", ");
            Some(format!(
                "write `tools: {{read: [{names}]}}`; tools that change something go under `write` or `admin`, by their category"
            ))
        }
        _ => None,
    }
}

fn duration(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(format!("{number}s")),
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}
