//! Handles the calls of a reply: runs, proposes or rejects each one, or asks a person about it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Session, millis};
use crate::agent::approval::{ApprovalAnswer, ApprovalRequest};
use crate::agent::dispatch::{
    AcceptedCall, CallAction, CallOutcome, Dispatch, Planned, StepPosition, admin_warning,
};
use crate::agent::executor::{CallExecutor, OpenCall};
use crate::agent::machine::Input;
use crate::agent::sink::RecordError;
use crate::agent::tool::{CallOutput, CallState, PreparedCall};
use crate::domain::{
    Binding, CallError, CallId, Category, DecisionKind, ErrorKind, Event, PlanRead, PlanStep,
    PolicyDecision, Stop, StopReason,
};

/// A call that was made or rejected.
struct Made {
    output: CallOutput,
    /// The result for the model, with delimiters around untrusted content.
    content: String,
    planned: Planned,
}

impl Session {
    /// Runs or answers the calls in order. Adjacent reads and rejected calls are handled
    /// concurrently; every other call is handled alone. Once a new steering text has come, no call starts
    /// except for those in `begun`: they had started before the session was cut off.
    pub(super) async fn run_calls(
        &self,
        calls: Vec<Dispatch>,
        begun: &BTreeSet<CallId>,
    ) -> Result<Input, RecordError> {
        let executor = CallExecutor::new(self.parts.sink.clone(), CancellationToken::new())
            .with_lines(self.parts.machine.lines_left());
        let work = self.run_all(&calls, &executor, begun);
        tokio::pin!(work);
        tokio::select! {
            biased;
            reason = self.parts.stop.reason() => {
                let suspends = self.parts.may_suspend && reason == StopReason::Interrupted;
                self.is_suspending.store(suspends, Ordering::Relaxed);
                executor.cancel().cancel();
                // Tools end within their grace period. Record their results before the run ends.
                work.await?;
                Ok(Input::Stop(reason))
            }
            results = &mut work => Ok(Input::Results(results?)),
        }
    }

