//! Completion of words at the prompt of a shell. The names of jobs, tools and models and the ids of runs
//! are those of the moment: the script that `dutyd completions` prints calls this program.

use std::ffi::OsString;

use clap::{Arg, Command, FromArgMatches as _};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use super::args::Cli;
use super::context::Context;
use super::{help, runs};
use crate::config::{Config, FileSet, SecretsMode, Trust};

/// The variable by which the script asks for words. Its value is the name of the shell.
const VARIABLE: &str = "DUTYD_COMPLETE";

/// The most ids of runs that are offered, the newest.
const MOST_RUNS: u32 = 50;

/// Answers the script of a shell, and ends the process then. Does nothing if no script asks.
pub(super) fn answer_shell() {
    clap_complete::CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Returns the script that registers the completion in a shell.
///
/// *Errors*: the shell is unknown.
pub(super) fn script(shell: clap_complete::Shell) -> std::io::Result<Vec<u8>> {
    let shells = clap_complete::env::Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    let completer = completer.ok_or_else(|| std::io::Error::other("the shell is unknown"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "dutyd", "dutyd", "dutyd", &mut script)?;
    Ok(script)
}

/// Returns the command line whose arguments know their values.
fn command() -> Command {
    help::command().mut_subcommands(|verb| verb.mut_args(with_candidates))
}

fn with_candidates(arg: Arg) -> Arg {
    let candidates = match arg.get_id().as_str() {
        "job" => ArgValueCandidates::new(jobs),
        "tool" => ArgValueCandidates::new(tools),
        "model" => ArgValueCandidates::new(models),
        "run" => ArgValueCandidates::new(run_ids),
        "target" => ArgValueCandidates::new(|| run_ids().into_iter().chain(jobs()).collect()),
        _ => return arg,
    };
    arg.add(candidates)
}

fn jobs() -> Vec<CompletionCandidate> {
    let config = context().and_then(|context| config(&context));
    let jobs = config.iter().flat_map(|config| config.jobs.values());
    let candidate = |job: &std::sync::Arc<crate::config::Job>| {
        let about = job.description.as_deref().map(crate::text::escape::one_line);
        CompletionCandidate::new(job.name.as_str()).help(about.map(Into::into))
    };
    jobs.map(candidate).collect()
}

fn tools() -> Vec<CompletionCandidate> {
    let config = context().and_then(|context| config(&context));
    let tools = config.iter().flat_map(|config| config.tools.keys());
    tools.map(|tool| CompletionCandidate::new(tool.as_str())).collect()
}

fn models() -> Vec<CompletionCandidate> {
    let config = context().and_then(|context| config(&context));
    let models = config.iter().flat_map(|config| config.models.keys());
    models.map(|model| CompletionCandidate::new(model.as_str())).collect()
}

fn run_ids() -> Vec<CompletionCandidate> {
    let Some(context) = context() else { return Vec::new() };
    let newest = context.block_on(runs::newest(&context, MOST_RUNS));
    let rows = newest.and_then(|rows| rows).unwrap_or_default();
    let candidate = |(at, row): (usize, crate::store::RunSummary)| {
        let about = match row.outcome {
            Some(outcome) => format!("{}, {outcome}", row.job),
            None => row.job.clone(),
        };
        let candidate = CompletionCandidate::new(row.run_id).help(Some(about.into()));
        candidate.display_order(Some(at))
    };
    rows.into_iter().enumerate().map(candidate).collect()
}

/// Loads the configuration for its names. Secrets stay unread.
fn config(context: &Context) -> Option<Config> {
    let set = FileSet::of_directory(&context.dirs.config).ok()?;
    context.load(&set, Trust::Given, SecretsMode::Leave).config
}

/// Returns the directories that the unfinished command line names, or the usual ones.
fn context() -> Option<Context> {
    let mut given: Vec<OsString> = vec!["dutyd".into()];
    let mut words = std::env::args_os();
    while let Some(word) = words.next() {
        match word.to_string_lossy().split_once('=') {
            Some(("--config-dir" | "--state-dir", _)) => given.push(word),
            None if word == "--config-dir" || word == "--state-dir" => {
                given.extend([word, words.next()?]);
            }
            Some(_) | None => {}
        }
    }
    given.push("jobs".into());
    let matches = help::command().try_get_matches_from(given).ok()?;
    let cli = Cli::from_arg_matches(&matches).ok()?;
    // The client of the daemon needs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Context::new(&cli).ok()
}
