//! What a run holds from its first line to its last, whether a session works in it or `apply`: the record, the directory, the tools, the
//! connection, and what ends it from outside.

use std::io;
use std::sync::{Arc, Mutex};

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ended::{Ended, session_end};
use super::host::{Host, RunError};
use super::mcp::Servers;
use super::preflight::connect;
use super::sink::RunSink;
use super::spec::RunSpec;
use super::temporary::TemporaryWatch;
use super::tool_context::{tool_context, toolbox};
use crate::agent::{EventSink as _, SessionResult, StopSignal, Toolbox};
use crate::domain::{
    Event, PreflightItem, ProjectDocument, RunId, SandboxFacts, SessionEnd, SessionStart, Stop,
};
use crate::process::landlock_abi;
use crate::sinks::Observed;
use crate::store::{RunDir, RunLock, Transcript, TranscriptFacts};
use crate::text::redact::{Redacted, Redactor};
use crate::tools::{Connection, ToolContext};

/// A run that has begun. [`RunScope::end`] gives back what it holds.
pub(super) struct RunScope {
    pub(super) spec: RunSpec,
    pub(super) host: Host,
    pub(super) directory: RunDir,
    pub(super) sink: Arc<RunSink>,
    pub(super) ctx: Arc<ToolContext>,
    pub(super) toolbox: Arc<Toolbox>,
    pub(super) started: Instant,
    /// Tells when the run is to end: somebody stops it, `max_duration` is over, or its temporary directory is too large.
    pub(super) stop: StopSignal,
    lock: RunLock,
    servers: Servers,
    connection: Option<Connection>,
    _watch: TemporaryWatch,
}

impl RunScope {
    /// Makes everything that a run needs before its first line, and starts its MCP servers. `stop` holds a stop reason as soon as the run is to end.
    ///
    /// *Errors*: [`RunError::State`].
    pub(super) async fn begin(
        spec: RunSpec,
        host: Host,
        stop: watch::Receiver<Option<Stop>>,
    ) -> Result<Self, RunError> {
        let began = host.clock.now();
        let started = Instant::now();
        let state_error =
            |error: io::Error| RunError::State { path: host.state.root().to_path_buf(), error };
        host.state.create().map_err(state_error)?;
        let lock = host.state.lock_run(&spec.run_id).map_err(state_error)?;
        let directory = host
            .state
            .create_run(&spec.run_id, run_date(&spec.run_id, began))
            .map_err(state_error)?;
        let redactor = Redactor::new(&spec.config.secrets);
        let transcript =
            open_transcript(&spec, &host, &directory, &redactor).map_err(state_error)?;
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
            &host,
            &spec.run_id,
            Some(directory.clone()),
            redactor,
        )
        .map_err(state_error)?;
        let limits = &spec.job.limits;
        let watch = TemporaryWatch::new(
            host.state.clone(),
            spec.run_id.clone(),
            limits.max_tmp_bytes,
            stop,
        );
        let stop = StopSignal::new(watch.stop.clone(), started + limits.max_duration);
        let modes = (spec.mode, spec.is_answered());
        let mut servers = tokio::select! {
            servers = Servers::start(&spec.config, &spec.job, modes, &host, &ctx) => servers,
            // Whoever works in the run notices that it is to end.
            _ = stop.reason() => Servers::default(),
        };
        let of_servers = std::mem::take(&mut servers.tools);
        let toolbox = toolbox(&spec.config, &spec.job, &ctx, of_servers, spec.is_answered());
        Ok(Self {
            toolbox: Arc::new(toolbox),
            connection: None,
            _watch: watch,
            spec,
            host,
            directory,
            sink,
            ctx,
            started,
            stop,
            lock,
            servers,
        })
    }

    /// Records the first line of the run.
    ///
    /// *Errors*: [`RunError::Record`].
    pub(super) async fn record_start(
        &self,
        documents: Option<Vec<ProjectDocument>>,
    ) -> Result<(), RunError> {
        let mut start = session_start(&self.spec, &self.toolbox, &self.ctx);
        start.documents = documents;
        self.record(Event::SessionStart(Box::new(start))).await
    }

    /// Records what the MCP servers could not do.
    ///
    /// *Errors*: [`RunError::Record`].
    pub(super) async fn record_server_warnings(&self) -> Result<(), RunError> {
        for warning in &self.servers.warnings {
            self.record(Event::warning(warning.code, warning.message.clone())).await?;
        }
        Ok(())
    }

    /// Records an event of the time before the work begins.
    ///
    /// *Errors*: [`RunError::Record`].
    pub(super) async fn record(&self, event: Event) -> Result<(), RunError> {
        self.sink.record(event).await.map_err(|error| RunError::Record(error.0))
    }

    /// Connects to where the tools run, if that is another place, until the run is to end. Returns what is to be said of it in the checklist.
    pub(super) async fn connect(&mut self) -> Vec<PreflightItem> {
        let connected = connect(&self.spec.config, &self.spec.job, &self.ctx, &self.toolbox);
        let (connection, items) = tokio::select! {
            connected = connected => connected,
            _ = self.stop.reason() => (None, Vec::new()),
        };
        self.connection = connection;
        items
    }

    /// Ends servers, connection and whatever is left of processes, then the record.
    pub(super) async fn end(self, mut result: SessionResult) -> Ended {
        drop(self.toolbox);
        result.survivors += self.servers.end().await;
        if let Some(connection) = self.connection {
            result.survivors += connection.end().await;
        }
        if let Some(left) = self.ctx.spawner.end().await {
            result.survivors = left;
        }
        let by = self.stop.given().and_then(|stop| stop.by);
        let end = session_end(&result, self.started, by, &self.ctx.redactor);
        finish(&self.spec.run_id, &self.host, &self.sink, self.lock, end).await
    }
}

/// Ends a run: writes its last line, its end into the ledger and its row into the index, then removes its lock file. If one of the first two
/// fails, the lock file stays, and the next start fills in what is missing.
async fn finish(
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

fn session_start(spec: &RunSpec, toolbox: &Toolbox, ctx: &ToolContext) -> SessionStart {
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
