//! The resources of a run from its first line to its last, for a session and for `apply`: the
//! record, the directory, the tools, the connection, and the signal that ends the run from outside.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::{millionths, reserve};
use super::controls::Controls;
use super::ended::{Ended, RunExit, session_end};
use super::history::RunHistory;
use super::host::{Host, RunError};
use super::mcp::{ServerReady, Servers, usable_servers};
use super::notices::{Notices, notice_of_end};
use super::preflight::connect;
use super::sink::RunSink;
use super::spec::RunSpec;
use super::temporary::TemporaryWatch;
use super::tool_context::{Links, tool_context, toolbox};
use crate::agent::{EventSink as _, Inbox, SessionResult, StopSignal, Toolbox};
use crate::config::McpTransport;
use crate::domain::{
    Event, Outcome, PreflightItem, ProjectDocument, RunId, SandboxFacts, SessionEnd, SessionStart,
    Stop, StopReason,
};
use crate::process::{HostWork, HostWorkError, landlock_abi};
use crate::sinks::Observed;
use crate::store::{EndFacts, GivenUp, RunDir, RunLock, Transcript, TranscriptFacts};
use crate::text::redact::{Redacted, Redactor};
use crate::tools::{Connection, ToolContext};

/// What a resumed run has from before.
pub(super) struct Continued<'a> {
    pub(super) lock: RunLock,
    /// How long it has worked.
    pub(super) worked: Duration,
    pub(super) history: &'a RunHistory,
}

/// A run that has started. [`RunScope::end`] releases its resources.
pub(super) struct RunScope {
    pub(super) spec: RunSpec,
    pub(super) host: Host,
    pub(super) directory: RunDir,
    pub(super) sink: Arc<RunSink>,
    pub(super) ctx: Arc<ToolContext>,
    pub(super) toolbox: Arc<Toolbox>,
    /// How long the run had worked before this scope began.
    pub(super) worked: Duration,
    started: Instant,
    /// Signals that the run must end: somebody stopped it, `max_duration` has passed, or its
    /// temporary directory is too large.
    pub(super) stop: StopSignal,
    /// The texts that people give to the run.
    pub(super) inbox: Inbox,
    lock: RunLock,
    /// Why the directories of the job could not be resolved, if a file system gives no answer.
    pub(super) hangs: Option<HostWorkError>,
    servers: Servers,
    connection: Option<Connection>,
    _watch: TemporaryWatch,
}

