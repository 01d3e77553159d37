//! Applies a change plan: repeats the reads that it rests on and, only if all answer as before,
//! makes exactly the planned calls.
//!
//! Applying is a run of its own, with a transcript but without a model. Every call passes the gate,
//! under the rules that are now in effect. [`planned`] compares each step with its plan.

mod planned;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::planned::{Changed, difference, planned_environment};
use super::ended::{Ended, ended_early};
use super::host::{Host, RunError};
use super::scope::RunScope;
use super::spec::RunSpec;
use super::tool_context::gate_rules;
use crate::agent::{
    AcceptedCall, CallExecutor, CallOutput, EventSink, OpenCall, PreparedCall, RecordError,
    StopSignal, Toolbox, outer_limit,
};
use crate::config::{Limits, Mode};
use crate::domain::{
    CallError, CallId, Category, DecisionKind, ErrorKind, Event, InputSource, KeptStep, Plan,
    PlanRead, PlanState, PolicyDecision, PreflightItem, Stop, StopReason,
};
use crate::gate::{CallFacts, Decision, GateRules, Spent, decide};
use crate::store::{Ledger, SharedLedger};

/// The result of applying a plan.
#[derive(Debug)]
pub struct Applied {
    /// The end of the run that applied it.
    pub ended: Ended,
    /// The plan as the ledger keeps it now.
    pub plan: Plan,
    /// Why the plan was refused, if it was; then no step was made.
    pub refused: Option<String>,
}

/// Applies the waiting steps of a plan, or only the step `only`, as the run `spec`. `stop` holds a
/// stop reason once the run must end.
///
/// *Errors*: the run cannot start; then nothing was done. A refusal or a failed step is part of the
/// result.
pub async fn apply(
    spec: RunSpec,
    host: Host,
    plan: Plan,
    only: Option<u64>,
    stop: watch::Receiver<Option<Stop>>,
) -> Result<Applied, RunError> {
    let spec = RunSpec { mode: Mode::Act, plan_id: Some(plan.plan_id.clone()), ..spec };
    let allowlist = &spec.config.settings.env_allowlist;
    let environment = planned_environment(&host.environment, allowlist, &plan);
    let host = Host { environment, ..host };
    let mut scope = RunScope::begin(spec, host, stop.into(), None).await?;
    scope.record_start(None).await?;
    scope.start_servers().await?;
    // If the execution target is unreachable, the steps report it.
    let _ = scope.connect().await;
    let text = scope.spec.task.clone();
    scope.record(Event::user_input(text, InputSource::Person)).await?;
    let rules = gate_rules(&scope.spec.config, &scope.spec.job, scope.ctx.access.paths.clone());
    let mut work = Apply {
        // The person who applies a plan has seen all of its calls, so they need no rate limit.
        rules: GateRules { rate: None, ..rules },
        toolbox: scope.toolbox.clone(),
        executor: CallExecutor::new(scope.sink.clone(), CancellationToken::new())
            .with_lines(scope.spec.job.limits.max_lines_changed),
        sink: scope.sink.clone(),
        spent: Spent::default(),
        changed: Changed::default(),
        plan,
    };
    let (done, stopped) = work.run_until_stopped(&scope.stop, &scope.host.ledger, only).await;
    let (stop_reason, error, refused) = match (done, stopped) {
        (Ok(done), Some(reason)) => {
            let failure = match done {
                Done::Failed(why) | Done::Refused(why) => Some(why),
                Done::Applied | Done::Cancelled => None,
            };
            let limits = &scope.spec.job.limits;
            (reason, Some(work.stop(reason, failure, limits).await), None)
        }
        (Ok(Done::Applied), None) => (StopReason::Completed, None, None),
        (Ok(Done::Refused(why)), None) => (StopReason::ApplyRefused, Some(why.clone()), Some(why)),
        (Ok(Done::Cancelled), None) => {
            (StopReason::Interrupted, Some("the run was stopped".to_owned()), None)
        }
        (Ok(Done::Failed(why)), None) => (StopReason::ApplyFailed, Some(why), None),
        (Err(error), _) => (StopReason::RecordFailed, Some(error.to_string()), None),
    };
    let mut result = ended_early(stop_reason, error.unwrap_or_default());
    if stop_reason == StopReason::Completed {
        result.end.error = None;
        result.end.result = Some(format!("The plan {} is applied.", work.plan.plan_id));
    }
    result.counters.spent = work.spent.clone();
    let refused = refused.map(|why| scope.ctx.redactor.text(&why).into_owned());
    let plan = work.plan;
    drop(work.toolbox);
    Ok(Applied { ended: scope.end(result).await, plan, refused })
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
    executor: CallExecutor,
    sink: Arc<dyn EventSink>,
    spent: Spent,
    changed: Changed,
    plan: Plan,
}

