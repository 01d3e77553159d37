//! `dutyd serve`: puts daemon and server together.

use std::process::ExitCode;
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::error::CliError;
use super::{log, output};
use crate::clock::Clock;
use crate::config::{Config, Environment, FileSet, Loaded, Report, SecretsMode, Trust, load};
use crate::daemon::{Parts, Supervisor, recover, watch_signals};
use crate::domain::RunId;
use crate::process::ControlGroups;
use crate::run::{Approvals, Host};
use crate::server::{Api, router, serve as serve_socket, socket_path};
use crate::sinks::Observers;
use crate::store::{Index, Ledger, SharedIndex, SharedLedger, StateDir, append_private};
use crate::text::redact::Redactor;

pub(crate) async fn serve(context: &Context) -> Result<ExitCode, CliError> {
    let state = context.state();
    state.create().map_err(|error| {
        CliError::failed(format!("{} cannot be made: {error}", context.dirs.state.display()))
    })?;
    // Before anything else is looked at or changed (STATE-2).
    let _locks = lock(&state)?;
    let config = context.config(Trust::Required)?;
    let redactor = log::LogRedactor::default();
    redactor.add(&config.secrets);
    let log =
        log::start(&config.settings.log, &context.environment, &context.dirs.state, &redactor)?;
    // From here on, what is written to stderr goes through the log: nothing waits for its reader.
    match run(context, config, redactor, &log).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            log.note(&format!("error{}", output::explained(&error)));
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}

/// Runs the daemon until it is told to stop.
async fn run(
    context: &Context,
    config: Arc<Config>,
    redactor: log::LogRedactor,
    log: &log::LogGuard,
) -> Result<(), CliError> {
    crate::process::prepare_daemon()
        .map_err(|error| CliError::failed(format!("the process cannot be prepared: {error}")))?;
    let approvals = Arc::new(Approvals::default());
    let groups = control_groups().map(Arc::new);
    let daemon = Daemon::start(
        Host { groups, ..context.host_with(Observers::default(), approvals.clone()) },
        approvals,
        config,
        reloader(context, redactor),
        &context.environment,
    )
    .await?;
    watch_signals(daemon.commands.clone())
        .map_err(|error| CliError::failed(format!("signals cannot be watched: {error}")))?;
    crate::process::return_freed();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    log.note("ready");
    daemon.run().await;
    tracing::info!("stopped");
    Ok(())
}

/// Takes the control group of this process, if it was left to it.
fn control_groups() -> Option<ControlGroups> {
    match ControlGroups::take() {
        Ok(Some(groups)) => {
            tracing::info!(group = groups.name(), "each run gets a control group of its own");
            Some(groups)
        }
        Ok(None) => {
            tracing::info!(
                "no control group was left to the daemon (Delegate=yes); its shims end what runs start"
            );
            None
        }
        Err(error) => {
            tracing::warn!(%error, "the daemon's control group cannot be used; its shims end what runs start");
            None
        }
    }
}

