//! Compares the calls of recorded runs with the decisions of today's configuration.
//!
//! A record is read once. No tool is started, no model is asked, and nothing is written.
//! *Source*: `docs/design/interfaces.md`, "Replay and backtest".

mod calls;
mod prompt;
mod report;

use std::collections::BTreeMap;
use std::io;

use chrono::{DateTime, Utc};

use super::host::Host;
use super::lessons::Learned;
use super::model_view::prices_with;
use super::tool_context::{Links, gate_rules, path_rules};
use crate::catalogue::Price;
use crate::config::{Config, Job, Model, Provider};
use crate::domain::{Event, SessionStart};
use crate::gate::GateRules;
use crate::store::{ReadEvent, RecordFacts, RunDir, parse_line, verify_each};
use crate::text::redact::Redactor;
use calls::RunReplay;
use prompt::compare_prompt;
pub use report::{Costs, Difference, DifferenceKind, NotCompared, ReplayReport, Side};

/// What to compare besides the calls.
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
        let report = ReplayReport::default();
        Self { config, host, learned, redactor, compared, rules: BTreeMap::new(), report }
    }

    /// Compares a run. A record that is not intact is not compared; the report names it.
    ///
    /// *Errors*: the transcript exists, but cannot be read.
    pub fn take(&mut self, run: &RunDir, facts: &RecordFacts) -> io::Result<()> {
        let mut record = Record::default();
        let (checked, _) = verify_each(run, facts, |bytes| record.push(bytes, self, run))?;
        let problem = match checked.reason {
            Some(reason) if !checked.ok => Some(match checked.broken_at_seq {
                Some(seq) => format!("the record is broken at line {}: {reason}", seq + 1),
                None => format!("the record is broken: {reason}"),
            }),
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
    fn rules_of(&mut self, job: &Job, start: &SessionStart, run: &RunDir) -> GateRules {
        let (config, host) = (self.config, self.host);
        let of_job = self.rules.entry(job.name.to_string()).or_insert_with(|| {
            gate_rules(config, job, path_rules(config, job, host, None, Links::Resolved))
        });
        let mut rules = of_job.clone();
        rules.has_person = start.interactive && start.mode != "plan";
        rules.paths.writable.push(host.state.temporary_of(run.run_id()));
        rules.paths.readable.push(run.outputs());
        rules
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
                match replay.config.jobs.get(start.job.as_str()) {
                    Some(job) => {
                        let rules = replay.rules_of(job, &start, run);
                        self.compared = Some(RunReplay::new(run, job, *start, rules));
                    }
                    None => {
                        let job = &start.job;
                        self.problem = Some(format!("the configuration has no job `{job}`"));
                    }
                }
            }
            (None, _) => {}
        }
    }
}
