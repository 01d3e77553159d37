//! Notifications: what may be told of a job, the state that decides what is told, and the message.
//!
//! The state of a job follows its ended runs. `failed` and `status:VALUE` are told when the state is
//! entered, and `recovered` when a state that was told is left, so that a job whose state stays the
//! same sends no further message. *Source*: `docs/design/config.md`, "Notifications".

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::ids::JobName;
use super::origin::Person;
use super::outcome::{Outcome, StopReason};

/// An event of a job that a destination may be told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeEvent {
    /// The job is in the state `failed` now.
    Failed,
    /// A state that was told is over.
    Recovered,
    /// A run succeeded.
    Succeeded,
    /// The state of the job has changed.
    Changed,
    /// A plan waits.
    Planned,
    /// A call waits for approval.
    Approval,
    /// An admin call is made.
    Admin,
    /// Slots were missed.
    Missed,
    /// The verdict of the job has this value now.
    Status(String),
}

impl NoticeEvent {
    /// The words of the events without a value.
    pub const WORDS: &'static [&'static str] =
        &["failed", "recovered", "succeeded", "changed", "planned", "approval", "admin", "missed"];

    /// Returns the event with this word; `None` if there is none.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "failed" => Self::Failed,
            "recovered" => Self::Recovered,
            "succeeded" => Self::Succeeded,
            "changed" => Self::Changed,
            "planned" => Self::Planned,
            "approval" => Self::Approval,
            "admin" => Self::Admin,
            "missed" => Self::Missed,
            word => match word.strip_prefix("status:") {
                Some(value) if !value.trim().is_empty() => Self::Status(value.trim().to_owned()),
                _ => return None,
            },
        })
    }
}

impl std::fmt::Display for NoticeEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Failed => "failed",
            Self::Recovered => "recovered",
            Self::Succeeded => "succeeded",
            Self::Changed => "changed",
            Self::Planned => "planned",
            Self::Approval => "approval",
            Self::Admin => "admin",
            Self::Missed => "missed",
            Self::Status(value) => return write!(f, "status:{value}"),
        })
    }
}

/// Who is told which events of the daemon itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonRule {
    /// The name of the destination.
    pub to: String,
    pub on: Vec<DaemonEvent>,
}

/// An event of the daemon itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonEvent {
    /// A model is on hold.
    Unavailable,
    /// `status` lists another problem.
    Degraded,
    /// What was told is over.
    Recovered,
}

impl DaemonEvent {
    /// Every event of the daemon.
    pub const ALL: &'static [Self] = &[Self::Unavailable, Self::Degraded, Self::Recovered];

    /// Returns the word of the event.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Degraded => "degraded",
            Self::Recovered => "recovered",
        }
    }
}

impl DaemonRule {
    /// Returns the messages about an event of the daemon, or of one of its models. `recovered` is told
    /// to those who were told `of`, the event that is over.
    #[must_use]
    pub fn messages(
        rules: &[Self],
        event: DaemonEvent,
        of: DaemonEvent,
        model: Option<&str>,
        summary: &str,
        at: DateTime<Utc>,
    ) -> Vec<(String, Message)> {
        let rules = rules.iter().filter(|rule| rule.on.contains(&event) && rule.on.contains(&of));
        let message = Message {
            event: event.as_str().to_owned(),
            job: None,
            model: model.map(str::to_owned),
            run_id: None,
            outcome: None,
            verdict: None,
            summary: summary.to_owned(),
            command: "dutyd status".to_owned(),
            at,
        };
        rules.map(|rule| (rule.to.clone(), message.clone())).collect()
    }
}

/// Who is told which events of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeRule {
    /// The name of the destination.
    pub to: String,
    pub on: NoticeEvents,
    /// Whether the destination is told of the outage that made the run fail. It is then not told
    /// `failed` as well.
    pub knows_outage: bool,
}

/// The events that a destination is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoticeEvents {
    Listed(Vec<NoticeEvent>),
    /// The start, the success and the failure of each run, for a dead man's switch.
    EachRun,
}

