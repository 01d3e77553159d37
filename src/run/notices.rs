//! What notifications are told about a run: its end, and the events on its way that a person should hear
//! of at once.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde_json::Value;

use super::ended::Ended;
use super::history::RunHistory;
use super::host::Host;
use super::spec::RunSpec;
use crate::agent::{ApprovalAnswer, ApprovalRequest, Approver};
use crate::domain::{
    JobName, Message, NoticeEvent, NoticeEvents, Outcome, RunId, RunNotice, SessionEnd, StopReason,
};
use crate::text::escape::one_line;
use crate::text::redact::Redactor;
use crate::text::truncate::shorten;

/// Limit of the characters of a cause.
const CAUSE_CHARACTERS: usize = 300;

/// Limit of the characters of a verdict.
const VERDICT_CHARACTERS: usize = 100;

/// The facts about the end of a run, from its `session_end` or from the summary of its record.
struct RecordedOutcome<'a> {
    outcome: Outcome,
    stop_reason: StopReason,
    verdict: Option<&'a str>,
    error: Option<&'a str>,
    result: Option<&'a Value>,
}

/// Returns the notice of a run that has just ended.
pub(super) fn notice_of_end(
    run_id: &RunId,
    job: JobName,
    end: &SessionEnd,
    at: DateTime<Utc>,
) -> RunNotice {
    notice(run_id, job, &of_end(end), at)
}

/// Returns the notice of a run that recovery ends; `None` for a run that is not told of.
#[must_use]
pub fn notice_of_recovered(
    history: &RunHistory,
    run_id: &RunId,
    end: &SessionEnd,
    at: DateTime<Utc>,
) -> Option<RunNotice> {
    Some(notice(run_id, find_job_to_notify(history)?, &of_end(end), at))
}

/// Returns the notice of a run whose record has its end; `None` for a run that is not told of.
#[must_use]
pub fn notice_of_record(
    history: &RunHistory,
    run_id: &RunId,
    now: DateTime<Utc>,
) -> Option<RunNotice> {
    let row = history.summary();
    let end = RecordedOutcome {
        outcome: row.outcome?,
        stop_reason: row.stop_reason?,
        verdict: row.verdict.as_deref(),
        error: row.error.as_deref(),
        result: row.result.as_ref(),
    };
    Some(notice(run_id, find_job_to_notify(history)?, &end, history.last_at.unwrap_or(now)))
}

/// Returns the notice of a run whose record is broken; `why` tells how.
#[must_use]
pub fn notice_of_broken(run_id: &RunId, job: JobName, why: &str, at: DateTime<Utc>) -> RunNotice {
    notice(
        run_id,
        job,
        &of_end(&Ended::interrupted_end(&format!("its record is broken: {why}"))),
        at,
    )
}

/// Returns the job of a run, unless a person watched the run or it applied a plan.
fn find_job_to_notify(history: &RunHistory) -> Option<JobName> {
    let start = &history.start;
    let is_told = !start.interactive && start.plan_id.is_none();
    JobName::parse(&start.job).ok().filter(|_| is_told)
}

fn of_end(end: &SessionEnd) -> RecordedOutcome<'_> {
    RecordedOutcome {
        outcome: end.outcome,
        stop_reason: end.stop_reason,
        verdict: end.verdict.as_deref(),
        error: end.error.as_deref(),
        result: end.result.as_ref(),
    }
}

fn notice(run_id: &RunId, job: JobName, end: &RecordedOutcome<'_>, at: DateTime<Utc>) -> RunNotice {
    let answer = end.result.map(|result| match result {
        Value::String(text) => text.as_str(),
        // Of an answer that is data, the summary is for people.
        other => other.get("summary").and_then(Value::as_str).unwrap_or_default(),
    });
    let first_line = answer.and_then(|text| text.trim().lines().next());
    let cause = end.error.or(first_line).unwrap_or_default();
    RunNotice {
        run_id: run_id.to_string(),
        job,
        outcome: end.outcome,
        stop_reason: end.stop_reason,
        verdict: end.verdict.map(|verdict| line(verdict, VERDICT_CHARACTERS)),
        cause: line(cause, CAUSE_CHARACTERS),
        at,
    }
}

