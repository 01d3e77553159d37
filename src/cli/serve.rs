//! `dutyd serve`: runs the daemon together with the server of its control socket.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::error::CliError;
use super::{log, output};
use crate::clock::Clock;
use crate::config::{Config, Environment, FileSet, Loaded, Report, SecretsMode, Trust, load};
use crate::daemon::{
    Notifier, Parts, Signals, Supervisor, load_stable, log_warnings, recover_state, watch_files,
};
use crate::process::ControlGroups;
use crate::run::{Approvals, Host, is_disk_fault, short_stop_timeout};
use crate::server::{Api, router, serve as serve_socket, socket_path};
use crate::sinks::Observers;
use crate::store::{Index, Ledger, SharedIndex, SharedLedger, StateDir, StateLock};

pub(crate) async fn serve(context: &Context) -> Result<ExitCode, CliError> {
    match begin(context).await {
        Err(error) if log::is_journal(&context.environment) => {
            let text = log::error_for_journal(&format!("error{}", output::explained(&error)));
            output::note(&text);
            Ok(error.exit().into())
        }
        done => done,
    }
}

/// Starts the daemon and runs it.
///
/// *Errors*: it cannot start as far as its log.
async fn begin(context: &Context) -> Result<ExitCode, CliError> {
    let mut signals = Signals::install()
        .map_err(|error| CliError::failed("cannot handle signals").because(&error))?;
    let state = context.state();
    let mut is_told = false;
    // Lock before we read or change anything else (STATE-2).
    let lock = loop {
        let locked = state.create().and_then(|()| state.lock());
        let writable = locked.and_then(|lock| {
            // Without the lock, another daemon works here.
            lock.as_ref().map_or(Ok(()), |_| state.try_to_write())?;
            Ok(lock)
        });
        match writable {
            Err(error) if is_disk_fault(&error) => {
                if !std::mem::replace(&mut is_told, true) {
                    let message = "the disk cannot be written; the daemon starts once it can";
                    output::note(&format!("{message}: {error}"));
                }
                if !wait_for_disk(&mut signals).await {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            lock => break lock_of(&state, lock)?,
        }
    };
    let now = context.clock.now();
    let (config, warnings) =
        context.config_and_warnings(Trust::Required, now, SecretsMode::Resolve)?;
    let redactor = log::LogRedactor::default();
    redactor.add(&config.secrets);
    let log =
        log::start(&config.settings.log, &context.environment, &context.dirs.state, &redactor)?;
    log_warnings(&warnings);
    // From here on, write to stderr only through the log, which never waits for a reader.
    match run(context, config, &lock, redactor, &log, signals).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            log.error(&format!("error{}", output::explained(&error)));
            Ok(error.exit().into())
        }
    }
}

/// How long to wait before the next attempt to write to a disk on which the daemon cannot start.
const DISK_PAUSE: Duration = Duration::from_secs(5);

/// Waits a moment, because the disk cannot be written (STATE-4). Returns false if a signal stops the
/// daemon.
///
/// If the daemon exited instead, systemd would stop restarting it after a few attempts.
async fn wait_for_disk(signals: &mut Signals) -> bool {
    // Without this, systemd treats the wait as a start that hangs, and kills the daemon.
    let notice = [
        sd_notify::NotifyState::Status("waiting for the disk"),
        sd_notify::NotifyState::ExtendTimeoutUsec(30_000_000),
    ];
    let _ = sd_notify::notify(&notice);
    tokio::select! {
        () = tokio::time::sleep(DISK_PAUSE) => true,
        () = signals.stop() => false,
    }
}

/// Runs the daemon until a signal stops it.
async fn run(
    context: &Context,
    config: Arc<Config>,
    lock: &StateLock,
    redactor: log::LogRedactor,
    log: &log::LogGuard,
    signals: Signals,
) -> Result<(), CliError> {
    crate::process::prepare_daemon()
        .map_err(|error| CliError::failed("cannot prepare the process").because(&error))?;
    let approvals = Arc::new(Approvals::default());
    let groups = control_groups().map(Arc::new);
    let host = Host { groups, ..context.host_with(Observers::default(), approvals.clone()) };
    let reaping = tokio::spawn(host.fork_server.clone().reap_strangers());
    let daemon = Daemon::start(
        host,
        approvals,
        config,
        lock,
        reloader(context, redactor),
        &context.environment,
    )
    .await?;
    // Elsewhere, a unit that is installed is not ours.
    if context.environment.get("INVOCATION_ID").is_some()
        && let Some(why) = short_stop_timeout(daemon.config.borrow().settings.shutdown_grace)
    {
        tracing::warn!(why, "the grace period does not fit the unit");
    }
    let watched = context.dirs.config.clone();
    let watching = watch_files(watched, daemon.config.clone(), daemon.commands.clone());
    signals.forward(daemon.commands.clone());
    crate::process::return_freed();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    log.note("ready");
    daemon.run().await;
    watching.abort();
    reaping.abort();
    tracing::info!("stopped");
    Ok(())
}

