//! Starts a shim for a call and follows it to its end.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::control_group::{ControlGroups, RunGroup};
use super::fork_server::{ForkServer, Shim};
use super::limits::mark_of;
use super::sandbox::SandboxProfile;
use super::wire::{Ending, KILL_AT_ONCE, Order, Report, Step, frame, read_report};
use super::{GRACE, shim_name};

/// How long to read output after the tree has ended: only a survivor or a process outside the tree
/// can still hold the pipe.
pub(super) const DRAIN: Duration = Duration::from_secs(1);

/// The time that a shim may take after [`GRACE`] to kill the tree and to report. A call is over at
/// most 3 s after its timeout or its cancellation, also if its shim is stopped and a process cannot
/// be killed.
pub(super) const SHIM_SLACK: Duration = Duration::from_millis(700);

/// How long to wait for a killed shim. A shim that takes longer counts as stuck.
const SHIM_PATIENCE: Duration = Duration::from_millis(50);

/// Bytes per read.
const CHUNK: usize = 64 * 1024;

/// A process to start.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    pub program: PathBuf,
    /// The arguments, starting with the name of the program.
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub working_dir: PathBuf,
    /// The text of its standard input; `None` is `/dev/null`. [`Spawner::start_piped`] does not use
    /// this field.
    pub stdin: Option<String>,
    /// The time after which the shim ends the process.
    pub timeout: Duration,
    /// The sandbox of the process; `None` means no sandbox.
    pub sandbox: Option<SandboxProfile>,
}

/// How a process ended. Its whole tree is gone, except for `survivors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// The exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Whether it reached its timeout.
    pub timed_out: bool,
    /// Whether the shim ended it early, because the lifeline closed or a signal reached the shim.
    pub cancelled: bool,
    /// Processes that survived the kill.
    pub survivors: u64,
    /// Whether a survivor or a process outside the tree still held its output open after the end.
    pub output_held: bool,
}

/// Why a process did not start, or why its end is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpawnFailure {
    /// The kernel refused a step.
    #[error("{step} failed with {errno}")]
    Refused {
        /// The step that failed.
        step: &'static str,
        errno: Errno,
    },
    /// The shim ended without a report; everything below it was killed.
    #[error("the supervising process of the tool was killed, and the tool with it")]
    ShimLost {
        /// Processes that survived the kill.
        survivors: u64,
    },
    /// The output could not be stored.
    #[error("cannot store the output: {0}")]
    Output(String),
    /// The order could not be sent to the shim.
    #[error("cannot send the order to the shim: {0}")]
    Order(String),
}

impl SpawnFailure {
    fn refused(step: &'static str, error: &io::Error) -> Self {
        Self::Refused { step, errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)) }
    }
}

/// Starts the processes of one run.
#[derive(Debug, Clone)]
pub struct Spawner {
    pub(super) server: Arc<ForkServer>,
    name: String,
    mark: u64,
    group: Option<Arc<RunGroup>>,
    /// Cancelled once all processes of the run must be killed without a grace period.
    pub(super) kill: CancellationToken,
}

/// Makes this process the reaper of the processes that a killed shim leaves, hides its memory from
/// other processes of the same user (SEC-4), and raises its limit of descriptors to the maximum.
///
/// *Errors*: the OS error.
pub fn prepare_daemon() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let (_, most) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most)?;
    Ok(())
}

impl Spawner {
    /// Returns a spawner for the run `run_id`. The names of its shims contain the end of that id, the
    /// processes of its tools carry a mark of it, and they join a control group of the run below
    /// `groups`.
    #[must_use]
    pub fn new(server: Arc<ForkServer>, groups: Option<&ControlGroups>, run_id: &str) -> Self {
        let group = groups.and_then(|groups| match groups.of_run(run_id) {
            Ok(group) => Some(Arc::new(group)),
            Err(error) => {
                tracing::warn!(run_id, %error, "failed to create a control group for the run; only shims end its processes");
                None
            }
        });
        let (name, mark) = (shim_name(run_id), mark_of(run_id));
        Self { server, name, mark, group, kill: CancellationToken::new() }
    }

    /// Orders the shims of all calls of the run to kill their processes at once.
    pub fn kill(&self) {
        self.kill.cancel();
    }

