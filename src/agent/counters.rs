//! What a run has used up, and how large its history is.

use std::collections::BTreeSet;

use super::model::ModelReply;
use crate::config::Price;
use crate::domain::{Turn, Usage};
use crate::gate::Spent;

/// Characters that make a token, as long as no provider has counted.
const CHARACTERS_PER_TOKEN: u64 = 4;

/// Characters that a picture counts for: providers take some 1,600 tokens for one of the largest size.
const CHARACTERS_PER_IMAGE: usize = 6400;

/// What a run has used up.
#[derive(Debug, Clone, PartialEq)]
pub struct Counters {
    /// Model responses.
    pub iterations: u64,
    /// What the gate counts.
    pub spent: Spent,
    /// Tools of calls that the gate let through.
    pub tools_used: BTreeSet<String>,
    /// Tokens.
    pub usage: Usage,
    /// US dollars; `None` as soon as a model without a known price has answered.
    pub cost: Option<f64>,
    /// Tokens of the last request that the provider has in its cache now.
    pub cached: u64,
    /// The size of the history at the last count of a provider, and the history's length then.
    counted: Option<(u64, usize)>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            iterations: 0,
            spent: Spent::default(),
            tools_used: BTreeSet::new(),
            usage: Usage::default(),
            cost: Some(0.0),
            cached: 0,
            counted: None,
        }
    }
}

impl Counters {
    /// Counts an answer and returns what it cost; where the provider gave no numbers, estimates stand in.
    pub(crate) fn answer(
        &mut self,
        reply: &ModelReply,
        history_len: usize,
        estimated_input: u64,
        price: Option<Price>,
    ) -> Option<f64> {
        self.iterations += 1;
        // The scripted model counts nothing, and says so.
        let is_free = reply.usage == Some(Usage::default())
            && reply.stop_reason.is_none()
            && price == Some(Price::free());
        // Numbers that are missing or nothing would let a run go past its budgets.
        let mut usage = reply.usage.unwrap_or_default();
        if usage.input_tokens == 0 && !is_free {
            usage.input_tokens = estimated_input;
        }
        let written = reply.text.len()
            + reply.reasoning.as_ref().map_or(0, String::len)
            + reply.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        if usage.output_tokens == 0 && !is_free {
            usage.output_tokens = tokens(written);
        }
        self.usage.add(&usage);
        let is_cached = usage.cached_input_tokens > 0 || reply.cache_write_tokens > 0;
        self.cached = if is_cached { usage.input_tokens } else { 0 };
        let cost = price.map(|price| price.cost(&usage, reply.cache_write_tokens));
        self.cost = self.cost.zip(cost).map(|(before, cost)| before + cost);
        if reply.usage.is_some_and(|usage| usage.input_tokens > 0) {
            self.counted = Some((usage.total(), history_len));
        }
        cost
    }

    /// Returns how many tokens a request with this history is about.
    pub(crate) fn estimate(&self, system: &str, tools_bytes: usize, history: &[Turn]) -> u64 {
        match self.counted {
            Some((counted, len)) => {
                counted.saturating_add(history.iter().skip(len).map(turn_tokens).sum())
            }
            None => tokens(system.len() + tools_bytes)
                .saturating_add(history.iter().map(turn_tokens).sum()),
        }
    }
}

fn tokens(characters: usize) -> u64 {
    (characters as u64).div_ceil(CHARACTERS_PER_TOKEN)
}

fn turn_tokens(turn: &Turn) -> u64 {
    tokens(match turn {
        Turn::User(text) | Turn::Steering(text) => text.len(),
        Turn::Assistant(turn) => {
            turn.text.len() + turn.tool_calls.iter().map(|call| call.name.len() + 40).sum::<usize>()
        }
        Turn::ToolResults(results) => results
            .iter()
            .map(|result| result.content.len() + result.images.len() * CHARACTERS_PER_IMAGE)
            .sum(),
    })
}
