//! What an approval binds besides the arguments of a call.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a call depends on besides its arguments, as a person sees it before the call runs.
///
/// *Shape*:
/// `{"stdin":"…","environment":[{"name":"LANG","value":"C","set_by":"host"}],"files":{"/bin/x":"9f…"}}`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Binding {
    /// Text for the program's standard input, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The variables of the program. `TMPDIR` of the host is missing: it differs in every run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<Variable>,
    /// The state of each file on which the call depends, by path: the SHA-256 (hex) of its content,
    /// `absent`, `directory`, `unreadable`, or for a large or special file its size and change time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// What the call uses although no digest covers it, for a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unbound: Vec<String>,
}

/// A variable in the environment of a call's program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Variable {
    pub name: String,
    /// The value; null if it may be a secret.
    pub value: Option<String>,
    pub set_by: SetBy,
}

/// The origin of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SetBy {
    /// The host, for every program.
    Host,
    /// The declaration of the tool or of its server.
    Tool,
}
