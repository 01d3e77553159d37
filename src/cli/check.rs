//! `dutyd check`

use std::process::ExitCode;

use serde_json::json;

use super::args::CheckArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::config::Trust;
use crate::run::{Servers, connect, preflight, tool_surroundings, toolbox};
use crate::sinks::Observers;
use crate::text::redact::Redactor;

pub(crate) async fn check(context: &Context, args: &CheckArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Required)?;
    let job = context.job(&config, &args.job)?.clone();
    super::run::own_state(context)?;
    let host = context.host(Observers::default());
    let failed = |error: std::io::Error| {
        CliError::failed(format!("{} cannot be used: {error}", context.dirs.state.display()))
    };
    host.state.create().map_err(failed)?;
    let run_id = context.new_run_id();
    let redactor = Redactor::new(&config.secrets);
    let around =
        tool_surroundings(&config, &job, &host, &run_id, None, redactor).map_err(failed)?;
    let mut servers = Servers::start(&config, &job, (job.mode, false), &host, &around).await;
    let of_servers = std::mem::take(&mut servers.tools);
    let toolbox = toolbox(&config, &job, &around, of_servers, false);
    let (connection, found) = connect(&config, &job, &around, &toolbox).await;
    let mut items = preflight(&config, &job, &around, &toolbox);
    items.extend(found);
    for warning in &servers.warnings {
        items.push(crate::domain::PreflightItem {
            name: warning.code.to_owned(),
            ok: false,
            detail: warning.message.clone(),
        });
    }
    drop(toolbox);
    servers.end().await;
    if let Some(connection) = connection {
        connection.end().await;
    }
    if let Err(error) = host.state.remove_temporary(&run_id) {
        output::note(&format!("the temporary directory of this check stays: {error}"));
    }
    let ok = items.iter().all(|item| item.ok);
    output::value(context.form, &json!({"ok": ok, "items": items}), || {
        let lines = items.iter().map(|item| {
            let mark = if item.ok { "ok  " } else { "FAIL" };
            format!("{mark}  {:<24}  {}\n", item.name, item.detail)
        });
        lines.collect()
    })?;
    Ok(ExitCode::from(u8::from(!ok)))
}
