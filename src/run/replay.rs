//! Compares the calls of recorded runs with the decisions of a configuration: the current one, or one that
//! is to replace it.
//!
//! It reads a record once. It starts no tool, asks no model, and writes no file.
//! *Source*: `docs/design/interfaces.md`, "Replay and backtest".

mod calls;
mod prompt;
mod report;

use std::collections::BTreeMap;
use std::io;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::host::Host;
use super::lessons::Learned;
use super::model_view::prices_with;
use super::spec::recorded_mode;
use super::tool_context::{Links, gate_rules, path_rules};
use crate::catalogue::Price;
use crate::config::{Config, Job, Mode, Model, Provider};
use crate::domain::Event;
use crate::gate::GateRules;
use crate::process::resolved;
use crate::store::{ReadEvent, RecordFacts, RunDir, StateDir, parse_line, verify_each};
use crate::text::redact::{MARKER, Redactor};
use calls::RunReplay;
use prompt::compare_prompt;
pub use report::{Costs, Difference, DifferenceKind, NotCompared, ReplayReport, Side};

/// The parts that a replay compares besides the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    Calls,
    /// Also the prompt, and the tools that the model sees.
    CallsAndPrompt,
}

/// A comparison of recorded runs with a configuration.
pub struct Replay<'a> {
    config: &'a Config,
    host: &'a Host,
    learned: &'a Learned,
    redactor: Redactor,
    /// The state directory without links: a run resolves its own paths.
    state: StateDir,
    compared: Compared,
    /// The rules of each job, without the directories of a run.
    rules: BTreeMap<String, GateRules>,
    report: ReplayReport,
}

impl<'a> Replay<'a> {
    /// Returns a comparison of no run yet.
    #[must_use]
    pub fn new(
        config: &'a Config,
        host: &'a Host,
        learned: &'a Learned,
        compared: Compared,
    ) -> Self {
        let redactor = Redactor::new(&config.secrets);
        let root = host.state.root();
        let state = resolved(root).map_or_else(|_| host.state.clone(), |root| StateDir::new(&root));
        let (rules, report) = (BTreeMap::new(), ReplayReport::default());
        Self { config, host, learned, redactor, state, compared, rules, report }
    }

    /// Compares a run. A record that is not intact is not compared; the report names it.
    ///
    /// *Errors*: the caller may not read the transcript.
    pub fn take(&mut self, run: &RunDir, facts: &RecordFacts) -> io::Result<()> {
        let mut record = Record::default();
        let checked = match verify_each(run, facts, |bytes| record.push(bytes, self, run)) {
            Ok((checked, _)) => checked,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            Err(error) => {
                let (run_id, reason) = (run.run_id().to_string(), error.to_string());
                self.report.not_compared.push(NotCompared { run_id, reason });
                return Ok(());
            }
        };
        let problem = match checked.reason {
            Some(reason) if !checked.ok => Some(match checked.broken_at_seq {
                Some(seq) => format!("the record is broken at line {}: {reason}", seq + 1),
                None => format!("the record is broken: {reason}"),
            }),
            _ if record.compared.is_none() && record.problem.is_none() && checked.lines > 0 => {
                Some("the record does not begin with `session_start`".to_owned())
            }
            _ => record.problem.take(),
        };
        if let Some(reason) = problem {
            let run_id = run.run_id().to_string();
            self.report.not_compared.push(NotCompared { run_id, reason });
            return Ok(());
        }
        if let Some(compared) = record.compared {
            let of_prompt = match self.compared {
                Compared::CallsAndPrompt => compare_prompt(&compared, self),
                Compared::Calls => Vec::new(),
            };
            let mut report = compared.finish(self);
            report.differences.extend(of_prompt);
            self.report.add(report);
        }
        Ok(())
    }

    /// Returns the report on the compared runs.
    #[must_use]
    pub fn end(mut self) -> ReplayReport {
        self.report.ok = self.report.differences.is_empty() && self.report.not_compared.is_empty();
        self.report
    }

