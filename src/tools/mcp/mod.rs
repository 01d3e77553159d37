//! The MCP servers of a run: starts them, lists their tools, compares each tool with its pin (the
//! digest of the accepted tool), and ends the servers with the run.
//!
//! A server is untrusted. The configuration gives each tool its category (MCP-1). The name of each
//! tool begins with the server's name (MCP-2). A tool that differs from its pin is left out
//! (MCP-3). We refuse the server's own requests (MCP-4). Time and size limits apply, and when a
//! server ends, only calls of its tools fail (MCP-5). The official library implements the protocol;
//! `answers.rs` reads what servers send, however it is written (MCP-6).

mod alias;
mod answers;
mod connection;
mod content;
mod error;
mod events;
mod http_client;
mod offer;
mod repair;
mod schema;
mod stdio;
mod tool;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::ToolContext;
use crate::agent::AgentTool;
use crate::config::McpServer;
use crate::domain::Category;
pub use alias::name_for_models;
pub use answers::read_as_answer;
use connection::Connection;
use error::{ListFault, UnreadableTool};
pub use error::{McpError, SchemaError, UnusableServer};
pub use offer::{LeftOut, Offer};

/// The time limit for the handshake, and again for listing the tools.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum number of tools of one server.
const MAX_TOOLS: usize = 500;

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
    /// Why its list may lack tools.
    faults: Vec<ListFault>,
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
            faults: listing.faults,
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
        let (mut tools, mut warnings) = (Vec::new(), self.warnings());
        for offer in self.offers(server, pins, ctx) {
            match offer.tool {
                Ok(tool) => tools.push(tool),
                Err(why) => {
                    let name = crate::text::escape::one_line(&offer.name);
                    let message = format!("the MCP tool `{name}` {why}");
                    warnings.push(McpWarning::new(why.code(), message));
                }
            }
        }
        tools.sort_by(|a, b| a.definition().name.cmp(&b.definition().name));
        (tools, warnings)
    }

    /// Returns the warnings about the list of tools as a whole, and about tools that cannot be
    /// named.
    #[must_use]
    pub fn warnings(&self) -> Vec<McpWarning> {
        let message = |why: &dyn std::fmt::Display| format!("MCP server `{}`: {why}", self.name);
        let unreadable =
            self.unreadable.iter().map(|why| McpWarning::new("mcp_schema", message(why)));
        let faults = self.faults.iter().map(|why| McpWarning::new("mcp_list", message(why)));
        unreadable.chain(faults).collect()
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
