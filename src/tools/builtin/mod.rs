//! The built-in tools. The tools for files, to-do lists and skills are functions from arguments to
//! an answer, which run on a thread that may block. `bash` and the web tools have types of their
//! own.
//!
//! `config/builtins.json` defines the names and arguments of the tools. The gate decides whether a
//! call may run, and [`super::files`] checks again what the call opens.

mod bash;
mod edit;
mod list;
mod read;
mod search;
mod todo;
mod web;

pub use bash::BashTool;
pub(super) use web::judged_addresses;
pub use web::{CONVERTER_VERB, WebFetchTool, WebSearchTool, run_converter};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::ToolContext;
use super::files::Files;
use crate::agent::{
    CallContext, CallOutput, CallState, PreparedCall, ToolDefinition, ToolRunner, ToolSpec,
};
use crate::config::Builtin;
use crate::domain::{Binding, CallError, Category, ErrorKind, Image};
use crate::gate::{Access, PathRules, Resource};
use crate::process::{GRACE, HostWorkError, resolved};
use crate::text::diff::Diff;
use crate::text::truncate::{Keep, ViewLimit};

/// Maximum bytes of a text argument that declares no limit of its own.
const TEXT_BYTES: usize = 4096;

/// The answer of a built-in tool.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    /// Lines that follow the view of the text and that truncation never removes. If there is a
    /// note, `text` must end with LF.
    note: String,
    diff: Option<String>,
    modified: Vec<PathBuf>,
    lines_changed: u64,
    images: Vec<Image>,
    /// Whether bytes of a file that was read were not valid UTF-8.
    lossy: bool,
    details: Map<String, Value>,
}

impl Answer {
    /// Adds lines to the note; each line must end with LF.
    fn add_note(&mut self, lines: &str) {
        if !lines.is_empty() && !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.note.push_str(lines);
    }

    /// Returns an answer that is an image.
    fn of_image(image: Image) -> Self {
        Self { images: vec![image.clone()], ..Self::of(format!("[{}]", image.about())) }
    }

    fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// The context of one call of a built-in tool.
struct Work<'a> {
    ctx: &'a ToolContext,
    cancel: CancellationToken,
    until: Instant,
    /// How many lines of files the run may still change.
    lines_left: u64,
}

impl Work<'_> {
    fn files(&self) -> Files<'_> {
        Files::of(self.ctx, &self.cancel)
    }

    /// Returns an error if the changes are more than the run may still make. The gate knows only the
    /// arguments of a call, not the text that the call replaces.
    fn may_change(&self, changes: &Diff) -> Result<(), CallError> {
        let (lines, left) = (changes.lines_changed, self.lines_left);
        if lines <= left {
            return Ok(());
        }
        let message = format!(
            "Refused by the rule `budget`: the call would change {lines} lines of files, removed ones included, and the run may change {left} more (max_lines_changed). Nothing was changed."
        );
        Err(CallError::new(ErrorKind::Denied, message))
    }

    /// Returns an error if the run was stopped or the call timed out.
    fn go_on(&self) -> Result<(), CallError> {
        if self.cancel.is_cancelled() {
            return Err(CallError::new(ErrorKind::Interrupted, "The run was stopped."));
        }
        if Instant::now() >= self.until {
            let message = "[ERROR: The call timed out. Request less work per call.]";
            return Err(CallError::new(ErrorKind::Timeout, message));
        }
        Ok(())
    }
}

/// The functions and the limits of a built-in tool.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Returns the resources that a call accesses, for the gate.
    resources: fn(&Map<String, Value>) -> Vec<Resource>,
    /// Returns how many lines of files a call changes, as far as its arguments show: lines that it
    /// overwrites or deletes without naming them do not count.
    lines: fn(&Map<String, Value>) -> u64,
    work: fn(&Map<String, Value>, &Work<'_>) -> Result<Answer, CallError>,
    view: ViewLimit,
}

const fn view(characters: usize, lines: usize, keep: Keep) -> ViewLimit {
    ViewLimit { characters, lines, keep }
}

