//! A model on hold: it gave no answer to a run, so the runs that need it wait.
//!
//! *Source*: `docs/design/config.md`, "When a model is unavailable".

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// The first hold, and the longest one that dutyd chooses by itself.
const CHOSEN: (Duration, Duration) = (Duration::from_mins(1), Duration::from_mins(15));

/// The longest hold that a provider can ask for.
const LONGEST: Duration = Duration::from_hours(6);

/// How long a model must answer until its outage is over. A provider that flaps has one outage.
const SETTLED: TimeDelta = TimeDelta::seconds(60);

/// The shortest pause of a provider that counts. A shorter one is the same as none.
const SHORTEST: Duration = Duration::from_secs(1);

/// A model that gave a run no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// The name of the model in the configuration.
    pub model: String,
    /// The digest of what decides whether the model answers: provider, address, model, key, headers.
    pub settings: String,
    /// The error, as one line.
    pub cause: String,
    /// The pause for which the provider asks.
    pub retry_after: Option<Duration>,
    /// When the model failed.
    pub at: DateTime<Utc>,
}

/// A model on hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The name of the model in the configuration.
    pub model: String,
    /// As in [`Outage::settings`].
    pub settings: String,
    /// The last error, as one line.
    pub cause: String,
    /// When the outage began.
    pub since: DateTime<Utc>,
    /// When one run may ask the model again.
    pub until: DateTime<Utc>,
    /// The number of runs that the model failed, one after another.
    pub failures: u32,
    /// When the model answered again; `None` while runs wait. The outage is over once that has lasted.
    pub answered_at: Option<DateTime<Utc>>,
    /// The destinations that were told of the outage.
    pub told: Vec<String>,
}

impl Hold {
    /// Returns the hold that an outage begins.
    #[must_use]
    pub fn begin(outage: Outage) -> Self {
        let Outage { model, settings, cause, retry_after, at } = outage;
        let (until, told) = (at + pause(1, retry_after), Vec::new());
        Self { model, settings, cause, since: at, until, failures: 1, answered_at: None, told }
    }

    /// Returns the hold after the run that asked the model again has failed too.
    #[must_use]
    pub fn again(&self, outage: Outage) -> Self {
        let failures = self.failures.saturating_add(1);
        let until = outage.at + pause(failures, outage.retry_after);
        let (since, told) = (self.since, self.told.clone());
        Self { since, until, failures, told, ..Self::begin(outage) }
    }

    /// Returns the hold after another run that had begun before it has failed: it lasts longer only if
    /// the provider asks for that.
    #[must_use]
    pub fn extended(&self, outage: &Outage) -> Self {
        let asked = asked(outage.retry_after).map(|asked| outage.at + asked);
        Self { until: asked.map_or(self.until, |asked| asked.max(self.until)), ..self.clone() }
    }

    /// Returns the hold of a model that has answered.
    #[must_use]
    pub fn answered(&self, now: DateTime<Utc>) -> Self {
        Self { answered_at: Some(now), ..self.clone() }
    }

    /// Returns the hold as far as its times can be true: a row may be damaged, or the clock wrong.
    #[must_use]
    pub fn bounded(self, now: DateTime<Utc>) -> Self {
        let longest = TimeDelta::from_std(LONGEST).unwrap_or_default();
        Self {
            until: self.until.min(now + longest),
            since: self.since.min(now),
            answered_at: self.answered_at.map(|at| at.min(now)),
            ..self
        }
    }

    /// Tells whether the model has answered long enough for the outage to be over.
    #[must_use]
    pub fn has_recovered(&self, now: DateTime<Utc>) -> bool {
        self.answered_at.is_some_and(|answered_at| now - answered_at >= SETTLED)
    }

    /// Tells whether a run may ask the model again.
    #[must_use]
    pub fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.until <= now
    }

    /// *Shape*: ``the model `main` is on hold until 2026-11-26 03:12:00 UTC (since 2026-11-26 02:57:00 UTC): HTTP 503``.
    #[must_use]
    pub fn describe(&self, now: DateTime<Utc>) -> String {
        let Self { model, since, cause, .. } = self;
        let end = match self.until {
            until if until > now => format!("until {}", second(until)),
            _ => "until a run has asked it again".to_owned(),
        };
        format!("the model `{model}` is on hold {end} (since {}): {cause}", second(*since))
    }
}

/// Returns a time to the second, in UTC.
fn second(at: DateTime<Utc>) -> impl std::fmt::Display {
    at.format("%Y-%m-%d %H:%M:%S UTC")
}

/// Returns how long a model is on hold after so many failures.
fn pause(failures: u32, retry_after: Option<Duration>) -> TimeDelta {
    let doublings = failures.saturating_sub(1).min(8);
    let chosen = CHOSEN.0.saturating_mul(1 << doublings).min(CHOSEN.1);
    asked(retry_after).unwrap_or(TimeDelta::from_std(chosen).unwrap_or_default())
}

/// Returns the pause for which the provider asks, as far as it counts.
fn asked(retry_after: Option<Duration>) -> Option<TimeDelta> {
    let asked = retry_after.filter(|asked| *asked >= SHORTEST)?;
    TimeDelta::from_std(asked.min(LONGEST)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(retry_after: Option<u64>) -> Outage {
        Outage {
            model: "main".to_owned(),
            settings: "s".to_owned(),
            cause: "HTTP 503".to_owned(),
            retry_after: retry_after.map(Duration::from_secs),
            at: DateTime::UNIX_EPOCH,
        }
    }

    fn seconds(hold: &Hold) -> i64 {
        hold.until.timestamp()
    }

    #[test]
    fn a_hold_lasts_a_minute_and_doubles_up_to_a_quarter_of_an_hour() {
        let mut hold = Hold::begin(outage(None));
        let mut minutes = vec![seconds(&hold) / 60];
        for _ in 0..5 {
            hold = hold.again(outage(None));
            minutes.push(seconds(&hold) / 60);
        }
        assert_eq!(minutes, [1, 2, 4, 8, 15, 15]);
        assert_eq!((hold.failures, hold.since), (6, DateTime::UNIX_EPOCH));
    }

    #[test]
    fn the_provider_sets_the_time_up_to_six_hours() {
        let lasts = |asked| seconds(&Hold::begin(outage(Some(asked))));
        assert_eq!([lasts(7200), lasts(20), lasts(0), lasts(u64::MAX)], [7200, 20, 60, 21_600]);
        let hold = Hold::begin(outage(None));
        for (asked, until) in [(None, 60), (Some(0), 60), (Some(5), 60), (Some(600), 600)] {
            assert_eq!(seconds(&hold.extended(&outage(asked))), until, "{asked:?}");
        }
    }

    #[test]
    fn a_hold_is_described_and_a_damaged_one_is_bounded() {
        let (hold, began) = (Hold::begin(outage(None)), DateTime::UNIX_EPOCH);
        assert_eq!(
            hold.describe(began),
            "the model `main` is on hold until 1970-01-01 00:01:00 UTC (since 1970-01-01 00:00:00 UTC): HTTP 503"
        );
        assert!(hold.describe(hold.until).contains("until a run has asked it again"));
        let far = DateTime::<Utc>::MAX_UTC;
        let bounded =
            Hold { until: far, since: far, answered_at: Some(far), ..hold }.bounded(began);
        assert_eq!((seconds(&bounded), bounded.answered_at), (21_600, Some(began)));
        assert_eq!(bounded.since, began);
    }
}
