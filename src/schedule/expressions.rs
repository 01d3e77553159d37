//! The cron expressions that a file or a table has parsed so far.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use chrono_tz::Tz;

use super::expression::{Expression, Schedule, ScheduleError};

/// The expressions that are kept, at most: 5 MB. Further ones are parsed each time.
const KEPT_EXPRESSIONS: usize = 1000;

/// The cron expressions parsed so far, by their text. Many schedules have the same one.
#[derive(Debug, Default)]
pub struct Expressions(RefCell<HashMap<String, Expression>>);

impl Expressions {
    /// Parses `text`, unless it has been parsed before.
    ///
    /// *Errors*: those of [`Expression::parse`].
    pub fn parse(&self, text: &str) -> Result<Expression, ScheduleError> {
        if let Some(parsed) = self.0.borrow().get(text) {
            return Ok(parsed.clone());
        }
        let parsed = Expression::parse(text)?;
        let mut kept = self.0.borrow_mut();
        if kept.len() < KEPT_EXPRESSIONS {
            kept.insert(text.to_owned(), parsed.clone());
        }
        Ok(parsed)
    }

    /// Parses a rule that [`Schedule::to_record`] serialized. Returns `None` if `record` or `zone` is
    /// invalid. Accepts a schedule that never comes due again.
    pub fn schedule(&self, record: &str, zone: &str) -> Option<Schedule> {
        let zone: Tz = zone.parse().ok()?;
        let record: serde_json::Value = serde_json::from_str(record).ok()?;
        if let Some(interval) = record.get("every_ms").and_then(serde_json::Value::as_u64) {
            return Schedule::every(Duration::from_millis(interval), zone).ok();
        }
        let texts = record.get("cron")?.as_array()?;
        let crons =
            texts.iter().map(|text| self.parse(text.as_str()?).ok()).collect::<Option<_>>()?;
        Some(Schedule::cron(crons, zone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_parsed_once_as_long_as_there_are_few() {
        let expressions = Expressions::default();
        assert!(expressions.parse("no cron").is_err());
        let minute = |minute: usize| format!("{} {} * * *", minute % 60, minute / 60);
        for at in 0..KEPT_EXPRESSIONS + 100 {
            expressions.parse(&minute(at)).unwrap();
        }
        assert_eq!(expressions.0.borrow().len(), KEPT_EXPRESSIONS);
        let shares = |at: usize| {
            let (one, other) = (expressions.parse(&minute(at)), expressions.parse(&minute(at)));
            one.unwrap().is_same(&other.unwrap())
        };
        assert!(shares(0) && !shares(KEPT_EXPRESSIONS + 1));
    }

    #[test]
    fn a_record_reads_back_as_the_same_schedule() {
        let from = "2026-05-04T10:07:00Z".parse().unwrap();
        let expressions = Expressions::default();
        let parse = |text: &str| expressions.parse(text).unwrap();
        let of_days = vec![parse("0 7 * * MON-FRI"), parse("30 12 * * *")];
        for schedule in [
            Schedule::cron(of_days, Tz::Europe__Berlin),
            Schedule::every(Duration::from_secs(90), Tz::UTC).unwrap(),
        ] {
            let back = expressions.schedule(&schedule.to_record(), schedule.zone().name()).unwrap();
            assert!(back.iter_after(from).take(20).eq(schedule.iter_after(from).take(20)));
        }
    }
}
