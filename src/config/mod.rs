//! Loads the configuration: YAML files become trees with locations, are validated with their JSON
//! Schemas, and become a checked [`Config`]. Every error is reported at once.
//!
//! The `Raw…` types hold what the operator typed. `dutyd schema` prints their generated schema, and
//! the loader validates the files with it. [`Config`], [`Job`], [`Tool`] and [`Model`] hold what
//! the files mean, with every default filled in; code that uses them never reads a configuration
//! file. Only this folder reads the process environment; other code asks [`Environment`].

mod builtin;
mod call_limits;
mod command_rule;
mod destination;
mod dirs;
mod document;
mod environment;
mod error;
mod execution_target;
mod expect;
mod files;
mod host_zone;
mod interpolate;
mod job;
mod json_schema;
mod launch;
mod links;
mod load;
mod location;
mod mcp;
mod model;
mod model_advice;
mod model_price;
mod output_schema;
mod profile;
mod raw;
mod recorded;
mod remedy;
mod remote;
mod reserved;
mod schema;
mod script;
mod security;
mod settings;
mod shell_syntax;
mod skill;
mod starter;
mod tool;
mod web;
mod yaml_slip;

pub use builtin::Builtin;
pub use call_limits::CallLimits;
pub use destination::Destination;
pub use dirs::{CONTROL_KEY, DirError, Dirs, SYSTEM_RUNTIME_DIRECTORY};
pub use document::{Document, parse as parse_yaml};
pub use environment::Environment;
pub use error::{ConfigError, Report};
pub use execution_target::ExecutionTarget;
pub use expect::Expect;
pub(crate) use files::is_fragment;
pub use files::{FileSet, Trust};
pub use host_zone::{LocalZone, ZoneSource};
pub use interpolate::{SecretsMode, Unread, is_secret_name};
pub use job::{
    Approval, Autonomy, Catchup, DailyBudgets, Job, Limits, Listed, Mode, Overlap, Policy,
    Precheck, Rate, ReadPolicy, Retry, RunWhen, VerifyStep,
};
pub(crate) use launch::launch_problem;
pub use load::{Config, Loaded, load};
pub use mcp::{MCP_SEPARATOR, McpServer, McpTransport};
pub use model::{Model, Provider};
pub use model_price::Priced;
pub use output_schema::{OutputSchema, ProviderForm};
pub use profile::{Profile, ToolAlias};
pub use recorded::RecordedFiles;
pub use remote::{Remote, WireFormat};
pub use schema::{SchemaName, json_schema};
pub use script::{Script, ScriptCall, ScriptStep};
pub use security::{SandboxMode, Security, ToolSandbox};
pub(crate) use settings::is_hijacking;
pub use settings::{LogFormat, LogRotation, LogSettings, Settings};
pub use skill::{Skill, SkillTools};
pub use starter::{STARTER_FILES, StarterFile};
pub use tool::{Probe, Program, Tool};
pub use web::{AllowedHost, WebSearch};
