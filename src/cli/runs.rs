//! `dutyd runs`

use std::process::ExitCode;

use chrono::SecondsFormat;

use super::args::RunsArgs;
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::time::moment;
use crate::server::RunsQuery;
use crate::store::{Index, RunFilter, RunRow};

pub(crate) async fn runs(context: &Context, args: &RunsArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let at = |text: &Option<String>| -> Result<Option<String>, CliError> {
        let at = text.as_deref().map(|text| moment(text, now)).transpose()?;
        Ok(at.map(|at| at.to_rfc3339_opts(SecondsFormat::Micros, true)))
    };
    let (since, until) = (at(&args.since)?, at(&args.until)?);
    let rows: Vec<RunRow> = match Client::find(context)? {
        Some(client) => {
            let query = RunsQuery {
                job: args.job.clone(),
                outcome: args.outcome.clone(),
                verdict: args.verdict.clone(),
                since,
                until,
                limit: Some(args.limit),
            };
            client.list("/runs", &query).await?
        }
        None => {
            let filter = RunFilter {
                job: args.job.clone(),
                outcome: args.outcome.clone(),
                verdict: args.verdict.clone(),
                since,
                until,
                limit: args.limit,
            };
            Index::read_file(&context.dirs.state, &filter)
                .map_err(|error| CliError::failed(error.to_string()))?
                .unwrap_or_default()
        }
    };
    output::value(context.form, &rows, || {
        output::table(
            &[
                "run",
                "job",
                "trigger",
                "started (UTC)",
                "outcome",
                "stop reason",
                "verdict",
                "calls",
                "cost (USD)",
            ],
            rows.iter().map(|row| {
                vec![
                    row.run_id.clone(),
                    row.job.clone(),
                    row.trigger.clone(),
                    row.started_at.get(..19).unwrap_or(&row.started_at).replace('T', " "),
                    row.outcome.clone().unwrap_or_else(|| "running".to_owned()),
                    row.stop_reason.clone().unwrap_or_else(|| "-".to_owned()),
                    row.verdict.clone().unwrap_or_else(|| "-".to_owned()),
                    row.tool_calls.to_string(),
                    row.cost_usd.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.4}")),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
