//! A tool as a verb names it: built-in or declared.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::CliError;
use crate::call::{ArgumentConditions, Parameters};
use crate::config::{Builtin, Config, MCP_SEPARATOR, McpServer, Tool};
use crate::domain::{CallError, Category, ToolName};
use crate::gate::{Decision, Facts, GateRules, Spent, decide};
use crate::text::near::nearest;
use crate::tools::{JudgedCall, declared_touches, prepare_builtin};

/// A tool as a verb names it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KnownTool<'a> {
    Declared(&'a Arc<Tool>),
    Builtin(&'static Builtin),
    /// Known only by its name, until its server runs.
    Mcp {
        name: &'a str,
        server: &'a Arc<McpServer>,
        category: Category,
    },
}

impl<'a> KnownTool<'a> {
    /// Returns every tool of a configuration and those of `of_servers` (server, whole name), by name.
    pub(crate) fn all(config: &'a Config, of_servers: &'a [(Arc<McpServer>, String)]) -> Vec<Self> {
        let builtins = Builtin::all().filter(|tool| !config.tools.contains_key(tool.name));
        let declared = config.tools.values().map(Self::Declared);
        let of_servers = of_servers.iter().map(|(server, name)| {
            let tool = name.split_once(MCP_SEPARATOR).map_or("", |(_, tool)| tool);
            Self::Mcp { name, server, category: server.category_of(tool) }
        });
        let mut all: Vec<Self> =
            declared.chain(builtins.map(Self::Builtin)).chain(of_servers).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Returns the tool of exactly this name.
    ///
    /// *Errors*: there is none; with a near name.
    pub(crate) fn find(config: &'a Config, name: &'a str) -> Result<Self, CliError> {
        let builtin = || Builtin::find(name).map(Self::Builtin);
        let of_server = || {
            let (server, tool) = name.split_once(MCP_SEPARATOR)?;
            let server = config.mcp_servers.get(server)?;
            Some(Self::Mcp { name, server, category: server.category_of(tool) })
        };
        config.tools.get(name).map(Self::Declared).or_else(builtin).or_else(of_server).ok_or_else(
            || {
                let error = CliError::not_found(format!("there is no tool `{name}`"));
                let known = config.tools.keys().map(ToolName::as_str);
                match nearest(name, known.chain(Builtin::all().map(|tool| tool.name))) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error,
                }
            },
        )
    }

    pub(crate) fn name(&self) -> &'a str {
        match self {
            Self::Declared(tool) => tool.name.as_str(),
            Self::Builtin(tool) => tool.name,
            Self::Mcp { name, .. } => name,
        }
    }

    pub(crate) fn category(&self) -> Category {
        match self {
            Self::Declared(tool) => tool.category,
            Self::Builtin(tool) => tool.category,
            Self::Mcp { category, .. } => *category,
        }
    }

    pub(crate) fn description(&self) -> &'a str {
        match self {
            Self::Declared(tool) => &tool.description,
            Self::Builtin(tool) => &tool.description,
            Self::Mcp { .. } => "what its server says of it, `dutyd mcp` shows",
        }
    }

    /// Returns what it takes, as far as that is known.
    pub(crate) fn parameters(&self) -> Option<&'a Parameters> {
        match self {
            Self::Declared(tool) => Some(tool.command.parameters()),
            Self::Builtin(tool) => Some(&tool.parameters),
            Self::Mcp { .. } => None,
        }
    }

    pub(crate) fn source(&self) -> String {
        match self {
            Self::Declared(_) => "declared".to_owned(),
            Self::Builtin(_) => "builtin".to_owned(),
            Self::Mcp { server, .. } => format!("mcp:{}", server.name),
        }
    }

    fn destructive_when(&self) -> &'a [ArgumentConditions] {
        match self {
            Self::Declared(tool) => &tool.destructive_when,
            Self::Builtin(_) | Self::Mcp { .. } => &[],
        }
    }

    /// Returns a call as it is judged.
    ///
    /// *Errors*: `invalid_arguments`.
    pub(crate) fn prepare(&self, arguments: &Map<String, Value>) -> Result<JudgedCall, CallError> {
        match self {
            Self::Declared(tool) => {
                let arguments = tool.command.validate(arguments)?;
                tool.command.render(&arguments)?;
                let touches = declared_touches(tool, &arguments)?;
                Ok(JudgedCall { arguments, touches, lines: 0 })
            }
            Self::Builtin(tool) => prepare_builtin(tool.name, arguments),
            Self::Mcp { .. } => {
                Ok(JudgedCall { arguments: arguments.clone(), ..JudgedCall::default() })
            }
        }
    }

    /// Returns what the gate says of the first call of a run.
    pub(crate) fn decide(&self, rules: &GateRules, call: &JudgedCall) -> Decision {
        let facts = Facts {
            tool: self.name(),
            category: self.category(),
            destructive_when: self.destructive_when(),
            touches: &call.touches,
            lines: call.lines,
            spent: &Spent::default(),
        };
        decide(rules, facts, &call.arguments)
    }
}
