//! The system prompt of a run, and the facts that go into it.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use super::documents::Documents;
use super::host::Host;
use super::project;
use super::scope::RunScope;
use super::tool_context::working_dir;
use crate::agent::{PromptFacts, SystemPrompt, ToolFacts, Toolbox, system_prompt};
use crate::config::{Autonomy, Builtin, Config, Job, Mode, Model, OutputSchema};
use crate::process::resolved;
use crate::schedule::Schedule;
use crate::text::redact::Redactor;

/// Returns the system prompt of a run and, separately, the untrusted text of the repository.
pub(super) async fn prompt(
    scope: &RunScope,
    model: &Model,
    documents: &str,
) -> (SystemPrompt, Option<String>) {
    let (spec, host, ctx, toolbox) = (&scope.spec, &scope.host, &scope.ctx, &scope.toolbox);
    let date = date(&spec.config, &spec.job, host.clock.now());
    let working_dir = &ctx.working_dir;
    // In a remote job, this path names a directory on the other host, so do not look for a
    // repository here.
    let found = if ctx.programs.execution.is_local() {
        let (directory, environment) = (working_dir.clone(), host.environment.clone());
        let work = move || (repository(&directory).1, environment.find_program("git"));
        scope.on_host(work).await
    } else {
        Ok((None, None))
    };
    let (root, git) = found.unwrap_or_default();
    let git = match (&root, git) {
        (Some(root), Some(git)) => tokio::select! {
            facts = project::git_facts(ctx, &git, root) => facts,
            _ = scope.stop.reason() => None,
        },
        _ => None,
    };
    let prompt = system_prompt(&PromptFacts {
        is_interactive: spec.has_person,
        base: model.profile.prompt,
        job: spec.job.name.as_str(),
        description: spec.job.description.as_deref(),
        host: &super::scope::host_name(),
        platform: &platform(),
        date: &date,
        model: model.model_word(),
        working_dir: &working_dir.display().to_string(),
        in_repository: root.is_some(),
        git: git.as_ref(),
        autonomy: autonomy(spec.job.policy.autonomy),
        tools: &tools(&spec.config, &spec.job, toolbox),
        documents: &ctx.redactor.text(documents),
        is_planned: spec.mode == Mode::Plan,
        skills: &skills(&spec.job),
        output_schema: spec.job.output_schema.as_ref().map(OutputSchema::as_written),
        system_prompt: spec.job.system_prompt.as_deref(),
    });
    (prompt, git.map(|git| git.untrusted_text()))
}

/// Values of a system prompt that differ from run to run.
#[derive(Debug, Default)]
pub(super) struct HostFacts {
    pub(super) is_interactive: bool,
    pub(super) host: String,
    pub(super) platform: String,
    pub(super) date: String,
}

/// Returns the system prompt of a run that starts no process: without the state of the repository.
/// `None` without a model.
pub(super) fn offline_prompt(
    config: &Config,
    job: &Job,
    host: &Host,
    redactor: &Redactor,
    of_host: &HostFacts,
    tools: &[ToolFacts],
    mode: Mode,
) -> Option<SystemPrompt> {
    let model = config.model_of(job)?;
    let directory = working_dir(job, host);
    let (directory, root, text) = if job.environment.is_local() {
        let directory = resolved(&directory).unwrap_or(directory);
        let (_, root) = repository(&directory);
        let names = model.profile.documents;
        let read = super::documents::documents(root.as_deref(), &directory, names, redactor);
        (directory, root, read.text)
    } else {
        (directory, None, String::new())
    };
    Some(system_prompt(&PromptFacts {
        is_interactive: of_host.is_interactive,
        base: model.profile.prompt,
        job: job.name.as_str(),
        description: job.description.as_deref(),
        host: &of_host.host,
        platform: &of_host.platform,
        date: &of_host.date,
        model: model.model_word(),
        working_dir: &directory.display().to_string(),
        in_repository: root.is_some(),
        git: None,
        autonomy: autonomy(job.policy.autonomy),
        tools,
        documents: &redactor.text(&text),
        is_planned: mode == Mode::Plan,
        skills: &skills(job),
        output_schema: job.output_schema.as_ref().map(OutputSchema::as_written),
        system_prompt: job.system_prompt.as_deref(),
    }))
}

/// Returns the date in the zone of the job, as the prompt states it.
pub(super) fn date(config: &Config, job: &Job, now: DateTime<Utc>) -> String {
    let zone = job.schedule.as_ref().map_or(config.settings.timezone, Schedule::zone);
    now.with_timezone(&zone).format("%A, %Y-%m-%d (%Z)").to_string()
}

/// Returns the documents of the job's project; empty for a remote job or without a model.
pub(super) async fn documents(scope: &RunScope) -> Documents {
    let (spec, ctx) = (&scope.spec, &scope.ctx);
    let Some(model) = spec.config.model_of(&spec.job).filter(|_| ctx.programs.execution.is_local())
    else {
        return Documents::default();
    };
    let (working_dir, redactor) = (ctx.working_dir.clone(), ctx.redactor.clone());
    let names = model.profile.documents;
    let read = scope.on_host(move || {
        let (directory, root) = repository(&working_dir);
        super::documents::documents(root.as_deref(), &directory, names, &redactor)
    });
    // The checklist reports a directory that gives no answer.
    read.await.unwrap_or_default()
}

/// Returns the resolved path of a directory, and the root of its repository.
fn repository(working_dir: &Path) -> (PathBuf, Option<PathBuf>) {
    let directory = working_dir.canonicalize().unwrap_or_else(|_| working_dir.to_path_buf());
    let root = project::git_root(&directory);
    (directory, root)
}

fn skills(job: &Job) -> Vec<(&str, &str, &str)> {
    let skills = job.skills.iter();
    skills
        .map(|skill| (skill.directory.as_str(), skill.description.as_str(), skill.body.as_str()))
        .collect()
}

/// Returns the name of the kernel and its release.
pub(super) fn platform() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

fn autonomy(autonomy: Autonomy) -> &'static str {
    match autonomy {
        Autonomy::ReadOnly => "read_only",
        Autonomy::Supervised => "supervised",
        Autonomy::Full => "full",
    }
}

fn tools(config: &Config, job: &Job, toolbox: &Toolbox) -> Vec<ToolFacts> {
    let listed = |name: &str| {
        let mut entries = job.policy.write.iter().chain(&job.policy.admin);
        entries.find(|entry| entry.tool.as_str() == name)
    };
    // What an MCP server says of its tools is no part of the system prompt.
    let is_described =
        |name: &str| config.tools.contains_key(name) || Builtin::find(name).is_some();
    toolbox
        .offered()
        .iter()
        .map(|definition| ToolFacts {
            name: definition.name.clone(),
            category: toolbox
                .find(&definition.name)
                .map(|tool| tool.category().to_string())
                .unwrap_or_default(),
            description: is_described(toolbox.canonical(&definition.name))
                .then(|| ToolFacts::first_sentence(&definition.description)),
            conditions: listed(toolbox.canonical(&definition.name))
                .and_then(|entry| entry.args.as_ref())
                .map(|conditions| {
                    let written = conditions.as_written();
                    toolbox.in_shown_names(&definition.name, written).to_string()
                }),
        })
        .collect()
}
