//! `dutyd runs`: lists runs, newest first.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::args::RunsArgs;
use super::context::Context;
use super::error::{CliError, ErrorKind};
use super::output;
use super::source::{self, Source, Wanted};
use super::time::moment;
use crate::config::Trust;
use crate::domain::StopReason;
use crate::server::RunsQuery;
use crate::store::{self, Index, Ledger, RunFilter, RunState, RunSummary, all_runs};

pub(crate) async fn runs(context: &Context, args: &RunsArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let at = |text: &Option<String>| -> Result<Option<String>, CliError> {
        let at = text.as_deref().map(|text| moment(text, now)).transpose()?;
        Ok(at.map(store::moment))
    };
    let query = RunsQuery {
        job: args.job.clone(),
        outcome: args.outcome.clone(),
        verdict: args.verdict.clone(),
        refused: args.refused.then_some(true),
        since: at(&args.since)?,
        until: at(&args.until)?,
        prefix: None,
        // Request one run more than we show, to learn whether the list is cut.
        limit: Some(args.limit.saturating_add(1)),
    };
    let source = source::find(context, Wanted::Record).await?;
    let mut rows: Vec<RunSummary> = match &source {
        Source::Daemon(daemon) => daemon.client.list("/runs", &query).await?,
        Source::Files(_) => of_files(context, query.filter().map_err(CliError::usage)?)?,
    };
    let is_cut = rows.len() > usize::try_from(args.limit).unwrap_or(usize::MAX);
    rows.truncate(usize::try_from(args.limit).unwrap_or(usize::MAX));
    let is_suspended = |row: &RunSummary| {
        row.state() == RunState::Running && source.is_suspended(context, &row.run_id)
    };
    output::value(context.form, &rows, || table(&rows, is_suspended))?;
    if is_cut {
        output::note(&format!("showing only {}: use --limit to show more", args.limit));
    }
    source.tell(context.form);
    Ok(ExitCode::SUCCESS)
}

/// Returns the newest runs.
///
/// *Errors*: neither a daemon nor the files can be read.
pub(crate) async fn newest(context: &Context, limit: u32) -> Result<Vec<RunSummary>, CliError> {
    match source::find(context, Wanted::Record).await? {
        Source::Daemon(daemon) => {
            let query = RunsQuery { limit: Some(limit), ..RunsQuery::default() };
            daemon.client.list("/runs", &query).await
        }
        Source::Files(_) => of_files(context, RunFilter { limit, ..RunFilter::default() }),
    }
}

/// Returns the row of a run that is queued, or that ended in the queue, and so has no record;
/// `None` for any other name.
pub(crate) async fn row_without_record(
    context: &Context,
    source: &Source,
    name: &str,
) -> Result<Option<RunSummary>, CliError> {
    let row = match source {
        Source::Daemon(daemon) => {
            let run_id = daemon.run_id(name).await?;
            match daemon.client.get::<RunSummary>(&format!("/runs/{run_id}"), &()).await {
                Ok(row) => Some(row),
                // The run may have a record that is damaged or not in the index.
                Err(error) if error.kind == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            }
        }
        Source::Files(_) if context.find_run(name).is_ok() => None,
        Source::Files(_) => {
            let prefix = Some(name.to_ascii_lowercase());
            let filter = RunFilter { prefix, limit: 2, ..RunFilter::default() };
            let mut rows = of_files(context, filter)?;
            rows.pop().filter(|_| rows.is_empty())
        }
    };
    Ok(row.filter(|row| row.started_at.is_none()))
}

fn of_files(context: &Context, filter: RunFilter) -> Result<Vec<RunSummary>, CliError> {
    let state = &context.dirs.state;
    let queue = source::unless_lost(Ledger::read_file(state, |reader| reader.queue_rows()))?;
    let open = context.state().open_rows();
    let ended = Index::read_file(&context.state(), &filter).map_err(source::of_database)?;
    let rows = all_runs(queue.unwrap_or_default(), open, ended, &filter);
    if rows.is_empty()
        && let Some(job) = &filter.job
    {
        must_know(context, job)?;
    }
    Ok(rows)
}

/// Checks that the ledger, the index or the configuration knows a job.
///
/// *Errors*: none of them does, or one cannot be read.
pub(crate) fn must_know(context: &Context, job: &str) -> Result<(), CliError> {
    let state = &context.dirs.state;
    let in_ledger = Ledger::read_file(state, |reader| reader.knows_job(job));
    let of_job = RunFilter { job: Some(job.to_owned()), limit: 1, ..RunFilter::default() };
    if source::unless_lost(in_ledger)? == Some(true) {
        return Ok(());
    }
    let in_index = Index::read_file(&context.state(), &of_job).map_err(source::of_database)?;
    if !in_index.is_empty() {
        return Ok(());
    }
    let config = context.config_for_reading(Trust::Advised)?;
    context.job(&config, job).map(drop)
}

fn table(rows: &[RunSummary], is_suspended: impl Fn(&RunSummary) -> bool) -> String {
    let header = ["run", "job", "started (UTC)", "outcome", "calls", "USD"];
    let absent = || "-".to_owned();
    output::table(
        &header,
        rows.iter().map(|row| {
            let started = row.started_at.as_deref();
            vec![
                row.run_id.clone(),
                row.job.clone(),
                started.map_or_else(absent, |at| at.get(..19).unwrap_or(at).replace('T', " ")),
                if is_suspended(row) { "suspended".to_owned() } else { outcome(row) },
                row.tool_calls.to_string(),
                match (row.cost_usd, row.cost_estimated) {
                    (None, _) => absent(),
                    (Some(cost), false) => format!("{cost:.4}"),
                    (Some(cost), true) => format!("{cost:.4} (estimated)"),
                },
            ]
        }),
    )
}

/// Formats the state of a run, the stop reason unless it is `completed`, and the verdict.
fn outcome(row: &RunSummary) -> String {
    let mut out = row.state().as_str().to_owned();
    if let Some(reason) = row.stop_reason.filter(|reason| *reason != StopReason::Completed) {
        let _ = write!(out, ": {reason}");
    }
    if let Some(waits_for) = &row.waits_for {
        let _ = write!(out, ": waits for {waits_for}");
    }
    if let Some(verdict) = &row.verdict {
        let _ = write!(out, ", {verdict}");
    }
    if row.refused_calls > 0 {
        let _ = write!(out, ", {} refused", row.refused_calls);
    }
    out
}
