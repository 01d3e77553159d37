//! What a transcript says about its run, found in one pass.
//!
//! [`HistoryFold`] collects what recovery and a resumed run need to know about a transcript.
//! The other code that reads transcripts shows them to people, builds the index, or repeats them
//! (`agent/rebuild.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use crate::agent::PERSON;
use crate::domain::{
    CallEnd, CallId, CallStart, Category, DroppedParameter, Event, InputSource, PlanStep,
    PreflightItem, QueuedText, SessionStart, TextKind,
};
use crate::store::{ReadEvent, ReadLine, RunSummary, SummaryFold, known, read_lines};

/// The code of the warning about a call whose effect is unknown.
const EFFECT_UNKNOWN: &str = "effect_unknown";

/// The code of the warning that the precheck gave no answer.
pub(super) const NO_PRECHECK_ANSWER: &str = "precheck";

/// The result of reading a transcript.
#[derive(Debug)]
pub enum RecordRead {
    /// The file is absent, or it has no whole line.
    Empty,
    Whole(Box<RunHistory>),
    /// A line cannot be read, or the first one is not `session_start`.
    Broken(BrokenRecord),
}

/// A transcript of which only a part can be read.
#[derive(Debug)]
pub struct BrokenRecord {
    /// The lines before the bad one; `None` if the first of them is not `session_start`.
    pub intact: Option<Box<RunHistory>>,
    /// The number of these lines.
    pub lines: u64,
    /// What is wrong with the next line, for people.
    pub why: String,
}

/// The state of the checklist of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PreflightRecord {
    /// The run was cut off before its checklist was evaluated, or the checklist passed and was not
    /// recorded.
    #[default]
    Unknown,
    Passed,
    /// The failed items.
    Failed(Vec<PreflightItem>),
}

/// The precheck of a run.
#[derive(Debug, Clone, Default)]
pub struct PrecheckRecord {
    /// The end of its call.
    pub call: Option<CallEnd>,
    /// Whether it found something to do.
    pub found_work: Option<bool>,
    /// Whether the run has recorded that it gave no answer.
    pub gave_no_answer: bool,
}

impl PrecheckRecord {
    /// Returns the answer of the precheck, if the run made one; `None` inside if it reached no exit
    /// code.
    #[must_use]
    pub fn answer(&self) -> Option<Option<String>> {
        let answer = self.call.as_ref().and_then(CallEnd::precheck_answer);
        (self.found_work.is_some() || answer.is_some()).then_some(answer)
    }
}

/// What a transcript says about its run.
#[derive(Debug)]
pub struct RunHistory {
    /// The first line.
    pub start: Box<SessionStart>,
    summary: SummaryFold,
    /// The events that this version knows, in order.
    pub events: Vec<Event>,
    /// The number of lines.
    pub lines: u64,
    /// The number, from 1, of the first line that has an event of a later version or no valid time.
    pub first_unreadable: Option<u64>,
    /// The time of the last line, as the line has it.
    pub last_ts: String,
    /// The time of the last line, if that line has a valid one.
    pub last_at: Option<DateTime<Utc>>,
    /// Whether the last line is `session_suspended`.
    pub is_suspended: bool,
    /// How often the run was resumed.
    pub resumptions: u64,
    /// How often the run was resumed after the daemon died. A stop does not count.
    pub deaths: u64,
    /// How long the run had worked when it wrote its last line. Downtime and the wait to continue do
    /// not count: the time that the last reply or the last `session_resumed` states, plus the time
    /// from that line to the last line.
    pub worked: Duration,
    /// The names of the tools that started.
    pub tools_used: BTreeSet<String>,
    /// Whether a write or admin call has started.
    pub has_started_change: bool,
    pub preflight: PreflightRecord,
    pub precheck: PrecheckRecord,
    /// The calls of the checks that have ended.
    pub checks: BTreeMap<CallId, CallEnd>,
    /// The todo list of the last call that wrote one.
    pub todos: Option<Vec<Value>>,
    /// The parameters that models refused.
    pub dropped: Vec<DroppedParameter>,
    /// The texts that people gave to the run and that it has not taken.
    pub waiting_texts: Vec<QueuedText>,
    /// The ids of all texts that people gave to the run.
    pub text_ids: BTreeSet<String>,
    /// The write and admin calls without a result, and those that have a warning about that.
    open_changes: BTreeSet<CallId>,
    warned: BTreeSet<CallId>,
}

