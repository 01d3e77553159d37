//! How a run began: the first line of its transcript.
//!
//! *Source*: `docs/design/transcript.md`.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// A slot came due.
    Schedule,
    /// A person started it.
    Manual,
    /// A slot that came due while the daemon was down.
    Catchup,
}

impl Trigger {
    /// Returns the word that stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Manual => "manual",
            Self::Catchup => "catchup",
        }
    }
}

/// A person of this host, as the kernel names the peer of a socket or the user of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Person {
    /// The user's number.
    pub uid: u32,
    /// The user's name; `#UID` without an entry in the user database.
    pub user: String,
}

/// What a person replaced for one run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Overrides {
    /// The prompt, in place of the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// How the tools of a run are held by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxFacts {
    /// `enforce`, `best_effort` or `off`.
    pub mode: String,
    /// The Landlock version in force, or null.
    pub landlock_abi: Option<u32>,
    /// The control group of what the run starts, as `/proc` names it; null where none was left to the daemon.
    pub cgroup: Option<String>,
}

/// A document of the project, such as `AGENTS.md`.
///
/// *Shape*: `{"path":"/srv/web/AGENTS.md","digest":"9f86d081…"}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectDocument {
    /// Its absolute path.
    pub path: String,
    /// SHA-256 (hex) of the file; null if it has more than 16 MiB.
    pub digest: Option<String>,
}

/// Fields of `session_start`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionStart {
    /// The job.
    pub job: String,
    /// Why it runs.
    pub trigger: Trigger,
    /// The slot, if one made it run.
    pub scheduled_for: Option<DateTime<Utc>>,
    /// 1, 2 …
    pub attempt: u32,
    /// What replaced parts of the job.
    #[serde(default)]
    pub overrides: Overrides,
    /// Who started it; null for the schedule.
    #[serde(default)]
    pub by: Option<Person>,
    /// The model as the provider knows it.
    pub model: String,
    /// The provider.
    pub provider: String,
    /// The profile.
    pub profile: String,
    /// The tools that the model sees.
    pub tools: Vec<String>,
    /// The job's effective policy.
    pub policy: Value,
    /// SHA-256 (hex) of the configuration with its references unresolved.
    pub config_digest: String,
    /// Where tools run.
    pub environment: String,
    /// How tools are held.
    pub sandbox: SandboxFacts,
    /// Our version.
    pub dutyd_version: String,
    /// The host's name.
    pub host: String,
    /// The documents of the project that the model is given; null where no model is asked (`apply`), and in records of earlier versions.
    #[serde(default)]
    pub documents: Option<Vec<ProjectDocument>>,
}
