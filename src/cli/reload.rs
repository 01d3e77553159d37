//! `dutyd reload`: makes the daemon reload its configuration.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;

pub(crate) async fn reload(context: &Context) -> Result<ExitCode, CliError> {
    let answer: Value = Client::require(context)?.post("/reload", &json!({})).await?;
    output::value(context.form, &answer, || {
        let digest = answer.get("digest").and_then(Value::as_str).unwrap_or_default();
        let what = match answer.get("changed").and_then(Value::as_bool) {
            Some(true) => "loaded",
            _ => "unchanged",
        };
        let widened = answer.get("widened").and_then(Value::as_array).into_iter().flatten();
        let widened: String = widened
            .filter_map(Value::as_str)
            .map(|job| format!("`{job}` gained rights\n"))
            .collect();
        let restart = answer.get("needs_restart").and_then(Value::as_array).into_iter().flatten();
        let restart: String = restart
            .filter_map(Value::as_str)
            .map(|key| format!("`{key}` in config.yaml takes effect only after a restart\n"))
            .collect();
        format!("configuration {} {what}\n{widened}{restart}", digest.get(..8).unwrap_or(digest))
    })?;
    Ok(ExitCode::SUCCESS)
}
