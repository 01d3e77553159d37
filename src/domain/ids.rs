//! Identifiers as newtypes, each with the one rule that makes it valid.
//!
//! Every id is valid by construction: it can be used as a file name, as a value in a database and
//! as text on a terminal without another check.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text does not follow the rule of its kind.
    #[error("{kind} must match {rule}")]
    Malformed {
        /// The kind of id that was expected, such as `a tool name`.
        kind: &'static str,
        /// The rule, as a regular expression.
        rule: &'static str,
    },
}

macro_rules! text_id {
    ($(#[$meta:meta])* $name:ident, $kind:literal, $rule:literal, $valid:path) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The rule of this kind of id, as a regular expression over the whole text.
            pub const RULE: &'static str = $rule;

            /// Returns the id if `text` follows [`Self::RULE`].
            ///
            /// *Errors*: [`IdError::Malformed`].
            pub fn parse(text: &str) -> Result<Self, IdError> {
                if $valid(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(IdError::Malformed { kind: $kind, rule: $rule })
                }
            }

            /// Returns the id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_id!(
    /// The name of a job in `jobs.yaml`.
    JobName, "a job name", "^[a-z0-9][a-z0-9_-]{0,62}$", job_name
);
text_id!(
    /// The name of a tool: built-in, declared or offered by an MCP server. Only the name of an MCP
    /// tool, `SERVER__TOOL`, can have dots, slashes and more than 64 characters; models see it under
    /// an alias.
    ToolName,
    "a tool name",
    "^([a-zA-Z0-9_-]{1,64}|[a-zA-Z0-9_-]{1,32}__[a-zA-Z0-9_./-]{1,128})$",
    tool_name
);
text_id!(
    /// The id of a run: a lower-case ULID, so that ids sort by creation time.
    RunId, "a run id", "^[0-9a-hjkmnp-tv-z]{26}$", run_id
);
text_id!(
    /// The id of a tool call: the provider's own id if it is usable as a file name, otherwise one
    /// that the loop generates.
    CallId, "a call id", "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$", call_id
);

impl CallId {
    /// Returns a fixed id, for a call that cannot get a unique one.
    #[must_use]
    pub fn unpaired() -> Self {
        Self("call_unpaired".to_owned())
    }

    /// Returns the id of the precheck of a run.
    #[must_use]
    pub fn precheck() -> Self {
        Self(Self::PRECHECK.to_owned())
    }

    /// Returns the id of a check of `verify`; `round` and `step` count from 1.
    #[must_use]
    pub fn verify(round: u32, step: usize) -> Self {
        Self(format!("verify_{round}_{step}"))
    }

    /// The id of the precheck of a run, as text.
    pub const PRECHECK: &str = "precheck_1";

    /// Tells whether the id is that of a check of `verify`.
    #[must_use]
    pub fn is_verify(&self) -> bool {
        self.0.starts_with("verify_")
    }

    /// Tells whether the id has a prefix that is reserved for the calls that dutyd itself makes.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        ["precheck_", "verify_", "probe_"].iter().any(|prefix| self.0.starts_with(prefix))
    }
}

impl RunId {
    /// Converts a ULID to a run id.
    #[must_use]
    pub fn from_ulid(ulid: ulid::Ulid) -> Self {
        Self(ulid.to_string().to_ascii_lowercase())
    }

    /// Returns the moment that the id contains: when the run was queued or began.
    #[must_use]
    pub fn made_at(&self) -> Option<DateTime<Utc>> {
        let Ok(ulid) = self.as_str().parse::<ulid::Ulid>() else { return None };
        Some(DateTime::from(ulid.datetime()))
    }
}

fn job_name(text: &str) -> bool {
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    text.len() <= 63
        && text.bytes().all(rest)
        && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

fn tool_name(text: &str) -> bool {
    let is_plain = |text: &str, most: usize| {
        (1..=most).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    is_plain(text, 64)
        || text.split_once("__").is_some_and(|(server, tool)| {
            let tool = tool.replace(['.', '/'], "_");
            is_plain(server, 32) && is_plain(&tool, 128)
        })
}

fn run_id(text: &str) -> bool {
    text.len() == 26
        && text.bytes().all(|b| {
            b.is_ascii_digit()
                || (b.is_ascii_lowercase() && !matches!(b, b'i' | b'l' | b'o' | b'u'))
        })
}

fn call_id(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_rule_to_the_letter() {
        for (text, job, tool, call) in [
            ("disk-check", true, true, true),
            ("", false, false, false),
            ("-x", false, true, false),
            ("Disk", false, true, true),
            ("a/b", false, false, false),
            ("../a", false, false, false),
            (".hidden", false, false, false),
            ("call_1.a", false, false, true),
            ("gh__a.b/c", false, true, false),
            ("a.b__c", false, false, true),
            ("gh__a b", false, false, false),
            ("a b", false, false, false),
            ("a\n", false, false, false),
        ] {
            assert_eq!(JobName::parse(text).is_ok(), job, "job {text:?}");
            assert_eq!(ToolName::parse(text).is_ok(), tool, "tool {text:?}");
            assert_eq!(CallId::parse(text).is_ok(), call, "call {text:?}");
        }
        assert!(JobName::parse(&"a".repeat(63)).is_ok());
        assert!(JobName::parse(&"a".repeat(64)).is_err());
    }

    #[test]
    fn run_ids_are_lower_case_ulids() {
        let id = RunId::from_ulid(ulid::Ulid::from_parts(1, 2));
        assert_eq!(id.made_at().map(|at| at.timestamp_millis()), Some(1));
        assert_eq!(RunId::parse(id.as_str()), Ok(id));
        assert!(RunId::parse("01ARZ3NDEKTSV4RRFFQ69G5FAV").is_err());
    }
}
