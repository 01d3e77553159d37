//! What can be typed. Doc comments here are the help, the reference and the man page.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Runs language-model agents on a schedule, unattended, on machines that matter.
#[derive(Debug, Parser)]
#[command(name = "dutyd", version, about, disable_help_subcommand = true)]
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
    /// Show a run as a story, the result first
    Show(ShowArgs),
    /// Check the hash chain of a run's transcript
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The directory; the configuration directory if not given
    pub(crate) directory: Option<PathBuf>,
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
    pub(crate) run: String,
}
