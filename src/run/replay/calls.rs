//! The calls of one recorded run, decided again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::Replay;
use super::report::{Costs, Difference, DifferenceKind, ReplayReport, Side};
use crate::catalogue::{CacheWrites, Price};
use crate::config::{Job, Mode};
use crate::domain::{
    CallEnd, CallId, DecisionKind, ErrorKind, Event, InputSource, PolicyDecision, SessionStart,
    Usage,
};
use crate::gate::{GateRules, Spent};
use crate::run::tool_catalog::KnownTool;
use crate::store::RunDir;

/// The comparison of one run.
pub(super) struct RunReplay<'a> {
    pub(super) run_id: String,
    pub(super) job: &'a Job,
    pub(super) start: SessionStart,
    pub(super) mode: Mode,
    pub(super) rules: GateRules,
    spent: Spent,
    usage: Usage,
    /// What the replies so far cost today.
    cost: Option<f64>,
    replies: u64,
    /// The model that answered last, or took over.
    model: Option<String>,
    /// The calls of the last reply.
    reply: Option<Reply>,
    pub(super) system: Option<String>,
    pub(super) task: Option<String>,
    pub(super) of_servers: Vec<(String, Vec<String>)>,
    report: ReplayReport,
}

/// A reply with the lines about its calls.
struct Reply {
    seq: u64,
    elapsed: Duration,
    /// Why today's limits would have ended the run before this reply.
    limit_reached: Option<String>,
    calls: Vec<AskedCall>,
    lines: BTreeMap<CallId, Recorded>,
}

/// A call as the model asked for it.
struct AskedCall {
    call_id: CallId,
    name: String,
    arguments: Map<String, Value>,
    position: usize,
}

/// What the transcript says about a call.
#[derive(Default)]
struct Recorded {
    /// The first decision on it, and its line.
    decided: Option<(PolicyDecision, u64)>,
    argv: Vec<String>,
    /// Whether the record has the argv: the call started, or became a step of a plan.
    has_argv: bool,
    end: Option<Ended>,
}

struct Ended {
    error_kind: Option<ErrorKind>,
    modified: Vec<String>,
    lines_changed: u64,
}

/// What today's configuration says about a call.
struct Today {
    decision: DecisionKind,
    command_line: CommandLine,
    reason: String,
    is_gone: bool,
    /// The files that the call would change, and the number of lines.
    changes: (Vec<PathBuf>, u64),
}

/// The command line of a call today.
enum CommandLine {
    /// That of a declared tool. A program without a directory in `cmd` may be found at another place.
    Declared { argv: Vec<String>, is_found_by_name: bool },
    /// The tool declares none.
    None,
    /// Not compared.
    Unknown,
}

impl Today {
    fn denied(reason: String) -> Self {
        Self {
            decision: DecisionKind::Deny,
            command_line: CommandLine::Unknown,
            reason,
            is_gone: false,
            changes: (Vec::new(), 0),
        }
    }

    fn gone(reason: String) -> Self {
        Self { is_gone: true, ..Self::denied(reason) }
    }
}

impl<'a> RunReplay<'a> {
    pub(super) fn new(
        run: &RunDir,
        job: &'a Job,
        start: SessionStart,
        mode: Mode,
        rules: GateRules,
    ) -> Self {
        Self {
            run_id: run.run_id().to_string(),
            job,
            model: start.overrides.model.clone(),
            start,
            mode,
            rules,
            spent: Spent::default(),
            usage: Usage::default(),
            cost: Some(0.0),
            replies: 0,
            reply: None,
            system: None,
            task: None,
            of_servers: Vec::new(),
            report: ReplayReport { runs: 1, ..ReplayReport::default() },
        }
    }