impl RunScope {
    /// Creates what a run needs before its first line, or before its next line if it is resumed.
    ///
    /// *Errors*: [`RunError::State`], [`RunError::OverBudget`], [`RunError::Ledger`].
    pub(super) async fn begin(
        spec: RunSpec,
        host: Host,
        controls: Controls,
        continued: Option<Continued<'_>>,
    ) -> Result<Self, RunError> {
        let Controls { stop, inbox } = controls;
        let began = host.clock.now();
        let started = Instant::now();
        let state_error =
            |error: io::Error| RunError::State { path: host.state.root().to_path_buf(), error };
        host.state.create().map_err(state_error)?;
        // Beside a record, a missing ledger is a lost one, so make a new ledger before the first record.
        // `finish` reports an error.
        let _ = host.ledger.get().await;
        let (lock, row, worked, has_started_change, answer) = match continued {
            Some(Continued { lock, worked, history }) => {
                let row = Some(history.summary().clone());
                (lock, row, worked, history.has_started_change, history.precheck.answer())
            }
            None => {
                let lock = host
                    .state
                    .lock_run(&spec.run_id, spec.job.name.as_str())
                    .map_err(state_error)?;
                // `apply` calls no model.
                if spec.plan_id.is_none()
                    && let Err(error) = reserve(&spec.job, &spec.run_id, &host).await
                {
                    lock.close().map_err(state_error)?;
                    return Err(error);
                }
                (lock, None, Duration::ZERO, false, None)
            }
        };
        keep_config(&spec, &host).map_err(state_error)?;
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
            notices: Notices { spec: spec.clone(), host: host.clone(), redactor: redactor.clone() },
            redactor: redactor.clone(),
            has_started_change: AtomicBool::new(has_started_change),
            precheck: Mutex::new(answer),
            row: Mutex::new(row),
        });
        let (ctx, hangs) =
            context(&spec, &host, &directory, redactor, &stop).await.map_err(state_error)?;
        let limits = &spec.job.limits;
        let watch = TemporaryWatch::new(
            host.state.clone(),
            spec.run_id.clone(),
            limits.max_tmp_bytes,
            ctx.programs.spawner.clone(),
            stop,
        );
        let stop = StopSignal::new(
            watch.stop.clone(),
            started + limits.max_duration.saturating_sub(worked),
        );
        let toolbox = toolbox(&spec.config, &spec.job, &ctx, Vec::new(), spec.person_can_allow());
        Ok(Self {
            toolbox: Arc::new(toolbox),
            connection: None,
            _watch: watch,
            spec,
            host,
            directory,
            sink,
            ctx,
            worked,
            started,
            stop,
            inbox,
            lock,
            hangs,
            servers: Servers::default(),
        })
    }

    /// Returns what tells people of events of the run.
    pub(super) fn notices(&self) -> Notices {
        self.sink.notices.clone()
    }

    /// Tells whether the daemon is stopping and the run is to be suspended.
    pub(super) fn is_suspending(&self) -> bool {
        let given = self.stop.given();
        self.spec.may_suspend() && given.is_some_and(|stop| stop.reason == StopReason::Interrupted)
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
        self.record(Event::SessionStart(Box::new(start))).await?;
        let synced = self.host.state.sync_run(&self.directory).await;
        synced.map_err(|error| RunError::Record(error.to_string()))
    }

    /// Starts the MCP servers of the run and adds their tools. Records each server before it starts,
    /// and what became of it. Gives up once the run must end.
    ///
    /// *Errors*: [`RunError::Record`].
    pub(super) async fn start_servers(&mut self) -> Result<(), RunError> {
        let (spec, ctx) = (&self.spec, &self.ctx);
        let (mode, has_person) = (spec.mode, spec.person_can_allow());
        let usable_servers = usable_servers(&spec.config, &spec.job, mode, has_person);
        if usable_servers.is_empty() || self.hangs.is_some() {
            return Ok(());
        }
        for (server, category) in usable_servers {
            let (argv, url) = match &server.transport {
                McpTransport::Stdio { program, args, .. } => {
                    let written = std::iter::once(&program.written).chain(args);
                    (Some(written.cloned().collect()), None)
                }
                McpTransport::Http { url, .. } => (None, Some(url.clone())),
            };
            let sandboxed = argv.is_some() && ctx.programs.sandboxes.are_on();
            let server = server.name.clone();
            self.record(Event::McpServerStart { server, argv, url, category, sandboxed }).await?;
        }
        let mut servers = tokio::select! {
            servers = Servers::start(&spec.config, &spec.job, mode, has_person, &self.host, ctx) => servers,
            // The caller notices that the run must end.
            _ = self.stop.reason() => Servers::default(),
        };
        // The warnings say why a server cannot be used, before anything says that it is ready.
        for warning in &servers.warnings {
            self.record(Event::warning(warning.code, warning.message.clone())).await?;
        }
        for ServerReady { server, tools, error } in std::mem::take(&mut servers.ready) {
            self.record(Event::McpServerReady { server, tools, error }).await?;
        }
        let tools = std::mem::take(&mut servers.tools);
        let toolbox = toolbox(&spec.config, &spec.job, ctx, tools, spec.person_can_allow());
        self.toolbox = Arc::new(toolbox);
        self.servers = servers;
        Ok(())
    }

    /// Runs work on files of this host. Fails at once if the directories of the job gave no answer
    /// earlier, and stops waiting once the run must end.
    ///
    /// *Errors*: [`HostWorkError`].
    pub(super) async fn on_host<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostWorkError> {
        if let Some(error) = self.hangs {
            return Err(error);
        }
        tokio::select! {
            done = self.ctx.host_work.run(work) => done,
            _ = self.stop.reason() => Err(HostWorkError::Late),
        }
    }

    /// Records an event before the work starts.
    ///
    /// *Errors*: [`RunError::Record`].
    pub(super) async fn record(&self, event: Event) -> Result<(), RunError> {
        self.sink.record(event).await.map_err(|error| RunError::Record(error.0))
    }

    /// Connects to the execution target, if the tools do not run on this host. Gives up once the
    /// run must end. Returns items for the checklist.
    pub(super) async fn connect(&mut self) -> Vec<PreflightItem> {
        let connected = connect(&self.spec.config, &self.spec.job, &self.ctx, &self.toolbox);
        let (connection, items) = tokio::select! {
            connected = connected => connected,
            _ = self.stop.reason() => (None, Vec::new()),
        };
        self.connection = connection;
        items
    }

    /// Ends the servers, the connection and all remaining processes, then the record. If the stop of
    /// the daemon suspended the session, the run stays open instead.
    pub(super) async fn end(self, mut result: SessionResult) -> Ended {
        let not_taken = self.refuse_texts().await;
        drop(self.toolbox);
        result.survivors += self.servers.end().await;
        if let Some(connection) = self.connection {
            result.survivors += connection.end().await;
        }
        if let Some(left) = self.ctx.programs.spawner.end().await {
            result.survivors = left;
        }
        let by = self.stop.given().and_then(|stop| stop.by);
        let worked = self.worked + self.started.elapsed();
        let end = session_end(&result, worked, by, &self.ctx.redactor);
        let outages = std::mem::take(&mut result.outages);
        if result.is_suspended {
            let reason = "the daemon stopped; the run continues at its next start".to_owned();
            if let Err(error) = self.sink.record(Event::SessionSuspended { reason }).await {
                let run_id = &self.spec.run_id;
                tracing::warn!(%run_id, error = %error.0, "failed to record that a run is suspended; the next start takes that for a crash");
            }
            return Ended {
                run_id: self.spec.run_id,
                end,
                exit: RunExit::Suspended,
                has_started_change: self.sink.has_started_change.load(Ordering::Relaxed),
                row: None,
                record_end: None,
                outages: Vec::new(),
            };
        }
        if let Some(warning) = not_taken {
            // A transcript that cannot be written fails at its last line.
            let _ = self.sink.record(warning).await;
        }
        let is_good = matches!(end.outcome, Outcome::Succeeded | Outcome::Planned);
        let answer = self.sink.precheck_answer().filter(|_| is_good);
        let facts = EndFacts {
            precheck: answer.map(|answer| (self.spec.job.name.to_string(), answer)),
            cost_micro_usd: end.cost_usd.map(millionths),
            notice: self.spec.is_told().then(|| {
                let job = self.spec.job.name.clone();
                notice_of_end(&self.spec.run_id, job, &end, self.host.clock.now())
            }),
        };
        let ended = finish(&self.spec.run_id, facts, &self.host, &self.sink, self.lock, end).await;
        Ended { outages, ..ended }
    }
}

