//! `dutyd tools`

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::ToolsArgs;
use super::context::Context;
use super::error::CliError;
use super::known_tool::KnownTool;
use super::output;
use crate::config::Trust;
use crate::gate::is_visible;

pub(crate) fn tools(context: &Context, args: &ToolsArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Advised)?;
    let job = args.job.as_deref().map(|name| context.job(&config, name)).transpose()?;
    let all = KnownTool::all(&config);
    let environment = &context.environment;
    let is_available = |tool: &KnownTool<'_>| match tool {
        KnownTool::Declared(tool) => tool.program.path.is_some(),
        KnownTool::Builtin(tool) => match tool.name {
            "bash" => environment.find_program("bash").is_some(),
            "web_search" => config.settings.web_search.is_some(),
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
            is_of_job && is_visible(&job.policy, tool.name(), tool.category(), false)
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
                    KnownTool::Builtin(_) | KnownTool::Mcp { .. } => "built in".to_owned(),
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

fn program(tool: &KnownTool<'_>) -> Option<String> {
    match tool {
        KnownTool::Declared(tool) => {
            tool.program.path.as_ref().map(|path| path.display().to_string())
        }
        KnownTool::Builtin(_) | KnownTool::Mcp { .. } => None,
    }
}
