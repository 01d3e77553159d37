//! The files as they are typed. The JSON Schemas of `dutyd schema` are generated from these types and validate the files.
//!
//! Doc comments here are what editors show to operators.

mod tools;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

pub(crate) use tools::{RawCalls, RawScript, RawTool, RawToolSandbox, RawTools};

pub(crate) const DURATION: &str = r"^([0-9]+(ms|s|sec|m|min|h|hr|d|w) ?)+$";
pub(crate) const SIZE: &str = r"^[0-9]+ ?(B|KB|MB|GB|KiB|MiB|GiB)$";
pub(crate) const JOB_NAME: &str = r"^[a-z0-9][a-z0-9_-]{0,62}$";
pub(crate) const TOOL_NAME: &str = r"^[a-zA-Z0-9_-]{1,64}$";

/// config.yaml: the daemon and its models. Everything is optional.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSettings {
    /// The version of the file format.
    #[schemars(range(min = 1, max = 1))]
    #[serde(rename = "version")]
    pub(crate) _version: Option<u32>,
    /// Default zone of schedules: an IANA name, or `local`.
    pub(crate) timezone: Option<String>,
    /// Over this, runs wait in the queue, oldest first. 8 if not set.
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) max_concurrent_runs: Option<u32>,
    /// How long running jobs may finish when the daemon is stopped. 30s if not set.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) shutdown_grace: Option<String>,
    /// The model of jobs that name none.
    pub(crate) default_model: Option<String>,
    /// Models by the names that jobs use.
    pub(crate) models: Option<BTreeMap<String, RawModel>>,
    /// What tools get and how they are held.
    pub(crate) security: Option<RawSecurity>,
    /// The daemon's own log.
    pub(crate) telemetry: Option<RawTelemetry>,
}

/// Who serves a model.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawProvider {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Responses.
    Openai,
    /// OpenAI Chat Completions and compatible servers.
    OpenaiChat,
    /// Gemini.
    Gemini,
    /// Ollama's own chat.
    Ollama,
    /// No model at all: plays a script.
    Scripted,
}

/// A model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawModel {
    /// Who serves it.
    #[schemars(required)]
    pub(crate) provider: Option<RawProvider>,
    /// The model as the provider knows it.
    pub(crate) model: Option<String>,
    /// The key, best as `${credential:NAME}` or `${NAME}`.
    pub(crate) api_key: Option<String>,
    /// The address up to the version, such as <https://api.openai.com/v1>.
    pub(crate) base_url: Option<String>,
    /// Whether answers are streamed. true if not set.
    pub(crate) stream: Option<bool>,
    /// The most tokens of one answer.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(crate) max_output_tokens: Option<u32>,
    /// 0 is the most predictable.
    #[schemars(range(min = 0, max = 2))]
    pub(crate) temperature: Option<f64>,
    /// How long the model may think.
    pub(crate) reasoning_effort: Option<RawEffort>,
    /// The prompt, the tools and the documents that its family was trained on. By the provider if not set.
    pub(crate) profile: Option<RawProfile>,
    /// Tokens that the model can take in. By the profile if not set.
    #[schemars(range(min = 256, max = 100_000_000))]
    pub(crate) context_window: Option<u64>,
    /// For the whole response. 10m if not set.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) timeout: Option<String>,
    /// No byte for this long ends the attempt. 60s if not set.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) idle_timeout: Option<String>,
    /// Retries of one model call. 4 if not set.
    #[schemars(range(min = 0, max = 20))]
    pub(crate) max_retries: Option<u32>,
    /// Further request headers.
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// US dollars per million tokens. Those of well-known models are known.
    pub(crate) price: Option<RawPrice>,
    /// Models to try when this one is unavailable, in order.
    pub(crate) fallback: Option<Vec<String>>,
    /// The script of the scripted model, relative to this file.
    pub(crate) script: Option<String>,
}

/// The family of a model.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawProfile {
    Anthropic,
    Openai,
    Gemini,
    Generic,
}

/// US dollars per million tokens.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPrice {
    /// Of input.
    #[schemars(required, range(min = 0))]
    pub(crate) input: Option<f64>,
    /// Of output, reasoning included.
    #[schemars(required, range(min = 0))]
    pub(crate) output: Option<f64>,
    /// Of input that the provider had in its cache. As `input` if not set.
    #[schemars(range(min = 0))]
    pub(crate) cached_input: Option<f64>,
    /// Of input that the provider puts into its cache. As `input` if not set.
    #[schemars(range(min = 0))]
    pub(crate) cache_write: Option<f64>,
}

/// How long a model may think.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawEffort {
    Low,
    Medium,
    High,
}

/// What tools get and how they are held.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSecurity {
    /// Variables that tools get besides PATH HOME USER LANG LC_ALL TERM SHELL TMPDIR TZ.
    pub(crate) env_allowlist: Option<Vec<String>>,
    /// Paths that jobs may use besides their working directory.
    pub(crate) allowed_paths: Option<Vec<String>>,
    /// Paths that are closed to every tool whatever allows them, besides the built-in ones; configuration and state always are.
    pub(crate) denied_paths: Option<Vec<String>>,
    /// How the kernel holds tools. enforce if not set.
    pub(crate) sandbox: Option<RawSandbox>,
}

/// How the kernel holds tools.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawSandbox {
    /// Nothing starts where it cannot.
    Enforce,
    /// As far as it can; every transcript says how far.
    BestEffort,
    /// Not at all.
    Off,
}

/// The only value of a key whose other values are not in this version.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) enum RawOff {
    #[serde(rename = "off")]
    Off,
}

/// What the daemon says about itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTelemetry {
    /// The daemon's own log; transcripts are kept apart from it.
    pub(crate) log: Option<RawLog>,
}

/// The daemon's own log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLog {
    /// text if not set.
    pub(crate) format: Option<RawLogFormat>,
    /// info if not set.
    pub(crate) level: Option<RawLevel>,
    /// If set, the log also goes to files under the state directory's `logs/` (or `$LOGS_DIRECTORY`), a new one this often.
    pub(crate) rotate: Option<RawRotate>,
    /// How many such files are kept. 14 if not set.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) keep: Option<u32>,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawLogFormat {
    Text,
    Json,
}

/// The least important line that is written.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// How often a new log file begins.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawRotate {
    Hourly,
    Daily,
}

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
    /// `act` in this version.
    #[serde(rename = "mode")]
    pub(crate) _mode: Option<RawMode>,
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
    /// `local` in this version.
    #[serde(rename = "environment")]
    pub(crate) _environment: Option<RawEnvironment>,
    /// `supervised` if not set.
    pub(crate) autonomy: Option<RawAutonomy>,
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
pub(crate) enum RawEnvironment {
    #[serde(rename = "local")]
    Local,
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
    /// Tools that are refused whatever else is listed.
    pub(crate) deny: Option<Vec<String>>,
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
    /// Read calls of one response that run at once. 4 if not set.
    #[schemars(range(min = 1, max = 64))]
    pub(crate) parallel_reads: Option<u64>,
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
