//! Why an MCP server, or one of its tools, cannot be used.

use rmcp::ServiceError;
use rmcp::service::ClientInitializeError;

use super::PATIENCE;
use crate::process::{PipedEnded, SandboxError, SpawnFailure};
use crate::text::escape::one_line;

const CLOSED: &str = "it closed the connection before it answered";

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
    #[error("the protocol sets the header `{0}`: remove it from `headers`")]
    HeaderReserved(String),
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
    /// A handshake or a request failed; `ended` tells how the process of the server ended, if it
    /// did.
    #[error("{error}{}", after_semicolon(.ended))]
    Failed { error: String, ended: String },
    #[error("it has more than {0} tools")]
    TooManyTools(usize),
    #[error("its answer to tools/list is not a list of tools")]
    NotAToolList,
    #[error("its answer to tools/list has no `tools`")]
    NoTools,
    /// The server answered a call with a request for input, which we decline (MCP-4).
    #[error("the server requested input first, which is refused")]
    InputRequested,
}

impl McpError {
    /// Returns the error for a handshake that failed. If the server's process has ended, the caller
    /// adds that with [`Self::with_end`].
    pub(super) fn of_handshake(error: &ClientInitializeError) -> Self {
        Self::failed(match error {
            // This text is from `answers.rs`.
            ClientInitializeError::JsonRpcError(error) => error.message.to_string(),
            ClientInitializeError::ConnectionClosed(_) => CLOSED.to_owned(),
            ClientInitializeError::TransportError { error, .. } => {
                format!("a message cannot be sent to it: {}", error.error)
            }
            _ => "its answer to `initialize` cannot be used".to_owned(),
        })
    }

    /// Returns the error for a request that failed, as [`Self::of_handshake`] does.
    pub(super) fn of_request(error: &ServiceError) -> Self {
        Self::failed(match error {
            ServiceError::McpError(error) => error.message.to_string(),
            ServiceError::TransportSend(error) => {
                format!("a message cannot be sent to it: {}", error.error)
            }
            ServiceError::TransportClosed => CLOSED.to_owned(),
            _ => "its answer cannot be used".to_owned(),
        })
    }

    fn failed(error: String) -> Self {
        Self::Failed { error, ended: String::new() }
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

/// Why a server's list of tools may lack some.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListFault {
    #[error("its list of tools repeats the cursor `{}`; the list ends there", one_line(.0))]
    Repeated(String),
    #[error("its list of tools has an empty cursor; the list ends there")]
    EmptyCursor,
    #[error("its list of tools has a cursor that is not text; the list ends there")]
    NoText,
    #[error("its list of tools has more than {0} pages; the rest is left out")]
    Pages(usize),
    #[error("a further page of its list of tools cannot be read, so its tools are left out: {0}")]
    Page(McpError),
}

/// Why we cannot check arguments with the schema of a tool.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// References lead out of the schema, or it has too many parts once they are followed.
    #[error("its schema has references that cannot be followed, or too many")]
    References,
    #[error("its schema does not describe an object")]
    NotAnObject,
    #[error("{0}")]
    Invalid(String),
}
