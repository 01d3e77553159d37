//! What a run gives its tools: where they work, how they start, and what takes their output.

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

/// What a run gives its tools.
pub struct ToolContext {
    /// Starts processes.
    pub spawner: Spawner,
    /// The allowlisted part of the daemon's environment.
    pub env: BTreeMap<String, String>,
    /// Where tools start that name no directory.
    pub working_dir: PathBuf,
    /// Time of a call of a tool that sets none.
    pub timeout: Duration,
    /// Characters of an output that the model sees, where the tool sets none and the job does.
    pub output_limit: Option<usize>,
    /// Bytes of an output that are kept.
    pub max_output_bytes: u64,
    /// Keeps whole outputs; without one they are not kept.
    pub outputs: Option<Arc<dyn OutputStore>>,
    /// Takes secrets out of outputs.
    pub redactor: Redactor,
    /// Where programs are started.
    pub execution: Arc<dyn ExecutionEnvironment>,
    /// How processes are held.
    pub sandboxes: SandboxProfiles,
    /// Where files may lie.
    pub paths: PathRules,
    /// The same with every tree as it is resolved where the tools work, if that is not this host; found at the first use.
    pub elsewhere: OnceLock<PathRules>,
    /// What may be fetched.
    pub domains: DomainRules,
    /// Who answers searches.
    pub web_search: Option<WebSearch>,
    /// The shell of the `bash` tool, if there is one, and its time where a call asks for none.
    pub shell: (Option<PathBuf>, Duration),
    /// Whether `glob` names files relative to the searched directory, as the `find` of some families does.
    pub glob_paths_are_relative: bool,
    /// The skills of the job.
    pub skills: Vec<Arc<Skill>>,
    /// What is to be done in the run.
    pub todos: Mutex<Vec<Value>>,
}

impl ToolContext {
    /// Returns what tells calls elsewhere from the same calls here.
    #[must_use]
    pub fn place(&self) -> String {
        match self.execution.is_local() {
            true => String::new(),
            false => format!("{} ", self.execution.name()),
        }
    }

    /// Tells whether the kernel holds the programs of tools.
    #[must_use]
    pub fn is_sandboxed(&self) -> bool {
        self.sandboxes.are_on() && self.execution.is_local()
    }
}
