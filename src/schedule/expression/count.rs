//! Counts the due times of a long time without visiting each.
//!
//! While the UTC offset of a zone stays the same, a cron expression is due at the same seconds of
//! each day that it matches. Only around a change of the offset do we visit the due times, because
//! there the rules of croner decide (CRON-2).

use std::collections::HashMap;

use chrono::{DateTime, Datelike as _, NaiveDate, Offset as _, TimeDelta, TimeZone as _, Utc};
use chrono_tz::Tz;
use croner::{Cron, Weekday};

use super::{Expression, Rule, Schedule};

const DAY: i64 = 86_400;

/// How long due times are visited after a change of the offset, in addition to the time that the change
/// skips or repeats.
const AFTER_CHANGE: i64 = 60;

/// No zone changes its offset by more than this: islands have moved across the date line.
const MOST_CHANGE: i64 = 25 * 3600;

/// Expressions of a schedule that can be counted; of more, each due time is visited.
const MOST_EXPRESSIONS: usize = 64;

/// Consecutive due times of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folded {
    pub first: DateTime<Utc>,
    /// The last of them, inclusive.
    pub last: DateTime<Utc>,
    pub count: u64,
}

impl Schedule {
    /// Returns the number of due times later than `after`, up to `until`, inclusive.
    #[must_use]
    pub fn count(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> u64 {
        if until <= after {
            return 0;
        }
        let count = match &self.rule {
            Rule::Every(interval) => i64::try_from(interval.as_millis()).map_or(0, |step| {
                let before = |at: DateTime<Utc>| at.timestamp_millis().div_euclid(step);
                before(until) - before(after)
            }),
            Rule::Cron(crons) if crons.len() <= MOST_EXPRESSIONS => {
                return Counter::new(self, crons).count(after.timestamp(), until.timestamp());
            }
            Rule::Cron(_) => return self.visit(after, until),
        };
        u64::try_from(count).unwrap_or(0)
    }

    /// Returns the due times later than `after`, up to `until`, inclusive, as one value; `None` if
    /// there are none.
    #[must_use]
    pub fn fold(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Option<Folded> {
        let first = self.next_after(after).filter(|first| *first <= until)?;
        let last = self.last_until(first, until);
        Some(Folded { first, last, count: self.count(after, until) })
    }

    /// Returns the last due time up to `until`, which is `first` or later.
    fn last_until(&self, first: DateTime<Utc>, until: DateTime<Utc>) -> DateTime<Utc> {
        /// Due times within this many seconds are visited.
        const NEAR: i64 = 64;
        let mut end = until;
        loop {
            // No due time is later than `end`. Look back twice as far each time.
            let mut back = 1;
            let is_due = |back: i64| {
                let next = self.next_after((end - TimeDelta::seconds(back)).max(first));
                next.is_some_and(|next| next <= end)
            };
            while !is_due(back) && end - TimeDelta::seconds(back) > first {
                back *= 2;
            }
            let from = (end - TimeDelta::seconds(back)).max(first);
            if back <= NEAR || from == first && !is_due(back) {
                return self.iter_after(from).take_while(|due| *due <= end).last().unwrap_or(first);
            }
            // The last due time is not in the nearer half.
            end -= TimeDelta::seconds(back / 2);
        }
    }

    fn visit(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> u64 {
        self.iter_after(after).take_while(|due| *due <= until).count() as u64
    }
}

/// Counts the due times of some expressions in a zone. Moments are seconds since the Unix epoch: every
/// due time is a whole second.
struct Counter<'a> {
    schedule: &'a Schedule,
    crons: &'a [Expression],
    /// The seconds of a day at which the expressions of a set are due, sorted. A bit of the key stands
    /// for each expression.
    seconds: HashMap<u64, Vec<i64>>,
}

impl<'a> Counter<'a> {
    fn new(schedule: &'a Schedule, crons: &'a [Expression]) -> Self {
        Self { schedule, crons, seconds: HashMap::new() }
    }

    /// Counts the due times later than `after`, up to `until`.
    fn count(mut self, after: i64, until: i64) -> u64 {
        let zone = self.schedule.zone();
        let (mut count, mut from) = (0, after);
        // A change before `after` may still repeat its hours.
        if let Some(change) = next_change(zone, after - MOST_CHANGE, after) {
            let end = until.min(visited_until(zone, change)).max(after);
            count += self.visit(after, end);
            from = end;
        }
        while from < until {
            let Some(change) = next_change(zone, from, until) else {
                return count + self.count_even(from, until, offset(zone, from));
            };
            // A time in a gap comes due at the change itself.
            let begin = (change - 1).max(from);
            let end = until.min(visited_until(zone, change));
            count += self.count_even(from, begin, offset(zone, from)) + self.visit(begin, end);
            from = end;
        }
        count
    }

    fn visit(&self, after: i64, until: i64) -> u64 {
        let span = moment(after).zip(moment(until));
        span.map_or(0, |(after, until)| self.schedule.visit(after, until))
    }

    /// Counts the due times of a time with one UTC offset.
    fn count_even(&mut self, after: i64, until: i64, offset: i64) -> u64 {
        let (after, until) = (after + offset, until + offset);
        let mut count = 0;
        for day in after.div_euclid(DAY)..=until.div_euclid(DAY) {
            let begin = day * DAY;
            let seconds = self.seconds_of(day);
            let up_to = |at: i64| seconds.partition_point(|second| begin + second <= at);
            count += up_to(until).saturating_sub(up_to(after));
        }
        count as u64
    }

    /// Returns the seconds at which a local day has due times. `day` counts from the Unix epoch.
    fn seconds_of(&mut self, day: i64) -> &[i64] {
        let date = i32::try_from(day).ok().and_then(NaiveDate::from_epoch_days);
        let matches = |(at, cron): (usize, &Expression)| {
            date.is_some_and(|date| is_due_on(cron.cron(), date)).then_some(1_u64 << at)
        };
        let set: u64 = self.crons.iter().enumerate().filter_map(matches).sum();
        let crons = self.crons;
        self.seconds.entry(set).or_insert_with(|| {
            let of_set = crons.iter().enumerate().filter(|(at, _)| (set >> at) & 1 == 1);
            let mut seconds: Vec<i64> =
                of_set.flat_map(|(_, cron)| seconds_in_day(cron.cron())).collect();
            seconds.sort_unstable();
            seconds.dedup();
            seconds
        })
    }
}

fn is_due_on(cron: &Cron, date: NaiveDate) -> bool {
    let pattern = &cron.pattern;
    let (year, month, day) = (date.year(), date.month(), date.day());
    let weekday = Weekday::from_days_from_sunday(date.weekday().num_days_from_sunday());
    // The date exists, so none of these fails.
    matches!(pattern.year_match(year), Ok(true))
        && matches!(pattern.month_match(month), Ok(true))
        && matches!(pattern.day_match(year, month, day, weekday), Ok(true))
}

fn seconds_in_day(cron: &Cron) -> Vec<i64> {
    let pattern = &cron.pattern;
    let of = |values: Vec<u16>| values.into_iter().map(i64::from).collect::<Vec<_>>();
    let (minutes, seconds) = (of(pattern.minutes.values()), of(pattern.seconds.values()));
    let mut found = Vec::new();
    for hour in of(pattern.hours.values()) {
        for minute in &minutes {
            found.extend(seconds.iter().map(|second| (hour * 60 + minute) * 60 + second));
        }
    }
    found
}

/// Returns the time until which the rules of croner decide after a change of the offset.
fn visited_until(zone: Tz, change: i64) -> i64 {
    change + (offset(zone, change) - offset(zone, change - 1)).abs() + AFTER_CHANGE
}

fn moment(at: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(at, 0)
}

/// Returns the seconds by which a zone is ahead of UTC.
fn offset(zone: Tz, at: i64) -> i64 {
    let local = moment(at).map(|at| zone.offset_from_utc_datetime(&at.naive_utc()).fix());
    local.map_or(0, |offset| offset.local_minus_utc().into())
}

/// Returns the first second with another offset, later than `after`, up to `until`. No zone changes
/// its offset and changes it back within a day.
fn next_change(zone: Tz, after: i64, until: i64) -> Option<i64> {
    let before = offset(zone, after);
    let mut same = after;
    while same < until {
        let next = until.min(same + DAY);
        if offset(zone, next) == before {
            same = next;
            continue;
        }
        let mut other = next;
        while other - same > 1 {
            let middle = same + (other - same) / 2;
            if offset(zone, middle) == before { same = middle } else { other = middle }
        }
        return Some(other);
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXPRESSIONS: [&str; 16] = [
        "* * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "0 2 * * *",
        "0 1,2,3 * * *",
        "*/5 2 * * *",
        "15,45 0-3 * * SUN",
        "0 0 29 2 *",
        "0 0 L * *",
        "0 9 1W * *",
        "0 9 * * MON#2",
        "0 0 13 * FRI",
        "*/20 30 1-3 * * *",
        "0 0 12 1 1 * 2027-2029",
        "* * * 3,10 SUN",
        "@weekly",
    ];

    const ZONES: [Tz; 7] = [
        Tz::UTC,
        Tz::Europe__Berlin,
        Tz::Australia__Lord_Howe,
        Tz::Africa__Casablanca,
        Tz::Africa__Cairo,
        Tz::Pacific__Chatham,
        Tz::America__New_York,
    ];

    fn check(schedule: &Schedule, from: i64, length: i64) {
        let (after, until) = (moment(from).unwrap(), moment(from + length).unwrap());
        let dues: Vec<_> = schedule.iter_after(after).take_while(|due| *due <= until).collect();
        let expected = dues.first().map(|first| Folded {
            first: *first,
            last: *dues.last().unwrap(),
            count: dues.len() as u64,
        });
        assert_eq!(schedule.fold(after, until), expected, "{}", schedule.as_written());
        assert_eq!(schedule.count(after, until), dues.len() as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        // proves CRON-8
        #[test]
        fn a_count_is_that_of_a_visit(
            from in 1_740_000_000_i64..1_860_000_000,
            days in 0_i64..3,
            rest in 0_i64..DAY,
            zone in prop::sample::select(ZONES.to_vec()),
            texts in prop::collection::vec(prop::sample::select(EXPRESSIONS.to_vec()), 1..4),
        ) {
            let parsed = texts.iter().map(|text| Expression::parse(text).unwrap()).collect();
            check(&Schedule::cron(parsed, zone), from, days * DAY + rest);
        }

        #[test]
        fn an_interval_is_counted(from in 0_i64..1_900_000_000, length in 0_i64..9_000_000, every in 1_u64..9_000) {
            let every = std::time::Duration::from_secs(every * 7);
            check(&Schedule::every(every, Tz::UTC).unwrap(), from, length);
        }
    }

    #[test]
    fn each_change_of_the_clock_of_four_years_is_counted() {
        for zone in ZONES {
            for text in EXPRESSIONS {
                let schedule = Schedule::cron(vec![Expression::parse(text).unwrap()], zone);
                let (mut from, end) = (1_767_000_000, 1_893_000_000);
                while let Some(change) = next_change(zone, from, end) {
                    for before in [-1800, 0, 1800, 20_000] {
                        check(&schedule, change - before, before + 10_800);
                    }
                    from = change;
                }
            }
        }
    }
}
