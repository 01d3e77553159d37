//! A tool of `tools.yaml` in a run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::cages::Cages;
use super::output::{Collector, OutputStore};
use crate::agent::{AgentTool, CallContext, CallOutput, PreparedCall, ToolDefinition};
use crate::call::ArgumentConditions;
use crate::config::Tool;
use crate::domain::{CallError, CallId, Category, ErrorKind};
use crate::gate::PathRules;
use crate::process::{Exit, ProcessSpec, SpawnFailure, Spawner};
use crate::text::redact::Redactor;

/// What a run gives its tools.
pub struct ToolSurroundings {
    /// Starts processes.
    pub spawner: Spawner,
    /// The allowlisted part of the daemon's environment.
    pub env: BTreeMap<String, String>,
    /// Where tools start that name no directory.
    pub working_dir: PathBuf,
    /// Time of a call of a tool that sets none.
    pub timeout: Duration,
    /// Characters of an output that the model sees, where the tool sets none.
    pub output_limit: usize,
    /// Bytes of an output that are kept.
    pub max_output_bytes: u64,
    /// Keeps whole outputs; without one they are not kept.
    pub outputs: Option<Arc<dyn OutputStore>>,
    /// Takes secrets out of outputs.
    pub redactor: Redactor,
    /// How processes are held.
    pub cages: Cages,
    /// Where files may lie.
    pub paths: PathRules,
}

/// A declared tool.
pub struct DeclaredTool {
    tool: Arc<Tool>,
    definition: ToolDefinition,
    around: Arc<ToolSurroundings>,
}

impl DeclaredTool {
    /// Returns the tool as it is in a run.
    #[must_use]
    pub fn new(tool: Arc<Tool>, around: Arc<ToolSurroundings>) -> Self {
        let definition = ToolDefinition {
            name: tool.name.to_string(),
            description: tool.description.clone(),
            parameters: tool.command.parameters().schema().clone(),
        };
        Self { tool, definition, around }
    }

    /// Tells whether its program was found.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.tool.program.path.is_some()
    }

    async fn execute(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let Some(program) = self.tool.program.path.clone() else {
            return CallOutput::of_error(&CallError::new(
                ErrorKind::SpawnFailed,
                format!(
                    "The program `{}` is not installed on this host. Work without this tool.",
                    self.tool.program.written
                ),
            ));
        };
        let working_dir = PathBuf::from(&call.working_dir);
        let cage = match self.around.cages.of(self.tool.category, &self.tool.sandbox, &working_dir)
        {
            Ok(cage) => cage,
            Err(error) => {
                return CallOutput::of_error(&CallError::new(
                    ErrorKind::SpawnFailed,
                    format!("The tool was not started, because it cannot be held: {error}."),
                ));
            }
        };
        let timeout = self.timeout();
        let mut env = self.around.env.clone();
        env.extend(self.tool.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        let spec = ProcessSpec {
            program,
            argv: call.argv.clone(),
            env,
            working_dir,
            stdin: call.stdin.clone(),
            timeout,
            cage,
        };
        let mut collector = self.collector(&context.call_id);
        let exit = self
            .around
            .spawner
            .run(&spec, &context.cancel, &mut |chunk| collector.push(chunk))
            .await;
        let collected = match collector.finish() {
            Ok(collected) => collected,
            Err(error) => {
                return CallOutput::of_error(&CallError::new(
                    ErrorKind::Io,
                    format!("The output could not be kept: {error}."),
                ));
            }
        };
        let mut output = CallOutput {
            content: collected.view,
            output: collected.inline,
            output_file: collected.file,
            output_bytes: collected.bytes,
            truncated: collected.truncated,
            lossy: collected.lossy,
            ..CallOutput::default()
        };
        match exit {
            Ok(exit) => self.conclude(exit, timeout, &mut output),
            Err(failure) => fail(&failure, &mut output),
        }
        output
    }

    fn collector<'a>(&'a self, call_id: &'a CallId) -> Collector<'a> {
        let characters = self.tool.output_limit.unwrap_or(self.around.output_limit);
        Collector::new(
            self.around.outputs.as_deref(),
            call_id,
            &self.around.redactor,
            characters,
            self.around.max_output_bytes,
        )
    }

    fn timeout(&self) -> Duration {
        self.tool.timeout.unwrap_or(self.around.timeout)
    }

    /// Says how the process ended, in the fields and to the model.
    fn conclude(&self, exit: Exit, timeout: Duration, output: &mut CallOutput) {
        output.exit_code = exit.code;
        output.signal = exit.signal;
        output.timed_out = exit.timed_out;
        output.survivors = exit.survivors;
        let (kind, note) = match exit {
            Exit { timed_out: true, .. } => (
                Some(ErrorKind::Timeout),
                format!(
                    "[ERROR: Command timed out after {}ms. Partial output is shown above. The time is set by the operator; ask for less at once.]",
                    timeout.as_millis()
                ),
            ),
            Exit { cancelled: true, .. } => (
                Some(ErrorKind::Interrupted),
                "[ERROR: The run was stopped while this worked; its effect is unknown.]".to_owned(),
            ),
            Exit { code: Some(code), .. } if self.tool.success_codes.contains(&code) => (
                None,
                if output.content.trim().is_empty() {
                    format!("[no output, exit code {code}]")
                } else {
                    String::new()
                },
            ),
            Exit { code: Some(code), .. } => {
                (Some(ErrorKind::ExitCode), format!("[exit code {code}]"))
            }
            Exit { signal, .. } => {
                (Some(ErrorKind::Signal), format!("[ended by signal {}]", signal.unwrap_or(0)))
            }
        };
        output.error_kind = kind;
        append(&mut output.content, &note);
        if exit.output_held {
            append(
                &mut output.content,
                "[the output was still held open after the end and was cut there]",
            );
        }
    }
}

fn fail(failure: &SpawnFailure, output: &mut CallOutput) {
    let kind = match failure {
        SpawnFailure::Refused { .. } | SpawnFailure::Order(_) => ErrorKind::SpawnFailed,
        SpawnFailure::ShimLost => ErrorKind::Interrupted,
        SpawnFailure::Output(_) => ErrorKind::Io,
    };
    let message = match failure {
        SpawnFailure::Refused { step, errno } => {
            format!("[ERROR: {errno:?} at {step}: {}. Nothing was run.]", errno.desc())
        }
        other => format!("[ERROR: {other}]"),
    };
    output.error_kind = Some(kind);
    if let Some(whole) = &mut output.output {
        append(whole, &message);
    }
    append(&mut output.content, &message);
}

fn append(text: &mut String, note: &str) {
    if note.is_empty() {
        return;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(note);
}

#[async_trait]
impl AgentTool for DeclaredTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn category(&self) -> Category {
        self.tool.category
    }

    fn destructive_when(&self) -> &[ArgumentConditions] {
        &self.tool.destructive_when
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        let arguments = self.tool.command.validate(arguments)?;
        let rendered = self.tool.command.render(&arguments)?;
        let program =
            self.tool.program.path.as_ref().map_or_else(
                || self.tool.program.written.clone(),
                |path| path.display().to_string(),
            );
        let working_dir = self.tool.working_dir.as_ref().unwrap_or(&self.around.working_dir);
        Ok(PreparedCall {
            arguments,
            argv: std::iter::once(program).chain(rendered.args).collect(),
            working_dir: working_dir.display().to_string(),
            stdin: rendered.stdin,
            sandboxed: self.around.cages.are_on(),
        })
    }

    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        self.execute(call, context).await
    }
}
