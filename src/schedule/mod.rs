//! Due times: cron expressions, intervals, zones and jitter.
//!
//! Pure functions of the moment they are given; nobody here asks what time it is. Daylight saving follows croner 4: a fixed time in a gap is
//! due right after it, in an overlap once; intervals and wildcards follow real time (CRON-2).

mod expression;
mod jitter;

pub use expression::{Expression, Schedule, ScheduleError};
pub use jitter::jitter;