    /// Returns the name of the control group of the run, if it has one.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref().map(RunGroup::name)
    }

    /// Ends all processes that calls have left in the control group of the run, then removes the
    /// group. Returns how many processes the kernel could not end; `None` if the run has no group.
    pub async fn end(&self) -> Option<u64> {
        Some(self.group.clone()?.end().await)
    }

    /// Starts a shim and sends it the order; `piped` is for a process that we talk to.
    pub(super) async fn start(
        &self,
        spec: &ProcessSpec,
        piped: bool,
    ) -> Result<Shim, SpawnFailure> {
        let order = Order { mark: self.mark, ..order(spec, piped, self.group.is_some()) };
        let order = frame(&order).map_err(SpawnFailure::Order)?;
        let ruleset = spec.sandbox.as_ref().and_then(SandboxProfile::ruleset);
        let group = self.group.as_ref().map(|group| group.procs());
        let started = self.server.start(&self.name, &order, ruleset, group, piped).await;
        started.map_err(|error| SpawnFailure::refused("starting the shim", &error))
    }

    /// Runs a process to its end. Passes its standard output and its standard error to `output`, in
    /// the order in which it writes them.
    ///
    /// *Errors*: [`SpawnFailure`]. *Cancel*: through `cancel`; the shim then sends SIGTERM, and
    /// kills the whole tree at most 2 s later, or at once after [`Self::kill`]. If the future is
    /// dropped, the lifeline closes and the shim ends the tree by itself.
    pub async fn run(
        &self,
        spec: &ProcessSpec,
        cancel: &CancellationToken,
        output: &mut (dyn FnMut(&[u8]) -> io::Result<()> + Send),
    ) -> Result<Exit, SpawnFailure> {
        let limit = spec.timeout.saturating_add(GRACE + SHIM_SLACK);
        let started = tokio::select! {
            started = tokio::time::timeout(limit, self.start(spec, false)) => started,
            // A shim that lacks a part of its order does not start a process.
            () = cancel.cancelled() => return Ok(Exit { cancelled: true, ..Exit::default() }),
            () = self.kill.cancelled() => return Ok(Exit { cancelled: true, ..Exit::default() }),
        };
        let Ok(shim) = started else { return Ok(Exit { timed_out: true, ..Exit::default() }) };
        let mut shim = shim?;
        let followed = follow(&mut shim, cancel, &self.kill, limit, output).await;
        match followed {
            Ok(Followed::Reported(report, output_held)) => {
                exit_of(report).map(|exit| Exit { output_held, ..exit })
            }
            Ok(Followed::Lost) => {
                Err(SpawnFailure::ShimLost { survivors: self.end_lost(shim).await })
            }
            Ok(Followed::Silent { timed_out }) => {
                let (survivors, cancelled) = (self.end_lost(shim).await, !timed_out);
                let signal = Some(nix::libc::SIGKILL);
                Ok(Exit { signal, timed_out, cancelled, survivors, ..Exit::default() })
            }
            Err(error) => {
                // The call ends with this error, so its processes must end too.
                let _ = shim.lifeline.shutdown().await;
                if tokio::time::timeout(GRACE + SHIM_SLACK, shim.ended()).await.is_err() {
                    self.end_lost(shim).await;
                }
                Err(error)
            }
        }
    }

    /// Kills a shim that ended without a report or does not answer, and the processes that it left,
    /// which are now our descendants. Returns how many processes survive.
    async fn end_lost(&self, shim: Shim) -> u64 {
        shim.kill(SHIM_PATIENCE).await;
        drop(shim);
        sweep(&self.server).await
    }
}

/// How following a shim ended.
enum Followed {
    /// The shim has reported; the flag tells whether another process still holds the pipe after
    /// [`DRAIN`].
    Reported(Report, bool),
    /// The shim ended without a report.
    Lost,
    /// The shim does not answer, although the timeout of the tool has passed or the call was
    /// cancelled.
    Silent { timed_out: bool },
}

