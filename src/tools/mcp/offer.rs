//! Which tools of a server a run can use, under which names, and why not the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::ToolContext;
use super::alias::name_for_models;
use super::error::SchemaError;
use super::tool::McpTool;
use super::{Described, Pins, RunningServer};
use crate::agent::AgentTool;
use crate::config::{MCP_SEPARATOR, McpServer};
use crate::domain::{Category, ToolName};

/// Maximum bytes of a tool's schema.
const SCHEMA_BYTES: usize = 64 * 1024;

/// A tool of a server, and whether a run can use it.
pub struct Offer {
    /// The name with the prefix of the server, as in policies and transcripts.
    pub name: String,
    /// The name under which models see it, if that is another.
    pub alias: Option<String>,
    /// Its category, according to the configuration.
    pub category: Category,
    /// The description by the server.
    pub described: Described,
    /// The tool, or why a run leaves it out.
    pub tool: Result<Arc<dyn AgentTool>, LeftOut>,
}

/// Why a run leaves out a tool. The text continues a sentence that begins with the tool.
#[derive(Debug, thiserror::Error)]
pub enum LeftOut {
    #[error("has an invalid name; it is left out")]
    Name,
    #[error(
        "is not among the accepted tools of its server; it is left out until you run `dutyd mcp accept`"
    )]
    New,
    #[error("is not what was accepted; it is left out until you run `dutyd mcp accept`")]
    Changed,
    #[error("has a schema that is too large; it is left out")]
    TooLarge,
    #[error("is left out: {0}")]
    Schema(#[from] SchemaError),
    #[error("is a duplicate; the second tool is left out")]
    Duplicate,
    /// Contains the alias.
    #[error("is left out: models would see it as `{0}`, which is the name of another tool")]
    Alias(String),
}

impl LeftOut {
    /// Returns the code of the warning.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name | Self::Duplicate | Self::Alias(_) => "mcp_name",
            Self::New | Self::Changed => "mcp_pin",
            Self::TooLarge | Self::Schema(_) => "mcp_schema",
        }
    }
}

impl RunningServer {
    /// Returns each tool that the server describes, and whether a run can use it. With `pins`,
    /// leaves out each tool that differs from its pin or has none; `None` accepts all tools.
    #[must_use]
    pub fn offers(
        &self,
        server: &McpServer,
        pins: Option<&Pins>,
        ctx: &Arc<ToolContext>,
    ) -> Vec<Offer> {
        let full =
            |described: &Described| format!("{}{MCP_SEPARATOR}{}", self.name, described.name);
        let own: BTreeSet<String> = self.described.iter().map(full).collect();
        let mut taken = BTreeSet::new();
        let offer = |described: &Described| {
            let name = full(described);
            let shown = name_for_models(&name).into_owned();
            let alias = (shown != name).then(|| shown.clone());
            let tool = match self.usable(described, &name, server, pins, ctx) {
                Ok(_) if alias.is_some() && own.contains(&shown) => Err(LeftOut::Alias(shown)),
                Ok(_) if taken.contains(&name) => Err(LeftOut::Duplicate),
                Ok(_) if taken.contains(&shown) => Err(LeftOut::Alias(shown)),
                Ok(tool) => {
                    taken.extend([name.clone(), shown]);
                    Ok(tool)
                }
                Err(why) => Err(why),
            };
            let category = server.category_of(&described.name);
            Offer { name, alias, category, described: described.clone(), tool }
        };
        self.described.iter().map(offer).collect()
    }

    fn usable(
        &self,
        described: &Described,
        name: &str,
        server: &McpServer,
        pins: Option<&Pins>,
        ctx: &Arc<ToolContext>,
    ) -> Result<Arc<dyn AgentTool>, LeftOut> {
        if ToolName::parse(name).is_err() {
            return Err(LeftOut::Name);
        }
        match pins.map(|pins| pins.get(&described.name)) {
            Some(None) => return Err(LeftOut::New),
            Some(Some(pin)) if *pin != described.digest() => return Err(LeftOut::Changed),
            Some(Some(_)) | None => {}
        }
        if described.schema.to_string().len() > SCHEMA_BYTES {
            return Err(LeftOut::TooLarge);
        }
        let category = server.category_of(&described.name);
        let connection = self.connection.clone();
        let tool = McpTool::new(server, name, described, category, connection, ctx.clone())?;
        Ok(Arc::new(tool))
    }
}
