//! `dutyd pause`, `dutyd unpause`, `dutyd ack` and `dutyd backfill`: stop the schedule of a job, put it
//! into effect again, silence the state of a job, and run a job for due times of the past.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{AckArgs, BackfillArgs, PauseArgs, UnpauseArgs};
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::run::path_segment;
use super::time::{later_moment, moment};

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
    let now = context.clock.now();
    let until = args.until.as_deref().map(|text| later_moment(text, now)).transpose()?;
    let (path, who) = subject(args.job.as_deref(), "pause");
    let body = json!({"note": args.note, "until": until});
    let answer: Value = Client::require(context)?.post(&path, &body).await?;
    output::value(context.form, &answer, || {
        let end = match (until, &args.job) {
            (Some(until), _) => until.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
            (None, Some(job)) => format!("`dutyd unpause {job}`"),
            (None, None) => "`dutyd unpause --all`".to_owned(),
        };
        format!("{who} paused until {end}\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn unpause(context: &Context, args: &UnpauseArgs) -> Result<ExitCode, CliError> {
    let (path, who) = subject(args.job.as_deref(), "unpause");
    let answer: Value = Client::require(context)?.post(&path, &json!({})).await?;
    output::value(context.form, &answer, || {
        match answer.get("was_paused").and_then(Value::as_bool) {
            Some(true) => format!("{who} not paused any more\n"),
            _ => format!("{who} not paused\n"),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of a request about a job or all jobs, and the begin of the sentence about it.
fn subject(job: Option<&str>, verb: &str) -> (String, String) {
    match job {
        Some(job) => (format!("/jobs/{}/{verb}", path_segment(job)), format!("{job} is")),
        None => (format!("/{verb}"), "all jobs are".to_owned()),
    }
}

pub(crate) async fn ack(context: &Context, args: &AckArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let until = args.until.as_deref().map(|text| later_moment(text, now)).transpose()?;
    let path = format!("/jobs/{}/ack", path_segment(&args.job));
    let body = json!({"until": until});
    let answer: Value = Client::require(context)?.post(&path, &body).await?;
    let Some(state) = answer.get("state").and_then(Value::as_str) else {
        return Err(CliError::failed("the answer of the daemon does not tell the state"));
    };
    output::value(context.form, &answer, || {
        let end = match until {
            Some(until) => until.format(", or until %Y-%m-%d %H:%M:%S UTC").to_string(),
            None => String::new(),
        };
        format!("{}: the state `{state}` is silenced until it changes{end}\n", args.job)
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
