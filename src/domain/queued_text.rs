//! Texts that people give to a run that is not over.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::origin::Person;

/// When a run takes a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextKind {
    /// With the next request to the model.
    Steering,
    /// As the next input, once the model has done its current one.
    FollowUp,
}

impl TextKind {
    /// Returns the word used in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Steering => "steering",
            Self::FollowUp => "follow_up",
        }
    }
}

/// A text that a run has accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedText {
    /// Distinguishes it from every other text.
    pub text_id: String,
    pub kind: TextKind,
    pub text: String,
    /// Who gave it; `None` if nobody knows.
    pub by: Option<Person>,
}

/// Why a text is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("the text is empty")]
    Empty,
    #[error(
        "the text has {0} bytes; a run accepts at most {max} bytes at once",
        max = QueuedText::LONGEST
    )]
    Long(usize),
    #[error("{max} texts wait for this run already", max = QueuedText::MOST_WAITING)]
    Full,
}

impl QueuedText {
    /// Maximum length of a text, in bytes.
    pub const LONGEST: usize = 64 << 10;

    /// How many texts may wait for one run.
    pub const MOST_WAITING: usize = 100;

    /// Returns a text.
    ///
    /// *Errors*: [`TextError::Empty`], [`TextError::Long`].
    pub fn new(
        text_id: String,
        kind: TextKind,
        text: String,
        by: Option<Person>,
    ) -> Result<Self, TextError> {
        if text.trim().is_empty() {
            return Err(TextError::Empty);
        }
        if text.len() > Self::LONGEST {
            return Err(TextError::Long(text.len()));
        }
        Ok(Self { text_id, kind, text, by })
    }
}
