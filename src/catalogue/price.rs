//! Prices of models, in US dollars per million tokens.
//!
//! A price may apply on certain days, cost more at certain hours, and have higher rates for long
//! input. [`Prices::at`] returns the rates of a moment; they stay the same for one model call.

use std::sync::Arc;

use chrono::{DateTime, Datelike as _, NaiveDate, NaiveTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::Usage;

const TOKENS: f64 = 1_000_000.0;

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub input: f64,
    pub output: f64,
    /// Input tokens read from the provider's cache; `None` means the price of input.
    pub cached_input: Option<f64>,
    /// Input tokens written to the provider's cache; `None` means the price of input.
    pub cache_write: Option<f64>,
    /// Input tokens written to the cache for a long lifetime; `None` means the price of
    /// `cache_write`.
    pub cache_write_long: Option<f64>,
}

impl Rates {
    fn times(self, factor: f64) -> Self {
        let times = |rate: Option<f64>| rate.map(|rate| rate * factor);
        Self {
            input: self.input * factor,
            output: self.output * factor,
            cached_input: times(self.cached_input),
            cache_write: times(self.cache_write),
            cache_write_long: times(self.cache_write_long),
        }
    }
}

/// A price and the days on which it applies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceRow {
    /// Price of input tokens.
    #[schemars(range(min = 0))]
    pub input: f64,
    /// Price of output tokens, including reasoning.
    #[schemars(range(min = 0))]
    pub output: f64,
    /// Price of input tokens read from the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub cached_input: Option<f64>,
    /// Price of input tokens written to the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub cache_write: Option<f64>,
    /// Price of input tokens written to the cache for its long lifetime. Defaults to `cache_write`.
    #[schemars(range(min = 0))]
    pub cache_write_long: Option<f64>,
    /// Rates of a request with long input.
    pub long: Option<LongRow>,
    /// First day on which the price applies, in UTC.
    pub from: Option<NaiveDate>,
    /// Last day on which the price applies, in UTC.
    pub until: Option<NaiveDate>,
    /// Hours with higher rates.
    pub peak: Option<PeakRow>,
}

/// The rates of a request with long input.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LongRow {
    /// Number of input tokens of a request above which these rates apply.
    pub above: u64,
    /// Tokens to which they apply. Defaults to the whole request.
    #[serde(default)]
    pub scope: LongScope,
    /// Price of input tokens.
    #[schemars(range(min = 0))]
    pub input: f64,
    /// Price of output tokens.
    #[schemars(range(min = 0))]
    pub output: f64,
    /// Price of input tokens read from the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub cached_input: Option<f64>,
    /// Price of input tokens written to the provider's cache. Defaults to `input`.
    #[schemars(range(min = 0))]
    pub cache_write: Option<f64>,
    /// Price of input tokens written to the cache for its long lifetime. Defaults to `cache_write`.
    #[schemars(range(min = 0))]
    pub cache_write_long: Option<f64>,
}

/// The tokens to which the rates for long input apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LongScope {
    /// All tokens of the request and of its answer.
    #[default]
    Request,
    /// The input tokens above the number, and no output.
    Part,
}

/// Hours with higher rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeakRow {
    /// Factor of all rates in these hours.
    #[schemars(range(min = 1, max = 100))]
    pub factor: f64,
    /// Whether the hours apply on Saturdays and Sundays too.
    #[serde(default)]
    pub weekends: bool,
    /// Spans of hours in UTC, such as 01:00-04:00.
    #[schemars(inner(regex(pattern = r"^[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]$")))]
    pub hours: Vec<String>,
}

impl PeakRow {
    fn covers(&self, at: DateTime<Utc>) -> bool {
        let is_weekend = at.weekday().num_days_from_monday() >= 5;
        let now = at.time();
        (self.weekends || !is_weekend)
            && self.hours.iter().filter_map(|span| parse_span(span)).any(|(from, until)| {
                if from <= until { from <= now && now < until } else { from <= now || now < until }
            })
    }
}

/// Returns the start and the end of a span of hours; `None` if it is not one.
fn parse_span(span: &str) -> Option<(NaiveTime, NaiveTime)> {
    let (from, until) = span.split_once('-')?;
    let time = |text: &str| NaiveTime::parse_from_str(text, "%H:%M").ok();
    time(from).zip(time(until))
}

