//! Asks a model again with the recorded results of the tools of a run. It starts no tool.
//!
//! *Source*: `docs/design/interfaces.md`, "Trial".

mod answers;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ended::session_end;
use super::execute::rules;
use super::history::{HistoryFold, RecordRead, RunHistory};
use super::host::Host;
use super::lessons::Learned;
use super::model_view::prices_with;
use super::models::models;
use super::precheck::recorded_text;
use super::prompt::{HostFacts, offline_prompt};
use super::scope::host_name;
use super::spec::{RunSpec, recorded_mode};
use super::tool_catalog::offered;
use super::tool_context::{Links, gate_rules, tool_context, toolbox_of, tools};
use crate::agent::{
    AgentTool, EventSink, Inbox, Machine, Marker, RecordError, Session, SessionParts, StopSignal,
};
use crate::catalogue::CacheWrites;
use crate::config::{Config, Provider};
use crate::domain::{CallId, Event, LiveEvent, Outcome, RunId, SessionStart, Usage};
use crate::gate::GateRules;
use crate::process::resolved;
use crate::store::{RecordFacts, RunDir, StateDir, parse_line, verify_each};
use crate::text::redact::Redactor;
use answers::{Answers, ApprovesAll, RecordedChecks, RecordedTool};

/// What a trial of a run found.
///
/// *Shape*:
/// `{"run_id":"…","verdict":{"recorded":"ok","today":"critical"},"outcome":{…},"calls":{"same":3,"other":0,"unanswered":0},"cost_usd":{…},"error":null}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    pub run_id: String,
    pub verdict: Pair<String>,
    /// `today` is null if the record could not answer a call.
    pub outcome: Pair<Outcome>,
    pub calls: TrialCalls,
    pub cost_usd: Pair<f64>,
    /// Why the run could not be tried to its end, or what failed.
    pub error: Option<String>,
}

impl TrialRow {
    /// Tells whether the trial came to the recorded verdict and outcome.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.outcome.today.is_some()
            && self.outcome.today == self.outcome.recorded
            && self.verdict.recorded == self.verdict.today
    }
}

/// A recorded value and that of the trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair<T> {
    pub recorded: Option<T>,
    pub today: Option<T>,
}

/// The calls of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrialCalls {
    /// Calls that the record answered.
    pub same: u64,
    /// Calls that the gate or the validation of today rejected.
    pub other: u64,
    /// Calls or checks that the record could not answer: at most one, because it ends the trial.
    pub unanswered: u64,
}

/// A recorded run that can be tried.
#[derive(Debug)]
pub struct Recorded {
    history: Box<RunHistory>,
    run: RunDir,
}

/// Why a run cannot be tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// The run has not ended, or no model answered in it.
    NothingToCompare(String),
    Unreadable(String),
}

/// What the recorded tokens cost with the model of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// In US dollars; `None` if the price is unknown.
    pub usd: Option<f64>,
    /// Whether the model costs nothing.
    pub is_free: bool,
}

impl Recorded {
    /// Reads a record.
    ///
    /// *Errors* (inside): why the run cannot be tried. *Errors*: the transcript exists, but cannot be
    /// read.
    pub fn read(run: &RunDir, facts: &RecordFacts) -> io::Result<Result<Self, Unfit>> {
        let (mut fold, mut problem) = (HistoryFold::default(), None);
        let (checked, _) = verify_each(run, facts, |bytes| match parse_line(bytes) {
            Ok(line) => fold.push(line),
            Err(why) => problem = Some(format!("a line cannot be read: {why}")),
        })?;
        if let Some(why) = checked.reason.filter(|_| !checked.ok).or(problem) {
            return Ok(Err(Unfit::Unreadable(format!("the record is broken: {why}"))));
        }
        let history = match fold.end() {
            RecordRead::Whole(history) => history,
            RecordRead::Empty => {
                return Ok(Err(Unfit::NothingToCompare("the record is empty".to_owned())));
            }
            RecordRead::Broken(broken) => return Ok(Err(Unfit::Unreadable(broken.why))),
        };
        Ok(if !history.has_ended() {
            Err(Unfit::NothingToCompare("the run has not ended".to_owned()))
        } else if !history.has_reply() {
            Err(Unfit::NothingToCompare("no model answered in this run".to_owned()))
        } else if history.had_server_tools() {
            let why = "the record does not have the schemas of the tools of MCP servers";
            Err(Unfit::Unreadable(why.to_owned()))
        } else {
            Ok(Self { history, run: run.clone() })
        })
    }

