//! The tools that `tools.yaml` declares, as a run uses them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::ToolContext;
use super::builtin::judged_addresses;
use super::call_state::{DIRECTORY, late, named_file, states, values, variables};
use super::exec::{Process, append, digest_of_file, interruption};
use super::files::Files;
use crate::agent::{
    CallContext, CallOutput, CallState, PreparedCall, ToolDefinition, ToolRunner, ToolSpec,
};
use crate::argv::{ArgumentConditions, Names};
use crate::config::{CallLimits, Expect, Tool};
use crate::domain::{Binding, CallError, Category, ErrorKind};
use crate::gate::{Access, PathRefusal, Resource};
use crate::process::{Exit, resolved};

/// Maximum bytes of an output that conditions on it look at.
const JUDGED_BYTES: u64 = 1 << 20;

/// Returns the paths and addresses that a call accesses, from the parameters of `format: path` and
/// `format: url` (ARG-12).
///
/// *Errors*: `invalid_arguments` if programs can read an address in more than one way.
pub fn declared_resources(
    tool: &Tool,
    arguments: &Map<String, Value>,
) -> Result<Vec<Resource>, CallError> {
    let access = if tool.category == Category::Read { Access::Read } else { Access::Write };
    let named = tool.command.parameters().named(arguments);
    let resource = |(name, names, text): (&str, Names, &str)| match (names, &tool.working_dir) {
        (Names::Url, _) => match url::Url::parse(text).map(String::from) {
            Ok(normal) if normal != text && normal.strip_suffix('/') != Some(text) => {
                let message = format!(
                    "{name}: programs can read this address in different ways. Nothing was run. Write it as {normal} and call again."
                );
                Err(CallError::new(ErrorKind::InvalidArguments, message))
            }
            // The gate refuses a text that is not an address.
            _ => Ok(Resource::Url(text.to_owned())),
        },
        // The program resolves a relative path in its working directory. Leave a path with `~`
        // unchanged, because the gate refuses it.
        (Names::Path, Some(working_dir)) if text != "~" && !text.starts_with("~/") => {
            Ok(Resource::file(&working_dir.join(text).to_string_lossy(), access))
        }
        (Names::Path, _) => Ok(Resource::file(text, access)),
    };
    named.map(resource).collect()
}

/// A tool that `tools.yaml` declares, in a run.
pub struct DeclaredTool {
    tool: Arc<Tool>,
    definition: ToolDefinition,
    ctx: Arc<ToolContext>,
}

impl DeclaredTool {
    /// Returns the tool for a run.
    #[must_use]
    pub fn new(tool: Arc<Tool>, ctx: Arc<ToolContext>) -> Self {
        let definition = ToolDefinition {
            name: tool.name.to_string(),
            description: tool.description.clone(),
            parameters: tool.command.parameters().schema().clone(),
        };
        Self { tool, definition, ctx }
    }

    /// Checks the paths and addresses of a call again: a path after its links are resolved, an
    /// address after its host is resolved.
    ///
    /// *Errors*: `denied`, also if a link on this host cannot be resolved; `io` or `timeout` if a
    /// host or a remote path cannot be resolved; `interrupted`.
    async fn judge_named(
        &self,
        call: &PreparedCall,
        cancel: &CancellationToken,
    ) -> Result<(), CallError> {
        let denied = |rule: &str, refusal: &dyn std::fmt::Display| {
            let message = format!("Refused by the rule `{rule}`: {refusal}. Nothing was run.");
            CallError::new(ErrorKind::Denied, message)
        };
        for resource in &call.resources {
            match resource {
                Resource::File { path, access } => {
                    let rules = &self.ctx.access.paths;
                    let refused = |refusal: PathRefusal| denied(refusal.rule(), &refusal);
                    let path = rules.absolute(path).map_err(refused)?;
                    if !self.ctx.programs.execution.is_local() {
                        let (ctx, path) = (self.ctx.clone(), path.display().to_string());
                        let (access, cancel) = (*access, cancel.clone());
                        let judged = tokio::task::spawn_blocking(move || {
                            Files::of(&ctx, &cancel).judge_elsewhere(&path, access)
                        });
                        judged.await.map_err(|error| {
                            CallError::new(ErrorKind::Io, format!("{error}."))
                        })??;
                        continue;
                    }
                    // If the path does not exist yet, only its existing part is resolved. A
                    // dangling link is refused.
                    let real = move || resolved(&path).ok().filter(|real| !real.is_symlink());
                    let real = self.ctx.host_work.run(real).await.map_err(late)?;
                    let astray = || denied("path", &"a link in the path cannot be resolved");
                    rules.judge(&real.ok_or_else(astray)?, *access).map_err(refused)?;
                }
                Resource::Url(url) => {
                    let target = self.ctx.access.domains.target(url);
                    let target = target.map_err(|refusal| denied("domain", &refusal))?;
                    judged_addresses(&target, &self.ctx.redactor).await?;
                }
                Resource::Command(_) => {}
            }
        }
        Ok(())
    }

