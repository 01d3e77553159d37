//! Counts what a run has used, and estimates the size of its history.

use std::collections::BTreeSet;

use super::model::ModelReply;
use crate::catalogue::{CacheWrites, Price};
use crate::domain::{DroppedParameter, Event, ToolResult, Turn, Usage};
use crate::gate::Spent;

/// Characters per token, to estimate text whose tokens no provider has counted. Each byte of the
/// text counts as a character.
const CHARACTERS_PER_TOKEN: u64 = 4;

/// An image counts like a text of this many characters. Providers count about 1,600 tokens for an
/// image of the largest size.
const CHARACTERS_PER_IMAGE: usize = 6400;

/// The cost of a reply.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Charge {
    /// In US dollars; `None` if the price is unknown.
    pub usd: Option<f64>,
    /// Whether it rests on the price of a relative of the model.
    pub is_estimated: bool,
}

/// What a run has used so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Counters {
    /// Number of model responses.
    pub iterations: u64,
    /// The counts that the gate checks.
    pub spent: Spent,
    /// Names of the tools in calls for which the gate decided `allow` or `ask`.
    pub tools_used: BTreeSet<String>,
    /// Tokens of all responses, estimated where the provider did not report them.
    pub usage: Usage,
    /// Cost in US dollars; `None` as soon as a model without a known price has answered.
    pub cost: Option<f64>,
    /// Whether a part of the cost rests on the price of a relative of its model.
    pub cost_is_estimated: bool,
    /// Input tokens of the last request if the provider read any of them from its cache or wrote
    /// any to it, otherwise 0.
    pub cached: u64,
    /// The last token count that a provider reported, and the number of turns that it covers.
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
            cost_is_estimated: false,
            cached: 0,
            counted: None,
        }
    }
}

/// The use of the attempts that broke off, estimated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BrokenOff {
    pub(crate) usage: Usage,
    /// In US dollars; `None` if the price of a model is unknown.
    pub(crate) cost: Option<f64>,
    /// Whether a part of the cost rests on an estimated price.
    pub(crate) is_estimated: bool,
}

impl Default for BrokenOff {
    fn default() -> Self {
        Self { usage: Usage::default(), cost: Some(0.0), is_estimated: false }
    }
}

impl BrokenOff {
    /// Returns a warning with this code and with the usage and the cost, if the attempts used any.
    pub(crate) fn warning(&self, code: &str, message: String) -> Event {
        let is_unused = self.usage == Usage::default();
        let usage = (!is_unused).then_some(self.usage);
        let cost_usd = self.cost.filter(|_| !is_unused);
        let mut warning = Event::warning(code, message);
        if let Event::Warning { usage: of, cost_usd: cost, .. } = &mut warning {
            (*of, *cost) = (usage, cost_usd);
        }
        warning
    }

    /// Returns the warning that `model` takes over after `why`.
    pub(crate) fn fallback_warning(&self, model: &str, why: &str) -> Event {
        let mut warning =
            self.warning("model_fallback", format!("{why}; falling back to `{model}`"));
        if let Event::Warning { model: of, .. } = &mut warning {
            *of = Some(model.to_owned());
        }
        warning
    }

    /// Returns the warning about a parameter that a model refuses.
    pub(crate) fn drop_warning(&self, model: &str, parameter: &str, said: &str) -> Event {
        let message = format!(
            "`{model}` refuses `{parameter}`: {said}; dutyd repeats the request in another form"
        );
        let mut warning = self.warning("parameter_dropped", message);
        if let Event::Warning { dropped, .. } = &mut warning {
            let (model, parameter) = (model.to_owned(), parameter.to_owned());
            *dropped = Some(DroppedParameter { model, parameter });
        }
        warning
    }

    /// Adds the use of other attempts.
    pub(crate) fn add(&mut self, other: &Self) {
        self.usage.add(&other.usage);
        self.cost = self.cost.zip(other.cost).map(|(before, cost)| before + cost);
        self.is_estimated |= other.is_estimated;
    }

    /// Counts an attempt with its input and the bytes of its answer that had arrived.
    pub(crate) fn count(&mut self, input_tokens: u64, answer_bytes: u64, price: Option<Price>) {
        let output_tokens = answer_bytes.div_ceil(CHARACTERS_PER_TOKEN);
        let usage = Usage { input_tokens, output_tokens, ..Usage::default() };
        self.usage.add(&usage);
        self.is_estimated |= price.is_some_and(|price| price.is_estimated);
        self.cost = self
            .cost
            .zip(price)
            .map(|(before, price)| before + price.cost(&usage, CacheWrites::default()));
    }
}