    pub(super) fn push(&mut self, event: Event, seq: u64, at: DateTime<Utc>, replay: &Replay<'_>) {
        match event {
            Event::AssistantTextEnd { model: None, .. } => {}
            Event::AssistantTextEnd {
                tool_calls,
                usage,
                cache_write_tokens,
                cache_write_long_tokens,
                cost_usd,
                model,
                elapsed_ms,
                ..
            } => {
                self.compare_calls(replay);
                let calls = tool_calls.iter().enumerate();
                let calls: Vec<AskedCall> =
                    calls.filter_map(|(position, call)| AskedCall::read(call, position)).collect();
                let lines =
                    calls.iter().map(|call| (call.call_id.clone(), Recorded::default())).collect();
                self.reply = Some(Reply {
                    seq,
                    elapsed: Duration::from_millis(elapsed_ms),
                    limit_reached: self.find_reached_limit(),
                    lines,
                    calls,
                });
                self.replies += 1;
                let writes = CacheWrites { all: cache_write_tokens, long: cache_write_long_tokens };
                let price = replay.price(model.as_deref(), self.job, at);
                self.model = model;
                self.charge(usage, writes, price, cost_usd);
            }
            Event::Warning { usage, cost_usd, model, .. } => {
                if let Some(usage) = usage {
                    let price = replay.price(self.model.as_deref(), self.job, at);
                    self.charge(Some(usage), CacheWrites::default(), price, cost_usd);
                }
                // A fallback has taken over.
                self.model = model.or(self.model.take());
            }
            Event::PolicyDecision(decision) => {
                if let Some(recorded) = self.recorded(&decision.call_id) {
                    recorded.decided.get_or_insert((decision, seq));
                }
            }
            Event::ToolCallStart(start) => {
                if let Some(recorded) = self.recorded(&start.call_id) {
                    recorded.has_argv = true;
                    recorded.argv = start.argv;
                }
            }
            Event::PlanStep(step) => {
                let (modified, lines_changed) = (step.would_modify, step.would_change_lines);
                if let Some(recorded) = self.recorded(&step.call_id) {
                    recorded.has_argv = true;
                    recorded.argv = step.argv;
                    recorded.end = Some(Ended { error_kind: None, modified, lines_changed });
                }
            }
            Event::ToolCallEnd(end) => {
                let CallEnd { call_id, error_kind, modified, lines_changed, .. } = *end;
                if let Some(recorded) = self.recorded(&call_id) {
                    // A planned step has told what it would change.
                    recorded.end.get_or_insert(Ended { error_kind, modified, lines_changed });
                }
            }
            Event::SystemPrompt { text, .. } => self.system = Some(text),
            Event::UserInput { text, source: InputSource::Job, .. } => {
                self.task.get_or_insert(text);
            }
            Event::McpServerReady { server, tools, .. } => self.of_servers.push((server, tools)),
            _ => {}
        }
    }

    /// Returns the lines about a call of the last reply.
    fn recorded(&mut self, call_id: &CallId) -> Option<&mut Recorded> {
        self.reply.as_mut()?.lines.get_mut(call_id)
    }

    /// Adds the usage of a reply, or of attempts that broke off.
    fn charge(
        &mut self,
        usage: Option<Usage>,
        writes: CacheWrites,
        price: Option<Price>,
        recorded: Option<f64>,
    ) {
        let used = usage.unwrap_or_default();
        self.usage.add(&used);
        let today = usage.zip(price).map(|(usage, price)| price.cost(&usage, writes));
        self.report.cost_usd.add(Costs { recorded, today });
        self.cost = self.cost.zip(today).map(|(before, cost)| before + cost);
    }

    /// Returns why today's limits would have ended the run by now. Leaves out what the next request
    /// was estimated to use.
    fn find_reached_limit(&self) -> Option<String> {
        let limits = &self.job.limits;
        let most = self.start.overrides.max_iterations.map_or(limits.max_iterations, u64::from);
        let over = |limit: &str, most: &dyn std::fmt::Display| {
            Some(format!("the run would have ended before this call ({limit}: {most})"))
        };
        if self.replies >= most {
            return over("max_iterations", &most);
        }
        if let Some(most) = limits.max_tokens.filter(|most| self.usage.total() >= *most) {
            return over("max_tokens", &most);
        }
        let cost = self.cost?;
        let most = limits.max_cost_usd.filter(|most| cost > 0.0 && cost >= *most)?;
        over("max_cost_usd", &most)
    }

