//! `dutyd trial`: asks a model again with the recorded results of the tools.

use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;

use super::access::{check_state_owner, denied};
use super::approvals::Terminal;
use super::args::TrialArgs;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::source;
use super::time::{first_id, moment};
use crate::config::{Config, Trust};
use crate::run::{Learned, NotCompared, Recorded, RunHistory, TrialRow, trial as try_run};
use crate::sinks::Observers;
use crate::store::{Ledger, RecordFacts, RunDir};
use crate::text::escape::one_line;

/// The period of `--job` without `--since`.
const PERIOD: &str = "7d";

/// The report of `dutyd trial`.
///
/// *Shape*: `{"ok":false,"runs":[…],"cost_usd":0.02,"not_compared":[]}`
#[derive(Debug, Serialize)]
struct TrialReport {
    /// Whether each run was tried and came to its recorded verdict.
    ok: bool,
    runs: Vec<TrialRow>,
    /// The cost of the trial in US dollars; null if a price is unknown.
    cost_usd: Option<f64>,
    not_compared: Vec<NotCompared>,
}

pub(crate) async fn trial(context: &Context, args: &TrialArgs) -> Result<ExitCode, CliError> {
    check_state_owner(&context.dirs)?;
    let context = &source::beside_daemon(context).await?;
    let config = context.config(Trust::Required)?;
    if let Some(name) = &args.model
        && !config.models.contains_key(name.as_str())
    {
        return Err(CliError::not_found(format!("there is no model `{name}` in config.yaml")));
    }
    let host = context.host(Observers::default());
    let learned = source::unless_lost(Learned::read_file(&context.dirs.state).map(Some))?;
    let learned = learned.unwrap_or_default();
    let model = args.model.as_deref();
    let mut report =
        TrialReport { ok: true, runs: Vec::new(), cost_usd: Some(0.0), not_compared: Vec::new() };
    let (mut runs, mut estimate) = (Vec::new(), Some(0.0));
    for run in selected(context, &config, args)? {
        match read(context, &run)? {
            Ok(recorded) => {
                let cost = recorded.estimate(&config, &host, &learned, model);
                estimate = estimate.zip(cost).map(|(sum, cost)| sum + cost);
                runs.push(run);
            }
            Err(reason) => {
                let run_id = run.run_id().to_string();
                report.not_compared.push(NotCompared { run_id, reason });
            }
        }
    }
    consent(args, runs.len(), estimate).await?;
    for run in runs {
        let left = args.max_cost_usd.map(|most| most - report.cost_usd.unwrap_or(most));
        let run_id = run.run_id().to_string();
        let tried = match read(context, &run)? {
            // The recorded tokens are the best estimate of what the run needs.
            Ok(recorded)
                if left.is_some_and(|left| {
                    recorded.estimate(&config, &host, &learned, model) > Some(left)
                }) =>
            {
                Err("--max-cost-usd leaves too little".to_owned())
            }
            Ok(recorded) => {
                try_run(&recorded, &config, &host, &context.new_run_id(), model, left).await
            }
            Err(reason) => Err(reason),
        };
        match tried {
            Ok(row) => {
                let cost = report.cost_usd.zip(row.cost_usd.today);
                report.cost_usd = cost.map(|(sum, cost)| sum + cost);
                report.runs.push(row);
            }
            Err(reason) => report.not_compared.push(NotCompared { run_id, reason }),
        }
    }
    report.ok = report.not_compared.is_empty() && report.runs.iter().all(TrialRow::is_same);
    output::value(context.form, &report, || text(&report))?;
    Ok(Exit::of_check(report.ok).into())
}

/// Returns the runs to try, oldest first.
fn selected(
    context: &Context,
    config: &Arc<Config>,
    args: &TrialArgs,
) -> Result<Vec<RunDir>, CliError> {
    if let Some(run) = &args.run {
        return Ok(vec![context.find_run(run)?]);
    }
    let Some(job) = &args.job else {
        return Err(CliError::usage("name a run, or a job with --job"));
    };
    context.job(config, job)?;
    let since = args.since.as_deref().unwrap_or(PERIOD);
    let since = first_id(moment(since, context.clock.now())?);
    let state = context.state();
    let mut runs = Vec::new();
    let listed = state.each_run(|run| {
        let is_meant = run.run_id().as_str() >= since.as_str()
            && RunHistory::read_start(&run.transcript()).is_none_or(|start| start.job == *job);
        if is_meant {
            runs.push(run.clone());
        }
        true
    });
    listed.map_err(|error| denied(&state.root().join("runs"), &error))?;
    Ok(runs)
}

/// Reads the record of a run.
///
/// *Errors* (inside): why the run cannot be tried.
fn read(context: &Context, run: &RunDir) -> Result<Result<Recorded, String>, CliError> {
    let state = context.state();
    let id = run.run_id().as_str();
    let end = Ledger::read_file(&context.dirs.state, |reader| reader.record_end(id));
    let end = source::unless_lost(end)?.flatten();
    let (live, is_open) = (state.is_live(run.run_id()), state.is_open(run.run_id()));
    let facts = RecordFacts { live, is_open, skips_files: true, end };
    Recorded::read(run, &facts).map_err(|error| denied(&run.transcript(), &error))
}

/// Tells what the trial would cost, and asks whether to begin.
///
/// *Errors*: nobody can be asked, the answer is no, or the cost cannot be limited.
async fn consent(args: &TrialArgs, runs: usize, estimate: Option<f64>) -> Result<(), CliError> {
    let runs = output::counted(runs as u64, "run");
    let cost = match estimate {
        Some(cost) => format!("about {cost:.4} USD at today's prices"),
        None => "an unknown amount, because a model has no price".to_owned(),
    };
    if estimate.is_none() && args.max_cost_usd.is_some() {
        let message = "--max-cost-usd cannot be enforced: the model has no price";
        return Err(CliError::usage(message).hint("set `price` of the model in config.yaml"));
    }
    output::note(&format!("a trial of {runs} costs {cost}"));
    if args.yes || estimate == Some(0.0) {
        return Ok(());
    }
    if !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        return Err(CliError::usage("nobody can be asked: standard input is not a terminal")
            .hint("use --yes to begin without asking"));
    }
    if Terminal::new().yes("Begin?").await {
        Ok(())
    } else {
        Err(CliError::failed("nothing was done"))
    }
}

fn text(report: &TrialReport) -> String {
    let usd = |cost: Option<f64>| cost.map_or("unknown".to_owned(), |cost| format!("{cost:.4}"));
    let rows = report.runs.iter().map(|row| {
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
        let outcome = row.outcome.today.map_or("unanswered", |outcome| outcome.as_str());
        vec![
            row.run_id.clone(),
            format!("{} -> {}", word(&row.verdict.recorded), word(&row.verdict.today)),
            outcome.to_owned(),
            format!("{} same, {} other", row.calls.same, row.calls.other),
            format!("{} -> {}", usd(row.cost_usd.recorded), usd(row.cost_usd.today)),
        ]
    });
    let mut out = output::table(&["run", "verdict", "outcome", "calls", "usd"], rows);
    for row in &report.runs {
        if let Some(error) = &row.error {
            out.push_str(&format!("{}: {}\n", row.run_id, one_line(error)));
        }
    }
    for run in &report.not_compared {
        out.push_str(&format!("{} was not tried: {}\n", run.run_id, one_line(&run.reason)));
    }
    let word = if report.ok { "ok: no verdict differs" } else { "NOT ok" };
    out.push_str(&format!("{word}; cost {} USD\n", usd(report.cost_usd)));
    out
}
