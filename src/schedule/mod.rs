//! Due times: cron expressions, intervals, zones and jitter.
//!
//! All functions are pure: the caller passes in the time. Daylight saving follows croner 4. A fixed
//! time that a clock change skips is due right after the change, and one that occurs twice is due
//! once. Intervals and wildcards follow real time (CRON-2).

mod advice;
mod expression;
mod expressions;
mod gap;
mod jitter;

pub use expression::{Expression, Folded, Schedule, ScheduleError, SkippedTime};
pub use expressions::Expressions;
pub use jitter::jitter;