impl Counters {
    /// Adds the use of the attempts that broke off.
    pub(crate) fn add(&mut self, broken_off: &BrokenOff) {
        self.usage.add(&broken_off.usage);
        self.cost = self.cost.zip(broken_off.cost).map(|(before, cost)| before + cost);
        self.cost_is_estimated |= broken_off.is_estimated;
    }

    /// Counts a reply and returns its cost: that of the transcript, which has `recorded` it, else one
    /// of `price`. Estimates the token counts that the provider did not report.
    pub(crate) fn answer(
        &mut self,
        reply: &ModelReply,
        history_len: usize,
        estimated_input: u64,
        price: Option<Price>,
        recorded: Option<Charge>,
    ) -> Charge {
        self.iterations += 1;
        // The scripted model, which demos and tests use, reports zero tokens on purpose.
        let is_free = reply.usage == Some(Usage::default())
            && reply.stop_reason.is_none()
            && price.is_some_and(|price| price.is_free());
        // Missing or zero counts would let a run exceed its budgets, so replace them with
        // estimates.
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
        let is_cached = usage.cached_input_tokens > 0 || reply.cache_writes.all > 0;
        self.cached = if is_cached { usage.input_tokens } else { 0 };
        let charge = recorded.unwrap_or_else(|| Charge {
            usd: price.map(|price| price.cost(&usage, reply.cache_writes)),
            is_estimated: price.is_some_and(|price| price.is_estimated),
        });
        self.cost = self.cost.zip(charge.usd).map(|(before, cost)| before + cost);
        self.cost_is_estimated |= charge.is_estimated;
        if reply.usage.is_some_and(|usage| usage.input_tokens > 0) {
            self.counted = Some((usage.total(), history_len));
        }
        charge
    }

    /// Returns how many characters shorter a history becomes when `stub` replaces a result.
    pub(crate) fn saved_by(result: &ToolResult, stub: &str) -> usize {
        let images = result.images.len() * CHARACTERS_PER_IMAGE;
        (result.content.len() + images).saturating_sub(stub.len())
    }

    /// Subtracts tokens of the turn at this index that the history has lost, if a provider has counted
    /// that turn.
    pub(crate) fn forget(&mut self, turn: usize, tokens: u64) {
        if let Some((counted, len)) = &mut self.counted
            && turn < *len
        {
            *counted = counted.saturating_sub(tokens);
        }
    }

    /// Estimates the tokens of a request with this history. `characters_per_token` is `None` if it is
    /// unknown for the model.
    pub(crate) fn estimate(
        &self,
        system: &str,
        tools_bytes: usize,
        history: &[Turn],
        characters_per_token: Option<f64>,
    ) -> u64 {
        let (counted, skipped, before) = match self.counted {
            Some((counted, len)) => (counted, len, 0),
            None => (0, 0, system.len() + tools_bytes),
        };
        let rest = history.iter().skip(skipped).map(characters).sum::<usize>();
        counted.saturating_add(tokens_of(before + rest, characters_per_token))
    }
}

fn tokens(characters: usize) -> u64 {
    (characters as u64).div_ceil(CHARACTERS_PER_TOKEN)
}

/// Estimates the tokens of a text. `characters_per_token` is `None` if it is unknown for the model.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a text is far smaller than 2^52 characters"
)]
pub(super) fn tokens_of(characters: usize, characters_per_token: Option<f64>) -> u64 {
    match characters_per_token.filter(|count| *count > 0.0) {
        Some(characters_per_token) => (characters as f64 / characters_per_token).ceil() as u64,
        None => tokens(characters),
    }
}

/// Returns the size of a turn in bytes, which estimates count as characters.
fn characters(turn: &Turn) -> usize {
    match turn {
        Turn::User(text) | Turn::Steering(text) => text.len(),
        Turn::Assistant(turn) => {
            turn.text.len() + turn.tool_calls.iter().map(|call| call.name.len() + 40).sum::<usize>()
        }
        Turn::ToolResults(results) => results
            .iter()
            .map(|result| result.content.len() + result.images.len() * CHARACTERS_PER_IMAGE)
            .sum(),
    }
}
