//! When a job is due: one or more cron expressions in a zone, or an interval counted from the Unix
//! epoch.

mod count;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};

use super::advice::{advise, split_range};

use super::gap::next_gap;

pub use count::Folded;

/// The name, the lowest and the highest value of each field of a seven-field expression.
const FIELDS: [(&str, u32, u32); 7] = [
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
    ("year", 1, 5000),
];

/// Why an expression cannot be a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The expression does not have 5, 6 or 7 fields.
    #[error(
        "`{expression}` has {count} fields: write 5 (minute hour day month weekday), 6 (second first) or 7 (year last)"
    )]
    FieldCount {
        /// The expression as written.
        expression: String,
        /// The number of its fields.
        count: usize,
    },
    /// The expression cannot be parsed.
    #[error("`{expression}` is not a cron expression: {reason}")]
    Malformed {
        /// The expression as written.
        expression: String,
        /// The reason, for the operator.
        reason: String,
    },
    /// The expression describes a date that never comes, such as the 30th of February.
    #[error("`{expression}` never comes due: without `schedule`, a job is only started by hand")]
    NeverFires {
        /// The expression as written.
        expression: String,
    },
    /// The interval is shorter than a second.
    #[error("an interval must be at least 1s")]
    IntervalTooShort,
}

/// The schedule of a job, with its time zone.
#[derive(Debug, Clone)]
pub struct Schedule {
    zone: Tz,
    rule: Rule,
}

#[derive(Debug, Clone)]
enum Rule {
    Cron(Vec<Expression>),
    Every(Duration),
}

/// A local time that a schedule names and that does not come, because the clock is set forward over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedTime {
    pub local: NaiveDateTime,
    /// The moment at which the clock is set forward.
    pub at: DateTime<Utc>,
}

/// A parsed cron expression. Clones share its 5 KB of memory.
#[derive(Debug, Clone)]
pub struct Expression(Arc<(String, Cron)>);

impl Expression {
    /// Parses `text`: five to seven fields, or a name such as `@daily`.
    ///
    /// *Errors*: [`ScheduleError::FieldCount`] and [`ScheduleError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let text = text.trim();
        Ok(Self(Arc::new((text.to_owned(), parse(text)?))))
    }

    /// Tells whether the expression comes due in `zone` at `now` or later. Returns `false` if all
    /// its due times have passed (CRON-7).
    ///
    /// *Errors*: [`ScheduleError::NeverFires`] if it has no past due time either,
    /// [`ScheduleError::Malformed`] if the search fails.
    pub fn comes_due(&self, zone: Tz, now: DateTime<Utc>) -> Result<bool, ScheduleError> {
        let from = (now - TimeDelta::seconds(1)).with_timezone(&zone);
        match self.cron().find_next_occurrence(&from, false) {
            Ok(_) => Ok(true),
            Err(CronError::TimeSearchLimitExceeded)
                if self.cron().find_previous_occurrence(&from, true).is_ok() =>
            {
                Ok(false)
            }
            Err(CronError::TimeSearchLimitExceeded) => {
                Err(ScheduleError::NeverFires { expression: self.text().to_owned() })
            }
            Err(error) => Err(ScheduleError::Malformed {
                expression: self.text().to_owned(),
                reason: error.to_string(),
            }),
        }
    }

    /// Returns the first local time that the expression names and the next change of the clock skips.
    /// A single time of day is due at the end of the gap instead, and `*` in the hours counts on evenly;
    /// an expression that lists hours skips those in the gap.
    #[must_use]
    pub fn skipped_after(&self, zone: Tz, after: DateTime<Utc>) -> Option<SkippedTime> {
        let fields: Vec<&str> = self.cron().as_str().split_whitespace().collect();
        let hours = fields.get(if fields.len() == 5 { 1 } else { 2 })?;
        if hours.contains('*') || self.is_time_of_day() {
            return None;
        }
        let (gap, moment) = (next_gap(zone, after)?, TimeDelta::milliseconds(1));
        // Without a gap, as in UTC, the expression is due at each local time that it names.
        let local = self.next_after(Tz::UTC, gap.from.and_utc() - moment)?.naive_utc();
        let is_skipped = local < gap.to && self.next_after(zone, gap.at - moment) != Some(gap.at);
        is_skipped.then_some(SkippedTime { local, at: gap.at })
    }

    /// Tells whether both share their memory.
    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn text(&self) -> &str {
        &self.0.0
    }

    fn cron(&self) -> &Cron {
        &self.0.1
    }

    fn is_time_of_day(&self) -> bool {
        let fields: Vec<&str> = self.cron().as_str().split_whitespace().collect();
        let of_time = if fields.len() == 5 { 2 } else { 3 };
        fields.iter().take(of_time).all(|field| field.bytes().all(|b| b.is_ascii_digit()))
    }

    fn next_after(&self, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let found = self.cron().find_next_occurrence(&after.with_timezone(&zone), false).ok()?;
        Some(found.with_timezone(&Utc))
    }
}

