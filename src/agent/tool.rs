//! The interface between the loop and a tool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::shown::{ShownAs, ToolDefinition};
use crate::argv::ArgumentConditions;
use crate::domain::{Binding, CallEnd, CallError, CallId, Category, ErrorKind, Image, Truncated};
use crate::gate::Resource;

/// A validated and rendered call. The gate judges, the transcript records and the tool runs this
/// same value.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedCall {
    /// The arguments with defaults filled in.
    pub arguments: Map<String, Value>,
    /// The program with its arguments; empty if the call starts no program.
    pub argv: Vec<String>,
    /// The directory in which the program starts.
    pub working_dir: String,
    /// Text for the program's standard input.
    pub stdin: Option<String>,
    /// Whether a sandbox restricts the call.
    pub sandboxed: bool,
    /// The resources that the call accesses, for the gate.
    pub resources: Vec<Resource>,
    /// Upper bound of the lines that the call would change in files.
    pub lines: u64,
}

impl PreparedCall {
    /// Returns the SHA-256 (hex) of everything that identifies the call. `state` comes from
    /// [`ToolRunner::state`].
    #[must_use]
    pub fn digest(&self, name: &str, state: &CallState) -> String {
        let whole = serde_json::json!([
            name,
            self.arguments,
            self.argv,
            self.working_dir,
            self.stdin,
            state.identity,
            state.binding.files
        ]);
        hex::encode(Sha256::digest(whole.to_string()))
    }
}

/// The state on which a call depends in addition to its arguments.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallState {
    /// Identifies the tool's rights and the values of its variables. The text may hold secrets, so
    /// only its digest may leave the process.
    pub identity: String,
    pub binding: Binding,
}

/// The id, the cancellation and the budget of a running call.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The id of the call.
    pub call_id: CallId,
    /// Cancelled when the run ends. The call must then end within 3 s.
    pub cancel: CancellationToken,
    /// How many lines of files the run may still change.
    pub lines_left: u64,
}

/// The output of a call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallOutput {
    /// The output as the model sees it.
    pub content: String,
    /// The kind of failure; `None` on success.
    pub error_kind: Option<ErrorKind>,
    /// The whole output, if it is small.
    pub output: Option<String>,
    /// The file that holds the output, if it is large.
    pub output_file: Option<String>,
    /// Number of bytes that the tool wrote, including dropped ones.
    pub output_bytes: u64,
    /// The number of dropped bytes, and the SHA-256 (hex) of the file that holds the kept bytes.
    pub dropped: Option<(u64, String)>,
    /// How much of the output `content` leaves out.
    pub truncated: Option<Truncated>,
    /// Whether the output contained invalid UTF-8.
    pub lossy: bool,
    pub exit_code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// Whether the deadline passed.
    pub timed_out: bool,
    /// Number of processes of the call that survived an attempt to kill them.
    pub survivors: u64,
    /// SHA-256 (hex) of the whole output, if any.
    pub digest: Option<String>,
    /// The changes to files, as a unified diff.
    pub diff: Option<String>,
    pub modified: Vec<PathBuf>,
    /// Lines removed plus lines added.
    pub lines_changed: u64,
    /// Images, for models that accept them.
    pub images: Vec<Image>,
    /// Additional fields for readers of the transcript.
    pub details: Map<String, Value>,
}

impl CallOutput {
    /// Returns the SHA-256 (hex) of a read's answer; `None` after a failure that another try may
    /// not reproduce.
    #[must_use]
    pub fn read_digest(&self) -> Option<String> {
        let is_answer =
            matches!(self.error_kind, None | Some(ErrorKind::ExitCode | ErrorKind::NotFound));
        let said = self.digest.as_ref().or(self.output.as_ref());
        let images: Vec<&str> = self.images.iter().map(|image| &*image.base64).collect();
        let whole = serde_json::json!([self.error_kind, self.exit_code, said, images]);
        is_answer.then(|| hex::encode(Sha256::digest(whole.to_string())))
    }

