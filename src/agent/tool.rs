//! What the loop asks of a tool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::shown::{ShownAs, ToolDefinition};
use crate::argv::ArgumentConditions;
use crate::domain::{CallEnd, CallError, CallId, Category, ErrorKind, Image, Truncated};
use crate::gate::Resource;

/// A call that was validated and rendered: what is judged, recorded and run are the same.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedCall {
    /// The arguments with defaults filled in.
    pub arguments: Map<String, Value>,
    /// The program with its arguments.
    pub argv: Vec<String>,
    /// Where it starts.
    pub working_dir: String,
    /// What it reads on standard input.
    pub stdin: Option<String>,
    /// Whether the kernel holds it.
    pub sandboxed: bool,
    /// What it accesses, for the gate.
    pub resources: Vec<Resource>,
    /// Lines of files that it would change, at most.
    pub lines: u64,
}

impl PreparedCall {
    /// Returns SHA-256 (hex) of everything that makes a call what it is; `state` is what [`AgentTool::state`] says.
    #[must_use]
    pub fn digest(&self, name: &str, state: &str) -> String {
        let whole = serde_json::json!([
            name,
            self.arguments,
            self.argv,
            self.working_dir,
            self.stdin,
            state
        ]);
        hex::encode(Sha256::digest(whole.to_string()))
    }
}

/// What a call is given besides its arguments.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The call.
    pub call_id: CallId,
    /// Cancelled when the run ends: the call must end within 3 s.
    pub cancel: CancellationToken,
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallOutput {
    /// The model's view.
    pub content: String,
    /// How it failed, if it did.
    pub error_kind: Option<ErrorKind>,
    /// The whole output, where it is small.
    pub output: Option<String>,
    /// The file of the whole output, where it is not.
    pub output_file: Option<String>,
    /// Bytes that were written.
    pub output_bytes: u64,
    /// Bytes of it that were not kept, and SHA-256 (hex) of the file that holds the others.
    pub dropped: Option<(u64, String)>,
    /// What the view leaves out.
    pub truncated: Option<Truncated>,
    /// Whether bytes were no UTF-8.
    pub lossy: bool,
    /// The exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the deadline passed.
    pub timed_out: bool,
    /// Processes that outlived the kill.
    pub survivors: u64,
    /// SHA-256 (hex) of the whole output, where there was one.
    pub digest: Option<String>,
    /// What changed in files.
    pub diff: Option<String>,
    /// The files that were changed.
    pub modified: Vec<PathBuf>,
    /// Lines that went and lines that came.
    pub lines_changed: u64,
    /// Pictures, for models that see.
    pub images: Vec<Image>,
    /// What else there is to say for readers of the record.
    pub details: Map<String, Value>,
}

impl CallOutput {
    /// Returns what a read answered, as SHA-256 (hex); `None` if it gave no answer that could be had again.
    #[must_use]
    pub fn read_digest(&self) -> Option<String> {
        let is_answer =
            matches!(self.error_kind, None | Some(ErrorKind::ExitCode | ErrorKind::NotFound));
        let said = self.digest.as_ref().or(self.output.as_ref());
        let images: Vec<&str> = self.images.iter().map(|image| &*image.base64).collect();
        let whole = serde_json::json!([self.error_kind, self.exit_code, said, images]);
        is_answer.then(|| hex::encode(Sha256::digest(whole.to_string())))
    }