impl NoticeRule {
    /// Returns the messages that slots of a job were missed. `what` follows the name of the job.
    pub fn missed<'a>(
        rules: &'a [Self],
        job: &'a JobName,
        what: &'a str,
        at: DateTime<Utc>,
    ) -> impl Iterator<Item = (String, Message)> + 'a {
        let rules = rules.iter().filter(|rule| rule.has_event(&NoticeEvent::Missed));
        rules.map(move |rule| {
            let message = Message {
                event: NoticeEvent::Missed.to_string(),
                job: Some(job.to_string()),
                model: None,
                run_id: None,
                outcome: None,
                verdict: None,
                summary: format!("{job} {what}"),
                command: format!("dutyd slots {job}"),
                at,
            };
            (rule.to.clone(), message)
        })
    }

    fn has_event(&self, event: &NoticeEvent) -> bool {
        match &self.on {
            NoticeEvents::Listed(events) => events.contains(event),
            NoticeEvents::EachRun => false,
        }
    }
}

/// The end of a run, as far as notifications need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunNotice {
    pub run_id: String,
    pub job: JobName,
    pub outcome: Outcome,
    pub stop_reason: StopReason,
    pub verdict: Option<String>,
    /// The error of the run, or the first line of its answer.
    pub cause: String,
    pub at: DateTime<Utc>,
}

/// A message for one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The word of the event; `started` for the start of a run, `test` for a test.
    pub event: String,
    /// The job; `None` for a message about the daemon, and for a test.
    pub job: Option<String>,
    /// The model of a message about its hold.
    #[serde(default)]
    pub model: Option<String>,
    pub run_id: Option<String>,
    pub outcome: Option<Outcome>,
    pub verdict: Option<String>,
    /// One line for a person: job, what, since when, the cause.
    pub summary: String,
    /// The command that tells more.
    pub command: String,
    pub at: DateTime<Utc>,
}

/// The state of a job, as its ended runs determine it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// `failed`, `succeeded`, or `status:VALUE`.
    pub state: String,
    /// When the state was entered.
    pub since: DateTime<Utc>,
    /// For each destination, the state that it was told and that is not over for it.
    pub told: BTreeMap<String, ToldState>,
    /// Set while a person has silenced the state.
    #[serde(default)]
    pub acknowledged: Option<Acknowledgement>,
    /// The destinations that were not told the state when it was entered, because they knew its cause.
    #[serde(default)]
    pub held_back: BTreeSet<String>,
}

/// Who has silenced the state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    pub by: Option<Person>,
    pub at: DateTime<Utc>,
    /// When the state is told again, if it has not changed by then.
    pub until: Option<DateTime<Utc>>,
}

/// A state that a destination was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldState {
    pub state: String,
    pub since: DateTime<Utc>,
}

/// The state `failed`.
const FAILED: &str = "failed";

