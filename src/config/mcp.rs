//! What an entry of `mcp_servers` means.

use std::collections::BTreeMap;

use super::environment::{RELATIVE_PATH, is_absolute_search_path};
use super::raw::RawMcpServer;
use super::settings::is_hijacking;
use super::tool::Program;
use super::web::{is_exposed, web_address};
use super::{Environment, ToolSandbox};
use crate::argv::{Diagnostics, pointer_segment};
use crate::domain::Category;

/// Between the names of a server and of its tool.
pub const MCP_SEPARATOR: &str = "__";

/// How an MCP server is talked with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// A program, over its standard input and output.
    Stdio {
        /// What is started.
        program: Program,
        /// Its arguments.
        args: Vec<String>,
        /// Variables besides the allowlist.
        env: BTreeMap<String, String>,
        /// What the kernel leaves to it.
        sandbox: ToolSandbox,
    },
    /// Streamable HTTP.
    Http {
        /// The address.
        url: String,
        /// Headers of every request.
        headers: BTreeMap<String, String>,
    },
}

/// An MCP server. What it says of its tools decides nothing about what they may do (MCP-1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// Its name.
    pub name: String,
    /// How it is talked with.
    pub transport: McpTransport,
    category: Option<Category>,
    categories: BTreeMap<String, Category>,
}

impl McpServer {
    /// Returns the values that it is started or called with.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        let values = match &self.transport {
            McpTransport::Stdio { env, .. } => env,
            McpTransport::Http { headers, .. } => headers,
        };
        values.values().map(String::as_str)
    }

    /// Returns the highest category that any of its tools has.
    #[must_use]
    pub fn highest(&self) -> Category {
        let own = self.category.unwrap_or(Category::Admin);
        self.categories.values().copied().fold(own, Category::max)
    }

    /// Returns the category of one of its tools: admin, where the operator says nothing.
    #[must_use]
    pub fn category_of(&self, tool: &str) -> Category {
        self.categories.get(tool).copied().or(self.category).unwrap_or(Category::Admin)
    }

    /// Tells whether any of its tools may be a read tool.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.category == Some(Category::Read)
            || self.categories.values().any(|category| *category == Category::Read)
    }

    /// Returns what `raw` means, with everything that is wrong, by pointers below the entry.
    pub(crate) fn from_raw(
        name: &str,
        raw: &RawMcpServer,
        environment: &Environment,
    ) -> (Option<Self>, Diagnostics) {
        let mut diagnostics = Diagnostics::default();
        let is_name = !name.is_empty()
            && name.len() <= 32
            && !name.contains(MCP_SEPARATOR)
            && !name.starts_with('_')
            && !name.ends_with('_')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if !is_name {
            let message = format!(
                "`{name}` is not a valid server name: letters, digits, `-` and single `_` within, at most 32"
            );
            diagnostics.error("", message);
        }
        let sandbox = ToolSandbox::from_raw(raw.sandbox.as_ref(), environment, &mut diagnostics);
        // Where `category` says nothing, its other tools are admin tools.
        let mut of_tools = raw.categories.iter().flat_map(BTreeMap::values);
        if raw.category == Some(Category::Read)
            && of_tools.all(|category| *category == Category::Read)
            && !sandbox.write.is_empty()
        {
            let message = "a read tool cannot write: leave this out, or make it a write tool";
            diagnostics.error("/sandbox/write", message.to_owned());
        }
        for (variable, value) in raw.env.iter().flatten() {
            let pointer = format!("/env/{}", pointer_segment(variable));
            if variable == "PATH" && !is_absolute_search_path(value) {
                diagnostics.error(&pointer, RELATIVE_PATH.to_owned());
            } else if is_hijacking(variable) {
                let message = format!("`{variable}` changes what the program loads or runs");
                diagnostics.warn(&pointer, message);
            }
        }
        let transport = match (&raw.command, &raw.url) {
            (Some(command), None) => {
                for (key, is_there) in [("headers", raw.headers.is_some())] {
                    if is_there {
                        diagnostics.error(
                            &format!("/{key}"),
                            format!("`{key}` is for servers with a `url`"),
                        );
                    }
                }
                let (written, args) =
                    command.split_first().map_or((String::new(), Vec::new()), |(first, rest)| {
                        (first.clone(), rest.to_vec())
                    });
                let path = environment.find_program(&written);
                if path.is_none() {
                    let message =
                        format!("`{written}` was not found, so that the server is not there");
                    diagnostics.warn("/command/0", message);
                }
                let env = raw.env.clone().unwrap_or_default();
                Some(McpTransport::Stdio { program: Program { written, path }, args, env, sandbox })
            }
            (None, Some(url)) => {
                for (key, is_there) in
                    [("env", raw.env.is_some()), ("sandbox", raw.sandbox.is_some())]
                {
                    if is_there {
                        diagnostics.error(
                            &format!("/{key}"),
                            format!("`{key}` is for servers with a `command`"),
                        );
                    }
                }
                match web_address(url, "such as https://mcp.example.org/mcp") {
                    Err(message) => diagnostics.error("/url", message),
                    Ok(url) if is_exposed(&url) && raw.headers.is_some() => diagnostics.warn(
                        "/url",
                        "the headers go over plain HTTP to a host that is not loopback".to_owned(),
                    ),
                    Ok(_) => {}
                }
                let headers = raw.headers.clone().unwrap_or_default();
                Some(McpTransport::Http { url: url.clone(), headers })
            }
            _ => {
                diagnostics.error(
                    "",
                    format!(
                        "the server `{name}` needs a `command` or a `url`, and one of them only"
                    ),
                );
                None
            }
        };
        let built = transport.map(|transport| Self {
            name: name.to_owned(),
            transport,
            category: raw.category,
            categories: raw.categories.clone().unwrap_or_default(),
        });
        (built, diagnostics)
    }
}