    async fn run_all(
        &self,
        calls: &[Dispatch],
        executor: &CallExecutor,
        begun: &BTreeSet<CallId>,
    ) -> Result<Vec<CallOutcome>, RecordError> {
        let parallel = self.parts.machine.rules().limits.parallel_reads;
        let changes_nothing = |call: &Dispatch| match &call.action {
            CallAction::Run(accepted) => accepted.category == Category::Read,
            CallAction::Reject(_) => true,
            CallAction::Ask { .. } | CallAction::Propose { .. } => false,
        };
        let mut results = Vec::with_capacity(calls.len());
        let mut rest = calls;
        while let Some(first) = rest.first() {
            let together = if changes_nothing(first) {
                rest.iter().take_while(|call| changes_nothing(call)).count()
            } else {
                1
            };
            let (batch, tail) = rest.split_at(together);
            let futures: Vec<_> =
                batch.iter().map(|call| self.run_one(call, executor, begun)).collect();
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
        dispatch: &Dispatch,
        executor: &CallExecutor,
        begun: &BTreeSet<CallId>,
    ) -> Result<CallOutcome, RecordError> {
        let open = executor.open(&dispatch.call_id, &dispatch.name);
        let made = match &dispatch.action {
            CallAction::Reject(error) => Ok(not_made(error)),
            _ if executor.cancel().is_cancelled() => Ok(skipped()),
            _ if self.parts.inbox.steering() > self.seen && !begun.contains(&dispatch.call_id) => {
                Ok(superseded())
            }
            CallAction::Run(call) => self.run_tool(&open, call).await,
            CallAction::Propose { call, position } => {
                let dry = call.tool.dry_run_of(&call.prepared);
                self.propose(&open, call, position, dry).await
            }
            CallAction::Ask { call, reason, position } => {
                self.ask(&open, call, reason, position, executor.cancel()).await
            }
        };
        let Made { output, content, planned } = made.inspect_err(|_| {
            // Calls that run concurrently cannot be recorded either, so cancel them.
            executor.cancel().cancel();
        })?;
        self.survivors.fetch_add(output.survivors, Ordering::Relaxed);
        // A planned step counts as if it had run, so that the plan stays within the budgets of the
        // run.
        let step = matches!(planned, Planned::Step(_)).then(|| dispatch.accepted()).flatten();
        let (modified, lines_changed) = match step {
            Some(AcceptedCall { prepared, .. }) => {
                let gate = &self.parts.machine.rules().gate;
                (gate.written(&prepared.resources).collect(), prepared.lines)
            }
            None => (output.modified.clone(), output.lines_changed),
        };
        let outcome = CallOutcome {
            call_id: dispatch.call_id.clone(),
            name: dispatch.shown_as.clone(),
            content,
            images: output.images.clone(),
            error_kind: output.error_kind,
            modified,
            lines_changed,
            planned,
        };
        let is_cut = matches!(output.error_kind, Some(ErrorKind::Interrupted | ErrorKind::Skipped));
        if !(is_cut && self.is_suspending.load(Ordering::Relaxed)) {
            open.end(output).await?;
        }
        Ok(outcome)
    }

    async fn run_tool(
        &self,
        open: &OpenCall<'_>,
        call: &AcceptedCall,
    ) -> Result<Made, RecordError> {
        let output = open.run(call).await?;
        let content = self.parts.marker.wrap(open.id(), &output.content);
        let planned = match call.category {
            Category::Read => output.read_digest().map_or(Planned::Nothing, |digest| {
                Planned::Read(PlanRead {
                    call_id: open.id().clone(),
                    name: open.name().to_owned(),
                    arguments: call.prepared.arguments.clone(),
                    digest,
                })
            }),
            Category::Write | Category::Admin => Planned::Changed,
        };
        Ok(Made { output, content, planned })
    }

    /// Asks a person about a call. Runs the call if the person approves it and its program and
    /// files have not changed in the meantime (WEB-6).
    async fn ask(
        &self,
        open: &OpenCall<'_>,
        call: &AcceptedCall,
        reason: &str,
        position: &StepPosition,
        cancel: &CancellationToken,
    ) -> Result<Made, RecordError> {
        let approval = self.parts.machine.rules().approval;
        let before = match self.state_of(call).await {
            Some(Ok(state)) => state,
            Some(Err(error)) => return Ok(not_made(&error)),
            None => return Ok(skipped()),
        };
        match self.answer_of_person(open, call, &before.binding, reason, cancel).await? {
            _ if cancel.is_cancelled() => Ok(skipped()),
            // The call is not approved, so do not start its dry run either.
            None if approval.unanswered_is_planned => {
                self.propose(open, call, position, None).await
            }
            None => Ok(not_made(&CallError::new(
                ErrorKind::ApprovalTimeout,
                "The approval request expired, so this call was not run. Continue without it, or state in the final answer that it was needed.",
            ))),
            Some(answer) if !answer.approved => {
                let words = answer.reason.map(|words| format!(": {words}")).unwrap_or_default();
                let message = format!("A person denied this call{words}. Do not request it again.");
                Ok(not_made(&CallError::new(ErrorKind::Denied, message)))
            }
            Some(_) if self.state_of(call).await.and_then(Result::ok) != Some(before) => {
                Ok(not_made(&CallError::new(
                    ErrorKind::Denied,
                    "Not run: the program, the files or the environment of this call changed while it waited for approval.",
                )))
            }
            Some(answer) => {
                self.record_consent(open, call, &answer.by).await?;
                self.run_tool(open, call).await
            }
        }
    }

    /// Returns the state on which a call depends; `None` if the run must end.
    async fn state_of(&self, call: &AcceptedCall) -> Option<Result<CallState, CallError>> {
        tokio::select! {
            state = call.tool.state(&call.prepared) => Some(state),
            _ = self.parts.stop.reason() => None,
        }
    }

    /// Asks a person about a call and records the answer. Returns `None` if no answer came before
    /// the timeout or the end of the run.
    async fn answer_of_person(
        &self,
        open: &OpenCall<'_>,
        call: &AcceptedCall,
        binding: &Binding,
        reason: &str,
        cancel: &CancellationToken,
    ) -> Result<Option<ApprovalAnswer>, RecordError> {
        let rules = self.parts.machine.rules();
        let approval_id = self.approval_id(open.id());
        let request = ApprovalRequest {
            approval_id: approval_id.clone(),
            run_id: self.parts.run_id.clone(),
            job: rules.gate.job.clone(),
            call_id: open.id().clone(),
            tool: open.name().to_owned(),
            category: call.category,
            arguments: call.prepared.arguments.clone(),
            argv: call.prepared.argv.clone(),
            working_dir: call.prepared.working_dir.clone(),
            binding: binding.clone(),
            reason: reason.to_owned(),
            expires_at: self.parts.approver.expires_at(rules.approval.timeout),
        };
        let requested = Event::ApprovalRequested {
            approval_id: approval_id.clone(),
            call_id: open.id().clone(),
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
            call_id: open.id().clone(),
            approved: answer.as_ref().is_some_and(|answer| answer.approved),
            by,
            reason: why,
            waited_ms: millis(started.elapsed()),
        };
        self.parts.sink.record(resolved).await?;
        Ok(answer)
    }

    /// Records a person's approval as a policy decision, with the warning about an admin call.
    async fn record_consent(
        &self,
        open: &OpenCall<'_>,
        call: &AcceptedCall,
        by: &str,
    ) -> Result<(), RecordError> {
        let decided = Event::PolicyDecision(PolicyDecision {
            call_id: open.id().clone(),
            name: open.name().to_owned(),
            category: call.category,
            decision: DecisionKind::Allow,
            rule: "approved".to_owned(),
            reason: format!("{by} approved exactly this call"),
        });
        self.parts.sink.record(decided).await?;
        let policy = &self.parts.machine.rules().gate.policy;
        match admin_warning(policy, open.name(), call.category) {
            Some(warning) => self.parts.sink.record(warning).await,
            None => Ok(()),
        }
    }

    /// Returns who ended the run, and the reason to record for a pending approval.
    fn ended_by(&self) -> (Option<String>, Option<String>) {
        match self.parts.stop.given() {
            Some(Stop { reason: StopReason::Cancelled, by, .. }) => {
                (by.map(|person| person.user), Some("the run was cancelled".to_owned()))
            }
            Some(Stop { reason, .. }) => (None, Some(format!("the run ended: {reason}"))),
            None => (None, Some(format!("the run ended: {}", StopReason::MaxDuration))),
        }
    }

    /// Returns a new approval id: the run, the call and a random part.
    fn approval_id(&self, call_id: &CallId) -> String {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        format!("{}-{call_id}-{}", self.parts.run_id, random.to_lowercase())
    }

    /// Records a call as a step of a change plan instead of running it. Runs its dry run first, if
    /// `dry` contains one.
    async fn propose(
        &self,
        open: &OpenCall<'_>,
        call: &AcceptedCall,
        position: &StepPosition,
        dry: Option<PreparedCall>,
    ) -> Result<Made, RecordError> {
        let state = match call.tool.state(&call.prepared).await {
            Ok(state) => state,
            Err(error) => return Ok(not_made(&error)),
        };
        let (mut said, mut survivors) = (None, 0);
        if let Some(dry) = dry {
            let output = open.dry_run(call, &dry).await?;
            if output.error_kind.is_some() {
                // A call whose dry run failed does not become a step.
                let content = self.parts.marker.wrap(open.id(), &output.content);
                return Ok(Made { output, content, planned: Planned::Nothing });
            }
            survivors = output.survivors;
            said = Some(output.content);
        }
        let (prepared, gate) = (&call.prepared, &self.parts.machine.rules().gate);
        let digest = prepared.digest(open.name(), &state);
        let mut binding = state.binding;
        // The file tools name all that they write, so their files stay bound.
        if position.step > 1 && !prepared.argv.is_empty() {
            binding.tell_new_files();
        }
        let planned = PlanStep {
            step: position.step,
            call_id: open.id().clone(),
            name: open.name().to_owned(),
            category: call.category,
            argv: prepared.argv.clone(),
            arguments: prepared.arguments.clone(),
            working_dir: prepared.working_dir.clone(),
            digest,
            binding,
            dry_run_output: said.clone(),
            rests_on: position.rests_on.clone(),
            would_modify: gate
                .written(&prepared.resources)
                .map(|path| path.display().to_string())
                .collect(),
            would_change_lines: prepared.lines,
        };
        self.parts.sink.record(Event::PlanStep(Box::new(planned.clone()))).await?;
        let mut text = format!(
            "Planned as step {}; nothing was changed. A person decides about it later: continue as if the call had succeeded.",
            position.step
        );
        if let Some(said) = said {
            let said = self.parts.marker.wrap(open.id(), &said);
            text.push_str(&format!("\nOutput of its dry run:\n{said}"));
        }
        let output = CallOutput {
            output_bytes: text.len() as u64,
            output: Some(text.clone()),
            content: text.clone(),
            survivors,
            ..CallOutput::default()
        };
        Ok(Made { output, content: text, planned: Planned::Step(Box::new(planned)) })
    }
}

fn not_made(error: &CallError) -> Made {
    let output = CallOutput::of_error(error);
    Made { content: output.content.clone(), output, planned: Planned::Nothing }
}

fn skipped() -> Made {
    not_made(&CallError::new(ErrorKind::Skipped, "Not run: the run is being stopped."))
}

fn superseded() -> Made {
    let message =
        "Not run: a newer instruction came while other calls of this response ran. It follows.";
    not_made(&CallError::new(ErrorKind::Skipped, message))
}
