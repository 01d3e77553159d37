//! Applying a change plan: the reads that it rests on are made again, and only if they answer as they did, exactly the planned calls are made.
//!
//! It is a run of its own without a model, with its own transcript; every call passes the gate as it is today.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::ended::{Ended, ended_early, session_end};
use super::execute::{Begun, Host, RunError, begin, finish, session_start};
use super::mcp::Servers;
use super::preflight::connect;
use super::sink::RunSink;
use super::spec::RunSpec;
use super::tool_context::{gate_rules, toolbox};
use crate::agent::{
    CallContext, CallOutput, EventSink as _, PreparedCall, RecordError, SessionResult, Toolbox,
};
use crate::config::Mode;
use crate::domain::{
    CallId, CallStart, Category, DecisionKind, Event, InputSource, KeptStep, Plan, PlanRead,
    PlanState, PolicyDecision, PreflightItem, StopReason,
};
use crate::gate::{CallFacts, GateRules, Spent, decide};
use crate::store::Ledger;

/// How applying went.
#[derive(Debug)]
pub struct Applied {
    /// The run that it was.
    pub ended: Ended,
    /// The plan as it is kept now.
    pub plan: Plan,
    /// Why nothing was done, if nothing was.
    pub refused: Option<String>,
}

/// Applies the waiting steps of a plan, or one of them, as the run `spec`.
///
/// *Errors*: the run cannot begin; then nothing was done. A refusal and a step that fails are told in the result.
pub async fn apply(
    spec: RunSpec,
    host: Host,
    plan: Plan,
    only: Option<u64>,
    cancel: CancellationToken,
) -> Result<Applied, RunError> {
    let Begun { lock, sink, ctx, started, .. } = begin(&spec, &host)?;
    let mut servers =
        Servers::start(&spec.config, &spec.job, (Mode::Act, false), &host, &ctx).await;
    let of_servers = std::mem::take(&mut servers.tools);
    let toolbox = Arc::new(toolbox(&spec.config, &spec.job, &ctx, of_servers, false));
    // Where it cannot be reached, the steps say so.
    let (connection, _) = connect(&spec.config, &spec.job, &ctx, &toolbox).await;
    let mut work = Apply {
        // Whoever applies a plan has seen all of its calls; the rate is for models.
        rules: GateRules { rate: None, ..gate_rules(&spec.config, &spec.job, ctx.paths.clone()) },
        toolbox,
        sink,
        cancel,
        spent: Spent::default(),
        plan,
    };
    let recorded_start = async {
        let start = session_start(&spec, &work.toolbox, &ctx);
        work.sink.record(Event::SessionStart(Box::new(start))).await?;
        for warning in &servers.warnings {
            let event = Event::warning(warning.code, warning.message.clone());
            work.sink.record(event).await?;
        }
        let text = spec.task.clone();
        work.sink.record(Event::UserInput { text, source: InputSource::Person }).await
    };
    recorded_start.await.map_err(|error| RunError::Record(error.0))?;
    let done = work.run(&host, only).await;
    let (stop_reason, error, refused) = match done {
        Ok(Done::Applied) => (StopReason::Completed, None, None),
        Ok(Done::Refused(why)) => (StopReason::PreflightFailed, Some(why.clone()), Some(why)),
        Ok(Done::Cancelled) => (
            StopReason::Cancelled,
            Some("it was stopped; what was done is in the plan".to_owned()),
            None,
        ),
        Ok(Done::Failed(why)) => (StopReason::ErrorThreshold, Some(why), None),
        Err(error) => (StopReason::RecordFailed, Some(error.to_string()), None),
    };
    let mut result: SessionResult = ended_early(stop_reason, error.unwrap_or_default());
    if stop_reason == StopReason::Completed {
        result.end.error = None;
        result.end.result = Some(format!("The plan {} is applied.", work.plan.plan_id));
    }
    result.counters.spent = work.spent.clone();
    result.survivors = servers.end().await;
    if let Some(connection) = connection {
        result.survivors += connection.end().await;
    }
    if let Some(left) = ctx.spawner.end().await {
        result.survivors = left;
    }
    let end = session_end(&result, started, spec.trigger.by.clone(), &ctx.redactor);
    let ended = finish(&spec.run_id, &host, &work.sink, lock, end).await;
    let refused = refused.map(|why| ctx.redactor.text(&why).into_owned());
    Ok(Applied { ended, plan: work.plan, refused })
}

enum Done {
    Applied,
    Refused(String),
    Failed(String),
    Cancelled,
}

struct Apply {
    rules: GateRules,
    toolbox: Arc<Toolbox>,
    sink: Arc<RunSink>,
    cancel: CancellationToken,
    spent: Spent,
    plan: Plan,
}

/// A call as it would be made now.
struct Ready {
    prepared: PreparedCall,
    category: Category,
}

