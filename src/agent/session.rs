//! The driver: records each decision of the machine, then carries it out.
//!
//! The session does all the waiting of a run: for the model, for tools, for approvals and before a
//! retry. A stop or the deadline ends each wait; a running tool gets its grace period to end. When
//! [`Session::run`] returns, every model call and tool call of the session has ended.

mod attempt;
mod calls;
mod fallback;
mod resumed;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::time::Instant;

use super::approval::Approver;
use super::counters::{BrokenOff, Counters};
use super::dispatch::Changes;
use super::inbox::Inbox;
use super::machine::{Action, End, Input, Machine, Step};
use super::model::{ErrorClass, Model, ModelError, ModelReply, ModelRequest};
use super::rebuild::Rebuilt;
use super::rules::ModelFacts;
use super::sink::{EventSink, RecordError};
use super::stop::StopSignal;
use super::untrusted::Marker;
use super::verify::Verifier;
use super::wait::{ModelWait, ModelWaits};
use crate::catalogue::Prices;
use crate::clock::Clock;
use crate::domain::{Event, InputSource, LiveEvent, Outage, StopReason, TextKind};
use attempt::{Attempt, Deltas};
use fallback::Calling;

/// The first and the longest pause between two attempts, before jitter shortens them. A provider
/// can request a longer pause.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// How long we wait for a server that still loads its model, and the pause between two requests.
/// llama.cpp needs a minute or two for a large model.
const LOADING: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(2));

/// The parts of a session.
pub struct SessionParts {
    /// The machine that decides.
    pub machine: Machine,
    /// The models in order of preference. When one is unavailable, the next one that fits the cost
    /// limit takes over.
    pub models: Vec<ModelInUse>,
    /// The names of those of the models that are on hold, so that the session does not ask them.
    pub passed_over: Vec<String>,
    /// Delimits tool output as untrusted content.
    pub marker: Marker,
    pub sink: Arc<dyn EventSink>,
    /// The id of the run.
    pub run_id: String,
    /// Asks a person for approval.
    pub approver: Arc<dyn Approver>,
    /// Makes the checks after the final answer.
    pub verifier: Arc<dyn Verifier>,
    /// Tells which price applies.
    pub clock: Arc<dyn Clock>,
    /// The texts that people give while the session works.
    pub inbox: Inbox,
    /// Signals that the run must end.
    pub stop: StopSignal,
    /// Lists the model calls of the session while they last.
    pub waits: ModelWaits,
    /// How long the run had worked before this session continued it.
    pub worked: Duration,
    /// Whether the stop of the daemon suspends the session instead of ending it. A call that the
    /// stop cuts off then gets no result.
    pub may_suspend: bool,
}

/// A model that a session can call.
#[derive(Clone)]
pub struct ModelInUse {
    /// The name of the model in the configuration.
    pub name: String,
    /// The client of the model.
    pub model: Arc<dyn Model>,
    /// The digest of what decides whether the model answers; empty for a model without a network.
    pub access: String,
    /// Maximum number of retries of one model call: attempts after the first.
    pub max_retries: u32,
    /// The prices; `None` if unknown.
    pub prices: Option<Prices>,
    /// What else the loop knows about the model; its price is that of the start of the session.
    pub facts: ModelFacts,
    /// Whether a reply may contain several calls.
    pub parallel_calls: bool,
}

/// A session that runs one task.
pub struct Session {
    parts: SessionParts,
    survivors: AtomicU64,
    started: Instant,
    /// How many steering texts had come when the machine decided last.
    seen: usize,
    /// Whether the next request is one that the model had not answered before the session was cut off.
    repeats: bool,
    /// Index of the current model. The session does not return to a model that was unavailable.
    at: AtomicUsize,
    is_suspended: AtomicBool,
    /// Whether the stop of the daemon cancels the running calls.
    is_suspending: AtomicBool,
    /// Usage of the model calls that broke off since the last warning about such calls.
    broken_off: Mutex<BrokenOff>,
    /// Usage of the broken-off model calls that the machine has not counted yet.
    uncounted: Mutex<BrokenOff>,
    outages: Mutex<Vec<Outage>>,
    /// The call in progress.
    calling: Mutex<Option<Calling>>,
}