    /// Returns the fields of the `tool_call_end` event.
    #[must_use]
    pub fn end(self, call_id: &CallId, name: &str, duration_ms: u64) -> CallEnd {
        let view = (self.output.as_ref() != Some(&self.content)).then_some(self.content);
        CallEnd {
            call_id: call_id.clone(),
            name: name.to_owned(),
            is_error: self.error_kind.is_some(),
            error_kind: self.error_kind,
            output: self.output,
            output_file: self.output_file,
            output_bytes: self.output_bytes,
            dropped_bytes: self.dropped.as_ref().map_or(0, |(bytes, _)| *bytes),
            digest: self.digest.clone(),
            file_digest: self.dropped.as_ref().map(|(_, digest)| digest.clone()),
            truncated: self.truncated,
            view,
            lossy: self.lossy,
            exit_code: self.exit_code,
            signal: self.signal,
            timed_out: self.timed_out,
            duration_ms,
            diff: self.diff,
            files_modified: self.modified.len() as u64,
            modified: self.modified.iter().map(|path| path.display().to_string()).collect(),
            lines_changed: self.lines_changed,
            details: self.details,
        }
    }

    /// Returns the output of a call that was not run.
    #[must_use]
    pub fn of_error(error: &CallError) -> Self {
        Self {
            content: error.message.clone(),
            error_kind: Some(error.kind),
            output: Some(error.message.clone()),
            output_bytes: error.message.len() as u64,
            ..Self::default()
        }
    }
}

/// Describes a tool and prepares its calls, without running them.
pub trait ToolSpec: Send + Sync {
    /// Returns the definition, under the tool's own names.
    fn definition(&self) -> &ToolDefinition;

    /// Returns the tool's category. The gate may raise it for a call.
    fn category(&self) -> Category;

    /// Returns conditions on the arguments. A call that meets any of them is an admin call.
    fn destructive_when(&self) -> &[ArgumentConditions] {
        &[]
    }

    /// Tells whether the tool can run at all; for example, whether its program exists.
    fn is_available(&self) -> bool {
        true
    }

    /// Validates and renders a call.
    ///
    /// *Errors*: why the call cannot run, for the model.
    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError>;

    /// Renders the probe of a call with these arguments, which finds out whether the call took
    /// effect; `None` if the tool has none, or if the arguments cannot be rendered any more.
    fn probe_of(&self, _arguments: &Map<String, Value>) -> Option<PreparedCall> {
        None
    }

    /// Returns the dry run of a call, which shows what the call would do without doing it; `None`
    /// if the tool does not support dry runs.
    fn dry_run_of(&self, _call: &PreparedCall) -> Option<PreparedCall> {
        None
    }
}

/// How a tool runs the calls that its [`ToolSpec`] prepared.
#[async_trait]
pub trait ToolRunner: Send + Sync {
    /// Returns the current state on which the call depends: its program and its files, its
    /// environment and its rights.
    ///
    /// *Errors*: the program or the files cannot be read.
    async fn state(&self, _call: &PreparedCall) -> Result<CallState, CallError> {
        Ok(CallState::default())
    }

    /// Runs the call that [`ToolSpec::dry_run_of`] returned, with the rights of a read tool.
    ///
    /// *Cancel*: as [`Self::run`].
    async fn dry_run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        self.run(call, context).await
    }

    /// Runs the probe that [`ToolSpec::probe_of`] returned, with the rights of a read tool. Also
    /// returns whether the call took effect; `None` if the probe does not tell.
    ///
    /// *Cancel*: as [`Self::run`].
    async fn probe(
        &self,
        probe: &PreparedCall,
        context: &CallContext,
    ) -> (CallOutput, Option<bool>) {
        (self.dry_run(probe, context).await, None)
    }

    /// Runs a prepared call. The output also reports a failure.
    ///
    /// *Cancel*: through `context.cancel` only. Then await the future to its end, so that no
    /// process of the call stays alive.
    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput;
}

