//! `dutyd mcp` and `mcp accept`: list the tools of MCP servers, and accept changed ones.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::args::{McpArgs, McpVerb};
use super::call::operator_job;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use crate::config::{Config, Job, McpServer, Trust};
use crate::domain::RunId;
use crate::run::{Links, least_rights, tool_context};
use crate::sinks::Observers;
use crate::store::{Ledger, SharedLedger};
use crate::text::escape::one_line;
use crate::text::redact::Redactor;
use crate::text::suggest::nearest;
use crate::tools::{Offer, Pins, RunningServer, ToolContext};

pub(crate) async fn mcp(context: &Context, args: &McpArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Required)?;
    match &args.verb {
        None => list(context, &config).await,
        Some(McpVerb::Accept { server }) => accept(context, &config, server).await,
    }
}

/// A server that runs for this command.
struct Started {
    running: RunningServer,
    ctx: Arc<ToolContext>,
    /// Names its temporary directory.
    run_id: RunId,
}

impl Started {
    async fn end(self, context: &Context) {
        self.running.end().await;
        let _ = context.state().remove_temporary(&self.run_id).await;
    }
}

/// Starts a server in its own temporary directory. The inner error says why the server did not
/// start.
async fn start(
    context: &Context,
    config: &Config,
    server: &McpServer,
) -> Result<Result<Started, String>, CliError> {
    let host = context.host(Observers::default());
    host.state.create().map_err(CliError::failed_by)?;
    // Start the server with the least rights that a job gives it: a server that fails with these
    // rights in a run must not look healthy here.
    let (job, rights, whose) = match least_rights(config, server) {
        Some((job, rights)) => (Job::clone(job), rights, format!("job `{}` gives", job.name)),
        None => (operator_job(config, None)?, server.highest(), "its own tools need".to_owned()),
    };
    let run_id = context.new_run_id();
    let redactor = Redactor::new(&config.secrets);
    let ctx = tool_context(config, &job, &host, &run_id, None, redactor, Links::Resolved)
        .map_err(CliError::failed_by)?;
    let lifetime = std::time::Duration::from_secs(120);
    let started = RunningServer::start(server, &ctx, rights, lifetime).await;
    if started.is_err() {
        let _ = host.state.remove_temporary(&run_id).await;
    }
    Ok(started
        .map_err(|error| format!("{error} (started with the rights that {whose}: {rights})"))
        .map(|running| Started { running, ctx, run_id }))
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
                values.push(
                    json!({"server": server.name, "error": error, "warnings": [], "tools": []}),
                );
            }
            Ok(started) => {
                // A run accepts every tool of a server without pins.
                let offers = started.running.offers(server, pins.as_ref(), &started.ctx);
                is_wrong |= offers.iter().any(|offer| offer.tool.is_err());
                rows.extend(offers.iter().map(|offer| row(offer, pins.as_ref())));
                let tools: Vec<Value> =
                    offers.iter().map(|offer| facts(offer, pins.as_ref())).collect();
                let warnings: Vec<String> =
                    started.running.warnings().into_iter().map(|warning| warning.message).collect();
                warnings.iter().for_each(|warning| output::note(warning));
                values.push(
                    json!({"server": server.name, "error": null, "warnings": warnings, "tools": tools}),
                );
                drop(offers);
                started.end(context).await;
            }
        }
    }
    output::value(context.form, &values, || {
        output::table(&["tool", "category", "pin", "description"], rows)
    })?;
    Ok(Exit::of_check(!is_wrong).into())
}

/// Returns the row of a tool: what a run would have, and why not more.
fn row(offer: &Offer, pins: Option<&Pins>) -> Vec<String> {
    let mut name = one_line(&offer.name);
    if let Some(alias) = &offer.alias {
        name.push_str(&format!(" (for models: {alias})"));
    }
    let about = one_line(offer.described.description.lines().next().unwrap_or_default());
    let description = match &offer.tool {
        Ok(_) => about,
        Err(why) => one_line(&why.to_string()),
    };
    vec![name, offer.category.to_string(), state(offer, pins).to_owned(), description]
}

fn facts(offer: &Offer, pins: Option<&Pins>) -> Value {
    json!({
        "name": offer.name,
        "alias": offer.alias,
        "category": offer.category,
        "pin": state(offer, pins),
        "digest": offer.described.digest(),
        "left_out": offer.tool.as_ref().err().map(ToString::to_string),
    })
}

fn state(offer: &Offer, pins: Option<&Pins>) -> &'static str {
    match pins.map(|pins| pins.get(&offer.described.name)) {
        None => "not yet",
        Some(None) => "new",
        Some(Some(pin)) if *pin == offer.described.digest() => "accepted",
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
    let started = start(context, config, server).await?.map_err(CliError::failed)?;
    let pins = started.running.pins();
    for tool in &started.running.described {
        let (name, line) = (one_line(&tool.name), one_line(&tool.description));
        output::note(&format!("{name} ({}): {line}", server.category_of(&tool.name)));
    }
    let count = pins.len();
    started.end(context).await;
    SharedLedger::of(&context.dirs.state)
        .get()
        .await
        .map_err(super::source::of_database)?
        .keep_mcp_pins(name.to_owned(), pins)
        .await
        .map_err(CliError::failed_by)?;
    output::note(&format!("accepted {count} tools of `{name}`"));
    Ok(ExitCode::SUCCESS)
}