    /// Compares the calls of the last reply.
    fn compare_calls(&mut self, replay: &Replay<'_>) {
        let Some(mut reply) = self.reply.take() else { return };
        self.spent.refill(self.rules.rate, reply.elapsed);
        // The later calls of a reply are decided before the earlier ones have run.
        let mut spent = self.spent.clone();
        let mut changed: (BTreeSet<PathBuf>, u64) = Default::default();
        for call in &reply.calls {
            let recorded = reply.lines.remove(&call.call_id).unwrap_or_default();
            // The record ends before the call was decided.
            if recorded.decided.is_none() && recorded.end.is_none() {
                continue;
            }
            self.report.calls += 1;
            let today = match &reply.limit_reached {
                Some(why) => Today::denied(why.clone()),
                None => self.today(call, &recorded, &mut spent, replay),
            };
            if today.decision != DecisionKind::Deny {
                self.spent.count_call();
                match &recorded.end {
                    Some(end) if recorded.has_argv => {
                        changed.0.extend(end.modified.iter().map(PathBuf::from));
                        changed.1 += end.lines_changed;
                    }
                    // The call did not run: count what it would change.
                    _ => {
                        changed.0.extend(today.changes.0.iter().cloned());
                        changed.1 += today.changes.1;
                    }
                }
            }
            let differing = self.difference(call, &recorded, today, reply.seq, replay);
            self.report.differences.extend(differing);
        }
        self.spent.files.extend(changed.0);
        self.spent.lines += changed.1;
    }

    /// Decides a call as a run of today would.
    fn today(
        &self,
        call: &AskedCall,
        recorded: &Recorded,
        spent: &mut Spent,
        replay: &Replay<'_>,
    ) -> Today {
        let config = replay.config;
        let most = self.job.limits.max_tool_calls_per_turn;
        if call.position >= most {
            return Today::denied(format!(
                "it is call {} of its response, and max_tool_calls_per_turn is {most}",
                call.position + 1
            ));
        }
        let tool = match KnownTool::find(config, &call.name) {
            Ok(tool) => tool,
            Err(unknown) => return Today::gone(unknown.to_string()),
        };
        let paths = &self.rules.paths;
        let end = recorded.end.as_ref().and_then(|end| end.error_kind);
        // A server may still not offer a tool of this name.
        let is_of_server = matches!(tool, KnownTool::Mcp { .. });
        if recorded.decided.is_none() && end == Some(ErrorKind::UnknownTool) {
            let here = &replay.host.environment;
            let gone = tool.unavailable(config, Some((self.job, paths)), here);
            if is_of_server || gone.is_some() {
                return Today::gone(gone.unwrap_or_default());
            }
        }
        if recorded.decided.is_none() && is_of_server {
            // Only the server knows which arguments are valid.
            return Today::denied(String::new());
        }
        let Some(arguments) = replay.restored(&call.arguments) else {
            // A secret in the arguments is not configured any more, so we cannot decide again.
            return self.as_recorded(recorded);
        };
        let prepared = match tool.prepare(&arguments) {
            Ok(prepared) => prepared,
            Err(error) => {
                return Today::denied(replay.clean(&format!("{}: {error}", error.kind.as_str())));
            }
        };
        let decision = tool.decide_after(spent, &self.rules, &prepared);
        let reason = replay.clean(&format!("{}: {}", decision.rule, decision.reason));
        if decision.kind == DecisionKind::Deny {
            return Today::denied(reason);
        }
        // A call that did not start may have failed for this reason.
        let has_started =
            recorded.has_argv && !matches!(end, Some(ErrorKind::SpawnFailed | ErrorKind::Denied));
        let withheld = tool.withheld(config, Some((self.job, paths)));
        if let Some(why) = withheld.filter(|_| has_started) {
            return Today::gone(why);
        }
        spent.count(&self.rules, &prepared.resources, prepared.lines);
        let command_line = match &tool {
            KnownTool::Declared(declared) => {
                let argv = tool.argv(self.job, &prepared).unwrap_or_default();
                CommandLine::Declared {
                    argv: argv.iter().map(|word| replay.clean(word)).collect(),
                    is_found_by_name: self.job.environment.is_local()
                        && !declared.program.written.contains('/'),
                }
            }
            // `bash` starts a shell with the command as its argument.
            KnownTool::Builtin(builtin) if builtin.name == "bash" => CommandLine::Unknown,
            KnownTool::Builtin(_) | KnownTool::Mcp { .. } => CommandLine::None,
        };
        let written = self.rules.written(&prepared.resources).collect();
        let changes = (written, prepared.lines);
        Today { decision: decision.kind, command_line, reason, is_gone: false, changes }
    }

