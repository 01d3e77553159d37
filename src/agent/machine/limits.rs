//! Ends the loop although the model would continue: limits, budgets, repetitions.

use serde_json::Number;

use super::{Action, Machine};
use crate::agent::counters::BrokenOff;
use crate::agent::repetition::signature;
use crate::agent::stop::{BUDGET, outer_limit};
use crate::catalogue::{CacheWrites, Price};
use crate::domain::{Event, StopReason, Turn, Usage};

/// The number of detected repetitions that ends a run.
const LAST_DETECTION: u64 = 3;

/// We tell the model when it has used this percentage of a budget.
const NOTICE_PERCENT: u64 = 80;

/// The fewest tokens for which a reply is worth its request. Some providers reject a lower limit.
const SHORTEST_REPLY: u32 = 64;

impl Machine {
    /// Counts the usage and the cost of model calls that broke off.
    pub(in crate::agent) fn charge(&mut self, broken_off: &BrokenOff) {
        self.counters.add(broken_off);
    }

    /// Sets whether a transcript shows that the next request was made. Then the limits that depend on
    /// the price or on an estimate of tokens are not checked again: both may have changed since.
    pub(in crate::agent) fn set_was_asked(&mut self, was_asked: bool) {
        self.was_asked = was_asked;
    }

    /// Checks whether the calls of the last reply complete a repetition. The third detection ends
    /// the run.
    pub(super) fn detect_repetition(&mut self, events: &mut Vec<Event>) -> Option<Action> {
        let window = self.window.as_mut()?;
        let calls = self.history.iter().rev().find_map(|turn| match turn {
            Turn::Assistant(turn) => Some(&turn.tool_calls),
            _ => None,
        })?;
        let length =
            calls.iter().fold(None, |found, call| window.push(signature(call)).or(found))?;
        self.detections += 1;
        let message = "Your last calls repeat without progress. Try a different approach, or give the final answer with what you know and state what you could not do.";
        events.push(Event::LoopDetection {
            message: message.to_owned(),
            pattern_length: length as u64,
            count: self.detections,
        });
        if self.detections >= LAST_DETECTION {
            let error =
                format!("the calls kept repeating: {} repetitions detected", self.detections);
            return Some(self.close(
                StopReason::LoopDetected,
                "Stopped: the calls kept repeating themselves.",
                Some(error),
                events,
            ));
        }
        self.steer(message.to_owned(), "loop_detection", events);
        None
    }

    /// Ends the run for a reason from outside the loop.
    pub(super) fn on_stop(&mut self, reason: StopReason, events: &mut Vec<Event>) -> Action {
        let Some((event, error)) = outer_limit(reason, &self.rules.limits) else {
            return self.end(reason, None, events);
        };
        events.push(event);
        let message = match reason {
            StopReason::MaxDuration => "Stopped: maximum duration reached.",
            _ => "Stopped: the temporary directory is too large.",
        };
        self.close(reason, message, Some(error), events)
    }

    /// Calls the model unless a limit is reached.
    pub(super) fn ask_or_stop(&mut self, events: &mut Vec<Event>) -> Action {
        let limits = self.rules.limits.clone();
        if self.counters.iterations >= limits.max_iterations {
            events.push(Event::TurnLimit {
                limit: "max_iterations".to_owned(),
                value: limits.max_iterations.into(),
            });
            let error = format!("the task was not done after {} iterations", limits.max_iterations);
            return self.close(
                StopReason::MaxIterations,
                "Stopped: maximum iteration limit reached.",
                Some(error),
                events,
            );
        }
        if self.calls_denied_by_budget {
            events.push(Event::TurnLimit {
                limit: "max_tool_calls".to_owned(),
                value: limits.max_tool_calls.into(),
            });
            let error = format!("the task was not done after {} tool calls", limits.max_tool_calls);
            return self.close(
                StopReason::MaxToolCalls,
                "Stopped: maximum tool call limit reached.",
                Some(error),
                events,
            );
        }
        if let Some(action) = self.fit_window(events) {
            return action;
        }
        let input = self.estimate();
        if let Some(most) = limits.max_tokens.filter(|_| !self.was_asked)
            && self
                .counters
                .usage
                .total()
                .saturating_add(input)
                .saturating_add(SHORTEST_REPLY.into())
                > most
        {
            events.push(Event::TurnLimit { limit: "max_tokens".to_owned(), value: most.into() });
            let error = format!(
                "{} tokens used and about {input} for the next request leave too little of the limit of {most} for a reply",
                self.counters.usage.total()
            );
            return self.close(
                StopReason::BudgetExceeded,
                "Stopped: token limit reached.",
                Some(error),
                events,
            );
        }
        if let Some(most) = limits.max_cost_usd.filter(|_| !self.was_asked)
            && let Some(action) = self.stop_at_cost(most, input, events)
        {
            return action;
        }
        self.note_budgets(events);
        Action::CallModel
    }

    /// Estimates the cost of the next request in US dollars: that of its `input` tokens alone,
    /// because the length of the reply is unknown. Returns `None` if the price is unknown.
    fn next_cost(&self, price: Option<Price>, input: u64) -> Option<f64> {
        let cached_input_tokens = self.counters.cached.min(input);
        let next = Usage { input_tokens: input, cached_input_tokens, ..Usage::default() };
        price.map(|price| price.cost(&next, CacheWrites::default()))
    }

