//! `dutyd jobs`: lists the jobs.

use std::process::ExitCode;

use super::context::Context;
use super::error::CliError;
use super::output;
use super::source::{self, Source, Wanted};
use crate::config::Trust;
use crate::daemon::{JobRow, job_rows};
use crate::store::{Index, Ledger};

pub(crate) async fn jobs(context: &Context) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Configuration).await?;
    let rows: Vec<JobRow> = match &source {
        Source::Daemon(daemon) => daemon.client.list("/jobs", &()).await?,
        Source::Files(_) => {
            let config = context.config_for_reading(Trust::Advised)?;
            let last_runs =
                Index::last_runs_of_file(&context.state()).map_err(source::of_database)?;
            let state = context.state();
            let now = context.clock.now();
            let read = Ledger::read_file(state.root(), |reader| {
                Ok((reader.pauses()?, reader.acknowledgements(now)?))
            });
            let (pauses, acknowledgements) = source::unless_lost(read)?.unwrap_or_default();
            job_rows(&config, &last_runs, pauses, acknowledgements, now)
        }
    };
    output::value(context.form, &rows, || {
        output::table(
            &["job", "schedule", "next", "last", "verdict"],
            rows.iter().map(|row| {
                let next = match row.next_fire {
                    _ if row.paused => match row.paused_until {
                        Some(until) => {
                            format!("paused until {}", until.format("%Y-%m-%d %H:%M UTC"))
                        }
                        None => "paused".to_owned(),
                    },
                    Some(next) => next.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
                    None if row.enabled => String::new(),
                    None => "disabled".to_owned(),
                };
                let last = row.last_run.as_ref();
                vec![
                    row.name.clone(),
                    row.schedule.clone().unwrap_or_else(|| "manual".to_owned()),
                    next,
                    match (last.and_then(|last| last.outcome), &row.acknowledged) {
                        (None, _) => "-".to_owned(),
                        (Some(outcome), None) => outcome.to_string(),
                        (Some(outcome), Some(_)) => format!("{outcome} (acknowledged)"),
                    },
                    last.and_then(|last| last.verdict.clone()).unwrap_or_else(|| "-".to_owned()),
                ]
            }),
        )
    })?;
    source.tell(context.form);
    Ok(ExitCode::SUCCESS)
}
