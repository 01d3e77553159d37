//! The fork server: a small process of this binary that forks the shims.
//!
//! Executing a binary of this size for every call costs more than most tools do, and a daemon with
//! threads must not fork. So, at the first call, the daemon executes its own binary as the fork
//! server, which keeps one forked shim ready.
//!
//! A request is one packet on a socket that the shim reads. It contains the name of the shim and
//! these descriptors: the far end of the lifeline, the pipe for the output of the tool and, where
//! the order needs them, the Landlock ruleset of the tool, the pipes for standard input and
//! standard error of a process that we talk to, and the control group of the run. Before the shim
//! reads its order, it answers on its lifeline with a pidfd of itself. Without an answer, no tool
//! was started, and the daemon may repeat the request.
//!
//! *Source*: `unix(7)`, SCM_RIGHTS; `pidfd_open(2)`.
#![expect(
    unsafe_code,
    reason = "fork, and a descriptor in the reactor; each use says why it is sound"
)]

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, setsid};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{PidfdFlags, Signal as RawSignal, WaitId, WaitIdOptions, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use super::messages::{DESCRIPTORS, receive, send};
use super::sandbox::Filters;
use super::{FORK_SERVER_NAME, FORK_SERVER_VERB, NAME_LIMIT, shim, tree};

/// How long a new shim may take to answer before we replace the fork server; also how long to wait
/// for a shim to read its order, and for a killed shim to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a sweep waits for a process that does not end.
pub(super) const SWEEP_LIMIT: Duration = Duration::from_millis(250);

/// Starts shims for a whole daemon. Its process starts at the first call and ends with this value.
#[derive(Debug)]
pub struct ForkServer {
    binary: PathBuf,
    running: Mutex<Option<Running>>,
    /// The pids of the shims that work for a call.
    shims: Arc<Mutex<BTreeSet<i32>>>,
    /// The processes that a sweep could not end and has reported.
    stuck: Mutex<BTreeSet<tree::Seen>>,
}

#[derive(Debug)]
struct Running {
    process: Child,
    control: OwnedFd,
}

/// A shim that has answered a request.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) process: OwnedFd,
    pub(crate) guard: ShimGuard,
    pub(crate) lifeline: UnixStream,
    pub(crate) output: pipe::Receiver,
    /// Standard input and standard error of a process that we talk to. Any other tool writes its
    /// standard error to `output`.
    pub(crate) talk: Option<(pipe::Sender, pipe::Receiver)>,
}

/// Keeps the pid of a shim in the list of busy shims until this value is dropped.
/// [`ForkServer::sweep`] spares these shims and their descendants.
#[derive(Debug)]
pub(crate) struct ShimGuard {
    pid: i32,
    shims: Arc<Mutex<BTreeSet<i32>>>,
}

impl ShimGuard {
    fn new(process: &OwnedFd, shims: &Arc<Mutex<BTreeSet<i32>>>) -> Self {
        let guard = Self { pid: pid_of(process).unwrap_or(0), shims: shims.clone() };
        locked(&guard.shims).insert(guard.pid);
        guard
    }
}

