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
use crate::run::{
    Estimate, Learned, NotCompared, Recorded, RunHistory, TrialRow, Unfit, trial as try_run,
};
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
    /// Whether each run was tried and came to its recorded verdict and outcome.
    ok: bool,
    runs: Vec<TrialRow>,
    /// The cost of the trial in US dollars; null if a price is unknown, or a request was cut off.
    cost_usd: Option<f64>,
    not_compared: Vec<NotCompared>,
    /// Number of runs of the job that have not ended, or in which no model answered.
    left_out: u64,
}

pub(crate) async fn trial(context: &Context, args: &TrialArgs) -> Result<ExitCode, CliError> {
    check_state_owner(&context.dirs)?;
    let context = &source::beside_daemon(context).await?;
    let config = context.config(Trust::Required)?;
    if let Some(name) = &args.model
        && !config.models.contains_key(name.as_str())
    {
        return Err(CliError::not_found(format!("config.yaml has no model `{name}`")));
    }
    let host = context.host(Observers::default());
    let learned = source::unless_lost(Learned::read_file(&context.dirs.state).map(Some))?;
    let learned = learned.unwrap_or_default();
    let model = args.model.as_deref();
    let mut report = TrialReport {
        ok: true,
        runs: Vec::new(),
        cost_usd: Some(0.0),
        not_compared: Vec::new(),
        left_out: 0,
    };
    let mut runs = Vec::new();
    let mut estimate = Estimate { usd: Some(0.0), is_free: true };
    for run in selected(context, &config, args)? {
        let estimated = match read(context, &run)? {
            Ok(recorded) => recorded.estimate(&config, &host, &learned, model),
            // The runs of a job include those that were not needed.
            Err(Unfit::NothingToCompare(_)) if args.job.is_some() => {
                report.left_out += 1;
                continue;
            }
            Err(Unfit::NothingToCompare(why) | Unfit::Unreadable(why)) => Err(why),
        };
        match estimated {
            Ok(one) => {
                estimate.usd = estimate.usd.zip(one.usd).map(|(sum, one)| sum + one);
                estimate.is_free &= one.is_free;
                runs.push((run, one));
            }
            Err(reason) => report.refuse(&run, reason),
        }
    }
    consent(args, runs.len(), estimate).await?;
    let mut is_stopped = false;
    for (run, estimate) in runs {
        let left = args.max_cost_usd.map(|most| most - report.cost_usd.unwrap_or(most));
        // The recorded tokens are the best estimate of what the run needs.
        if is_stopped || left.is_some_and(|left| estimate.usd > Some(left)) {
            let why = if is_stopped {
                "the trial was stopped"
            } else {
                "--max-cost-usd leaves too little"
            };
            report.refuse(&run, why.to_owned());
            continue;
        }
        let recorded = match read(context, &run)? {
            Ok(recorded) => recorded,
            Err(Unfit::NothingToCompare(why) | Unfit::Unreadable(why)) => {
                report.refuse(&run, why);
                continue;
            }
        };
        let trial_id = context.new_run_id();
        let tried = tokio::select! {
            tried = try_run(&recorded, &config, &host, &trial_id, model, left) => Some(tried),
            () = super::run::wait_for_signal() => None,
        };
        match tried {
            Some(Ok(row)) => {
                let cost = report.cost_usd.zip(row.cost_usd.today);
                report.cost_usd = cost.map(|(sum, cost)| sum + cost);
                report.runs.push(row);
            }
            Some(Err(reason)) => report.refuse(&run, reason),
            None => {
                is_stopped = true;
                report.refuse(&run, "the trial was stopped".to_owned());
                // The request that was cut off may have a cost.
                report.cost_usd = report.cost_usd.filter(|_| estimate.is_free);
                let removed = host.state.remove_temporary(&trial_id).await;
                removed.map_err(|error| {
                    CliError::failed("cannot remove the temporary directory").because(&error)
                })?;
            }
        }
    }
    report.ok = report.not_compared.is_empty() && report.runs.iter().all(TrialRow::is_same);
    output::value(context.form, &report, || text(&report))?;
    Ok(if is_stopped { Exit::Cancelled } else { Exit::of_check(report.ok) }.into())
}

impl TrialReport {
    fn refuse(&mut self, run: &RunDir, reason: String) {
        self.not_compared.push(NotCompared { run_id: run.run_id().to_string(), reason });
    }
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
fn read(context: &Context, run: &RunDir) -> Result<Result<Recorded, Unfit>, CliError> {
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
/// *Errors*: standard input is not a terminal, the answer is no, or the cost cannot be limited.
async fn consent(args: &TrialArgs, runs: usize, estimate: Estimate) -> Result<(), CliError> {
    if runs == 0 {
        return Ok(());
    }
    let runs = output::counted(runs as u64, "run");
    let cost = match estimate.usd {
        Some(cost) => format!("about {cost:.4} USD at today's prices"),
        None => "an unknown amount: a price or a number of tokens is unknown".to_owned(),
    };
    if estimate.usd.is_none() && args.max_cost_usd.is_some() {
        let message = "--max-cost-usd cannot be enforced: a price or a number of tokens is unknown";
        return Err(CliError::usage(message).hint("set `price` of the model in config.yaml"));
    }
    output::note(&format!("a trial of {runs} costs {cost}"));
    if args.yes || estimate.is_free {
        return Ok(());
    }
    if !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        return Err(CliError::usage("cannot ask for consent: standard input is not a terminal")
            .hint("use --yes to begin without asking"));
    }
    if Terminal::new().yes("Begin?").await {
        Ok(())
    } else {
        Err(CliError::failed("the trial was cancelled"))
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
    if report.left_out > 0 {
        let runs = output::counted(report.left_out, "run");
        out.push_str(&format!(
            "left out {runs} that have not ended or in which no model answered\n"
        ));
    }
    let word = if report.ok { "ok: no verdict or outcome differs" } else { "NOT ok" };
    out.push_str(&format!("{word}; cost {} USD\n", usd(report.cost_usd)));
    out
}
