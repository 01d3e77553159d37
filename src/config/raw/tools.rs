//! `tools.yaml` and the scripts of the scripted model, as the operator typed them.

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
    reason = "entries are decoded one by one, so an error in one does not hide errors in the others"
)]
pub(crate) struct RawTools {
    /// Version of the file format.
    #[schemars(range(min = 1, max = 1))]
    pub(crate) version: u32,
    /// The tools.
    pub(crate) tools: Vec<RawTool>,
}

/// A tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTool {
    /// Letters, digits, `-` and `_`; at most 64 characters.
    #[schemars(required, regex(pattern = TOOL_NAME))]
    pub(crate) name: Option<String>,
    /// Description of the tool for the model.
    #[schemars(required, length(min = 1))]
    pub(crate) description: Option<String>,
    /// true lets the tool replace the built-in tool of the same name.
    #[serde(rename = "override")]
    pub(crate) replaces_builtin: Option<bool>,
    /// Category of the tool: read, write or admin.
    #[schemars(required)]
    pub(crate) category: Option<Category>,
    /// Program: a name to look up in PATH, or an absolute path.
    #[schemars(required, length(min = 1))]
    pub(crate) cmd: Option<String>,
    /// Arguments of the program, one per element; `{{name}}` inserts a parameter.
    pub(crate) args: Option<Vec<String>>,
    /// Arguments by parameter name, to append after `args` in this order if the parameter is given.
    pub(crate) optional_args: Option<Map<String, Value>>,
    /// Parameters by name: each a JSON Schema, plus the keys optional, default, allow_leading_dash,
    /// multiline and unsafe_interpreter.
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Environment variables for the program, in addition to the allowlist.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Directory where the program starts. Defaults to the job's working directory.
    pub(crate) working_dir: Option<String>,
    /// Standard input of the program; `{{name}}` inserts a parameter.
    pub(crate) stdin: Option<String>,
    /// Timeout of one call.
    #[schemars(regex(pattern = DURATION))]
    pub(crate) timeout: Option<String>,
    /// Maximum number of characters of the output that the model sees.
    #[schemars(range(min = 100, max = 200_000))]
    pub(crate) output_limit: Option<u64>,
    /// Maximum number of lines of the output that the model sees. Defaults to 256.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) output_lines: Option<u64>,
    /// Exit codes that mean success. Defaults to [0].
    #[schemars(length(min = 1), inner(range(min = 0, max = 255)))]
    pub(crate) success_codes: Option<Vec<i32>>,
    /// Arguments to add for the dry run of a call that is planned instead of made. A dry run has
    /// the rights of a read tool.
    #[schemars(length(min = 1))]
    pub(crate) dry_run_args: Option<Vec<String>>,
    /// How to find out, after a crash in the middle of a call, whether the call took effect.
    pub(crate) probe: Option<RawProbe>,
    /// Sandbox settings of the tool's processes.
    pub(crate) sandbox: Option<RawToolSandbox>,
    /// Arguments that the tool must accept, and arguments that it must reject; loading fails if the
    /// tool does otherwise.
    pub(crate) examples: Option<RawExamples>,
    /// Sets of conditions on arguments; a call that meets every condition of one set counts as
    /// admin.
    pub(crate) destructive_when: Option<Vec<RawCondition>>,
}

/// Sandbox settings of a tool's processes.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawToolSandbox {
    /// Whether the tool has a network. Defaults to true.
    pub(crate) network: Option<bool>,
    /// Denied paths, and folders below the configuration directory, that the tool may read anyway,
    /// such as its own key file.
    pub(crate) read: Option<Vec<String>>,
    /// Paths that the tool may write in addition to the job's; for write and admin tools.
    pub(crate) write: Option<Vec<String>>,
    /// true allows System V IPC, POSIX message queues and kernel keyrings. Defaults to false.
    pub(crate) ipc: Option<bool>,
    /// Capabilities that the tool keeps if it runs as root, such as NET_ADMIN. Defaults to none.
    pub(crate) capabilities: Option<Vec<String>>,
}

/// A call of the tool's program that finds out whether a call took effect.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawProbe {
    /// Arguments of the program, one per element; `{{name}}` inserts a parameter of the call. The
    /// probe has the rights of a read tool.
    #[schemars(required)]
    pub(crate) args: Option<Vec<String>>,
    /// The result that means that the call took effect.
    #[schemars(required)]
    pub(crate) done_when: Option<RawExpect>,
    /// The result that means that the call took no effect. With this key, any other result leaves
    /// the effect unknown; without it, any result but that of `done_when` means no effect.
    pub(crate) not_done_when: Option<RawExpect>,
}

/// Conditions on the result of a call, all of which must hold. Without a key, the call must have
/// worked.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawExpect {
    /// Exit code of the program.
    #[schemars(range(min = 0, max = 255))]
    pub(crate) exit_code: Option<i32>,
    /// Regular expression to find anywhere in the output.
    pub(crate) matches: Option<String>,
    /// Regular expression that must not be found in the output.
    pub(crate) not_matches: Option<String>,
    /// JSON Schema that the output must match as JSON.
    pub(crate) json_schema: Option<Map<String, Value>>,
}

/// Example arguments for a tool.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawExamples {
    /// Argument objects that must be accepted.
    pub(crate) accept: Option<Vec<Map<String, Value>>>,
    /// Argument objects that must be rejected.
    pub(crate) reject: Option<Vec<Map<String, Value>>>,
}

/// Conditions on arguments that must all hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCondition {
    /// A JSON Schema for each argument to constrain.
    pub(crate) args: Map<String, Value>,
}

/// The script of a scripted model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawScript {
    /// Steps of the script, one model response each.
    #[schemars(length(min = 1))]
    pub(crate) steps: Vec<RawStep>,
}

/// One response of a scripted model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawStep {
    /// A call, or a list of calls.
    pub(crate) call: Option<RawCalls>,
    /// Text of the response, alone or with calls.
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
    /// Name of the tool.
    pub(crate) tool: String,
    /// Arguments of the call; an argument that is a string is a template.
    pub(crate) args: Option<Map<String, Value>>,
}