/// Returns the context of the tools of a run. If a file system of this host gives no answer, or the
/// run must end, leaves the links in paths as they are, and returns why.
async fn context(
    spec: &RunSpec,
    host: &Host,
    directory: &RunDir,
    redactor: Redactor,
    stop: &watch::Receiver<Option<Stop>>,
) -> io::Result<(Arc<ToolContext>, Option<HostWorkError>)> {
    let build = |links| {
        let (config, job, host) = (spec.config.clone(), spec.job.clone(), host.clone());
        let (run_id, outputs) = (spec.run_id.clone(), Some(directory.clone()));
        let redactor = redactor.clone();
        move || tool_context(&config, &job, &host, &run_id, outputs, redactor, links)
    };
    let host_work = HostWork::of(spec.job.name.as_str());
    let mut stop = stop.clone();
    let built = tokio::select! {
        built = host_work.run(build(Links::Resolved)) => built,
        _ = stop.wait_for(Option::is_some) => Err(HostWorkError::Late),
    };
    match built {
        Ok(ctx) => Ok((ctx?, None)),
        Err(error) => Ok((build(Links::AsWritten)()?, Some(error))),
    }
}

/// Ends a run: writes the last line of the transcript, the end of the record into the ledger, and
/// the row into the index, then removes the lock file. If one of these fails, the lock file stays,
/// and the next start of the daemon fills in what is missing.
async fn finish(
    run_id: &RunId,
    facts: EndFacts,
    host: &Host,
    sink: &RunSink,
    lock: RunLock,
    end: Redacted<SessionEnd>,
) -> Ended {
    if let Err(error) = host.state.remove_temporary(run_id).await {
        tracing::warn!(%run_id, %error, "failed to remove the temporary directory of a run; the next start removes it");
    }
    let (record_end, row) = match sink.record_end(&end).await {
        Ok(written) => written,
        Err(error) => {
            tracing::error!(%run_id, error = %error.0, "failed to write the end of a run to its transcript");
            give_up(run_id, host, format!("its transcript could not be written: {}", error.0))
                .await;
            return Ended {
                run_id: run_id.clone(),
                end,
                exit: RunExit::RecordFailed,
                has_started_change: sink.has_started_change.load(Ordering::Relaxed),
                row: None,
                record_end: None,
                outages: Vec::new(),
            };
        }
    };
    let kept = match host.ledger.get().await {
        Ok(ledger) => ledger.keep_record_end(run_id.clone(), record_end.clone(), facts).await,
        Err(error) => Err(error),
    };
    // The lock file stays until the rest is complete.
    let completed = match (kept, row.clone()) {
        (Ok(()), Some(row)) => match host.index.get().await {
            Ok(index) => index.take(row).await,
            Err(error) => Err(error),
        },
        (kept, _) => kept,
    };
    let exit = match completed {
        Ok(()) => {
            if let Err(error) = lock.close() {
                tracing::warn!(%run_id, %error, "failed to remove the lock file of an ended run; the next start removes it");
            }
            RunExit::Complete
        }
        Err(error) => {
            tracing::error!(%run_id, %error, "failed to write the end of a run to the ledger or the index; the next start tries again");
            RunExit::EndUnrecorded(error.to_string())
        }
    };
    Ended {
        run_id: run_id.clone(),
        end,
        exit,
        has_started_change: sink.has_started_change.load(Ordering::Relaxed),
        row,
        record_end: Some(record_end),
        outages: Vec::new(),
    }
}

