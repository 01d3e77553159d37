//! The configuration files as the operator typed them: no default is filled in, but `${…}`
//! references are resolved. `dutyd schema` generates its JSON Schemas from these types, and the
//! loader validates the files with the same schemas.
//!
//! Editors show these doc comments to operators.

mod jobs;
mod tools;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::catalogue::Effort;
use crate::domain::Category;

pub(crate) use jobs::{
    RawAutonomy, RawBudget, RawCatchup, RawCompaction, RawDefaults, RawJob, RawJobs, RawLimits,
    RawListed, RawMode, RawNotify, RawOnCrash, RawOneOrMany, RawOverlap, RawPolicy, RawPrecheck,
    RawRead, RawRetry, RawRunWhen, RawRunWhenWord, RawScalar, RawUnanswered,
};
pub(crate) use tools::{
    RawCalls, RawExpect, RawProbe, RawScript, RawTool, RawToolSandbox, RawTools,
};

pub(crate) const DURATION: &str = r"^([0-9]+(ms|s|sec|m|min|h|hr|d|w) ?)+$";
pub(crate) const SIZE: &str = r"^[0-9]+ ?(B|KB|MB|GB|KiB|MiB|GiB)$";
pub(crate) const JOB_NAME: &str = r"^[a-z0-9][a-z0-9_-]{0,62}$";
pub(crate) const TOOL_NAME: &str = r"^[a-zA-Z0-9_-]{1,64}$";

/// Limits on the runs and slots that dutyd keeps of each job. The daemon applies them once a day.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRetention {
    /// Maximum number of runs of a job; older ones are removed. Defaults to 1000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) keep_runs: Option<u32>,
    /// Maximum age in days; older runs are removed, older slots are merged. Defaults to 90.
    #[schemars(range(min = 1, max = 36_500))]
    pub(crate) keep_days: Option<u32>,
}

/// config.yaml: the daemon and its models. Every key is optional.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSettings {
    /// Version of the file format.
    #[schemars(range(min = 1, max = 1))]
    #[serde(rename = "version")]
    pub(crate) _version: Option<u32>,
    /// Default time zone of schedules: an IANA name, or `local`. Defaults to local.
    pub(crate) timezone: Option<String>,
    /// Limits on the runs and slots that dutyd keeps.
    pub(crate) retention: Option<RawRetention>,
    /// Daily budget of all jobs together.
    pub(crate) budget: Option<RawBudget>,
    /// Maximum number of concurrent runs; further runs wait in the queue, oldest first. Defaults to
    /// 8.
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) max_concurrent_runs: Option<u32>,
    /// Time that runs have to finish when the daemon stops. Defaults to 30s.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) shutdown_grace: Option<String>,
    /// Model of jobs that do not name one.
    pub(crate) default_model: Option<String>,
    /// Models by name; jobs refer to these names.
    pub(crate) models: Option<BTreeMap<String, RawModel>>,
    /// MCP servers by name; their tools are called SERVER__TOOL.
    pub(crate) mcp_servers: Option<BTreeMap<String, RawMcpServer>>,
    /// Limits of built-in tools by name, in place of their defaults. The limits of a job cap them.
    pub(crate) builtin_tools: Option<BTreeMap<String, RawCallLimits>>,
    /// Environment, paths, hosts and sandbox of tools.
    pub(crate) security: Option<RawSecurity>,
    /// Service behind the tool `web_search`; without this key, the tool is unavailable.
    pub(crate) web_search: Option<RawWebSearch>,
    /// Destinations of notifications by name; the `notify` of jobs refers to these names.
    pub(crate) notifications: Option<BTreeMap<String, RawDestination>>,
    /// Who is told of the daemon itself: unavailable, degraded, recovered.
    pub(crate) notify: Option<Vec<RawNotify>>,
    /// Ping of the daemon, as long as the ledger can be written and no slot is undecided for over a minute.
    pub(crate) heartbeat: Option<RawHeartbeat>,
    /// The daemon's own log.
    pub(crate) telemetry: Option<RawTelemetry>,
}

/// Limits of the calls of a built-in tool.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCallLimits {
    /// Timeout of one call.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) timeout: Option<String>,
    /// Maximum number of characters of the output that the model sees.
    #[schemars(range(min = 100, max = 200_000))]
    pub(crate) output_limit: Option<u64>,
    /// Maximum number of lines of the output that the model sees.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) output_lines: Option<u64>,
    /// Maximum size of a response; only for web_fetch. Defaults to 5MiB.
    #[schemars(regex(pattern = SIZE))]
    pub(crate) max_bytes: Option<String>,
}

/// Ping of the daemon.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHeartbeat {
    /// Name of a destination of type ping.
    #[schemars(required)]
    pub(crate) to: Option<String>,
    /// Time between two pings, at least 10s. Defaults to 1m.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) every: Option<String>,
}

