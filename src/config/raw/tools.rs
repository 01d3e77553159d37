//! `tools.yaml` and the scripts of the scripted model, as they are typed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{DURATION, TOOL_NAME};
use crate::domain::Category;

/// tools.yaml: the programs that jobs may start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "its entries are decoded one by one, so that a mistake in one hides none in another"
)]
pub(crate) struct RawTools {
    /// The version of the file format.
    #[schemars(range(min = 1, max = 1))]
    pub(crate) version: u32,
    /// The tools.
    pub(crate) tools: Vec<RawTool>,
}

/// A tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTool {
    /// Letters, digits, `-` and `_`; at most 64.
    #[schemars(required, regex(pattern = TOOL_NAME))]
    pub(crate) name: Option<String>,
    /// What it does, for the model.
    #[schemars(required, length(min = 1))]
    pub(crate) description: Option<String>,
    /// true lets the tool take the place of a built-in one of its name.
    #[serde(rename = "override")]
    pub(crate) replaces_builtin: Option<bool>,
    /// What it may do to the world: read, write or admin.
    #[schemars(required)]
    pub(crate) category: Option<Category>,
    /// The program: a name that is looked up in PATH, or an absolute path.
    #[schemars(required, length(min = 1))]
    pub(crate) cmd: Option<String>,
    /// Its arguments, one element each; `{{name}}` is a parameter.
    pub(crate) args: Option<Vec<String>>,
    /// Added after args, in this order, when the parameter is given.
    pub(crate) optional_args: Option<Map<String, Value>>,
    /// Each a JSON Schema, plus optional, default, allow_leading_dash, multiline, unsafe_interpreter.
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Variables that the program gets besides the allowlist.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Where it starts. The job's working directory if not set.
    pub(crate) working_dir: Option<String>,
    /// What it reads on standard input; `{{name}}` is a parameter.
    pub(crate) stdin: Option<String>,
    /// Time of one call.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) timeout: Option<String>,
    /// Characters of an output that the model sees.
    #[schemars(range(min = 100, max = 200_000))]
    pub(crate) output_limit: Option<u64>,
    /// Exit codes that mean success. [0] if not set.
    #[schemars(length(min = 1), inner(range(min = 0, max = 255)))]
    pub(crate) success_codes: Option<Vec<i32>>,
    /// Appended to the arguments when a call is planned and not made; run with a read tool's rights.
    #[schemars(length(min = 1))]
    pub(crate) dry_run_args: Option<Vec<String>>,
    /// What the kernel leaves to its processes.
    pub(crate) sandbox: Option<RawToolSandbox>,
    /// Arguments that must be accepted or refused; loading fails when one is not.
    pub(crate) examples: Option<RawExamples>,
    /// Calls that count as admin: each entry is a set of conditions on arguments that must all hold.
    pub(crate) destructive_when: Option<Vec<RawCondition>>,
}

/// What the kernel leaves to the processes of a tool.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawToolSandbox {
    /// Whether there is a network. true if not set.
    pub(crate) network: Option<bool>,
    /// Denied paths and folders below the configuration directory that it may read all the same, such as its own key file.
    pub(crate) read: Option<Vec<String>>,
    /// Paths that it may write besides the job's; for write and admin tools.
    pub(crate) write: Option<Vec<String>>,
    /// true leaves it System V IPC, POSIX message queues and kernel keyrings. Defaults to false.
    pub(crate) ipc: Option<bool>,
    /// Capabilities that it keeps where it runs as root, by name, such as NET_ADMIN. Defaults to none.
    pub(crate) capabilities: Option<Vec<String>>,
}

/// Arguments that must be accepted or refused.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawExamples {
    /// Argument objects that must be accepted.
    pub(crate) accept: Option<Vec<Map<String, Value>>>,
    /// Argument objects, or parts of one, that must be refused.
    pub(crate) reject: Option<Vec<Map<String, Value>>>,
}

/// Conditions on arguments that must all hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCondition {
    /// A JSON Schema for each argument that matters.
    pub(crate) args: Map<String, Value>,
}

/// The script of a scripted model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawScript {
    /// What the model does, one response a step.
    #[schemars(length(min = 1))]
    pub(crate) steps: Vec<RawStep>,
}

/// One response of a scripted model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawStep {
    /// A call, or a list of calls.
    pub(crate) call: Option<RawCalls>,
    /// A text, alone or beside calls.
    pub(crate) say: Option<String>,
}

/// A call, or a list of calls.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawCalls {
    One(RawCall),
    Many(#[schemars(length(min = 1))] Vec<RawCall>),
}

/// A call of a scripted model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCall {
    /// The tool.
    pub(crate) tool: String,
    /// Its arguments; texts are templates.
    pub(crate) args: Option<Map<String, Value>>,
}