impl Apply {
    async fn run(&mut self, host: &Host, only: Option<u64>) -> Result<Done, RecordError> {
        let is_wanted = |kept: &KeptStep| {
            kept.state == PlanState::Waiting && only.is_none_or(|only| only == kept.step.step)
        };
        let steps: Vec<KeptStep> =
            self.plan.steps.iter().filter(|kept| is_wanted(kept)).cloned().collect();
        if steps.is_empty() {
            return Ok(Done::Refused("no such step waits".to_owned()));
        }
        let needed: BTreeSet<&CallId> = steps.iter().flat_map(|kept| &kept.step.rests_on).collect();
        let reads: Vec<PlanRead> =
            self.plan.reads.iter().filter(|read| needed.contains(&read.call_id)).cloned().collect();
        let mut items = Vec::new();
        for read in &reads {
            items.push(self.read_again(read).await?);
        }
        // Before anything is done, every step must be what it was, and be allowed together with those before it.
        let mut spent = self.spent.clone();
        for kept in &steps {
            let checked = self.ready(kept, &mut spent).await;
            items.push(PreflightItem {
                name: format!("step {}", kept.step.step),
                ok: checked.is_ok(),
                detail: checked.err().unwrap_or_else(|| kept.step.name.clone()),
            });
        }
        let wrong = items
            .iter()
            .find(|item| !item.ok)
            .map(|item| format!("{}: {}", item.name, item.detail));
        self.sink.record(Event::Preflight { items }).await?;
        if let Some(wrong) = wrong {
            return Ok(Done::Refused(wrong));
        }
        let unkept = |error: &dyn std::fmt::Display| format!("the plan cannot be claimed: {error}");
        let ledger = match host.ledger.get().await {
            Ok(ledger) => ledger,
            Err(error) => return Ok(Done::Refused(unkept(&error))),
        };
        if self.cancel.is_cancelled() {
            return Ok(Done::Cancelled);
        }
        match ledger.claim_plan(self.plan.plan_id.clone(), PlanState::Failed).await {
            Ok(Some(claimed)) if claimed.steps == self.plan.steps => {}
            Ok(Some(claimed)) => {
                // Somebody did a part of it since it was read.
                let _ = ledger.keep_plan(Plan { state: PlanState::Waiting, ..claimed }).await;
                return Ok(Done::Refused("the plan was changed meanwhile".to_owned()));
            }
            Ok(None) => {
                return Ok(Done::Refused("the plan was decided about meanwhile".to_owned()));
            }
            Err(error) => return Ok(Done::Refused(unkept(&error))),
        }
        self.make(&steps, ledger).await
    }

    /// Makes the steps of a plan that is claimed. What becomes of each is kept before the next begins.
    async fn make(&mut self, steps: &[KeptStep], ledger: &Ledger) -> Result<Done, RecordError> {
        let (mut failed, mut record) = (None, None);
        for kept in steps {
            if self.cancel.is_cancelled() {
                break;
            }
            // If nothing more is ever written, nobody can say whether it was done.
            self.mark(&kept.step.call_id, PlanState::Failed);
            let tried = Plan { state: PlanState::Failed, ..self.plan.clone() };
            if let Err(error) = ledger.keep_plan(tried).await {
                failed = Some(format!("what is done cannot be kept: {error}"));
                self.mark(&kept.step.call_id, PlanState::Waiting);
                break;
            }
            match self.step(kept).await {
                Ok(None) => self.mark(&kept.step.call_id, PlanState::Applied),
                Ok(Some(why)) => failed = Some(why),
                Err(error) => record = Some(error),
            }
            if failed.is_some() || record.is_some() {
                break;
            }
        }
        self.plan.state = self.state();
        if let Err(error) = ledger.keep_plan(self.plan.clone()).await {
            failed.get_or_insert_with(|| format!("what was done cannot be kept: {error}"));
        }
        match (record, failed) {
            (Some(error), _) => Err(error),
            (None, Some(why)) => Ok(Done::Failed(why)),
            (None, None) if self.cancel.is_cancelled() => Ok(Done::Cancelled),
            (None, None) => Ok(Done::Applied),
        }
    }

    fn mark(&mut self, call_id: &CallId, state: PlanState) {
        for known in self.plan.steps.iter_mut().filter(|known| known.step.call_id == *call_id) {
            known.state = state;
        }
    }

    fn state(&self) -> PlanState {
        let any = |state| self.plan.steps.iter().any(|kept| kept.state == state);
        match (any(PlanState::Failed), any(PlanState::Waiting)) {
            (true, _) => PlanState::Failed,
            (false, true) => PlanState::Waiting,
            (false, false) => PlanState::Applied,
        }
    }

    /// Makes a read again and compares.
    async fn read_again(&mut self, read: &PlanRead) -> Result<PreflightItem, RecordError> {
        let item = |ok, detail: &str| PreflightItem {
            name: format!("read {} ({})", read.call_id, read.name),
            ok,
            detail: detail.to_owned(),
        };
        let Some(tool) = self.toolbox.find(&read.name).cloned() else {
            return Ok(item(false, "the tool is gone"));
        };
        let prepared = match tool.prepare(&read.arguments) {
            Ok(prepared) => prepared,
            Err(error) => return Ok(item(false, &error.message)),
        };
        let ready = Ready { prepared, category: tool.category() };
        let output = match self.call(&read.call_id, &read.name, &ready, Category::Read).await? {
            Ok(output) => output,
            Err(why) => return Ok(item(false, &why)),
        };
        let same = output.read_digest().as_ref() == Some(&read.digest);
        Ok(if same {
            item(true, "answers as it did")
        } else {
            item(false, "answers differently now")
        })
    }

