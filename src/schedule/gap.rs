//! The local times that a zone leaves out when its clock is set forward.

use chrono::{DateTime, NaiveDateTime, Offset as _, TimeZone as _, Utc};
use chrono_tz::Tz;

/// How far ahead to look, in days. A zone that changes its clock does so within a year.
const DAYS: i64 = 366;

/// Seconds of a day.
const DAY: i64 = 24 * 3600;

/// The next time at which a clock is set forward.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// The moment of the change.
    pub(super) at: DateTime<Utc>,
    /// The first local time that is left out.
    pub(super) from: NaiveDateTime,
    /// The first local time after the change.
    pub(super) to: NaiveDateTime,
}

/// Returns the next gap of a zone; `None` if there is none within a year.
pub(super) fn next_gap(zone: Tz, after: DateTime<Utc>) -> Option<Gap> {
    let offset = |second: i64| {
        let at = DateTime::from_timestamp(second, 0)?.naive_utc();
        Some(i64::from(zone.offset_from_utc_datetime(&at).fix().local_minus_utc()))
    };
    let days = (0..DAYS).map(|day| after.timestamp() + day * DAY);
    let (mut before, mut at) =
        days.map(|day| (day, day + DAY)).find(|(day, next)| offset(*day) < offset(*next))?;
    let (old, new) = (offset(before)?, offset(at)?);
    while at - before > 1 {
        let middle = before + (at - before) / 2;
        if offset(middle) == Some(old) {
            before = middle;
        } else {
            at = middle;
        }
    }
    let time = |second: i64| DateTime::from_timestamp(second, 0);
    let (from, to) = (time(at + old)?.naive_utc(), time(at + new)?.naive_utc());
    Some(Gap { at: time(at)?, from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_gap_of_a_zone_is_found_to_the_second() {
        let at = |text: &str| DateTime::parse_from_rfc3339(text).unwrap().to_utc();
        let check = |zone: Tz, after: &str, expected: Option<(&str, &str, &str)>| {
            let gap = next_gap(zone, at(after))
                .map(|gap| (gap.at.to_rfc3339(), gap.from.to_string(), gap.to.to_string()));
            let owned = |(at, from, to): (&str, &str, &str)| {
                (at.to_owned(), from.to_owned(), to.to_owned())
            };
            assert_eq!(gap, expected.map(owned), "{zone} {after}");
        };
        let spring =
            Some(("2026-03-29T01:00:00+00:00", "2026-03-29 02:00:00", "2026-03-29 03:00:00"));
        check(Tz::Europe__Berlin, "2025-12-01T00:00:00Z", spring);
        check(Tz::Europe__Berlin, "2026-03-29T00:59:59Z", spring);
        let next =
            Some(("2027-03-28T01:00:00+00:00", "2027-03-28 02:00:00", "2027-03-28 03:00:00"));
        check(Tz::Europe__Berlin, "2026-03-29T01:00:00Z", next);
        let half =
            Some(("2026-10-03T15:30:00+00:00", "2026-10-04 02:00:00", "2026-10-04 02:30:00"));
        check(Tz::Australia__Lord_Howe, "2026-05-01T12:34:56Z", half);
        check(Tz::UTC, "2026-01-01T00:00:00Z", None);
    }
}
