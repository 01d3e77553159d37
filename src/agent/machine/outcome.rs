//! Decides whether a final answer makes the run succeed: it must match `output_schema`, and then the
//! checks of `verify` must pass.
//!
//! *Source*: `docs/design/loop.md`, "After the final answer".

use super::answer::AnswerFault;
use super::{Action, Machine};
use crate::agent::inbox::WaitingTexts;
use crate::agent::verify::Check;
use crate::domain::{Event, StopReason};
use crate::text::escape::one_line;

/// How often the model may correct an answer that does not match `output_schema`.
const OUTPUT_CORRECTIONS: u32 = 2;

/// The words in `user_input` for what a correction corrects.
const OUTPUT_SCHEMA: &str = "output_schema";
const VERIFY: &str = "verify";

/// Tells whether a correction with this reason in `user_input` is about an answer, not about a call.
pub(in crate::agent) fn is_answer_correction(reason: &str) -> bool {
    let is_fault = AnswerFault::ALL.iter().any(|fault| fault.as_str() == reason);
    is_fault || matches!(reason, OUTPUT_SCHEMA | VERIFY)
}

impl Machine {
    /// Handles a final answer that the run may succeed with.
    pub(super) fn on_final_answer(&mut self, text: &str, events: &mut Vec<Event>) -> Action {
        let Some(schema) = self.rules.output_schema.clone() else {
            return self.verify_or_complete(events);
        };
        match schema.check(text) {
            Ok(value) => {
                self.answer = Some(value);
                self.verify_or_complete(events)
            }
            Err(problems) => self.on_invalid_output(&problems, events),
        }
    }

    fn on_invalid_output(&mut self, problems: &[String], events: &mut Vec<Event>) -> Action {
        if self.output_corrections >= OUTPUT_CORRECTIONS {
            let error = format!(
                "the answer does not match `output_schema`, also after {OUTPUT_CORRECTIONS} corrections: {}",
                problems.join("; ")
            );
            return self.end(StopReason::InvalidOutput, Some(error), events);
        }
        self.output_corrections += 1;
        let text = format!(
            "Your final answer does not match the required JSON Schema:\n- {}\nGive the final answer again, as exactly one JSON value that matches the schema, without other text.",
            problems.join("\n- ")
        );
        self.correct(text, Some(OUTPUT_SCHEMA.to_owned()), events);
        self.ask_or_stop(events)
    }

    fn verify_or_complete(&mut self, events: &mut Vec<Event>) -> Action {
        if self.rules.checks == 0 {
            return self.complete(events);
        }
        self.verify_rounds += 1;
        Action::Verify { round: self.verify_rounds, done: Vec::new() }
    }

    /// Handles the results of the checks of a round.
    pub(super) fn on_verified(&mut self, checks: &[Check], events: &mut Vec<Event>) -> Action {
        let failed: Vec<&Check> = checks.iter().filter(|check| !check.ok).collect();
        if failed.is_empty() {
            // The checks come after the last input.
            return match self.waiting {
                WaitingTexts { steering: true, .. } => Action::CallModel,
                WaitingTexts { follow_up: true, .. } => Action::NextInput,
                _ => self.complete(events),
            };
        }
        self.failed_rounds += 1;
        if self.failed_rounds > self.rules.verify_retries && !self.waiting.steering {
            let told: Vec<String> = failed
                .iter()
                .map(|check| format!("check `{}` failed: {}", check.tool, one_line(&check.detail)))
                .collect();
            return self.end(StopReason::VerifyFailed, Some(told.join("; ")), events);
        }
        let mut text = format!(
            "{} of {} checks failed. Find the cause, fix it if it is within your task, and give the final answer again. Failed checks:",
            failed.len(),
            checks.len()
        );
        for check in failed {
            text.push_str(&format!(
                "\n\n`{}`: {}\n{}",
                check.tool,
                one_line(&check.detail),
                check.shown
            ));
        }
        self.answer = None;
        self.correct(text, Some(VERIFY.to_owned()), events);
        self.ask_or_stop(events)
    }

    fn complete(&mut self, events: &mut Vec<Event>) -> Action {
        match self.end(StopReason::Completed, None, events) {
            Action::End(end) => Action::End(super::End { answer: self.answer.take(), ..end }),
            action => action,
        }
    }
}
