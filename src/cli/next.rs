//! `dutyd next`: lists the next due times.

use std::process::ExitCode;

use super::args::NextArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::source::{self, Source, Wanted};
use super::time::moment;
use serde_json::json;

use crate::config::{SecretsMode, Trust};
use crate::daemon::{NextRow, next_rows};
use crate::store::Ledger;

pub(crate) async fn next(context: &Context, args: &NextArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let from = args.from.as_deref().map(|text| moment(text, now)).transpose()?;
    let source = source::find(context, Wanted::Configuration).await?;
    let rows: Vec<NextRow> = match &source {
        Source::Daemon(daemon) => {
            let query = json!({"job": args.job, "count": args.count, "from": from});
            daemon.client.list("/next", &query).await.map_err(|error| daemon.explained(error))?
        }
        Source::Files(_) => {
            let from = from.unwrap_or(now);
            // If `from` is in the past, check the files as of `from`: a schedule that is over now
            // may still have slots after `from`.
            let config =
                context.config_as_of(Trust::Advised, from.min(now), SecretsMode::Tolerate)?;
            let job = args.job.as_deref().map(|name| context.job(&config, name)).transpose()?;
            let state = context.state();
            let requested =
                Ledger::read_file(state.root(), |reader| reader.runs_requested_for_later(now));
            let requested = source::unless_lost(requested)?.unwrap_or_default();
            next_rows(&config, job.map(AsRef::as_ref), requested, from, args.count)
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
                    match row.run_id {
                        Some(_) => "requested".to_owned(),
                        None => row.starts_at.format("%H:%M:%S%.3f").to_string(),
                    },
                ]
            }),
        )
    })?;
    for row in &rows {
        if let Some(local) = &row.skipped {
            let job = &row.job;
            output::note(&format!("`{job}` skips {local}: the clock is set forward over it"));
        }
    }
    if let Some(job) = args.job.as_deref().filter(|_| rows.is_empty()) {
        output::note(&format!(
            "`{job}` has no upcoming slots: it is disabled, or its schedule is missing or over"
        ));
    }
    source.tell(context.form);
    Ok(ExitCode::SUCCESS)
}