    /// Returns the first line of the record.
    #[must_use]
    pub fn start(&self) -> &SessionStart {
        &self.history.start
    }

    /// Returns what the recorded tokens cost with the model of the trial.
    ///
    /// *Errors*: the configuration does not have the job or its model.
    pub fn estimate(
        &self,
        config: &Config,
        host: &Host,
        learned: &Learned,
        model: Option<&str>,
    ) -> Result<Estimate, String> {
        let job = &self.start().job;
        let job = config.jobs.get(job.as_str());
        let job = job.ok_or_else(|| no_job(&self.start().job))?;
        let model = match model {
            Some(name) => config.models.get(name),
            None => config.model_of(job),
        };
        let model = model.ok_or("no model is configured")?;
        let said = match &model.provider {
            Provider::Remote(remote) => learned.said_of(remote),
            Provider::Scripted(_) => None,
        };
        let price = prices_with(model, said).and_then(|of| of.prices.at(host.clock.now()));
        let usage = Usage { cached_input_tokens: 0, ..self.history.summary().usage };
        let is_free = price.is_some_and(|price| price.is_free());
        // A run of a scripted model has no tokens from which to estimate.
        let is_known = is_free || usage.total() > 0;
        let usd = price.map(|price| price.cost(&usage, CacheWrites::default()));
        Ok(Estimate { usd: usd.filter(|_| is_known), is_free })
    }
}

fn no_job(job: &str) -> String {
    format!("the configuration has no job `{job}`")
}

/// Tries a run with a model: `model`, or today's. `most_usd` limits the cost of the trial.
///
/// *Errors*: why the trial could not begin. *Cancel*: dropping the future ends the request; nothing else
/// is left.
pub async fn trial(
    recorded: &Recorded,
    config: &Arc<Config>,
    host: &Host,
    trial_id: &RunId,
    model: Option<&str>,
    most_usd: Option<f64>,
) -> Result<TrialRow, String> {
    let Recorded { history, run } = recorded;
    let mut start = SessionStart::clone(&history.start);
    start.overrides.model = model.map(str::to_owned);
    let job = config.jobs.get(start.job.as_str());
    let job = job.ok_or_else(|| no_job(&start.job))?;
    let mode = recorded_mode(&start)?;
    let spec = RunSpec::recorded(trial_id.clone(), config.clone(), job.clone(), &start, mode);
    let mut spec = spec.map_err(|error| error.to_string())?;
    if let Some(most) = most_usd {
        let mut job = crate::config::Job::clone(&spec.job);
        let own = job.limits.max_cost_usd.unwrap_or(most);
        job.limits.max_cost_usd = Some(own.min(most));
        spec.job = Arc::new(job);
    }
    spec.has_person = start.interactive;
    let tried = with_answers(&spec, host, history, run).await;
    if let Err(error) = host.state.remove_temporary(trial_id).await {
        tracing::warn!(run_id = %trial_id, %error, "failed to remove the temporary directory of a trial");
    }
    let (result, calls, unanswered) = tried?;
    let redactor = Redactor::new(&config.secrets);
    let end = session_end(&result, std::time::Duration::ZERO, None, &redactor);
    let before = history.summary();
    let is_whole = unanswered.is_none();
    let unanswered =
        unanswered.map(|call| format!("the record has no result of: {}", redactor.text(&call)));
    Ok(TrialRow {
        run_id: run.run_id().to_string(),
        verdict: Pair {
            recorded: before.verdict.clone(),
            today: end.verdict.clone().filter(|_| is_whole),
        },
        outcome: Pair { recorded: before.outcome, today: is_whole.then_some(end.outcome) },
        calls,
        cost_usd: Pair { recorded: before.cost_usd, today: end.cost_usd },
        error: unanswered.or_else(|| end.error.clone()),
    })
}