impl JobState {
    /// Returns the state of a job after a run, and the messages about that run, each with the name of
    /// its destination. A run that was cancelled, skipped or planned leaves the state as it is.
    #[must_use]
    pub fn after(
        before: Option<Self>,
        run: &RunNotice,
        rules: &[NoticeRule],
    ) -> (Option<Self>, Vec<(String, Message)>) {
        let mut messages = Vec::new();
        let state = match run.outcome {
            Outcome::Failed | Outcome::Interrupted => FAILED.to_owned(),
            Outcome::Succeeded => match &run.verdict {
                Some(verdict) => format!("status:{verdict}"),
                None => "succeeded".to_owned(),
            },
            Outcome::Planned => {
                for rule in rules.iter().filter(|rule| rule.has_event(&NoticeEvent::Planned)) {
                    let message = run.message(&NoticeEvent::Planned.to_string(), None);
                    messages.push((rule.to.clone(), message));
                }
                messages.extend(run.pings(rules));
                return (before, messages);
            }
            Outcome::Skipped => return (before, run.pings(rules).collect()),
            Outcome::Cancelled => return (before, messages),
        };
        let is_entered = before.as_ref().is_none_or(|before| before.state != state);
        let has_changed = before.as_ref().is_some_and(|before| before.state != state);
        let acknowledged = before.as_ref().filter(|_| !is_entered);
        let mut acknowledged = acknowledged.and_then(|before| before.acknowledged.clone());
        let is_told_again =
            acknowledged.take_if(|of| of.until.is_some_and(|until| until <= run.at)).is_some();
        if let (Some(before), Some(_)) = (&before, &acknowledged) {
            return (Some(before.clone()), run.pings(rules).collect());
        }
        let (since, mut told, mut held_back) = match before {
            Some(before) if !is_entered => (before.since, before.told, before.held_back),
            Some(before) => (run.at, before.told, BTreeSet::new()),
            None => (run.at, BTreeMap::new(), BTreeSet::new()),
        };
        if is_told_again {
            held_back.extend(told.keys().cloned());
            told.retain(|_, earlier| earlier.state != state);
        }
        for rule in rules {
            let mut tell = |event: &NoticeEvent, since: Option<DateTime<Utc>>| {
                messages.push((rule.to.clone(), run.message(&event.to_string(), since)));
            };
            let own = NoticeEvent::parse(&state);
            let is_listed = own
                .as_ref()
                .is_some_and(|own| *own != NoticeEvent::Succeeded && rule.has_event(own));
            let earlier = told.get(&rule.to).filter(|earlier| earlier.state != state).cloned();
            // A success ends each other state. A failure does not end a verdict, because it says
            // nothing about the verdict.
            let is_over = earlier.is_some() && state != FAILED;
            if is_over {
                told.remove(&rule.to);
            }
            let was_told = told.get(&rule.to).is_some_and(|earlier| earlier.state == state);
            let is_new = is_entered || held_back.contains(&rule.to);
            let is_due = is_listed && is_new && !was_told;
            if is_due && rule.knows_outage {
                held_back.insert(rule.to.clone());
            } else if let Some(own) = own.as_ref().filter(|_| is_due) {
                tell(own, None);
                held_back.remove(&rule.to);
                told.insert(rule.to.clone(), ToldState { state: state.clone(), since: run.at });
            } else if let Some(earlier) = earlier.filter(|_| is_over)
                && rule.has_event(&NoticeEvent::Recovered)
            {
                tell(&NoticeEvent::Recovered, Some(earlier.since));
            }
            if has_changed && rule.has_event(&NoticeEvent::Changed) {
                tell(&NoticeEvent::Changed, None);
            }
            if run.outcome == Outcome::Succeeded && rule.has_event(&NoticeEvent::Succeeded) {
                tell(&NoticeEvent::Succeeded, None);
            }
        }
        messages.extend(run.pings(rules));
        (Some(Self { state, since, told, acknowledged, held_back }), messages)
    }
}

impl RunNotice {
    /// Returns the messages that tell each dead man's switch how the run ended. A run that was planned or
    /// not needed ended well.
    fn pings(&self, rules: &[NoticeRule]) -> impl Iterator<Item = (String, Message)> {
        let event = match self.outcome {
            Outcome::Succeeded | Outcome::Planned | Outcome::Skipped => NoticeEvent::Succeeded,
            Outcome::Failed | Outcome::Interrupted | Outcome::Cancelled => NoticeEvent::Failed,
        };
        let pings = rules.iter().filter(|rule| rule.on == NoticeEvents::EachRun);
        pings.map(move |rule| (rule.to.clone(), self.message(&event.to_string(), None)))
    }

