//! The command-line arguments. Their doc comments become the help and the man page.

mod runs;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use runs::{
    AckArgs, BackfillArgs, PauseArgs, RunArgs, TextArgs, TriggerArgs, UnpauseArgs,
};

/// The heading of the options that every verb takes.
const GLOBAL: &str = "Global options";

/// Run language-model agents on a schedule, unattended, on machines that matter.
#[derive(Debug, Parser)]
#[command(name = "dutyd", version, about)]
pub(crate) struct Cli {
    /// Set the directory of config.yaml, jobs.yaml and tools.yaml
    #[arg(long, global = true, value_name = "DIR", help_heading = GLOBAL)]
    pub(crate) config_dir: Option<PathBuf>,
    /// Set the directory of transcripts, ledger and socket
    #[arg(long, global = true, value_name = "DIR", help_heading = GLOBAL)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Set the output format
    #[arg(
        short = 'o',
        long = "output",
        global = true,
        value_name = "FORMAT",
        default_value = "table",
        help_heading = GLOBAL
    )]
    pub(crate) output: OutputForm,
    /// Disable coloured output
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) no_color: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    Table,
    Json,
    Jsonl,
    Yaml,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Write commented starter files
    Init(InitArgs),
    /// Check configuration files and show all errors and warnings
    Validate(ValidateArgs),
    /// Print the JSON Schema of a file, for editors
    Schema(SchemaArgs),
    /// Show which rule decides a call, and why
    Explain(ExplainArgs),
    /// List the tools with their category, and which of them a job may use
    Tools(ToolsArgs),
    /// List the models with their known values and the source of each
    Models(ModelsArgs),
    /// Make one tool call through the gate, without a model
    Call(CallArgs),
    /// Run a job now; the exit code is its outcome
    Run(RunArgs),
    /// Run the daemon; the systemd unit starts this
    ///
    /// SIGTERM, SIGINT: stop. Active runs may go on for `shutdown_grace`; the next
    ///   start continues the others. A second signal stops the runs at once.
    /// SIGHUP: reload the configuration.
    /// SIGUSR1, SIGUSR2, SIGPIPE: do nothing.
    #[command(verbatim_doc_comment)]
    Serve(ServeArgs),
    /// Run example jobs with real tools and a scripted model, offline
    Demo(DemoArgs),
    /// Check the installation: kernel, directories, configuration, models
    Doctor(DoctorArgs),
    /// Show the status of the running daemon
    Status,
    /// List the jobs with next due time, last outcome and verdict
    Jobs,
    /// List the next due times, in the job's zone and in UTC
    Next(NextArgs),
    /// List the slots: what became of each due time
    Slots(SlotsArgs),
    /// Check that the ledger accounts for each due time; exit with 1 if it does not
    Audit(AuditArgs),
    /// Silence the state of a job until it changes; notifications about it stop
    Ack(AckArgs),
    /// Pause the schedule of a job; its waiting and active runs continue
    Pause(PauseArgs),
    /// End the pause of a job; later due times run
    Unpause(UnpauseArgs),
    /// Have the daemon run a job now, and print the id of the run
    Trigger(TriggerArgs),
    /// Run a job for due times of the past; print the number of runs
    Backfill(BackfillArgs),
    /// List runs, newest first
    Runs(RunsArgs),
    /// Stop a run, the runs of a job, or all runs
    Cancel(CancelArgs),
    /// Give a text to a run while it works; the model gets it with its next request
    Steer(TextArgs),
    /// Give a text to a run as its next input, once the model has answered the current one
    FollowUp(TextArgs),
    /// Show what a run did, starting with the result
    Show(ShowArgs),
    /// Check that a run's record was not changed: hash chain, files, end
    Verify(VerifyArgs),
    /// Compare a run with today's policy, tools and prompt
    Replay(ReplayArgs),
    /// Compare a changed configuration with recorded runs
    ///
    /// Lists the calls that it would newly refuse or allow, and those whose command
    /// line it changes. Exits with 1 if there are any, or if a run cannot be compared.
    #[command(verbatim_doc_comment)]
    Backtest(BacktestArgs),
    /// Ask a model again with the recorded results of the tools
    Trial(TrialArgs),
    /// List the tools of MCP servers, or accept changed ones
    Mcp(McpArgs),
    /// Send a test message to a destination of notifications
    Notify(NotifyArgs),
    /// List the calls that are waiting for approval
    Approvals(ApprovalsArgs),
    /// Approve a waiting call, which then runs at once
    Approve(AnswerArgs),
    /// Deny a waiting call; the model gets the reason
    Deny(DenyArgs),
    /// Evaluate a job's checklist without running it
    Check(CheckArgs),
    /// List the change plans
    Plans,
    /// Show a change plan: its steps, and the reads that they rest on
    Plan(ShowPlanArgs),
    /// Apply a change plan if nothing has changed since it was made
    Apply(ApplyArgs),
    /// Discard a change plan, so that it can never be applied
    Discard(PlanArgs),
    /// Rebuild the index of runs from the transcripts
    Reindex,
    /// Remove old runs and merge old slots, as `retention` in config.yaml says
    Prune(PruneArgs),
    /// Reload the configuration of the daemon
    Reload,
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual page
    Man,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Count the runs and slots, but do not remove them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Use this model of config.yaml instead of the scripts; `openai` needs only OPENAI_API_KEY
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct NextArgs {
    /// Show only this job; defaults to all enabled jobs
    pub(crate) job: Option<String>,
    /// Limit the number of due times
    #[arg(short = 'n', default_value_t = 10)]
    pub(crate) count: usize,
    /// Start after this moment (exclusive), such as 2026-11-21T03:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SlotsArgs {
    /// Show only this job
    pub(crate) job: Option<String>,
    /// Show slots due at this time or later: a time, or a duration back from now such as 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Show slots due at this time or earlier
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// Limit the number of slots; the newest are shown
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Check only this job
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// Show only runs of this job
    #[arg(long)]
    pub(crate) job: Option<String>,
    /// Show only runs with this outcome; also takes `queued` and `running`
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(crate::store::RunState::words()))]
    pub(crate) outcome: Option<String>,
    /// Show only runs with this verdict
    #[arg(long)]
    pub(crate) verdict: Option<String>,
    /// Show only runs with a denied call
    #[arg(long)]
    pub(crate) refused: bool,
    /// Show runs that began at this time or later: a time, or a duration back from now such as 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Show runs that began at this time or earlier
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// Limit the number of runs
    #[arg(long, default_value_t = 20)]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// Run to stop: an id or a unique prefix, `last` or `JOB@last`; a job name stops all queued and
    /// running runs of that job
    #[arg(value_name = "RUN|JOB", required_unless_present = "all")]
    pub(crate) target: Option<String>,
    /// Stop all queued and running runs
    #[arg(long, conflicts_with = "target")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Directory; defaults to the configuration directory
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Query each model's provider; this costs nothing
    #[arg(long)]
    pub(crate) online: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// Model to show in detail, by its name in config.yaml
    #[arg(value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Ask each model's provider first, and keep what it says; this costs nothing
    #[arg(long)]
    pub(crate) online: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Configuration directory, or files; defaults to the configuration directory
    pub(crate) paths: Vec<PathBuf>,
    /// Leave `${…}` references unresolved, for a machine without the secrets
    #[arg(long)]
    pub(crate) no_secrets: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Schema to print
    pub(crate) name: SchemaWord,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaWord {
    Config,
    Jobs,
    Tools,
    Models,
    Script,
    Event,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Job
    pub(crate) job: String,
    /// Tool
    pub(crate) tool: String,
    /// Arguments as a JSON object
    #[arg(value_name = "JSON")]
    pub(crate) arguments: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// Show which of the tools this job may use
    #[arg(long)]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// Tool
    pub(crate) tool: String,
    /// Set one argument; repeat its name for a list
    #[arg(value_name = "K=V", conflicts_with = "json")]
    pub(crate) pairs: Vec<String>,
    /// Set the arguments as a JSON object, or as @FILE that contains one
    #[arg(long, value_name = "OBJECT|@FILE")]
    pub(crate) json: Option<String>,
    /// Apply the policy of this job; defaults to a policy that lists every tool
    #[arg(long)]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<McpVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpVerb {
    /// Accept the current tools of a server
    Accept {
        /// Name of the server in config.yaml
        server: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct NotifyArgs {
    #[command(subcommand)]
    pub(crate) verb: NotifyVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotifyVerb {
    /// Send one test message
    Test {
        /// Name of the destination in config.yaml
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Job
    pub(crate) job: String,
}

#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// Approval: an id or a unique prefix, or `last`
    #[arg(value_name = "ID")]
    pub(crate) approval: String,
}

#[derive(Debug, Args)]
pub(crate) struct DenyArgs {
    /// Approval: an id or a unique prefix, or `last`
    #[arg(value_name = "ID")]
    pub(crate) approval: String,
    /// Set the reason that is shown to the model
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Plan: an id or a unique prefix, or `last`
    pub(crate) plan: String,
}

#[derive(Debug, Args)]
pub(crate) struct ShowPlanArgs {
    /// Plan: an id or a unique prefix, or `last`
    pub(crate) plan: String,
    /// Show long values whole, and all variables
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApprovalsArgs {
    /// Show long values whole, and all variables
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Plan: an id or a unique prefix, or `last`
    pub(crate) plan: String,
    /// Apply only this step, counted from 1
    #[arg(long, value_name = "N")]
    pub(crate) only: Option<u64>,
    /// Apply without asking at the terminal
    #[arg(long)]
    pub(crate) yes: bool,
    /// Show long values whole, and all variables, before asking
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Run: an id or a unique prefix, `last`, or `JOB@last`
    pub(crate) run: String,
    /// Print the transcript unchanged
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Run: an id or a unique prefix, `last`, or `JOB@last`
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct BacktestArgs {
    /// Directory with the changed configuration
    #[arg(long, value_name = "DIR")]
    pub(crate) against: PathBuf,
    /// Compare runs that began at this time or later: a time, or a duration back from now such as 7d;
    /// defaults to all runs
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Compare only runs of this job
    #[arg(long)]
    pub(crate) job: Option<String>,
}

/// Parses an amount of money.
///
/// *Errors*: it is not a number of at least 0.
fn parse_amount(text: &str) -> Result<f64, String> {
    let amount: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let is_amount = amount.is_finite() && amount >= 0.0;
    is_amount.then_some(amount).ok_or_else(|| "expected a number of at least 0".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct TrialArgs {
    /// Run: an id or a unique prefix, `last`, or `JOB@last`
    #[arg(required_unless_present = "job")]
    pub(crate) run: Option<String>,
    /// Try the runs of this job
    #[arg(long, conflicts_with = "run")]
    pub(crate) job: Option<String>,
    /// With --job, try runs that began at this time or later: a time, or a duration back from now;
    /// defaults to 7d
    #[arg(long, value_name = "TIME", requires = "job")]
    pub(crate) since: Option<String>,
    /// Ask this model of config.yaml instead of today's model of the job
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Limit the cost of the trial
    #[arg(long, value_name = "N", value_parser = parse_amount)]
    pub(crate) max_cost_usd: Option<f64>,
    /// Begin without asking at the terminal
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Run: an id or a unique prefix, `last`, or `JOB@last`
    #[arg(required_unless_present = "all")]
    pub(crate) run: Option<String>,
    /// Check all records
    #[arg(long, conflicts_with = "run")]
    pub(crate) all: bool,
    /// With --all, check runs that began at this time or later: a time, or a duration back from now
    /// such as 7d
    #[arg(long, value_name = "TIME", requires = "all")]
    pub(crate) since: Option<String>,
    /// Compare with the log lines "run ended" in this file instead of the ledger; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
}
