//! A run from its first line to its last.
//!
//! Whatever happens in between — a panic included — the transcript ends with `session_end`, as long as it can be written at all.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::time::Instant;

use super::approvals::{Approvals, SocketApprover};
use super::documents::change_warnings;
use super::ended::{Ended, ended_early, session_end};
use super::mcp::Servers;
use super::models::models;
use super::preflight::{connect, may_begin, preflight};
use super::prompt::{documents, prompt};
use super::sink::RunSink;
use super::spec::RunSpec;
use super::temporary::TemporaryWatch;
use super::tool_context::{gate_rules, tool_context, toolbox};
use crate::agent::{
    Approver, End, EventSink, Machine, Marker, Rules, Session, SessionParts, SessionResult,
    SystemPrompt, Toolbox,
};
use crate::clock::Clock;
use crate::config::Environment;
use crate::domain::{
    Event, KeptStep, Plan, PlanState, PlanStep, PreflightItem, RunId, SandboxFacts, SessionEnd,
    SessionStart, Stop, StopReason,
};
use crate::gate::GateRules;
use crate::process::{ControlGroups, ForkServer, landlock_abi};
use crate::sinks::{Observed, Observers};
use crate::store::{
    RunDir, RunLock, SharedIndex, SharedLedger, StateDir, Transcript, TranscriptFacts,
};
use crate::text::redact::{Redacted, Redactor};
use crate::tools::ToolContext;

/// What runs share with each other: the machine they run on.
#[derive(Clone)]
pub struct Host {
    /// Where they are kept.
    pub state: StateDir,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// The daemon's environment.
    pub environment: Environment,
    /// Starts the processes of tools.
    pub fork_server: Arc<ForkServer>,
    /// Where what a run starts is kept together, if the system leaves that to this process.
    pub groups: Option<Arc<ControlGroups>>,
    /// Who watches.
    pub observers: Observers,
    /// Asks a person.
    pub approver: Arc<dyn Approver>,
    /// The one writer of the ledger.
    pub ledger: SharedLedger,
    /// The one writer of the index.
    pub index: SharedIndex,
}