/// Takes over the control group of this process, if systemd delegated it.
fn control_groups() -> Option<ControlGroups> {
    match ControlGroups::take() {
        Ok(Some(groups)) => {
            tracing::info!(group = groups.name(), "each run gets its own control group");
            Some(groups)
        }
        Ok(None) => {
            tracing::info!(
                "no delegated control group (Delegate=yes); only shims end the processes of a run"
            );
            None
        }
        Err(error) => {
            tracing::warn!(%error, "cannot use the daemon's control group; only shims end the processes of a run");
            None
        }
    }
}

/// A daemon that is ready to run.
pub(crate) struct Daemon {
    supervisor: Supervisor,
    pub(crate) commands: tokio::sync::mpsc::Sender<crate::daemon::Command>,
    config: tokio::sync::watch::Receiver<Arc<Config>>,
    server: tokio::task::JoinHandle<()>,
    /// Delivers notifications until `stop` is cancelled.
    notifier: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Daemon {
    /// Cleans up after the previous daemon, brings ledger and index up to date, and opens the
    /// control socket.
    ///
    /// *Errors*: one of these steps fails.
    pub(crate) async fn start(
        host: Host,
        approvals: Arc<Approvals>,
        config: Arc<Config>,
        lock: &StateLock,
        reload: Box<dyn Fn() -> Loaded + Send + Sync>,
        environment: &Environment,
    ) -> Result<Self, CliError> {
        let failed =
            |what: &str, error: &dyn std::error::Error| CliError::failed(what).because(error);
        let root = host.state.root().to_path_buf();
        let (ledger, found) = Ledger::open(&root, Some(lock))
            .map_err(|error| failed("cannot open the ledger", &error))?;
        let aside = found.aside.as_ref().map(|aside| {
            let reason = format!("the ledger was damaged and moved to {}", aside.display());
            tracing::error!(reason);
            reason
        });
        let (index, must_rebuild_index) = Index::open(&root, Some(lock))
            .map_err(|error| failed("cannot open the index", &error))?;
        let host = Host {
            ledger: SharedLedger::opened(&root, ledger.clone()),
            index: SharedIndex::opened(&host.state, index.clone()),
            ..host
        };
        let recovered = recover_state(&host, &config, &found, must_rebuild_index).await;
        let mut recovered = recovered.map_err(CliError::failed_by)?;
        // What was moved aside comes first.
        recovered.problems.splice(0..0, aside);
        let clock: Arc<dyn Clock> = host.clock.clone();
        let (state, observers) = (host.state.clone(), host.observers.clone());
        let disk: Arc<dyn Fn() -> Loaded + Send + Sync> = Arc::from(reload);
        let (again, api_host) = (disk.clone(), host.clone());
        let (clients, messages) = (host.clients.clone(), ledger.clone());
        let parts = Parts {
            host,
            config,
            ledger,
            reload: Box::new(move || load_stable(&*again)),
            recovered,
            watchdog: sd_notify::watchdog_enabled(),
        };
        let (supervisor, handle) = Supervisor::new(parts)
            .await
            .map_err(|error| failed("cannot start the schedules", &*error))?;
        let stop = CancellationToken::new();
        let (commands, config) = (handle.commands.clone(), handle.config.clone());
        let notifier = Notifier {
            ledger: messages,
            config: config.clone(),
            clients,
            clock: clock.clone(),
            beat: handle.beat.clone(),
            host: crate::run::host_name(),
        };
        let notifier = tokio::spawn(notifier.run(stop.clone()));
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
            .map_err(CliError::failed_by)?;
        announce(lock, &path);
        Ok(Self { supervisor, commands, config, server, notifier, stop })
    }

    /// Runs until the supervisor stops, then stops the server.
    pub(crate) async fn run(self) {
        self.supervisor.run().await;
        self.stop.cancel();
        let _ = self.server.await;
        let _ = self.notifier.await;
    }
}

/// Tells clients through the lock file where the control socket is.
fn announce(lock: &StateLock, socket: &Path) {
    if let Err(error) = lock.announce(socket) {
        tracing::warn!(%error, "cannot write the path of the control socket to the lock file; clients look for it in the usual places only");
    }
}

pub(super) fn lock(state: &StateDir) -> Result<StateLock, CliError> {
    lock_of(state, state.lock())
}

fn lock_of(
    state: &StateDir,
    lock: std::io::Result<Option<StateLock>>,
) -> Result<StateLock, CliError> {
    let root = state.root().display();
    match lock {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(CliError::failed(format!("another daemon is using {root}"))
            .hint("`dutyd status` shows which")),
        Err(error) => Err(CliError::failed(format!("cannot lock {root}")).because(&error)),
    }
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