    /// Returns a step as it would be made now.
    ///
    /// *Errors*: it is not what was planned any more.
    async fn ready(&self, kept: &KeptStep, spent: &mut Spent) -> Result<Ready, String> {
        let step = &kept.step;
        let tool = self.toolbox.find(&step.name).ok_or("the tool is gone")?;
        let prepared = tool.prepare(&step.arguments).map_err(|error| error.message)?;
        // What an earlier step of this plan writes cannot be as it was.
        let is_touched =
            self.rules.written(&prepared.resources).any(|path| spent.files.contains(&path));
        let state = tool.state(&prepared).await.map_err(|error| error.message)?;
        let is_same = is_touched || prepared.digest(&step.name, &state) == step.digest;
        if prepared.argv != step.argv || !is_same {
            return Err(
                "the program, its arguments or a file that it changes is not what was planned"
                    .to_owned(),
            );
        }
        let facts = CallFacts {
            tool: &step.name,
            category: tool.category(),
            destructive_when: tool.destructive_when(),
            resources: &prepared.resources,
            lines: prepared.lines,
            spent,
        };
        let decision = decide(&self.rules, facts, &prepared.arguments);
        if decision.kind == DecisionKind::Deny {
            return Err(format!("refused by the rule `{}`: {}", decision.rule, decision.reason));
        }
        if decision.category > step.category {
            return Err(format!("it is a call of category {} now", decision.category));
        }
        spent.count(&self.rules, &prepared.resources, prepared.lines);
        Ok(Ready { prepared, category: tool.category() })
    }

    /// Does a step; returns why it failed.
    async fn step(&mut self, kept: &KeptStep) -> Result<Option<String>, RecordError> {
        // Compared once more, at the last moment; what it uses up is counted when it is done.
        let mut spent = self.spent.clone();
        let ready = match self.ready(kept, &mut spent).await {
            Ok(ready) => ready,
            Err(why) => return Ok(Some(format!("step {}: {why}", kept.step.step))),
        };
        let output =
            match self.call(&kept.step.call_id, &kept.step.name, &ready, kept.step.category).await?
            {
                Ok(output) => output,
                Err(why) => return Ok(Some(why)),
            };
        let failed = output.error_kind.map(|kind| {
            format!(
                "step {} ({}): {}: {}",
                kept.step.step,
                kept.step.name,
                kind.as_str(),
                output.content
            )
        });
        Ok(failed)
    }

    /// Makes a call through the gate; `Err` inside is its refusal.
    async fn call(
        &mut self,
        call_id: &CallId,
        name: &str,
        ready: &Ready,
        most: Category,
    ) -> Result<Result<CallOutput, String>, RecordError> {
        let Some(tool) = self.toolbox.find(name).cloned() else {
            return Ok(Err("the tool is gone".to_owned()));
        };
        let facts = CallFacts {
            tool: name,
            category: ready.category,
            destructive_when: tool.destructive_when(),
            resources: &ready.prepared.resources,
            lines: ready.prepared.lines,
            spent: &self.spent,
        };
        let decision = decide(&self.rules, facts, &ready.prepared.arguments);
        // Who applies a plan has said yes to what it asks.
        let allowed = decision.kind != DecisionKind::Deny;
        let mut decided = PolicyDecision {
            call_id: call_id.clone(),
            name: name.to_owned(),
            category: decision.category,
            decision: decision.kind,
            rule: decision.rule.to_owned(),
            reason: decision.reason.clone(),
        };
        if decision.kind == DecisionKind::Ask {
            decided.decision = DecisionKind::Allow;
            decided.rule = "approved".to_owned();
            decided.reason = format!("a person applies the plan: {}", decision.reason);
        }
        self.sink.record(Event::PolicyDecision(decided)).await?;
        if decision.category > most {
            return Ok(Err(format!("it is a call of category {} now", decision.category)));
        }
        if !allowed {
            return Ok(Err(format!(
                "refused by the rule `{}`: {}",
                decision.rule, decision.reason
            )));
        }
        let start = CallStart {
            call_id: call_id.clone(),
            name: name.to_owned(),
            category: decision.category,
            arguments: ready.prepared.arguments.clone(),
            argv: ready.prepared.argv.clone(),
            working_dir: ready.prepared.working_dir.clone(),
            sandboxed: ready.prepared.sandboxed,
        };
        self.sink.record(Event::ToolCallStart(start)).await?;
        self.spent.calls += 1;
        let started = Instant::now();
        let context = CallContext { call_id: call_id.clone(), cancel: self.cancel.clone() };
        let output = tool.run(&ready.prepared, &context).await;
        self.spent.files.extend(output.modified.iter().cloned());
        self.spent.lines += output.lines_changed;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let end = output.clone().end(call_id, name, duration_ms);
        self.sink.record(Event::ToolCallEnd(Box::new(end))).await?;
        Ok(Ok(output))
    }
}
