//! One run: wires session, gate, tools and store together from a frozen [`RunSpec`].
//!
//! A run keeps the configuration that it started with. This module does not know schedules.

mod apply;
mod approvals;
mod budget;
mod check;
mod controls;
mod documents;
mod ended;
mod execute;
mod history;
mod host;
mod installation;
mod lessons;
mod mcp;
mod model_view;
mod models;
mod notices;
mod own_call;
mod precheck;
mod preflight;
mod project;
mod prompt;
mod replay;
mod resume;
mod scope;
mod sink;
mod spec;
mod temporary;
mod texts;
mod tool_catalog;
mod tool_context;
mod trial;
mod unit;
mod verify;

pub use apply::{Applied, apply};
pub use approvals::{AnswerError, Approvals, SocketApprover};
pub use budget::{millionths, over_budget, release_abandoned, spend_budgets};
pub use check::{CheckItem, CheckReport, check};
pub use controls::Controls;
pub use ended::{Ended, RunExit};
pub use execute::execute;
pub use history::{BrokenRecord, HistoryFold, RecordRead, RunHistory};
pub use host::{Host, RunError, is_disk_fault};
pub use installation::{Reach, examine_config, examine_host, why_runs_cannot_begin};
pub use lessons::Learned;
pub use mcp::{Servers, least_rights};
pub use model_view::{ModelValue, ModelView, ask_providers, model_views};
pub use notices::{notice_of_broken, notice_of_record, notice_of_recovered};
pub use preflight::{connect, preflight};
pub use replay::{
    Compared, Costs, Difference, DifferenceKind, NotCompared, Replay, ReplayReport, Side,
};
pub use resume::{Resumption, resume};
pub use scope::host_name;
pub use spec::{PromptError, RunSpec, recorded_mode};
pub use tool_catalog::{
    ExplainError, Explanation, KnownTool, ToolRow, UnknownTool, explain, names_of_server, tool_rows,
};
pub use tool_context::{
    Links, UNIT_DIRECTORIES, gate_rules, path_rules, tool_context, toolbox, tools,
};
pub use trial::{Estimate, Pair, Recorded, TrialCalls, TrialRow, Unfit, trial};
pub use unit::short_stop_timeout;
