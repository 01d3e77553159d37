//! What can be typed. Doc comments here are the help, the reference and the man page.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Runs language-model agents on a schedule, unattended, on machines that matter.
#[derive(Debug, Parser)]
#[command(name = "dutyd", version, about)]
pub(crate) struct Cli {
    /// Where config.yaml, jobs.yaml and tools.yaml are
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,
    /// Where transcripts, ledger and socket are
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// The form of listings
    #[arg(
        short = 'o',
        long = "output",
        global = true,
        value_name = "FORM",
        default_value = "table"
    )]
    pub(crate) output: OutputForm,
    /// No colour, also on a terminal
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The form of listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    Table,
    Json,
    Jsonl,
    Yaml,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Write commented starter files and say what to do next
    Init(InitArgs),
    /// Check configuration files: all errors and warnings, with line and column
    Validate(ValidateArgs),
    /// Print the JSON Schema of a file, for editors
    Schema(SchemaArgs),
    /// Say which rule decides about a call, and why
    Explain(ExplainArgs),
    /// List the tools, their category and what a job may use
    Tools(ToolsArgs),
    /// Make one tool call through the same gate, without a model
    Call(CallArgs),
    /// Run a job now; the exit code tells the outcome
    Run(RunArgs),
    /// Run the daemon: what the systemd unit starts
    Serve(ServeArgs),
    /// Show the whole thing on a fresh machine, offline: example jobs, real tools, a scripted model
    Demo(DemoArgs),
    /// Say how the installation is: kernel, directories, configuration, models
    Doctor(DoctorArgs),
    /// Say how the running daemon is
    Status,
    /// List the jobs: next due time, last outcome and verdict
    Jobs,
    /// List the coming slots, in the job's zone and UTC
    Next(NextArgs),
    /// List what became of every due time
    Slots(SlotsArgs),
    /// Check that every due time is accounted for; exit 1 for a hole
    Audit(AuditArgs),
    /// List runs, newest first
    Runs(RunsArgs),
    /// Stop a run
    Cancel(CancelArgs),
    /// Show what a run did, the result first
    Show(ShowArgs),
    /// Check that a run's record is what was written: its hash chain, its files, its end
    Verify(VerifyArgs),
    /// List the tools of the MCP servers, or accept what has changed of one
    Mcp(McpArgs),
    /// List the calls that wait for a person's yes
    Approvals,
    /// Say yes to a call that waits
    Approve(AnswerArgs),
    /// Say no to a call that waits
    Deny(DenyArgs),
    /// Go through a job's checklist without running it
    Check(CheckArgs),
    /// List the change plans
    Plans,
    /// Show a change plan
    Plan(PlanArgs),
    /// Do what a change plan says, if the world is still as it was
    Apply(ApplyArgs),
    /// Throw a change plan away
    Discard(PlanArgs),
    /// Make the index of runs again from the transcripts
    Reindex,
    /// Load the configuration of the daemon again
    Reload,
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual page
    Man,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Use a model of config.yaml, or `openai` for OPENAI_API_KEY, instead of the script
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct NextArgs {
    /// One job; all that are enabled if not given
    pub(crate) job: Option<String>,
    /// How many
    #[arg(short = 'n', default_value_t = 10)]
    pub(crate) count: usize,
    /// After this moment (exclusive), such as 2026-11-21T03:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SlotsArgs {
    /// One job; all if not given
    pub(crate) job: Option<String>,
    /// Due then or later: a time, or a duration back from now such as 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Due then or earlier, likewise
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// One job; all if not given
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// Of this job
    #[arg(long)]
    pub(crate) job: Option<String>,
    /// With this outcome, or those that are queued or running
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(crate::store::RunState::words()))]
    pub(crate) outcome: Option<String>,
    /// With this verdict
    #[arg(long)]
    pub(crate) verdict: Option<String>,
    /// Show only runs with a call that was denied
    #[arg(long)]
    pub(crate) refused: bool,
    /// Begun then or later: a time, or a duration back from now such as 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Begun then or earlier, likewise
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 20)]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// A run's id or a unique beginning of it, `last`, `JOB@last`, or a job, whose waiting and active runs are stopped
    #[arg(value_name = "RUN|JOB", required_unless_present = "all")]
    pub(crate) target: Option<String>,
    /// Stop every waiting and active run
    #[arg(long, conflicts_with = "target")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The directory; the configuration directory if not given
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Ask each model's provider, which costs nothing
    #[arg(long)]
    pub(crate) online: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// A configuration directory, or files; the configuration directory if not given
    pub(crate) paths: Vec<PathBuf>,
    /// Leave `${…}` references unresolved, on a machine that has none of the secrets
    #[arg(long)]
    pub(crate) no_secrets: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Which
    pub(crate) name: SchemaWord,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaWord {
    Config,
    Jobs,
    Tools,
    Script,
    Event,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The job
    pub(crate) job: String,
    /// The tool
    pub(crate) tool: String,
    /// The arguments, a JSON object
    #[arg(value_name = "JSON")]
    pub(crate) arguments: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// Say what this job may use
    #[arg(long)]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The tool
    pub(crate) tool: String,
    /// Arguments, one by one; a list is given by repeating its name
    #[arg(value_name = "K=V", conflicts_with = "json")]
    pub(crate) pairs: Vec<String>,
    /// Arguments as a JSON object, or @FILE that holds one
    #[arg(long, value_name = "OBJECT|@FILE")]
    pub(crate) json: Option<String>,
    /// Decide as for this job; else as for one that lists every tool
    #[arg(long)]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The job
    pub(crate) job: String,
    /// Replace an entry of the job's `vars`
    #[arg(long = "var", value_name = "K=V")]
    pub(crate) vars: Vec<String>,
    /// Ask this instead of the job's prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Plan what would be changed instead of changing it
    #[arg(long)]
    pub(crate) plan: bool,
    /// Show the checklist first, and ask at this terminal for what is not listed
    #[arg(long, conflicts_with = "detach")]
    pub(crate) interactive: bool,
    /// Let the daemon run it, and return at once
    #[arg(long)]
    pub(crate) detach: bool,
}

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<McpVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpVerb {
    /// Accept the tools of a server as they are now
    Accept {
        /// Its name in config.yaml
        server: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The job
    pub(crate) job: String,
}

#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// The approval's id
    #[arg(value_name = "ID")]
    pub(crate) approval: String,
}

#[derive(Debug, Args)]
pub(crate) struct DenyArgs {
    /// The approval's id
    #[arg(value_name = "ID")]
    pub(crate) approval: String,
    /// What the model is told
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The plan's id or a unique beginning of it, or `last`
    pub(crate) plan: String,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The plan's id or a unique beginning of it, or `last`
    pub(crate) plan: String,
    /// Only this step, counted from 1
    #[arg(long, value_name = "N")]
    pub(crate) only: Option<u64>,
    /// Apply without a question at the terminal
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A run's id or a unique beginning of it, `last`, or `JOB@last`
    pub(crate) run: String,
    /// Print the transcript as it is
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// A run's id or a unique beginning of it, `last`, or `JOB@last`
    #[arg(required_unless_present = "all")]
    pub(crate) run: Option<String>,
    /// Check every record
    #[arg(long, conflicts_with = "run")]
    pub(crate) all: bool,
    /// With --all, check the runs of then or later: a time, or a duration back from now such as 7d
    #[arg(long, value_name = "TIME", requires = "all")]
    pub(crate) since: Option<String>,
}
