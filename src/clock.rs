//! The clock: the only code that reads the current time.
//!
//! All other code takes a [`DateTime<Utc>`] or a [`Clock`], so that tests set the time instead of
//! waiting for it. Any code may read `Instant`, which only measures spans of time.

use chrono::{DateTime, Utc};

/// A source of wall-clock time in UTC.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the current time.
    fn now(&self) -> DateTime<Utc>;
}

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the only place that reads the clock")]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}
