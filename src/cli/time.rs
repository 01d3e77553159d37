//! Parses times that a user types.

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Utc};

use super::error::CliError;
use crate::text::quantity;

/// Parses a moment: RFC 3339, a date with or without a time (UTC), or a duration back from `now`.
///
/// *Errors*: `text` is none of these.
pub(crate) fn moment(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, CliError> {
    if let Some(at) = written(text) {
        return Ok(at);
    }
    let back = quantity::duration(text).ok().and_then(|back| TimeDelta::from_std(back).ok());
    back.and_then(|back| now.checked_sub_signed(back)).ok_or_else(|| {
        CliError::usage(format!("`{text}` is not a time: write 2026-11-21T03:00:00Z, 2026-11-21 03:00 (UTC), 2026-11-21, or a duration back from now such as 2h"))
    })
}

/// Returns the least id of a run that began at `at` or later. Run ids are ULIDs, so they sort by time.
pub(crate) fn first_id(at: DateTime<Utc>) -> String {
    let millis = u64::try_from(at.timestamp_millis()).unwrap_or(0);
    ulid::Ulid::from_parts(millis, 0).to_string().to_ascii_lowercase()
}

/// Parses a moment in the future: a time as for [`moment`], or a duration from `now`.
///
/// *Errors*: `text` is neither, or a time in the past.
pub(crate) fn later_moment(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, CliError> {
    let from_now = quantity::duration(text).ok().and_then(|of| TimeDelta::from_std(of).ok());
    let from_now = from_now.and_then(|of| now.checked_add_signed(of));
    match written(text).or(from_now) {
        Some(at) if at > now => Ok(at),
        Some(at) => Err(CliError::usage(format!("`{text}` is in the past ({})", at.to_rfc3339()))),
        None => Err(CliError::usage(format!(
            "`{text}` is not a time: write 2026-11-21T03:00:00Z, 2026-11-21 03:00 (UTC), 2026-11-21, or a duration from now such as 2h"
        ))),
    }
}

/// Parses RFC 3339, or a date with or without a time (UTC).
fn written(text: &str) -> Option<DateTime<Utc>> {
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return Some(at.to_utc());
    }
    for form in ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"] {
        if let Ok(at) = NaiveDateTime::parse_from_str(text, form) {
            return Some(at.and_utc());
        }
    }
    text.parse::<NaiveDate>().ok().map(|date| date.and_time(NaiveTime::MIN).and_utc())
}