impl Host {
    /// Returns a host of this process; approvals wait in `approvals`.
    #[must_use]
    pub fn new(
        state: StateDir,
        clock: Arc<dyn Clock>,
        environment: Environment,
        observers: Observers,
        approvals: Arc<Approvals>,
    ) -> Self {
        Self {
            ledger: SharedLedger::of(state.root()),
            index: SharedIndex::of(&state),
            state,
            environment,
            fork_server: Arc::new(ForkServer::of_this_binary()),
            groups: None,
            observers,
            approver: Arc::new(SocketApprover::new(approvals, clock.clone())),
            clock,
        }
    }
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its directory, lock file or transcript cannot be made.
    #[error("the run cannot be recorded in {path}: {error}")]
    State {
        /// The state directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Its first line cannot be written.
    #[error("the transcript cannot be written: {0}")]
    Record(String),
    /// A fault of ours.
    #[error("a fault of dutyd ended it; the log says more")]
    Panicked,
}

/// Runs `spec` to its end. `stop` holds a stop reason as soon as the run is to end.
///
/// *Errors*: [`RunError`]; then no model was called and no tool was started. *Cancel*: through `stop`.
pub async fn execute(
    spec: RunSpec,
    host: Host,
    stop: watch::Receiver<Option<Stop>>,
) -> Result<Ended, RunError> {
    let Begun { lock, directory, sink, ctx, started } = begin(&spec, &host)?;
    let mut stopped = stop.clone();
    let mut servers = tokio::select! {
        servers = Servers::start(&spec.config, &spec.job, (spec.mode, spec.is_answered()), &host, &ctx) => servers,
        // The session notices for itself that it is to end.
        _ = stopped.wait_for(Option::is_some) => Servers::default(),
    };
    let of_servers = std::mem::take(&mut servers.tools);
    let toolbox = Arc::new(toolbox(&spec.config, &spec.job, &ctx, of_servers, spec.is_answered()));
    let documents = documents(&spec, &ctx);
    let mut start = session_start(&spec, &toolbox, &ctx);
    start.documents = Some(documents.found.clone());
    sink.record(Event::SessionStart(Box::new(start)))
        .await
        .map_err(|error| RunError::Record(error.0))?;
    if spec.is_queued {
        leave_queue(&spec.run_id, &host).await;
    }
    for message in change_warnings(&spec, &host, &documents.found).await {
        let event = Event::warning("project_document", message);
        sink.record(event).await.map_err(|error| RunError::Record(error.0))?;
    }
    for warning in &servers.warnings {
        let event = Event::warning(warning.code, warning.message.clone());
        sink.record(event).await.map_err(|error| RunError::Record(error.0))?;
    }

    if let (crate::config::SandboxMode::BestEffort, Err(error)) =
        (spec.job.sandbox, crate::process::sandbox_support())
    {
        let message = format!("tools are not held by the kernel: {error}");
        let event = Event::warning("sandbox", message);
        sink.record(event).await.map_err(|error| RunError::Record(error.0))?;
    }
    let (connection, found) = tokio::select! {
        connected = connect(&spec.config, &spec.job, &ctx, &toolbox) => connected,
        _ = stopped.wait_for(Option::is_some) => (None, Vec::new()),
    };
    let mut items = preflight(&spec.config, &spec.job, &ctx, &toolbox);
    items.extend(found);
    let is_recorded = !(spec.job.policy.write.is_empty() && spec.job.policy.admin.is_empty())
        || items.iter().any(|item| !item.ok);
    let may_begin = may_begin(&spec, &host, &items, (&mut stopped, started)).await;
    let result = if may_begin {
        let recorded =
            if is_recorded { sink.record(Event::Preflight { items }).await } else { Ok(()) };
        match recorded {
            Ok(()) => {
                let place = Place { ctx: &ctx, directory: &directory, documents: &documents.text };
                run_session(&spec, &host, toolbox, place, sink.clone(), stop, started).await
            }
            Err(error) => ended_early(StopReason::RecordFailed, error.to_string()),
        }
    } else {
        preflight_failed(items, sink.as_ref()).await
    };
    let mut result = keep_plan(&spec, &host, result).await;
    result.survivors += servers.end().await;
    if let Some(connection) = connection {
        result.survivors += connection.end().await;
    }
    if let Some(left) = ctx.spawner.end().await {
        result.survivors = left;
    }
    let by = stopped.borrow().as_ref().and_then(|stop| stop.by.clone());
    let end = session_end(&result, started, by, &ctx.redactor);
    let ended = finish(&spec.run_id, &host, &sink, lock, end).await;
    if spec.is_queued {
        // Where it could not leave at its start, as on a full disk.
        leave_queue(&spec.run_id, &host).await;
    }
    Ok(ended)
}

/// Removes a run from the queue. Call it after the first line is written, so that a crash in between does not lose the run.
async fn leave_queue(run_id: &RunId, host: &Host) {
    let left = match host.ledger.get().await {
        Ok(ledger) => ledger.dequeue(run_id.clone()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = left {
        tracing::warn!(%run_id, %error, "failed to remove a started run from the queue");
    }
}

/// Ends a run: writes its last line, its end into the ledger and its row into the index, then removes its lock file. If one of the first two
/// fails, the lock file stays, and the next start fills in what is missing.
pub(super) async fn finish(
    run_id: &RunId,
    host: &Host,
    sink: &RunSink,
    lock: RunLock,
    end: Redacted<SessionEnd>,
) -> Ended {
    if let Err(error) = host.state.remove_temporary(run_id).await {
        tracing::warn!(%run_id, %error, "the temporary directory of a run stays; the next start takes it away");
    }
    let (record_end, row) = match sink.record_end(&end).await {
        Ok(written) => written,
        Err(error) => {
            tracing::error!(%run_id, error = %error.0, "the end of a run is not in its transcript");
            return Ended { run_id: run_id.clone(), end, recorded: false, row: None };
        }
    };
    let kept = match host.ledger.get().await {
        Ok(ledger) => ledger.keep_record_end(run_id.clone(), record_end).await,
        Err(error) => Err(error),
    };
    if let Some(row) = row.clone() {
        let taken = match host.index.get().await {
            Ok(index) => index.take(row).await,
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            tracing::warn!(%run_id, %error, "the run is not in the index; `dutyd reindex` brings it in");
        }
    }
    match kept {
        Ok(()) => {
            if let Err(error) = lock.close() {
                tracing::warn!(%run_id, %error, "cannot remove the lock file of an ended run; the next start removes it");
            }
        }
        Err(error) => {
            tracing::error!(%run_id, %error, "the ledger does not know where the record of a run ends; the next start tries again");
        }
    }
    Ended { run_id: run_id.clone(), end, recorded: true, row }
}

/// Keeps what the run planned, before its last line says that a plan waits.
async fn keep_plan(spec: &RunSpec, host: &Host, result: SessionResult) -> SessionResult {
    if result.end.stop_reason != StopReason::Planned {
        return result;
    }
    let waiting = |step: &PlanStep| KeptStep { step: step.clone(), state: PlanState::Waiting };
    let plan = Plan {
        plan_id: spec.run_id.to_string(),
        job: spec.job.name.to_string(),
        run_id: spec.run_id.to_string(),
        created_at: host.clock.now(),
        state: PlanState::Waiting,
        steps: result.changes.steps.iter().map(waiting).collect(),
        reads: result.changes.reads.clone(),
    };
    let kept = match host.ledger.get().await {
        Ok(ledger) => ledger.keep_plan(plan).await,
        Err(error) => Err(error),
    };
    match kept {
        Ok(()) => result,
        Err(error) => {
            let error = format!("the plan cannot be kept: {error}");
            let end =
                End { stop_reason: StopReason::RecordFailed, error: Some(error), ..result.end };
            SessionResult { end, ..result }
        }
    }
}

/// A run whose directory, transcript and tool context are made.
pub(super) struct Begun {
    pub(super) lock: RunLock,
    pub(super) directory: RunDir,
    pub(super) sink: Arc<RunSink>,
    pub(super) ctx: Arc<ToolContext>,
    pub(super) started: Instant,
}

/// Makes everything that a run needs before its first line.
///
/// *Errors*: [`RunError::State`].
pub(super) fn begin(spec: &RunSpec, host: &Host) -> Result<Begun, RunError> {
    let began = host.clock.now();
    let started = Instant::now();
    let state_error =
        |error: io::Error| RunError::State { path: host.state.root().to_path_buf(), error };
    host.state.create().map_err(state_error)?;
    let lock = host.state.lock_run(&spec.run_id).map_err(state_error)?;
    let directory =
        host.state.create_run(&spec.run_id, run_date(&spec.run_id, began)).map_err(state_error)?;
    let redactor = Redactor::new(&spec.config.secrets);
    let transcript = open_transcript(spec, host, &directory, &redactor).map_err(state_error)?;
    let sink = Arc::new(RunSink {
        transcript,
        observers: host.observers.clone(),
        run_id: spec.run_id.clone(),
        deltas: Mutex::new(redactor.stream()),
        redactor: redactor.clone(),
        row: Mutex::default(),
    });
    let ctx = tool_context(
        &spec.config,
        &spec.job,
        host,
        &spec.run_id,
        Some(directory.clone()),
        redactor,
    )
    .map_err(state_error)?;
    Ok(Begun { lock, directory, sink, ctx, started })
}

/// Returns the moment that names a run's directory: that of its id.
fn run_date(run_id: &RunId, now: DateTime<Utc>) -> DateTime<Utc> {
    let millis = run_id
        .as_str()
        .parse::<ulid::Ulid>()
        .ok()
        .and_then(|ulid| i64::try_from(ulid.timestamp_ms()).ok());
    millis.and_then(DateTime::from_timestamp_millis).unwrap_or(now)
}

fn open_transcript(
    spec: &RunSpec,
    host: &Host,
    directory: &RunDir,
    redactor: &Redactor,
) -> io::Result<Transcript> {
    let facts = TranscriptFacts {
        run_id: spec.run_id.clone(),
        session_id: spec.run_id.to_string(),
        redactor: redactor.clone(),
        clock: host.clock.clone(),
    };
    let (observers, run_id) = (host.observers.clone(), spec.run_id.clone());
    Transcript::open(&directory.transcript(), facts, move |appended| {
        observers.show(Observed::Line {
            run_id: run_id.clone(),
            seq: appended.seq,
            line: appended.line.clone(),
        });
    })
}

pub(super) fn session_start(spec: &RunSpec, toolbox: &Toolbox, ctx: &ToolContext) -> SessionStart {
    let model = spec.config.model_of(&spec.job);
    SessionStart {
        job: spec.job.name.to_string(),
        trigger: spec.trigger.trigger,
        scheduled_for: spec.trigger.scheduled_for,
        attempt: spec.trigger.attempt,
        overrides: spec.overrides.clone(),
        by: spec.trigger.by.clone(),
        model: model.map(|model| model.model_word().to_owned()).unwrap_or_default(),
        provider: model.map(|model| model.provider_word().to_owned()).unwrap_or_default(),
        profile: model.map(|model| model.profile.name.to_owned()).unwrap_or_default(),
        tools: toolbox
            .offered()
            .iter()
            .map(|tool| toolbox.canonical(&tool.name).to_owned())
            .collect(),
        policy: spec.job.policy.to_json(),
        config_digest: spec.config.digest.clone(),
        environment: ctx.execution.name(),
        sandbox: SandboxFacts {
            mode: spec.job.sandbox.as_str().to_owned(),
            landlock_abi: landlock_abi().filter(|_| ctx.is_sandboxed()),
            cgroup: ctx.spawner.group().map(str::to_owned),
        },
        dutyd_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host_name(),
        documents: None,
    }
}

pub(super) fn host_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Where a run works and is kept.
struct Place<'a> {
    ctx: &'a ToolContext,
    directory: &'a RunDir,
    documents: &'a str,
}

async fn run_session(
    spec: &RunSpec,
    host: &Host,
    toolbox: Arc<Toolbox>,
    place: Place<'_>,
    sink: Arc<RunSink>,
    stop: watch::Receiver<Option<Stop>>,
    started: Instant,
) -> SessionResult {
    let Some(configured) = spec.config.model_of(&spec.job) else {
        return ended_early(StopReason::PreflightFailed, "no model is configured".to_owned());
    };
    let models = match models(spec, host) {
        Ok(models) => models,
        Err(error) => return ended_early(StopReason::ProviderUnavailable, error.message),
    };
    let marker = match place.directory.secret() {
        Ok(secret) => Marker::new(secret),
        Err(error) => {
            let error = format!("the secret of the run cannot be kept: {error}");
            return ended_early(StopReason::RecordFailed, error);
        }
    };
    let rules = Rules {
        mode: spec.mode,
        approval: spec.job.approval,
        gate: GateRules {
            has_person: spec.is_answered(),
            ..gate_rules(&spec.config, &spec.job, place.ctx.paths.clone())
        },
        limits: spec.job.limits.clone(),
        confirm: spec.job.double_confirmation,
        loop_window: spec.job.loop_window,
        context_window: configured.context_window,
        price: configured.price,
    };
    let deadline = started + spec.job.limits.max_duration;
    let (system, words) =
        prompt(spec, host, configured, &toolbox, place.documents, place.ctx, stop.clone()).await;
    let repository = words.map(|words| marker.wrap_repository(&words));
    let system = SystemPrompt { repository, ..system };
    let watched = TemporaryWatch::new(
        host.state.clone(),
        spec.run_id.clone(),
        spec.job.limits.max_tmp_bytes,
        stop,
    );
    let parts = SessionParts {
        machine: Machine::new(rules, toolbox, system),
        models,
        marker,
        sink,
        run_id: spec.run_id.to_string(),
        approver: host.approver.clone(),
        stop: watched.stop.clone(),
        deadline,
    };
    // A task of its own, so that a fault of ours ends this run and no other.
    match tokio::spawn(Session::new(parts).run(spec.task.clone())).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(run_id = %spec.run_id, %error, "a run panicked");
            ended_early(
                StopReason::InternalError,
                "a fault of dutyd ended the run; its log says more".to_owned(),
            )
        }
    }
}

async fn preflight_failed(items: Vec<PreflightItem>, sink: &RunSink) -> SessionResult {
    let failed = items.iter().filter(|item| !item.ok);
    let failed: Vec<_> = failed.map(|item| format!("{}: {}", item.name, item.detail)).collect();
    let why = failed.join("; ");
    match sink.record(Event::Preflight { items }).await {
        Ok(()) => ended_early(StopReason::PreflightFailed, why),
        Err(error) => ended_early(StopReason::RecordFailed, error.to_string()),
    }
}
