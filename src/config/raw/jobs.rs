//! `jobs.yaml` as the operator typed it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::catalogue::Effort;

use super::{DURATION, JOB_NAME, RawExpect, RawHost, RawSandbox, SIZE};

/// jobs.yaml: what each job does, when, and what it may touch.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "entries are decoded one by one, so an error in one does not hide errors in the others"
)]
pub(crate) struct RawJobs {
    /// Version of the file format.
    #[schemars(range(min = 1, max = 1))]
    pub(crate) version: u32,
    /// Values for jobs that do not set a key themselves. The defaults in `jobs.yaml` also apply to
    /// `jobs.d/`.
    pub(crate) defaults: Option<RawDefaults>,
    /// The jobs.
    pub(crate) jobs: Vec<RawJob>,
}

/// Values for jobs that do not set a key themselves.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDefaults {
    /// Name of a model in config.yaml.
    pub(crate) model: Option<String>,
    /// Time zone of schedules: an IANA name, or `local`.
    pub(crate) timezone: Option<String>,
    /// Who is told what of each job.
    pub(crate) notify: Option<Vec<RawNotify>>,
}

/// A destination, and what it is told.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNotify {
    /// Name of a destination in `notifications` of config.yaml.
    #[schemars(required)]
    pub(crate) to: Option<String>,
    /// Events of a job: failed, recovered, succeeded, changed, planned, approval, admin, missed, or status:VALUE; of the daemon: unavailable, degraded, recovered. Not for a ping, which is sent at the
    /// start, the success and the failure of each run.
    pub(crate) on: Option<Vec<String>>,
}

/// A job.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawJob {
    /// Lower-case letters, digits, `-` and `_`; at most 63 characters.
    #[schemars(required, regex(pattern = JOB_NAME))]
    pub(crate) name: Option<String>,
    /// Purpose of the job, for people and for the model.
    pub(crate) description: Option<String>,
    /// false disables only the schedule; the job can still be run by hand. Defaults to true.
    pub(crate) enabled: Option<bool>,
    /// A cron expression or a list of them. An expression has 5 fields, 6 with seconds first, or 7
    /// with seconds first and years last. Without `schedule` and `every`, the job runs only by
    /// hand.
    pub(crate) schedule: Option<RawOneOrMany>,
    /// Interval to use instead of a schedule, counted from 1970-01-01T00:00Z.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) every: Option<String>,
    /// Time zone of the schedule: an IANA name, or `local`.
    pub(crate) timezone: Option<String>,
    /// Span over which start times are spread; the same job and due time always get the same delay.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) jitter: Option<String>,
    /// act makes changes; plan records them as steps for a person to apply. Defaults to act.
    pub(crate) mode: Option<RawMode>,
    /// Handling of a slot that comes due while a run of the job waits or works. Defaults to skip.
    pub(crate) overlap: Option<RawOverlap>,
    /// Handling of slots that could not start in time, for example because the daemon was down.
    /// Defaults to latest.
    pub(crate) catchup: Option<RawCatchup>,
    /// Maximum age of a slot to catch up. Defaults to 1h.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) catchup_window: Option<String>,
    /// How to repeat a run that failed. By default, failed runs are not repeated.
    pub(crate) retry: Option<RawRetry>,
    /// Daily budget of the job.
    pub(crate) budget: Option<RawBudget>,
    /// A read call that decides, without a model, whether a run has anything to do.
    pub(crate) precheck: Option<RawPrecheck>,
    /// Pause the job after this number of consecutive failed runs. By default, the job is never
    /// paused.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) pause_after_failures: Option<u32>,
    /// Handling of a run that the death or the stop of the daemon cut off. Defaults to resume.
    pub(crate) on_crash: Option<RawOnCrash>,
    /// Task of the agent; `{{name}}` inserts an entry of `vars`.
    #[schemars(length(min = 1))]
    pub(crate) prompt: Option<String>,
    /// File that contains the prompt, relative to the configuration directory.
    pub(crate) prompt_file: Option<String>,
    /// Values for the placeholders of the prompt.
    pub(crate) vars: Option<BTreeMap<String, RawScalar>>,
    /// Name of a model in config.yaml.
    pub(crate) model: Option<String>,
    /// How much the model may reason before it answers, in place of its own setting.
    pub(crate) reasoning_effort: Option<Effort>,
    /// Text to append at the end of the system prompt.
    pub(crate) system_prompt: Option<String>,
    /// Directory where tools start. Defaults to the job's own directory under the state directory.
    pub(crate) working_dir: Option<String>,
    /// How strictly the kernel sandboxes the job's tools. Defaults to the setting in config.yaml.
    pub(crate) sandbox: Option<RawSandbox>,
    /// false disables the network for every tool of the job. Defaults to true.
    pub(crate) network: Option<bool>,
    /// Paths that the job may use in addition to its working directory; denied paths stay denied.
    pub(crate) allowed_paths: Option<Vec<String>>,
    /// Hosts that web_fetch and parameters of `format: url` may name, in addition to those in
    /// config.yaml.
    pub(crate) allowed_domains: Option<Vec<RawHost>>,
    /// Target on which the programs of the job's tools run: local, ssh:HOST, docker:CONTAINER or
    /// kubernetes:NAMESPACE/POD. Defaults to local.
    pub(crate) environment: Option<String>,
    /// How far the job may go on its own. Defaults to supervised.
    pub(crate) autonomy: Option<RawAutonomy>,
    /// How to ask a person for approval.
    pub(crate) approval: Option<RawApproval>,
    /// Skills for the model, by the names of their directories under `skills/`.
    pub(crate) skills: Option<Vec<String>>,
    /// Tools that the job may use.
    pub(crate) tools: Option<RawPolicy>,
    /// Limits of a run.
    pub(crate) limits: Option<RawLimits>,
    /// Whether to ask the model to confirm its first answer without calls. Defaults to true.
    pub(crate) double_confirmation: Option<bool>,
    /// Whether a run in which no call worked may succeed. Defaults to false: such a run ends as
    /// `nothing_done`.
    pub(crate) allow_no_calls: Option<bool>,
    /// Detection of repeated calls.
    pub(crate) loop_detection: Option<RawLoopDetection>,
    /// Checks that dutyd makes after the model's final answer. The run succeeds only if all of them pass.
    #[schemars(length(min = 1, max = 50))]
    pub(crate) verify: Option<Vec<RawVerify>>,
    /// How many times the model gets the checks that failed and may fix the cause. Defaults to 0.
    #[schemars(range(min = 0, max = 20))]
    pub(crate) verify_retries: Option<u32>,
    /// Who is told what of the job. Defaults to `notify` in the `defaults`.
    pub(crate) notify: Option<Vec<RawNotify>>,
    /// JSON Schema of the final answer, which must then be one JSON value.
    pub(crate) output_schema: Option<Map<String, Value>>,
    /// Number of results of earlier runs that the model gets before the task. Defaults to 0.
    #[schemars(range(max = 5))]
    pub(crate) recall: Option<u32>,
    /// Handling of a history that fills the context window of the model. Defaults to off.
    pub(crate) compaction: Option<RawCompaction>,
}

