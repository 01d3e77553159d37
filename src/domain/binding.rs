//! The facts of a call that an approval binds in addition to its arguments.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The inputs of a call in addition to its arguments, as a person sees them before the call runs.
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
    /// Things that the call uses and that no digest covers, for a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unbound: Vec<String>,
    /// The absent files of a plan step that an earlier step may create. `unbound` names them too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub may_be_new: BTreeSet<String>,
}

impl Binding {
    /// The state of a file that does not exist.
    pub const ABSENT: &'static str = "absent";

    /// Adds each file that does not exist yet to `may_be_new` and `unbound`.
    pub fn tell_new_files(&mut self) {
        let absent = self.files.iter().filter(|(_, state)| *state == Self::ABSENT);
        self.may_be_new = absent.map(|(path, _)| path.clone()).collect();
        self.unbound.extend(self.may_be_new.iter().map(|path| {
            format!(
                "the content of {path}, which does not exist yet: an earlier step may create it"
            )
        }));
    }
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