impl Schedule {
    /// Returns a schedule that is due whenever one of `expressions` is due in `zone`.
    #[must_use]
    pub fn cron(expressions: Vec<Expression>, zone: Tz) -> Self {
        Self { zone, rule: Rule::Cron(expressions) }
    }

    /// Returns a schedule that is due at every multiple of `interval` since the Unix epoch.
    ///
    /// *Errors*: [`ScheduleError::IntervalTooShort`].
    pub fn every(interval: Duration, zone: Tz) -> Result<Self, ScheduleError> {
        if interval < Duration::from_secs(1) {
            return Err(ScheduleError::IntervalTooShort);
        }
        Ok(Self { zone, rule: Rule::Every(interval) })
    }

    /// Returns the time zone.
    #[must_use]
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// Returns the first due time later than `after`, if any.
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match &self.rule {
            Rule::Cron(crons) => {
                crons.iter().filter_map(|cron| cron.next_after(self.zone, after)).min()
            }
            Rule::Every(interval) => {
                let step = i64::try_from(interval.as_millis()).ok()?;
                let next =
                    after.timestamp_millis().div_euclid(step).checked_add(1)?.checked_mul(step)?;
                DateTime::from_timestamp_millis(next)
            }
        }
    }

    /// Returns the due times later than `after`, in order.
    pub fn iter_after(&self, after: DateTime<Utc>) -> impl Iterator<Item = DateTime<Utc>> + '_ {
        std::iter::successors(self.next_after(after), |due| self.next_after(*due))
    }

    /// Returns the first local time that the schedule names and the next change of the clock skips.
    #[must_use]
    pub fn skipped_after(&self, after: DateTime<Utc>) -> Option<SkippedTime> {
        let Rule::Cron(crons) = &self.rule else { return None };
        let skipped = crons.iter().filter_map(|cron| cron.skipped_after(self.zone, after));
        skipped.min_by_key(|skipped| skipped.local)
    }

    /// Returns the schedule as the operator wrote it, for people.
    #[must_use]
    pub fn as_written(&self) -> String {
        match &self.rule {
            Rule::Cron(crons) => crons.iter().map(Expression::text).collect::<Vec<_>>().join(", "),
            Rule::Every(interval) => format!("every {}", humantime::format_duration(*interval)),
        }
    }

    /// Serializes the rule for the ledger: `{"cron":["0 7 * * *"]}` or `{"every_ms":600000}`.
    /// [`Expressions::schedule`](super::Expressions) reads it.
    #[must_use]
    pub fn to_record(&self) -> String {
        match &self.rule {
            Rule::Cron(crons) => serde_json::json!({"cron": crons.iter().map(Expression::text).collect::<Vec<_>>()}),
            Rule::Every(interval) => serde_json::json!({"every_ms": u64::try_from(interval.as_millis()).unwrap_or(u64::MAX)}),
        }
        .to_string()
    }

    /// Tells whether a due time comes only from expressions that name a single time of day: their
    /// seconds, minutes and hours are plain numbers. Such a time must not come due twice when the
    /// clock is set back (CRON-3).
    #[must_use]
    pub fn is_fixed_time(&self, due_at: DateTime<Utc>) -> bool {
        let Rule::Cron(crons) = &self.rule else { return false };
        let before = due_at - TimeDelta::milliseconds(1);
        let mut own = crons
            .iter()
            .filter(|cron| cron.next_after(self.zone, before) == Some(due_at))
            .peekable();
        own.peek().is_some() && own.all(|cron| cron.is_time_of_day())
    }
}