const NO_LINES: fn(&Map<String, Value>) -> u64 = |_| 0;
const EVERY: usize = usize::MAX;

/// *Source*: `docs/design/loop.md`, "Truncation".
const KINDS: &[Kind] = &[
    Kind {
        name: "read_file",
        resources: |arguments| reads(arguments, "file_path"),
        lines: NO_LINES,
        work: read::read_file,
        view: view(50_000, EVERY, Keep::HeadAndTail),
    },
    Kind {
        name: "read_many_files",
        resources: |arguments| {
            let paths = arguments.get("paths").and_then(Value::as_array);
            let paths = paths.into_iter().flatten().filter_map(Value::as_str);
            paths.map(|path| Resource::file(path, Access::Read)).collect()
        },
        lines: NO_LINES,
        work: read::read_many_files,
        view: view(50_000, EVERY, Keep::HeadAndTail),
    },
    Kind {
        name: "write_file",
        resources: |arguments| writes(arguments),
        lines: |arguments| lines_of(arguments, &["content"]),
        work: edit::write_file,
        view: view(1_000, EVERY, Keep::Tail),
    },
    Kind {
        name: "edit_file",
        resources: |arguments| writes(arguments),
        lines: |arguments| lines_of(arguments, &["old_string", "new_string"]),
        work: edit::edit_file,
        view: view(10_000, EVERY, Keep::Tail),
    },
    Kind {
        name: "apply_patch",
        resources: edit::patch_resources,
        lines: edit::patch_lines,
        work: edit::apply_patch,
        view: view(10_000, EVERY, Keep::Tail),
    },
    Kind {
        name: "list_directory",
        resources: |arguments| reads(arguments, "path"),
        lines: NO_LINES,
        work: list::list_directory,
        // 500 entries, and the line that counts the others.
        view: view(20_000, 501, Keep::Tail),
    },
    Kind {
        name: "grep",
        resources: |arguments| reads(arguments, "path"),
        lines: NO_LINES,
        work: search::grep,
        view: view(20_000, 200, Keep::Tail),
    },
    Kind {
        name: "glob",
        resources: |arguments| reads(arguments, "path"),
        lines: NO_LINES,
        work: search::glob,
        // The newest files come first.
        view: view(20_000, 500, Keep::Head),
    },
    Kind {
        name: "skill",
        resources: |_| Vec::new(),
        lines: NO_LINES,
        work: todo::skill,
        view: view(50_000, EVERY, Keep::HeadAndTail),
    },
    Kind {
        name: "todo_read",
        resources: |_| Vec::new(),
        lines: NO_LINES,
        work: todo::read,
        view: view(30_000, EVERY, Keep::HeadAndTail),
    },
    Kind {
        name: "todo_write",
        resources: |_| Vec::new(),
        lines: NO_LINES,
        work: todo::write,
        view: view(30_000, EVERY, Keep::HeadAndTail),
    },
];

fn reads(arguments: &Map<String, Value>, name: &str) -> Vec<Resource> {
    let path = arguments.get(name).and_then(Value::as_str).unwrap_or(".");
    vec![Resource::file(path, Access::Read)]
}

fn writes(arguments: &Map<String, Value>) -> Vec<Resource> {
    let path = arguments.get("file_path").and_then(Value::as_str).unwrap_or_default();
    vec![Resource::file(path, Access::Write)]
}

fn lines_of(arguments: &Map<String, Value>, names: &[&str]) -> u64 {
    let texts = names.iter().filter_map(|name| arguments.get(*name)?.as_str());
    texts.map(|text| text.lines().count() as u64).sum()
}

/// Deserializes arguments that were validated before.
fn parsed<T: DeserializeOwned>(arguments: &Map<String, Value>) -> Result<T, CallError> {
    serde_json::from_value(Value::Object(arguments.clone()))
        .map_err(|error| CallError::new(ErrorKind::InvalidArguments, format!("{error}.")))
}

