//! `dutyd pause`, `dutyd unpause` and `dutyd backfill`: stop the schedule of a job, put it into effect
//! again, and run a job for due times of the past.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{BackfillArgs, PauseArgs, UnpauseArgs};
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::run::path_segment;
use super::time::moment;

/// Returns a line for each paused job that is not in the configuration. `added` are the jobs that
/// came with the last load and are not paused.
pub(super) fn lost_pauses(removed: &[String], added: &[String]) -> Vec<String> {
    let added: Vec<String> = added.iter().map(|job| format!("`{job}`")).collect();
    let new = if added.is_empty() {
        "a job that got another name is not paused".to_owned()
    } else {
        format!("new and not paused: {}", added.join(", "))
    };
    let line = |job: &String| {
        format!(
            "`{job}` is paused, but not in the configuration any more (`dutyd unpause {job}` ends the pause); {new}"
        )
    };
    removed.iter().map(line).collect()
}

pub(crate) async fn pause(context: &Context, args: &PauseArgs) -> Result<ExitCode, CliError> {
    let path = format!("/jobs/{}/pause", path_segment(&args.job));
    let answer: Value = Client::require(context)?.post(&path, &json!({"note": args.note})).await?;
    output::value(context.form, &answer, || {
        format!("{} is paused until `dutyd unpause {}`\n", args.job, args.job)
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn unpause(context: &Context, args: &UnpauseArgs) -> Result<ExitCode, CliError> {
    let path = format!("/jobs/{}/unpause", path_segment(&args.job));
    let answer: Value = Client::require(context)?.post(&path, &json!({})).await?;
    output::value(context.form, &answer, || {
        match answer.get("was_paused").and_then(Value::as_bool) {
            Some(true) => format!("{} is not paused any more\n", args.job),
            _ => format!("{} was not paused\n", args.job),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn backfill(context: &Context, args: &BackfillArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let (from, to) = (moment(&args.from, now)?, moment(&args.to, now)?);
    let path = format!("/jobs/{}/backfill", path_segment(&args.job));
    let body = json!({"from": from, "to": to, "again": args.again});
    let answer: Value = Client::require(context)?.post(&path, &body).await?;
    let slots = answer.get("slots").and_then(Value::as_u64).unwrap_or_default();
    output::value(context.form, &answer, || format!("{slots}\n"))?;
    Ok(ExitCode::SUCCESS)
}
