//! How a run began: the first line of its transcript.
//!
//! *Source*: `docs/design/transcript.md`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::origin::Origin;

/// Parts of the job that a person replaced for one run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Overrides {
    /// The prompt that replaces the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The name, in the configuration, of the model that replaces the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The reasoning effort that replaces the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The limit that replaces the job's `max_iterations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    /// The overrides of a newer version. A run that has any cannot continue under this one.
    #[serde(flatten)]
    #[schemars(skip)]
    pub newer: serde_json::Map<String, Value>,
}

/// How the kernel restricts the tools of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxFacts {
    /// `enforce`, `best_effort` or `off`.
    pub mode: String,
    /// The Landlock ABI version in effect, or null.
    pub landlock_abi: Option<u32>,
    /// The control group of the run's processes, as `/proc` names it; null if none was delegated to
    /// the daemon.
    pub cgroup: Option<String>,
}

/// A document of the project, such as `AGENTS.md`.
///
/// *Shape*: `{"path":"/srv/web/AGENTS.md","digest":"9f86d081…"}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectDocument {
    pub path: String,
    /// SHA-256 (hex) of the file; null if it has more than 16 MiB.
    pub digest: Option<String>,
}

/// Fields of `session_start`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionStart {
    /// The name of the job.
    pub job: String,
    #[serde(flatten)]
    pub origin: Origin,
    /// The plan that the run applies; null for every other run.
    #[serde(default)]
    pub plan_id: Option<String>,
    /// `act` or `plan`; empty in transcripts of earlier versions.
    #[serde(default)]
    pub mode: String,
    /// The values of the job's variables.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// Whether a person is attached to the run.
    #[serde(default)]
    pub interactive: bool,
    /// The parts of the job that a person replaced.
    #[serde(default)]
    pub overrides: Overrides,
    /// The model's name at the provider.
    pub model: String,
    /// The name of the provider.
    pub provider: String,
    /// The name of the profile.
    pub profile: String,
    /// The tools that the model sees, by their own names, without those of MCP servers.
    pub tools: Vec<String>,
    /// The job's effective policy.
    pub policy: Value,
    /// SHA-256 (hex) of the configuration files as written.
    pub config_digest: String,
    /// The execution target of the tools.
    pub environment: String,
    /// How the kernel restricts the tools.
    pub sandbox: SandboxFacts,
    /// The version of dutyd.
    pub dutyd_version: String,
    pub host: String,
    /// The project's documents that the model gets. Null if no model is called (`apply`), and in
    /// transcripts of earlier versions.
    #[serde(default)]
    pub documents: Option<Vec<ProjectDocument>>,
}
