//! A connection to an MCP server, and the process behind it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, ClientRequest,
    Implementation, ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult,
};
use rmcp::service::{NotificationContext, RunningService, ServiceError};
use rmcp::{ClientHandler, RoleClient, serve_client};
use serde_json::{Map, Value};

use super::super::ToolContext;
use super::answers::carried;
use super::content::{self, Answered};
use super::error::{ListFault, McpError, UnreadableTool};
use super::stdio::{RefusalReason, StdioTransport};
use super::{Described, PATIENCE, http_client};
use crate::config::{McpServer, McpTransport};
use crate::domain::Category;
use crate::process::{Piped, PipedEnd, ProcessSpec};

/// Maximum pages of a tool list.
const MAX_PAGES: usize = 100;

/// The time that a server has to exit after its connection broke, so that we can report how it
/// exited.
const SOON: Duration = Duration::from_secs(1);

/// A client without capabilities: it refuses sampling, elicitation and roots (MCP-4).
#[derive(Debug, Clone, Copy)]
struct Client;

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let mut implementation = Implementation::from_build_env();
        implementation.name = "dutyd".to_owned();
        implementation.version = env!("CARGO_PKG_VERSION").to_owned();
        let mut config = ClientConfig::new(ClientCapabilities::default(), implementation);
        // This is the newest protocol version that current servers speak. If a server offers
        // another version, we follow the server.
        config.protocol_version = ProtocolVersion::V_2025_11_25;
        config
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        // A run keeps the tools that it began with.
    }
}

pub(super) struct Connection {
    service: RunningService<RoleClient, Client>,
    process: Mutex<Option<Piped>>,
    ending: Option<PipedEnd>,
    refused: RefusalReason,
}

impl Connection {
    /// Starts the server, or connects to it, and performs the handshake.
    ///
    /// *Errors*: [`McpError`]. After an error, the server's process has ended.
    pub(super) async fn connect(
        server: &McpServer,
        ctx: &ToolContext,
        rights: Category,
        lifetime: Duration,
    ) -> Result<Self, McpError> {
        match &server.transport {
            McpTransport::Http { .. } if ctx.access.domains.is_offline => Err(McpError::Offline),
            McpTransport::Http { url, headers } => {
                let transport = http_client::transport(url, headers)?;
                let served = tokio::time::timeout(PATIENCE, serve_client(Client, transport)).await;
                let served = served.map_err(|_| McpError::HandshakeTimeout)?;
                let service = served.map_err(|error| McpError::of_handshake(&error))?;
                let (process, ending) = (Mutex::new(None), None);
                Ok(Self { service, process, ending, refused: RefusalReason::default() })
            }
            McpTransport::Stdio { program, args, env, sandbox } => {
                let path: PathBuf = program
                    .path
                    .clone()
                    .ok_or_else(|| McpError::ProgramNotFound(program.written.clone()))?;
                // A server runs on this host even if the job's tools run elsewhere.
                let working_dir = if ctx.programs.execution.is_local() {
                    ctx.working_dir.as_path()
                } else {
                    ctx.programs.sandboxes.temporary()
                };
                let sandbox = ctx
                    .programs
                    .sandboxes
                    .of(rights, sandbox, working_dir)
                    .map_err(McpError::Sandbox)?;
                let mut all = ctx.programs.env.clone();
                all.extend(env.iter().map(|(name, value)| (name.clone(), value.clone())));
                let argv = std::iter::once(path.display().to_string());
                let spec = ProcessSpec {
                    argv: argv.chain(args.iter().cloned()).collect(),
                    program: path,
                    env: all,
                    working_dir: working_dir.to_path_buf(),
                    stdin: None,
                    timeout: lifetime,
                    sandbox,
                };
                let started = ctx.programs.spawner.start_piped(&spec, &ctx.redactor).await;
                let (process, output, input) = started?;
                let ending = process.ending();
                let (transport, refused) = StdioTransport::new(output, input);
                let served = serve_client(Client, transport);
                let error = match tokio::time::timeout(PATIENCE, served).await {
                    Ok(Ok(service)) => {
                        let process = Mutex::new(Some(process));
                        return Ok(Self { service, process, ending: Some(ending), refused });
                    }
                    Ok(Err(error)) => match refused.get() {
                        Some(reason) => McpError::Refused(reason),
                        None => {
                            // Let the server exit by itself first, so that we can report how it
                            // exited.
                            ending.within(SOON).await;
                            McpError::of_handshake(&error)
                        }
                    },
                    Err(_) => McpError::HandshakeTimeout,
                };
                // Leave no process of a server that cannot be used.
                Err(error.with_end(&process.end().await))
            }
        }
    }

    /// Returns the tools that the server describes. If a page after the first cannot be read, the
    /// list ends before it.
    ///
    /// *Errors*: [`McpError`]; also if there are more than `most` tools.
    pub(super) async fn tools(&self, most: usize) -> Result<Listing, McpError> {
        let mut listing = Listing::default();
        let (mut cursor, mut seen) = (None, BTreeSet::new());
        for page in 0..MAX_PAGES {
            let next = match self.page(cursor.take()).await {
                Ok((tools, next)) => {
                    listing.add(tools, most)?;
                    next
                }
                Err(error) if page == 0 => return Err(error),
                Err(error) => {
                    listing.faults.push(ListFault::Page(error));
                    return Ok(listing);
                }
            };
            match next {
                Next::End => return Ok(listing),
                Next::Fault(fault) => {
                    listing.faults.push(fault);
                    return Ok(listing);
                }
                Next::Page(next) if !seen.insert(next.clone()) => {
                    listing.faults.push(ListFault::Repeated(next));
                    return Ok(listing);
                }
                Next::Page(next) => cursor = Some(next),
            }
        }
        listing.faults.push(ListFault::Pages(MAX_PAGES));
        Ok(listing)
    }

