//! `bash`: runs a command line in the sandbox of a write tool. The gate judges the command line by
//! its syntax.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::ToolContext;
use super::super::call_state::{values, variables};
use super::super::exec::{Process, append, digest_of_file, interruption};
use super::{TEXT_BYTES, parsed};
use crate::agent::{
    CallContext, CallOutput, CallState, PreparedCall, ToolDefinition, ToolRunner, ToolSpec,
};
use crate::config::{Builtin, ToolSandbox};
use crate::domain::{Binding, CallError, Category, ErrorKind};
use crate::gate::Resource;

pub(super) const NAME: &str = "bash";

#[derive(Deserialize)]
struct Bash {
    command: String,
    timeout_ms: Option<u64>,
}

/// The `bash` tool in a run.
pub struct BashTool {
    declared: &'static Builtin,
    definition: ToolDefinition,
    ctx: Arc<ToolContext>,
}

impl BashTool {
    /// Returns the tool; `None` if bash is not installed on this host and commands run here.
    #[must_use]
    pub fn new(ctx: &Arc<ToolContext>) -> Option<Self> {
        let shell = ctx.programs.shell.as_ref()?;
        let declared = Builtin::find(NAME)?;
        let seconds = shell.timeout.as_secs();
        let definition = ToolDefinition {
            name: NAME.to_owned(),
            description: format!("{} The default timeout is {seconds} s.", declared.description),
            parameters: declared.parameters.schema().clone(),
        };
        Some(Self { declared, definition, ctx: ctx.clone() })
    }
}

/// Returns the command line of a call as its resource.
pub(super) fn resources(arguments: &Map<String, Value>) -> Vec<Resource> {
    let command = arguments.get("command").and_then(Value::as_str).unwrap_or_default();
    vec![Resource::Command(command.to_owned())]
}

impl ToolSpec for BashTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn category(&self) -> Category {
        self.declared.category
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        let arguments = self.declared.parameters.check(arguments, TEXT_BYTES)?;
        let asked: Bash = parsed(&arguments)?;
        let shell = self.ctx.programs.shell.as_ref();
        let shell = shell.map(|shell| shell.program.display().to_string());
        let argv = [shell.unwrap_or_default(), "-c".to_owned(), asked.command];
        Ok(PreparedCall {
            resources: resources(&arguments),
            lines: 0,
            argv: argv.into(),
            working_dir: self.ctx.working_dir.display().to_string(),
            stdin: None,
            sandboxed: self.ctx.is_sandboxed(),
            arguments,
        })
    }
}

#[async_trait]
impl ToolRunner for BashTool {
    async fn state(&self, _: &PreparedCall) -> Result<CallState, CallError> {
        let (ctx, own) = (&self.ctx, BTreeMap::new());
        let mut files = BTreeMap::new();
        let unbound = match &ctx.programs.shell {
            Some(shell) if ctx.programs.execution.is_local() => {
                let digest = digest_of_file(&ctx.host_work, shell.program.clone()).await?;
                files.insert(shell.program.display().to_string(), digest);
                "the programs that bash finds in PATH, and the files that they read".to_owned()
            }
            _ => ctx.unbound_elsewhere(),
        };
        let environment = variables(ctx, &own);
        Ok(CallState {
            identity: format!("{}{}", ctx.state_prefix(), values(ctx, &own)),
            binding: Binding { environment, files, unbound: vec![unbound], ..Binding::default() },
        })
    }

    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let asked = parsed::<Bash>(&call.arguments).ok().and_then(|asked| asked.timeout_ms);
        let Some(shell) = self.ctx.programs.shell.clone() else {
            let message = "There is no bash on this host.";
            return CallOutput::of_error(&CallError::new(ErrorKind::SpawnFailed, message));
        };
        let process = Process {
            program: shell.program,
            env: Vec::new(),
            timeout: self.ctx.capped(asked.map_or(shell.timeout, Duration::from_millis)),
            limits: self.ctx.builtin("bash"),
            category: self.declared.category,
            sandbox: &ToolSandbox::default(),
        };
        let started = std::time::Instant::now();
        let (exit, mut output) = process.run(&self.ctx, call, context).await;
        let Some(exit) = exit else { return output };
        let advice = match self.ctx.timeout_cap {
            Some(cap) if cap <= process.timeout => "The job sets this limit: do less in one call.",
            _ => "You can retry with a longer timeout by setting the timeout_ms parameter.",
        };
        let note = match (
            interruption(&self.ctx, exit, process.timeout, advice),
            exit.code,
            exit.signal,
        ) {
            (Some((kind, note)), _, _) => {
                output.error_kind = Some(kind);
                note
            }
            // The model interprets the exit code, so a non-zero code is not an error of the
            // call.
            (None, Some(code), _) => {
                format!("[exit code {code}, {} ms]", started.elapsed().as_millis())
            }
            (None, None, signal) => {
                output.error_kind = Some(ErrorKind::Signal);
                format!("[killed by signal {}]", signal.unwrap_or(0))
            }
        };
        append(&mut output.content, &note);
        if asked.is_some_and(|asked| Duration::from_millis(asked) > process.timeout) {
            let note = format!(
                "[this job limits the timeout of a call to {} ms]",
                process.timeout.as_millis()
            );
            append(&mut output.content, &note);
        }
        output
    }
}