/// Converts a report to an exit.
///
/// *Errors*: the program never ran.
pub(super) fn exit_of(report: Report) -> Result<Exit, SpawnFailure> {
    let exit = Exit {
        timed_out: report.timed_out,
        cancelled: report.stopped,
        survivors: report.survivors,
        ..Exit::default()
    };
    match report.end {
        Ending::Exited(code) => Ok(Exit { code: Some(code), ..exit }),
        Ending::Signaled(signal) => Ok(Exit { signal: Some(signal), ..exit }),
        Ending::SpawnFailed { errno, step } => {
            let step = match step {
                Step::WorkingDir => "entering the working directory",
                Step::Prepare => "preparing the process",
                Step::Sandbox => "applying the sandbox",
                Step::Group => "joining the control group of the run",
                Step::Exec => "executing the program",
            };
            Err(SpawnFailure::Refused { step, errno: Errno::from_raw(errno) })
        }
    }
}

/// Kills the processes that dead shims have left below this process ([`ForkServer::sweep`]).
pub(super) async fn sweep(server: &Arc<ForkServer>) -> u64 {
    let server = server.clone();
    tokio::task::spawn_blocking(move || server.sweep()).await.unwrap_or(0)
}

fn order(spec: &ProcessSpec, piped: bool, grouped: bool) -> Order {
    Order {
        program: spec.program.to_string_lossy().into_owned(),
        argv: spec.argv.clone(),
        env: spec.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        working_dir: spec.working_dir.to_string_lossy().into_owned(),
        stdin: spec.stdin.clone(),
        timeout_ms: u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
        mark: 0,
        filter: spec.sandbox.as_ref().map(SandboxProfile::filter),
        capabilities: spec.sandbox.as_ref().map_or(0, SandboxProfile::capabilities),
        piped,
        grouped,
        landlock: spec.sandbox.as_ref().is_some_and(|sandbox| sandbox.ruleset().is_some()),
    }
}

/// Reads output until the shim has reported and the pipe is closed, or until the shim is lost.
async fn follow(
    shim: &mut Shim,
    cancel: &CancellationToken,
    kill: &CancellationToken,
    limit: Duration,
    output: &mut (dyn FnMut(&[u8]) -> io::Result<()> + Send),
) -> Result<Followed, SpawnFailure> {
    let output_pipe = &mut shim.output;
    let (mut from_shim, mut to_shim) = shim.lifeline.split();
    let report = read_report(&mut from_shim);
    let cancelled = async {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = kill.cancelled() => {}
        }
        let is_at_once = kill.is_cancelled();
        if is_at_once {
            let _ = to_shim.write_all(&[KILL_AT_ONCE]).await;
        }
        // Closing our side of the lifeline orders the shim to end the tool.
        let _ = to_shim.shutdown().await;
        tokio::select! {
            () = tokio::time::sleep(GRACE + SHIM_SLACK) => {}
            // A shim in its grace period takes no further order, so the caller kills it.
            () = kill.cancelled(), if !is_at_once => {}
        }
    };
    let overdue = tokio::time::sleep(limit);
    tokio::pin!(report, cancelled, overdue);
    let mut chunk = vec![0; CHUNK];
    let mut open = true;
    let report = loop {
        tokio::select! {
            read = output_pipe.read(&mut chunk), if open => match read {
                Ok(0) | Err(_) => open = false,
                Ok(count) => keep(output, &chunk, count)?,
            },
            report = &mut report => match report {
                Some(report) => break report,
                None => return Ok(Followed::Lost),
            },
            () = &mut cancelled => return Ok(Followed::Silent { timed_out: false }),
            () = &mut overdue => return Ok(Followed::Silent { timed_out: true }),
        }
    };
    let drained = tokio::time::timeout(DRAIN, async {
        while open {
            match output_pipe.read(&mut chunk).await {
                Ok(0) | Err(_) => open = false,
                Ok(count) => keep(output, &chunk, count)?,
            }
        }
        Ok(())
    })
    .await;
    match drained {
        Ok(kept) => kept.map(|()| Followed::Reported(report, false)),
        Err(_) => Ok(Followed::Reported(report, true)),
    }
}

fn keep(
    output: &mut (dyn FnMut(&[u8]) -> io::Result<()> + Send),
    chunk: &[u8],
    count: usize,
) -> Result<(), SpawnFailure> {
    output(chunk.get(..count).unwrap_or_default())
        .map_err(|error| SpawnFailure::Output(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves SEC-4
    #[test]
    fn the_daemon_s_memory_is_closed_and_leaves_no_image() {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        assert_ne!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        prepare_daemon().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