/// Kind of a destination.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawDestinationType {
    /// Incoming webhook of Slack, or of a server that takes the same messages.
    Slack,
    /// JSON by POST.
    Webhook,
    /// E-mail over SMTP.
    Email,
    /// Events API of PagerDuty.
    Pagerduty,
    /// Dead man's switch: a GET of the address, with `/start` or `/fail` appended.
    Ping,
}

/// A destination of notifications.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDestination {
    /// Kind of the destination.
    #[schemars(required)]
    pub(crate) r#type: Option<RawDestinationType>,
    /// Address (slack, webhook, ping); for pagerduty another endpoint of its events API.
    pub(crate) url: Option<String>,
    /// Additional headers (webhook).
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// Key of the signature in `Dutyd-Signature` (webhook).
    pub(crate) secret: Option<String>,
    /// Server (email): smtps://USER:PASSWORD@HOST:465, or smtp://HOST:25.
    pub(crate) smtp: Option<String>,
    /// Sender (email).
    pub(crate) from: Option<String>,
    /// Recipients (email).
    pub(crate) to: Option<Vec<String>>,
    /// Integration key (pagerduty).
    pub(crate) routing_key: Option<String>,
}

/// API that serves a model.
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
    /// Ollama's native chat API.
    Ollama,
    /// Plays a script instead of calling a model.
    Scripted,
}

/// A model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawModel {
    /// API that serves the model.
    #[schemars(required)]
    pub(crate) provider: Option<RawProvider>,
    /// Name of the model at the provider.
    pub(crate) model: Option<String>,
    /// API key; prefer a reference, `${credential:NAME}` or `${NAME}`, to a literal.
    pub(crate) api_key: Option<String>,
    /// true lets the key go over plain HTTP to a host that is not loopback. Defaults to false.
    pub(crate) allow_plain_http: Option<bool>,
    /// Base URL up to and including the version, such as <https://api.openai.com/v1>.
    pub(crate) base_url: Option<String>,
    /// Whether to stream responses. Defaults to true.
    pub(crate) stream: Option<bool>,
    /// Maximum number of output tokens per response, reasoning included. A request that follows an
    /// answer that was cut off asks for more. Defaults to 32000, and to 64000 from the effort high
    /// on, at most the model's own limit. At a server that is not in the catalogue, only anthropic has a
    /// default.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(crate) max_output_tokens: Option<u32>,
    /// Sampling temperature; 0 is the most predictable. Newer models refuse it.
    #[schemars(range(min = 0, max = 2))]
    pub(crate) temperature: Option<f64>,
    /// How much the model may reason before it answers, as far as its family takes the value.
    pub(crate) reasoning_effort: Option<Effort>,
    /// Family of the model, which determines its prompt, tool names and project documents. Defaults
    /// to the provider's own family, else to generic.
    pub(crate) profile: Option<RawProfile>,
    /// Context window in tokens. Defaults to that of the model, else to the profile's; for ollama to that in
    /// models.d, else to the profile's, because the server reserves memory for it.
    #[schemars(range(min = 256, max = 100_000_000))]
    pub(crate) context_window: Option<u64>,
    /// Timeout for the whole response. Defaults to 10m.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) timeout: Option<String>,
    /// Maximum time from a request to the first byte of a streamed response; a longer silence ends
    /// the attempt. Defaults to `idle_timeout`.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) first_byte_timeout: Option<String>,
    /// Maximum time without a new byte of a response; a longer silence ends the attempt. Defaults
    /// to 60s.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) idle_timeout: Option<String>,
    /// Maximum number of retries per model call. Defaults to 4.
    #[schemars(range(min = 0, max = 20))]
    pub(crate) max_retries: Option<u32>,
    /// Additional request headers.
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// US dollars per million tokens. Defaults to the price in the catalogue.
    pub(crate) price: Option<RawPrice>,
    /// Models to try when this one is unavailable, in order.
    pub(crate) fallback: Option<Vec<String>>,
    /// Script of the scripted model, relative to the configuration directory.
    pub(crate) script: Option<String>,
}

/// Model family.
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
    /// Id of a model in the catalogue whose whole price applies; excludes the other keys.
    pub(crate) like: Option<String>,
    /// Price of input tokens. Required without `like`.
    #[schemars(range(min = 0))]
    pub(crate) input: Option<f64>,
    /// Price of output tokens, including reasoning. Required without `like`.
    #[schemars(range(min = 0))]
    pub(crate) output: Option<f64>,
    /// Price of input tokens read from the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub(crate) cached_input: Option<f64>,
    /// Price of input tokens written to the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub(crate) cache_write: Option<f64>,
    /// Rates of a request with long input.
    pub(crate) long: Option<RawLongPrice>,
}

