//! The calls of an answer: run, planned, asked about, or answered.

use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::plan::admin_warning;
use super::{Session, millis};
use crate::agent::approval::ApprovalRequest;
use crate::agent::machine::{CallOutcome, Input, Planned};
use crate::agent::plan::{PlannedCall, Work};
use crate::agent::sink::RecordError;
use crate::agent::tool::{CallContext, CallOutput, PreparedCall};
use crate::domain::{
    CallError, CallStart, Category, DecisionKind, ErrorKind, Event, PlanRead, PlanStep,
    PolicyDecision, Stop, StopReason,
};

impl Session {
    /// Answers and runs the calls; neighbouring reads together, everything else alone and in its place.
    pub(super) async fn run_calls(&self, plans: Vec<PlannedCall>) -> Result<Input, RecordError> {
        let cancel = CancellationToken::new();
        let work = self.run_all(&plans, &cancel);
        tokio::pin!(work);
        tokio::select! {
            biased;
            reason = self.stopped() => {
                cancel.cancel();
                // Tools end within their grace; their results are recorded before the run ends.
                work.await?;
                Ok(Input::Stop(reason))
            }
            results = &mut work => Ok(Input::Results(results?)),
        }
    }

    async fn run_all(
        &self,
        plans: &[PlannedCall],
        cancel: &CancellationToken,
    ) -> Result<Vec<CallOutcome>, RecordError> {
        let parallel = self.parts.machine.rules().limits.parallel_reads;
        let is_read = |plan: &PlannedCall| {
            !matches!(&plan.work, Work::Run { category, .. } if *category != Category::Read)
                && !matches!(&plan.work, Work::Plan { .. } | Work::Ask { .. })
        };
        let mut results = Vec::with_capacity(plans.len());
        let mut rest = plans;
        while let Some(first) = rest.first() {
            let together = if is_read(first) {
                rest.iter().take_while(|plan| is_read(plan)).count()
            } else {
                1
            };
            let (batch, tail) = rest.split_at(together);
            let futures: Vec<_> = batch.iter().map(|plan| self.run_one(plan, cancel)).collect();
            let done: Vec<Result<CallOutcome, RecordError>> =
                futures_util::stream::iter(futures).buffered(parallel).collect().await;
            for result in done {
                results.push(result?);
            }
            rest = tail;
        }
        Ok(results)
    }

    async fn run_one(
        &self,
        plan: &PlannedCall,
        cancel: &CancellationToken,
    ) -> Result<CallOutcome, RecordError> {
        let started = Instant::now();
        let mut planned = Planned::Nothing;
        let done = match &plan.work {
            Work::Reject(error) => Ok(CallOutput::of_error(error)),
            Work::Run { .. } | Work::Plan { .. } | Work::Ask { .. } if cancel.is_cancelled() => {
                Ok(CallOutput::of_error(&CallError::new(
                    ErrorKind::Skipped,
                    "Not run: the run is being stopped.",
                )))
            }
            Work::Run { category, prepared } => {
                let done = self.run_tool(plan, *category, prepared, cancel).await;
                planned = match (category, &done) {
                    (Category::Read, Ok(output)) => {
                        output.read_digest().map_or(Planned::Nothing, |digest| {
                            Planned::Read(PlanRead {
                                call_id: plan.call_id.clone(),
                                name: plan.name.clone(),
                                arguments: prepared.arguments.clone(),
                                digest,
                            })
                        })
                    }
                    _ => Planned::Changed,
                };
                done
            }
            Work::Plan { .. } => self.plan_step(plan, cancel).await.map(|(output, step)| {
                planned = step.map_or(Planned::Nothing, |step| Planned::Step(Box::new(step)));
                output
            }),
            Work::Ask { .. } => self.asked(plan, cancel).await.map(|(output, step)| {
                planned = step.map_or(Planned::Nothing, |step| Planned::Step(Box::new(step)));
                output
            }),
        };
        let output = match done {
            Ok(output) => output,
            Err(error) => {
                // What runs beside it cannot be recorded either.
                cancel.cancel();
                return Err(error);
            }
        };
        self.survivors.fetch_add(output.survivors, Ordering::Relaxed);
        let outcome = CallOutcome {
            call_id: plan.call_id.clone(),
            name: plan.shown_as.clone(),
            content: output.content.clone(),
            images: output.images.clone(),
            error_kind: output.error_kind,
            // A step counts as if it had been made, so that a plan stays within the budgets of its run.
            modified: match (&planned, &plan.work) {
                (Planned::Step(_), Work::Plan { prepared, .. } | Work::Ask { prepared, .. }) => {
                    self.parts.machine.rules().gate.written(&prepared.resources).collect()
                }
                _ => output.modified.clone(),
            },
            lines_changed: match (&planned, &plan.work) {
                (Planned::Step(_), Work::Plan { prepared, .. } | Work::Ask { prepared, .. }) => {
                    prepared.lines
                }
                _ => output.lines_changed,
            },
            planned,
        };
        let end = output.end(&plan.call_id, &plan.name, millis(started.elapsed()));
        self.parts.sink.record(Event::ToolCallEnd(Box::new(end))).await?;
        Ok(outcome)
    }