impl RunHistory {
    /// Reads a transcript.
    ///
    /// *Errors*: the file is there and cannot be read.
    pub fn read(transcript: &Path) -> io::Result<RecordRead> {
        let lines = match read_lines::<ReadEvent>(transcript) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RecordRead::Empty),
            lines => lines?,
        };
        let mut fold = HistoryFold::default();
        for line in lines {
            match line {
                Ok(line) => fold.push(line),
                Err(problem) => return Ok(RecordRead::Broken(fold.broken(problem.to_string()))),
            }
        }
        Ok(fold.end())
    }

    /// Returns the first line of a transcript; `None` if it cannot be read as `session_start`.
    #[must_use]
    pub fn read_start(transcript: &Path) -> Option<Box<SessionStart>> {
        let first: ReadLine = read_lines(transcript).ok()?.next()?.ok()?;
        match first.event {
            ReadEvent::Known(event) => match *event {
                Event::SessionStart(start) => Some(start),
                _ => None,
            },
            ReadEvent::Unknown(_) => None,
        }
    }

    /// Folds the lines of a transcript; `None` if the first one is not `session_start`.
    pub fn fold(lines: impl IntoIterator<Item = ReadLine>) -> Option<Self> {
        let mut fold = HistoryFold::default();
        lines.into_iter().for_each(|line| fold.push(line));
        fold.history.map(|history| *history)
    }

    /// Returns the summary of the run up to the last line.
    #[must_use]
    pub fn summary(&self) -> &RunSummary {
        self.summary.so_far()
    }

    /// Returns a warning for each write or admin call that has started and has no result. We cannot
    /// know whether it took effect. Leaves out the calls about which the transcript already warns.
    #[must_use]
    pub fn unknown_effects(&self) -> Vec<Event> {
        let warning = |call_id: &CallId| {
            let message =
                format!("the run was cut off during the call {call_id}; its effect is unknown");
            let mut warning = Event::warning(EFFECT_UNKNOWN, message);
            if let Event::Warning { call_id: of, .. } = &mut warning {
                *of = Some(call_id.clone());
            }
            warning
        };
        self.open_changes.difference(&self.warned).map(warning).collect()
    }

    /// Returns the calls that the model asked for and that have started and ended, in the order in which it
    /// asked.
    #[must_use]
    pub fn asked_calls(&self) -> Vec<(&CallStart, &CallEnd)> {
        let (mut order, mut started, mut ended) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for event in &self.events {
            match event {
                Event::AssistantTextEnd { tool_calls, .. } => {
                    let ids = tool_calls.iter().filter_map(|call| call.get("call_id")?.as_str());
                    order.extend(ids);
                }
                Event::ToolCallStart(start) => _ = started.insert(start.call_id.as_str(), start),
                Event::ToolCallEnd(end) => _ = ended.insert(end.call_id.as_str(), end.as_ref()),
                _ => {}
            }
        }
        let both = |id: &str| Some((*started.get(id)?, *ended.get(id)?));
        order.into_iter().filter_map(both).collect()
    }

    /// Returns the steps that the run planned.
    pub fn planned_steps(&self) -> impl Iterator<Item = &PlanStep> {
        self.events.iter().filter_map(|event| match event {
            Event::PlanStep(step) => Some(step.as_ref()),
            _ => None,
        })
    }

    /// Tells whether a model has answered.
    #[must_use]
    pub fn has_reply(&self) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, Event::AssistantTextEnd { model: Some(_), .. }))
    }

    /// Tells whether an MCP server offered tools.
    #[must_use]
    pub fn had_server_tools(&self) -> bool {
        let offers = |event: &Event| matches!(event, Event::McpServerReady { tools, .. } if !tools.is_empty());
        self.events.iter().any(offers)
    }

    /// Returns the results of the checks that ended: the call, whether it passed, and why.
    pub fn check_results(
        &self,
    ) -> impl Iterator<Item = (&CallEnd, &str, &Map<String, Value>, bool, &str)> {
        self.events.iter().filter_map(|event| match event {
            Event::Verify { call_id, tool, arguments, ok, detail } => {
                let end = self.checks.get(call_id)?;
                Some((end, tool.as_str(), arguments, *ok, detail.as_str()))
            }
            _ => None,
        })
    }

    /// Tells whether the last line of the run is there.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.summary().outcome.is_some()
    }

    /// Returns the parameters that a model refused.
    pub fn dropped_by<'a>(&'a self, model: &'a str) -> impl Iterator<Item = String> + 'a {
        let of_model = self.dropped.iter().filter(move |dropped| dropped.model == model);
        of_model.map(|dropped| dropped.parameter.clone())
    }
}

/// Folds the lines of a transcript one by one.
#[derive(Debug, Default)]
pub struct HistoryFold {
    history: Option<Box<RunHistory>>,
    /// The number of lines so far, counted even if the first one is not `session_start`.
    lines: u64,
    /// The time of the previous line, if it has a valid one.
    before: Option<DateTime<Utc>>,
    /// The todo lists of calls that have not ended.
    open_todos: BTreeMap<CallId, Vec<Value>>,
}

