//! A checked tool of `tools.yaml`, with every default filled in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::environment::{RELATIVE_PATH, is_absolute_search_path};
use super::raw::{RawExpect, RawProbe, RawTool};
use super::reserved::EDITOR;
use super::settings::is_hijacking;
use super::{Builtin, Environment, Expect, ToolSandbox, launch_problem, shell_syntax};
use crate::argv::{
    ArgumentConditions, CommandLine, Declaration, Diagnostic, Diagnostics, pointer_segment,
};
use crate::domain::{Category, ToolName};
use crate::text::quantity;

/// The longest timeout of one call, inclusive.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The program of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program as written in the file.
    pub written: String,
    /// The absolute path of the program; `None` if it was not found.
    pub path: Option<PathBuf>,
}

/// How to find out whether a call took effect that a crash cut off.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Renders the arguments of the call to the argv of the probe.
    pub command: CommandLine,
    /// The result that means that the call took effect.
    pub done_when: Expect,
    /// The result that means that it did not; `None` if any other result means this.
    pub not_done_when: Option<Expect>,
}

/// A checked tool of `tools.yaml`.
#[derive(Debug, Clone)]
pub struct Tool {
    /// The name in policies and transcripts.
    pub name: ToolName,
    /// The description for the model.
    pub description: String,
    /// The category of a call, unless the gate raises it.
    pub category: Category,
    /// The program to start.
    pub program: Program,
    /// Renders the arguments of a call to an argv.
    pub command: CommandLine,
    /// Environment variables in addition to the allowlist.
    pub env: BTreeMap<String, String>,
    /// The directory where the program starts; `None` is the job's working directory.
    pub working_dir: Option<PathBuf>,
    /// The timeout of one call; `None` is the job's `tool_timeout`.
    pub timeout: Option<Duration>,
    /// Characters of the output that the model sees; `None` is the job's `output_limit`.
    pub output_limit: Option<usize>,
    /// Lines of the output that the model sees; `None` is the job's `output_lines`.
    pub output_lines: Option<usize>,
    /// Arguments to append for the dry run of a planned call.
    pub dry_run_args: Option<Vec<String>>,
    /// How to find out whether a call that was cut off took effect.
    pub probe: Option<Probe>,
    /// The sandbox settings of the tool's processes.
    pub sandbox: ToolSandbox,
    /// Exit codes that mean success.
    pub success_codes: Vec<i32>,
    /// Sets of conditions on the arguments; a call that meets every condition of one set is raised
    /// to admin.
    pub destructive_when: Vec<ArgumentConditions>,
}

impl Tool {
    /// Tells whether this tool and `other` start the same program with the same arguments and rights.
    #[must_use]
    pub fn has_rights_of(&self, other: &Self) -> bool {
        // A probe runs the same program with other arguments.
        let probe = |tool: &Self| tool.probe.as_ref().map(|probe| probe.command.clone());
        let conditions = |tool: &Self| -> Vec<_> {
            tool.destructive_when.iter().map(|of| of.schemas().clone()).collect()
        };
        self.category == other.category
            && self.program == other.program
            && self.command == other.command
            && self.env == other.env
            && self.working_dir == other.working_dir
            && self.dry_run_args == other.dry_run_args
            && probe(self) == probe(other)
            && self.sandbox == other.sandbox
            && conditions(self) == conditions(other)
    }