/// Handling of a long history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawCompaction {
    /// dutyd does not shorten the history.
    Off,
    /// Above 80 % of the window, one line replaces each of the oldest results.
    Auto,
}

/// One string or a list of strings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawOneOrMany {
    One(String),
    Many(#[schemars(length(min = 1))] Vec<String>),
}

/// A string, a number or a boolean.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawScalar {
    Text(String),
    Boolean(bool),
    Number(serde_json::Number),
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) enum RawMode {
    #[serde(rename = "act")]
    Act,
    #[serde(rename = "plan")]
    Plan,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawOverlap {
    Skip,
    BufferOne,
    BufferAll,
    CancelOther,
    TerminateOther,
    AllowAll,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawOnCrash {
    Resume,
    Fail,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawCatchup {
    None,
    Latest,
    All,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawAutonomy {
    ReadOnly,
    Supervised,
    Full,
}

/// Tools that a job may use.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPolicy {
    /// `all`, or names of read tools. Defaults to all.
    pub(crate) read: Option<RawRead>,
    /// Write tools, each by name or with conditions on its arguments. Defaults to none.
    pub(crate) write: Option<Vec<RawListed>>,
    /// Admin tools, each by name or with conditions on its arguments. Defaults to none.
    pub(crate) admin: Option<Vec<RawListed>>,
    /// Listed tools whose calls still need a person's approval.
    pub(crate) approve: Option<Vec<String>>,
    /// Tools that are denied even if another list names them.
    pub(crate) deny: Option<Vec<String>>,
}

/// How to ask a person for approval.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawApproval {
    /// How long to wait for an answer. Defaults to 60s.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) timeout: Option<String>,
    /// Handling of a call that is not answered in time. Defaults to deny.
    pub(crate) unanswered: Option<RawUnanswered>,
}

/// Handling of a call that is not answered in time.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawUnanswered {
    /// Deny the call.
    Deny,
    /// Record the call as a step of a change plan.
    Plan,
}

/// `all`, or names of read tools.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawRead {
    All(RawAll),
    Names(Vec<String>),
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) enum RawAll {
    #[serde(rename = "all")]
    All,
}

/// A tool by name, or with conditions on its arguments.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawListed {
    Name(String),
    Conditional(RawConditional),
}

/// A tool that the job may call only with certain arguments.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConditional {
    /// Name of the tool.
    pub(crate) tool: String,
    /// A JSON Schema for each argument to constrain.
    pub(crate) args: Option<Map<String, Value>>,
}

