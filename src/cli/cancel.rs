//! `dutyd cancel`

use std::process::ExitCode;

use super::args::CancelArgs;
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::domain::RunId;
use crate::server::RunsQuery;
use crate::store::RunRow;

pub(crate) async fn cancel(context: &Context, args: &CancelArgs) -> Result<ExitCode, CliError> {
    let client = Client::require(context)?;
    let run_id = resolve(&client, &args.run).await?;
    client.post(&format!("/runs/{run_id}/cancel"), &serde_json::json!({})).await?;
    output::note(&format!("{run_id} is being stopped"));
    Ok(ExitCode::SUCCESS)
}

/// Returns the run that `name` means, asking the daemon where it is no whole id.
async fn resolve(client: &Client, name: &str) -> Result<String, CliError> {
    if RunId::parse(name).is_ok() {
        return Ok(name.to_owned());
    }
    let job = name.strip_suffix("@last").map(str::to_owned);
    let query = RunsQuery {
        limit: Some(if name == "last" || job.is_some() { 1 } else { 1000 }),
        job: job.clone(),
        ..RunsQuery::default()
    };
    let rows: Vec<RunRow> = client.list("/runs", &query).await?;
    let lower = name.to_ascii_lowercase();
    let mut found = rows
        .into_iter()
        .map(|row| row.run_id)
        .filter(|id| name == "last" || job.is_some() || id.starts_with(&lower));
    match (found.next(), found.next()) {
        (Some(id), None) => Ok(id),
        (None, _) => Err(CliError::not_found(format!("there is no run `{name}`"))),
        (Some(_), Some(_)) => Err(CliError::usage(format!(
            "`{name}` is the beginning of several runs: write more of it"
        ))),
    }
}
