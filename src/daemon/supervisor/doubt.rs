//! Doubts a clock that was set far forward until that has lasted (CRON-8).
//!
//! Otherwise, a clock that is wrong for some seconds would decide the due times of years as missed. At
//! the start of the daemon, we cannot distinguish a step from a downtime, so we believe it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::Supervisor;

/// A longer step forward is not believed at once. Few machines sleep for longer.
pub(super) const PLAUSIBLE: TimeDelta = TimeDelta::days(30);

/// How long such a step must last.
const LASTING: Duration = Duration::from_mins(1);

/// A step of the clock that is not believed yet.
#[derive(Debug, Clone, Copy)]
struct Step {
    began: Instant,
    /// The first time that the clock showed after the step.
    shown: DateTime<Utc>,
}

/// The doubt about the clock, if there is one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Doubt(Option<Step>);

impl Doubt {
    /// Tells whether `now` is in doubt: the clock was set forward by more than [`PLAUSIBLE`] since
    /// `last_seen`, and has not shown the new time for [`LASTING`]. `at` is the moment of the reading.
    fn holds(&mut self, now: DateTime<Utc>, last_seen: DateTime<Utc>, at: Instant) -> bool {
        if now - last_seen <= PLAUSIBLE {
            self.0 = None;
            return false;
        }
        let same = self.0.filter(|step| (now - step.shown).abs() <= PLAUSIBLE);
        let step = same.unwrap_or_else(|| {
            tracing::warn!(before = %last_seen, %now, "the clock was set far forward; no slot is decided until that has lasted for a minute");
            Step { began: at, shown: now }
        });
        self.0 = (at.duration_since(step.began) < LASTING).then_some(step);
        self.is_open()
    }

    /// Returns `now`, or `last_seen` if `now` is in doubt. Unlike [`Self::holds`], begins no doubt.
    fn believed(self, now: DateTime<Utc>, last_seen: DateTime<Utc>, at: Instant) -> DateTime<Utc> {
        let has_lasted = |step: Step| {
            (now - step.shown).abs() <= PLAUSIBLE && at.duration_since(step.began) >= LASTING
        };
        let is_believed = now - last_seen <= PLAUSIBLE || self.0.is_some_and(has_lasted);
        if is_believed { now } else { last_seen }
    }

    /// Tells whether the last reading was in doubt.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }
}

impl Supervisor {
    /// Tells whether the clock may be wrong, so that the daemon must not act on it.
    pub(super) fn is_in_doubt(&mut self, now: DateTime<Utc>) -> bool {
        self.due.doubt.holds(now, self.due.last_seen, Instant::now())
    }

    /// Returns the time of the clock, or the last one that is believed.
    pub(super) fn believed(&self) -> DateTime<Utc> {
        let now = self.parts.host.clock.now();
        self.due.doubt.believed(now, self.due.last_seen, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves CRON-8
    #[tokio::test(start_paused = true)]
    async fn a_step_by_years_is_believed_once_it_has_lasted() {
        let (mut doubt, begun) = (Doubt::default(), Instant::now());
        let day = |day| DateTime::<Utc>::UNIX_EPOCH + TimeDelta::days(day);
        let second = |second| begun + Duration::from_secs(second);
        assert!(!doubt.holds(day(30), day(0), begun), "the machine may have slept");
        assert!(doubt.holds(day(4000), day(0), second(1)));
        assert!(doubt.holds(day(4000), day(0), second(60)));
        assert_eq!(doubt.believed(day(4000), day(0), second(60)), day(0));
        assert_eq!(doubt.believed(day(4000), day(0), second(62)), day(4000), "it has lasted");
        assert_eq!(doubt.believed(day(9000), day(0), second(62)), day(0), "another step");
        assert_eq!(doubt.believed(day(30), day(0), second(2)), day(30));
        assert!(!doubt.holds(day(0), day(0), second(61)), "the clock is right again");
        assert!(doubt.holds(day(4000), day(0), second(62)));
        assert!(doubt.holds(day(9000), day(0), second(100)), "another step");
        assert!(doubt.holds(day(9000), day(0), second(159)));
        assert!(!doubt.holds(day(9000), day(0), second(160)), "it has lasted");
        assert!(!doubt.is_open());
    }
}