/// Returns a text as one line of at most `most` characters. It comes from a model or a tool.
fn line(text: &str, most: usize) -> String {
    shorten(&one_line(text.trim()), most)
}

/// Adds messages about events during a run.
#[derive(Clone)]
pub(super) struct Notices {
    pub(super) spec: RunSpec,
    pub(super) host: Host,
    pub(super) redactor: Redactor,
}

impl Notices {
    /// Tells each dead man's switch of the job that the run begins.
    pub(super) async fn tell_of_start(&self) {
        let (spec, what) = (&self.spec, "has started a run");
        let command = format!("dutyd show {}", spec.run_id);
        self.send("started", |on| *on == NoticeEvents::EachRun, what, command).await;
    }

    /// Tells of an admin call; `message` is that of its warning.
    pub(super) async fn tell_of_admin(&self, message: &str) {
        let what = format!("makes an admin call: {message}");
        let command = format!("dutyd show {}", self.spec.run_id);
        self.tell(&NoticeEvent::Admin, &what, command).await;
    }

    /// Tells of a call that waits for approval.
    async fn tell_of_approval(&self, request: &ApprovalRequest) {
        let call = match request.argv.as_slice() {
            [] => Value::Object(request.arguments.clone()).to_string(),
            argv => argv.join(" "),
        };
        let until = request.expires_at.format("%H:%M:%S UTC");
        let what = format!("asks until {until} for approval of {}: {call}", request.tool);
        let command = format!("dutyd approve {}", request.approval_id);
        self.tell(&NoticeEvent::Approval, &what, command).await;
    }

    async fn tell(&self, event: &NoticeEvent, what: &str, command: String) {
        let listed = |on: &NoticeEvents| match on {
            NoticeEvents::Listed(events) => events.contains(event),
            NoticeEvents::EachRun => false,
        };
        self.send(&event.to_string(), listed, what, command).await;
    }

    /// Keeps a message for each destination that `listed` accepts. `what` follows the name of the job.
    async fn send(
        &self,
        event: &str,
        listed: impl Fn(&NoticeEvents) -> bool,
        what: &str,
        command: String,
    ) {
        let Self { spec, host, redactor } = self;
        let rules = spec.job.notify.iter().filter(|rule| spec.is_told() && listed(&rule.on));
        let summary = format!("{} {}", spec.job.name, line(&redactor.text(what), CAUSE_CHARACTERS));
        let messages: Vec<(String, Message)> = rules
            .map(|rule| {
                let message = Message {
                    event: event.to_owned(),
                    job: Some(spec.job.name.to_string()),
                    model: None,
                    run_id: Some(spec.run_id.to_string()),
                    outcome: None,
                    verdict: None,
                    summary: summary.clone(),
                    command: command.clone(),
                    at: host.clock.now(),
                };
                (rule.to.clone(), message)
            })
            .collect();
        if messages.is_empty() {
            return;
        }
        let added = match host.ledger.get().await {
            Ok(ledger) => ledger.add_messages(messages).await,
            Err(error) => Err(error),
        };
        if let Err(error) = added {
            tracing::error!(run_id = %spec.run_id, event, %error, "failed to keep a message");
        }
    }
}

/// Tells of each request before it waits for a person's answer.
pub(super) struct TellingApprover(pub(super) Notices);

#[async_trait]
impl Approver for TellingApprover {
    fn expires_at(&self, timeout: Duration) -> DateTime<Utc> {
        self.0.host.approver.expires_at(timeout)
    }

    async fn ask(&self, request: ApprovalRequest) -> ApprovalAnswer {
        self.0.tell_of_approval(&request).await;
        self.0.host.approver.ask(request).await
    }
}