/// A tool that the loop can call.
pub trait AgentTool: ToolSpec + ToolRunner {}

impl<T: ToolSpec + ToolRunner> AgentTool for T {}

/// The tools of a run.
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: BTreeMap<String, Arc<dyn AgentTool>>,
    offered: Vec<ToolDefinition>,
    /// Maps the tool name that the model sees to the tool's own name and its [`ShownAs`].
    shown: BTreeMap<String, (String, ShownAs)>,
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

impl Toolbox {
    /// Returns a toolbox. `shown_as` decides how the model sees a tool; `None` hides it from the
    /// model.
    pub fn new(
        tools: impl IntoIterator<Item = Arc<dyn AgentTool>>,
        shown_as: impl Fn(&dyn ToolSpec) -> Option<ShownAs>,
    ) -> Self {
        let tools: BTreeMap<_, _> =
            tools.into_iter().map(|tool| (tool.definition().name.clone(), tool)).collect();
        let mut shown = BTreeMap::new();
        let mut offered: Vec<ToolDefinition> = Vec::new();
        for tool in tools.values() {
            let own = &tool.definition().name;
            let Some(mut as_) = shown_as(tool.as_ref()) else { continue };
            if as_.name != *own && tools.contains_key(&as_.name) {
                // Another tool already has this name, so show this tool under its own name.
                as_.name.clone_from(own);
            }
            offered.push(as_.definition(tool.definition()));
            shown.insert(as_.name.clone(), (own.clone(), as_));
        }
        offered.sort_by(|a, b| a.name.cmp(&b.name));
        Self { tools, offered, shown }
    }

    /// Returns the own name of the tool that the model sees as `name`; if there is none, `name`
    /// itself.
    #[must_use]
    pub fn canonical<'a>(&'a self, name: &'a str) -> &'a str {
        self.shown.get(name).map_or(name, |(own, _)| own)
    }

    /// Converts arguments to the tool's own parameter names and time unit. `name` is the tool name
    /// that the model sees. An argument that is already under the tool's own name takes precedence.
    #[must_use]
    pub fn own_arguments(&self, name: &str, arguments: &Map<String, Value>) -> Map<String, Value> {
        let Some((_, shown)) = self.shown.get(name) else { return arguments.clone() };
        shown.own_arguments(arguments)
    }

    /// Converts conditions on a tool's arguments to the parameter names and the time unit that the
    /// model sees. `name` is the tool name that the model sees.
    #[must_use]
    pub fn in_shown_names(&self, name: &str, conditions: &Map<String, Value>) -> Value {
        match self.shown.get(name) {
            Some((_, shown)) => shown.conditions(conditions),
            None => conditions.clone().into(),
        }
    }

    /// Replaces a tool's parameter names in `text` with the names that the model sees. `name` is
    /// the tool name that the model sees. Times in `text` stay in milliseconds, and the text then
    /// says so.
    #[must_use]
    pub fn in_shown_words(&self, name: &str, text: &str) -> String {
        self.shown
            .get(name)
            .map_or_else(|| text.to_owned(), |(_, shown)| shown.in_shown_words(text))
    }

    /// Returns the tool whose own or shown name is exactly `name` (POL-3).
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<dyn AgentTool>> {
        self.tools.get(self.canonical(name))
    }

    /// Returns the tools that the model sees, sorted by name.
    #[must_use]
    pub fn offered(&self) -> &[ToolDefinition] {
        &self.offered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_gives_another_picture_answers_differently() {
        let with = |base64: &str| {
            let image =
                Image { media_type: "image/png", width: 3, height: 2, base64: base64.into() };
            CallOutput {
                output: Some("[picture 1]".to_owned()),
                images: vec![image],
                ..CallOutput::default()
            }
        };
        assert_eq!(with("QUJD").read_digest(), with("QUJD").read_digest());
        assert_ne!(with("QUJD").read_digest(), with("QUJE").read_digest());
    }
}
