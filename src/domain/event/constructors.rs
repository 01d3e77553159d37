//! Constructors of events most of whose fields are usually absent.

use super::{Event, InputSource};
use crate::domain::QueuedText;

impl Event {
    /// Returns a [`Self::Warning`].
    #[must_use]
    pub fn warning(code: &str, message: impl Into<String>) -> Self {
        Self::Warning {
            code: code.to_owned(),
            message: message.into(),
            usage: None,
            cost_usd: None,
            dropped: None,
            call_id: None,
            model: None,
        }
    }

    /// Returns a [`Self::UserInput`] that corrects nothing.
    #[must_use]
    pub fn user_input(text: String, source: InputSource) -> Self {
        Self::UserInput { text, source, reason: None }
    }

    /// Returns a [`Self::InputQueued`].
    #[must_use]
    pub fn input_queued(text: &QueuedText) -> Self {
        let QueuedText { text_id, kind, text, by } = text.clone();
        Self::InputQueued { kind, text, by, text_id }
    }
}
