//! The MCP servers of a run: starts them, lists their tools, compares each tool with its pin (the
//! digest of the accepted tool), and ends the servers with the run.
//!
//! A server is untrusted. The configuration gives each tool its category (MCP-1). The name of each
//! tool begins with the server's name (MCP-2). A tool that differs from its pin is left out
//! (MCP-3). We refuse the server's own requests (MCP-4). Time and size limits apply, and when a
//! server ends, only calls of its tools fail (MCP-5). The official library implements the protocol.

mod connection;
mod error;
mod lines;
mod schema;
mod tool;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::ToolContext;
use crate::agent::AgentTool;
use crate::config::{MCP_SEPARATOR, McpServer};
use crate::domain::{Category, ToolName};
use connection::Connection;
use error::UnreadableTool;
pub use error::{McpError, UnusableServer};
use tool::McpTool;

/// The time limit for the handshake, and again for listing the tools.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum number of tools of one server.
const MAX_TOOLS: usize = 500;

/// Maximum bytes of a tool's schema.
const SCHEMA_BYTES: usize = 64 * 1024;

/// Maximum characters that a model sees of each text of a server, except the output of a call.
const DESCRIPTION_CHARACTERS: usize = 4000;

/// A tool as a server describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The name without the server's prefix.
    pub name: String,
    /// The server's description of the tool.
    pub description: String,
    /// The JSON Schema of the arguments.
    pub schema: Value,
}

impl Described {
    /// Returns the digest that a pin holds: SHA-256 (hex) of name, description and schema.
    #[must_use]
    pub fn digest(&self) -> String {
        let whole = serde_json::json!([self.name, self.description, self.schema]);
        hex::encode(Sha256::digest(whole.to_string()))
    }
}

/// The digests of a server's tools, by name, as they were when dutyd first used the server or when
/// a person last accepted them.
pub type Pins = BTreeMap<String, String>;

/// A running server and its tools.
pub struct RunningServer {
    /// The name of the server in the configuration.
    pub name: String,
    /// The tools that the server describes.
    pub described: Vec<Described>,
    /// The other tools of its list.
    unreadable: Vec<UnreadableTool>,
    connection: Arc<Connection>,
}

/// A warning about a server, for the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpWarning {
    /// The code of the warning.
    pub code: &'static str,
    /// The warning, as a sentence.
    pub message: String,
}

impl McpWarning {
    /// Returns the warning about a server that a run cannot use.
    #[must_use]
    pub fn unavailable(error: &UnusableServer) -> Self {
        Self::new("mcp_unavailable", error.to_string())
    }

    fn new(code: &'static str, message: String) -> Self {
        Self { code, message }
    }
}

impl RunningServer {
    /// Starts a server and lists its tools. The sandbox gives a server process the rights of a tool
    /// of the category `rights`. A server process ends after `lifetime` at the latest.
    ///
    /// *Errors*: [`UnusableServer`]. *Cancel*: dropping the future ends the server.
    pub async fn start(
        server: &McpServer,
        ctx: &ToolContext,
        rights: Category,
        lifetime: Duration,
    ) -> Result<Self, UnusableServer> {
        let failed = |error| UnusableServer { server: server.name.clone(), error };
        let connection =
            Connection::connect(server, ctx, rights, lifetime).await.map_err(failed)?;
        let listing = match tokio::time::timeout(PATIENCE, connection.tools(MAX_TOOLS)).await {
            Ok(Ok(listing)) => listing,
            Ok(Err(error)) => {
                connection.end().await;
                return Err(failed(error));
            }
            Err(_) => {
                connection.end().await;
                return Err(failed(McpError::ListTimeout));
            }
        };
        Ok(Self {
            name: server.name.clone(),
            described: listing.described,
            unreadable: listing.unreadable,
            connection: Arc::new(connection),
        })
    }

    /// Returns pins for the tools as the server describes them now.
    #[must_use]
    pub fn pins(&self) -> Pins {
        self.described.iter().map(|tool| (tool.name.clone(), tool.digest())).collect()
    }

    /// Returns the tools that a run can use, and warnings about the others. With `pins`, leaves out
    /// each tool that differs from its pin or has none; `None` accepts all tools.
    #[must_use]
    pub fn tools(
        &self,
        server: &McpServer,
        pins: Option<&Pins>,
        ctx: &Arc<ToolContext>,
    ) -> (Vec<Arc<dyn AgentTool>>, Vec<McpWarning>) {
        let mut tools: BTreeMap<String, Arc<dyn AgentTool>> = BTreeMap::new();
        let unreadable = |why: &UnreadableTool| {
            McpWarning::new("mcp_schema", format!("MCP server `{}`: {why}", self.name))
        };
        let mut warnings: Vec<McpWarning> = self.unreadable.iter().map(unreadable).collect();
        for described in &self.described {
            let name = format!("{}{MCP_SEPARATOR}{}", self.name, described.name);
            let shown = crate::text::escape::one_line(&name);
            let mut warn = |code, what: &str| {
                warnings.push(McpWarning::new(code, format!("the MCP tool `{shown}` {what}")));
            };
            if ToolName::parse(&name).is_err() {
                warn("mcp_name", "has an invalid name; it is left out");
                continue;
            }
            let pinned = pins.map(|pins| pins.get(&described.name));
            match pinned {
                Some(None) => {
                    warn(
                        "mcp_pin",
                        "is not among the accepted tools of its server; it is left out until you run `dutyd mcp accept`",
                    );
                    continue;
                }
                Some(Some(pin)) if *pin != described.digest() => {
                    warn(
                        "mcp_pin",
                        "is not what was accepted; it is left out until you run `dutyd mcp accept`",
                    );
                    continue;
                }
                Some(Some(_)) | None => {}
            }
            if described.schema.to_string().len() > SCHEMA_BYTES {
                warn("mcp_schema", "has a schema that is too large; it is left out");
                continue;
            }
            let category = server.category_of(&described.name);
            match McpTool::new(
                server,
                &name,
                described,
                category,
                self.connection.clone(),
                ctx.clone(),
            ) {
                Err(error) => warn("mcp_schema", &format!("is left out: {error}")),
                Ok(_) if tools.contains_key(&name) => {
                    warn("mcp_name", "is a duplicate; the second tool is left out")
                }
                Ok(tool) => drop(tools.insert(name.clone(), Arc::new(tool))),
            }
        }
        (tools.into_values().collect(), warnings)
    }

    /// Ends the server and its whole process tree, and returns the number of processes that could
    /// not be killed.
    pub async fn end(self) -> u64 {
        self.connection.end().await
    }
}

/// Returns an untrusted text as a model sees it: escaped, and cut to [`DESCRIPTION_CHARACTERS`].
fn shown(text: &str) -> String {
    let escaped = crate::text::escape::for_model(text);
    escaped.chars().take(DESCRIPTION_CHARACTERS).collect()
}
