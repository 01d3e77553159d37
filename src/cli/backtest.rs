//! `dutyd replay` and `dutyd backtest`: compare recorded runs with a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use super::args::{BacktestArgs, ReplayArgs};
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::progress::Progress;
use super::source;
use super::time::{first_id, moment};
use crate::config::{Config, Trust};
use crate::run::{
    Compared, Costs, Difference, DifferenceKind, Learned, Replay, ReplayReport, RunHistory, Side,
};
use crate::sinks::Observers;
use crate::store::{Ledger, LedgerReader, RecordFacts, RunDir, StateDir};

/// The column in which the reason of a difference goes on.
const MARGIN: usize = 4;

/// Most lines about differences of calls that people are shown.
const MOST_LINES: usize = 50;

pub(crate) async fn replay(context: &Context, args: &ReplayArgs) -> Result<ExitCode, CliError> {
    let context = &source::beside_daemon(context).await?;
    let config = context.config_for_reading(Trust::Advised)?;
    let run = context.find_run(&args.run)?;
    compare(context, &config, Compared::CallsAndPrompt, &|_, take| take(&run))
}

pub(crate) async fn backtest(context: &Context, args: &BacktestArgs) -> Result<ExitCode, CliError> {
    let context = &source::beside_daemon(context).await?;
    if !super::access::exists_and_readable(&context.dirs.state)? {
        let state = context.dirs.state.display();
        return Err(CliError::not_found(format!("the state directory {state} does not exist"))
            .hint("use --state-dir to name the directory with the records"));
    }
    let since = args.since.as_deref().map(|text| moment(text, context.clock.now())).transpose()?;
    let since = since.map(first_id).unwrap_or_default();
    let config = changed(context, args)?;
    if let Some(job) = &args.job {
        context.job(&config, job)?;
    }
    let is_meant = |run: &RunDir| {
        run.run_id().as_str() >= since.as_str()
            && args.job.as_ref().is_none_or(|job| {
                // A record without a first line is not left out: the report names it.
                RunHistory::read_start(&run.transcript()).is_none_or(|start| start.job == *job)
            })
    };
    compare(context, &config, Compared::Calls, &|state, take| {
        let (mut progress, mut count, mut wrong) = (Progress::new(), 0, Ok(()));
        let listed = state.each_run(|run| {
            if is_meant(run) {
                wrong = take(run);
                count += 1;
                progress.show(count);
            }
            wrong.is_ok()
        });
        listed.map_err(|error| super::access::denied(&state.root().join("runs"), &error))?;
        wrong
    })
}

/// Loads the changed configuration as if it were installed in the current directory, so that the rules
/// that close this directory to tools apply.
fn changed(context: &Context, args: &BacktestArgs) -> Result<Arc<Config>, CliError> {
    let mut of_directory = context.clone();
    of_directory.dirs.config.clone_from(&args.against);
    let config = of_directory.config_for_reading(Trust::Advised)?;
    let current = &context.dirs.config;
    let is_installed = super::access::exists_and_readable(current)?;
    let directory = if is_installed { current } else { &args.against }.clone();
    Ok(Arc::new(Config { directory, ..Config::clone(&config) }))
}

/// Passes runs on to the second argument, which may fail.
type EachRun<'a> =
    &'a dyn Fn(&StateDir, &mut dyn FnMut(&RunDir) -> Result<(), CliError>) -> Result<(), CliError>;