/// A call as the gate judges it.
#[derive(Debug, Default)]
pub struct JudgedCall {
    pub arguments: Map<String, Value>,
    /// The resources that the call accesses.
    pub resources: Vec<Resource>,
    /// How many lines of files the call changes, as far as its arguments show.
    pub lines: u64,
}

impl JudgedCall {
    /// Adds, for a call on this host, the resolved path of each file, if it differs from the path
    /// in the call. A run does not need this: it checks the resolved paths when it opens the files.
    #[must_use]
    pub fn with_real_paths(mut self, is_local: bool, paths: &PathRules) -> Self {
        let real = |resource: &Resource| {
            let Resource::File { path, access } = resource else { return None };
            let named = paths.absolute(path).ok().filter(|_| is_local)?;
            let real = resolved(&named).ok().filter(|real| *real != named)?;
            Some(Resource::File { path: real.to_str()?.to_owned(), access: *access })
        };
        let real: Vec<Resource> = self.resources.iter().filter_map(real).collect();
        self.resources.extend(real);
        self
    }
}

/// Validates a call of a built-in tool and returns what the gate judges.
///
/// *Errors*: `unknown_tool`, `invalid_arguments`.
pub fn prepare_builtin(
    name: &str,
    arguments: &Map<String, Value>,
) -> Result<JudgedCall, CallError> {
    let unknown = || CallError::new(ErrorKind::UnknownTool, format!("There is no tool `{name}`."));
    let declared = Builtin::find(name).ok_or_else(unknown)?;
    let arguments = declared.parameters.check(arguments, TEXT_BYTES)?;
    let (resources, lines) = match KINDS.iter().find(|kind| kind.name == name) {
        Some(kind) => ((kind.resources)(&arguments), (kind.lines)(&arguments)),
        None if name == bash::NAME => (bash::resources(&arguments), 0),
        None if web::is_one(name) => (web::resources(name, &arguments), 0),
        None => return Err(unknown()),
    };
    Ok(JudgedCall { arguments, resources, lines })
}

/// Returns the current state of the files that a call would change.
fn state_of(ctx: &ToolContext, resources: &[Resource]) -> Result<CallState, CallError> {
    let mut files = BTreeMap::new();
    let cancel = CancellationToken::new();
    for resource in resources {
        let Resource::File { path, access: Access::Write } = resource else { continue };
        let text = match Files::of(ctx, &cancel).open(path) {
            Ok(mut opened) if !opened.is_dir => {
                let mut digest = Sha256::new();
                let mut buffer = vec![0; 256 * 1024];
                loop {
                    let read = std::io::Read::read(&mut opened.file, &mut buffer);
                    let count = read.map_err(|error| super::file_error::failed(path, &error))?;
                    if count == 0 {
                        break hex::encode(digest.finalize());
                    }
                    digest.update(buffer.get(..count).unwrap_or_default());
                }
            }
            Ok(_) => "directory".to_owned(),
            Err(error) if error.kind == ErrorKind::NotFound => "absent".to_owned(),
            Err(error) => return Err(error),
        };
        // The same path as that of a file which an earlier step of a plan writes.
        let path = ctx.access.paths.absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        files.insert(path.display().to_string(), text);
    }
    let binding = Binding { files, ..Binding::default() };
    Ok(CallState { identity: ctx.state_prefix(), binding })
}

/// A built-in tool in a run, other than `bash` and the web tools.
pub struct BuiltinTool {
    declared: &'static Builtin,
    kind: Kind,
    definition: ToolDefinition,
    ctx: Arc<ToolContext>,
}

impl BuiltinTool {
    /// Returns the built-in tools except `bash` and the web tools; leaves out `skill` if the job
    /// has no skills.
    pub fn all(ctx: &Arc<ToolContext>) -> impl Iterator<Item = Self> {
        let ctx = ctx.clone();
        KINDS.iter().filter_map(move |kind| {
            if kind.name == "skill" && ctx.skills.is_empty() {
                return None;
            }
            let declared = Builtin::find(kind.name)?;
            let definition = ToolDefinition {
                name: declared.name.to_owned(),
                description: declared.description.clone(),
                parameters: declared.parameters.schema().clone(),
            };
            Some(Self { declared, kind: *kind, definition, ctx: ctx.clone() })
        })
    }
}

