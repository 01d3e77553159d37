//! The arguments of the verbs that start runs, or hold them up.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Job
    #[arg(required_unless_present = "all")]
    pub(crate) job: Option<String>,
    /// Pause all jobs, also those that are added later
    #[arg(long, conflicts_with = "job")]
    pub(crate) all: bool,
    /// End the pause by itself: a time, or a duration from now such as 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// Record why the job is paused
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AckArgs {
    /// Job
    pub(crate) job: String,
    /// Tell the state again after this time: a time, or a duration from now such as 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UnpauseArgs {
    /// Job
    #[arg(required_unless_present = "all")]
    pub(crate) job: Option<String>,
    /// End the pause of all jobs; the pauses of single jobs stay
    #[arg(long, conflicts_with = "job")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TriggerArgs {
    /// Job
    pub(crate) job: String,
    /// Begin the run later, after a duration such as 20m
    #[arg(long = "in", value_name = "DURATION", conflicts_with = "at")]
    pub(crate) delay: Option<String>,
    /// Begin the run at this time
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// Replace an entry of the job's `vars`
    #[arg(long = "var", value_name = "K=V")]
    pub(crate) vars: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BackfillArgs {
    /// Job
    pub(crate) job: String,
    /// Start of the period (inclusive): a time, or a duration back from now such as 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) from: String,
    /// End of the period (inclusive); must not be in the future
    #[arg(long, value_name = "TIME")]
    pub(crate) to: String,
    /// Instead, run the missed slots and those whose runs failed or were interrupted again
    #[arg(long)]
    pub(crate) again: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Job
    pub(crate) job: String,
    /// Replace an entry of the job's `vars`
    #[arg(long = "var", value_name = "K=V")]
    pub(crate) vars: Vec<String>,
    /// Replace the job's prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Plan changes instead of making them
    #[arg(long)]
    pub(crate) plan: bool,
    /// Replace the job's model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Replace the model's reasoning effort
    #[arg(long, value_name = "LEVEL")]
    pub(crate) effort: Option<String>,
    /// Replace the job's `max_iterations`
    #[arg(long, value_name = "N")]
    pub(crate) max_iterations: Option<u32>,
    /// Show the checklist, and ask at this terminal about each call that needs approval
    #[arg(long, conflicts_with = "detach")]
    pub(crate) interactive: bool,
    /// Have the daemon run the job, and return immediately
    #[arg(long)]
    pub(crate) detach: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// Run: an id or a unique prefix, `last` or `JOB@last`
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Text for the model, at most 64 KiB
    #[arg(value_name = "TEXT")]
    pub(crate) text: String,
}
