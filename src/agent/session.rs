//! The driver: records what the machine decided, then does it.
//!
//! It owns every wait of a run — the model, the tools, the pause before a retry — and each of them ends at once when the run is stopped or its
//! time is up. When [`Session::run`] returns, nothing that it started is alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::approval::{ApprovalRequest, Approver};
use super::counters::Counters;
use super::machine::{Action, CallOutcome, End, Input, Machine, Planned};
use super::marker::Marker;
use super::model::{DeltaSink, ErrorClass, Model, ModelError, ModelReply, ModelRequest};
use super::plan::{Changes, PlannedCall, Work};
use super::sink::{EventSink, RecordError};
use super::tool::{CallContext, CallOutput, PreparedCall};
use crate::config::Price;
use crate::domain::{
    CallError, CallStart, Category, ErrorKind, Event, LiveEvent, PlanRead, PlanStep, StopReason,
};

/// The shortest and longest pause before a retry, before jitter.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The longest pause that a provider can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// What a session is made of.
pub struct SessionParts {
    /// The loop.
    pub machine: Machine,
    /// Who answers: the first, and the others where it is unavailable, in order.
    pub models: Vec<ModelInUse>,
    /// Marks what tools return.
    pub marker: Marker,
    /// Where events go.
    pub sink: Arc<dyn EventSink>,
    /// The run.
    pub run_id: String,
    /// Asks a person.
    pub approver: Arc<dyn Approver>,
    /// Holds a stop reason as soon as the run is to end.
    pub stop: watch::Receiver<Option<StopReason>>,
    /// When `max_duration` is over.
    pub deadline: Instant,
}

/// A model of a session.
#[derive(Clone)]
pub struct ModelInUse {
    /// Its name in the configuration.
    pub name: String,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// Retries of one call.
    pub max_retries: u32,
    /// What it costs; `None` is unknown.
    pub price: Option<Price>,
    /// Tokens that it can take in.
    pub context_window: u64,
    /// Whether its answers may hold several calls.
    pub parallel_calls: bool,
}

/// A running session.
pub struct Session {
    parts: SessionParts,
    survivors: AtomicU64,
    /// Which of the models answers; one that was found unavailable is not asked again in this run.
    at: AtomicUsize,
}

/// How a session went.
#[derive(Debug, Clone)]
pub struct SessionResult {
    /// How it ended.
    pub end: End,
    /// What it used up.
    pub counters: Counters,
    /// What it planned.
    pub changes: Changes,
    /// Processes that outlived the kill of a call.
    pub survivors: u64,
}

impl Session {
    /// Returns a session that has not begun.
    #[must_use]
    pub fn new(parts: SessionParts) -> Self {
        Self { parts, survivors: AtomicU64::new(0), at: AtomicUsize::new(0) }
    }

    /// Works off one task.
    ///
    /// A record that cannot be written ends it with `record_failed`; nothing further is done then. *Cancel*: end it through `stop`, not by
    /// dropping the future: only so are the processes of its tools ended before it returns.
    pub async fn run(mut self, task: String) -> SessionResult {
        let end = match self.drive(task).await {
            Ok(end) => end,
            Err(error) => End {
                stop_reason: StopReason::RecordFailed,
                result: None,
                error: Some(error.to_string()),
            },
        };
        SessionResult {
            end,
            counters: self.parts.machine.counters().clone(),
            changes: self.parts.machine.changes().clone(),
            survivors: self.survivors.load(Ordering::Relaxed),
        }
    }

    async fn drive(&mut self, task: String) -> Result<End, RecordError> {
        let mut step = self.parts.machine.step(Input::Start(task));
        loop {
            for event in std::mem::take(&mut step.events) {
                self.parts.sink.record(event).await?;
            }
            let input = match step.action {
                Action::End(end) => return Ok(end),
                Action::CallModel => self.call_model().await?,
                Action::RunCalls(plans) => self.run_calls(plans).await?,
            };
            step = self.parts.machine.step(input);
        }
    }

    /// Returns why the run is to end, as soon as it is.
    async fn stopped(&self) -> StopReason {
        let mut stop = self.parts.stop.clone();
        tokio::select! {
            biased;
            reason = async { stop.wait_for(Option::is_some).await.map(|reason| *reason) } => match reason {
                Ok(Some(reason)) => reason,
                // Whoever could stop us is gone, and with it the daemon.
                Ok(None) | Err(_) => StopReason::Interrupted,
            },
            () = tokio::time::sleep_until(self.parts.deadline) => StopReason::MaxDuration,
        }
    }

    async fn call_model(&self) -> Result<Input, RecordError> {
        tokio::select! {
            biased;
            reason = self.stopped() => Ok(Input::Stop(reason)),
            input = self.call_with_fallbacks() => input,
        }
    }

    /// Asks the models in their order until one answers.
    async fn call_with_fallbacks(&self) -> Result<Input, RecordError> {
        loop {
            let at = self.at.load(Ordering::Relaxed);
            let Some(model) = self.parts.models.get(at) else {
                let error = ModelError::new(ErrorClass::NotFound, "no model is configured");
                return Ok(Input::ModelFailed(error));
            };
            let error = match self.call_with_retries(model).await? {
                Input::ModelFailed(error) => error,
                input => return Ok(input),
            };
            let is_unavailable = error.class.stop_reason() == StopReason::ProviderUnavailable
                && error.class != ErrorClass::BadToolGeneration;
            let mut others = self.parts.models.iter().enumerate().skip(at + 1);
            let affordable = others.find(|(_, next)| self.parts.machine.affords(next.price));
            let Some((to, next)) = affordable.filter(|_| is_unavailable) else {
                return Ok(Input::ModelFailed(error));
            };
            let message = format!(
                "`{}` is unavailable ({}: {}); the run goes on with `{}`",
                model.name,
                error.class.as_str(),
                error.message,
                next.name
            );
            self.parts.sink.record(Event::warning("model_fallback", message)).await?;
            self.at.store(to, Ordering::Relaxed);
        }
    }

