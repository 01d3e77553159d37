//! `dutyd show`

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{OutputForm, ShowArgs};
use super::context::Context;
use super::error::CliError;
use super::output;
use super::story::Story;
use crate::store::{ReadLine, RunDir, RunRow, read_lines};

pub(crate) fn show(context: &Context, args: &ShowArgs) -> Result<ExitCode, CliError> {
    let run = context.find_run(&args.run)?;
    let path = run.transcript();
    let unreadable =
        |error: &dyn std::fmt::Display| CliError::failed(format!("{}: {error}", path.display()));
    if args.raw {
        let mut file = std::fs::File::open(&path).map_err(|error| unreadable(&error))?;
        let copied = std::io::copy(&mut file, &mut std::io::stdout().lock());
        // A reader that went away is no fault.
        return match copied {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(unreadable(&error)),
            _ => Ok(ExitCode::SUCCESS),
        };
    }
    let lines: Vec<ReadLine> = read_lines(&path)
        .and_then(|lines| lines.map(|line| line.map_err(std::io::Error::other)).collect())
        .map_err(|error| unreadable(&error))?;
    if context.form == OutputForm::Table {
        output::raw(people(context, &run, &lines).as_bytes());
    } else {
        let row = RunRow::fold(&lines)
            .ok_or_else(|| CliError::failed(format!("{} holds no run", path.display())))?;
        let value = json!({"run": row, "events": lines});
        output::value(context.form, &value, String::new)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn people(context: &Context, run: &RunDir, lines: &[ReadLine]) -> String {
    let story = Story::new(context.color);
    let is =
        |line: &&ReadLine, word: &str| line.event.get("type").and_then(Value::as_str) == Some(word);
    let mut out = format!("run {}\n", run.run_id());
    match lines.iter().rev().find(|line| is(line, "session_end")) {
        Some(end) => out.push_str(&story.result(&end.event)),
        None if context.state().is_live(run.run_id()) => out.push_str("still running\n"),
        None => out.push_str("not ended: the next start of the daemon ends it as interrupted\n"),
    }
    out.push('\n');
    for line in lines {
        out.push_str(&story.tell(line));
    }
    out.push_str(&format!("\n{}\n", run.transcript().display()));
    out
}
