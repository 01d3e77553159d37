//! Evaluates the checklist of a job without a run: starts the MCP servers and the connection that a
//! run would start, checks them, and ends them.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::host::Host;
use super::mcp::Servers;
use super::preflight::{connect, preflight};
use super::tool_context::{Links, tool_context, toolbox};
use crate::config::{Config, Job};
use crate::domain::{PreflightItem, RunId};
use crate::process::{HostWork, HostWorkError};
use crate::text::redact::Redactor;

/// An item of a checklist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckItem {
    /// The name of the check.
    pub name: String,
    /// Whether the check passed; null if the checking process cannot tell.
    pub ok: Option<bool>,
    /// What the check found.
    pub detail: String,
}

impl From<PreflightItem> for CheckItem {
    fn from(item: PreflightItem) -> Self {
        Self { name: item.name, ok: Some(item.ok), detail: item.detail }
    }
}

/// The report of `check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Whether no item failed.
    pub ok: bool,
    pub items: Vec<CheckItem>,
}

impl CheckReport {
    /// Returns the report on `items`.
    #[must_use]
    pub fn of(items: Vec<CheckItem>) -> Self {
        Self { ok: items.iter().all(|item| item.ok != Some(false)), items }
    }
}

/// Returns the item for a file system that gives no answer.
pub(super) fn no_answer_item(error: &HostWorkError) -> PreflightItem {
    PreflightItem { name: "files".to_owned(), ok: false, detail: error.to_string() }
}

/// Evaluates the checklist of a job. `run_id` names the temporary directory of the check.
///
/// *Errors*: the state directory cannot be used.
pub async fn check(
    config: &Arc<Config>,
    job: &Arc<Job>,
    host: &Host,
    run_id: &RunId,
) -> io::Result<CheckReport> {
    host.state.create()?;
    let redactor = Redactor::new(&config.secrets);
    let work = HostWork::of(job.name.as_str());
    let (of_config, of_job, of_host, id) =
        (config.clone(), job.clone(), host.clone(), run_id.clone());
    let built = work.run(move || {
        tool_context(&of_config, &of_job, &of_host, &id, None, redactor, Links::Resolved)
    });
    let ctx = match built.await {
        Ok(ctx) => ctx?,
        Err(error) => return Ok(CheckReport::of(vec![no_answer_item(&error).into()])),
    };
    let mut servers = Servers::start(config, job, job.mode, false, host, &ctx).await;
    let of_servers = std::mem::take(&mut servers.tools);
    let toolbox = Arc::new(toolbox(config, job, &ctx, of_servers, false));
    let (connection, found) = connect(config, job, &ctx, &toolbox).await;
    let (of_config, of_job, of_ctx, tools) =
        (config.clone(), job.clone(), ctx.clone(), toolbox.clone());
    let items = work.run(move || preflight(&of_config, &of_job, &of_ctx, &tools)).await;
    let mut items = items.unwrap_or_else(|error| vec![no_answer_item(&error)]);
    items.extend(found);
    items.extend(servers.warnings.iter().map(|warning| PreflightItem {
        name: warning.code.to_owned(),
        ok: false,
        detail: warning.message.clone(),
    }));
    drop(toolbox);
    servers.end().await;
    if let Some(connection) = connection {
        connection.end().await;
    }
    if let Err(error) = host.state.remove_temporary(run_id).await {
        tracing::warn!(%run_id, %error, "failed to remove the temporary directory of a check");
    }
    Ok(CheckReport::of(items.into_iter().map(CheckItem::from).collect()))
}
