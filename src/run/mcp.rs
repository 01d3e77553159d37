//! The MCP servers of a run: which are needed, what was accepted of them, and their end.

use std::sync::Arc;
use std::time::Duration;

use super::host::Host;
use crate::agent::AgentTool;
use crate::config::{Autonomy, Config, Job, Listed, MCP_SEPARATOR, McpServer, Mode, ReadPolicy};
use crate::domain::Category;
use crate::store::DbError;
use crate::tools::{McpWarning, RunningServer, ToolContext};

/// What a server may need beyond the run itself.
const SLACK: Duration = Duration::from_secs(60);

/// The servers of a run, at work.
#[derive(Default)]
pub struct Servers {
    running: Vec<RunningServer>,
    /// Their tools.
    pub tools: Vec<Arc<dyn AgentTool>>,
    /// What the record says of them.
    pub warnings: Vec<McpWarning>,
}

impl Servers {
    /// Starts the servers that a job could use a tool of, side by side; one that cannot be used is told and left out.
    pub async fn start(
        config: &Config,
        job: &Job,
        (mode, has_person): (Mode, bool),
        host: &Host,
        ctx: &Arc<ToolContext>,
    ) -> Self {
        let mut servers = Self::default();
        let wanted = config
            .mcp_servers
            .values()
            .filter_map(|server| Some((server, rights(job, mode, has_person, server)?)));
        let starting = wanted.map(|(server, rights)| async move {
            let lifetime = job.limits.max_duration.saturating_add(SLACK);
            (server, RunningServer::start(server, ctx, rights, lifetime).await)
        });
        for (server, started) in futures_util::future::join_all(starting).await {
            match started {
                Ok(running) => servers.take(server, running, host, ctx).await,
                Err(message) => {
                    servers.warnings.push(McpWarning { code: "mcp_unavailable", message });
                }
            }
        }
        servers
    }

    /// Starts one server, whatever a job may use of it.
    pub async fn start_one(
        server: &McpServer,
        rights: Category,
        host: &Host,
        ctx: &Arc<ToolContext>,
    ) -> Self {
        let mut servers = Self::default();
        match RunningServer::start(server, ctx, rights, SLACK + ctx.timeout).await {
            Ok(running) => servers.take(server, running, host, ctx).await,
            Err(message) => {
                servers.warnings.push(McpWarning { code: "mcp_unavailable", message });
            }
        }
        servers
    }

    async fn take(
        &mut self,
        server: &McpServer,
        running: RunningServer,
        host: &Host,
        ctx: &Arc<ToolContext>,
    ) {
        match pins(host, &running).await {
            Ok(pins) => {
                let (tools, warnings) = running.tools(server, Some(&pins), ctx);
                self.tools.extend(tools);
                self.warnings.extend(warnings);
            }
            Err(error) => self.warnings.push(McpWarning {
                code: "mcp_pin",
                message: format!(
                    "what was accepted of the MCP server `{}` cannot be read, so that none of its tools is used: {error}",
                    server.name
                ),
            }),
        }
        self.running.push(running);
    }

    /// Tells whether none runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Ends them; returns what could not be killed.
    pub async fn end(self) -> u64 {
        let ends = self.running.into_iter().map(RunningServer::end);
        futures_util::future::join_all(ends).await.into_iter().sum()
    }
}

/// Returns what was accepted of a server; what is seen for the first time is.
async fn pins(host: &Host, running: &RunningServer) -> Result<crate::tools::Pins, DbError> {
    let ledger = host.ledger.get().await?;
    let name = running.name.clone();
    match ledger.read(move |ledger| ledger.mcp_pins(&name)).await? {
        Some(pins) => Ok(pins),
        None => {
            let pins = running.pins();
            ledger.keep_mcp_pins(running.name.clone(), pins.clone()).await?;
            Ok(pins)
        }
    }
}

/// Returns the job that gives a server the least, and what it gives: a server that starts with that starts in every run.
#[must_use]
pub fn least_rights<'a>(
    config: &'a Config,
    server: &McpServer,
) -> Option<(&'a Arc<Job>, Category)> {
    let jobs = config.jobs.values();
    jobs.filter_map(|job| Some((job, rights(job, job.mode, false, server)?)))
        .min_by_key(|(_, rights)| *rights)
}

/// Returns the highest category that the job lists of a server's tools; `None` if it can use none.
fn rights(job: &Job, mode: Mode, has_person: bool, server: &McpServer) -> Option<Category> {
    let only_reads = mode == Mode::Plan || job.policy.autonomy == Autonomy::ReadOnly;
    let is_of = |name: &str| {
        name.split_once(MCP_SEPARATOR).is_some_and(|(prefix, _)| prefix == server.name)
    };
    let lists = |list: &[Listed]| {
        let mut named = list.iter().map(|entry| entry.tool.as_str());
        named.any(|name| is_of(name) && !job.policy.deny.contains(name))
    };
    let highest = match (lists(&job.policy.admin), lists(&job.policy.write)) {
        (true, _) => Some(Category::Admin),
        // With a person there, what is not listed may be used too.
        (false, true) => Some(Category::Write),
        (false, false) if has_person && !only_reads => Some(Category::Write),
        (false, false) => None,
    };
    if let Some(category) = highest {
        // Where nothing can be changed, nothing needs the right to.
        return Some(if only_reads { Category::Read } else { category });
    }
    let reads = match &job.policy.read {
        ReadPolicy::All => server.may_read(),
        ReadPolicy::Only(names) => names.iter().any(|name| is_of(name)),
    };
    reads.then_some(Category::Read)
}
