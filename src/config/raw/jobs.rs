//! `jobs.yaml` as it is typed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{DURATION, JOB_NAME, RawHost, RawOff, RawSandbox, SIZE};

/// jobs.yaml: what to do, when, and what it may touch.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "its entries are decoded one by one, so that a mistake in one hides none in another"
)]
pub(crate) struct RawJobs {
    /// The version of the file format.
    #[schemars(range(min = 1, max = 1))]
    pub(crate) version: u32,
    /// For jobs that do not say otherwise; those of `jobs.yaml` hold for `jobs.d/` too.
    pub(crate) defaults: Option<RawDefaults>,
    /// The jobs.
    pub(crate) jobs: Vec<RawJob>,
}

/// For jobs that do not say otherwise.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDefaults {
    /// A name of `models` in config.yaml.
    pub(crate) model: Option<String>,
    /// An IANA name, or `local`.
    pub(crate) timezone: Option<String>,
}

/// A job.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawJob {
    /// Lower-case letters, digits, `-` and `_`; at most 63.
    #[schemars(required, regex(pattern = JOB_NAME))]
    pub(crate) name: Option<String>,
    /// For people.
    pub(crate) description: Option<String>,
    /// false stops the schedule only; the job can be run by hand.
    pub(crate) enabled: Option<bool>,
    /// A cron expression of 5 fields, 6 with seconds first or 7 with years last, or a list of them. None: only by hand.
    pub(crate) schedule: Option<RawOneOrMany>,
    /// An interval instead of a schedule, counted from midnight UTC of 1970.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) every: Option<String>,
    /// An IANA name, or `local`.
    pub(crate) timezone: Option<String>,
    /// Starts are spread over this time, the same for the same job and due time.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) jitter: Option<String>,
    /// act (if not set), or plan: what would be changed is planned, and a person applies it.
    pub(crate) mode: Option<RawMode>,
    /// What happens when a slot comes due while the job still runs. `skip` in this version.
    #[serde(rename = "overlap")]
    pub(crate) _overlap: Option<RawOverlap>,
    /// What becomes of slots that came due while the daemon was down. latest if not set.
    pub(crate) catchup: Option<RawCatchup>,
    /// How old such a slot may be. 1h if not set.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) catchup_window: Option<String>,
    /// What becomes of a run that the daemon's death cut. `fail` in this version.
    #[serde(rename = "on_crash")]
    pub(crate) _on_crash: Option<RawOnCrash>,
    /// What the agent is asked to do; `{{name}}` is an entry of `vars`.
    #[schemars(length(min = 1))]
    pub(crate) prompt: Option<String>,
    /// The same from a file, relative to this one.
    pub(crate) prompt_file: Option<String>,
    /// Values for the prompt.
    pub(crate) vars: Option<BTreeMap<String, RawScalar>>,
    /// A name of `models` in config.yaml.
    pub(crate) model: Option<String>,
    /// Appended last to the system prompt.
    pub(crate) system_prompt: Option<String>,
    /// Where tools start. A directory of the job's own under the state directory if not set.
    pub(crate) working_dir: Option<String>,
    /// How the kernel holds the job's tools. As in config.yaml if not set.
    pub(crate) sandbox: Option<RawSandbox>,
    /// false leaves none of the job's tools a network. true if not set.
    pub(crate) network: Option<bool>,
    /// Paths that the job may use besides its working directory; denied ones stay denied.
    pub(crate) allowed_paths: Option<Vec<String>>,
    /// Hosts that the job may fetch from besides those of config.yaml.
    pub(crate) allowed_domains: Option<Vec<RawHost>>,
    /// Where the programs of the job's tools are started: local (if not set), ssh:HOST, docker:CONTAINER or kubernetes:NAMESPACE/POD.
    pub(crate) environment: Option<String>,
    /// `supervised` if not set.
    pub(crate) autonomy: Option<RawAutonomy>,
    /// How a person is asked.
    pub(crate) approval: Option<RawApproval>,
    /// Skills that the model is given, by the names of their directories under `skills/`.
    pub(crate) skills: Option<Vec<String>>,
    /// What the job may use.
    pub(crate) tools: Option<RawPolicy>,
    /// Where the run ends at the latest.
    pub(crate) limits: Option<RawLimits>,
    /// Whether the first answer without calls is asked for once more. true if not set.
    pub(crate) double_confirmation: Option<bool>,
    /// Whether repetitions are noticed.
    pub(crate) loop_detection: Option<RawLoopDetection>,
    /// `off` in this version.
    #[serde(rename = "compaction")]
    pub(crate) _compaction: Option<RawOff>,
}

