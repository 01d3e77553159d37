//! MCP servers of a run: started, asked for their tools, held to their pins, ended with the run.
//!
//! What a server says is hostile. Its category comes from the configuration (MCP-1); its names are prefixed with the server's (MCP-2); a tool
//! that is not what was pinned is not there (MCP-3); what it asks of us is refused (MCP-4); it has deadlines and sizes, and its end is that of
//! its own calls only (MCP-5). The protocol is the official library's.

mod connection;
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
use tool::McpTool;

/// How long a server may take until its tools are known.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tools of one server.
const MOST_TOOLS: usize = 500;

/// Bytes of a tool's schema.
const SCHEMA_BYTES: usize = 64 * 1024;

/// Characters of a tool's description that a model is shown.
const DESCRIPTION_CHARACTERS: usize = 4000;

/// A tool as a server describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The name without the server's.
    pub name: String,
    /// What it says that it does.
    pub description: String,
    /// What it says that it takes.
    pub schema: Value,
}

impl Described {
    /// Returns what a pin holds: SHA-256 (hex) of name, description and schema.
    #[must_use]
    pub fn digest(&self) -> String {
        let whole = serde_json::json!([self.name, self.description, self.schema]);
        hex::encode(Sha256::digest(whole.to_string()))
    }
}

/// What was accepted of a server's tools: digests by name.
pub type Pins = BTreeMap<String, String>;

/// A server that runs, with its tools.
pub struct RunningServer {
    /// Its name.
    pub name: String,
    /// What it describes.
    pub described: Vec<Described>,
    /// Why each of its other tools cannot be used, in a sentence.
    unreadable: Vec<String>,
    connection: Arc<Connection>,
}

/// Something about a server that the record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpWarning {
    /// The code.
    pub code: &'static str,
    /// A sentence.
    pub message: String,
}

impl McpWarning {
    fn new(code: &'static str, message: String) -> Self {
        Self { code, message }
    }
}

impl RunningServer {
    /// Starts a server and asks for its tools. `rights` is the highest category that the job lists for it.
    ///
    /// *Errors*: why it cannot be used, in a sentence. *Cancel*: dropping the future ends the server.
    pub async fn start(
        server: &McpServer,
        ctx: &ToolContext,
        rights: Category,
        lifetime: Duration,
    ) -> Result<Self, String> {
        let failed = |error| format!("the MCP server `{}` cannot be used: {error}", server.name);
        let connection =
            Connection::connect(server, ctx, rights, lifetime).await.map_err(failed)?;
        let listing = match tokio::time::timeout(PATIENCE, connection.tools(MOST_TOOLS)).await {
            Ok(Ok(listing)) => listing,
            other => {
                connection.end().await;
                let error = other.unwrap_or_else(|_| Err("it does not list its tools".to_owned()));
                return Err(failed(error.err().unwrap_or_default()));
            }
        };
        Ok(Self {
            name: server.name.clone(),
            described: listing.described,
            unreadable: listing.unreadable,
            connection: Arc::new(connection),
        })
    }

    /// Returns the pins of the tools as they are described now.
    #[must_use]
    pub fn pins(&self) -> Pins {
        self.described.iter().map(|tool| (tool.name.clone(), tool.digest())).collect()
    }

    /// Returns its tools as a run has them, and what is wrong with the others. `pins` are those that were accepted before.
    #[must_use]
    pub fn tools(
        &self,
        server: &McpServer,
        pins: Option<&Pins>,
        ctx: &Arc<ToolContext>,
    ) -> (Vec<Arc<dyn AgentTool>>, Vec<McpWarning>) {
        let mut tools: BTreeMap<String, Arc<dyn AgentTool>> = BTreeMap::new();
        let unreadable = |why: &String| {
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
                warn("mcp_name", "has a name that cannot be used; it is left out");
                continue;
            }
            let pinned = pins.map(|pins| pins.get(&described.name));
            match pinned {
                Some(None) => {
                    warn(
                        "mcp_pin",
                        "is new since its server was accepted; it is left out until `dutyd mcp accept` is said",
                    );
                    continue;
                }
                Some(Some(pin)) if *pin != described.digest() => {
                    warn(
                        "mcp_pin",
                        "is not what was accepted; it is left out until `dutyd mcp accept` is said",
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

    /// Ends the server and everything below it; returns what could not be killed.
    pub async fn end(self) -> u64 {
        self.connection.end().await
    }
}

/// Returns a hostile text as a model is shown it.
fn shown(text: &str) -> String {
    let escaped = crate::text::escape::for_model(text);
    escaped.chars().take(DESCRIPTION_CHARACTERS).collect()
}
