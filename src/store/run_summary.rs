//! The summary of a run, for lists. A live run builds its summary from its events; later, a fold
//! over its transcript gives the same summary.

use std::collections::BTreeSet;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reader::{ReadLine, known};
use crate::domain::{
    CallId, DecisionKind, Event, JobName, Origin, Outcome, RunId, SessionEnd, SessionStart,
    StopReason, Trigger, Usage,
};

/// A run as `dutyd runs` prints it.
///
/// *Shape*:
/// `{"run_id":"…","job":"…","trigger":"schedule","started_at":"…","ended_at":null,"outcome":null,…}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The id of the run.
    pub run_id: String,
    /// The name of the job.
    pub job: String,
    /// Why the run began.
    pub trigger: Trigger,
    /// The due time of the slot, if the run has one.
    pub scheduled_for: Option<String>,
    /// When the run began; null while it waits, and if it ended before it began.
    pub started_at: Option<String>,
    /// When the run ended; null while it waits or runs.
    pub ended_at: Option<String>,
    /// How the run ended; null while it waits or runs.
    pub outcome: Option<Outcome>,
    /// Why the loop stopped; null while the run waits or runs.
    pub stop_reason: Option<StopReason>,
    /// The `status` of the final answer.
    pub verdict: Option<String>,
    pub result: Option<Value>,
    /// The number of the attempt, from 1.
    pub attempt: u64,
    /// Number of model responses.
    pub iterations: u64,
    /// Number of calls that the gate did not deny.
    pub tool_calls: u64,
    /// The tools of these calls, each once.
    #[serde(default)]
    pub tools_used: BTreeSet<String>,
    /// Number of calls that the gate or a person denied, or whose approval expired.
    #[serde(default)]
    pub refused_calls: u64,
    /// The ids of these calls: a call that the gate decides again after a crash counts once. Empty for a
    /// run that was read from the index.
    #[serde(skip)]
    pub refused: BTreeSet<CallId>,
    pub usage: Usage,
    /// The cost in US dollars; null if the price is unknown.
    pub cost_usd: Option<f64>,
    /// Whether a part of the cost rests on the price of a relative of its model.
    #[serde(default)]
    pub cost_estimated: bool,
    /// The name of the model; empty if the run has not begun.
    pub model: String,
    /// The error text, if there is one.
    pub error: Option<String>,
    /// What a queued run waits for; null for any other run, and if no daemon tells.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// The digest of the configuration. Only the index of the runs keeps it, in a column of its own.
    #[serde(skip)]
    pub config_digest: Option<String>,
}

/// A run that waits in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedRun {
    pub run_id: RunId,
    pub job: JobName,
    /// Why the run was queued.
    pub origin: Origin,
    /// When the attempt begins, if it waits for its time; of a requested run, when it was requested.
    pub not_before: Option<DateTime<Utc>>,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// The run waits in the queue.
    Queued,
    /// The run is active.
    Running,
    /// The run has ended.
    Ended(Outcome),
}

impl RunState {
    /// Returns the word of every state.
    pub fn words() -> impl Iterator<Item = &'static str> {
        ["queued", "running"].into_iter().chain(Outcome::ALL.iter().map(|outcome| outcome.as_str()))
    }

    /// Returns the state with this word; `None` if the word is unknown.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "queued" => Some(Self::Queued),
            "running" => Some(Self::Running),
            word => {
                let mut all = Outcome::ALL.iter();
                all.find(|outcome| outcome.as_str() == word).copied().map(Self::Ended)
            }
        }
    }

    /// Returns the word of the state.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }
}

impl RunSummary {
    /// Returns a row with only these fields; the counters are zero.
    fn blank(run_id: &RunId, job: String, trigger: Trigger) -> Self {
        Self {
            run_id: run_id.to_string(),
            job,
            trigger,
            scheduled_for: None,
            started_at: None,
            ended_at: None,
            outcome: None,
            stop_reason: None,
            verdict: None,
            result: None,
            attempt: 1,
            iterations: 0,
            tool_calls: 0,
            tools_used: BTreeSet::new(),
            refused_calls: 0,
            refused: BTreeSet::new(),
            usage: Usage::default(),
            cost_usd: None,
            cost_estimated: false,
            model: String::new(),
            error: None,
            waits_for: None,
            config_digest: None,
        }
    }

    /// Returns the row of a run that has just begun.
    #[must_use]
    pub fn begun(run_id: &RunId, start: &SessionStart, at: String) -> Self {
        Self {
            scheduled_for: start.origin.due_at().map(moment),
            started_at: Some(at),
            attempt: u64::from(start.origin.attempt),
            model: start.model.clone(),
            config_digest: Some(start.config_digest.clone()),
            ..Self::blank(run_id, start.job.clone(), start.origin.trigger)
        }
    }

