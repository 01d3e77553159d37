//! `dutyd check`: evaluates the preflight checklist of a job.

use std::process::ExitCode;
use std::sync::Arc;

use super::args::CheckArgs;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::source::{self, Source, Wanted};
use crate::config::{Config, Trust};
use crate::run::{CheckItem, CheckReport, check as check_job};
use crate::sinks::Observers;

/// The column in which the details of a checklist begin.
const DETAIL: usize = 32;

pub(crate) async fn check(context: &Context, args: &CheckArgs) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Configuration).await?;
    let report: CheckReport = match &source {
        Source::Daemon(daemon) => {
            let path = format!("/jobs/{}/check", super::run::path_segment(&args.job));
            // No timeout, because the check waits for MCP servers and remote hosts.
            let answer = daemon.client.post_within(&path, &serde_json::json!({}), None).await;
            answer.map_err(|error| daemon.explained(error))?
        }
        Source::Files(_) => of_files(context, &args.job).await?,
    };
    output::value(context.form, &report, || checklist(&report))?;
    source.tell(context.form);
    source.tell_stale();
    Ok(Exit::of_check(report.ok).into())
}

/// Renders the items of a report, one in each line.
pub(super) fn checklist(report: &CheckReport) -> String {
    let line = |item: &CheckItem| {
        let mark = match item.ok {
            Some(true) => "ok  ",
            Some(false) => "FAIL",
            None => "?   ",
        };
        format!("{mark}  {:<24}  {}\n", item.name, item.detail)
    };
    output::hanging(&report.items.iter().map(line).collect::<String>(), DETAIL)
}

async fn of_files(context: &Context, job: &str) -> Result<CheckReport, CliError> {
    let config = context.config_for_reading(Trust::Required)?;
    let job = context.job(&config, job)?.clone();
    super::access::check_state_owner(&context.dirs)?;
    let unread = config.unread.clone();
    // Skip a server whose secret we cannot read: its environment would differ from that of a run.
    let mut readable = Config::clone(&config);
    readable.mcp_servers.retain(|_, server| config.unread_in(server.values()).is_none());
    let host = context.host(Observers::default());
    let checked = check_job(&Arc::new(readable), &job, &host, &context.new_run_id()).await;
    let mut report = checked.map_err(|error| super::access::denied(&context.dirs.state, &error))?;
    let is_left_out = |item: &CheckItem| {
        let of_server = config.mcp_servers.values().any(|server| {
            config.unread_in(server.values()).is_some()
                && item.name.contains(&format!(" {}__", server.name))
        });
        of_server || item.name == "credentials" && !unread.is_empty()
    };
    for item in report.items.iter_mut().filter(|item| is_left_out(item)) {
        item.ok = None;
        "not checked: this process cannot read its secret".clone_into(&mut item.detail);
    }
    report.items.extend(unread.iter().map(|unread| CheckItem {
        name: "secret".to_owned(),
        ok: None,
        detail: unread.message.clone(),
    }));
    Ok(CheckReport::of(report.items))
}
