//! The tools that the loop calls: built-in tools, tools that `tools.yaml` declares, and tools of
//! MCP servers.
//!
//! A tool takes a prepared call and returns content; a failure is content too. Tools know neither
//! schedules nor the database, and store whole outputs through [`OutputStore`].

mod builtin;
mod call_state;
mod context;
mod declared;
mod environment;
mod exec;
mod file_error;
mod files;
mod image;
mod mcp;
mod output;
mod place;
mod remote_files;
mod remote_script;
mod sandbox_profile;
mod walk;

pub use builtin::{
    BashTool, BuiltinTool, CONVERTER_VERB, JudgedCall, WebFetchTool, WebSearchTool,
    prepare_builtin, run_converter,
};
pub use context::{AccessRules, OutputContext, ProgramContext, Shell, ToolContext};
pub use declared::{DeclaredTool, declared_resources};
pub use environment::{Connection, ExecutionEnvironment, Local, Remote, TargetError};
pub use mcp::{
    Described, LeftOut, McpError, McpWarning, Offer, Pins, RunningServer, SchemaError,
    UnusableServer, name_for_models, read_as_answer,
};
pub use output::{Collected, Collector, INLINE_LIMIT, KeptFile, OutputStore};
pub use remote_script::missing_programs;
pub use sandbox_profile::SandboxProfiles;