impl Drop for ShimGuard {
    fn drop(&mut self) {
        locked(&self.shims).remove(&self.pid);
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pid of a pidfd; `None` if the process was reaped. *Source*: `proc_pid_fdinfo(5)`.
fn pid_of(process: &OwnedFd) -> Option<i32> {
    let facts = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let facts = std::fs::read_to_string(facts).ok()?;
    let pid = facts.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

/// The first byte that a shim sends.
const HELLO: [u8; 1] = [1];

impl ForkServer {
    /// Returns a fork server that executes `binary`, which must be this program.
    #[must_use]
    pub fn new(binary: PathBuf) -> Self {
        Self { binary, running: Mutex::new(None), shims: Arc::default(), stuck: Mutex::default() }
    }

    /// Returns a fork server that executes the binary of this process.
    #[must_use]
    pub fn of_this_binary() -> Self {
        // The child resolves this link, so it executes the running binary even after an upgrade has
        // replaced the file on disk.
        Self::new(PathBuf::from("/proc/self/exe"))
    }

    /// Kills the processes that dead shims have left below this process. Spares the fork server, the
    /// shims that work, and all that is below them. Returns how many processes survive and were not
    /// reported before. Blocks for [`SWEEP_LIMIT`] if one of them is stuck.
    pub(crate) fn sweep(&self) -> u64 {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        // Hold the lock: the sweep would not spare a fork server that starts now.
        let running = self.lock();
        let server = running.as_ref().and_then(|server| i32::try_from(server.process.id()).ok());
        let shims = locked(&self.shims).clone();
        let is_spared = |pid| Some(pid) == server || shims.contains(&pid);
        let left =
            tree::kill_below(own, SWEEP_LIMIT, &|seen| has_ancestor(seen.pid, own, is_spared));
        drop(running);
        let mut stuck = locked(&self.stuck);
        stuck.retain(|seen| tree::look(seen.pid).is_some_and(|now| now.is_same(*seen)));
        let known = |seen: &&tree::Seen| stuck.iter().any(|known| known.is_same(**seen));
        let fresh: Vec<tree::Seen> = left.iter().filter(|seen| !known(seen)).copied().collect();
        stuck.extend(&fresh);
        fresh.len() as u64
    }

    /// Reaps the children that this process did not start: it is the subreaper of what a killed shim
    /// leaves and, in a container, process 1, which every process without a parent belongs to. Ends
    /// only with an error: the signal handler cannot be installed. *Cancel*: safe.
    pub async fn reap_strangers(self: Arc<Self>) -> io::Error {
        let mut ended = match signal(SignalKind::child()) {
            Ok(ended) => ended,
            Err(error) => return error,
        };
        loop {
            let server = self.clone();
            // A sweep may hold the lock for a while. A bug in one round does not stop the next.
            let _ = tokio::task::spawn_blocking(move || server.reap_others()).await;
            ended.recv().await;
        }
    }

    fn reap_others(&self) {
        // Hold the lock: a fork server that starts now must stay, and a sweep kills by pids that are
        // not reaped (PROC-8).
        let running = self.lock();
        let server = running.as_ref().map(|server| server.process.id());
        tree::reap_children(&|pid| u32::try_from(pid).ok() == server);
    }

    /// Starts a shim that `/proc` shows as `name`, and sends it its order.
    ///
    /// *Errors*: the OS error; `ESRCH` if no shim answers, `ETIMEDOUT` if the shim does not read
    /// its order. *Cancel*: safe; a shim ends by itself when its lifeline closes.
    pub(crate) async fn start(
        &self,
        name: &str,
        order: &[u8],
        ruleset: Option<BorrowedFd<'_>>,
        group: Option<BorrowedFd<'_>>,
        is_piped: bool,
    ) -> io::Result<Shim> {
        for _ in 0..2 {
            let (mut ours, theirs) = StdUnixStream::pair()?;
            let (output, output_of_tool) = io::pipe()?;
            ours.set_nonblocking(true)?;
            let talk = if is_piped { Some((io::pipe()?, io::pipe()?)) } else { None };
            let (talk, of_tool) = talk
                .map(|((input_of_tool, input), (errors, errors_of_tool))| {
                    ((input, errors), (input_of_tool, errors_of_tool))
                })
                .unzip();
            // Send now what the socket can take: the shim then needs no second round trip. Hold
            // back the last byte until the shim has answered, so that a shim that answers too late
            // starts nothing.
            let most = order.get(..order.len().saturating_sub(1)).unwrap_or_default();
            let sent = io::Write::write(&mut ours, most)?;
            let mut fds = vec![theirs.as_fd(), output_of_tool.as_fd()];
            fds.extend(ruleset);
            if let Some((input, errors)) = &of_tool {
                fds.extend([input.as_fd(), errors.as_fd()]);
            }
            fds.extend(group);
            let asked = self.ask(name, &fds)?;
            // The shim must hold the only copies, so that we see when it ends.
            drop((theirs, output_of_tool, of_tool));
            let lifeline = UnixStream::from_std(ours)?;
            let output = pipe::Receiver::from_owned_fd(OwnedFd::from(output))?;
            let talk = match talk {
                Some((input, errors)) => Some((
                    pipe::Sender::from_owned_fd(OwnedFd::from(input))?,
                    pipe::Receiver::from_owned_fd(OwnedFd::from(errors))?,
                )),
                None => None,
            };
            let answer = answer(lifeline, output, talk, &self.shims);
            if let Ok(Some(mut shim)) = tokio::time::timeout(PATIENCE, answer).await {
                // Ignore a failed write: if the shim has ended by now, the reader of its report
                // notices that. A shim that does not read its whole order has started nothing.
                let rest = shim.lifeline.write_all(order.get(sent..).unwrap_or_default());
                if tokio::time::timeout(PATIENCE, rest).await.is_err() {
                    shim.kill(PATIENCE).await;
                    return Err(Errno::ETIMEDOUT.into());
                }
                return Ok(shim);
            }
            self.give_up(asked);
        }
        Err(io::Error::from(Errno::ESRCH))
    }

    /// Sends a request; returns the pid of the fork server that received it.
    fn ask(&self, name: &str, fds: &[BorrowedFd<'_>]) -> io::Result<u32> {
        let mut running = self.lock();
        if let Some(server) = running.as_ref()
            && request(&server.control, name, fds).is_ok()
        {
            return Ok(server.process.id());
        }
        *running = None;
        let server = running.insert(execute(&self.binary)?);
        request(&server.control, name, fds)?;
        Ok(server.process.id())
    }

    /// Kills the fork server `pid`, if it is still in use.
    fn give_up(&self, pid: u32) {
        let mut running = self.lock();
        if running.as_ref().is_some_and(|server| server.process.id() == pid) {
            *running = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        locked(&self.running)
    }
}

/// Tells whether `is_wanted` accepts `pid` or one of its ancestors below `own`.
fn has_ancestor(pid: i32, own: i32, is_wanted: impl Fn(i32) -> bool) -> bool {
    const DEEPEST: usize = 64;
    let mut at = pid;
    for _ in 0..DEEPEST {
        if at == own || at <= 1 {
            return false;
        }
        if is_wanted(at) {
            return true;
        }
        match tree::parent(at) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}

impl Drop for Running {
    /// Kills the fork server. Working shims continue; the waiting shim dies with it.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "the fork server itself has no shim")]
fn execute(binary: &Path) -> io::Result<Running> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let process = Command::new(binary)
        .arg(FORK_SERVER_VERB)
        // The next daemon finds an orphaned fork server by this pid ([`super::end_orphans`]).
        .arg(std::process::id().to_string())
        .env_clear()
        .current_dir("/")
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(Running { process, control: ours })
}

fn request(control: &OwnedFd, name: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    // A full socket means that no shim reads it. Such a server is as useless as a dead one.
    send(control.as_fd(), name.as_bytes(), fds)
}

/// Reads the first message of the shim; `None` if the shim is gone.
async fn answer(
    lifeline: UnixStream,
    output: pipe::Receiver,
    talk: Option<(pipe::Sender, pipe::Receiver)>,
    shims: &Arc<Mutex<BTreeSet<i32>>>,
) -> Option<Shim> {
    let mut hello = [0; HELLO.len()];
    let process = loop {
        lifeline.ready(Interest::READABLE).await.ok()?;
        let received = lifeline.try_io(Interest::READABLE, || {
            receive::<1>(lifeline.as_fd(), &mut hello, RecvFlags::DONTWAIT)
        });
        match received {
            Ok((_, [process])) => break process?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    };
    let guard = ShimGuard::new(&process, shims);
    Some(Shim { process, guard, lifeline, output, talk })
}

impl Shim {
    /// Waits until the shim has ended. *Cancel*: safe.
    pub(crate) async fn ended(&self) {
        let process = self.process.as_fd();
        // SAFETY: the descriptor is borrowed from a value that outlives the registration, and it
        // stays open and unchanged.
        let watched = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) };
        // The descriptor becomes readable when the process ends, and never before.
        if let Ok(watched) = watched {
            let _ = watched.ready(Interest::READABLE).await;
        }
        self.reap();
    }

    /// Kills the shim and waits for its end, at most `patience`.
    pub(crate) async fn kill(&self, patience: Duration) {
        let _ = rustix::process::pidfd_send_signal(&self.process, RawSignal::KILL);
        let _ = tokio::time::timeout(patience, self.ended()).await;
    }

    /// Reaps the shim. It is our child only if its fork server has died.
    fn reap(&self) {
        let id = WaitId::PidFd(self.process.as_fd());
        let _ = rustix::process::waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Runs the fork server on its standard input until the daemon is gone; returns the exit code. A
/// forked shim does not return from here, but exits.
#[must_use]
pub fn run_fork_server() -> i32 {
    // Only a person who starts the verb by hand sees this code.
    serve().unwrap_or(2)
}

fn serve() -> io::Result<i32> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(&std::fs::File::open("/dev/null")?)?;
    let name = std::ffi::CString::new(FORK_SERVER_NAME).unwrap_or_default();
    nix::sys::prctl::set_name(&name)?;
    // Ctrl-C in a terminal is for the daemon, which then ends its calls in order.
    let _ = setsid();
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    let children = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let (mut taken, take) = io::pipe()?;
    let filters = Filters::new().map_err(io::Error::from)?;
    // Keep one shim waiting for the next request, so that no call waits for a fork.
    let (own, mut waiting) = (nix::unistd::getpid(), None);
    loop {
        let Some(pid) = waiting else {
            // SAFETY: this process has one thread, so the child may do what any process may.
            match unsafe { fork() }? {
                ForkResult::Parent { child } => waiting = Some(child),
                ForkResult::Child => {
                    drop((children, taken));
                    let code = i32::from(wait_for_request(own, control, take, filters).is_err());
                    // SAFETY: ends the child at once; the child has no cleanup to do at its exit.
                    unsafe { nix::libc::_exit(code) }
                }
            }
            continue;
        };
        let mut fds = [
            PollFd::new(taken.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
            // Watch only for the end of the daemon: the shims read the requests.
            PollFd::new(control.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let [was_taken, has_ended, is_over] =
            fds.map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        if is_over {
            return Ok(0);
        }
        if was_taken {
            let _ = io::Read::read(&mut taken, &mut [0; 1])?;
            waiting = None;
        }
        if has_ended {
            while let Ok(Some(_)) = children.read_signal() {}
            while let Ok(WaitStatus::Exited(ended, _) | WaitStatus::Signaled(ended, _, _)) =
                waitpid(None, Some(WaitPidFlag::WNOHANG))
            {
                // Replace the waiting shim if it was killed.
                waiting = waiting.filter(|_| ended != pid);
            }
        }
    }
}

/// The first steps of a shim: waits for its request, takes its name, answers the daemon and starts
/// to work.
fn wait_for_request(
    server: Pid,
    control: OwnedFd,
    take: io::PipeWriter,
    filters: Filters,
) -> io::Result<()> {
    // Die with the fork server. A waiting shim would keep the socket of the dead server open, so
    // the daemon would not notice that death, and no other shim would follow this one.
    rustix::process::set_parent_process_death_signal(Some(RawSignal::KILL))?;
    if nix::unistd::getppid() != server {
        return Err(Errno::ESRCH.into());
    }
    let ready = shim::Ready::new(filters)?;
    let mut name = [0; NAME_LIMIT];
    let (count, [Some(lifeline), Some(output), third, fourth, fifth, sixth]) =
        receive::<DESCRIPTORS>(control.as_fd(), &mut name, RecvFlags::empty())?
    else {
        return Err(Errno::ENOMSG.into());
    };
    rustix::process::set_parent_process_death_signal(None)?;
    io::Write::write_all(&mut &take, &[1])?;
    // A working shim must not keep the socket of a dead fork server open.
    drop((take, control));
    let name = std::ffi::CString::new(name.get(..count).unwrap_or_default()).unwrap_or_default();
    nix::sys::prctl::set_name(&name)?;
    let lifeline = StdUnixStream::from(lifeline);
    let process = pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let fds = [process.as_fd()];
    send(lifeline.as_fd(), &HELLO, &fds)?;
    drop(process);
    shim::run(ready, lifeline, output, [third, fourth, fifth, sixth])?;
    Ok(())
}
