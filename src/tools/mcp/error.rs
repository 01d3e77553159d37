//! Why an MCP server, or one of its tools, cannot be used.

use super::PATIENCE;
use crate::process::{PipedEnded, SandboxError, SpawnFailure};

/// A server that a run cannot use.
#[derive(Debug, thiserror::Error)]
#[error("the MCP server `{server}` cannot be used: {error}")]
pub struct UnusableServer {
    /// The name of the server in the configuration.
    pub server: String,
    pub error: McpError,
}

/// A connection or a request that failed. The text continues a sentence about the server.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// The server is reached over HTTP, and the job has no network access.
    #[error("the job has no network")]
    Offline,
    #[error("the program `{0}` was not found")]
    ProgramNotFound(String),
    #[error("`{0}` is not a valid header name")]
    HeaderName(String),
    #[error("the header `{0}` has a value that cannot be sent")]
    HeaderValue(String),
    #[error("the HTTP client cannot be made: {0}")]
    HttpClient(reqwest::Error),
    #[error("it cannot be sandboxed: {0}")]
    Sandbox(SandboxError),
    #[error(transparent)]
    Spawn(#[from] SpawnFailure),
    /// The handshake took too long.
    #[error("it did not answer within {} s", PATIENCE.as_secs())]
    HandshakeTimeout,
    #[error("it did not list its tools")]
    ListTimeout,
    /// The server sent a message that exceeds a limit.
    #[error("{0}")]
    Refused(&'static str),
    /// The client reports a failure; `ended` tells how the process of the server ended, if it did.
    #[error("{error}{}", after_semicolon(.ended))]
    Failed { error: String, ended: String },
    #[error("it has more than {0} tools")]
    TooManyTools(usize),
    #[error("its list of tools has more than {0} pages")]
    TooManyPages(usize),
    #[error("its answer to tools/list is not a list of tools")]
    NotAToolList,
    #[error("its answer to tools/list has no `tools`")]
    NoTools,
    /// The server answered a call with a request for input, which we decline (MCP-4).
    #[error("the server requested input first, which is refused")]
    InputRequested,
}

impl McpError {
    /// Returns the error for a failure that the client reports. If the server's process has ended,
    /// the caller adds that with [`Self::with_end`].
    pub(super) fn failed(error: impl ToString) -> Self {
        Self::Failed { error: error.to_string(), ended: String::new() }
    }

    /// Adds how the process of the server ended, if it did. The result is then
    /// [`McpError::Failed`].
    pub(super) fn with_end(self, end: &PipedEnded) -> Self {
        match end.words() {
            ended if ended.is_empty() => self,
            ended => Self::Failed { error: self.to_string(), ended },
        }
    }
}

fn after_semicolon(ended: &str) -> String {
    if ended.is_empty() { String::new() } else { format!("; {ended}") }
}

/// A tool in a server's list that cannot be offered.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnreadableTool {
    #[error("a tool without a name is left out")]
    NoName,
    /// Contains the name of the tool on one line.
    #[error("the tool `{0}` has a schema that cannot be read; it is left out")]
    NoSchema(String),
}

/// Why we cannot check arguments with the schema of a tool.
#[derive(Debug, thiserror::Error)]
pub(super) enum SchemaError {
    #[error("its schema has circular or too many references")]
    References,
    #[error("its schema does not describe an object")]
    NotAnObject,
    #[error("{0}")]
    Invalid(String),
}
