//! Handles a request without a reply, and a reply whose calls cannot be parsed.

use std::sync::Arc;

use super::{Action, Machine};
use crate::agent::model::{ErrorClass, ModelError};
use crate::agent::tool::Toolbox;
use crate::domain::{Event, StopReason};

/// Malformed calls in a row that the model may correct; the next one ends the run.
const MAX_CORRECTIONS: u32 = 2;

impl Machine {
    pub(super) fn on_failure(&mut self, error: ModelError, events: &mut Vec<Event>) -> Action {
        if error.class == ErrorClass::BadToolGeneration {
            return self.on_malformed(&error.message, events);
        }
        if error.class == ErrorClass::ToolsRejected && self.rules.gate.has_person {
            return self.continue_without_tools(&error.message, events);
        }
        events.push(Event::Error {
            code: error.class.as_str().to_owned(),
            message: error.message.clone(),
            reason: None,
        });
        self.end(error.class.stop_reason(), Some(error.message), events)
    }

    /// Continues an interactive run without tools. An unattended run that cannot look must not succeed.
    fn continue_without_tools(&mut self, why: &str, events: &mut Vec<Event>) -> Action {
        self.toolbox = Arc::new(Toolbox::default());
        self.tools_bytes = 0;
        self.confirmed = true;
        let message = format!("{why}; the run continues without tools");
        events.push(Event::warning(ErrorClass::ToolsRejected.as_str(), message));
        let text = "You have no tools in this run. Answer from the task alone, and name what you could not check.";
        self.correct(text.to_owned(), Some(ErrorClass::ToolsRejected.as_str().to_owned()), events);
        self.ask_or_stop(events)
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
