//! `dutyd tools`: lists the tools and, with `--job`, whether the job may use each of them.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;

use super::args::ToolsArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::source::{self, Source, Wanted};
use crate::config::{Config, McpServer, Trust};
use crate::run::{ToolRow, names_of_server, tool_rows};
use crate::sinks::Observers;
use crate::store::Ledger;

pub(crate) async fn tools(context: &Context, args: &ToolsArgs) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Configuration).await?;
    let rows: Vec<ToolRow> = match &source {
        Source::Daemon(daemon) => {
            let listed = daemon.client.list("/tools", &json!({"job": args.job})).await;
            listed.map_err(|error| daemon.explained(error))?
        }
        Source::Files(_) => {
            let config = context.config_for_reading(Trust::Advised)?;
            let job = args.job.as_deref().map(|name| context.job(&config, name)).transpose()?;
            let host = context.host(Observers::default());
            tool_rows(&config, job.map(AsRef::as_ref), &host, &of_servers(context, &config)?)
        }
    };
    output::value(context.form, &rows, || table(&rows, args.job.is_some()))?;
    source.tell(context.form);
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[ToolRow], of_job: bool) -> String {
    let mut header = vec!["name", "category", "program", "description"];
    if of_job {
        header.insert(2, "allowed");
    }
    output::table(
        &header,
        rows.iter().map(|row| {
            let found = match (&row.unavailable, &row.program, row.source.as_str()) {
                (Some(why), ..) => format!("unavailable: {why}"),
                (None, Some(program), _) => program.clone(),
                (None, None, "builtin") => "built in".to_owned(),
                (None, None, source) => source.to_owned(),
            };
            let first_line = row.description.lines().next().unwrap_or_default();
            let mut cells =
                vec![row.name.clone(), row.category.to_string(), found, first_line.to_owned()];
            if let Some(allowed) = row.allowed {
                cells.insert(2, if allowed { "yes" } else { "no" }.to_owned());
            }
            cells
        }),
    )
}

/// Returns the MCP tools whose pins are in the ledger. A listing must not start a server to ask it.
fn of_servers(
    context: &Context,
    config: &Config,
) -> Result<Vec<(Arc<McpServer>, String)>, CliError> {
    let mut found = Vec::new();
    for server in config.mcp_servers.values() {
        let pins = Ledger::read_file(&context.dirs.state, |ledger| ledger.mcp_pins(&server.name));
        let pins = source::unless_lost(pins)?.flatten().unwrap_or_default();
        found.extend(names_of_server(config, server, pins.into_keys()));
    }
    Ok(found)
}
