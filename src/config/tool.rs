//! What a tool of `tools.yaml` means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::environment::{RELATIVE_PATH, is_absolute_search_path};
use super::raw::RawTool;
use super::reserved::EDITOR;
use super::settings::is_hijacking;
use super::{Builtin, Environment, ToolSandbox};
use crate::argv::{
    ArgumentConditions, CommandLine, Declaration, Diagnostic, Diagnostics, pointer_segment,
};
use crate::domain::{Category, ToolName};
use crate::text::quantity;

/// The longest time that one call may take.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The program of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// As it stands in the file.
    pub written: String,
    /// Where it was found; `None` if it was not.
    pub path: Option<PathBuf>,
}

/// A declared tool.
#[derive(Debug, Clone)]
pub struct Tool {
    /// Its name.
    pub name: ToolName,
    /// What it does, for the model.
    pub description: String,
    /// What it may do to the world.
    pub category: Category,
    /// What is started.
    pub program: Program,
    /// From arguments to argv.
    pub command: CommandLine,
    /// Variables besides the allowlist.
    pub env: BTreeMap<String, String>,
    /// Where it starts, if not where the job works.
    pub working_dir: Option<PathBuf>,
    /// Time of one call, if it sets one.
    pub timeout: Option<Duration>,
    /// Characters that the model sees, if it sets them.
    pub output_limit: Option<usize>,
    /// Appended to the arguments of a call that is only planned.
    pub dry_run_args: Option<Vec<String>>,
    /// What the kernel leaves to its processes.
    pub sandbox: ToolSandbox,
    /// Exit codes that mean success.
    pub success_codes: Vec<i32>,
    /// Any of these makes a call an admin call.
    pub destructive_when: Vec<ArgumentConditions>,
}

impl Tool {
    /// Returns what `raw` means, with everything that is wrong or odd, by pointers below the tool.
    pub(crate) fn from_raw(
        raw: &RawTool,
        environment: &Environment,
    ) -> (Option<Self>, Diagnostics) {
        let mut diagnostics = Diagnostics::default();
        let timeout = timeout(raw, &mut diagnostics);
        let working_dir = raw.working_dir.as_deref().map(|text| environment.expand_home(text));
        if working_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            diagnostics
                .error("/working_dir", "a working directory must be an absolute path".to_owned());
        }
        let program = raw.cmd.as_deref().map(|cmd| program(cmd, environment, &mut diagnostics));
        for (name, value) in raw.env.iter().flatten() {
            let pointer = format!("/env/{}", pointer_segment(name));
            if name.is_empty() || name.contains(['=', '\0']) {
                diagnostics.error(
                    &pointer,
                    format!("`{name}` is not a valid name of an environment variable"),
                );
            } else if name == "PATH" && !is_absolute_search_path(value) {
                diagnostics.error(&pointer, RELATIVE_PATH.to_owned());
            } else if is_hijacking(name) {
                diagnostics
                    .warn(&pointer, format!("`{name}` changes what the program loads or runs"));
            }
        }
        let sandbox = ToolSandbox::from_raw(raw.sandbox.as_ref(), environment, &mut diagnostics);
        if raw.category == Some(Category::Read) && !sandbox.write.is_empty() {
            diagnostics.error(
                "/sandbox/write",
                "a read tool cannot write: leave this out, or make it a write tool".to_owned(),
            );
        }
        if raw.category == Some(Category::Read) && raw.dry_run_args.is_some() {
            diagnostics
                .error("/dry_run_args", "a read tool is never planned: leave this out".to_owned());
        }
        let command = Self::command(raw, &mut diagnostics);
        let destructive_when = conditions(raw, command.as_ref(), &mut diagnostics);
        if let Some(command) = &command {
            diagnostics.warnings.extend(command.open_positions());
            examples(raw, command, &mut diagnostics);
        }
        if let Some(builtin) = raw.name.as_deref().and_then(Builtin::find)
            && raw.replaces_builtin != Some(true)
        {
            diagnostics.errors.push(Diagnostic {
                pointer: "/name".to_owned(),
                message: format!("`{}` is a built-in tool", builtin.name),
                hint: Some("take another name, or say `override: true`".to_owned()),
            });
        }
        if raw.name.as_deref() == Some(EDITOR) {
            let message = format!("`{EDITOR}` is reserved for a later version: take another name");
            diagnostics.error("/name", message);
        }
        let name = raw.name.as_deref().and_then(|name| ToolName::parse(name).ok());
        let built = || {
            Some(Self {
                name: name?,
                description: raw.description.clone()?,
                category: raw.category?,
                program: program?,
                command: command?,
                env: raw.env.clone().unwrap_or_default(),
                working_dir,
                timeout,
                output_limit: raw.output_limit.and_then(|limit| usize::try_from(limit).ok()),
                dry_run_args: raw.dry_run_args.clone(),
                sandbox,
                success_codes: raw.success_codes.clone().unwrap_or_else(|| vec![0]),
                destructive_when,
            })
        };
        (built(), diagnostics)
    }

    /// Returns the program or script of this tool that lies in one of `closed`, where neither `sandbox.read` nor `open` opens it, and what closes it.
    /// Links are followed.
    #[must_use]
    pub fn closed_file<'a>(
        &self,
        closed: impl Iterator<Item = &'a PathBuf> + Clone,
        open: &[PathBuf],
    ) -> Option<(PathBuf, &'a PathBuf)> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let open: Vec<PathBuf> =
            self.sandbox.read.iter().chain(open).map(|path| real(path)).collect();
        let directory = self.working_dir.clone().unwrap_or_default();
        let script = self.command.script(&self.program.written).map(|text| directory.join(text));
        let script = script.filter(|path| path.is_absolute() && path.is_file());
        let mut files = self.program.path.clone().into_iter().chain(script).map(|file| real(&file));
        files.find_map(|file| {
            let folder = closed.clone().find(|folder| {
                let folder = real(folder);
                file.starts_with(&folder)
                    && !open.iter().any(|open| file.starts_with(open) && open.starts_with(&folder))
            })?;
            Some((file, folder))
        })
    }

    fn command(raw: &RawTool, diagnostics: &mut Diagnostics) -> Option<CommandLine> {
        let mut optional_args = Vec::new();
        for (name, value) in raw.optional_args.iter().flatten() {
            let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let texts: Vec<String> =
                items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect();
            if !value.is_array() || texts.len() != items.len() {
                diagnostics.error(
                    &format!("/optional_args/{}", pointer_segment(name)),
                    "expected a list of texts".to_owned(),
                );
            }
            optional_args.push((name.clone(), texts));
        }
        let declaration = Declaration {
            program: raw.cmd.clone().unwrap_or_default(),
            args: raw.args.clone().unwrap_or_default(),
            optional_args,
            stdin: raw.stdin.clone(),
            parameters: raw.parameters.clone().unwrap_or_default(),
        };
        CommandLine::compile(&declaration).map_err(|errors| diagnostics.errors.extend(errors)).ok()
    }
}

