//! `dutyd mcp` and `mcp accept`: list the tools of MCP servers, and accept changed ones.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{McpArgs, McpVerb};
use super::call::operator_job;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::config::{Config, Job, MCP_SEPARATOR, McpServer, Trust};
use crate::domain::RunId;
use crate::run::{Links, least_rights, tool_context};
use crate::sinks::Observers;
use crate::store::{Ledger, SharedLedger};
use crate::text::escape::one_line;
use crate::text::redact::Redactor;
use crate::text::suggest::nearest;
use crate::tools::{Pins, RunningServer};

/// The exit code if a server fails, or has a new or changed tool.
const WRONG: u8 = 1;

pub(crate) async fn mcp(context: &Context, args: &McpArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Required)?;
    match &args.verb {
        None => list(context, &config).await,
        Some(McpVerb::Accept { server }) => accept(context, &config, server).await,
    }
}

/// Starts a server in its own temporary directory, which is named after the returned run id. The
/// inner error says why the server did not start.
async fn start(
    context: &Context,
    config: &Config,
    server: &McpServer,
) -> Result<Result<(RunningServer, RunId), String>, CliError> {
    let host = context.host(Observers::default());
    host.state.create().map_err(|error| CliError::failed(error.to_string()))?;
    // Start the server with the least rights that a job gives it: a server that fails with these
    // rights in a run must not look healthy here.
    let (job, rights, whose) = match least_rights(config, server) {
        Some((job, rights)) => (Job::clone(job), rights, format!("job `{}` gives", job.name)),
        None => (operator_job(config, None)?, server.highest(), "its own tools need".to_owned()),
    };
    let run_id = context.new_run_id();
    let redactor = Redactor::new(&config.secrets);
    let ctx = tool_context(config, &job, &host, (&run_id, None), redactor, Links::Resolved)
        .map_err(|error| CliError::failed(error.to_string()))?;
    let lifetime = std::time::Duration::from_secs(120);
    let started = RunningServer::start(server, &ctx, rights, lifetime).await;
    if started.is_err() {
        let _ = host.state.remove_temporary(&run_id).await;
    }
    Ok(started
        .map_err(|error| format!("{error} (started with the rights that {whose}: {rights})"))
        .map(|running| (running, run_id)))
}

async fn list(context: &Context, config: &Config) -> Result<ExitCode, CliError> {
    super::access::check_state_owner(&context.dirs)?;
    let (mut rows, mut values, mut is_wrong) = (Vec::new(), Vec::<Value>::new(), false);
    for server in config.mcp_servers.values() {
        let pins = Ledger::read_file(&context.dirs.state, |ledger| ledger.mcp_pins(&server.name));
        let pins = pins.map_err(super::source::of_database)?.flatten();
        match start(context, config, server).await? {
            Err(error) => {
                is_wrong = true;
                rows.push(vec![server.name.clone(), String::new(), String::new(), error.clone()]);
                values.push(json!({"server": server.name, "error": error, "tools": []}));
            }
            Ok((running, run_id)) => {
                let mut tools = Vec::new();
                for tool in &running.described {
                    let pin = state(&tool.digest(), &tool.name, pins.as_ref());
                    is_wrong |= matches!(pin, "changed" | "new");
                    let name = format!("{}{MCP_SEPARATOR}{}", server.name, tool.name);
                    let category = server.category_of(&tool.name);
                    rows.push(vec![
                        one_line(&name),
                        category.to_string(),
                        pin.to_owned(),
                        one_line(tool.description.lines().next().unwrap_or_default()),
                    ]);
                    tools.push(json!({"name": name, "category": category, "pin": pin, "digest": tool.digest()}));
                }
                values.push(json!({"server": server.name, "error": null, "tools": tools}));
                running.end().await;
                let _ = context.state().remove_temporary(&run_id).await;
            }
        }
    }
    output::value(context.form, &values, || {
        output::table(&["tool", "category", "pin", "description"], rows)
    })?;
    Ok(ExitCode::from(if is_wrong { WRONG } else { 0 }))
}

fn state(digest: &str, name: &str, pins: Option<&Pins>) -> &'static str {
    match pins.map(|pins| pins.get(name)) {
        None => "not yet",
        Some(None) => "new",
        Some(Some(pin)) if pin == digest => "accepted",
        Some(Some(_)) => "changed",
    }
}

async fn accept(context: &Context, config: &Config, name: &str) -> Result<ExitCode, CliError> {
    super::access::check_state_owner(&context.dirs)?;
    let server = config.mcp_servers.get(name).ok_or_else(|| {
        let error = CliError::not_found(format!("there is no MCP server `{name}`"));
        match nearest(name, config.mcp_servers.keys().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    })?;
    let (running, run_id) = start(context, config, server).await?.map_err(CliError::failed)?;
    let pins = running.pins();
    for tool in &running.described {
        let (name, line) = (one_line(&tool.name), one_line(&tool.description));
        output::note(&format!("{name} ({}): {line}", server.category_of(&tool.name)));
    }
    let count = pins.len();
    running.end().await;
    let _ = context.state().remove_temporary(&run_id).await;
    SharedLedger::of(&context.dirs.state)
        .get()
        .await
        .map_err(super::source::of_database)?
        .keep_mcp_pins(name.to_owned(), pins)
        .await
        .map_err(|error| CliError::failed(error.to_string()))?;
    output::note(&format!("accepted {count} tools of `{name}`"));
    Ok(ExitCode::SUCCESS)
}