    /// Asks a person, and makes the call if the answer is yes and the call is still what was asked about (WEB-6).
    async fn asked(
        &self,
        plan: &PlannedCall,
        cancel: &CancellationToken,
    ) -> Result<(CallOutput, Option<PlanStep>), RecordError> {
        let rules = self.parts.machine.rules();
        let Work::Ask { category, prepared, reason, .. } = &plan.work else {
            return Ok((CallOutput::default(), None));
        };
        let refused = |kind, message: String| {
            Ok((CallOutput::of_error(&CallError::new(kind, message)), None))
        };
        let Some(tool) = self.parts.machine.toolbox().find(&plan.name) else {
            return refused(ErrorKind::UnknownTool, "The tool is gone.".to_owned());
        };
        let before = match tool.state(prepared).await {
            Ok(state) => state,
            Err(error) => return Ok((CallOutput::of_error(&error), None)),
        };
        let approval_id = self.approval_id(&plan.call_id);
        let request = ApprovalRequest {
            approval_id: approval_id.clone(),
            run_id: self.parts.run_id.clone(),
            job: rules.gate.job.clone(),
            call_id: plan.call_id.clone(),
            tool: plan.name.clone(),
            category: *category,
            arguments: prepared.arguments.clone(),
            argv: prepared.argv.clone(),
            working_dir: prepared.working_dir.clone(),
            reason: reason.clone(),
            expires_at: self.parts.approver.expires_at(rules.approval.timeout),
        };
        let requested = Event::ApprovalRequested {
            approval_id: approval_id.clone(),
            call_id: plan.call_id.clone(),
            expires_at: request.expires_at,
        };
        self.parts.sink.record(requested).await?;
        let started = Instant::now();
        let answer = tokio::select! {
            () = cancel.cancelled() => None,
            answer = tokio::time::timeout(rules.approval.timeout, self.parts.approver.ask(request)) => answer.ok(),
        };
        let (by, why) = match &answer {
            Some(answer) => (Some(answer.by.clone()), answer.reason.clone()),
            None if cancel.is_cancelled() => self.ended_by(),
            None => (None, None),
        };
        let resolved = Event::ApprovalResolved {
            approval_id,
            call_id: plan.call_id.clone(),
            approved: answer.as_ref().is_some_and(|answer| answer.approved),
            by,
            reason: why,
            waited_ms: millis(started.elapsed()),
        };
        self.parts.sink.record(resolved).await?;
        match answer {
            _ if cancel.is_cancelled() => {
                refused(ErrorKind::Skipped, "Not run: the run is being stopped.".to_owned())
            }
            None if rules.approval.unanswered_is_planned => self.plan_step(plan, cancel).await,
            None => refused(
                ErrorKind::ApprovalTimeout,
                "Nobody answered in time, so this was not run. Work without this call, or say in the answer that it was needed.".to_owned(),
            ),
            Some(answer) if !answer.approved => {
                let words = answer.reason.map(|words| format!(": {words}")).unwrap_or_default();
                refused(ErrorKind::Denied, format!("A person said no{words}. Do not ask for it again."))
            }
            Some(answer) => {
                if tool.state(prepared).await.ok() != Some(before) {
                    let message = "What would have been run changed while a person was asked, so it was not run.";
                    return refused(ErrorKind::Denied, message.to_owned());
                }
                let decided = Event::PolicyDecision(PolicyDecision {
                    call_id: plan.call_id.clone(),
                    name: plan.name.clone(),
                    category: *category,
                    decision: DecisionKind::Allow,
                    rule: "approved".to_owned(),
                    reason: format!("{} said yes to exactly this call", answer.by),
                });
                self.parts.sink.record(decided).await?;
                if let Some(warning) = admin_warning(&rules.gate.policy, &plan.name, *category) {
                    self.parts.sink.record(warning).await?;
                }
                self.run_tool(plan, *category, prepared, cancel).await.map(|output| (output, None))
            }
        }
    }

