//! A connection to an MCP server, and the process behind it.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, ClientRequest,
    Implementation, ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult,
};
use rmcp::service::{NotificationContext, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, serve_client};
use serde_json::{Map, Value};

use super::super::ToolContext;
use super::error::{McpError, UnreadableTool};
use super::lines::{LimitedReader, RefusalReason};
use super::{Described, PATIENCE};
use crate::config::{McpServer, McpTransport};
use crate::domain::Category;
use crate::process::{Piped, PipedEnd, ProcessSpec};

/// Maximum pages of a tool list.
const MAX_PAGES: usize = 100;

/// Maximum bytes of one event of a stream over HTTP. The library limits an answer that is not a
/// stream to 16 MiB. Over HTTP, we cannot limit the number of JSON values, as [`super::lines`]
/// does.
const MESSAGE_BYTES: usize = 8 << 20;

/// Maximum number of images of one answer that we look at.
const MAX_PICTURES: usize = 4;

/// The time limit for establishing a connection.
const CONNECT: Duration = Duration::from_secs(20);

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

/// The answer of a server to a call.
pub(super) struct Answered {
    /// The text, in which `[picture N]` (from 1) replaces each image in `pictures`.
    pub(super) text: String,
    /// The images in base64, as the server sent them.
    pub(super) pictures: Vec<String>,
    /// Whether the server reports a failure.
    pub(super) has_failed: bool,
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
                let transport = http(url, headers)?;
                let served = tokio::time::timeout(PATIENCE, serve_client(Client, transport)).await;
                let served = served.map_err(|_| McpError::HandshakeTimeout)?;
                let service = served.map_err(McpError::failed)?;
                let (process, ending) = (Mutex::new(None), None);
                Ok(Self { service, process, ending, refused: RefusalReason::default() })
            }
            McpTransport::Stdio { program, args, env, sandbox } => {
                let path: PathBuf = program
                    .path
                    .clone()
                    .ok_or_else(|| McpError::ProgramNotFound(program.written.clone()))?;
                // A server runs on this host even if the job's tools run elsewhere.
                let working_dir = match ctx.programs.execution.is_local() {
                    true => ctx.working_dir.as_path(),
                    false => ctx.programs.sandboxes.temporary(),
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
                let (output, refused) = LimitedReader::new(output);
                let served = serve_client(Client, (output, input));
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
                            McpError::failed(error)
                        }
                    },
                    Err(_) => McpError::HandshakeTimeout,
                };
                // Leave no process of a server that cannot be used.
                Err(error.with_end(&process.end().await))
            }
        }
    }

    /// Returns the tools that the server describes.
    ///
    /// *Errors*: [`McpError`]; also if there are more than `most` tools.
    pub(super) async fn tools(&self, most: usize) -> Result<Listing, McpError> {
        let (mut listing, mut cursor) = (Listing::default(), None);
        for _ in 0..MAX_PAGES {
            let mut page = PaginatedRequestParams::default();
            page.cursor = cursor;
            let request = ClientRequest::ListToolsRequest(ListToolsRequest {
                params: Some(page),
                ..ListToolsRequest::default()
            });
            let listed = match self.service.send_request(request).await {
                Ok(listed) => listed,
                Err(error) => return Err(self.error_of(error).await),
            };
            let (tools, next) = read_page(listed)?;
            for tool in tools {
                if listing.described.len() + listing.unreadable.len() == most {
                    return Err(McpError::TooManyTools(most));
                }
                match tool {
                    Ok(tool) => listing.described.push(tool),
                    Err(why) => listing.unreadable.push(why),
                }
            }
            cursor = next;
            if cursor.is_none() {
                return Ok(listing);
            }
        }
        Err(McpError::TooManyPages(MAX_PAGES))
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
        let answer = match self.service.peer().call_tool_once(params).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.error_of(error).await),
        };
        let CallToolResponse::Complete(result) = answer else {
            // We decline the server's own requests (sampling, elicitation): MCP-4.
            return Err(McpError::InputRequested);
        };
        let (mut parts, mut pictures): (Vec<String>, Vec<String>) = Default::default();
        for block in &result.content {
            let value = serde_json::to_value(block).unwrap_or_default();
            let word = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
            let inner =
                |key: &str| value.pointer(&format!("/resource/{key}")).and_then(Value::as_str);
            parts.push(match word("type") {
                "text" => word("text").to_owned(),
                "resource" => match inner("text") {
                    Some(text) => text.to_owned(),
                    None => format!("[resource {}]", inner("uri").unwrap_or_default()),
                },
                "image" if pictures.len() < MAX_PICTURES => {
                    pictures.push(word("data").to_owned());
                    format!("[picture {}]", pictures.len())
                }
                "resource_link" => format!("[resource {}]", word("uri")),
                kind => {
                    format!("[{kind} {}, {} bytes in base64]", word("mimeType"), word("data").len())
                }
            });
        }
        if let (true, Some(structured)) = (parts.is_empty(), &result.structured_content) {
            parts.push(structured.to_string());
        }
        let has_failed = result.is_error == Some(true);
        Ok(Answered { text: parts.join("\n"), pictures, has_failed })
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
    async fn error_of(&self, error: ServiceError) -> McpError {
        if let Some(reason) = self.refused.get() {
            return McpError::Refused(reason);
        }
        let is_broken =
            matches!(error, ServiceError::TransportClosed | ServiceError::TransportSend(_));
        let ended = match &self.ending {
            Some(ending) if is_broken => ending.within(SOON).await,
            _ => None,
        };
        let error = McpError::failed(error);
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
}

/// The tools of a page, and the cursor of the next page.
type Page = (Vec<Result<Described, UnreadableTool>>, Option<String>);

/// Reads the tools of a page one by one, so that an unreadable tool does not hide the others.
fn read_page(listed: ServerResult) -> Result<Page, McpError> {
    let value = match listed {
        ServerResult::ListToolsResult(listed) => {
            let tools = listed.tools.into_iter().map(|tool| {
                Ok(Described {
                    name: tool.name.into_owned(),
                    description: tool.description.unwrap_or_default().into_owned(),
                    schema: Value::Object(tool.input_schema.as_ref().clone()),
                })
            });
            return Ok((tools.collect(), listed.next_cursor));
        }
        // At least one of the tools violates the protocol.
        ServerResult::CustomResult(result) => result.0,
        _ => return Err(McpError::NotAToolList),
    };
    let tools = value.get("tools").and_then(Value::as_array);
    let tools = tools.ok_or(McpError::NoTools)?;
    let next = value.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
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

fn http(
    url: &str,
    headers: &std::collections::BTreeMap<String, String>,
) -> Result<StreamableHttpClientTransport<reqwest::Client>, McpError> {
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .build()
        .map_err(McpError::HttpClient)?;
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.to_owned());
    config.max_sse_event_size = MESSAGE_BYTES;
    for (name, value) in headers {
        let name = http::HeaderName::try_from(name.as_str())
            .map_err(|_| McpError::HeaderName(name.clone()))?;
        let mut value = http::HeaderValue::try_from(value.as_str())
            .map_err(|_| McpError::HeaderValue(name.to_string()))?;
        value.set_sensitive(true);
        config.custom_headers.insert(name, value);
    }
    Ok(StreamableHttpClientTransport::with_client(client, config))
}