    /// Returns the most output tokens of the next reply of a model with this price that `max_tokens` and
    /// `max_cost_usd` still cover; `None` if neither limits the length of a reply.
    pub(in crate::agent) fn reply_limit(&self, price: Option<Price>) -> Option<u32> {
        let of_tokens = self.rules.limits.max_tokens.map(|most| {
            let used = self.counters.usage.total().saturating_add(self.estimate());
            u32::try_from(most.saturating_sub(used)).unwrap_or(u32::MAX)
        });
        [of_tokens, self.affordable_reply(price)].into_iter().flatten().min()
    }

    /// Returns the most output tokens that `max_cost_usd` still covers; `None` without that limit, or if
    /// a cost is unknown.
    fn affordable_reply(&self, price: Option<Price>) -> Option<u32> {
        let most = self.rules.limits.max_cost_usd?;
        let (price, spent) = price.zip(self.counters.cost)?;
        // Count the input in full: the provider may have dropped its cache, or write to it.
        let input = Usage { input_tokens: self.estimate(), ..Usage::default() };
        let written = CacheWrites { all: input.input_tokens, long: 0 };
        let cost = price.cost(&input, CacheWrites::default()).max(price.cost(&input, written));
        price.output_tokens_for(most - spent - cost, &input)
    }

    fn is_reply_too_short(&self, price: Option<Price>) -> bool {
        self.affordable_reply(price).is_some_and(|tokens| tokens < SHORTEST_REPLY)
    }

    /// Estimates the input tokens of the next request.
    pub(in crate::agent) fn estimate(&self) -> u64 {
        let per_token = self.model.characters_per_token;
        self.counters.estimate(&self.system.text, self.tools_bytes, &self.history, per_token)
    }

    /// Tells whether the next request, sent to a fallback model of this price, stays within the
    /// cost limit. Returns `true` without a limit, and `false` if a limit is set but a cost is
    /// unknown.
    pub(in crate::agent) fn affords(&self, price: Option<Price>) -> bool {
        let Some(most) = self.rules.limits.max_cost_usd else { return true };
        let input = self.estimate();
        // The fallback model has none of the history in its cache.
        let next = Usage { input_tokens: input, ..Usage::default() };
        let next = price.map(|price| price.cost(&next, CacheWrites::default()));
        let covers = self.counters.cost.zip(next).is_some_and(|(spent, next)| spent + next <= most);
        covers && !self.is_reply_too_short(price)
    }

    /// Ends the run if the cost so far plus the estimated cost of the next request exceeds `most`
    /// US dollars or leaves less than [`SHORTEST_REPLY`] tokens, or if either cost is unknown.
    fn stop_at_cost(&mut self, most: f64, input: u64, events: &mut Vec<Event>) -> Option<Action> {
        let is_too_short = self.is_reply_too_short(self.model.price);
        let error = match (self.counters.cost, self.next_cost(self.model.price, input)) {
            (Some(spent), Some(next)) if spent + next <= most && !is_too_short => return None,
            (Some(spent), Some(next)) if spent + next <= most => format!(
                "{spent:.4} USD spent and about {next:.4} USD for the next request leave too little of the limit of {most} USD for a reply; raise `max_cost_usd`"
            ),
            (Some(spent), Some(next)) => format!(
                "{spent:.4} USD spent and about {next:.4} USD for the next request exceed the limit of {most} USD"
            ),
            _ => format!(
                "cannot enforce `max_cost_usd` ({most} USD): a model of the run has no known price; add `price:` to it in config.yaml"
            ),
        };
        let value = Number::from_f64(most).unwrap_or_else(|| 0.into());
        events.push(Event::TurnLimit { limit: "max_cost_usd".to_owned(), value });
        Some(self.close(
            StopReason::BudgetExceeded,
            "Stopped: cost limit reached.",
            Some(error),
            events,
        ))
    }

    /// Tells the model, once per budget, when [`NOTICE_PERCENT`] of the budget is used.
    pub(super) fn note_budgets(&mut self, events: &mut Vec<Event>) {
        let limits = &self.rules.limits;
        let crate::gate::Spent { files, lines, .. } = &self.counters.spent;
        let budgets = [
            ("seconds", self.elapsed.as_secs(), limits.max_duration.as_secs()),
            ("files to change", files.len() as u64, limits.max_files_modified),
            ("lines to change", *lines, limits.max_lines_changed),
            ("iterations", self.counters.iterations, limits.max_iterations),
            ("tool calls", self.counters.spent.calls, limits.max_tool_calls),
            ("tokens", self.counters.usage.total(), limits.max_tokens.unwrap_or(u64::MAX)),
        ];
        if let (Some(most), Some(spent)) = (limits.max_cost_usd, self.counters.cost)
            && spent >= most * 0.8
            && self.noticed.insert("cost")
        {
            self.steer(format!("{spent:.4} of {most} USD spent. Wrap up now: finish the essential work and give the final answer."), BUDGET, events);
        }
        for (name, used, most) in budgets {
            if used.saturating_mul(100) >= most.saturating_mul(NOTICE_PERCENT)
                && self.noticed.insert(name)
            {
                self.steer(format!("Budget of {name}: {used} of {most} used. Wrap up now: finish the essential work and give the final answer."), BUDGET, events);
            }
        }
    }
}