/// One text or a list of texts.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawOneOrMany {
    One(String),
    Many(#[schemars(length(min = 1))] Vec<String>),
}

/// A text, a number, or true or false.
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
pub(crate) enum RawOverlap {
    #[serde(rename = "skip")]
    Skip,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) enum RawOnCrash {
    #[serde(rename = "fail")]
    Fail,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawCatchup {
    None,
    Latest,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawAutonomy {
    ReadOnly,
    Supervised,
    Full,
}

/// What a job may use.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPolicy {
    /// `all` (if not set), or names of read tools.
    pub(crate) read: Option<RawRead>,
    /// Write tools, each by name or with conditions on its arguments. None if not set.
    pub(crate) write: Option<Vec<RawListed>>,
    /// Admin tools, likewise. None if not set.
    pub(crate) admin: Option<Vec<RawListed>>,
    /// Tools whose calls wait for a person's yes, although they are listed.
    pub(crate) approve: Option<Vec<String>>,
    /// Tools that are refused whatever else is listed.
    pub(crate) deny: Option<Vec<String>>,
}

/// How a person is asked.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawApproval {
    /// How long an answer is waited for. 60s if not set.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) timeout: Option<String>,
    /// What becomes of a call that nobody answers. deny if not set.
    pub(crate) unanswered: Option<RawUnanswered>,
}

/// What becomes of a call that nobody answers.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawUnanswered {
    /// It is refused.
    Deny,
    /// It becomes a step of a change plan.
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

/// A tool that is listed only for certain arguments.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConditional {
    /// The tool.
    pub(crate) tool: String,
    /// A JSON Schema for each argument that matters.
    pub(crate) args: Option<Map<String, Value>>,
}

/// Where a run ends at the latest.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLimits {
    /// Model responses. 20 if not set.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) max_iterations: Option<u64>,
    /// Tool calls. 200 if not set.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) max_tool_calls: Option<u64>,
    /// Calls of one response that are run. 5 if not set.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) max_tool_calls_per_turn: Option<u64>,
    /// Time from the start of the run. 60m if not set.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) max_duration: Option<String>,
    /// Tokens in and out, all calls together. No limit if not set.
    #[schemars(range(min = 1))]
    pub(crate) max_tokens: Option<u64>,
    /// US dollars. No limit if not set.
    #[schemars(range(min = 0.000001))]
    pub(crate) max_cost_usd: Option<f64>,
    /// Files that are changed. 50 if not set.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) max_files_modified: Option<u64>,
    /// Lines of files that are changed. 5000 if not set.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(crate) max_lines_changed: Option<u64>,
    /// Responses in a row whose calls all failed. 3 if not set.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) error_threshold: Option<u64>,
    /// Time of one call of a tool that sets none. 120s if not set.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) tool_timeout: Option<String>,
    /// Characters of an output that the model sees. 30000 if not set.
    #[schemars(range(min = 100, max = 200_000))]
    pub(crate) output_limit: Option<u64>,
    /// Bytes of an output that are kept. 64MiB if not set.
    #[schemars(regex(pattern = SIZE))]
    pub(crate) max_output_bytes: Option<String>,
    /// Bytes of the run's temporary directory, inclusive; more ends the run. Defaults to 1GiB.
    #[schemars(regex(pattern = SIZE))]
    pub(crate) max_tmp_bytes: Option<String>,
    /// Read calls of one response that run at once. 4 if not set.
    #[schemars(range(min = 1, max = 64))]
    pub(crate) parallel_reads: Option<u64>,
    /// Tool calls in time. No limit if not set.
    pub(crate) rate: Option<RawRate>,
}

/// Tool calls in time: `burst` at once, and then `per_minute`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRate {
    /// How many calls a minute brings.
    #[schemars(required, range(min = 1, max = 100_000))]
    pub(crate) per_minute: Option<u64>,
    /// How many may be made at once. 10 if not set.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) burst: Option<u64>,
}

/// Whether repetitions are noticed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLoopDetection {
    /// true if not set.
    pub(crate) enabled: Option<bool>,
    /// Calls that are looked at. 10 if not set.
    #[schemars(range(min = 2, max = 100))]
    pub(crate) window: Option<u64>,
}
