//! Makes a read call that a job declares: its precheck, or a check of `verify`. The gate decides about
//! it as about any other call.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::scope::RunScope;
use super::sink::RunSink;
use super::tool_context::gate_rules;
use crate::agent::{
    AcceptedCall, CallExecutor, CallOutput, EventSink as _, RecordError, StopSignal, Toolbox,
};
use crate::domain::{
    CallEnd, CallError, CallId, Category, DecisionKind, ErrorKind, Event, PolicyDecision,
    StopReason, ToolName,
};
use crate::gate::{CallFacts, GateRules, Spent, decide};

/// Makes the declared calls of a run.
pub(super) struct OwnCalls {
    sink: Arc<RunSink>,
    toolbox: Arc<Toolbox>,
    rules: GateRules,
    stop: StopSignal,
    may_suspend: bool,
}

/// How a call ended.
pub(super) enum Made {
    Ended(Box<CallEnd>),
    /// The run must end, which cut off the call.
    Stopped(Box<CallEnd>),
    /// The stop of the daemon suspends the run. The call has no end in the record.
    Suspended,
}

impl OwnCalls {
    pub(super) fn of(scope: &RunScope) -> Self {
        let (config, job) = (&scope.spec.config, &scope.spec.job);
        let rules = gate_rules(config, job, scope.ctx.access.paths.clone());
        Self {
            sink: scope.sink.clone(),
            toolbox: scope.toolbox.clone(),
            // The calls do not count towards the limits of the run.
            rules: GateRules { rate: None, ..rules },
            stop: scope.stop.clone(),
            may_suspend: scope.spec.may_suspend(),
        }
    }

    /// Makes a call and records it. If the run must end, the call ends as interrupted.
    ///
    /// *Errors*: a line cannot be recorded.
    pub(super) async fn make(
        &self,
        call_id: &CallId,
        tool: &ToolName,
        arguments: Map<String, Value>,
    ) -> Result<Made, RecordError> {
        let executor = CallExecutor::new(self.sink.clone(), CancellationToken::new());
        let open = executor.open(call_id, tool.as_str());
        let mut is_stopped = false;
        let output = match self.accept(call_id, tool, &arguments).await? {
            Err(error) => CallOutput::of_error(&error),
            Ok(call) => {
                let work = open.run(&call);
                tokio::pin!(work);
                tokio::select! {
                    biased;
                    reason = self.stop.reason() => {
                        is_stopped = true;
                        executor.cancel().cancel();
                        let output = work.await?;
                        let suspends = self.may_suspend && reason == StopReason::Interrupted;
                        if suspends && output.error_kind == Some(ErrorKind::Interrupted) {
                            return Ok(Made::Suspended);
                        }
                        output
                    }
                    output = &mut work => output?,
                }
            }
        };
        let end = Box::new(output.clone().end(open.id(), open.name(), 0));
        open.end(output).await?;
        Ok(if is_stopped { Made::Stopped(end) } else { Made::Ended(end) })
    }

    /// Prepares a call and asks the gate about it.
    ///
    /// *Errors* (inside): why the call must not be made.
    async fn accept(
        &self,
        call_id: &CallId,
        tool: &ToolName,
        arguments: &Map<String, Value>,
    ) -> Result<Result<AcceptedCall, CallError>, RecordError> {
        let name = tool.as_str();
        let Some(tool) = self.toolbox.find(name) else {
            let message = format!("The tool `{name}` is not available.");
            return Ok(Err(CallError::new(ErrorKind::UnknownTool, message)));
        };
        let prepared = match tool.prepare(arguments) {
            Ok(prepared) => prepared,
            Err(error) => return Ok(Err(error)),
        };
        let facts = CallFacts {
            tool: name,
            category: tool.category(),
            destructive_when: tool.destructive_when(),
            resources: &prepared.resources,
            lines: prepared.lines,
            spent: &Spent::default(),
        };
        let decision = decide(&self.rules, facts, &prepared.arguments);
        let decided = PolicyDecision {
            call_id: call_id.clone(),
            name: name.to_owned(),
            category: decision.category,
            decision: decision.kind,
            rule: decision.rule.to_owned(),
            reason: decision.reason.clone(),
        };
        self.sink.record(Event::PolicyDecision(decided)).await?;
        let (rule, reason) = (decision.rule, decision.reason);
        Ok(match (decision.kind, decision.category) {
            (DecisionKind::Allow, Category::Read) => {
                Ok(AcceptedCall { tool: tool.clone(), category: decision.category, prepared })
            }
            (DecisionKind::Allow, raised @ (Category::Write | Category::Admin)) => {
                let message = format!(
                    "The arguments raise the call to {raised}, and dutyd itself makes only read calls. Nothing was run."
                );
                Err(CallError::new(ErrorKind::Denied, message))
            }
            (DecisionKind::Ask | DecisionKind::Deny, _) => {
                let message = format!("Refused by the rule `{rule}`: {reason}. Nothing was run.");
                Err(CallError::new(ErrorKind::Denied, message))
            }
        })
    }
}