impl HistoryFold {
    /// Takes the next line.
    pub fn push(&mut self, line: ReadLine) {
        let at = DateTime::parse_from_rfc3339(&line.ts).ok().map(|at| at.to_utc());
        self.lines += 1;
        if self.lines == 1 {
            self.history = begin(&line);
        } else if let Some(history) = &mut self.history {
            history.summary.push(&line);
        }
        let Some(history) = &mut self.history else { return };
        history.lines = self.lines;
        let event = match line.event {
            ReadEvent::Known(event) => Some(event),
            ReadEvent::Unknown(_) => None,
        };
        if event.is_none() || at.is_none() {
            history.first_unreadable.get_or_insert(self.lines);
        }
        let is_resumed = matches!(event.as_deref(), Some(Event::SessionResumed { .. }));
        if !is_resumed && let (Some(before), Some(at)) = (self.before, at) {
            history.worked += (at - before).to_std().unwrap_or_default();
        }
        (self.before, history.last_at) = (at, at);
        history.last_ts = line.ts;
        if is_resumed {
            history.resumptions += 1;
            history.deaths += u64::from(!history.is_suspended);
        }
        history.is_suspended = matches!(event.as_deref(), Some(Event::SessionSuspended { .. }));
        if let Some(event) = event {
            history.take(&event, &mut self.open_todos);
            history.events.push(*event);
        }
    }

    /// Returns what the lines say.
    #[must_use]
    pub fn end(self) -> RecordRead {
        let lines = self.lines;
        match self.history {
            Some(history) => RecordRead::Whole(history),
            None if lines == 0 => RecordRead::Empty,
            None => {
                let why = "it does not begin with `session_start`".to_owned();
                RecordRead::Broken(BrokenRecord { intact: None, lines: 0, why })
            }
        }
    }

    /// Returns what the lines before a bad one say. `why` is what is wrong with that one.
    #[must_use]
    pub fn broken(self, why: String) -> BrokenRecord {
        BrokenRecord { intact: self.history, lines: self.lines, why }
    }
}

fn begin(first: &ReadLine) -> Option<Box<RunHistory>> {
    let Some(Event::SessionStart(start)) = known(first) else { return None };
    Some(Box::new(RunHistory {
        start: start.clone(),
        summary: SummaryFold::begin(first)?,
        events: Vec::new(),
        lines: 0,
        first_unreadable: None,
        last_ts: first.ts.clone(),
        last_at: None,
        is_suspended: false,
        resumptions: 0,
        deaths: 0,
        worked: Duration::ZERO,
        tools_used: BTreeSet::new(),
        has_started_change: false,
        preflight: PreflightRecord::Unknown,
        precheck: PrecheckRecord::default(),
        checks: BTreeMap::new(),
        todos: None,
        dropped: Vec::new(),
        waiting_texts: Vec::new(),
        text_ids: BTreeSet::new(),
        open_changes: BTreeSet::new(),
        warned: BTreeSet::new(),
    }))
}

impl RunHistory {
    /// Forgets the first text of this kind, which the run has taken.
    fn take_text(&mut self, kind: TextKind) {
        if let Some(at) = self.waiting_texts.iter().position(|text| text.kind == kind) {
            self.waiting_texts.remove(at);
        }
    }