fn timeout(raw: &RawTool, diagnostics: &mut Diagnostics) -> Option<Duration> {
    match quantity::duration(raw.timeout.as_deref()?) {
        Ok(timeout) if timeout.is_zero() || timeout > LONGEST_TIMEOUT => {
            diagnostics
                .error("/timeout", "a timeout must be more than zero and at most 1d".to_owned());
            None
        }
        Ok(timeout) => Some(timeout),
        Err(message) => {
            diagnostics.error("/timeout", message);
            None
        }
    }
}

fn program(cmd: &str, environment: &Environment, diagnostics: &mut Diagnostics) -> Program {
    let path = environment.find_program(cmd);
    if cmd.contains('/') && !environment.expand_home(cmd).is_absolute() {
        diagnostics.error(
            "/cmd",
            format!(
                "`{cmd}` is a relative path: write a name that is in PATH, or an absolute path"
            ),
        );
    } else if cmd.contains("{{") {
        diagnostics
            .error("/cmd", "the program is fixed: a parameter cannot stand in `cmd`".to_owned());
    } else if path.is_none() {
        diagnostics.warn(
            "/cmd",
            format!(
                "`{cmd}` was not found, so the tool is not offered to models and a call of it fails"
            ),
        );
    }
    Program { written: cmd.to_owned(), path }
}

fn conditions(
    raw: &RawTool,
    command: Option<&CommandLine>,
    diagnostics: &mut Diagnostics,
) -> Vec<ArgumentConditions> {
    let mut compiled = Vec::new();
    for (at, condition) in raw.destructive_when.iter().flatten().enumerate() {
        match ArgumentConditions::compile(&condition.args, command.map(CommandLine::parameters)) {
            Ok(conditions) => compiled.push(conditions),
            Err(errors) => diagnostics.errors.extend(errors.into_iter().map(|mut error| {
                error.pointer = format!("/destructive_when/{at}/args{}", error.pointer);
                error
            })),
        }
    }
    compiled
}

fn examples(raw: &RawTool, command: &CommandLine, diagnostics: &mut Diagnostics) {
    let Some(examples) = &raw.examples else { return };
    let verdict = |arguments: &Map<String, Value>| {
        command.validate(arguments).and_then(|arguments| command.render(&arguments))
    };
    for (at, arguments) in examples.accept.iter().flatten().enumerate() {
        if let Err(error) = verdict(arguments) {
            diagnostics.error(
                &format!("/examples/accept/{at}"),
                format!("this example must be accepted and is refused: {error}"),
            );
        }
    }
    for (at, arguments) in examples.reject.iter().flatten().enumerate() {
        if verdict(arguments).is_ok() {
            diagnostics.error(
                &format!("/examples/reject/{at}"),
                "this example must be refused and is accepted".to_owned(),
            );
        }
    }
}