/// The result of a session.
#[derive(Debug, Clone)]
pub struct SessionResult {
    /// How the loop ended.
    pub end: End,
    /// What the session used.
    pub counters: Counters,
    /// The change plan of the session.
    pub changes: Changes,
    /// The models that failed the last request.
    pub outages: Vec<Outage>,
    /// Number of processes of all calls that survived an attempt to kill them.
    pub survivors: u64,
    /// Whether the stop of the daemon suspended the session. `end` then says `interrupted`.
    pub is_suspended: bool,
}

impl Session {
    /// Returns a session, which begins with the first of its models. Its elapsed time counts from
    /// now.
    #[must_use]
    pub fn new(parts: SessionParts) -> Self {
        Self {
            parts,
            survivors: AtomicU64::new(0),
            started: Instant::now(),
            seen: 0,
            repeats: false,
            at: AtomicUsize::new(0),
            is_suspended: AtomicBool::new(false),
            is_suspending: AtomicBool::new(false),
            broken_off: Mutex::default(),
            uncounted: Mutex::default(),
            outages: Mutex::default(),
            calling: Mutex::default(),
        }
    }

    /// Runs one task to its end.
    ///
    /// If the transcript cannot be written, the run ends with `record_failed` and takes no further
    /// action. *Cancel*: use [`SessionParts::stop`]. This function then returns after the processes
    /// of the tools have ended. Dropping the future does not wait for them.
    pub async fn run(mut self, task: String) -> SessionResult {
        let ended = match self.pass_over(0).await {
            Ok(()) => {
                let step = self.step(Input::Submit(task, InputSource::Job));
                self.drive(step).await
            }
            Err(error) => Err(error),
        };
        self.concluded(ended)
    }

    /// Continues a session that [`rebuild`](super::rebuild::rebuild) has rebuilt, with the model of
    /// this name. Otherwise behaves like [`Self::run`].
    pub async fn resume(mut self, rebuilt: Rebuilt, model: Option<&str>) -> SessionResult {
        let at = self.parts.models.iter().position(|known| Some(known.name.as_str()) == model);
        if let Err(error) = self.pass_over(at.unwrap_or(0)).await {
            return self.concluded(Err(error));
        }
        let ended = match rebuilt {
            Rebuilt::Act { events, action, is_repeated } => {
                self.repeats = is_repeated;
                self.drive(Step { events, action }).await
            }
            Rebuilt::Calls(cut) => match self.finish_calls(cut).await {
                Ok(Input::Stop(StopReason::Interrupted)) if self.parts.may_suspend => {
                    Ok(self.suspended())
                }
                Ok(input) => {
                    let step = self.step(input);
                    self.drive(step).await
                }
                Err(error) => Err(error),
            },
        };
        self.concluded(ended)
    }

    fn concluded(self, ended: Result<End, RecordError>) -> SessionResult {
        let end = match ended {
            Ok(end) => end,
            Err(error) => End {
                stop_reason: StopReason::RecordFailed,
                result: None,
                answer: None,
                error: Some(error.to_string()),
            },
        };
        self.take_broken_off();
        let mut counters = self.parts.machine.counters().clone();
        counters.add(&self.uncounted.into_inner().unwrap_or_else(PoisonError::into_inner));
        SessionResult {
            end,
            counters,
            changes: self.parts.machine.changes().clone(),
            outages: self.outages.into_inner().unwrap_or_else(PoisonError::into_inner),
            survivors: self.survivors.load(Ordering::Relaxed),
            is_suspended: self.is_suspended.load(Ordering::Relaxed),
        }
    }

    /// Returns how long the run has worked.
    fn elapsed(&self) -> Duration {
        self.parts.worked + self.started.elapsed()
    }