    async fn call_with_retries(&self, model: &ModelInUse) -> Result<Input, RecordError> {
        let retries = usize::try_from(model.max_retries).unwrap_or(usize::MAX);
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(RETRY_PAUSE.0)
            .with_max_delay(RETRY_PAUSE.1)
            .with_max_times(retries)
            .build();
        loop {
            let started = Instant::now();
            let deltas = Deltas {
                sink: self.parts.sink.as_ref(),
                started,
                first_ms: AtomicU64::new(u64::MAX),
            };
            let error = match self.attempt(model, &deltas).await {
                Ok(reply) => {
                    let first = deltas.first_ms.load(Ordering::Relaxed);
                    return Ok(Input::Reply {
                        reply: Box::new(reply),
                        latency_ms: millis(started.elapsed()),
                        first_token_ms: (first != u64::MAX).then_some(first),
                        price: model.price,
                        context_window: model.context_window,
                    });
                }
                Err(error) => error,
            };
            let may_retry =
                error.class.is_retryable() && error.class != ErrorClass::BadToolGeneration;
            let Some(pause) = may_retry.then(|| pauses.next()).flatten() else {
                return Ok(Input::ModelFailed(error));
            };
            // Full jitter, so that many jobs that failed together do not come back together.
            let pause = pause
                .mul_f64(fastrand::f64())
                .max(error.retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER));
            let message = format!(
                "{}: {}; trying again in {} ms",
                error.class.as_str(),
                error.message,
                pause.as_millis()
            );
            self.parts.sink.record(Event::warning("model_retry", message)).await?;
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(
        &self,
        model: &ModelInUse,
        deltas: &Deltas<'_>,
    ) -> Result<ModelReply, ModelError> {
        let machine = &self.parts.machine;
        let request = ModelRequest {
            system: &machine.system().text,
            stable: machine.system().stable,
            parallel_calls: model.parallel_calls,
            history: machine.history(),
            tools: machine.toolbox().offered(),
        };
        self.parts.sink.live(LiveEvent::AssistantTextStart);
        model.model.call(request, deltas).await
    }

    /// Answers and runs the calls; neighbouring reads together, everything else alone and in its place.
    async fn run_calls(&self, plans: Vec<PlannedCall>) -> Result<Input, RecordError> {
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
                if let (
                    Category::Read,
                    Ok(CallOutput { error_kind: None, digest: Some(digest), .. }),
                ) = (category, &done)
                {
                    planned = Planned::Read(PlanRead {
                        call_id: plan.call_id.clone(),
                        name: plan.name.clone(),
                        arguments: prepared.arguments.clone(),
                        digest: digest.clone(),
                    });
                }
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
            error_kind: output.error_kind,
            modified: output.modified.clone(),
            lines_changed: output.lines_changed,
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
        let resolved = Event::ApprovalResolved {
            approval_id,
            call_id: plan.call_id.clone(),
            approved: answer.as_ref().is_some_and(|answer| answer.approved),
            by: answer.as_ref().map(|answer| answer.by.clone()),
            reason: answer.as_ref().and_then(|answer| answer.reason.clone()),
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
            Some(_) => {
                if tool.state(prepared).await.ok() != Some(before) {
                    let message = "What would have been run changed while a person was asked, so it was not run.";
                    return refused(ErrorKind::Denied, message.to_owned());
                }
                self.run_tool(plan, *category, prepared, cancel).await.map(|output| (output, None))
            }
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
        let dry_run = tool.dry_run(prepared, &context).await;
        let said = dry_run.as_ref().map(|output| output.content.clone());
        if let Some(failed) = dry_run.filter(|output| output.error_kind.is_some()) {
            // What would not work is no step.
            let content = self.parts.marker.wrap(&plan.call_id, &failed.content);
            return Ok((CallOutput { content, ..failed }, None));
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
        let start = CallStart {
            call_id: plan.call_id.clone(),
            name: plan.name.clone(),
            category,
            arguments: prepared.arguments.clone(),
            argv: prepared.argv.clone(),
            working_dir: prepared.working_dir.clone(),
            sandboxed: prepared.sandboxed,
        };
        self.parts.sink.record(Event::ToolCallStart(start)).await?;
        let context = CallContext { call_id: plan.call_id.clone(), cancel: cancel.clone() };
        let mut output = tool.run(prepared, &context).await;
        output.content = self.parts.marker.wrap(&plan.call_id, &output.content);
        Ok(output)
    }
}

/// Forwards text as it is made, and remembers when the first came.
struct Deltas<'a> {
    sink: &'a dyn EventSink,
    started: Instant,
    first_ms: AtomicU64,
}

impl DeltaSink for Deltas<'_> {
    fn delta(&self, text: &str) {
        self.first_ms.fetch_min(millis(self.started.elapsed()), Ordering::Relaxed);
        self.sink.live(LiveEvent::AssistantTextDelta { text: text.to_owned() });
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