/// Runs the session; returns its result, its calls, and the call that the record could not answer.
async fn with_answers(
    spec: &RunSpec,
    host: &Host,
    history: &RunHistory,
    run: &RunDir,
) -> Result<(crate::agent::SessionResult, TrialCalls, Option<String>), String> {
    if !history.text_ids.is_empty() {
        return Err("people gave it texts while it worked".to_owned());
    }
    let (config, job) = (&spec.config, &spec.job);
    let has_person = spec.person_can_allow();
    let redactor = Redactor::new(&config.secrets);
    let ctx =
        tool_context(config, job, host, &spec.run_id, None, redactor.clone(), Links::Resolved);
    let ctx = ctx.map_err(|error| format!("the state directory cannot be used: {error}"))?;
    let (stopper, stop) = watch::channel(None);
    let answers = Arc::new(Answers::of(history, redactor.clone(), stopper));
    let recorded = tools(config, &ctx, Vec::new()).into_iter().map(|tool| {
        Arc::new(RecordedTool { tool, answers: answers.clone() }) as Arc<dyn AgentTool>
    });
    let toolbox = Arc::new(toolbox_of(config, job, recorded.collect(), has_person));
    let mut paths = ctx.access.paths.clone();
    // The calls name the directories of the recorded run.
    let temporary = host.state.temporary_of(run.run_id());
    let root = resolved(host.state.root()).map(|root| StateDir::new(&root));
    let temporary = root.map_or(temporary, |state| state.temporary_of(run.run_id()));
    paths.writable.push(temporary);
    let outputs = run.outputs();
    paths.readable.push(resolved(&outputs).unwrap_or(outputs));
    let facts = offered(config, job, &paths, &host.environment, &[], has_person);
    let facts: Vec<_> = facts.into_iter().map(|(_, facts)| facts).collect();
    let of_host = HostFacts {
        is_interactive: spec.has_person,
        host: host_name(),
        platform: super::prompt::platform(),
        date: super::prompt::date(config, job, host.clock.now()),
    };
    let system = offline_prompt(config, job, host, &redactor, &of_host, &facts, spec.mode)
        .ok_or("no model is configured")?;
    let marker = Marker::new(Sha256::digest(spec.run_id.as_str()).into());
    let precheck = recorded_text(job, &marker, history);
    let task = precheck
        .into_iter()
        .fold(spec.task.clone(), |task, precheck| format!("{task}\n\n{precheck}"));
    let gate = GateRules { has_person, ..gate_rules(config, job, paths) };
    let models = models(spec, host, None).await;
    // A fallback would hide what the model of the trial does.
    let model = models.into_iter().next().ok_or("no model is configured")?;
    let mut machine = Machine::new(rules(spec, gate), model.facts, toolbox, system);
    if history.precheck.found_work.is_some() {
        machine.count_precheck();
    }
    let sink = Arc::new(Counting::default());
    let session = Session::new(SessionParts {
        machine,
        models: vec![model],
        passed_over: Vec::new(),
        verifier: Arc::new(RecordedChecks {
            job: job.clone(),
            vars: spec.vars.clone(),
            marker: marker.clone(),
            answers: answers.clone(),
        }),
        marker,
        sink: sink.clone(),
        run_id: spec.run_id.to_string(),
        approver: Arc::new(ApprovesAll(host.clock.clone())),
        clock: host.clock.clone(),
        inbox: Inbox::default(),
        stop: StopSignal::new(stop, Instant::now() + job.limits.max_duration),
        waits: host.waits.clone(),
        worked: std::time::Duration::ZERO,
        may_suspend: false,
    });
    let result = session.run(task).await;
    let (same, unanswered) = answers.outcome();
    let other = sink.rejected.load(Ordering::Relaxed);
    let calls = TrialCalls { same, other, unanswered: u64::from(unanswered.is_some()) };
    Ok((result, calls, unanswered))
}

/// Counts the calls that end without a start, and keeps nothing else.
#[derive(Default)]
struct Counting {
    rejected: AtomicU64,
    started: Mutex<BTreeSet<CallId>>,
}

#[async_trait]
impl EventSink for Counting {
    async fn record(&self, event: Event) -> Result<(), RecordError> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::ToolCallStart(start) => {
                started.insert(start.call_id);
            }
            Event::PlanStep(step) => {
                started.insert(step.call_id);
            }
            Event::ToolCallEnd(end) if !started.contains(&end.call_id) => {
                self.rejected.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        Ok(())
    }

    fn live(&self, _event: LiveEvent) {}
}