    /// Checks `raw` and fills in the defaults. The pointers of the diagnostics are relative to the
    /// tool.
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
                diagnostics
                    .error(&pointer, format!("`{name}` is not a valid environment variable name"));
            } else if name == "PATH" && !is_absolute_search_path(value) {
                diagnostics.error(&pointer, RELATIVE_PATH.to_owned());
            } else if is_hijacking(name) {
                diagnostics
                    .warn(&pointer, format!("`{name}` changes what the program loads or runs"));
            } else if value.starts_with("~/")
                && let Some(hint) = shell_syntax::path_for(value, environment)
            {
                let message = format!("the program gets `{value}` as it is, with its `~`");
                diagnostics.warnings.push(Diagnostic::new(pointer, message).with_hint(hint));
            }
        }
        let sandbox = ToolSandbox::from_raw(raw.sandbox.as_ref(), environment, &mut diagnostics);
        if raw.category == Some(Category::Read) && !sandbox.write.is_empty() {
            diagnostics.error(
                "/sandbox/write",
                "a read tool cannot write: remove this key, or set the category to write"
                    .to_owned(),
            );
        }
        if raw.category == Some(Category::Read) && raw.dry_run_args.is_some() {
            diagnostics
                .error("/dry_run_args", "a read tool is never planned: remove this key".to_owned());
        }
        if raw.category == Some(Category::Read) && raw.probe.is_some() {
            let message = "a read call is made again after a crash: remove this key";
            diagnostics.error("/probe", message.to_owned());
        }
        let command = Self::command(raw, &mut diagnostics);
        let cmd = raw.cmd.as_deref().unwrap_or_default();
        for (pointer, args) in [("/args", &raw.args), ("/dry_run_args", &raw.dry_run_args)] {
            let args = args.as_deref().unwrap_or_default();
            let place = |at: usize| format!("{pointer}/{at}");
            diagnostics.warnings.extend(shell_syntax::problems(cmd, args, place, environment));
        }
        let probe = raw.probe.as_ref().and_then(|probe| Self::probe(raw, probe, &mut diagnostics));
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
                hint: Some("choose another name, or set `override: true`".to_owned()),
            });
        }
        if raw.name.as_deref() == Some(EDITOR) {
            let message =
                format!("`{EDITOR}` is reserved for a later version: choose another name");
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
                output_lines: raw.output_lines.and_then(|limit| usize::try_from(limit).ok()),
                dry_run_args: raw.dry_run_args.clone(),
                probe,
                sandbox,
                success_codes: raw.success_codes.clone().unwrap_or_else(|| vec![0]),
                destructive_when,
            })
        };
        (built(), diagnostics)
    }

    /// Looks for a closed file among the tool's program and script. Returns the first one and the
    /// tree of `closed` that contains it. A path of `sandbox.read` or `open` inside that tree opens
    /// the files below this path. Symlinks are resolved.
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

    fn probe(raw: &RawTool, probe: &RawProbe, diagnostics: &mut Diagnostics) -> Option<Probe> {
        let declaration = Declaration {
            program: raw.cmd.clone().unwrap_or_default(),
            args: probe.args.clone().unwrap_or_default(),
            parameters: raw.parameters.clone().unwrap_or_default(),
            ..Declaration::default()
        };
        let command =
            CommandLine::compile_with(&declaration, |_, _, _| {}).map_err(|errors| {
                // The other errors are reported for the tool itself.
                let own = errors.into_iter().filter(|error| error.pointer.starts_with("/args"));
                diagnostics.errors.extend(own.map(|error| Diagnostic {
                    pointer: format!("/probe{}", error.pointer),
                    ..error
                }));
            });
        let mut expect = |key: &str, raw: &RawExpect| {
            Expect::from_raw(raw, &format!("/probe/{key}"), diagnostics)
        };
        let done_when = probe.done_when.as_ref().map(|raw| expect("done_when", raw));
        let not_done_when = probe.not_done_when.as_ref().map(|raw| expect("not_done_when", raw));
        Some(Probe { command: command.ok()?, done_when: done_when?, not_done_when })
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
                    "expected a list of strings".to_owned(),
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
    // A file name with blanks is rare, a command line in this place is not.
    let is_line = cmd.contains(char::is_whitespace) || shell_syntax::split(cmd).is_none();
    let hint = is_line.then(|| {
        let keys = shell_syntax::keys_for(cmd);
        format!("dutyd uses no shell, and `cmd` is only the program: {keys}")
    });
    let pointer = "/cmd".to_owned();
    if cmd.contains('/') && !environment.expand_home(cmd).is_absolute() {
        let message = format!(
            "`{cmd}` is a relative path: use the name of a program in PATH, or an absolute path"
        );
        diagnostics.errors.push(Diagnostic { pointer, message, hint });
    } else if cmd.contains("{{") {
        let message = "`cmd` must not contain a parameter: the program is fixed".to_owned();
        diagnostics.errors.push(Diagnostic { pointer, message, hint });
    } else if path.is_none() {
        let message = format!(
            "`{cmd}` was not found, so the tool is not offered to models and its calls fail"
        );
        diagnostics.warnings.push(Diagnostic { pointer, message, hint });
    } else if let Some(problem) = path.as_deref().and_then(launch_problem) {
        diagnostics.warn("/cmd", format!("`{cmd}` cannot start: {problem}"));
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
                format!("this example must be accepted but is rejected: {error}"),
            );
        }
    }
    for (at, arguments) in examples.reject.iter().flatten().enumerate() {
        if verdict(arguments).is_ok() {
            diagnostics.error(
                &format!("/examples/reject/{at}"),
                "this example must be rejected but is accepted".to_owned(),
            );
        }
    }
}
