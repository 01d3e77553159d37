//! `dutyd show`: prints the record of a run.

use std::io::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{OutputForm, ShowArgs};
use super::context::Context;
use super::error::CliError;
use super::output;
use super::render::Renderer;
use super::runs::row_without_record;
use super::source::{self, Source, Wanted};
use super::wrap::terminal_width;
use crate::domain::Event;
use crate::store::{RawLine, ReadLine, RunSummary, VerifyReport, known};
use crate::text::escape::one_line;

/// A record, from the daemon or from the files.
struct Record {
    run_id: String,
    bytes: Vec<u8>,
    /// The path of the transcript; `None` if the daemon sent it.
    path: Option<std::path::PathBuf>,
    is_live: bool,
}

pub(crate) async fn show(context: &Context, args: &ShowArgs) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Record).await?;
    if let Some(row) = row_without_record(context, &source, &args.run).await? {
        if args.raw {
            return Err(no_record_error(&row));
        }
        let people = || {
            let state = if row.ended_at.is_some() { "ended in the queue" } else { "queued" };
            let why = row.error.as_deref().map(|why| format!(": {}", one_line(why)));
            let why = why.unwrap_or_default();
            output::hanging(&format!("run {} of {}\n{state}{why}\n", row.run_id, row.job), 2)
        };
        output::value(context.form, &json!({"run": &row, "events": []}), people)?;
        return Ok(ExitCode::SUCCESS);
    }
    let record = record(context, &source, &args.run).await?;
    if args.raw {
        output::raw(&record.bytes);
        return Ok(ExitCode::SUCCESS);
    }
    if context.form == OutputForm::Table {
        output::raw(people(context, &record)?.as_bytes());
    } else {
        let lines: Vec<ReadLine> = parsed(&record)?;
        let row = RunSummary::fold(&lines).ok_or_else(|| {
            CliError::failed(format!(
                "the record of {} does not begin with `session_start`",
                record.run_id
            ))
        })?;
        let events: Vec<Value> = parsed(&record)?;
        output::value(context.form, &json!({"run": row, "events": events}), String::new)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the error for a run that has a row but no record.
pub(crate) fn no_record_error(row: &RunSummary) -> CliError {
    let why = if row.ended_at.is_some() { "it ended in the queue" } else { "it has not begun" };
    CliError::not_found(format!("the run `{}` has no record: {why}", row.run_id))
}

async fn record(context: &Context, source: &Source, name: &str) -> Result<Record, CliError> {
    match source {
        Source::Daemon(daemon) => {
            let run_id = daemon.run_id(name).await?;
            let bytes = daemon.client.bytes(&format!("/runs/{run_id}/transcript")).await?;
            let report: VerifyReport =
                daemon.client.get(&format!("/runs/{run_id}/verify"), &()).await?;
            Ok(Record { run_id, bytes, path: None, is_live: report.live })
        }
        Source::Files(_) => {
            let run = context.find_run(name)?;
            let path = run.transcript();
            let bytes =
                std::fs::read(&path).map_err(|error| super::access::denied(&path, &error))?;
            let is_live = context.state().is_live(run.run_id());
            Ok(Record { run_id: run.run_id().to_string(), bytes, path: Some(path), is_live })
        }
    }
}

/// Parses the complete lines of a record.
///
/// *Errors*: a line cannot be parsed; the message gives its number.
fn parsed<T: serde::de::DeserializeOwned>(record: &Record) -> Result<Vec<T>, CliError> {
    let whole = record.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let lines = record.bytes.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n');
    let lines = lines.enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(at, line)| {
            serde_json::from_slice(line).map_err(|error| {
                let run = &record.run_id;
                CliError::failed(format!("line {} of {run} cannot be read", at + 1))
                    .because(&error)
                    .hint("--raw prints the record unchanged")
            })
        })
        .collect()
}

/// Describes a run that has not ended.
fn open_state(record: &Record, lines: &[ReadLine]) -> &'static str {
    if record.is_live {
        return "still running";
    }
    let last = lines.last().and_then(known);
    let is_suspended = matches!(last, Some(Event::SessionSuspended { .. }));
    match (&record.path, is_suspended) {
        (None, _) => "not running: the daemon continues the run or marks it as interrupted",
        (Some(_), true) => "suspended until the next start of the daemon",
        (Some(_), false) => {
            "not ended: the next start of the daemon continues or interrupts the run"
        }
    }
}

fn people(context: &Context, record: &Record) -> Result<String, CliError> {
    let mut renderer = Renderer::new(context.color, terminal_width());
    let lines: Vec<ReadLine> = parsed(record)?;
    let raw: Vec<RawLine> = parsed(record)?;
    let mut out = format!("run {}\n", record.run_id);
    let has_ended = |line: &ReadLine| matches!(known(line), Some(Event::SessionEnd(_)));
    match lines.iter().rposition(has_ended).and_then(|at| raw.get(at)) {
        Some(end) => {
            out.push_str(&renderer.outcome(&end.event));
            out.push_str(&renderer.checks(&raw));
            out.push_str(&renderer.final_answer(&end.event));
        }
        None => out.push_str(&format!("{}\n", open_state(record, &lines))),
    }
    out.push('\n');
    for line in &raw {
        out.push_str(&renderer.event(line));
    }
    if let Some(path) = &record.path {
        out.push_str(&format!("\n{}\n", path.display()));
    }
    let _ = std::io::stdout().flush();
    Ok(out)
}
