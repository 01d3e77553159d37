//! `dutyd tools`

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::args::ToolsArgs;
use super::context::Context;
use super::error::CliError;
use super::known_tool::KnownTool;
use super::output;
use crate::config::{Config, MCP_SEPARATOR, McpServer, Trust};
use crate::domain::ToolName;
use crate::gate::is_visible;
use crate::store::Ledger;

pub(crate) fn tools(context: &Context, args: &ToolsArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Advised)?;
    let job = args.job.as_deref().map(|name| context.job(&config, name)).transpose()?;
    let of_servers = of_servers(context, &config);
    let all = KnownTool::all(&config, &of_servers);
    let environment = &context.environment;
    let is_available = |tool: &KnownTool<'_>| match tool {
        KnownTool::Declared(tool) => tool.program.path.is_some(),
        KnownTool::Builtin(tool) => match tool.name {
            "bash" => environment.find_program("bash").is_some(),
            "web_search" => config.settings.web_search.is_some(),
            "web_fetch" => {
                let of_job = job.is_some_and(|job| !job.allowed_domains.is_empty());
                of_job || !config.settings.security.allowed_domains.is_empty()
            }
            _ => true,
        },
        KnownTool::Mcp { .. } => true,
    };
    let allowed = |tool: &KnownTool<'_>| {
        job.map(|job| {
            let is_of_job = match tool.name() {
                "skill" => !job.skills.is_empty(),
                "web_fetch" | "web_search" => job.network,
                _ => true,
            };
            is_of_job
                && is_available(tool)
                && is_visible(&job.policy, tool.name(), tool.category(), false)
        })
    };
    let listed: Vec<Value> = all
        .iter()
        .map(|tool| {
            let mut entry = json!({
                "name": tool.name(),
                "category": tool.category(),
                "source": tool.source(),
                "description": tool.description(),
                "parameters": tool.parameters().map(|parameters| parameters.schema()),
                "program": program(tool),
                "available": is_available(tool),
            });
            if let (Some(allowed), Some(entry)) = (allowed(tool), entry.as_object_mut()) {
                entry.insert("allowed".to_owned(), allowed.into());
            }
            entry
        })
        .collect();
    output::value(context.form, &listed, || {
        let mut header = vec!["name", "category", "program", "description"];
        if job.is_some() {
            header.insert(2, "allowed");
        }
        output::table(
            &header,
            all.iter().map(|tool| {
                let found = match tool {
                    KnownTool::Builtin(_) if !is_available(tool) => {
                        "built in (not there)".to_owned()
                    }
                    KnownTool::Builtin(_) => "built in".to_owned(),
                    KnownTool::Mcp { .. } => tool.source(),
                    KnownTool::Declared(declared) => program(tool)
                        .unwrap_or_else(|| format!("{} (not found)", declared.program.written)),
                };
                let first_line = tool.description().lines().next().unwrap_or_default();
                let mut row = vec![
                    tool.name().to_owned(),
                    tool.category().to_string(),
                    found,
                    first_line.to_owned(),
                ];
                if let Some(allowed) = allowed(tool) {
                    row.insert(2, if allowed { "yes" } else { "no" }.to_owned());
                }
                row
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the tools of the servers that have been seen: nothing is started for a list.
fn of_servers(context: &Context, config: &Config) -> Vec<(Arc<McpServer>, String)> {
    let pins = |server: &McpServer| {
        let pins = Ledger::read_file(&context.dirs.state, |ledger| ledger.mcp_pins(&server.name));
        pins.unwrap_or_else(|error| {
            output::note(&format!("the tools of `{}` are not known: {error}", server.name));
            None
        })
    };
    let servers = config.mcp_servers.values();
    let tools = servers.map(|server| (server, pins(server).flatten().unwrap_or_default()));
    tools
        .flat_map(|(server, pins)| {
            // What a run would leave out is not listed.
            let name = |tool: String| {
                let name = format!("{}{MCP_SEPARATOR}{tool}", server.name);
                let name = ToolName::parse(&name).ok()?;
                (!config.tools.contains_key(&name)).then(|| name.to_string())
            };
            let names: Vec<String> = pins.into_keys().filter_map(name).collect();
            names.into_iter().map(|name| (server.clone(), name))
        })
        .collect()
}

fn program(tool: &KnownTool<'_>) -> Option<String> {
    match tool {
        KnownTool::Declared(tool) => {
            tool.program.path.as_ref().map(|path| path.display().to_string())
        }
        KnownTool::Builtin(_) | KnownTool::Mcp { .. } => None,
    }
}