impl PriceRow {
    /// Returns what is wrong with the row.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let long = self.long.iter().flat_map(|long| {
            [Some(long.input), Some(long.output), long.cached_input, long.cache_write]
                .into_iter()
                .chain([long.cache_write_long])
        });
        let rates = [Some(self.input), Some(self.output), self.cached_input, self.cache_write];
        let mut all = rates.into_iter().chain([self.cache_write_long]).chain(long).flatten();
        if all.any(|rate| !(rate.is_finite() && rate >= 0.0)) {
            problems.push("a price is negative".to_owned());
        }
        if let (Some(from), Some(until)) = (self.from, self.until)
            && until < from
        {
            problems.push(format!("the price ends on {until}, before it begins on {from}"));
        }
        for span in self.peak.iter().flat_map(|peak| &peak.hours) {
            if parse_span(span).is_none() {
                problems.push(format!("`{span}` is not a span of hours: write 01:00-04:00"));
            }
        }
        problems
    }

    fn begins(&self) -> NaiveDate {
        self.from.unwrap_or(NaiveDate::MIN)
    }

    fn ends(&self) -> NaiveDate {
        self.until.unwrap_or(NaiveDate::MAX)
    }

    fn rates(&self) -> Price {
        Price {
            rates: Rates {
                input: self.input,
                output: self.output,
                cached_input: self.cached_input,
                cache_write: self.cache_write,
                cache_write_long: self.cache_write_long,
            },
            long: self.long.map(|long| Long {
                above: long.above,
                scope: long.scope,
                rates: Rates {
                    input: long.input,
                    output: long.output,
                    cached_input: long.cached_input,
                    cache_write: long.cache_write,
                    cache_write_long: long.cache_write_long,
                },
            }),
            is_estimated: false,
        }
    }
}

/// The prices of a model over time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prices {
    rows: Arc<[PriceRow]>,
    is_estimated: bool,
}

impl Prices {
    /// Returns a price of these two rates, on any day.
    #[cfg(test)]
    pub(crate) fn flat(input: f64, output: f64) -> Self {
        let rows = serde_json::json!([{"input": input, "output": output}]);
        Self::new(serde_json::from_value(rows).unwrap())
    }

    #[must_use]
    pub fn new(rows: Vec<PriceRow>) -> Self {
        Self { rows: rows.into(), is_estimated: false }
    }

    /// Returns a price of zero.
    #[must_use]
    pub fn free() -> Self {
        let zero = PriceRow {
            input: 0.0,
            output: 0.0,
            cached_input: None,
            cache_write: None,
            cache_write_long: None,
            long: None,
            from: None,
            until: None,
            peak: None,
        };
        Self::new(vec![zero])
    }

    /// Returns these prices, marked as those of a relative.
    #[must_use]
    pub fn estimated(&self) -> Self {
        Self { is_estimated: true, ..self.clone() }
    }

    #[must_use]
    pub fn is_estimated(&self) -> bool {
        self.is_estimated
    }

    /// Tells whether a price has applied by the day of `at`.
    #[must_use]
    pub fn is_known(&self, at: DateTime<Utc>) -> bool {
        self.row(at).is_some()
    }

    /// Returns the last day of the newest price, if it is before the day of `at`.
    #[must_use]
    pub fn expired(&self, at: DateTime<Utc>) -> Option<NaiveDate> {
        self.row(at)?.until.filter(|until| *until < at.date_naive())
    }

    /// Returns the price at a moment. If no price applies any more, returns the last one. `None` if
    /// there is none yet.
    #[must_use]
    pub fn at(&self, at: DateTime<Utc>) -> Option<Price> {
        let row = self.row(at)?;
        let price = row.rates();
        let factor = row.peak.as_ref().filter(|peak| peak.covers(at)).map_or(1.0, |p| p.factor);
        let long = price.long.map(|long| Long { rates: long.rates.times(factor), ..long });
        Some(Price { rates: price.rates.times(factor), long, is_estimated: self.is_estimated })
    }

    fn row(&self, at: DateTime<Utc>) -> Option<&PriceRow> {
        let day = at.date_naive();
        let begun = self.rows.iter().filter(|row| row.begins() <= day);
        begun.max_by_key(|row| (row.ends() >= day, row.begins()))
    }

