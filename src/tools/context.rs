//! The context of a run's tools: where they work, how they start, and where their output goes.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

use super::environment::ExecutionEnvironment;
use super::output::{Collector, OutputStore};
use super::sandbox_profile::SandboxProfiles;
use crate::agent::CallOutput;
use crate::config::{CallLimits, Skill, WebSearch};
use crate::domain::{CallId, Image};
use crate::gate::{DomainRules, PathRules};
use crate::process::{HostWork, Spawner};
use crate::text::redact::Redactor;
use crate::text::truncate::ViewLimit;

/// The resources that a run gives its tools.
pub struct ToolContext {
    /// The working directory of a tool that does not set one.
    pub working_dir: PathBuf,
    /// The timeout of a tool that does not set one.
    pub timeout: Duration,
    /// The longest timeout of a call, if the job sets one.
    pub timeout_cap: Option<Duration>,
    /// The limits of built-in tools that the operator sets, by name.
    pub builtins: BTreeMap<String, CallLimits>,
    /// Removes secrets from outputs.
    pub redactor: Redactor,
    pub programs: ProgramContext,
    /// Runs the work on files of this host, which a dead file system can hold up.
    pub host_work: HostWork,
    pub outputs: OutputContext,
    pub access: AccessRules,
    /// The search service, if the operator configured one.
    pub web_search: Option<WebSearch>,
    /// Whether `glob` prints paths relative to the searched directory. Models that see the tool
    /// under the name `find` expect this.
    pub glob_paths_are_relative: bool,
    /// The skills of the job.
    pub skills: Vec<Arc<Skill>>,
    /// The to-do list of the run.
    pub todos: Mutex<Vec<Value>>,
}

/// How the programs of tools start.
pub struct ProgramContext {
    pub spawner: Spawner,
    /// The environment of programs on this host: the allowlisted variables of the daemon, `PATH`,
    /// and the run's own `TMPDIR`.
    pub env: BTreeMap<String, String>,
    /// The target on which programs start.
    pub execution: Arc<dyn ExecutionEnvironment>,
    /// The sandbox profiles of processes.
    pub sandboxes: SandboxProfiles,
    /// The shell of the `bash` tool; `None` if it is not installed.
    pub shell: Option<Shell>,
}

/// The shell of the `bash` tool.
#[derive(Debug, Clone)]
pub struct Shell {
    pub program: PathBuf,
    /// The timeout of a command that does not set one.
    pub timeout: Duration,
}

/// How much of an output is kept, and where.
pub struct OutputContext {
    /// Stores whole outputs; with `None`, at most 64 KiB of an output are kept (`INLINE_LIMIT`).
    pub store: Option<Arc<dyn OutputStore>>,
    /// Bytes at the start of an output that are kept; its last 1 MiB is kept as well.
    pub max_bytes: u64,
    /// The job's limit on the characters of an output that the model sees, if it sets one. A limit
    /// that the tool declares can only lower it.
    pub max_characters: Option<usize>,
    /// The same for lines.
    pub max_lines: Option<usize>,
}

/// What tools may access.
pub struct AccessRules {
    pub paths: PathRules,
    pub domains: DomainRules,
    /// `paths` with the writable and denied trees as the remote target resolves them; set on first
    /// use.
    pub(super) remote_paths: OnceLock<PathRules>,
}

impl AccessRules {
    /// Returns rules whose remote paths are still to be resolved.
    #[must_use]
    pub fn new(paths: PathRules, domains: DomainRules) -> Self {
        Self { paths, domains, remote_paths: OnceLock::new() }
    }
}

impl ToolContext {
    /// Returns the beginning of the text that [`crate::agent::ToolRunner::state`] returns: the name
    /// of the remote target and a space, or an empty text on this host.
    #[must_use]
    pub fn state_prefix(&self) -> String {
        if self.programs.execution.is_local() {
            String::new()
        } else {
            format!("{} ", self.programs.execution.name())
        }
    }

    /// Names what an approval cannot bind if the tools run on a remote target, for a person.
    #[must_use]
    pub fn unbound_elsewhere(&self) -> String {
        format!("the programs and files on {}", self.programs.execution.name())
    }

    /// Returns whether the programs of tools run in a sandbox.
    #[must_use]
    pub fn is_sandboxed(&self) -> bool {
        self.programs.sandboxes.are_on() && self.programs.execution.is_local()
    }

    /// Returns the timeout of a call that asks for this one.
    pub(super) fn capped(&self, asked: Duration) -> Duration {
        self.timeout_cap.map_or(asked, |cap| cap.min(asked))
    }

    /// Returns the limits that the operator sets for a built-in tool.
    pub(super) fn builtin(&self, name: &str) -> CallLimits {
        self.builtins.get(name).copied().unwrap_or_default()
    }

    /// Returns the timeout of a built-in tool whose own is `default`.
    pub(super) fn builtin_timeout(&self, name: &str, default: Duration) -> Duration {
        self.capped(self.builtin(name).timeout.unwrap_or(default))
    }

    /// Returns a collector for the output of a call. The model sees at most the characters and lines of
    /// `own`, which belong to the tool, and at most those of the job; without both, those of `view`.
    pub(super) fn collector<'a>(
        &'a self,
        call_id: &'a CallId,
        own: CallLimits,
        view: ViewLimit,
    ) -> Collector<'a> {
        let OutputContext { store, max_bytes, max_characters, max_lines } = &self.outputs;
        let least = |own: Option<usize>, of_job: Option<usize>, default: usize| {
            [own, of_job].into_iter().flatten().min().unwrap_or(default)
        };
        let characters = least(own.characters, *max_characters, view.characters);
        let lines = least(own.lines, *max_lines, view.lines);
        let view = ViewLimit { characters, lines, ..view };
        Collector::new(store.as_deref(), call_id, &self.redactor, view, *max_bytes)
    }

    /// Returns the recorded output of a call as text, at most `most` bytes of it. Without a store,
    /// returns what the output itself holds.
    pub(super) fn recorded(&self, output: &CallOutput, most: u64) -> String {
        let store = self.outputs.store.as_deref();
        let file = output.output_file.as_deref().zip(store);
        let bytes = file.and_then(|(name, store)| store.read(name, most).ok());
        match bytes {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => output.output.clone().unwrap_or_default(),
        }
    }

    /// Replaces the todo list.
    pub fn set_todos(&self, todos: Vec<Value>) {
        *self.todos.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = todos;
    }

    /// Stores images beside the transcript, if there is a store. Returns the entry that describes
    /// the images in the details of the call's output; `None` if there are no images.
    ///
    /// *Errors*: as [`OutputStore::keep_image`].
    pub(super) fn keep_images(
        &self,
        call_id: &CallId,
        images: &[Image],
    ) -> io::Result<Option<(String, Value)>> {
        let mut kept = Vec::new();
        for (at, image) in images.iter().enumerate() {
            let store = self.outputs.store.as_deref();
            let file = store.map(|store| store.keep_image(call_id, at + 1, image)).transpose()?;
            let Image { media_type, width, height, .. } = image;
            kept.push(
                json!({"file": file, "media_type": media_type, "width": width, "height": height}),
            );
        }
        Ok((!kept.is_empty()).then(|| ("images".to_owned(), kept.into())))
    }
}
