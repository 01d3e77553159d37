//! The context of a run's tools: where they work, how they start, and where their output goes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;

use super::environment::ExecutionEnvironment;
use super::output::OutputStore;
use super::sandbox_profile::SandboxProfiles;
use crate::config::{Skill, WebSearch};
use crate::gate::{DomainRules, PathRules};
use crate::process::Spawner;
use crate::text::redact::Redactor;

/// The resources that a run gives its tools.
pub struct ToolContext {
    pub spawner: Spawner,
    /// The allowlisted part of the daemon's environment.
    pub env: BTreeMap<String, String>,
    /// The working directory of a tool that does not set one.
    pub working_dir: PathBuf,
    /// The timeout of a tool that does not set one.
    pub timeout: Duration,
    /// Characters of an output that the model sees, if the job sets a limit and the tool does not.
    pub output_limit: Option<usize>,
    /// Bytes of an output that are kept.
    pub max_output_bytes: u64,
    /// Stores whole outputs; with `None`, only the inline part is kept.
    pub outputs: Option<Arc<dyn OutputStore>>,
    /// Removes secrets from outputs.
    pub redactor: Redactor,
    /// The target on which programs start.
    pub execution: Arc<dyn ExecutionEnvironment>,
    /// The sandbox profiles of processes.
    pub sandboxes: SandboxProfiles,
    /// The paths that tools may access.
    pub paths: PathRules,
    /// The same rules with each tree as a remote target resolves it; set on first use.
    pub elsewhere: OnceLock<PathRules>,
    /// The hosts that tools may access.
    pub domains: DomainRules,
    /// The search service, if the operator configured one.
    pub web_search: Option<WebSearch>,
    /// The shell of the `bash` tool, if there is one, and the default timeout of a command.
    pub shell: (Option<PathBuf>, Duration),
    /// Whether `glob` prints paths relative to the searched directory, as some model families
    /// expect of `find`.
    pub glob_paths_are_relative: bool,
    /// The skills of the job.
    pub skills: Vec<Arc<Skill>>,
    /// The to-do list of the run.
    pub todos: Mutex<Vec<Value>>,
}

impl ToolContext {
    /// Returns a prefix that distinguishes the state of a call on another target; empty on this
    /// host.
    #[must_use]
    pub fn place(&self) -> String {
        match self.execution.is_local() {
            true => String::new(),
            false => format!("{} ", self.execution.name()),
        }
    }

    /// Returns whether the programs of tools run in a sandbox.
    #[must_use]
    pub fn is_sandboxed(&self) -> bool {
        self.sandboxes.are_on() && self.execution.is_local()
    }
}
