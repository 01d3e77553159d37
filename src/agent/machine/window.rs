//! Keeps the history within the context window of the model.

use super::{Action, Machine};
use crate::agent::counters::{Counters, tokens_of};
use crate::domain::{CallId, EstimatedTokens, Event, StopReason, Turn};

/// The loop warns, and compacts the history, when it exceeds this percentage of the window.
const FULL_PERCENT: u64 = 80;

/// The percentage of the window below which compaction brings the history.
const COMPACTED_PERCENT: u64 = 60;

/// The number of the last turns with results that compaction leaves as they are.
const KEPT_TURNS: usize = 2;

impl Machine {
    /// Warns if the next request is long, and compacts the history if the job says so. Ends the run if
    /// the request still exceeds the window.
    pub(super) fn fit_window(&mut self, events: &mut Vec<Event>) -> Option<Action> {
        let input = self.estimate();
        let window = self.model.context_window;
        let is_full = self.is_over(input, FULL_PERCENT);
        if is_full && !self.over_window {
            events.push(Event::warning(
                "context_window",
                format!("the history has about {input} tokens, over {FULL_PERCENT} % of the model's context window of {window}"),
            ));
        }
        self.over_window = is_full;
        // `rebuild` repeats the compactions that the transcript records.
        if self.was_asked {
            return None;
        }
        if is_full && self.rules.compacts {
            let call_ids = self.results_to_compact(input);
            if !call_ids.is_empty() {
                self.compact(&call_ids);
                let estimated_tokens = EstimatedTokens { before: input, after: self.estimate() };
                events.push(Event::Compaction { call_ids, estimated_tokens });
            }
        }
        let input = self.estimate();
        if input <= window {
            return None;
        }
        events.push(Event::TurnLimit { limit: "context_window".to_owned(), value: window.into() });
        let error = format!(
            "the next request has about {input} tokens, more than the model's context window of {window}; it was not sent"
        );
        let message = "Stopped: the context window of the model is full.";
        Some(self.close(StopReason::ContextOverflow, message, Some(error), events))
    }

    fn is_over(&self, input: u64, percent: u64) -> bool {
        input.saturating_mul(100) > self.model.context_window.saturating_mul(percent)
    }

    /// Returns the calls whose results go, oldest first, until the history is short enough.
    fn results_to_compact(&self, input: u64) -> Vec<CallId> {
        let turns = self.history.iter().filter_map(|turn| match turn {
            Turn::ToolResults(results) => Some(results),
            _ => None,
        });
        let turns: Vec<_> = turns.collect();
        let old = turns.len().saturating_sub(KEPT_TURNS);
        let per_token = self.model.characters_per_token;
        let (mut left, mut call_ids) = (input, Vec::new());
        for result in turns.into_iter().take(old).flatten() {
            if !self.is_over(left, COMPACTED_PERCENT) {
                break;
            }
            let saved = Counters::saved_by(result, &stub(&result.name, &result.call_id));
            let saved = tokens_of(saved, per_token);
            if saved > 0 {
                left = left.saturating_sub(saved);
                call_ids.push(result.call_id.clone());
            }
        }
        call_ids
    }

    /// Replaces the results of these calls with stubs.
    pub(in crate::agent) fn compact(&mut self, call_ids: &[CallId]) {
        let per_token = self.model.characters_per_token;
        for at in 0..self.history.len() {
            let Some(Turn::ToolResults(results)) = self.history.get_mut(at) else { continue };
            let mut saved = 0;
            for result in results.iter_mut().filter(|of| call_ids.contains(&of.call_id)) {
                let stub = stub(&result.name, &result.call_id);
                saved += Counters::saved_by(result, &stub);
                result.content = stub;
                result.images.clear();
            }
            let saved = tokens_of(saved, per_token);
            self.counters.forget(at, saved);
        }
        self.over_window = self.is_over(self.estimate(), FULL_PERCENT);
    }
}

/// Returns the line that replaces a result.
fn stub(name: &str, call_id: &CallId) -> String {
    format!(
        "[dutyd removed the output of this call ({name}, {call_id}) to shorten the history. Make the call again if you need it.]"
    )
}