/// Compares the runs that `each` passes on, and prints the report.
fn compare(
    context: &Context,
    config: &Config,
    compared: Compared,
    each: EachRun<'_>,
) -> Result<ExitCode, CliError> {
    let (host, state) = (context.host(Observers::default()), context.state());
    let learned = source::unless_lost(Learned::read_file(&context.dirs.state).map(Some))?;
    let learned = learned.unwrap_or_default();
    let mut replay = Replay::new(config, &host, &learned, compared);
    let mut take_all = |ledger: Option<&LedgerReader<'_>>| {
        each(&state, &mut |run| {
            let end = ledger.map(|reader| reader.record_end(run.run_id().as_str())).transpose();
            let end = end
                .map_err(|error| CliError::failed("cannot read the ledger").because(&error))?
                .flatten();
            let (live, is_open) = (state.is_live(run.run_id()), state.is_open(run.run_id()));
            let facts = RecordFacts { live, is_open, skips_files: true, end };
            let taken = replay.take(run, &facts);
            taken.map_err(|error| super::access::denied(&run.transcript(), &error))
        })
    };
    let read = Ledger::read_file(&context.dirs.state, |reader| Ok(take_all(Some(reader))));
    match source::unless_lost(read)? {
        Some(taken) => taken?,
        None => take_all(None)?,
    }
    let report = replay.end();
    output::value(context.form, &report, || text(&report))?;
    Ok(Exit::of_check(report.ok).into())
}

/// Renders the report for people. Differences that have the same cause share a line.
fn text(report: &ReplayReport) -> String {
    let mut alike: BTreeMap<_, (&Difference, u64, BTreeSet<&str>)> = BTreeMap::new();
    for difference in &report.differences {
        let Difference { job, name, kind, reason, recorded, today, run_id, .. } = difference;
        let sides = format!("{recorded:?}{today:?}");
        let (_, count, runs) = alike
            .entry((job, name, kind, reason, sides))
            .or_insert_with(|| (difference, 0, BTreeSet::new()));
        *count += 1;
        runs.insert(run_id);
    }
    let mut out = String::new();
    for (difference, count, runs) in alike.values().take(MOST_LINES) {
        out.push_str(&lines_about(difference, *count, runs.len()));
    }
    if alike.len() > MOST_LINES {
        let more = alike.len() - MOST_LINES;
        out.push_str(&format!("and {more} more; `-o json` has all of them\n"));
    }
    for run in &report.not_compared {
        out.push_str(&format!("{} was not compared: {}\n", run.run_id, run.reason));
    }
    let Costs { recorded, today } = report.cost_usd;
    let cost = |cost: Option<f64>| match cost {
        Some(cost) => format!("{cost:.4} USD"),
        None => "unknown".to_owned(),
    };
    let found = match report.differences.len() {
        0 => "no differences".to_owned(),
        count => output::counted(count, "difference"),
    };
    let word = if report.ok { "ok" } else { "NOT ok" };
    let (runs, calls) =
        (output::counted(report.runs, "run"), output::counted(report.calls, "call"));
    out.push_str(&format!("{word}: {found} in {runs}, {calls}\n"));
    out.push_str(&format!("cost: recorded {}, today {}\n", cost(recorded), cost(today)));
    output::hanging(&out, MARGIN)
}

/// Returns the lines about a difference that occurs `count` times in `runs` runs.
fn lines_about(difference: &Difference, count: u64, runs: usize) -> String {
    let Difference { run_id, job, seq, name, kind, recorded, today, reason, .. } = difference;
    let place = match count {
        1 => format!("{run_id}, line {}", seq + 1),
        _ => {
            let (count, runs) = (output::counted(count, "time"), output::counted(runs, "run"));
            format!("{count} in {runs}, first in {run_id}, line {}", seq + 1)
        }
    };
    let head = match kind {
        DifferenceKind::Prompt | DifferenceKind::Tools => format!("{job}: {name} ({run_id})\n"),
        kind => format!("{job}: {name}: {} ({place})\n", kind.as_str()),
    };
    let side = |side: &Side| match side {
        Side::Decision(decision) => decision.as_str().to_owned(),
        Side::Words(words) => {
            let words: Vec<String> = words.iter().map(|word| output::shell_word(word)).collect();
            words.join(" ")
        }
        Side::Line(line) => line.clone(),
    };
    let (recorded, today) = (side(recorded), side(today));
    match kind {
        DifferenceKind::Argv | DifferenceKind::Prompt | DifferenceKind::Tools => {
            format!("{head}    recorded: {recorded}\n    today:    {today}\n")
        }
        _ => format!("{head}    recorded: {recorded}; today: {today}, {reason}\n"),
    }
}