    /// Handles an input, together with the texts that wait.
    fn step(&mut self, input: Input) -> Step {
        let (SessionParts { machine, inbox, .. }, seen) = (&mut self.parts, &mut self.seen);
        inbox.decide(|waiting, steering| {
            *seen = steering;
            machine.set_waiting(waiting);
            let step = machine.step(input);
            let ends = matches!(step.action, Action::End(_));
            (step, ends)
        })
    }

    async fn drive(&mut self, mut step: Step) -> Result<End, RecordError> {
        loop {
            for event in std::mem::take(&mut step.events) {
                self.parts.sink.record(event).await?;
            }
            let input = match step.action {
                Action::End(end) => return Ok(end),
                Action::CallModel if std::mem::take(&mut self.repeats) => self.call_model().await?,
                Action::CallModel => match self.parts.inbox.take(TextKind::Steering).await {
                    Some(text) => Input::Steer(text),
                    None => self.call_model().await?,
                },
                Action::NextInput => match self.parts.inbox.take(TextKind::FollowUp).await {
                    Some(text) => Input::Submit(text, InputSource::FollowUp),
                    None => self.call_model().await?,
                },
                Action::RunCalls(calls) => self.run_calls(calls, &BTreeSet::new()).await?,
                Action::Verify { round, done } => {
                    match self.parts.verifier.verify(round, done).await? {
                        Some(checks) => Input::Verified(checks),
                        None => Input::Stop(self.parts.stop.reason().await),
                    }
                }
            };
            self.take_broken_off();
            let uncounted = std::mem::take(&mut *locked(&self.uncounted));
            self.parts.machine.charge(&uncounted);
            if let Input::Stop(StopReason::Interrupted) = input
                && self.parts.may_suspend
            {
                return Ok(self.suspended());
            }
            step = self.step(input);
        }
    }

    /// Returns the usage of the model calls that broke off since the last call of this method, and adds
    /// it to `uncounted`.
    fn take_broken_off(&self) -> BrokenOff {
        let broken_off = std::mem::take(&mut *locked(&self.broken_off));
        locked(&self.uncounted).add(&broken_off);
        broken_off
    }

    /// Tells whether the daemon is stopping and the session is to be suspended.
    fn is_suspending(&self) -> bool {
        let given = self.parts.stop.given();
        self.parts.may_suspend && given.is_some_and(|stop| stop.reason == StopReason::Interrupted)
    }

    fn suspended(&self) -> End {
        self.is_suspended.store(true, Ordering::Relaxed);
        End { stop_reason: StopReason::Interrupted, result: None, answer: None, error: None }
    }

    async fn call_model(&self) -> Result<Input, RecordError> {
        tokio::select! {
            biased;
            reason = self.parts.stop.reason() => {
                self.note_cut(reason);
                Ok(Input::Stop(reason))
            }
            input = self.call_with_fallbacks() => input,
        }
    }

    async fn call_with_retries(&self, model: &ModelInUse) -> Result<Input, RecordError> {
        let wait = Arc::new(ModelWait::new(&model.name));
        self.begin_call(model, wait.clone());
        tokio::select! {
            biased;
            input = self.make_attempts(model, &wait) => input,
            never = self.parts.waits.list(&self.parts.run_id, wait.clone()) => match never {},
        }
    }

