//! `dutyd jobs`

use std::process::ExitCode;

use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::config::Trust;
use crate::daemon::{JobRow, job_rows};
use crate::store::Index;

pub(crate) async fn jobs(context: &Context) -> Result<ExitCode, CliError> {
    let rows: Vec<JobRow> = match Client::find(context)? {
        Some(client) => client.list("/jobs", &()).await?,
        None => {
            let config = context.config(Trust::Advised)?;
            let last_runs = Index::last_runs_of_file(&context.dirs.state)
                .map_err(|error| CliError::failed(error.to_string()))?;
            job_rows(&config, &last_runs.unwrap_or_default(), context.clock.now())
        }
    };
    output::value(context.form, &rows, || {
        output::table(
            &["job", "schedule", "next", "last", "verdict"],
            rows.iter().map(|row| {
                let next = row.next_fire.map_or_else(
                    || if row.enabled { String::new() } else { "not enabled".to_owned() },
                    |next| next.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
                );
                let last = row.last_run.as_ref();
                vec![
                    row.name.clone(),
                    row.schedule.clone().unwrap_or_else(|| "by hand".to_owned()),
                    next,
                    last.and_then(|last| last.outcome.clone()).unwrap_or_else(|| "-".to_owned()),
                    last.and_then(|last| last.verdict.clone()).unwrap_or_else(|| "-".to_owned()),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