    /// Returns the message about the run. `since` is the begin of a state that is over.
    fn message(&self, event: &str, since: Option<DateTime<Utc>>) -> Message {
        let Self { job, stop_reason, cause, .. } = self;
        let verdict = self.verdict.as_deref();
        let what = match event {
            "failed" => format!("{job} failed ({stop_reason})"),
            "recovered" => match verdict {
                Some(verdict) => format!("{job} has recovered: it reports {verdict}"),
                None => format!("{job} has recovered"),
            },
            "planned" => format!("{job} has planned changes, which wait for a person"),
            _ => match verdict {
                Some(verdict) => format!("{job} reports {verdict}"),
                None => format!("{job} {}", self.outcome),
            },
        };
        let since = since.map(|since| format!(" (since {})", minute(since))).unwrap_or_default();
        let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
        let command = match event {
            "planned" => format!("dutyd plan {}", self.run_id),
            _ => format!("dutyd show {}", self.run_id),
        };
        Message {
            event: event.to_owned(),
            job: Some(job.to_string()),
            model: None,
            run_id: Some(self.run_id.clone()),
            outcome: Some(self.outcome),
            verdict: self.verdict.clone(),
            summary: format!("{what}{since}{cause}"),
            command,
            at: self.at,
        }
    }
}

/// Returns a time to the minute, in UTC.
fn minute(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `ok`, `-` (success without a verdict), `critical`, `F` (failed), `P` (planned) or `C`
    /// (cancelled).
    fn run(word: &str, at: i64) -> RunNotice {
        let (outcome, stop_reason, verdict) = match word {
            "F" => (Outcome::Failed, StopReason::VerifyFailed, None),
            "P" => (Outcome::Planned, StopReason::Planned, None),
            "C" => (Outcome::Cancelled, StopReason::Cancelled, None),
            "-" => (Outcome::Succeeded, StopReason::Completed, None),
            verdict => (Outcome::Succeeded, StopReason::Completed, Some(verdict.to_owned())),
        };
        RunNotice {
            run_id: format!("r{at}"),
            job: JobName::parse("web").unwrap(),
            outcome,
            stop_reason,
            verdict,
            cause: "db is down".into(),
            at: DateTime::from_timestamp(at * 60, 0).unwrap(),
        }
    }

    /// Returns the events after each of the runs, with a restart between any two.
    fn events(on: &[&str], runs: &str) -> Vec<String> {
        let on = on.iter().map(|word| NoticeEvent::parse(word).unwrap()).collect();
        let rules =
            [NoticeRule { to: "ops".into(), on: NoticeEvents::Listed(on), knows_outage: false }];
        let mut kept: Option<String> = None;
        let mut events = Vec::new();
        for (at, word) in runs.split(' ').enumerate() {
            let before = kept.as_deref().map(|kept| serde_json::from_str(kept).unwrap());
            let (state, messages) = JobState::after(before, &run(word, at as i64), &rules);
            kept = state.map(|state| serde_json::to_string(&state).unwrap());
            events
                .extend(messages.into_iter().map(|(_, message)| format!("{at} {}", message.event)));
        }
        events
    }

    #[test]
    fn a_state_is_told_when_it_is_entered_and_when_it_is_over() {
        let critical = ["status:critical", "recovered"];
        let expected = ["2 status:critical", "4 recovered"];
        assert_eq!(events(&critical, "ok ok critical critical ok"), expected);
        let failed = ["failed", "recovered"];
        assert_eq!(
            events(&failed, "F F - - F -"),
            ["0 failed", "2 recovered", "4 failed", "5 recovered"]
        );
        assert_eq!(events(&failed, "- - ok ok"), [""; 0]);
        assert_eq!(events(&["recovered"], "F - critical ok"), [""; 0], "nothing was told");
    }

    #[test]
    fn runs_that_are_cancelled_planned_or_skipped_leave_the_state_as_it_is() {
        assert_eq!(events(&["failed", "recovered"], "F C P F -"), ["0 failed", "4 recovered"]);
        assert_eq!(events(&["planned"], "P P"), ["0 planned", "1 planned"]);
    }

    #[test]
    fn a_failure_does_not_end_a_verdict_that_was_told() {
        let on = ["status:critical", "recovered"];
        assert_eq!(events(&on, "critical F ok"), ["0 status:critical", "2 recovered"]);
        assert_eq!(events(&on, "critical F critical F ok"), ["0 status:critical", "4 recovered"]);
        let on = ["status:critical", "failed", "recovered"];
        assert_eq!(events(&on, "F critical ok"), ["0 failed", "1 status:critical", "2 recovered"]);
        assert_eq!(
            events(&on, "critical F critical ok"),
            ["0 status:critical", "1 failed", "2 status:critical", "3 recovered"]
        );
    }

    #[test]
    fn a_failure_of_an_outage_that_was_told_is_held_back_until_another_cause() {
        let on = NoticeEvents::Listed(vec![NoticeEvent::Failed, NoticeEvent::Recovered]);
        let rules = |knows_outage| [NoticeRule { to: "ops".into(), on: on.clone(), knows_outage }];
        let mut state = None;
        let mut events = Vec::new();
        for (at, (word, knows_outage)) in
            [("F", true), ("F", true), ("F", false), ("-", false), ("F", true), ("-", false)]
                .into_iter()
                .enumerate()
        {
            let (after, messages) =
                JobState::after(state, &run(word, at as i64), &rules(knows_outage));
            state = after;
            events.extend(messages.into_iter().map(|(_, of)| format!("{at} {}", of.event)));
        }
        assert_eq!(events, ["2 failed", "3 recovered"]);
    }

    #[test]
    fn an_acknowledged_state_is_silent_until_it_changes_or_its_time_has_come() {
        let on = ["failed", "recovered", "changed"].map(|word| NoticeEvent::parse(word).unwrap());
        let on = NoticeEvents::Listed(on.into());
        let rules = [NoticeRule { to: "ops".into(), on, knows_outage: false }];
        let told = |until: Option<i64>, runs: &str| {
            let mut state = JobState::after(None, &run("F", 0), &rules).0.unwrap();
            let at = |minute: i64| DateTime::from_timestamp(minute * 60, 0).unwrap();
            state.acknowledged =
                Some(Acknowledgement { by: None, at: at(0), until: until.map(at) });
            let (mut state, mut events) = (Some(state), Vec::new());
            for (nth, word) in runs.split(' ').enumerate() {
                let minute = 1 + nth as i64;
                let (after, messages) = JobState::after(state, &run(word, minute), &rules);
                state = after;
                events.extend(messages.into_iter().map(|(_, of)| format!("{minute} {}", of.event)));
            }
            events
        };
        assert_eq!(told(None, "F F F"), [""; 0]);
        assert_eq!(told(None, "F - F"), ["2 recovered", "2 changed", "3 failed", "3 changed"]);
        assert_eq!(told(Some(2), "F F F -"), ["2 failed", "4 recovered", "4 changed"]);
    }

    #[test]
    fn other_events_are_told_each_time() {
        assert_eq!(events(&["succeeded"], "- F ok"), ["0 succeeded", "2 succeeded"]);
        assert_eq!(
            events(&["changed"], "ok ok critical F F ok"),
            ["2 changed", "3 changed", "5 changed"]
        );
    }

    #[test]
    fn a_dead_mans_switch_hears_of_each_run() {
        let rules =
            [NoticeRule { to: "ping".into(), on: NoticeEvents::EachRun, knows_outage: false }];
        let (state, first) = JobState::after(None, &run("F", 0), &rules);
        let (_, second) = JobState::after(state, &run("F", 1), &rules);
        assert_eq!((first[0].1.event.as_str(), second[0].1.event.as_str()), ("failed", "failed"));
        let (_, planned) = JobState::after(None, &run("P", 2), &rules);
        assert_eq!(planned[0].1.event, "succeeded", "a start without an end would raise an alarm");
    }

    #[test]
    fn a_summary_says_what_since_when_and_why() {
        let message = run("F", 3).message("failed", None);
        assert_eq!(message.summary, "web failed (verify_failed): db is down");
        assert_eq!(message.command, "dutyd show r3");
        let since = DateTime::from_timestamp(0, 0);
        let message = run("ok", 5).message("recovered", since);
        assert_eq!(
            message.summary,
            "web has recovered: it reports ok (since 1970-01-01 00:00 UTC): db is down"
        );
    }
}
