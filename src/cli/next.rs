//! `dutyd next`

use std::process::ExitCode;

use super::args::NextArgs;
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::time::moment;
use crate::config::Trust;
use crate::daemon::{NextRow, next_rows};

pub(crate) async fn next(context: &Context, args: &NextArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let from = args.from.as_deref().map(|text| moment(text, now)).transpose()?;
    let daemon = if from.is_none() { Client::find(context)? } else { None };
    let rows: Vec<NextRow> = match daemon {
        Some(client) => {
            client.list("/next", &serde_json::json!({"job": args.job, "count": args.count})).await?
        }
        None => {
            let from = from.unwrap_or(now);
            // Checked as of the moment that is asked about: a year that is over by now may lie ahead of it.
            let config = context.config_as_of(Trust::Advised, from.min(now))?;
            let job = args.job.as_deref().map(|name| context.job(&config, name)).transpose()?;
            next_rows(&config, job.map(AsRef::as_ref), from, args.count)
        }
    };
    output::value(context.form, &rows, || {
        output::table(
            &["job", "due (UTC)", "local", "starts (UTC)"],
            rows.iter().map(|row| {
                vec![
                    row.job.clone(),
                    row.due_at.format("%Y-%m-%d %H:%M:%S").to_string(),
                    row.local.clone(),
                    row.starts_at.format("%H:%M:%S%.3f").to_string(),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