fn parse(text: &str) -> Result<Cron, ScheduleError> {
    read(text).map_err(|error| match advise(text, |text| read(text).is_ok()) {
        Some(reason) => ScheduleError::Malformed { expression: text.to_owned(), reason },
        None => error,
    })
}

fn read(text: &str) -> Result<Cron, ScheduleError> {
    // The parser does not know this name, which every manual of cron has.
    let text = if text.eq_ignore_ascii_case("@midnight") { "@daily" } else { text };
    let malformed =
        |reason: String| ScheduleError::Malformed { expression: text.to_owned(), reason };
    let pattern = if text.starts_with('@') {
        text.to_owned()
    } else {
        plain_fields(text).map_err(|problem| match problem {
            Problem::Count(count) => {
                ScheduleError::FieldCount { expression: text.to_owned(), count }
            }
            Problem::Field(reason) => malformed(reason),
        })?
    };
    parser().parse(&pattern).map_err(|error| malformed(reason(text, &error)))
}

fn parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Optional).dom_and_dow(false).build()
}

/// Names the field, the value and the bounds if a single value is wrong; otherwise returns the
/// parser's message.
fn reason(text: &str, error: &CronError) -> String {
    if text.starts_with('@') {
        return "use @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly"
            .to_owned();
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let facts = FIELDS.iter().skip(usize::from(fields.len() == 5));
    for (at, (field, (name, least, most))) in fields.iter().zip(facts).enumerate() {
        let is_wrong = |part: &&str| {
            let alone = (0..fields.len()).map(|other| if other == at { *part } else { "*" });
            let alone = alone.collect::<Vec<_>>().join(" ");
            plain_fields(&alone).is_ok_and(|pattern| parser().parse(&pattern).is_err())
        };
        if let Some(part) = field.split(',').find(is_wrong) {
            let ranges = split_range(part, *least, *most).filter(|_| *name != "year");
            if let Some(ranges) = ranges {
                return format!(
                    "the range `{part}` of the {name} field runs backwards: write `{ranges}`"
                );
            }
            let names = match *name {
                "month" => ", or JAN to DEC",
                "day of week" => ", or SUN to SAT",
                _ => "",
            };
            return format!(
                "the {name} field cannot be `{part}`: it takes {least} to {most}{names}"
            );
        }
    }
    error.to_string()
}

enum Problem {
    Count(usize),
    Field(String),
}

/// Checks the number of fields and the steps, and rewrites `N/S` as `N-max/S`.
fn plain_fields(text: &str) -> Result<String, Problem> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let first = match fields.len() {
        5 => 1,
        6 | 7 => 0,
        count => return Err(Problem::Count(count)),
    };
    let mut out = Vec::with_capacity(fields.len());
    for (field, (name, least, most)) in fields.iter().zip(FIELDS.iter().skip(first)) {
        let mut parts = Vec::new();
        for part in field.split(',') {
            if part.is_empty() {
                return Err(Problem::Field(format!(
                    "the {name} field `{field}` has an empty part"
                )));
            }
            parts.push(match part.split_once('/') {
                Some((start, step)) => {
                    let step: u32 = step.parse().map_err(|_| {
                        Problem::Field(format!(
                            "the step `{step}` of the {name} field is not a number"
                        ))
                    })?;
                    if step == 0 || step > most - least + 1 {
                        return Err(Problem::Field(format!(
                            "a step of {step} does not fit into the {name} field"
                        )));
                    }
                    match start.parse::<u32>() {
                        Ok(number) => format!("{number}-{most}/{step}"),
                        Err(_) => part.to_owned(),
                    }
                }
                None => part.to_owned(),
            });
        }
        out.push(parts.join(","));
    }
    Ok(out.join(" "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    fn schedule(expressions: &[&str], zone: Tz) -> Schedule {
        let parsed = expressions.iter().map(|text| Expression::parse(text).unwrap()).collect();
        Schedule::cron(parsed, zone)
    }

    fn dues(
        expression: &str,
        zone: Tz,
        from: &str,
        count: usize,
    ) -> Result<Vec<String>, ScheduleError> {
        let expression = Expression::parse(expression)?;
        expression.comes_due(zone, at(from))?;
        let schedule = Schedule::cron(vec![expression], zone);
        Ok(schedule
            .iter_after(at(from))
            .take(count)
            .map(|due| due.with_timezone(&zone).format("%d %H:%M:%S %z").to_string())
            .collect())
    }

    // proves CRON-2
    #[test]
    fn fixed_times_fire_once_around_a_change_of_the_clock() {
        let berlin = Tz::Europe__Berlin;
        assert_eq!(
            dues("30 2 * * *", berlin, "2026-03-28T12:00:00Z", 2).unwrap(),
            ["29 03:00:00 +0200", "30 02:30:00 +0200"]
        );
        assert_eq!(
            dues("30 2 * * *", berlin, "2026-10-24T12:00:00Z", 2).unwrap(),
            ["25 02:30:00 +0200", "26 02:30:00 +0100"]
        );
        assert_eq!(
            dues("0 * * * *", berlin, "2026-10-24T23:30:00Z", 3).unwrap(),
            ["25 02:00:00 +0200", "25 02:00:00 +0100", "25 03:00:00 +0100"]
        );
    }

    // proves CRON-2
    #[test]
    fn listed_hours_in_a_gap_are_skipped_and_named() {
        let skipped = |expressions: &[&str], zone: Tz| {
            let skipped = schedule(expressions, zone).skipped_after(at("2026-01-01T00:00:00Z"));
            skipped.map(|skipped| (skipped.local.to_string(), skipped.at.to_rfc3339()))
        };
        let berlin = Tz::Europe__Berlin;
        let change = |local: &str| Some((local.to_owned(), "2026-03-29T01:00:00+00:00".to_owned()));
        assert_eq!(skipped(&["0 1,2 * * *"], berlin), change("2026-03-29 02:00:00"));
        assert_eq!(skipped(&["15 0,2 * * *"], berlin), change("2026-03-29 02:15:00"));
        assert_eq!(skipped(&["*/20 2 * * *", "0 7 * * *"], berlin), change("2026-03-29 02:00:00"));
        for kept in ["30 2 * * *", "0 * * * *", "7 */2 * * *", "0 6,18 * * *", "0 1,2 * * MON"] {
            assert_eq!(skipped(&[kept], berlin), None, "{kept}");
        }
        assert_eq!(skipped(&["0 1 * * *", "0 2 * * *"], berlin), None, "each hour by itself");
        assert_eq!(skipped(&["0 1,2 * * *"], Tz::UTC), None);
    }

    // proves CRON-7
    #[test]
    fn what_cannot_be_meant_is_refused_with_the_reason() {
        let error = |expression: &str| {
            dues(expression, Tz::UTC, "2026-05-04T00:00:00Z", 1).unwrap_err().to_string()
        };
        assert!(error("0 0 30 2 *").contains("never comes due"));
        assert!(error("0 0 0 30 2 * 2025").contains("never comes due"));
        assert!(error("61 * * * *").contains("minute field cannot be `61`: it takes 0 to 59"));
        assert!(error("1,61 * * * *").contains("minute field cannot be `61`"));
        assert!(error("0 24 * * *").contains("hour field cannot be `24`: it takes 0 to 23"));
        assert!(error("0 0 * 13 *").contains("takes 1 to 12, or JAN to DEC"));
        assert!(error("* * * *").contains("has 4 fields"));
        assert!(error("").contains("has 0 fields"));
        assert!(error("*/90 * * * *").contains("step of 90"));
        assert!(error("*/0 * * * *").contains("step of 0"));
        assert!(error("1,,2 * * * *").contains("empty part"));
        for wrong in
            ["60 * * * *", "0 24 * * *", "0 0 * * MON#6", "0 0 * * 8", "@reboot", "a b c d e"]
        {
            assert!(error(wrong).contains("is not a cron expression"), "{wrong}");
        }
    }

    #[test]
    fn schedules_of_other_schedulers_are_answered_with_ours() {
        let check = |text: &str, expected: &str| {
            let error = Expression::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\nlacks\n{expected}");
        };
        check("@every 1h30m", "write `every: 1h30m` instead");
        check("@reboot", "there is no such schedule");
        check("@noon", "use @yearly");
        check("daily", "write `schedule: \"@daily\"`");
        check("Midnight", "write `schedule: \"@midnight\"`");
        check("CRON_TZ=Europe/Berlin 0 9 * * *", "write `timezone: Europe/Berlin` and");
        check("TZ=UTC 0 9 * * *", "`schedule: \"0 9 * * *\"`");
        check("0 9 * * * root /usr/bin/backup", "write only the time, `\"0 9 * * *\"`");
        check("0 9 * * * /usr/bin/backup", "no user and no command");
        check("0 9 * * * root /usr/bin/backup --all now", "no user and no command");
        check("@daily root /usr/bin/backup", "write only the time, `\"@daily\"`");
        check("0 0 9 * * MONDAI", "day of week field");
        check("0 22-2 * * *", "write `22-23,0-2`");
        check("0 0 25-5 * *", "write `25-31,1-5`");
        check("0 0 * * 5-1", "write `5-7,0-1`");
        assert!(Expression::parse("0 22-23,0-2 * * 5-7,0-1").is_ok());
    }

    #[test]
    fn midnight_is_a_name_of_daily() {
        let dues = |text: &str| dues(text, Tz::Europe__Berlin, "2026-05-04T00:00:00Z", 3).unwrap();
        assert_eq!(dues("@midnight"), dues("@daily"));
        assert_eq!(schedule(&["@midnight"], Tz::UTC).as_written(), "@midnight");
        assert!(schedule(&["@midnight"], Tz::UTC).is_fixed_time(at("2026-05-05T00:00:00Z")));
    }

    #[test]
    fn a_start_with_a_step_means_to_the_end() {
        assert_eq!(
            dues("50/5 * * * *", Tz::UTC, "2026-05-04T10:00:00Z", 3).unwrap(),
            ["04 10:50:00 +0000", "04 10:55:00 +0000", "04 11:50:00 +0000"]
        );
    }

    #[test]
    fn intervals_count_from_the_epoch() {
        let schedule = Schedule::every(Duration::from_secs(600), Tz::UTC).unwrap();
        let dues: Vec<String> = schedule
            .iter_after(at("2026-05-04T10:07:00.5Z"))
            .take(2)
            .map(|d| d.to_rfc3339())
            .collect();
        assert_eq!(dues, ["2026-05-04T10:10:00+00:00", "2026-05-04T10:20:00+00:00"]);
        assert_eq!(
            Schedule::every(Duration::from_millis(900), Tz::UTC).unwrap_err(),
            ScheduleError::IntervalTooShort
        );
    }

    #[test]
    fn a_time_of_day_is_told_from_an_interval() {
        for (expression, fixed) in [
            ("30 2 * * *", true),
            ("0 0 7 * * MON", true),
            ("@daily", true),
            ("0 * * * *", false),
            ("0 1,2 * * *", false),
            ("*/5 2 * * *", false),
        ] {
            let schedule = schedule(&[expression], Tz::UTC);
            let due_at = schedule.next_after(at("2026-05-04T01:45:00Z")).unwrap();
            assert_eq!(schedule.is_fixed_time(due_at), fixed, "{expression}");
            assert!(!schedule.is_fixed_time(due_at + TimeDelta::seconds(1)), "{expression}");
        }
        let both = schedule(&["30 2 * * *", "0 2 * * *", "0 * * * *"], Tz::UTC);
        assert!(both.is_fixed_time(at("2026-05-04T02:30:00Z")));
        assert!(!both.is_fixed_time(at("2026-05-04T02:00:00Z")), "it is also due each hour");
    }

    proptest! {
        #[test]
        fn due_times_grow(second in 1_700_000_000_i64..1_900_000_000, step in 1u32..60) {
            let from = DateTime::from_timestamp(second, 0).unwrap();
            let schedule = schedule(&[&format!("*/{step} * * * *"), "30 2 * * *"], Tz::Europe__Berlin);
            let dues: Vec<_> = schedule.iter_after(from).take(20).collect();
            prop_assert!(dues.windows(2).all(|pair| pair[0] < pair[1]) && dues[0] > from);
        }
    }
}
