//! The clock: the one place that asks what time it is.
//!
//! Everything else is given a [`DateTime<Utc>`] or a [`Clock`], so that tests set the time instead of waiting for it.
//! `Instant` is for measuring and may be read anywhere; wall time may not.

use chrono::{DateTime, Utc};

/// Tells wall time in UTC.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the present moment.
    fn now(&self) -> DateTime<Utc>;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks")]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}