    async fn page(&self, cursor: Option<String>) -> Result<Page, McpError> {
        let mut page = PaginatedRequestParams::default();
        page.cursor = cursor;
        let request = ClientRequest::ListToolsRequest(ListToolsRequest {
            params: Some(page),
            ..ListToolsRequest::default()
        });
        match self.service.send_request(request).await {
            Ok(ServerResult::CallToolResult(carrier)) => read_page(&carried(carrier)),
            Ok(_) => Err(McpError::NotAToolList),
            Err(error) => Err(self.error_of(&error).await),
        }
    }

    /// Calls a tool of the server.
    ///
    /// *Errors*: [`McpError`]. *Cancel*: dropping the future notifies the server.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Answered, McpError> {
        let mut params = CallToolRequestParams::new(name.to_owned());
        params.arguments = Some(arguments);
        match self.service.peer().call_tool_once(params).await {
            Ok(CallToolResponse::Complete(carrier)) => content::read(&carried(carrier)),
            // We decline the server's own requests (sampling, elicitation): MCP-4.
            Ok(_) => Err(McpError::InputRequested),
            Err(error) => Err(self.error_of(&error).await),
        }
    }

    /// Closes the connection and ends the server's process, if we started one. Returns the number
    /// of processes that could not be killed.
    pub(super) async fn end(&self) -> u64 {
        self.service.cancellation_token().cancel();
        let process = self.process.lock().ok().and_then(|mut process| process.take());
        match process {
            Some(process) => process.end().await.survivors,
            None => 0,
        }
    }

    /// Returns the error for a request that failed, with the exit of the server if that is the
    /// cause.
    async fn error_of(&self, error: &ServiceError) -> McpError {
        if let Some(reason) = self.refused.get() {
            return McpError::Refused(reason);
        }
        let is_broken =
            matches!(error, ServiceError::TransportClosed | ServiceError::TransportSend(_));
        let ended = match &self.ending {
            Some(ending) if is_broken => ending.within(SOON).await,
            _ => None,
        };
        let error = McpError::of_request(error);
        match ended {
            Some(ended) => error.with_end(&ended),
            None => error,
        }
    }
}

/// The tools of a server, in the order of its list.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) described: Vec<Described>,
    /// The other tools.
    pub(super) unreadable: Vec<UnreadableTool>,
    /// Why the list may lack tools.
    pub(super) faults: Vec<ListFault>,
}

impl Listing {
    /// Adds the tools of a page. A page that repeats a tool does not list it twice.
    fn add(
        &mut self,
        tools: Vec<Result<Described, UnreadableTool>>,
        most: usize,
    ) -> Result<(), McpError> {
        for tool in tools {
            if tool.as_ref().is_ok_and(|tool| self.described.contains(tool)) {
                continue;
            }
            if self.described.len() + self.unreadable.len() == most {
                return Err(McpError::TooManyTools(most));
            }
            match tool {
                Ok(tool) => self.described.push(tool),
                Err(why) => self.unreadable.push(why),
            }
        }
        Ok(())
    }
}

/// The tools of a page, and what comes after it.
type Page = (Vec<Result<Described, UnreadableTool>>, Next);

enum Next {
    End,
    /// The page with this cursor.
    Page(String),
    /// There should be another page, but it cannot be asked for.
    Fault(ListFault),
}

/// Reads the tools of a page one by one, so that an unreadable tool does not hide the others.
fn read_page(listed: &Value) -> Result<Page, McpError> {
    let tools = match listed.get("tools") {
        Some(Value::Array(tools)) => tools.as_slice(),
        // Some servers write an empty list as null.
        Some(Value::Null) => &[],
        Some(_) | None => return Err(McpError::NoTools),
    };
    let next = match listed.get("nextCursor") {
        None | Some(Value::Null) => Next::End,
        Some(Value::String(cursor)) if cursor.is_empty() => Next::Fault(ListFault::EmptyCursor),
        Some(Value::String(cursor)) => Next::Page(cursor.clone()),
        Some(_) => Next::Fault(ListFault::NoText),
    };
    Ok((tools.iter().map(read_tool).collect(), next))
}

fn read_tool(tool: &Value) -> Result<Described, UnreadableTool> {
    let word = |key: &str| tool.get(key).and_then(Value::as_str);
    let name = word("name").ok_or(UnreadableTool::NoName)?;
    let schema = tool
        .get("inputSchema")
        .filter(|schema| schema.is_object())
        .ok_or_else(|| UnreadableTool::NoSchema(crate::text::escape::one_line(name)))?;
    Ok(Described {
        name: name.to_owned(),
        description: word("description").unwrap_or_default().to_owned(),
        schema: schema.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_tools_is_no_fault() {
        let page = |listed: Value| read_page(&listed).map(|(tools, _)| tools.len());
        assert!(matches!(page(serde_json::json!({"tools": null})), Ok(0)));
        assert!(matches!(page(serde_json::json!({})), Err(McpError::NoTools)));
    }
}