/// Records that a run is over although its transcript has no end, so that it is not resumed.
pub(super) async fn give_up(run_id: &RunId, host: &Host, reason: String) {
    let given_up = match host.ledger.get().await {
        Ok(ledger) => ledger.give_up(run_id.clone(), GivenUp::interrupted(reason)).await,
        Err(error) => Err(error),
    };
    if let Err(error) = given_up {
        tracing::error!(%run_id, %error, "failed to record that a run is over; the next start may resume it");
    }
}

/// Keeps the configuration of a run, with which the run continues after a crash.
fn keep_config(spec: &RunSpec, host: &Host) -> io::Result<()> {
    let content = || serde_json::to_vec(&*spec.config.files).unwrap_or_default();
    host.state.keep_config(&spec.config.digest, content)
}

/// Returns the date for the directory of a run: the moment that its id contains, or `now` if the id
/// contains none.
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
        origin: spec.origin.clone(),
        plan_id: spec.plan_id.clone(),
        mode: spec.mode.as_str().to_owned(),
        vars: spec.vars.clone(),
        interactive: spec.has_person,
        overrides: spec.overrides.clone(),
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
        environment: ctx.programs.execution.name(),
        sandbox: SandboxFacts {
            mode: spec.job.sandbox.as_str().to_owned(),
            landlock_abi: landlock_abi().filter(|_| ctx.is_sandboxed()),
            cgroup: ctx.programs.spawner.group().map(str::to_owned),
        },
        dutyd_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host_name(),
        documents: None,
    }
}

/// Returns the name of this host.
#[must_use]
pub fn host_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
