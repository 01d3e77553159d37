//! An independent answer to the question when a cron expression comes due. It shares nothing with
//! the schedule code except the database of time zones: it scans the local minutes of each day.

use std::collections::BTreeSet;

use chrono::{
    DateTime, Datelike as _, Days, LocalResult, NaiveDate, TimeDelta, TimeZone as _, Utc,
};
use chrono_tz::Tz;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The values of one field of an expression.
struct Field {
    values: BTreeSet<u32>,
    is_star: bool,
}

impl Field {
    /// Reads a list of numbers, names and ranges, each with an optional step.
    fn read(text: &str, least: u32, most: u32, names: &[&str]) -> Self {
        let number = |text: &str| {
            let named = names.iter().position(|name| *name == text);
            named.map_or_else(|| text.parse().unwrap(), |at| least + u32::try_from(at).unwrap())
        };
        let mut values = BTreeSet::new();
        for part in text.split(',') {
            let (range, step) = part.split_once('/').unwrap_or((part, "1"));
            let (first, last) = match range.split_once('-') {
                _ if range == "*" => (least, most),
                Some((first, last)) => (number(first), number(last)),
                None if part.contains('/') => (number(range), most),
                None => (number(range), number(range)),
            };
            values.extend((first..=last).step_by(step.parse().unwrap()));
        }
        Self { values, is_star: text == "*" }
    }

    fn is_one_number(&self) -> bool {
        !self.is_star && self.values.len() == 1
    }
}

/// Returns the due times of `expression` in `zone` that are later than `from` and at most `to`.
///
/// `expression` has five fields. A time of day that the clock skips is due at the end of the gap, if
/// the expression names one time of day; otherwise it is not due. A time of day that comes twice is
/// due at its first occurrence, if the expression names one time of day; otherwise at both (CRON-2).
pub(super) fn due_times(
    expression: &str,
    zone: Tz,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> BTreeSet<DateTime<Utc>> {
    let texts: Vec<&str> = expression.split(' ').collect();
    let [minute, hour, day, month, weekday] = texts[..] else { panic!("{expression}") };
    let minutes = Field::read(minute, 0, 59, &[]);
    let hours = Field::read(hour, 0, 23, &[]);
    let days = Field::read(day, 1, 31, &[]);
    let months = Field::read(month, 1, 12, &MONTHS);
    let mut weekdays = Field::read(weekday, 0, 6, &WEEKDAYS);
    if weekdays.values.remove(&7) {
        weekdays.values.insert(0);
    }
    let is_fixed = minutes.is_one_number() && hours.is_one_number();
    let is_day = |date: NaiveDate| {
        let by_day = days.values.contains(&date.day());
        let by_weekday = weekdays.values.contains(&date.weekday().num_days_from_sunday());
        let matches = match (days.is_star, weekdays.is_star) {
            (false, false) => by_day || by_weekday,
            _ => by_day && by_weekday,
        };
        matches && months.values.contains(&date.month())
    };
    let last_day = to.with_timezone(&zone).date_naive();
    let mut date = from.with_timezone(&zone).date_naive();
    let mut found = BTreeSet::new();
    while date <= last_day {
        let times = hours.values.iter().flat_map(|hour| {
            let at = move |minute: &u32| date.and_hms_opt(*hour, *minute, 0).unwrap();
            minutes.values.iter().map(at)
        });
        for local in times.take_while(|_| is_day(date)) {
            match zone.from_local_datetime(&local) {
                LocalResult::Single(at) => drop(found.insert(at.to_utc())),
                LocalResult::Ambiguous(first, _) if is_fixed => drop(found.insert(first.to_utc())),
                LocalResult::Ambiguous(first, second) => {
                    found.extend([first.to_utc(), second.to_utc()]);
                }
                LocalResult::None if is_fixed => {
                    let later = (1..).map(|minutes| local + TimeDelta::minutes(minutes));
                    let after_gap = later.filter_map(|at| zone.from_local_datetime(&at).earliest());
                    found.extend(after_gap.map(|at| at.to_utc()).next());
                }
                LocalResult::None => {}
            }
        }
        date = date + Days::new(1);
    }
    found.retain(|at| *at > from && *at <= to);
    found
}
