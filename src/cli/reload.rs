//! `dutyd reload`: makes the daemon reload its configuration.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::pause::lost_pauses;

/// The column in which a line goes on if the terminal is too narrow for it.
const MARGIN: usize = 2;

pub(crate) async fn reload(context: &Context) -> Result<ExitCode, CliError> {
    let answer: Value = Client::require(context)?.post("/reload", &json!({})).await?;
    let list = |key: &str| {
        let list = answer.get(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let (is_changed, values) =
        (answer.get("changed").and_then(Value::as_bool) == Some(true), list("values"));
    output::value(context.form, &answer, || {
        let digest = answer.get("digest").and_then(Value::as_str).unwrap_or_default();
        let what = if is_changed {
            "loaded"
        } else if values.is_empty() {
            "unchanged"
        } else {
            "unchanged, with new values"
        };
        let values: String =
            values.iter().map(|name| format!("`{name}` has a new value\n")).collect();
        let widened = answer.get("widened").and_then(Value::as_array).into_iter().flatten();
        let widened: String = widened
            .filter_map(Value::as_str)
            .map(|job| format!("`{job}` gained rights\n"))
            .collect();
        let lost = lost_pauses(&list("paused_removed"), &list("added"));
        let lost: String = lost.iter().map(|line| format!("{line}\n")).collect();
        let restart = answer.get("needs_restart").and_then(Value::as_array).into_iter().flatten();
        let restart: String = restart
            .filter_map(Value::as_str)
            .map(|key| format!("`{key}` in config.yaml takes effect only after a restart\n"))
            .collect();
        let digest = digest.get(..8).unwrap_or(digest);
        let text = format!("configuration {digest} {what}\n{values}{widened}{lost}{restart}");
        output::hanging(&text, MARGIN)
    })?;
    if !is_changed && values.is_empty() {
        output::note(
            "`${NAME}` and `${credential:NAME}` have the values of the daemon's start: restart it to use others",
        );
    }
    Ok(ExitCode::SUCCESS)
}