    /// Returns the states of the files of this host on which a call depends: the program, the files
    /// that its literal arguments name, and those of its `format: path` parameters. A literal
    /// argument is one without placeholders in `tools.yaml`.
    async fn files(&self, call: &PreparedCall) -> Result<BTreeMap<String, String>, CallError> {
        let host_work = &self.ctx.host_work;
        let (tool, named) = (self.tool.clone(), call.clone());
        let literals = move || {
            let literals = tool.command.literals();
            literals
                .filter(|literal| named.argv.iter().any(|argument| argument == literal))
                .filter_map(|literal| named_file(&named.working_dir, literal))
                .collect::<Vec<PathBuf>>()
        };
        let mut paths = host_work.run(literals).await.map_err(late)?;
        paths.extend(call.resources.iter().filter_map(|resource| match resource {
            Resource::File { path, .. } => self.ctx.access.paths.absolute(path).ok(),
            Resource::Url(_) | Resource::Command(_) => None,
        }));
        let mut files = states(host_work, paths).await?;
        if let Some(path) = &self.tool.program.path {
            let digest = digest_of_file(host_work, path.clone()).await?;
            files.insert(path.display().to_string(), digest);
        }
        Ok(files)
    }

    /// Returns the program to start; `None` if the tools run on this host and the program is not
    /// installed.
    fn program(&self) -> Option<PathBuf> {
        if self.ctx.programs.execution.is_local() {
            self.tool.program.path.clone()
        } else {
            Some(PathBuf::from(&self.tool.program.written))
        }
    }

    async fn execute(
        &self,
        call: &PreparedCall,
        context: &CallContext,
        rights: Category,
    ) -> CallOutput {
        let Some(program) = self.program() else {
            return CallOutput::of_error(&CallError::new(
                ErrorKind::SpawnFailed,
                format!(
                    "The program `{}` is not installed on this host. Work without this tool.",
                    self.tool.program.written
                ),
            ));
        };
        let timeout = self.ctx.capped(self.tool.timeout.unwrap_or(self.ctx.timeout));
        let judged = tokio::select! {
            biased;
            () = context.cancel.cancelled() => {
                Err(CallError::new(ErrorKind::Interrupted, "The run was stopped."))
            }
            judged = tokio::time::timeout(timeout, self.judge_named(call, &context.cancel)) => {
                judged.unwrap_or_else(|_| {
                    let message = "The paths and hosts of the call were not resolved in time. Nothing was run.";
                    Err(CallError::new(ErrorKind::Timeout, message))
                })
            }
        };
        if let Err(error) = judged {
            return CallOutput::of_error(&error);
        }
        let env: Vec<_> = self.tool.env.iter().collect();
        let process = Process {
            program,
            env: env.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            timeout,
            limits: CallLimits {
                timeout: None,
                characters: self.tool.output_limit,
                lines: self.tool.output_lines,
                response_bytes: None,
            },
            category: rights,
            sandbox: &self.tool.sandbox,
        };
        let (exit, mut output) = process.run(&self.ctx, call, context).await;
        if let Some(exit) = exit {
            self.conclude(exit, process.timeout, &mut output);
        }
        output
    }

    /// Records how the process ended, in the fields and in the text for the model.
    fn conclude(&self, exit: Exit, timeout: Duration, output: &mut CallOutput) {
        let advice = "The operator sets this timeout: request less work per call.";
        let (kind, note) = match (interruption(&self.ctx, exit, timeout, advice), exit.code) {
            (Some(ended), _) => ended,
            (None, Some(code)) if self.tool.success_codes.contains(&code) => {
                if !output.content.trim().is_empty() {
                    return;
                }
                append(&mut output.content, &format!("[no output, exit code {code}]"));
                return;
            }
            (None, Some(code)) => (ErrorKind::ExitCode, format!("[exit code {code}]")),
            (None, None) => {
                (ErrorKind::Signal, format!("[killed by signal {}]", exit.signal.unwrap_or(0)))
            }
        };
        output.error_kind = Some(kind);
        append(&mut output.content, &note);
    }
}

