//! Runs one tool process: starts it in its sandbox, collects its output and reports how it ended.

use std::path::PathBuf;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::ToolContext;
use super::output::PROGRAM_VIEW;
use crate::agent::{CallContext, CallOutput, PreparedCall};
use crate::config::{CallLimits, ToolSandbox, launch_problem};
use crate::domain::{CallError, Category, ErrorKind};
use crate::process::{Exit, HUNG_UP, HostWork, HostWorkError, ProcessSpec, SpawnFailure};

/// The settings of a tool process. Its argv, working directory and standard input come from the
/// call.
pub(super) struct Process<'a> {
    pub(super) program: PathBuf,
    /// Environment variables of this tool, in addition to those that every tool gets.
    pub(super) env: Vec<(String, String)>,
    pub(super) timeout: Duration,
    /// Characters of the output that the model sees, if the tool's declaration sets a limit.
    pub(super) limits: CallLimits,
    /// Determines the rights in the sandbox.
    pub(super) category: Category,
    pub(super) sandbox: &'a ToolSandbox,
}

impl Process<'_> {
    /// Runs the process and returns its exit and its output. The caller adds to the output how the
    /// process ended. Without an exit, the output already holds the error.
    pub(super) async fn run(
        &self,
        ctx: &ToolContext,
        call: &PreparedCall,
        context: &CallContext,
    ) -> (Option<Exit>, CallOutput) {
        let working_dir = PathBuf::from(&call.working_dir);
        let sandbox = if ctx.is_sandboxed() {
            let profiles = ctx.programs.sandboxes.clone();
            let (category, own) = (self.category, self.sandbox.clone());
            let directory = working_dir.clone();
            let profile = move || profiles.of(category, &own, &directory);
            tokio::select! {
                profile = ctx.host_work.run(profile) => profile,
                () = context.cancel.cancelled() => Err(HostWorkError::Late),
            }
        } else {
            Ok(Ok(None))
        };
        let failed = |kind, error: &dyn std::fmt::Display| {
            let message =
                format!("The tool was not started, because it cannot be sandboxed: {error}.");
            (None, CallOutput::of_error(&CallError::new(kind, message)))
        };
        let sandbox = match sandbox {
            Ok(Ok(sandbox)) => sandbox,
            Ok(Err(error)) => return failed(ErrorKind::SpawnFailed, &error),
            Err(error) => return failed(ErrorKind::Timeout, &error),
        };
        let spec = ProcessSpec {
            program: self.program.clone(),
            argv: call.argv.clone(),
            env: ctx.programs.env.clone(),
            working_dir,
            stdin: call.stdin.clone(),
            timeout: self.timeout,
            sandbox,
        };
        let spec = ctx.programs.execution.process(spec, &self.env);
        let mut collector = ctx.collector(&context.call_id, self.limits, PROGRAM_VIEW);
        let exit = ctx
            .programs
            .spawner
            .run(&spec, &context.cancel, &mut |chunk| collector.push(chunk))
            .await;
        let collected = match collector.finish() {
            Ok(collected) => collected,
            Err(error) => {
                let message = format!("The output could not be stored: {error}.");
                return (None, CallOutput::of_error(&CallError::new(ErrorKind::Io, message)));
            }
        };
        let mut output = CallOutput::from(collected);
        match exit {
            Ok(exit) => {
                output.exit_code = exit.code;
                output.signal = exit.signal;
                output.timed_out = exit.timed_out;
                output.survivors = exit.survivors;
                if exit.output_held {
                    append(
                        &mut output.content,
                        "[the output was cut: another process kept it open after the program ended]",
                    );
                }
                (Some(exit), output)
            }
            Err(failure) => {
                let program = self.program.clone();
                let is_refused = matches!(failure, SpawnFailure::Refused { .. });
                let cause = if is_refused && ctx.programs.execution.is_local() {
                    ctx.host_work.run(move || launch_problem(&program)).await.ok().flatten()
                } else {
                    None
                };
                fail(&failure, cause, &mut output);
                (None, output)
            }
        }
    }
}

/// Returns the error kind and the note for a process that we ended or whose connection was lost;
/// `None` for any other exit.
pub(super) fn interruption(
    ctx: &ToolContext,
    exit: Exit,
    timeout: Duration,
    advice: &str,
) -> Option<(ErrorKind, String)> {
    if exit.timed_out {
        let note = format!(
            "[ERROR: Command timed out after {}ms. Partial output is shown above. {advice}]",
            timeout.as_millis()
        );
        return Some((ErrorKind::Timeout, note));
    }
    let note = if exit.cancelled {
        "[ERROR: The run was stopped during this call; its effect is unknown.]"
    } else if exit.signal == Some(HUNG_UP) && !ctx.programs.execution.is_local() {
        "[ERROR: The connection could not be established, or was lost before the program ended; the effect of the call is unknown.]"
    } else {
        return None;
    };
    Some((ErrorKind::Interrupted, note.to_owned()))
}

/// `cause` is why the kernel does not start the program, if we know it.
fn fail(failure: &SpawnFailure, cause: Option<String>, output: &mut CallOutput) {
    let kind = match failure {
        SpawnFailure::Refused { .. } | SpawnFailure::Order(_) => ErrorKind::SpawnFailed,
        SpawnFailure::ShimLost { .. } => ErrorKind::Interrupted,
        SpawnFailure::Output(_) => ErrorKind::Io,
    };
    let message = match failure {
        SpawnFailure::Refused { step, errno } => {
            let cause = cause.map(|cause| format!(" The program cannot start: {cause}."));
            let cause = cause.unwrap_or_default();
            let why = errno.desc();
            format!("[ERROR: {step} failed with {errno:?}: {why}. Nothing was run.{cause}]")
        }
        other => format!("[ERROR: {other}]"),
    };
    output.error_kind = Some(kind);
    if let SpawnFailure::ShimLost { survivors } = failure {
        output.survivors = *survivors;
    }
    if let Some(whole) = &mut output.output {
        append(whole, &message);
    }
    append(&mut output.content, &message);
}

pub(super) fn append(text: &mut String, note: &str) {
    if note.is_empty() {
        return;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(note);
}

/// Returns the SHA-256 (hex) of a file.
///
/// *Errors*: `io` if the file cannot be read.
pub(super) async fn digest_of_file(
    host_work: &HostWork,
    path: PathBuf,
) -> Result<String, CallError> {
    let digest = host_work.run(move || {
        let mut digest = Sha256::new();
        let mut file = std::fs::File::open(&path)?;
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let count = std::io::Read::read(&mut file, &mut buffer)?;
            if count == 0 {
                break;
            }
            digest.update(buffer.get(..count).unwrap_or_default());
        }
        Ok::<_, std::io::Error>(hex::encode(digest.finalize()))
    });
    let digest = digest.await.map_err(std::io::Error::other).and_then(|digest| digest);
    digest.map_err(|error| {
        CallError::new(ErrorKind::Io, format!("The program cannot be read: {error}."))
    })
}