impl Apply {
    /// Applies the plan; also returns the stop reason if the run was stopped from outside. A stop
    /// cancels the step in progress and leaves the later steps waiting.
    async fn run_until_stopped(
        &mut self,
        stop: &StopSignal,
        ledger: &SharedLedger,
        only: Option<u64>,
    ) -> (Result<Done, RecordError>, Option<StopReason>) {
        let cancel = self.executor.cancel().clone();
        let work = self.run(ledger, only);
        tokio::pin!(work);
        tokio::select! {
            biased;
            reason = stop.reason() => {
                cancel.cancel();
                (work.await, Some(reason))
            }
            done = &mut work => (done, None),
        }
    }

    /// Returns why the run was stopped, for the operator. If a limit stopped it, also records that
    /// limit.
    async fn stop(&self, reason: StopReason, failure: Option<String>, limits: &Limits) -> String {
        let why = match outer_limit(reason, limits) {
            Some((event, why)) => {
                // The last line repeats the reason, so a failed write is noticed there.
                let _ = self.sink.record(event).await;
                why
            }
            None => "the run was stopped".to_owned(),
        };
        let failure = failure.map(|failure| format!("; {failure}")).unwrap_or_default();
        format!("{why}; the plan shows what was done{failure}")
    }

    async fn run(&mut self, ledger: &SharedLedger, only: Option<u64>) -> Result<Done, RecordError> {
        let is_wanted = |kept: &KeptStep| {
            kept.state == PlanState::Waiting && only.is_none_or(|only| only == kept.step.step)
        };
        let steps: Vec<KeptStep> =
            self.plan.steps.iter().filter(|kept| is_wanted(kept)).cloned().collect();
        if steps.is_empty() {
            return Ok(Done::Refused("no such step is waiting".to_owned()));
        }
        let needed: BTreeSet<&CallId> = steps.iter().flat_map(|kept| &kept.step.rests_on).collect();
        let reads: Vec<PlanRead> =
            self.plan.reads.iter().filter(|read| needed.contains(&read.call_id)).cloned().collect();
        let mut items = Vec::new();
        for read in &reads {
            items.push(self.read_again(read).await?);
        }
        // Before making any step, check that each step is unchanged and that the gate allows it
        // together with the steps before it. Nothing has run yet, so every file is as planned.
        let mut spent = self.spent.clone();
        for kept in &steps {
            let checked = self.ready(kept, &mut spent, &Changed::default()).await;
            items.push(PreflightItem {
                name: format!("step {}", kept.step.step),
                ok: checked.is_ok(),
                detail: checked.err().map_or_else(|| kept.step.name.clone(), |error| error.message),
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
        let unkept = |error: &dyn std::fmt::Display| format!("cannot claim the plan: {error}");
        let ledger = match ledger.get().await {
            Ok(ledger) => ledger,
            Err(error) => return Ok(Done::Refused(unkept(&error))),
        };
        if self.executor.cancel().is_cancelled() {
            return Ok(Done::Cancelled);
        }
        match ledger.claim_plan(self.plan.plan_id.clone(), PlanState::Failed).await {
            Ok(Some(claimed)) if claimed.steps == self.plan.steps => {}
            Ok(Some(claimed)) => {
                // Another process applied some of the steps after we had read the plan.
                let _ = ledger.keep_plan(Plan { state: PlanState::Waiting, ..claimed }).await;
                return Ok(Done::Refused("the plan has changed in the meantime".to_owned()));
            }
            Ok(None) => {
                return Ok(Done::Refused("the plan is no longer waiting".to_owned()));
            }
            Err(error) => return Ok(Done::Refused(unkept(&error))),
        }
        self.make(&steps, ledger).await
    }

    /// Makes the steps of a claimed plan. Saves the state of each before the next begins.
    async fn make(&mut self, steps: &[KeptStep], ledger: &Ledger) -> Result<Done, RecordError> {
        let (mut failed, mut record) = (None, None);
        for kept in steps {
            if self.executor.cancel().is_cancelled() {
                break;
            }
            // Assume failure first: if we crash, the effect of the step is unknown.
            self.mark(&kept.step.call_id, PlanState::Failed);
            let tried = Plan { state: PlanState::Failed, ..self.plan.clone() };
            if let Err(error) = ledger.keep_plan(tried).await {
                failed = Some(format!("cannot save the state of the plan: {error}"));
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
            failed.get_or_insert_with(|| format!("cannot save the state of the plan: {error}"));
        }
        match (record, failed) {
            (Some(error), _) => Err(error),
            (None, Some(why)) => Ok(Done::Failed(why)),
            (None, None) if self.executor.cancel().is_cancelled() => Ok(Done::Cancelled),
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

    /// Repeats a read and compares the answers.
    async fn read_again(&mut self, read: &PlanRead) -> Result<PreflightItem, RecordError> {
        let item = |ok, detail: &str| PreflightItem {
            name: format!("read {} ({})", read.call_id, read.name),
            ok,
            detail: detail.to_owned(),
        };
        let ready = self.toolbox.find(&read.name).ok_or_else(tool_is_gone).and_then(|tool| {
            let prepared = tool.prepare(&read.arguments)?;
            Ok(AcceptedCall { tool: tool.clone(), category: tool.category(), prepared })
        });
        let output = match self.call(&read.call_id, &read.name, ready, Category::Read).await? {
            Ok(output) => output,
            Err(error) => return Ok(item(false, &error.message)),
        };
        let same = output.read_digest().as_ref() == Some(&read.digest);
        Ok(if same {
            item(true, "answers as before")
        } else {
            item(false, "answers differently now")
        })
    }

    /// Prepares a step as it would be made now, and adds its use of the budgets to `spent`. `changed`
    /// names the files that earlier steps may have changed.
    ///
    /// *Errors*: the step cannot be prepared or differs from the plan, or the gate denies it.
    async fn ready(
        &self,
        kept: &KeptStep,
        spent: &mut Spent,
        changed: &Changed,
    ) -> Result<AcceptedCall, CallError> {
        let step = &kept.step;
        let tool = self.toolbox.find(&step.name).ok_or_else(tool_is_gone)?;
        let prepared = tool.prepare(&step.arguments)?;
        let state = tool.state(&prepared).await?;
        if let Some(what) = difference(step, &prepared, state, changed) {
            return Err(denied(format!("{what} is not what was planned")));
        }
        let call = AcceptedCall { tool: tool.clone(), category: tool.category(), prepared };
        self.judge(&step.name, &call, step.category, spent).1?;
        spent.count(&self.rules, &call.prepared.resources, call.prepared.lines);
        Ok(call)
    }

    /// Returns the gate's decision on a call, and whether the call may be made. `most` is the
    /// category in the plan; a call that now has a higher category is refused.
    ///
    /// *Errors* (inside): the refusal.
    fn judge(
        &self,
        name: &str,
        call: &AcceptedCall,
        most: Category,
        spent: &Spent,
    ) -> (Decision, Result<(), CallError>) {
        let facts = CallFacts {
            tool: name,
            category: call.tool.category(),
            destructive_when: call.tool.destructive_when(),
            resources: &call.prepared.resources,
            lines: call.prepared.lines,
            spent,
        };
        let decision = decide(&self.rules, facts, &call.prepared.arguments);
        let allowed = if decision.kind == DecisionKind::Deny {
            Err(denied(format!("refused by the rule `{}`: {}", decision.rule, decision.reason)))
        } else if decision.category > most {
            Err(denied(format!("its category is now {}", decision.category)))
        } else {
            Ok(())
        };
        (decision, allowed)
    }

    /// Makes a step; returns why it failed, or `None` if it succeeded.
    async fn step(&mut self, kept: &KeptStep) -> Result<Option<String>, RecordError> {
        // Check the step again at the last moment. Pass a copy of `spent`: the budgets are charged
        // only after the call.
        let ready = self.ready(kept, &mut self.spent.clone(), &self.changed).await;
        if let Ok(call) = &ready {
            let PreparedCall { argv, resources, .. } = &call.prepared;
            self.changed.files.extend(self.rules.named(resources));
            // Only the file tools name all that they write.
            self.changed.others |= !argv.is_empty() || resources.is_empty();
        }
        let step = &kept.step;
        let failed = match self.call(&step.call_id, &step.name, ready, step.category).await? {
            Err(error) => Some(error.message),
            Ok(output) => {
                output.error_kind.map(|kind| format!("{}: {}", kind.as_str(), output.content))
            }
        };
        Ok(failed.map(|why| format!("step {} ({}): {why}", step.step, step.name)))
    }

    /// Makes a call if the gate allows it. Records the end of the call in either case; the inner
    /// `Err` says why the call was not made.
    async fn call(
        &mut self,
        call_id: &CallId,
        name: &str,
        ready: Result<AcceptedCall, CallError>,
        most: Category,
    ) -> Result<Result<CallOutput, CallError>, RecordError> {
        let open = self.executor.open(call_id, name);
        let made = match ready {
            Ok(call) => self.decide_and_run(&open, call, most).await?,
            Err(error) => Err(error),
        };
        let output = made.as_ref().map_or_else(CallOutput::of_error, CallOutput::clone);
        open.end(output).await?;
        if let Ok(output) = &made {
            self.spent.calls += 1;
            self.spent.files.extend(output.modified.iter().cloned());
            self.changed.files.extend(output.modified.iter().cloned());
            self.spent.lines += output.lines_changed;
        }
        Ok(made)
    }

    async fn decide_and_run(
        &self,
        open: &OpenCall<'_>,
        call: AcceptedCall,
        most: Category,
    ) -> Result<Result<CallOutput, CallError>, RecordError> {
        let (decision, allowed) = self.judge(open.name(), &call, most, &self.spent);
        let mut decided = PolicyDecision {
            call_id: open.id().clone(),
            name: open.name().to_owned(),
            category: decision.category,
            decision: decision.kind,
            rule: decision.rule.to_owned(),
            reason: decision.reason,
        };
        // The person who applies a plan has approved its calls.
        if decision.kind == DecisionKind::Ask {
            decided.decision = DecisionKind::Allow;
            decided.rule = "approved".to_owned();
            decided.reason = format!("a person applies the plan: {}", decided.reason);
        }
        self.sink.record(Event::PolicyDecision(decided)).await?;
        match allowed {
            Err(error) => Ok(Err(error)),
            Ok(()) => {
                let call = AcceptedCall { category: decision.category, ..call };
                open.run(&call).await.map(Ok)
            }
        }
    }
}

fn tool_is_gone() -> CallError {
    CallError::new(ErrorKind::UnknownTool, "the tool no longer exists")
}

fn denied(why: impl Into<String>) -> CallError {
    CallError::new(ErrorKind::Denied, why)
}

#[cfg(test)]
mod tests;