    /// Returns who ended the run, and how an approval that waited says so.
    fn ended_by(&self) -> (Option<String>, Option<String>) {
        match self.parts.stop.borrow().as_ref() {
            Some(Stop { reason: StopReason::Cancelled, by }) => (
                by.as_ref().map(|person| person.user.clone()),
                Some("the run was cancelled".to_owned()),
            ),
            Some(Stop { reason, .. }) => (None, Some(format!("the run ended: {reason}"))),
            None => (None, Some(format!("the run ended: {}", StopReason::MaxDuration))),
        }
    }

    /// Nobody else may guess or repeat it.
    fn approval_id(&self, call_id: &crate::domain::CallId) -> String {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        format!("{}-{call_id}-{}", self.parts.run_id, random.to_lowercase())
    }

    /// Records a call as a step of a change plan instead of making it.
    async fn plan_step(
        &self,
        plan: &PlannedCall,
        cancel: &CancellationToken,
    ) -> Result<(CallOutput, Option<PlanStep>), RecordError> {
        let (Work::Plan { step, category, prepared, rests_on }
        | Work::Ask { step, category, prepared, rests_on, .. }) = &plan.work
        else {
            return Ok((CallOutput::default(), None));
        };
        let Some(tool) = self.parts.machine.toolbox().find(&plan.name) else {
            let error = CallError::new(ErrorKind::UnknownTool, "The tool is gone.");
            return Ok((CallOutput::of_error(&error), None));
        };
        let state = match tool.state(prepared).await {
            Ok(state) => state,
            Err(error) => return Ok((CallOutput::of_error(&error), None)),
        };
        let context = CallContext { call_id: plan.call_id.clone(), cancel: cancel.clone() };
        // What nobody has said yes to is not tried either.
        let is_asked = matches!(plan.work, Work::Ask { .. });
        let dry = tool.dry_run_of(prepared).filter(|_| !is_asked);
        let (mut said, mut survivors) = (None, 0);
        if let Some(dry) = dry {
            let start = call_start(plan, Category::Read, &dry);
            self.parts.sink.record(Event::ToolCallStart(start)).await?;
            let output = tool.dry_run(&dry, &context).await;
            if output.error_kind.is_some() {
                // What would not work is no step.
                let content = self.parts.marker.wrap(&plan.call_id, &output.content);
                return Ok((CallOutput { content, ..output }, None));
            }
            survivors = output.survivors;
            said = Some(output.content);
        }
        let planned = PlanStep {
            step: *step,
            call_id: plan.call_id.clone(),
            name: plan.name.clone(),
            category: *category,
            argv: prepared.argv.clone(),
            arguments: prepared.arguments.clone(),
            working_dir: prepared.working_dir.clone(),
            digest: prepared.digest(&plan.name, &state),
            dry_run_output: said.clone(),
            rests_on: rests_on.clone(),
        };
        self.parts.sink.record(Event::PlanStep(Box::new(planned.clone()))).await?;
        let mut text = format!(
            "Planned as step {step}; nothing was changed. A person decides about it later: go on as if it had worked."
        );
        if let Some(said) = said {
            let said = self.parts.marker.wrap(&plan.call_id, &said);
            text.push_str(&format!("\nIts dry run said:\n{said}"));
        }
        let output = CallOutput {
            output_bytes: text.len() as u64,
            output: Some(text.clone()),
            content: text,
            survivors,
            ..CallOutput::default()
        };
        Ok((output, Some(planned)))
    }

    async fn run_tool(
        &self,
        plan: &PlannedCall,
        category: Category,
        prepared: &PreparedCall,
        cancel: &CancellationToken,
    ) -> Result<CallOutput, RecordError> {
        let Some(tool) = self.parts.machine.toolbox().find(&plan.name) else {
            return Ok(CallOutput::of_error(&CallError::new(
                ErrorKind::UnknownTool,
                "The tool is gone.",
            )));
        };
        let start = call_start(plan, category, prepared);
        self.parts.sink.record(Event::ToolCallStart(start)).await?;
        let context = CallContext { call_id: plan.call_id.clone(), cancel: cancel.clone() };
        let mut output = tool.run(prepared, &context).await;
        output.content = self.parts.marker.wrap(&plan.call_id, &output.content);
        Ok(output)
    }
}

fn call_start(plan: &PlannedCall, category: Category, prepared: &PreparedCall) -> CallStart {
    CallStart {
        call_id: plan.call_id.clone(),
        name: plan.name.clone(),
        category,
        arguments: prepared.arguments.clone(),
        argv: prepared.argv.clone(),
        working_dir: prepared.working_dir.clone(),
        sandboxed: prepared.sandboxed,
    }
}
