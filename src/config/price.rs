//! Prices of models.
//!
//! A price in the configuration takes precedence; other prices come from `prices.json`, which also
//! contains the date of these prices.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::raw::RawPrice;
use crate::domain::Usage;

const TOKENS: f64 = 1_000_000.0;

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Rates {
    input: f64,
    output: f64,
    /// Input tokens read from the provider's cache; `None` means the price of input.
    cached_input: Option<f64>,
    /// Input tokens written to the provider's cache; `None` means the price of input.
    cache_write: Option<f64>,
}

/// The price of a model.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Price {
    #[serde(flatten)]
    rates: Rates,
    /// Rates for a whole call with long input; they replace `rates`.
    long: Option<Long>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Long {
    /// The number of input tokens of a call from which these rates apply, inclusive.
    from: u64,
    #[serde(flatten)]
    rates: Rates,
}

#[derive(Debug, Deserialize)]
struct Table {
    as_of: String,
    models: BTreeMap<String, Price>,
}

static TABLE: LazyLock<Option<Table>> =
    LazyLock::new(|| serde_json::from_str(include_str!("prices.json")).ok());

impl Price {
    /// Returns how many output tokens `usd` covers, after a request with this input; `None` if output
    /// is free.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is between the bounds of the type"
    )]
    pub fn output_tokens_for(&self, usd: f64, input: &Usage) -> Option<u32> {
        let rate = self.rates_for(input).output;
        let tokens = (usd / rate * TOKENS).clamp(0.0, f64::from(u32::MAX));
        (rate > 0.0).then_some(tokens as u32)
    }

    /// Returns a price of zero.
    #[must_use]
    pub fn free() -> Self {
        let rates = Rates { input: 0.0, output: 0.0, cached_input: None, cache_write: None };
        Self { rates, long: None }
    }

    pub(crate) fn from_raw(raw: &RawPrice) -> Option<Self> {
        let rates = Rates {
            input: raw.input?,
            output: raw.output?,
            cached_input: raw.cached_input,
            cache_write: raw.cache_write,
        };
        Some(Self { rates, long: None })
    }

    /// Returns the built-in price of a model. Ignores a date or another version suffix at the end
    /// of the name.
    #[must_use]
    pub fn of(model: &str) -> Option<Self> {
        let known = &TABLE.as_ref()?.models;
        let model = model.strip_prefix("models/").unwrap_or(model);
        // Suffixes such as `-20250929`, `-2025-08-07`, `@20250929`, `-001` and `-latest` name a
        // version of the same model. Any other suffix names another model.
        let is_version = |rest: &str| {
            rest == "-latest"
                || rest.strip_prefix(['-', '@']).is_some_and(|rest| {
                    let shape: String =
                        rest.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
                    matches!(shape.as_str(), "00000000" | "0000-00-00" | "000")
                })
        };
        known.get(model).copied().or_else(|| {
            known
                .iter()
                .find(|(name, _)| model.strip_prefix(name.as_str()).is_some_and(is_version))
                .map(|(_, price)| *price)
        })
    }

    /// Returns the date of the built-in prices.
    #[must_use]
    pub fn as_of() -> &'static str {
        TABLE.as_ref().map(|table| table.as_of.as_str()).unwrap_or_default()
    }

    fn rates_for(&self, usage: &Usage) -> Rates {
        match self.long {
            Some(long) if usage.input_tokens >= long.from => long.rates,
            _ => self.rates,
        }
    }

    /// Returns the cost of a call in US dollars. `written` is the number of input tokens that the
    /// provider wrote to its cache.
    #[must_use]
    pub fn cost(&self, usage: &Usage, written: u64) -> f64 {
        let rates = self.rates_for(usage);
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let written = written.min(usage.input_tokens - cached);
        let plain = usage.input_tokens - cached - written;
        #[expect(clippy::cast_precision_loss, reason = "token counts stay far below 2^52")]
        let cost = |tokens: u64, rate: f64| tokens as f64 / TOKENS * rate;
        cost(plain, rates.input)
            + cost(cached, rates.cached_input.unwrap_or(rates.input))
            + cost(written, rates.cache_write.unwrap_or(rates.input))
            + cost(usage.output_tokens, rates.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole_and_finds_models_by_name_and_date() {
        assert!(Price::as_of().starts_with("20"), "prices.json cannot be read");
        let sonnet = Price::of("claude-sonnet-4-5-20250929").unwrap();
        assert_eq!(Some(sonnet), Price::of("claude-sonnet-4-5"));
        assert_ne!(Price::of("gpt-5-mini"), Price::of("gpt-5"));
        assert_eq!(Price::of("gpt-5-2025-08-07"), Price::of("gpt-5"));
        assert_eq!(Price::of("gpt-5-unheard-of"), None);
        for other in ["gpt-5-3", "claude-opus-4-7", "claude-opus-4-7-20270101"] {
            assert_eq!(Price::of(other), None, "{other}");
        }
    }

    #[test]
    fn cached_and_written_input_have_their_own_price() {
        let price = Price::of("claude-sonnet-4-5").unwrap();
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cached_input_tokens: 600_000,
            reasoning_tokens: 0,
        };
        // Above 200,000 input tokens, the rates are 6 for input, 0.6 for cached input, 7.5 for
        // cache writes and 22.5 for output.
        let cost = price.cost(&usage, 100_000);
        assert!((cost - (1.8 + 0.36 + 0.75 + 2.25)).abs() < 1e-9, "{cost}");
        assert!(Price::free().cost(&usage, 0).abs() < f64::EPSILON);
    }
}
