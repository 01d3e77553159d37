//! Tools as the loop sees them: the built-in ones and those that `tools.yaml` declares.
//!
//! A tool takes a prepared call and gives back content; a failure is content too. It knows neither schedules nor the database; where whole
//! outputs are kept is behind [`OutputStore`].

mod builtin;
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
pub use context::ToolContext;
pub use declared::{DeclaredTool, declared_resources};
pub use environment::{Connection, ExecutionEnvironment, Local, Remote};
pub use mcp::{Described, McpWarning, Pins, RunningServer};
pub use output::{Collected, Collector, INLINE_LIMIT, KeptFile, OutputStore};
pub use remote_script::missing_programs;
pub use sandbox_profile::SandboxProfiles;
