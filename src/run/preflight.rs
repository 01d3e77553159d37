//! The checklist before the first model call: what would make the run fail at night is said before a token is spent.

use std::collections::BTreeSet;

use crate::agent::Toolbox;
use crate::config::{Config, Job, Listed, MCP_SEPARATOR, Model, Provider, SandboxMode, WireFormat};
use crate::domain::PreflightItem;
use crate::process::{landlock_abi, sandbox_gaps, sandbox_support};
use crate::tools::{Connection, ToolSurroundings, missing_programs};

/// Returns the checklist of a job.
#[must_use]
pub fn preflight(
    config: &Config,
    job: &Job,
    around: &ToolSurroundings,
    toolbox: &Toolbox,
) -> Vec<PreflightItem> {
    let item =
        |name: &str, ok: bool, detail: String| PreflightItem { name: name.to_owned(), ok, detail };
    let working_dir = around.working_dir.as_path();
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
        None => item("schedule", true, "none: by hand".to_owned()),
    });
    let is_local = around.execution.is_local();
    items.extend(is_local.then(|| match std::fs::metadata(working_dir) {
        Ok(meta) if meta.is_dir() => item("working_dir", true, working_dir.display().to_string()),
        Ok(_) => item("working_dir", false, format!("{} is no directory", working_dir.display())),
        Err(error) => item("working_dir", false, format!("{}: {error}", working_dir.display())),
    }));
    let acting = job.policy.write.iter().chain(&job.policy.admin);
    let acting: BTreeSet<&str> = acting.map(|Listed { tool, .. }| tool.as_str()).collect();
    if !acting.is_empty() && is_local {
        items.extend(around.paths.writable.iter().map(|path| {
            let shown = path.display();
            match rustix::fs::access(path, rustix::fs::Access::WRITE_OK) {
                Ok(()) => item("writable", true, shown.to_string()),
                // It may be made.
                Err(rustix::io::Errno::NOENT) => {
                    item("writable", true, format!("{shown}, which is not there yet"))
                }
                Err(error) => {
                    item("writable", false, format!("{shown}: {}", std::io::Error::from(error)))
                }
            }
        }));
    }
    for tool in acting.into_iter().chain(job.policy.approve.iter().map(String::as_str)) {
        let name = format!("program of {tool}");
        if items.iter().any(|known: &PreflightItem| known.name == name) {
            continue;
        }
        items.push(match (config.tools.get(tool), toolbox.find(tool)) {
            (Some(_), _) if !is_local => continue,
            (Some(declared), _) => match &declared.program.path {
                Some(path) => item(&name, true, path.display().to_string()),
                None => item(&name, false, format!("`{}` was not found", declared.program.written)),
            },
            (None, Some(_)) => match tool.split_once(MCP_SEPARATOR) {
                Some((server, _)) => item(&name, true, format!("of the MCP server `{server}`")),
                None => item(&name, true, "built in".to_owned()),
            },
            (None, None) => item(&name, false, "it cannot be used on this host".to_owned()),
        });
    }
    items.push(sandbox(job, around));
    let offered = toolbox.offered().len();
    items.push(item("tools", true, format!("{offered} offered to the model")));
    items
}

/// Tells whether there is what the model's provider asks for; `None` where it asks for nothing.
fn credentials(model: &Model) -> Option<PreflightItem> {
    let Provider::Remote(remote) = &model.provider else { return None };
    let is_own = remote.base_url == remote.format.base_url();
    let (ok, detail) = match &remote.api_key {
        Some(_) => (true, format!("a key for `{}`", model.name)),
        None if is_own && remote.format != WireFormat::Ollama => {
            (false, format!("no `api_key` for `{}`, which its provider asks for", model.name))
        }
        None => (true, format!("none for `{}`", model.name)),
    };
    Some(PreflightItem { name: "credentials".to_owned(), ok, detail })
}

/// Connects to where the job's tools work, and looks for their programs there.
pub async fn connect(
    config: &Config,
    job: &Job,
    around: &ToolSurroundings,
    toolbox: &Toolbox,
) -> (Option<Connection>, Vec<PreflightItem>) {
    let item =
        |name: &str, ok: bool, detail: String| PreflightItem { name: name.to_owned(), ok, detail };
    if around.execution.is_local() {
        return (None, Vec::new());
    }
    let name = around.execution.name();
    let connection = match around.execution.connect(around).await {
        Ok(connection) => connection,
        Err(error) => return (None, vec![item("environment", false, error)]),
    };
    let used = toolbox.offered().iter().map(|tool| toolbox.canonical(&tool.name));
    let programs: BTreeSet<&str> = used
        .filter_map(|tool| match config.tools.get(tool) {
            Some(declared) => Some(declared.program.written.as_str()),
            None => Some("bash").filter(|bash| *bash == tool),
        })
        .collect();
    let programs: Vec<&str> = programs.into_iter().collect();
    let items = match missing_programs(around, &programs).await {
        Err(error) => vec![item("environment", false, format!("{name}: {error}"))],
        Ok(missing) => {
            let directory = around.working_dir.display();
            let mut items = vec![item("environment", true, format!("{name}, in {directory}"))];
            let acts = |program: &str| {
                let mut listed = job.policy.write.iter().chain(&job.policy.admin);
                listed.any(|listed| match config.tools.get(&listed.tool) {
                    Some(declared) => declared.program.written == program,
                    None => listed.tool.as_str() == program,
                })
            };
            // A read tool that is not there is a call that fails; one that the job acts with is a run that does.
            items.extend(missing.iter().map(|program| {
                let detail = format!("`{program}` was not found on {name}");
                item(&format!("program {program}"), !acts(program), detail)
            }));
            items
        }
    };
    (connection, items)
}

/// Tells whether the kernel can hold the job's tools to what they may touch.
fn sandbox(job: &Job, around: &ToolSurroundings) -> PreflightItem {
    let item = |ok: bool, detail: String| PreflightItem { name: "sandbox".to_owned(), ok, detail };
    if !around.execution.is_local() {
        let (mode, place) = (job.sandbox.as_str(), around.execution.name());
        return item(true, format!("{mode}: nothing here holds what runs on {place}"));
    }
    let acts = !(job.policy.write.is_empty() && job.policy.admin.is_empty());
    if let Some((root, closed)) = around.paths.closed_in_writable().filter(|_| acts) {
        let (root, closed) = (root.display(), closed.display());
        return item(
            false,
            format!("`{root}` is to be writable and holds `{closed}`, which is closed"),
        );
    }
    let mode = job.sandbox.as_str();
    match (job.sandbox, sandbox_support()) {
        (SandboxMode::Off, _) => item(true, "off: tools have every right of this user".to_owned()),
        (_, Ok(abi)) => item(true, format!("{mode}, Landlock {abi}{}", sandbox_gaps(abi))),
        (SandboxMode::BestEffort, Err(error)) => {
            let abi = landlock_abi().unwrap_or(0);
            item(true, format!("{mode}, Landlock {abi}: {error}"))
        }
        (SandboxMode::Enforce, Err(error)) => {
            item(false, format!("{error}; `sandbox: best_effort` runs without it"))
        }
    }
}
