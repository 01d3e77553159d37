//! The MCP servers of a run: starts those whose tools the job may use, checks each tool against its
//! pin (the accepted digest of the tool), and ends the servers.

use std::sync::Arc;
use std::time::Duration;

use super::host::Host;
use crate::agent::AgentTool;
use crate::config::{Autonomy, Config, Job, Listed, MCP_SEPARATOR, McpServer, Mode, ReadPolicy};
use crate::domain::Category;
use crate::store::DbError;
use crate::tools::{McpWarning, RunningServer, ToolContext};

/// Time that a server may run beyond the time limit of the run or call that it serves.
const SLACK: Duration = Duration::from_secs(60);

/// The running servers of a run.
#[derive(Default)]
pub struct Servers {
    running: Vec<RunningServer>,
    /// Their accepted tools.
    pub tools: Vec<Arc<dyn AgentTool>>,
    /// The warnings about them, for the transcript.
    pub warnings: Vec<McpWarning>,
    /// The fields of `mcp_server_ready`, one entry per server that was to start.
    pub(super) ready: Vec<ServerReady>,
}

/// The fields of `mcp_server_ready`: a server that started, or the reason why it cannot be used.
pub(super) struct ServerReady {
    pub(super) server: String,
    /// The names of its accepted tools.
    pub(super) tools: Vec<String>,
    /// Why it cannot be used.
    pub(super) error: Option<String>,
}

/// Returns the servers whose tools the job may use, with the rights that each gets.
pub(super) fn usable_servers<'a>(
    config: &'a Config,
    job: &Job,
    mode: Mode,
    has_person: bool,
) -> Vec<(&'a McpServer, Category)> {
    let servers = config.mcp_servers.values();
    servers
        .filter_map(|server| Some((server.as_ref(), rights(job, mode, has_person, server)?)))
        .collect()
}

impl Servers {
    /// Starts, in parallel, the servers whose tools the job may use. A server that cannot be used
    /// is left out, with a warning.
    pub async fn start(
        config: &Config,
        job: &Job,
        mode: Mode,
        has_person: bool,
        host: &Host,
        ctx: &Arc<ToolContext>,
    ) -> Self {
        let mut servers = Self::default();
        let usable_servers = usable_servers(config, job, mode, has_person).into_iter();
        let starting = usable_servers.map(|(server, rights)| async move {
            let lifetime = job.limits.max_duration.saturating_add(SLACK);
            (server, RunningServer::start(server, ctx, rights, lifetime).await)
        });
        for (server, started) in futures_util::future::join_all(starting).await {
            match started {
                Ok(running) => servers.take(server, running, host, ctx).await,
                Err(error) => {
                    servers.ready.push(ServerReady {
                        server: server.name.clone(),
                        tools: Vec::new(),
                        error: Some(error.to_string()),
                    });
                    servers.warnings.push(McpWarning::unavailable(&error));
                }
            }
        }
        servers
    }

    /// Starts one server with `rights`, whether or not a job may use it.
    pub async fn start_one(
        server: &McpServer,
        rights: Category,
        host: &Host,
        ctx: &Arc<ToolContext>,
    ) -> Self {
        let mut servers = Self::default();
        match RunningServer::start(server, ctx, rights, SLACK + ctx.timeout).await {
            Ok(running) => servers.take(server, running, host, ctx).await,
            Err(error) => servers.warnings.push(McpWarning::unavailable(&error)),
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
        let name = server.name.clone();
        match pins(host, &running).await {
            Ok(pins) => {
                let (tools, warnings) = running.tools(server, Some(&pins), ctx);
                let names = tools.iter().map(|tool| tool.definition().name.clone()).collect();
                self.ready.push(ServerReady { server: name, tools: names, error: None });
                self.tools.extend(tools);
                self.warnings.extend(warnings);
            }
            Err(error) => {
                let message = format!(
                    "cannot read the pins of the MCP server `{name}`, so its tools are not offered: {error}"
                );
                let error = Some(message.clone());
                self.ready.push(ServerReady { server: name, tools: Vec::new(), error });
                self.warnings.push(McpWarning { code: "mcp_pin", message });
            }
        }
        self.running.push(running);
    }

    /// Tells whether no server is running.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Ends the servers; returns the number of processes that could not be killed.
    pub async fn end(self) -> u64 {
        let ends = self.running.into_iter().map(RunningServer::end);
        futures_util::future::join_all(ends).await.into_iter().sum()
    }
}

/// Returns the accepted pins of a server. At first contact, accepts what the server offers.
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

/// Returns the job that gives a server the lowest rights, with those rights; `None` if no job may
/// use the server. A server that can start with these rights can start in the runs of every job
/// that uses it.
#[must_use]
pub fn least_rights<'a>(
    config: &'a Config,
    server: &McpServer,
) -> Option<(&'a Arc<Job>, Category)> {
    let jobs = config.jobs.values();
    jobs.filter_map(|job| Some((job, rights(job, job.mode, false, server)?)))
        .min_by_key(|(_, rights)| *rights)
}

/// Returns the highest category that the job may use on a server; `None` if it may not use any tool
/// of the server.
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
        (false, true) => Some(Category::Write),
        // With an attached person, a run may also use tools that are not listed: write tools at
        // once, admin tools if the person approves.
        (false, false) if has_person && !only_reads => Some(Category::Write),
        (false, false) => None,
    };
    if let Some(category) = highest {
        // A run that cannot change anything needs no right to change anything.
        return Some(if only_reads { Category::Read } else { category });
    }
    let reads = match &job.policy.read {
        ReadPolicy::All => server.may_read(),
        ReadPolicy::Only(names) => names.iter().any(|name| is_of(name)),
    };
    reads.then_some(Category::Read)
}
