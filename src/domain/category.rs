//! Categories: what a tool may do to the world.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a tool or a call may do to the world, from least to most. The gate may raise the category
/// of a call, and never lowers it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Reads, and changes nothing.
    Read,
    /// Changes something that the job is there to change.
    Write,
    /// Changes something that a person should decide about each time.
    Admin,
}

impl Category {
    /// Returns the word used in files and transcripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl std::fmt::Display for Category {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