    /// Returns the recorded decision, for a call that cannot be decided again.
    fn as_recorded(&self, recorded: &Recorded) -> Today {
        let decided = recorded.decided.as_ref();
        let decision = decided.map_or(DecisionKind::Deny, |(decision, _)| decision.decision);
        Today { decision, ..Today::denied(String::new()) }
    }

    fn difference(
        &self,
        call: &AskedCall,
        recorded: &Recorded,
        today: Today,
        reply: u64,
        replay: &Replay<'_>,
    ) -> Option<Difference> {
        let decided = recorded.decided.as_ref();
        let before = decided.map_or(DecisionKind::Deny, |(decision, _)| decision.decision);
        // Redact again: the run may have recorded a value that was not a secret then.
        let argv: Vec<String> = recorded.argv.iter().map(|word| replay.clean(word)).collect();
        let (kind, before, after, reason) = match before.cmp(&today.decision) {
            std::cmp::Ordering::Equal if recorded.has_argv => {
                let now = Side::Words(today.command_line.difference_from(&argv)?.to_vec());
                let reason = "the command line of the tool has changed".to_owned();
                (DifferenceKind::Argv, Side::Words(argv), now, reason)
            }
            std::cmp::Ordering::Equal => return None,
            order => {
                let kind = if order == std::cmp::Ordering::Greater {
                    DifferenceKind::Allowed
                } else if today.is_gone {
                    DifferenceKind::ToolGone
                } else {
                    DifferenceKind::Refused
                };
                (kind, Side::Decision(before), Side::Decision(today.decision), today.reason)
            }
        };
        Some(Difference {
            run_id: self.run_id.clone(),
            job: self.start.job.clone(),
            seq: decided.map_or(reply, |(_, seq)| *seq),
            call_id: Some(call.call_id.to_string()),
            name: call.name.clone(),
            kind,
            recorded: before,
            today: after,
            reason,
        })
    }

    pub(super) fn finish(mut self, replay: &Replay<'_>) -> ReplayReport {
        self.compare_calls(replay);
        self.report
    }
}

impl AskedCall {
    /// Returns a recorded call; `None` if its arguments did not parse, because such a call is never
    /// run.
    fn read(call: &Value, position: usize) -> Option<Self> {
        let text = |key: &str| call.get(key).and_then(Value::as_str);
        Some(Self {
            call_id: CallId::parse(text("call_id")?).ok()?,
            name: text("name")?.to_owned(),
            arguments: call.get("arguments")?.as_object()?.clone(),
            position,
        })
    }
}

impl CommandLine {
    /// Returns the argv of today if it differs from a recorded one.
    fn difference_from(&self, recorded: &[String]) -> Option<&[String]> {
        let (argv, by_name) = match self {
            Self::Declared { argv, is_found_by_name } => (argv.as_slice(), *is_found_by_name),
            Self::None => (&[][..], false),
            Self::Unknown => return None,
        };
        let is_same = match (recorded.split_first(), argv.split_first()) {
            (Some((before, old)), Some((now, new))) => {
                let name = |path: &str| Path::new(path).file_name().map(ToOwned::to_owned);
                old == new && (before == now || by_name && name(before) == name(now))
            }
            (before, now) => before.is_none() && now.is_none(),
        };
        (!is_same).then_some(argv)
    }
}