    /// Returns what the record says of the end of a call.
    #[must_use]
    pub fn end(self, call_id: &CallId, name: &str, duration_ms: u64) -> CallEnd {
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
            lossy: self.lossy,
            exit_code: self.exit_code,
            signal: self.signal,
            timed_out: self.timed_out,
            duration_ms,
            diff: self.diff,
            files_modified: self.modified.len() as u64,
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

/// A tool.
#[async_trait]
pub trait AgentTool: Send + Sync {
    /// Returns its definition.
    fn definition(&self) -> &ToolDefinition;

    /// Returns its own category.
    fn category(&self) -> Category;

    /// Returns the conditions of which any makes a call an admin call.
    fn destructive_when(&self) -> &[ArgumentConditions] {
        &[]
    }

    /// Tells whether a call could be run here at all.
    fn is_available(&self) -> bool {
        true
    }

    /// Validates and renders a call.
    ///
    /// *Errors*: why it cannot be run, for the model.
    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError>;

    /// Returns what makes the call what it is beyond its record: the program and the files that it would change, as they are now.
    ///
    /// *Errors*: they cannot be read.
    async fn state(&self, _call: &PreparedCall) -> Result<String, CallError> {
        Ok(String::new())
    }

    /// Returns the call that shows what a call would do without doing it; `None` if the tool has no way to.
    fn dry_run_of(&self, _call: &PreparedCall) -> Option<PreparedCall> {
        None
    }

    /// Runs what [`Self::dry_run_of`] gave, with the rights of a read tool.
    ///
    /// *Cancel*: as [`Self::run`].
    async fn dry_run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        self.run(call, context).await
    }

    /// Runs a prepared call. A failure is content, not an error.
    ///
    /// *Cancel*: by `context.cancel` only; the future is then to be awaited to its end, so that nothing of the call is left alive.
    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput;
}

/// The tools of a run.
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: BTreeMap<String, Arc<dyn AgentTool>>,
    offered: Vec<ToolDefinition>,
    /// From the names that the model is shown to the tools' own.
    shown: BTreeMap<String, (String, ShownAs)>,
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

impl Toolbox {
    /// Returns a toolbox; `shown_as` says how a model is shown a tool, if it is.
    pub fn new(
        tools: impl IntoIterator<Item = Arc<dyn AgentTool>>,
        shown_as: impl Fn(&dyn AgentTool) -> Option<ShownAs>,
    ) -> Self {
        let tools: BTreeMap<_, _> =
            tools.into_iter().map(|tool| (tool.definition().name.clone(), tool)).collect();
        let mut shown = BTreeMap::new();
        let mut offered: Vec<ToolDefinition> = Vec::new();
        for tool in tools.values() {
            let own = &tool.definition().name;
            let Some(mut as_) = shown_as(tool.as_ref()) else { continue };
            if as_.name != *own && tools.contains_key(&as_.name) {
                // The name is another tool's.
                as_.name.clone_from(own);
            }
            offered.push(as_.definition(tool.definition()));
            shown.insert(as_.name.clone(), (own.clone(), as_));
        }
        offered.sort_by(|a, b| a.name.cmp(&b.name));
        Self { tools, offered, shown }
    }

    /// Returns a tool's own name for the one that a model wrote.
    #[must_use]
    pub fn canonical<'a>(&'a self, name: &'a str) -> &'a str {
        self.shown.get(name).map_or(name, |(own, _)| own)
    }

    /// Returns the arguments of a call by the tool's own names; what is there by its own name already stays so.
    #[must_use]
    pub fn own_arguments(&self, name: &str, arguments: &Map<String, Value>) -> Map<String, Value> {
        let Some((_, shown)) = self.shown.get(name) else { return arguments.clone() };
        shown.own_arguments(arguments)
    }

    /// Returns conditions on the arguments of a tool by the names that the model knows.
    #[must_use]
    pub fn in_shown_names(&self, name: &str, conditions: &Map<String, Value>) -> Value {
        match self.shown.get(name) {
            Some((_, shown)) => shown.conditions(conditions),
            None => conditions.clone().into(),
        }
    }

    /// Returns a text about a tool in the words that the model knows.
    #[must_use]
    pub fn in_shown_words(&self, name: &str, text: &str) -> String {
        self.shown
            .get(name)
            .map_or_else(|| text.to_owned(), |(_, shown)| shown.in_shown_words(text))
    }

    /// Returns the tool of exactly this name, its own or the one that it is shown under (POL-3).
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<dyn AgentTool>> {
        self.tools.get(self.canonical(name))
    }

    /// Returns the tools that the model is shown, by name.
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
