//! Compares the prompt of a recorded run, and the tools that its model saw, with those of today.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Replay;
use super::calls::RunReplay;
use super::report::{Difference, DifferenceKind, Side};
use crate::agent::{ToolFacts, configured_part};
use crate::config::{Job, MCP_SEPARATOR, McpServer};
use crate::run::precheck::TEXT_START;
use crate::run::prompt::{HostFacts, offline_prompt};
use crate::run::tool_catalog::{KnownTool, offered};

/// Returns what differs in the tools, the system prompt and the task of a run.
pub(super) fn compare_prompt(run: &RunReplay<'_>, replay: &Replay<'_>) -> Vec<Difference> {
    let difference = |name: &str, kind, recorded, today, reason: &str| Difference {
        run_id: run.run_id.clone(),
        job: run.start.job.clone(),
        seq: 0,
        call_id: None,
        name: name.to_owned(),
        kind,
        recorded,
        today,
        reason: reason.to_owned(),
    };
    let mut found = Vec::new();
    let mut job = run.job.clone();
    if let Some(model) = &run.start.overrides.model {
        job.model = Some(model.clone());
    }
    let of_servers = of_servers(run, replay);
    let tools = offered(
        replay.config,
        &job,
        &run.rules.paths,
        &replay.host.environment,
        &of_servers,
        run.rules.has_person,
    );
    let own = tools.iter().filter(|(tool, _)| !matches!(tool, KnownTool::Mcp { .. }));
    let own: BTreeSet<&str> = own.map(|(tool, _)| tool.name()).collect();
    let recorded: BTreeSet<&str> = run.start.tools.iter().map(String::as_str).collect();
    // A run of `apply` has no model.
    if run.system.is_some() && own != recorded {
        let words = |names: &BTreeSet<&str>| {
            Side::Words(names.iter().map(|name| (*name).to_owned()).collect())
        };
        let reason = "the model would see other tools";
        let (recorded, today) = (words(&recorded), words(&own));
        found.push(difference("tools", DifferenceKind::Tools, recorded, today, reason));
    }
    let facts = tools.into_iter().map(|(_, facts)| facts).collect::<Vec<_>>();
    if let Some(recorded) = &run.system
        && let Some(today) = today_prompt(run, &job, replay, &facts)
        && let Some((recorded, today)) = first_difference(&configured_part(recorded), &today)
    {
        let reason = "the system prompt has changed; this is its first line that differs";
        let (recorded, today) = (Side::Line(recorded), Side::Line(today));
        found.push(difference("system_prompt", DifferenceKind::Prompt, recorded, today, reason));
    }
    if let Some(recorded) = &run.task {
        let today = task(&job, run).unwrap_or_default();
        let today = replay.redactor.text(&today);
        // The text about the precheck follows the prompt.
        let rest = recorded.strip_prefix(today.as_ref());
        let is_same = rest.is_some_and(|rest| {
            rest.is_empty()
                || rest.strip_prefix("\n\n").is_some_and(|rest| rest.starts_with(TEXT_START))
        });
        if let Some((recorded, today)) = first_difference(recorded, &today).filter(|_| !is_same) {
            let reason = "the prompt of the job has changed; this is its first line that differs";
            let (recorded, today) = (Side::Line(recorded), Side::Line(today));
            found.push(difference("task", DifferenceKind::Prompt, recorded, today, reason));
        }
    }
    found
}

/// Returns the tools of the servers as the run found them: a comparison starts no server.
fn of_servers(run: &RunReplay<'_>, replay: &Replay<'_>) -> Vec<(Arc<McpServer>, String)> {
    let servers = run.of_servers.iter().filter_map(|(server, tools)| {
        let server = replay.config.mcp_servers.get(server.as_str())?;
        Some(tools.iter().map(move |tool| {
            let has_prefix = tool.starts_with(&format!("{}{MCP_SEPARATOR}", server.name));
            let name = if has_prefix {
                tool.clone()
            } else {
                format!("{}{MCP_SEPARATOR}{tool}", server.name)
            };
            (server.clone(), name)
        }))
    });
    servers.flatten().collect()
}

/// Returns today's task; `None` if the prompt names a variable that the job does not have.
fn task(job: &Job, run: &RunReplay<'_>) -> Option<String> {
    if let Some(prompt) = &run.start.overrides.prompt {
        return Some(prompt.clone());
    }
    let stated = run.start.origin.request.as_ref().map(|request| &request.vars);
    job.prompt.render(|name| {
        let stated = stated.and_then(|vars| vars.get(name));
        stated.or_else(|| job.vars.get(name)).map(String::as_str)
    })
}

/// Returns the part of today's system prompt that the configuration and the documents of the project
/// decide; `None` without a model.
fn today_prompt(
    run: &RunReplay<'_>,
    job: &Job,
    replay: &Replay<'_>,
    tools: &[ToolFacts],
) -> Option<String> {
    let (config, host, redactor) = (replay.config, replay.host, &replay.redactor);
    let of_host = HostFacts { is_interactive: run.start.interactive, ..HostFacts::default() };
    let prompt = offline_prompt(config, job, host, redactor, &of_host, tools, run.mode)?;
    Some(redactor.text(&configured_part(&prompt.text)).into_owned())
}

/// Returns the first lines that differ, of both texts, without blank lines; the line of a text that has
/// ended is empty.
fn first_difference(one: &str, other: &str) -> Option<(String, String)> {
    let is_told = |line: &&str| !line.trim().is_empty();
    let (mut one, mut other) = (one.lines().filter(is_told), other.lines().filter(is_told));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return None,
            (one, other) if one == other => {}
            (one, other) => {
                let line = |line: Option<&str>| line.unwrap_or_default().to_owned();
                return Some((line(one), line(other)));
            }
        }
    }
}