impl ToolSpec for DeclaredTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn category(&self) -> Category {
        self.tool.category
    }

    fn destructive_when(&self) -> &[ArgumentConditions] {
        &self.tool.destructive_when
    }

    fn is_available(&self) -> bool {
        self.program().is_some()
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        let arguments = self.tool.command.validate(arguments)?;
        let rendered = self.tool.command.render(&arguments)?;
        let resources = declared_resources(&self.tool, &arguments)?;
        let program = self
            .program()
            .map_or_else(|| self.tool.program.written.clone(), |path| path.display().to_string());
        let working_dir = self.tool.working_dir.as_ref().unwrap_or(&self.ctx.working_dir);
        Ok(PreparedCall {
            arguments,
            argv: std::iter::once(program).chain(rendered.args).collect(),
            working_dir: working_dir.display().to_string(),
            stdin: rendered.stdin,
            sandboxed: self.ctx.is_sandboxed(),
            resources,
            lines: 0,
        })
    }

    fn probe_of(&self, arguments: &Map<String, Value>) -> Option<PreparedCall> {
        let probe = self.tool.probe.as_ref()?;
        let call = self.prepare(arguments).ok()?;
        let rendered = probe.command.render(&call.arguments).ok()?;
        let program = call.argv.first().cloned().into_iter();
        Some(PreparedCall { argv: program.chain(rendered.args).collect(), stdin: None, ..call })
    }

    fn dry_run_of(&self, call: &PreparedCall) -> Option<PreparedCall> {
        let more = self.tool.dry_run_args.as_ref()?;
        // Insert the arguments before `--`, because after it they would be operands, not options.
        let end = call.argv.iter().position(|word| word == "--").unwrap_or(call.argv.len());
        let mut argv = call.argv.clone();
        argv.splice(end..end, more.iter().cloned());
        Some(PreparedCall { argv, ..call.clone() })
    }
}

#[async_trait]
impl ToolRunner for DeclaredTool {
    async fn state(&self, call: &PreparedCall) -> Result<CallState, CallError> {
        let Tool { program, env, category, sandbox, .. } = self.tool.as_ref();
        let ctx = &self.ctx;
        let (files, unbound) = if ctx.programs.execution.is_local() {
            let files = self.files(call).await?;
            let directories = files.iter().filter(|(_, state)| *state == DIRECTORY);
            let mut unbound = vec![format!("other files that {} reads", program.written)];
            unbound.extend(directories.map(|(path, _)| format!("the content of {path}")));
            (files, unbound)
        } else {
            (BTreeMap::new(), vec![ctx.unbound_elsewhere()])
        };
        let stdin = call.stdin.as_deref().map(|text| ctx.redactor.text(text).into_owned());
        Ok(CallState {
            identity: format!("{}{} {category} {sandbox:?}", ctx.state_prefix(), values(ctx, env)),
            binding: Binding {
                stdin,
                environment: variables(ctx, env),
                files,
                unbound,
                ..Binding::default()
            },
        })
    }

    async fn dry_run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        self.execute(call, context, Category::Read).await
    }

    async fn probe(
        &self,
        probe: &PreparedCall,
        context: &CallContext,
    ) -> (CallOutput, Option<bool>) {
        let output = self.execute(probe, context, Category::Read).await;
        let has_ended = !output.timed_out && output.error_kind != Some(ErrorKind::Interrupted);
        let (Some(declared), Some(code), true) = (&self.tool.probe, output.exit_code, has_ended)
        else {
            return (output, None);
        };
        let said = self.ctx.recorded(&output, JUDGED_BYTES);
        let holds = |expect: &Expect| expect.holds(code, output.error_kind.is_none(), &said);
        let done = match &declared.not_done_when {
            _ if holds(&declared.done_when) => Some(true),
            Some(not_done) => holds(not_done).then_some(false),
            None => Some(false),
        };
        (output, done)
    }

    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let mut output = self.execute(call, context, self.tool.category).await;
        if output.exit_code.is_some() || output.signal.is_some() {
            // Count every path that the call may write as modified.
            let written = call.resources.iter().filter_map(|resource| match resource {
                Resource::File { path, access: Access::Write } => {
                    self.ctx.access.paths.absolute(path).ok()
                }
                _ => None,
            });
            output.modified = written.collect();
        }
        output
    }
}