    /// Returns what is wrong with the rows.
    pub(super) fn problems_of(rows: &[PriceRow]) -> Vec<String> {
        let mut problems: Vec<String> = rows.iter().flat_map(PriceRow::problems).collect();
        for (at, one) in rows.iter().enumerate() {
            let mut later = rows.iter().skip(at + 1);
            if later.any(|other| one.begins() <= other.ends() && other.begins() <= one.ends()) {
                problems.push("two prices apply on the same day".to_owned());
            }
        }
        problems
    }
}

/// The price of a model at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    rates: Rates,
    long: Option<Long>,
    /// Whether the price is that of a relative of the model.
    pub is_estimated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Long {
    above: u64,
    scope: LongScope,
    rates: Rates,
}

/// Input tokens that a call wrote to the provider's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheWrites {
    /// All of them.
    pub all: u64,
    /// Those for the long lifetime.
    pub long: u64,
}

impl Price {
    /// Returns a price of these two rates.
    #[cfg(test)]
    pub(crate) fn flat(input: f64, output: f64) -> Self {
        let rates =
            Rates { input, output, cached_input: None, cache_write: None, cache_write_long: None };
        Self { rates, long: None, is_estimated: false }
    }

    /// Returns how many output tokens `usd` covers, after a request with this input; `None` if output
    /// is free.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is between the bounds of the type"
    )]
    pub fn output_tokens_for(&self, usd: f64, input: &Usage) -> Option<u32> {
        let rate = self.whole_rates(input).output;
        let tokens = (usd / rate * TOKENS).clamp(0.0, f64::from(u32::MAX));
        (rate > 0.0).then_some(tokens as u32)
    }

    /// Tells whether nothing costs anything.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.rates.input <= 0.0 && self.rates.output <= 0.0 && self.long.is_none()
    }

    /// Returns the price of a million output tokens and of a million input tokens, to compare
    /// prices.
    #[must_use]
    pub fn rank(&self) -> (f64, f64) {
        let rates = self.long.map_or(self.rates, |long| long.rates);
        (rates.output.max(self.rates.output), rates.input.max(self.rates.input))
    }

    /// Returns the rates of a request without long input, peak hours included.
    #[must_use]
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Returns the rates that apply to the output and, unless only a part is dearer, to the input.
    fn whole_rates(&self, usage: &Usage) -> Rates {
        match self.long {
            Some(long) if usage.input_tokens > long.above && long.scope == LongScope::Request => {
                long.rates
            }
            _ => self.rates,
        }
    }

    /// Returns the cost of a call in US dollars.
    #[must_use]
    pub fn cost(&self, usage: &Usage, writes: CacheWrites) -> f64 {
        let rates = self.whole_rates(usage);
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let written = writes.all.min(usage.input_tokens - cached);
        let long_written = writes.long.min(written);
        let plain = usage.input_tokens - cached - written;
        let write_rate = rates.cache_write.unwrap_or(rates.input);
        let cost = cost_of(plain, rates.input)
            + cost_of(cached, rates.cached_input.unwrap_or(rates.input))
            + cost_of(written - long_written, write_rate)
            + cost_of(long_written, rates.cache_write_long.unwrap_or(write_rate))
            + cost_of(usage.output_tokens, rates.output);
        cost + self.surcharge(usage)
    }

    /// Returns what the part of the input above the limit costs more.
    fn surcharge(&self, usage: &Usage) -> f64 {
        let Some(long) = self.long.filter(|long| long.scope == LongScope::Part) else { return 0.0 };
        let above = usage.input_tokens.saturating_sub(long.above);
        cost_of(above, (long.rates.input - self.rates.input).max(0.0))
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts stay far below 2^52")]
fn cost_of(tokens: u64, rate: f64) -> f64 {
    tokens as f64 / TOKENS * rate
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(rows: &str) -> Prices {
        Prices::new(serde_json::from_str(rows).unwrap())
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn usage(input: u64, cached: u64, output: u64) -> Usage {
        Usage {
            input_tokens: input,
            output_tokens: output,
            cached_input_tokens: cached,
            reasoning_tokens: 0,
        }
    }

    #[track_caller]
    fn check(price: Price, usage: &Usage, writes: CacheWrites, expected: f64) {
        let cost = price.cost(usage, writes);
        assert!((cost - expected).abs() < 1e-9, "{cost}, expected {expected}");
    }

    #[test]
    fn cached_and_written_input_have_their_own_price() {
        let rows = r#"[{"input": 3, "output": 15, "cached_input": 0.3, "cache_write": 3.75,
            "cache_write_long": 6, "long": {"above": 200000, "input": 6, "output": 22.5,
            "cached_input": 0.6, "cache_write": 7.5}}]"#;
        let price = prices(rows).at(at("2026-11-25T00:00:00Z")).unwrap();
        let writes = CacheWrites { all: 100_000, long: 0 };
        check(price, &usage(1_000_000, 600_000, 100_000), writes, 1.8 + 0.36 + 0.75 + 2.25);
        check(price, &usage(200_000, 0, 0), CacheWrites::default(), 0.6);
        check(price, &usage(200_001, 0, 0), CacheWrites::default(), 1.200_006);
        let writes = CacheWrites { all: 100_000, long: 50_000 };
        check(price, &usage(100_000, 0, 0), writes, 0.1875 + 0.3);
        let free = Prices::free().at(at("2026-11-25T00:00:00Z")).unwrap();
        assert!(free.is_free());
        check(free, &usage(1_000_000, 0, 1_000_000), writes, 0.0);
    }

    #[test]
    fn the_rates_for_long_input_may_apply_to_a_part() {
        let rows = r#"[{"input": 1, "output": 2, "long": {"above": 100000, "scope": "part",
            "input": 3, "output": 4}}]"#;
        let price = prices(rows).at(at("2026-11-25T00:00:00Z")).unwrap();
        check(price, &usage(300_000, 0, 100_000), CacheWrites::default(), 0.1 + 0.6 + 0.2);
    }

    #[test]
    fn a_price_applies_from_its_first_to_its_last_day() {
        let rows = prices(
            r#"[{"input": 2, "output": 10, "until": "2026-11-30"},
                {"input": 4, "output": 20, "from": "2026-12-01", "until": "2026-12-31"}]"#,
        );
        let input = |day: &str| rows.at(at(day)).map(|price| price.rates.input);
        assert_eq!(input("2026-11-30T23:59:59Z"), Some(2.0));
        assert_eq!(input("2026-12-01T00:00:00Z"), Some(4.0));
        assert_eq!(input("2027-03-01T00:00:00Z"), Some(4.0));
        assert_eq!(rows.expired(at("2026-12-31T12:00:00Z")), None);
        assert!(rows.expired(at("2027-01-01T00:00:00Z")).is_some());
        let tomorrow = prices(r#"[{"input": 2, "output": 10, "from": "2026-11-26"}]"#);
        assert_eq!(tomorrow.at(at("2026-11-25T23:00:00Z")), None);
    }

    #[test]
    fn hours_may_cost_more() {
        let rows = prices(
            r#"[{"input": 1, "output": 2, "peak": {"factor": 2, "hours": ["01:00-04:00", "22:00-00:30"]}}]"#,
        );
        let input = |time: &str| rows.at(at(time)).unwrap().rates.input;
        assert!((input("2026-11-25T03:59:59Z") - 2.0).abs() < 1e-9);
        assert!((input("2026-11-25T04:00:00Z") - 1.0).abs() < 1e-9);
        assert!((input("2026-11-25T00:29:00Z") - 2.0).abs() < 1e-9);
        // A Saturday.
        assert!((input("2026-11-28T03:00:00Z") - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_price_that_cannot_be_right_is_a_problem() {
        for rows in [
            r#"[{"input": -1, "output": 2}]"#,
            r#"[{"input": 1, "output": 2, "long": {"above": 1, "input": 1, "output": -2}}]"#,
            r#"[{"input": 1, "output": 2, "from": "2026-12-01", "until": "2026-11-01"}]"#,
            r#"[{"input": 1, "output": 2}, {"input": 1, "output": 2, "from": "2026-12-01"}]"#,
            r#"[{"input": 1, "output": 2, "peak": {"factor": 2, "hours": ["25:00-26:00"]}}]"#,
        ] {
            let rows: Vec<PriceRow> = serde_json::from_str(rows).unwrap();
            assert!(!Prices::problems_of(&rows).is_empty(), "{rows:?}");
        }
    }
}
