//! A checked entry of `mcp_servers`.

use std::collections::BTreeMap;

use super::environment::{RELATIVE_PATH, is_absolute_search_path};
use super::raw::RawMcpServer;
use super::settings::is_hijacking;
use super::tool::Program;
use super::web::{is_exposed, web_address};
use super::{Environment, ToolSandbox, launch_problem, shell_syntax};
use crate::argv::{Diagnostics, pointer_segment};
use crate::domain::Category;

/// Separates the names of server and tool in `SERVER__TOOL`.
pub const MCP_SEPARATOR: &str = "__";

/// The transport of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// A program that speaks MCP over its standard input and output.
    Stdio {
        /// The program to start.
        program: Program,
        /// The arguments of the program.
        args: Vec<String>,
        /// Environment variables in addition to the allowlist.
        env: BTreeMap<String, String>,
        /// The sandbox settings of the program.
        sandbox: ToolSandbox,
    },
    /// A server that speaks streamable HTTP.
    Http {
        /// The address of the server, without a user name or password.
        url: String,
        /// Headers sent with every request.
        headers: BTreeMap<String, String>,
    },
}

/// An MCP server. The rights of its tools never depend on what the server says about them (MCP-1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// The key in `mcp_servers` and the prefix of the server's tools.
    pub name: String,
    /// How to start the server or connect to it.
    pub transport: McpTransport,
    category: Option<Category>,
    categories: BTreeMap<String, Category>,
}

impl McpServer {
    /// Returns the values of its environment variables or headers, any of which may be a secret.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        let values = match &self.transport {
            McpTransport::Stdio { env, .. } => env,
            McpTransport::Http { headers, .. } => headers,
        };
        values.values().map(String::as_str)
    }

    /// Returns the highest category that any of its tools can have.
    #[must_use]
    pub fn highest(&self) -> Category {
        let own = self.category.unwrap_or(Category::Admin);
        self.categories.values().copied().fold(own, Category::max)
    }

    /// Returns the category of one of its tools; defaults to admin.
    #[must_use]
    pub fn category_of(&self, tool: &str) -> Category {
        self.categories.get(tool).copied().or(self.category).unwrap_or(Category::Admin)
    }

    /// Tells whether any of its tools can be a read tool.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.category == Some(Category::Read)
            || self.categories.values().any(|category| *category == Category::Read)
    }

    /// Checks `raw` and fills in the defaults. The pointers of the diagnostics are relative to the
    /// entry.
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
                "`{name}` is not a valid server name: use 1 to 32 letters, digits, `-` and `_`, without `__` and without `_` at either end"
            );
            diagnostics.error("", message);
        }
        let sandbox = ToolSandbox::from_raw(raw.sandbox.as_ref(), environment, &mut diagnostics);
        // Without `category`, tools that `categories` does not list are admin tools.
        let mut of_tools = raw.categories.iter().flat_map(BTreeMap::values);
        if raw.category == Some(Category::Read)
            && of_tools.all(|category| *category == Category::Read)
            && !sandbox.write.is_empty()
        {
            let message = "a read tool cannot write: remove this key, or set the category to write";
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
                            format!("`{key}` applies only to servers with a `url`"),
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
                        format!("`{written}` was not found, so the server is unavailable");
                    diagnostics.warn("/command/0", message);
                } else if let Some(problem) = path.as_deref().and_then(launch_problem) {
                    diagnostics.warn("/command/0", format!("`{written}` cannot start: {problem}"));
                }
                // The program is the first element of `command`.
                let place = |at: usize| format!("/command/{}", at + 1);
                let found = shell_syntax::problems(&written, &args, place, environment);
                diagnostics.warnings.extend(found);
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
                            format!("`{key}` applies only to servers with a `command`"),
                        );
                    }
                }
                match web_address(url, "such as https://mcp.example.org/mcp") {
                    Err(message) => diagnostics.error("/url", message),
                    Ok(url) if is_exposed(&url) && raw.headers.is_some() => diagnostics.warn(
                        "/url",
                        "the headers are sent over plain HTTP to a host that is not loopback: use https://"
                            .to_owned(),
                    ),
                    Ok(_) => {}
                }
                let headers = raw.headers.clone().unwrap_or_default();
                Some(McpTransport::Http { url: url.clone(), headers })
            }
            _ => {
                diagnostics
                    .error("", format!("the server `{name}` needs either a `command` or a `url`"));
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
