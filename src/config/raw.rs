//! The files as they are typed. The JSON Schemas of `dutyd schema` are generated from these types and validate the files.
//!
//! Doc comments here are what editors show to operators.

mod jobs;
mod tools;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::domain::Category;

pub(crate) use jobs::{
    RawAutonomy, RawCatchup, RawDefaults, RawJob, RawJobs, RawLimits, RawListed, RawMode,
    RawOneOrMany, RawRead, RawScalar, RawUnanswered,
};
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
    /// MCP servers by name; their tools are called SERVER__TOOL.
    pub(crate) mcp_servers: Option<BTreeMap<String, RawMcpServer>>,
    /// What tools get and how they are held.
    pub(crate) security: Option<RawSecurity>,
    /// Who answers `web_search`. Without it there is no such tool.
    pub(crate) web_search: Option<RawWebSearch>,
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
    /// true lets the key go over plain HTTP to a host that is not loopback. Defaults to false.
    pub(crate) allow_plain_http: Option<bool>,
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

/// An MCP server: a program, or an address.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMcpServer {
    /// The program with its arguments. It is talked with over its standard input and output.
    #[schemars(length(min = 1))]
    pub(crate) command: Option<Vec<String>>,
    /// Variables that the program gets besides the allowlist.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// The address of a server that speaks streamable HTTP.
    pub(crate) url: Option<String>,
    /// Headers of every request to it.
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// What its tools may do to the world, where `categories` says nothing. admin if not set.
    pub(crate) category: Option<Category>,
    /// What single tools may do, by their names without the server's.
    pub(crate) categories: Option<BTreeMap<String, Category>>,
    /// What the kernel leaves to the program.
    pub(crate) sandbox: Option<RawToolSandbox>,
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
    /// Commands that bash never runs, besides the built-in ones: a program, or a program with words that must stand among its arguments.
    pub(crate) blocked_commands: Option<Vec<String>>,
    /// Commands that make a call of bash an admin call, besides the built-in ones.
    pub(crate) destructive_commands: Option<Vec<String>>,
    /// Hosts that web_fetch and parameters of `format: url` may name. None if not set.
    pub(crate) allowed_domains: Option<Vec<RawHost>>,
    /// How the kernel holds tools. enforce if not set.
    pub(crate) sandbox: Option<RawSandbox>,
}

/// A host by its name (`*.` before it means every name below), or with more to say about it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawHost {
    Name(String),
    Internal(RawInternalHost),
}

/// A host that may lie in a network that is not public.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawInternalHost {
    /// Its name or its address.
    pub(crate) host: String,
    /// true opens it although its addresses are not public. false if not set.
    pub(crate) internal: Option<bool>,
}

/// Who answers `web_search`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawWebSearch {
    /// The key, best as `${credential:NAME}`. Without one there is no `web_search`.
    #[schemars(required, length(min = 1))]
    pub(crate) api_key: Option<String>,
    /// The address of the service up to `/search`. <https://api.exa.ai> if not set.
    pub(crate) base_url: Option<String>,
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