    /// Returns the rules of a run.
    fn rules_of(&mut self, job: &Job, run: &RunDir) -> GateRules {
        let (config, host) = (self.config, self.host);
        let of_job = self.rules.entry(job.name.to_string()).or_insert_with(|| {
            gate_rules(config, job, path_rules(config, job, host, None, Links::Resolved))
        });
        let mut rules = of_job.clone();
        rules.paths.writable.push(self.state.temporary_of(run.run_id()));
        let outputs = run.outputs();
        rules.paths.readable.push(resolved(&outputs).unwrap_or(outputs));
        rules
    }

    /// Returns a text without secrets.
    fn clean(&self, text: &str) -> String {
        self.redactor.text(text).into_owned()
    }

    /// Returns recorded arguments with the secrets that the record leaves out; `None` if the configuration
    /// does not have one of them.
    fn restored(&self, arguments: &Map<String, Value>) -> Option<Map<String, Value>> {
        let mut arguments = arguments.clone();
        if Value::from(arguments.clone()).to_string().contains(MARKER) {
            arguments.values_mut().try_for_each(|value| self.restore(value))?;
        }
        Some(arguments)
    }

    fn restore(&self, value: &mut Value) -> Option<()> {
        match value {
            Value::String(text) => {
                for secret in &self.config.secrets {
                    *text = text.replace(&format!("{MARKER}{}]", secret.name), &secret.value);
                }
                (!text.contains(MARKER)).then_some(())
            }
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.restore(item)),
            Value::Object(map) => map.values_mut().try_for_each(|item| self.restore(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) => Some(()),
        }
    }

    /// Returns today's price of the model with this name in the configuration, or else of the job's
    /// model, at the hour of the reply.
    fn price(&self, name: Option<&str>, job: &Job, at: DateTime<Utc>) -> Option<Price> {
        let named = name.and_then(|name| self.config.models.get(name));
        let model: &Model = named.or_else(|| self.config.model_of(job))?;
        let said = match &model.provider {
            Provider::Remote(remote) => self.learned.said_of(remote),
            Provider::Scripted(_) => None,
        };
        let today = self.host.clock.now().date_naive().and_time(at.time()).and_utc();
        prices_with(model, said)?.prices.at(today)
    }
}

/// A record while it is read.
#[derive(Default)]
struct Record<'a> {
    compared: Option<RunReplay<'a>>,
    /// Why the run cannot be compared.
    problem: Option<String>,
}

impl<'a> Record<'a> {
    fn push(&mut self, bytes: &[u8], replay: &mut Replay<'a>, run: &RunDir) {
        if self.problem.is_some() {
            return;
        }
        let line = match parse_line(bytes) {
            Ok(line) => line,
            Err(reason) => return self.problem = Some(format!("a line cannot be read: {reason}")),
        };
        let at = DateTime::parse_from_rfc3339(&line.ts).map(|at| at.to_utc());
        let Ok(at) = at else {
            return self.problem = Some(format!("line {} has no valid time", line.seq + 1));
        };
        // A later version may have written events that this one does not know.
        let ReadEvent::Known(event) = line.event else { return };
        match (&mut self.compared, *event) {
            (Some(compared), event) => compared.push(event, line.seq, at, replay),
            (None, Event::SessionStart(start)) => {
                match (replay.config.jobs.get(start.job.as_str()), recorded_mode(&start)) {
                    (Some(job), Ok(mode)) => {
                        let mut rules = replay.rules_of(job, run);
                        rules.has_person = start.interactive && mode == Mode::Act;
                        self.compared = Some(RunReplay::new(run, job, *start, mode, rules));
                    }
                    (Some(_), Err(why)) => self.problem = Some(why),
                    (None, _) => {
                        let job = &start.job;
                        self.problem = Some(format!("the configuration has no job `{job}`"));
                    }
                }
            }
            (None, _) => {}
        }
    }
}