    fn take(&mut self, event: &Event, open_todos: &mut BTreeMap<CallId, Vec<Value>>) {
        match event {
            Event::AssistantTextEnd { elapsed_ms, model: Some(_), .. } => {
                self.worked = Duration::from_millis(*elapsed_ms);
            }
            Event::SessionResumed { worked_ms: Some(worked_ms), .. } => {
                self.worked = Duration::from_millis(*worked_ms);
            }
            Event::Preflight { items } => {
                let failed: Vec<_> = items.iter().filter(|item| !item.ok).cloned().collect();
                self.preflight = if failed.is_empty() {
                    PreflightRecord::Passed
                } else {
                    PreflightRecord::Failed(failed)
                };
            }
            // The first call comes after the checklist.
            Event::PolicyDecision(_) if self.preflight == PreflightRecord::Unknown => {
                self.preflight = PreflightRecord::Passed;
            }
            Event::InputQueued { kind, text, by, text_id } => {
                self.text_ids.insert(text_id.clone());
                let (text_id, text, by) = (text_id.clone(), text.clone(), by.clone());
                self.waiting_texts.push(QueuedText { text_id, kind: *kind, text, by });
            }
            Event::SteeringInjected { source, .. } if source == PERSON => {
                self.take_text(TextKind::Steering);
            }
            Event::UserInput { source: InputSource::FollowUp, .. } => {
                self.take_text(TextKind::FollowUp);
            }
            Event::Precheck { ok, .. } => {
                self.precheck.found_work.get_or_insert(*ok);
            }
            Event::ToolCallStart(start) => {
                self.tools_used.insert(start.name.clone());
                if start.category != Category::Read {
                    self.has_started_change = true;
                    self.open_changes.insert(start.call_id.clone());
                }
                if start.name == "todo_write"
                    && let Some(todos) = start.arguments.get("todos").and_then(Value::as_array)
                {
                    open_todos.insert(start.call_id.clone(), todos.clone());
                }
            }
            Event::ToolCallEnd(end) => {
                self.open_changes.remove(&end.call_id);
                if let Some(todos) = open_todos.remove(&end.call_id)
                    && !end.is_error
                {
                    self.todos = Some(todos);
                }
                if end.call_id.is_verify() {
                    self.checks.insert(end.call_id.clone(), CallEnd::clone(end));
                }
                if end.call_id.as_str() == CallId::PRECHECK {
                    self.precheck.call.get_or_insert_with(|| CallEnd::clone(end));
                }
            }
            Event::Warning { code, call_id, dropped, .. } => {
                self.dropped.extend(dropped.clone());
                self.precheck.gave_no_answer |= code == NO_PRECHECK_ANSWER;
                if code == EFFECT_UNKNOWN {
                    self.warned.extend(call_id.clone());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const START: &str = r#"{"type": "session_start", "job": "j", "trigger": "manual", "scheduled_for": null,
        "attempt": 1, "mode": "act", "model": "m", "provider": "p", "profile": "generic", "tools": [],
        "policy": {}, "config_digest": "d", "environment": "local",
        "sandbox": {"mode": "off", "landlock_abi": null, "cgroup": null}, "dutyd_version": "0", "host": "h"}"#;

    fn line(ts: &str, event: &Value) -> ReadLine {
        let id = "01m8266a6bdtqp42bjvv982dj6";
        let mut line =
            json!({"v": 1, "seq": 0, "ts": ts, "run_id": id, "session_id": id, "prev": ""});
        line.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        serde_json::from_value(line).unwrap()
    }

    fn history(events: &[Value]) -> RunHistory {
        let start = serde_json::from_str(START).unwrap();
        let lines = std::iter::once(&start).chain(events);
        RunHistory::fold(lines.map(|event| line("2026-11-26T03:00:00Z", event))).unwrap()
    }

    fn warning() -> Value {
        json!({"type": "warning", "code": "c", "message": "m"})
    }

    // proves STATE-7
    #[test]
    fn a_line_of_a_later_version_or_without_a_time_is_found() {
        let start: Value = serde_json::from_str(START).unwrap();
        let good = |event: &Value| line("2026-11-26T03:00:00Z", event);
        let later = good(&json!({"type": "of_a_later_version"}));
        let untimed = line("noon", &warning());
        assert_eq!(history(&[warning()]).first_unreadable, None);
        for bad in [later, untimed] {
            let lines = [good(&start), good(&warning()), bad, good(&warning())];
            assert_eq!(RunHistory::fold(lines).unwrap().first_unreadable, Some(3));
        }
    }

    #[test]
    fn a_stop_is_not_a_death() {
        let again = json!({"type": "session_resumed", "from_seq": 1, "count": 1, "killed": 0});
        let stop = json!({"type": "session_suspended", "reason": "r"});
        let found = history(&[again.clone(), warning(), stop.clone(), again.clone(), again]);
        assert_eq!((found.deaths, found.resumptions, found.is_suspended), (2, 3, false));
        assert!(history(&[stop]).is_suspended);
    }

    #[test]
    fn each_write_call_without_a_result_gets_one_warning() {
        let begun = |id: &str, category: &str| {
            json!({"type": "tool_call_start", "call_id": id, "name": "t", "category": category,
                "arguments": {}, "argv": [], "working_dir": "/", "sandboxed": false})
        };
        let ended = json!({"type": "tool_call_end", "call_id": "b", "name": "t", "is_error": false,
            "error_kind": null, "output": "", "output_bytes": 0, "truncated": null, "exit_code": 0,
            "signal": null, "timed_out": false, "duration_ms": 1});
        let events = [begun("a", "write"), begun("b", "write"), ended, begun("c", "read")];
        let found = history(&events);
        assert!(found.has_started_change && found.tools_used.len() == 1);
        let [warning] = found.unknown_effects().try_into().unwrap();
        let warning = serde_json::to_value(warning).unwrap();
        assert_eq!(
            (&warning["call_id"], &warning["code"]),
            (&json!("a"), &json!("effect_unknown"))
        );
        let events: Vec<Value> = events.into_iter().chain([warning]).collect();
        assert!(history(&events).unknown_effects().is_empty());
    }
}