/// Limits of a run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLimits {
    /// Maximum number of model responses. Defaults to 20.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) max_iterations: Option<u64>,
    /// Maximum number of tool calls. Defaults to 200.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) max_tool_calls: Option<u64>,
    /// Maximum number of calls to run per response. Defaults to 5.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) max_tool_calls_per_turn: Option<u64>,
    /// Maximum time since the start of the run. Defaults to 60m.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) max_duration: Option<String>,
    /// Maximum number of input and output tokens, all model calls together. Defaults to no limit.
    #[schemars(range(min = 1))]
    pub(crate) max_tokens: Option<u64>,
    /// Maximum cost in US dollars. Defaults to no limit.
    #[schemars(range(min = 0.000001))]
    pub(crate) max_cost_usd: Option<f64>,
    /// Maximum number of changed files. Defaults to 50.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) max_files_modified: Option<u64>,
    /// Maximum number of changed lines in files. Defaults to 5000.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(crate) max_lines_changed: Option<u64>,
    /// The run ends after this number of consecutive responses whose calls all failed. Defaults to
    /// 3.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) error_threshold: Option<u64>,
    /// Longest timeout of a call, whatever its tool sets or the model asks for. By default, a call has 120s if its tool does not set
    /// a timeout.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) tool_timeout: Option<String>,
    /// Maximum number of characters of a call's output to show to the model; a tool's own `output_limit` only lowers it.
    /// Defaults to 30000, or to the limit of the tool.
    #[schemars(range(min = 100, max = 200_000))]
    pub(crate) output_limit: Option<u64>,
    /// Maximum number of lines of a call's output to show to the model; a tool's own `output_lines` only lowers it.
    /// Defaults to the limit of the tool.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) output_lines: Option<u64>,
    /// Size of the part to keep from the start of a call's output; the last 1MiB is kept too.
    /// Defaults to 64MiB.
    #[schemars(regex(pattern = SIZE))]
    pub(crate) max_output_bytes: Option<String>,
    /// Maximum size of the run's temporary directory; the run ends if the directory is larger.
    /// Defaults to 1GiB.
    #[schemars(regex(pattern = SIZE))]
    pub(crate) max_tmp_bytes: Option<String>,
    /// Maximum number of read calls of one response that run concurrently. Defaults to 4.
    #[schemars(range(min = 1, max = 64))]
    pub(crate) parallel_reads: Option<u64>,
    /// Rate limit of tool calls. Defaults to no limit.
    pub(crate) rate: Option<RawRate>,
}

/// A daily budget.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBudget {
    /// Maximum cost in US dollars.
    #[schemars(required, range(min = 0.000001))]
    pub(crate) max_cost_usd_per_day: Option<f64>,
}

/// A call that decides, without a model, whether a run has anything to do.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPrecheck {
    /// Name of a read tool in tools.yaml.
    #[schemars(required)]
    pub(crate) tool: Option<String>,
    /// Arguments of the call. In a string, `{{name}}` expands to that entry of `vars`. Defaults to none.
    pub(crate) args: Option<Map<String, Value>>,
    /// Condition under which the run continues.
    #[schemars(required)]
    pub(crate) run_when: Option<RawRunWhen>,
}

/// A read call that dutyd makes after the model's final answer, and the result that it must have.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawVerify {
    /// Name of a read tool in tools.yaml.
    #[schemars(required)]
    pub(crate) tool: Option<String>,
    /// Arguments of the call. In a string, `{{name}}` expands to that entry of `vars`. Defaults to none.
    pub(crate) args: Option<Map<String, Value>>,
    /// Conditions on the result. By default, the call must work.
    pub(crate) expect: Option<RawExpect>,
}

/// The condition under which the answer of a precheck makes the run continue.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawRunWhen {
    Word(RawRunWhenWord),
    Matches(RawMatches),
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawRunWhenWord {
    /// The exit code or the output differs from the last run that succeeded or was planned.
    Changed,
    /// The exit code is not 0.
    ExitNonzero,
    /// The output is not blank.
    Nonempty,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMatches {
    /// Regular expression to find anywhere in the output.
    pub(crate) matches: String,
}

/// How to repeat a run that failed before it made a write or admin call.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRetry {
    /// Maximum number of attempts, the first included.
    #[schemars(required, range(min = 2, max = 100))]
    pub(crate) max_attempts: Option<u32>,
    /// Delay before the second attempt. It doubles with each further attempt, up to 1h. Defaults to
    /// 1m.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) backoff: Option<String>,
}

/// Rate limit of tool calls: `burst` at once, then `per_minute`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRate {
    /// Number of calls that become available per minute.
    #[schemars(required, range(min = 1, max = 100_000))]
    pub(crate) per_minute: Option<u64>,
    /// Maximum number of calls at once. Defaults to 10.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) burst: Option<u64>,
}

/// Detection of repeated calls.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLoopDetection {
    /// Whether to detect repeated calls. Defaults to true.
    pub(crate) enabled: Option<bool>,
    /// Number of recent calls to check for repetitions. Defaults to 10.
    #[schemars(range(min = 2, max = 100))]
    pub(crate) window: Option<u64>,
}
