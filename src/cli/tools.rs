//! `dutyd tools`

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::ToolsArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::config::Trust;
use crate::gate::is_visible;

pub(crate) fn tools(context: &Context, args: &ToolsArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Advised)?;
    let job = args.job.as_deref().map(|name| context.job(&config, name)).transpose()?;
    let listed: Vec<Value> = config
        .tools
        .values()
        .map(|tool| {
            let mut entry = json!({
                "name": tool.name,
                "category": tool.category,
                "source": "declared",
                "description": tool.description,
                "parameters": tool.command.parameters().schema(),
                "program": tool.program.path,
                "available": tool.program.path.is_some(),
            });
            if let (Some(job), Some(entry)) = (job, entry.as_object_mut()) {
                entry.insert(
                    "allowed".to_owned(),
                    is_visible(&job.policy, tool.name.as_str(), tool.category).into(),
                );
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
            config.tools.values().map(|tool| {
                let program = tool.program.path.as_ref().map_or_else(
                    || format!("{} (not found)", tool.program.written),
                    |path| path.display().to_string(),
                );
                let mut row = vec![
                    tool.name.to_string(),
                    tool.category.to_string(),
                    program,
                    tool.description.clone(),
                ];
                if let Some(job) = job {
                    row.insert(
                        2,
                        if is_visible(&job.policy, tool.name.as_str(), tool.category) {
                            "yes"
                        } else {
                            "no"
                        }
                        .to_owned(),
                    );
                }
                row
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