/// Stores an answer of the tool `name` and returns the output for the transcript and the model.
fn collected(
    ctx: &ToolContext,
    context: &CallContext,
    name: &str,
    view: ViewLimit,
    answer: Answer,
) -> CallOutput {
    let mut collector = ctx.collector(&context.call_id, ctx.builtin(name), view);
    let redacted = |text: String| ctx.redactor.text(&text).into_owned();
    let note = redacted(answer.note);
    let collected = collector.push(answer.text.as_bytes());
    let collected = collected.and_then(|()| collector.finish_with(&note));
    let kept = ctx.keep_images(&context.call_id, &answer.images);
    match collected.and_then(|collected| Ok((collected, kept?))) {
        Ok((collected, kept)) => CallOutput {
            lossy: collected.lossy || answer.lossy,
            diff: answer.diff.map(redacted),
            modified: answer.modified,
            lines_changed: answer.lines_changed,
            details: answer.details.into_iter().chain(kept).collect(),
            images: answer.images,
            ..CallOutput::from(collected)
        },
        Err(error) => CallOutput::of_error(&CallError::new(
            ErrorKind::Io,
            format!("The output could not be stored: {error}."),
        )),
    }
}

impl ToolSpec for BuiltinTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn category(&self) -> Category {
        self.declared.category
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        let JudgedCall { arguments, resources, lines } =
            prepare_builtin(self.declared.name, arguments)?;
        Ok(PreparedCall {
            resources,
            lines,
            working_dir: self.ctx.working_dir.display().to_string(),
            argv: Vec::new(),
            stdin: None,
            sandboxed: false,
            arguments,
        })
    }
}

#[async_trait]
impl ToolRunner for BuiltinTool {
    async fn state(&self, call: &PreparedCall) -> Result<CallState, CallError> {
        let (ctx, resources) = (self.ctx.clone(), call.resources.clone());
        let state = self.ctx.host_work.run(move || state_of(&ctx, &resources));
        state.await.map_err(|error| CallError::new(ErrorKind::Timeout, format!("{error}.")))?
    }

    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let (ctx, arguments, work) = (self.ctx.clone(), call.arguments.clone(), self.kind.work);
        let cancel = context.cancel.clone();
        let timeout = ctx.builtin_timeout(self.kind.name, ctx.timeout);
        let until = Instant::now() + timeout;
        // A file system that gives no answer must not hold up the run.
        let stopped = async {
            context.cancel.cancelled().await;
            tokio::time::sleep(GRACE).await;
            Err(HostWorkError::Late)
        };
        let limit = timeout + GRACE;
        let (host_work, lines_left) = (&self.ctx.host_work, context.lines_left);
        let done = host_work.run_within(limit, move || {
            work(&arguments, &Work { ctx: &ctx, cancel, until, lines_left })
        });
        let done = tokio::select! {
            done = done => done,
            stopped = stopped => stopped,
        };
        match done {
            Ok(Ok(answer)) => collected(&self.ctx, context, self.kind.name, self.kind.view, answer),
            Ok(Err(error)) => {
                let message = self.ctx.redactor.text(&error.message).into_owned();
                CallOutput::of_error(&CallError::new(error.kind, message))
            }
            Err(error @ (HostWorkError::Late | HostWorkError::Busy)) => {
                let message = format!("{error}; the effect of the call is unknown.");
                CallOutput::of_error(&CallError::new(ErrorKind::Timeout, message))
            }
            Err(error @ HostWorkError::Failed) => {
                tracing::error!(tool = self.declared.name, %error, "a built-in tool panicked");
                let message = "An internal error of dutyd ended this call; its effect is unknown.";
                CallOutput::of_error(&CallError::new(ErrorKind::Tool, message))
            }
        }
    }
}

#[cfg(test)]
mod tests;
