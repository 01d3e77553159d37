//! Handles a request without a reply, and a reply whose calls cannot be parsed.

use super::{Action, Machine};
use crate::agent::model::{ErrorClass, ModelError};
use crate::domain::{Event, StopReason};

/// Malformed calls in a row that the model may correct; the next one ends the run.
const MAX_CORRECTIONS: u32 = 2;

impl Machine {
    pub(super) fn on_failure(&mut self, error: ModelError, events: &mut Vec<Event>) -> Action {
        if error.class == ErrorClass::BadToolGeneration {
            return self.on_malformed(&error.message, events);
        }
        events.push(Event::Error {
            code: error.class.as_str().to_owned(),
            message: error.message.clone(),
            reason: None,
        });
        self.end(error.class.stop_reason(), Some(error.message), events)
    }

    pub(super) fn on_malformed(&mut self, reason: &str, events: &mut Vec<Event>) -> Action {
        if self.malformed_in_a_row < MAX_CORRECTIONS {
            let text = format!(
                "Your last tool call was malformed and was not run: {reason}. Send it again with a known tool name and arguments that match its schema."
            );
            return self.correct_call(text, Some(reason.to_owned()), events);
        }
        self.malformed_in_a_row += 1;
        let message = format!(
            "the model wrote a malformed call {} times in a row: {reason}",
            self.malformed_in_a_row
        );
        events.push(Event::Error {
            code: ErrorClass::BadToolGeneration.as_str().to_owned(),
            message: message.clone(),
            reason: Some(reason.to_owned()),
        });
        self.end(StopReason::ProviderUnavailable, Some(message), events)
    }

    /// Asks the model to write a malformed call again.
    pub(super) fn correct_call(
        &mut self,
        text: String,
        reason: Option<String>,
        events: &mut Vec<Event>,
    ) -> Action {
        self.malformed_in_a_row += 1;
        self.correct(text, reason, events);
        self.ask_or_stop(events)
    }
}