/// A daemon that is ready to run.
pub(crate) struct Daemon {
    supervisor: Supervisor,
    pub(crate) commands: tokio::sync::mpsc::Sender<crate::daemon::Command>,
    server: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Daemon {
    /// Ends what a daemon before this one left, brings ledger and index up to the present and opens the control socket.
    ///
    /// *Errors*: one of these cannot be done.
    pub(crate) async fn start(
        host: Host,
        approvals: Arc<Approvals>,
        config: Arc<Config>,
        reload: Box<dyn Fn() -> Loaded + Send + Sync>,
        environment: &Environment,
    ) -> Result<Self, CliError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            CliError::failed(format!("{what}: {error}"))
        };
        let mut degraded = Vec::new();
        let root = host.state.root().to_path_buf();
        let (ledger, aside) =
            Ledger::open(&root).map_err(|error| failed("the ledger cannot be opened", &error))?;
        if let Some(aside) = aside {
            let reason = format!(
                "the ledger was damaged and set aside as {}; what became of earlier slots is only in the transcripts",
                aside.display()
            );
            tracing::error!(reason);
            degraded.push(reason);
        }
        let (index, owes_rebuild) =
            Index::open(&root).map_err(|error| failed("the index cannot be opened", &error))?;
        let redactor = Redactor::new(&config.secrets);
        let host = Host {
            ledger: SharedLedger::opened(&root, ledger.clone()),
            index: SharedIndex::opened(&host.state, index.clone()),
            ..host
        };
        let recovered = recover(&host, &redactor)
            .await
            .map_err(|error| failed("open runs cannot be looked at", &error))?;
        if let Some(groups) = host.groups.clone() {
            let state = host.state.clone();
            let is_ours = move |run_id: &str| {
                RunId::parse(run_id).is_ok_and(|run_id| state.find_run(&run_id).is_some())
            };
            let left = tokio::task::spawn_blocking(move || groups.end_orphans(is_ours)).await;
            if let Ok(left @ 1..) = left {
                tracing::warn!(
                    left,
                    "processes of the daemon before this one were still in the control groups of its runs; they are killed"
                );
            }
        }
        for run in recovered.iter().filter(|run| run.began && !run.had_ended) {
            tracing::warn!(run_id = %run.run_id, cut_bytes = run.cut_bytes, "a run was cut by the end of the daemon before this one; it is interrupted");
        }
        if owes_rebuild {
            index
                .rebuild(host.state.clone())
                .await
                .map_err(|error| failed("the index cannot be made", &error))?;
        }
        let clock: Arc<dyn Clock> = host.clock.clone();
        let (state, observers) = (host.state.clone(), host.observers.clone());
        let disk: Arc<dyn Fn() -> Loaded + Send + Sync> = Arc::from(reload);
        let (again, api_host) = (disk.clone(), host.clone());
        let parts = Parts {
            host,
            config,
            ledger,
            reload: Box::new(move || again()),
            degraded,
            watchdog: sd_notify::watchdog_enabled(),
        };
        let (supervisor, handle) = Supervisor::new(parts)
            .await
            .map_err(|error| failed("the schedules cannot be put into force", &error))?;
        let stop = CancellationToken::new();
        let commands = handle.commands.clone();
        let stop_streams = stop.clone();
        let api = Api {
            approvals,
            handle,
            index,
            host: api_host,
            state,
            disk,
            observers,
            clock,
            stop: stop_streams,
        };
        let path = socket_path(&root, environment.get("RUNTIME_DIRECTORY"));
        let server = serve_socket(&path, |key| router(api, key), stop.clone())
            .map_err(|error| CliError::failed(error.to_string()))?;
        Ok(Self { supervisor, commands, server, stop })
    }

    /// Runs until it is told to stop.
    pub(crate) async fn run(self) {
        self.supervisor.run().await;
        self.stop.cancel();
        let _ = self.server.await;
    }
}

/// Locks the state directory: the file `lock` in it, and its own descriptor, because a file can be removed while a daemon holds it.
fn lock(state: &StateDir) -> Result<[Flock<std::fs::File>; 2], CliError> {
    let (root, path) = (state.root(), state.root().join("lock"));
    let unusable = |path: &std::path::Path, error: std::io::Error| {
        CliError::failed(format!("{} cannot be locked: {error}", path.display()))
    };
    let directory = std::fs::File::open(root).map_err(|error| unusable(root, error))?;
    let file = append_private(&path).map_err(|error| unusable(&path, error))?;
    let locked = |file| {
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            CliError::failed(format!("another daemon works in {}", root.display()))
                .hint("`dutyd status` says which")
        })
    };
    Ok([locked(directory)?, locked(file)?])
}

fn reloader(
    context: &Context,
    redactor: log::LogRedactor,
) -> Box<dyn Fn() -> Loaded + Send + Sync> {
    let (directory, environment, clock) =
        (context.dirs.config.clone(), context.environment.clone(), context.clock.clone());
    Box::new(move || match FileSet::of_directory(&directory) {
        Ok(set) => {
            let loaded = load(
                &set,
                &environment,
                Trust::Required,
                SecretsMode::Resolve,
                nix::unistd::geteuid().as_raw(),
                clock.now(),
            );
            if let Some(config) = &loaded.config {
                redactor.add(&config.secrets);
            }
            crate::process::return_freed();
            loaded
        }
        Err(error) => Loaded { config: None, report: Report::of_errors(vec![error]) },
    })
}