    /// Returns the row of a run that waits in the queue.
    #[must_use]
    pub fn queued(
        run_id: &RunId,
        job: String,
        trigger: Trigger,
        due_at: Option<DateTime<Utc>>,
        attempt: u64,
    ) -> Self {
        Self { scheduled_for: due_at.map(moment), attempt, ..Self::blank(run_id, job, trigger) }
    }

    /// Returns the row of a run that ended before it began.
    #[must_use]
    pub fn ended_unbegun(self, at: DateTime<Utc>, stop_reason: StopReason, why: String) -> Self {
        Self {
            ended_at: Some(moment(at)),
            outcome: Some(stop_reason.outcome()),
            stop_reason: Some(stop_reason),
            error: Some(why),
            ..self
        }
    }

    /// Returns the row of a transcript; `None` if the first line is not a `session_start`.
    pub fn fold<'a>(lines: impl IntoIterator<Item = &'a ReadLine>) -> Option<Self> {
        let mut lines = lines.into_iter();
        let mut fold = SummaryFold::begin(lines.next()?)?;
        lines.for_each(|line| fold.push(line));
        Some(fold.end())
    }

    fn charge(&mut self, usage: &Usage, cost_usd: Option<f64>) {
        self.usage.add(usage);
        if let Some(cost) = cost_usd {
            self.cost_usd = Some(self.cost_usd.unwrap_or(0.0) + cost);
        }
    }

    /// Counts a call as refused, once ([`Event::refused_call`]).
    pub fn refuse(&mut self, call_id: &CallId) {
        if self.refused.insert(call_id.clone()) {
            self.refused_calls += 1;
        }
    }

    /// Takes the totals and the result from `end`, which must already be redacted.
    pub fn end(&mut self, end: &SessionEnd, at: String) {
        self.ended_at = Some(at);
        self.outcome = Some(end.outcome);
        self.stop_reason = Some(end.stop_reason);
        self.verdict.clone_from(&end.verdict);
        self.result.clone_from(&end.result);
        self.error.clone_from(&end.error);
        self.iterations = end.iterations;
        self.tool_calls = end.tool_calls;
        self.tools_used = end.tools_used.iter().cloned().collect();
        self.usage = end.usage;
        self.cost_usd = end.cost_usd;
        self.cost_estimated = end.cost_estimated;
    }

    /// Marks a run as interrupted because its transcript has no end. `last` is the time of the last
    /// line.
    #[must_use]
    pub fn cut(mut self, last: String) -> Self {
        self.ended_at = Some(last);
        self.outcome = Some(Outcome::Interrupted);
        self.stop_reason = Some(StopReason::Interrupted);
        self.error =
            Some("the record is broken: it has no end (run `dutyd verify` for details)".to_owned());
        self
    }

    /// Returns the row of a run that began, but whose transcript has no readable first line.
    /// `due_at` is the due time of its slot, if it has one.
    #[must_use]
    pub fn unreadable(run_id: &RunId, job: String, due_at: Option<DateTime<Utc>>) -> Self {
        let ulid = run_id.as_str().parse::<ulid::Ulid>().ok();
        let created = ulid.and_then(|ulid| i64::try_from(ulid.timestamp_ms()).ok());
        let created = created.and_then(DateTime::from_timestamp_millis).map(moment);
        let trigger = due_at.map_or(Trigger::Manual, |_| Trigger::Schedule);
        Self {
            scheduled_for: due_at.map(moment),
            started_at: created.clone(),
            ..Self::blank(run_id, job, trigger)
        }
        .cut(created.unwrap_or_default())
    }

    /// Returns the state of the run.
    #[must_use]
    pub fn state(&self) -> RunState {
        match (self.outcome, &self.started_at) {
            (Some(outcome), _) => RunState::Ended(outcome),
            (None, Some(_)) => RunState::Running,
            (None, None) => RunState::Queued,
        }
    }
}

/// Folds the lines of a transcript into the row of its run, one by one.
#[derive(Debug)]
pub struct SummaryFold {
    row: RunSummary,
    /// The calls that the gate did not deny.
    calls: BTreeSet<CallId>,
}

impl SummaryFold {
    /// Takes the first line; `None` if it is not a `session_start`.
    #[must_use]
    pub fn begin(first: &ReadLine) -> Option<Self> {
        let Some(Event::SessionStart(start)) = known(first) else { return None };
        let row = RunSummary::begun(&first.run_id, start, first.ts.clone());
        Some(Self { row, calls: BTreeSet::new() })
    }