    async fn make_attempts(
        &self,
        model: &ModelInUse,
        wait: &ModelWait,
    ) -> Result<Input, RecordError> {
        let retries = usize::try_from(model.max_retries).unwrap_or(usize::MAX);
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(RETRY_PAUSE.0)
            .with_max_delay(RETRY_PAUSE.1)
            .with_max_times(retries)
            .build();
        let mut loading = None;
        loop {
            let started = Instant::now();
            wait.begin_attempt();
            let deltas = Deltas {
                sink: self.parts.sink.as_ref(),
                wait,
                started,
                first_ms: AtomicU64::new(u64::MAX),
                bytes: AtomicU64::new(0),
                stopped: Mutex::default(),
            };
            let error = match self.attempt(model, &deltas).await {
                Ok(reply) => {
                    let unknown = locked(&deltas.stopped).take();
                    if let Some(word) = unknown {
                        let message = format!(
                            "`{}` stopped for a reason that dutyd does not know: {word}",
                            model.name
                        );
                        self.parts.sink.record(Event::warning("stop_reason", message)).await?;
                    }
                    let first = deltas.first_ms.load(Ordering::Relaxed);
                    return Ok(Input::Reply {
                        reply: Box::new(reply),
                        latency_ms: millis(started.elapsed()),
                        first_token_ms: (first != u64::MAX).then_some(first),
                        model: self.facts_of(model),
                        model_name: model.name.clone(),
                        recorded: None,
                        elapsed: Duration::from_millis(millis(self.elapsed())),
                    });
                }
                Err(error) => error,
            };
            self.note_attempt(&error);
            if let Some(parameter) = error.dropped {
                let broken_off = self.take_broken_off();
                let warning = broken_off.drop_warning(&model.name, parameter, &error.message);
                self.parts.sink.record(warning).await?;
                continue;
            }
            if error.class == ErrorClass::Loading
                && self.await_loading(&error, &mut loading).await?
            {
                continue;
            }
            let may_retry = error.class.is_retryable()
                && !matches!(error.class, ErrorClass::BadToolGeneration | ErrorClass::Loading)
                && !error.has_long_pause();
            let Some(pause) = may_retry.then(|| pauses.next()).flatten() else {
                return Ok(Input::ModelFailed(error));
            };
            // Half of the pause is random, so that jobs that failed together do not retry together.
            // The other half is fixed, so that pauses grow.
            let pause = pause
                .mul_f64(f64::midpoint(1.0, fastrand::f64()))
                .max(error.retry_after.unwrap_or_default());
            let message = format!(
                "{}: {}; retrying in {} ms",
                error.class.as_str(),
                error.message,
                pause.as_millis()
            );
            let warning = self.take_broken_off().warning("model_retry", message);
            self.parts.sink.record(warning).await?;
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits before the next request to a server that still loads its model; warns the first time.
    /// `until` keeps the end of the wait. Returns false after it, or if the server asks for too long a
    /// pause.
    async fn await_loading(
        &self,
        error: &ModelError,
        until: &mut Option<Instant>,
    ) -> Result<bool, RecordError> {
        if error.has_long_pause() {
            return Ok(false);
        }
        let now = Instant::now();
        if until.is_none() {
            let (most, pause) = (LOADING.0.as_secs(), LOADING.1.as_secs());
            let message = format!("{}; asking every {pause} s, for up to {most} s", error.message);
            let warning = self.take_broken_off().warning("model_loading", message);
            self.parts.sink.record(warning).await?;
        }
        if now >= *until.get_or_insert(now + LOADING.0) {
            return Ok(false);
        }
        tokio::time::sleep(LOADING.1.max(error.retry_after.unwrap_or_default())).await;
        Ok(true)
    }

    /// Returns what the loop knows about a model now.
    fn facts_of(&self, model: &ModelInUse) -> ModelFacts {
        let now = self.parts.clock.now();
        ModelFacts { price: model.prices.as_ref().and_then(|prices| prices.at(now)), ..model.facts }
    }

    async fn attempt(
        &self,
        model: &ModelInUse,
        deltas: &Deltas<'_>,
    ) -> Result<ModelReply, ModelError> {
        let machine = &self.parts.machine;
        let price = self.facts_of(model).price;
        let request = ModelRequest {
            system: &machine.system().text,
            stable: machine.system().stable,
            parallel_calls: model.parallel_calls,
            history: machine.history(),
            tools: machine.toolbox().offered(),
            max_output_tokens: machine.reply_limit(price),
            follows_cut: machine.follows_cut(),
            output_schema: machine.rules().output_schema.as_ref(),
            input_tokens: machine.estimate(),
        };
        self.parts.sink.live(LiveEvent::AssistantTextStart);
        let mut attempt = Attempt {
            input_tokens: request.input_tokens,
            price,
            deltas,
            broken_off: &self.broken_off,
            may_have_cost: true,
        };
        let answer = model.model.call(request, deltas).await;
        attempt.may_have_cost = answer.as_ref().is_err_and(|error| error.class.is_broken_off());
        answer
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
