//! The checklist before the first model call: reports what would make the run fail, before a token
//! is spent.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::host::Host;
use super::spec::RunSpec;
use crate::agent::{StopSignal, Toolbox};
use crate::config::{Config, Job, MCP_SEPARATOR, Model, Provider, SandboxMode, Tool};
use crate::domain::PreflightItem;
use crate::gate::is_visible;
use crate::process::{landlock_abi, sandbox_gaps, sandbox_support};
use crate::tools::{Connection, ToolContext, missing_programs};

/// Returns the checklist of a job, without the items that [`connect`] returns.
#[must_use]
pub fn preflight(
    config: &Config,
    job: &Job,
    ctx: &ToolContext,
    toolbox: &Toolbox,
) -> Vec<PreflightItem> {
    let item =
        |name: &str, ok: bool, detail: String| PreflightItem { name: name.to_owned(), ok, detail };
    let working_dir = ctx.working_dir.as_path();
    let mut items = Vec::new();
    items.push(match config.model_of(job) {
        Some(model) => item("model", true, format!("{} ({})", model.name, model.provider_word())),
        None => {
            item("model", false, "no model is configured: add `models:` to config.yaml".to_owned())
        }
    });
    items.extend(config.model_of(job).and_then(|model| credentials(model)));
    items.push(match &job.schedule {
        Some(schedule) => item("schedule", true, schedule.as_written()),
        None => item("schedule", true, "none: manual runs only".to_owned()),
    });
    let is_local = ctx.programs.execution.is_local();
    items.extend(is_local.then(|| match std::fs::metadata(working_dir) {
        Ok(meta) if meta.is_dir() => item("working_dir", true, working_dir.display().to_string()),
        Ok(_) => {
            item("working_dir", false, format!("{} is not a directory", working_dir.display()))
        }
        Err(error) => item("working_dir", false, format!("{}: {error}", working_dir.display())),
    }));
    let can_change = !(job.policy.write.is_empty() && job.policy.admin.is_empty());
    if can_change && is_local {
        items.extend(ctx.access.paths.writable.iter().map(|path| {
            let shown = path.display();
            match rustix::fs::access(path, rustix::fs::Access::WRITE_OK) {
                Ok(()) => item("writable", true, shown.to_string()),
                // A tool may create it.
                Err(rustix::io::Errno::NOENT) => {
                    item("writable", true, format!("{shown} (does not exist yet)"))
                }
                Err(error) => {
                    item("writable", false, format!("{shown}: {}", std::io::Error::from(error)))
                }
            }
        }));
    }
    items.extend(tools(config, job, ctx, toolbox));
    items.push(sandbox(job, ctx));
    let offered = toolbox.offered().len();
    items.push(item("tools", true, format!("{offered} offered to the model")));
    items
}

/// Decides whether a run starts. If an item failed, only an attached person can start the run; no
/// answer within the approval timeout means no. A run that was stopped in the meantime starts
/// anyway, so that its session ends at once with the stop reason.
pub(super) async fn may_begin(
    spec: &RunSpec,
    host: &Host,
    items: &[PreflightItem],
    stop: &StopSignal,
) -> bool {
    if stop.is_given() {
        return true;
    }
    if !spec.has_person {
        return items.iter().all(|item| item.ok);
    }
    let timeout = spec.job.approval.timeout;
    tokio::select! {
        answer = tokio::time::timeout(timeout, host.approver.preflight(items)) => answer.unwrap_or(false),
        _ = stop.reason() => true,
    }
}

/// Reports whether each tool that the job names can be used; [`connect`] does so for the declared
/// tools of a remote job. Of the other declared tools that the job may use, reports those whose
/// program or script is closed to tools.
fn tools(config: &Config, job: &Job, ctx: &ToolContext, toolbox: &Toolbox) -> Vec<PreflightItem> {
    let is_local = ctx.programs.execution.is_local();
    let mut named = job.policy.named();
    named.extend(job.own_calls().map(|call| call.tool.as_str()));
    let item = |tool: &str, (ok, detail): (bool, String)| PreflightItem {
        name: format!("program of {tool}"),
        ok,
        detail,
    };
    let found = named.iter().filter_map(|tool| {
        let found = match (config.tools.get(*tool), toolbox.find(tool)) {
            (Some(_), _) if !is_local => return None,
            (Some(declared), _) => program(declared, ctx),
            (None, Some(known)) if !known.is_available() => {
                (false, "not available in this job; `dutyd tools --job` shows why".to_owned())
            }
            (None, Some(_)) => match tool.split_once(MCP_SEPARATOR) {
                Some((server, _)) => (true, format!("of the MCP server `{server}`")),
                None => (true, "built in".to_owned()),
            },
            (None, None) => (false, "not available on this host".to_owned()),
        };
        Some(item(tool, found))
    });
    // Skip a tool whose program was not found: the model does not see the tool. Report a tool whose
    // program is closed to tools: each call of it would fail.
    let others = config.tools.values().filter(|tool| {
        let name = tool.name.as_str();
        is_local
            && !named.contains(name)
            && tool.program.path.is_some()
            && is_visible(&job.policy, name, tool.category, false)
    });
    let others = others.map(|tool| item(tool.name.as_str(), program(tool, ctx)));
    found.chain(others.filter(|item| !item.ok)).collect()
}