    /// Takes the next line.
    pub fn push(&mut self, line: &ReadLine) {
        let Some(event) = known(line) else { return };
        let row = &mut self.row;
        if let Some(call_id) = event.refused_call() {
            row.refuse(call_id);
        }
        match event {
            Event::AssistantTextEnd { usage, cost_usd, cost_estimated, .. } => {
                row.cost_estimated |= *cost_estimated;
                row.iterations += 1;
                row.charge(&usage.unwrap_or_default(), *cost_usd);
            }
            Event::Warning { usage: Some(usage), cost_usd, .. } => row.charge(usage, *cost_usd),
            // If a limit ends a run, we write its last message ourselves. That message is not a
            // model response, so it is not an iteration.
            Event::ProcessingEnd { iterations } => row.iterations = *iterations,
            // A call that requires approval has two decisions.
            Event::PolicyDecision(decision) if decision.decision != DecisionKind::Deny => {
                self.calls.insert(decision.call_id.clone());
                row.tools_used.insert(decision.name.clone());
            }
            Event::SessionEnd(end) => row.end(end, line.ts.clone()),
            _ => {}
        }
        if row.outcome.is_none() {
            row.tool_calls = self.calls.len() as u64;
        }
    }

    /// Returns the row of the lines so far.
    #[must_use]
    pub fn so_far(&self) -> &RunSummary {
        &self.row
    }

    /// Returns the row of all lines.
    #[must_use]
    pub fn end(self) -> RunSummary {
        self.row
    }
}

/// Formats a time as in transcripts: RFC 3339 in UTC, with microseconds.
#[must_use]
pub fn moment(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::super::reader::read_lines;
    use super::*;

    /// Returns the paths of the recorded transcripts of format version 1.
    fn recorded() -> Vec<PathBuf> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let day = root.join("tests/fixtures/formats/v1/runs/2026/11/22");
        let runs = std::fs::read_dir(day).unwrap();
        runs.map(|run| run.unwrap().path().join("transcript.jsonl")).collect()
    }

    fn fold(lines: &[Value]) -> RunSummary {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(file.path(), text).unwrap();
        let lines: Vec<ReadLine> = read_lines(file.path()).unwrap().map(Result::unwrap).collect();
        RunSummary::fold(&lines).unwrap()
    }

    fn values(path: &PathBuf) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn the_lines_of_every_recorded_run_add_up_to_its_end() {
        for path in recorded() {
            let lines = values(&path);
            let (end, before) = lines.split_last().unwrap();
            assert_eq!(end["type"], "session_end", "{path:?}");
            let row = fold(before);
            assert_eq!(row.outcome, None);
            assert_eq!(row.iterations, end["iterations"], "{path:?}");
            assert_eq!(row.tool_calls, end["tool_calls"], "{path:?}");
            assert_eq!(serde_json::to_value(row.usage).unwrap(), end["usage"], "{path:?}");
            assert_eq!(json!(row.cost_usd.unwrap_or(0.0)), end["cost_usd"], "{path:?}");
            let whole = fold(&lines);
            assert_eq!((whole.iterations, whole.tool_calls), (row.iterations, row.tool_calls));
            assert_eq!(whole.ended_at.as_deref(), end["ts"].as_str());
        }
    }

    #[test]
    fn the_message_that_closes_a_run_is_not_an_iteration() {
        let path = recorded()
            .into_iter()
            .find(|path| values(path).iter().any(|line| line["type"] == "assistant_text_end"));
        let mut lines = values(&path.unwrap());
        let at = lines.iter().position(|line| line["type"] == "assistant_text_end").unwrap();
        lines.truncate(at + 1);
        lines.push(lines[at].clone());
        let mut closed = lines[at].clone();
        for key in ["text", "tool_calls", "finish_reason", "usage", "cost_usd", "latency_ms"] {
            closed.as_object_mut().unwrap().remove(key);
        }
        closed["type"] = json!("processing_end");
        closed["iterations"] = json!(1);
        lines.push(closed);
        assert_eq!(fold(&lines[..=at]).iterations, 1);
        assert_eq!(fold(&lines).iterations, 1);
    }

    #[test]
    fn a_record_that_nothing_ends_is_shown_as_interrupted() {
        let lines = values(&recorded()[0]);
        let cut = fold(&lines[..lines.len() - 1]).cut("2026-11-22T18:00:00Z".into());
        assert_eq!(cut.outcome, Some(Outcome::Interrupted));
        assert_eq!(cut.stop_reason, Some(StopReason::Interrupted));
        assert!(cut.error.is_some_and(|error| error.contains("has no end")));
        assert_eq!(cut.ended_at.as_deref(), Some("2026-11-22T18:00:00Z"));
    }
}