impl RawPrice {
    /// Tells whether a key other than `like` is set.
    pub(crate) fn has_rates(&self) -> bool {
        let rates = [self.input, self.output, self.cached_input, self.cache_write];
        rates.iter().any(Option::is_some) || self.long.is_some()
    }
}

/// Rates of a request with long input.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLongPrice {
    /// Number of input tokens of a request from which these rates apply.
    #[schemars(range(min = 1))]
    pub(crate) from: u64,
    /// Price of input tokens.
    #[schemars(range(min = 0))]
    pub(crate) input: f64,
    /// Price of output tokens, including reasoning.
    #[schemars(range(min = 0))]
    pub(crate) output: f64,
    /// Price of input tokens read from the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub(crate) cached_input: Option<f64>,
    /// Price of input tokens written to the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub(crate) cache_write: Option<f64>,
}

/// An MCP server: a program (`command`) or an address (`url`).
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMcpServer {
    /// Program with its arguments; dutyd talks to it over standard input and output.
    #[schemars(length(min = 1))]
    pub(crate) command: Option<Vec<String>>,
    /// Environment variables for the program, in addition to the allowlist.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Address of a server that speaks streamable HTTP.
    pub(crate) url: Option<String>,
    /// Headers sent with every request to the server.
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// Category of the tools that `categories` does not list. Defaults to admin.
    pub(crate) category: Option<Category>,
    /// Categories of single tools, by tool name without the server prefix.
    pub(crate) categories: Option<BTreeMap<String, Category>>,
    /// Sandbox settings of the program.
    pub(crate) sandbox: Option<RawToolSandbox>,
}

/// Environment, paths, hosts and sandbox of tools.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSecurity {
    /// Variables that tools inherit, in addition to PATH HOME USER LANG LC_ALL TERM SHELL TMPDIR
    /// TZ.
    pub(crate) env_allowlist: Option<Vec<String>>,
    /// Paths that jobs may use in addition to their working directory.
    pub(crate) allowed_paths: Option<Vec<String>>,
    /// Paths that tools cannot use even if the allowed paths contain them, in addition to the
    /// built-in ones. Only a tool's `sandbox.read` opens one for reading. Configuration and state
    /// are closed too.
    pub(crate) denied_paths: Option<Vec<String>>,
    /// Commands that bash never runs, in addition to the built-in ones: a program, or a program
    /// with words that must occur among its arguments.
    pub(crate) blocked_commands: Option<Vec<String>>,
    /// Commands that raise a bash call to admin, in addition to the built-in ones.
    pub(crate) destructive_commands: Option<Vec<String>>,
    /// Hosts that web_fetch and parameters of `format: url` may name. Defaults to none.
    pub(crate) allowed_domains: Option<Vec<RawHost>>,
    /// How strictly the kernel sandboxes tools. Defaults to enforce.
    pub(crate) sandbox: Option<RawSandbox>,
}

/// A host name, or a mapping with more settings. A name that begins with `*.` matches every name
/// below the domain.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawHost {
    Name(String),
    Internal(RawInternalHost),
}

/// A host that may have non-public addresses.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawInternalHost {
    /// Host name or IP address.
    pub(crate) host: String,
    /// true allows the host even if its addresses are not public. Defaults to false.
    pub(crate) internal: Option<bool>,
}

/// Service behind the tool `web_search`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawWebSearch {
    /// API key; prefer a reference such as `${credential:NAME}`. `web_search` needs a key.
    #[schemars(required, length(min = 1))]
    pub(crate) api_key: Option<String>,
    /// Base URL of the service, without `/search`. Defaults to <https://api.exa.ai>.
    pub(crate) base_url: Option<String>,
}

/// How strictly the kernel sandboxes tools.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawSandbox {
    /// A run does not start if the kernel cannot sandbox its tools.
    Enforce,
    /// The kernel sandboxes tools as far as it can; every transcript records how far.
    BestEffort,
    /// No sandbox.
    Off,
}

/// Telemetry of the daemon.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTelemetry {
    /// The daemon's own log, which is separate from the transcripts.
    pub(crate) log: Option<RawLog>,
}

/// The daemon's own log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLog {
    /// Format of a log line. Defaults to text.
    pub(crate) format: Option<RawLogFormat>,
    /// Least severe level that is logged. Defaults to info.
    pub(crate) level: Option<RawLevel>,
    /// If set, the daemon also logs to files in `logs/` under the state directory (or in
    /// `$LOGS_DIRECTORY`) and starts a new file this often.
    pub(crate) rotate: Option<RawRotate>,
    /// Number of log files to keep if `rotate` is set. Defaults to 14.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) keep: Option<u32>,
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawLogFormat {
    Text,
    Json,
}

/// Least severe level that is logged.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// How often the daemon starts a new log file.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawRotate {
    Hourly,
    Daily,
}