fn program(tool: &Tool, ctx: &ToolContext) -> (bool, String) {
    let Some(path) = &tool.program.path else {
        return (false, format!("`{}` was not found", tool.program.written));
    };
    let rules = &ctx.access.paths;
    let closed = rules.denied.iter().chain(&rules.own);
    let open: Vec<PathBuf> = rules.writable.iter().chain(&rules.readable).cloned().collect();
    match tool.closed_file(closed, &open).filter(|_| ctx.is_sandboxed()) {
        Some((file, folder)) => (
            false,
            format!(
                "`{}` is inside `{}`, which is closed to tools",
                file.display(),
                folder.display()
            ),
        ),
        None => (true, path.display().to_string()),
    }
}

/// Tells whether the model has the credentials that its provider requires; `None` for a scripted
/// model.
pub(super) fn credentials(model: &Model) -> Option<PreflightItem> {
    let Provider::Remote(remote) = &model.provider else { return None };
    let is_own = remote.base_url == remote.format.base_url();
    let (ok, detail) = match &remote.api_key {
        Some(_) => (true, format!("a key for `{}`", model.name)),
        None if is_own && !remote.format.is_self_hosted() => {
            (false, format!("no `api_key` for `{}`, but its provider requires one", model.name))
        }
        None => (true, format!("none for `{}`", model.name)),
    };
    Some(PreflightItem { name: "credentials".to_owned(), ok, detail })
}

/// Connects to the execution target of the job and looks there for the programs of the tools that
/// the model sees. Returns the connection, if the target supports one, and items for the checklist.
/// Does nothing if the target is this host.
pub async fn connect(
    config: &Config,
    job: &Job,
    ctx: &ToolContext,
    toolbox: &Toolbox,
) -> (Option<Connection>, Vec<PreflightItem>) {
    let item =
        |name: &str, ok: bool, detail: String| PreflightItem { name: name.to_owned(), ok, detail };
    if ctx.programs.execution.is_local() {
        return (None, Vec::new());
    }
    let name = ctx.programs.execution.name();
    let connection = match ctx
        .programs
        .execution
        .connect(&ctx.programs.spawner, &ctx.programs.env, &ctx.redactor)
        .await
    {
        Ok(connection) => connection,
        Err(error) => return (None, vec![item("environment", false, error.to_string())]),
    };
    let used = toolbox.offered().iter().map(|tool| toolbox.canonical(&tool.name));
    let programs: BTreeSet<&str> = used
        .filter_map(|tool| match config.tools.get(tool) {
            Some(declared) => Some(declared.program.written.as_str()),
            None => Some("bash").filter(|bash| *bash == tool),
        })
        .collect();
    let programs: Vec<&str> = programs.into_iter().collect();
    let items = match missing_programs(ctx, &programs).await {
        Err(error) => vec![item("environment", false, format!("{name}: {error}"))],
        Ok(missing) => {
            let directory = ctx.working_dir.display();
            let mut items = vec![item("environment", true, format!("{name}, in {directory}"))];
            let mut named = job.policy.named();
            named.extend(job.own_calls().map(|call| call.tool.as_str()));
            let is_named = |program: &str| {
                named.iter().any(|tool| match config.tools.get(*tool) {
                    Some(declared) => declared.program.written == program,
                    None => *tool == program,
                })
            };
            items.extend(missing.iter().map(|program| {
                let detail = format!("`{program}` was not found on {name}");
                item(&format!("program {program}"), !is_named(program), detail)
            }));
            items
        }
    };
    (connection, items)
}

/// Reports how the tools of the job are sandboxed. The item fails if the job may change files and a
/// writable path contains a closed one, or if the mode is `enforce` and the kernel does not support
/// the sandbox.
fn sandbox(job: &Job, ctx: &ToolContext) -> PreflightItem {
    let item = |ok: bool, detail: String| PreflightItem { name: "sandbox".to_owned(), ok, detail };
    if !ctx.programs.execution.is_local() {
        let (mode, place) = (job.sandbox.as_str(), ctx.programs.execution.name());
        return item(true, format!("{mode}: this host cannot sandbox processes on {place}"));
    }
    let can_change = !(job.policy.write.is_empty() && job.policy.admin.is_empty());
    if let Some((root, closed)) = ctx.access.paths.closed_in_writable().filter(|_| can_change) {
        let (root, closed) = (root.display(), closed.display());
        return item(
            false,
            format!("`{root}` must be writable, but contains `{closed}`, which is closed to tools"),
        );
    }
    let mode = job.sandbox.as_str();
    match (job.sandbox, sandbox_support()) {
        (SandboxMode::Off, _) => item(true, "off: tools have all rights of this user".to_owned()),
        (_, Ok(abi)) => item(true, format!("{mode}, Landlock {abi}{}", sandbox_gaps(abi))),
        (SandboxMode::BestEffort, Err(error)) => {
            let abi = landlock_abi().unwrap_or(0);
            item(true, format!("{mode}, Landlock {abi}: {error}"))
        }
        (SandboxMode::Enforce, Err(error)) => {
            item(false, format!("{error}; set `sandbox: best_effort` to run without it"))
        }
    }
}
