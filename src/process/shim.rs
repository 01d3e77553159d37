//! The shim: runs one program and ends everything that the program leaves.
//!
//! It is single-threaded and blocking, so forking is safe and waiting is simple. It receives its
//! order over the lifeline and writes nothing to the output of the tool. *Source*: `prctl(2)`,
//! PR_SET_CHILD_SUBREAPER; `pidfd_open(2)`; `signalfd(2)`.
#![expect(unsafe_code, reason = "fork and exec; each use says why it is sound")]

use std::ffi::CString;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::WaitStatus;
use nix::unistd::{
    ForkResult, Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, fork, getpid, getppid, setsid,
};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

use super::group_hold::GroupHold;
use super::messages::{receive, send};
use super::sandbox::Filters;
use super::wire::{Ending, FRAME_LIMIT, KILL_AT_ONCE, Order, Report, Step, frame};
use super::{GRACE, limits, tree};

/// Makes the kernel end tools before the daemon when memory runs out (PROC-9).
const OOM_SCORE: &[u8] = b"500";

/// The state that a shim prepares before its request arrives, so that no call waits for the
/// preparation.
pub(super) struct Ready {
    signals: SignalFd,
    null: OwnedFd,
    filters: Filters,
}

impl Ready {
    /// Makes this process a shim: the subreaper of its descendants, in a session of its own.
    /// `filters` were compiled before the fork.
    ///
    /// *Errors*: the OS error.
    pub(super) fn new(filters: Filters) -> Result<Self, Errno> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|e| Errno::from_raw(e.raw_os_error()))?;
        let _ = setsid();
        let mut mask = SigSet::empty();
        for each in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(each);
        }
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let null = std::fs::File::open("/dev/null").map_err(|e| errno_of(&e))?;
        // Parse a sample order, so that the pages needed to read an order are in memory.
        let _ = serde_json::from_str::<Order>(
            r#"{"program":"","argv":[""],"env":[["",""]],"working_dir":"/","stdin":null,"timeout_ms":1,"mark":0,"filter":null,"capabilities":0,"landlock":false,"piped":false,"grouped":false}"#,
        );
        Ok(Self { signals, null: null.into(), filters })
    }
}

/// Carries out the [`Order`] that arrives over `lifeline`; the tool writes to `output`. `rest`
/// contains, in this sequence and without gaps, the descriptors that the flags of the [`Order`]
/// announce: Landlock ruleset (`landlock`), standard input and standard error (`piped`), control
/// group (`grouped`).
///
/// *Errors*: `EPIPE` if no valid order arrived; nothing was started.
pub(super) fn run(
    ready: Ready,
    mut lifeline: UnixStream,
    output: OwnedFd,
    rest: [Option<OwnedFd>; 4],
) -> Result<(), Errno> {
    let order = read_order(&mut lifeline).ok_or(Errno::EPIPE)?;
    let mut rest = rest.into_iter();
    let mut next = |is_there: bool| if is_there { rest.next().flatten() } else { None };
    let ruleset = next(order.landlock);
    let (input, errors) = (next(order.piped), next(order.piped));
    let group = next(order.grouped);
    let Ready { signals, null, filters } = ready;
    let restrictions = Restrictions { filters, order: &order, ruleset, group, shim: getpid() };
    let input = if order.piped { Input::Pipe(input.zip(errors)) } else { Input::Null(null) };
    // Signals that arrived while the shim waited were not meant for this call.
    while let Ok(Some(_)) = signals.read_signal() {}
    let report = match start(&order, input, output, &restrictions) {
        Ok((leader, hold)) => {
            watch(leader, hold, Duration::from_millis(order.timeout_ms), &lifeline, &signals)
        }
        Err((step, errno)) => Report {
            end: Ending::SpawnFailed { errno: errno as i32, step },
            timed_out: false,
            stopped: false,
            survivors: 0,
        },
    };
    if let Ok(bytes) = frame(&report) {
        let _ = lifeline.write_all(&bytes);
    }
    Ok(())
}

fn read_order(lifeline: &mut UnixStream) -> Option<Order> {
    let mut length = [0; 4];
    lifeline.read_exact(&mut length).ok()?;
    let length =
        usize::try_from(u32::from_be_bytes(length)).ok().filter(|length| *length <= FRAME_LIMIT)?;
    let mut json = vec![0; length];
    lifeline.read_exact(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// The standard input of the tool.
enum Input {
    /// `/dev/null`; a text for standard input in the [`Order`] replaces it.
    Null(OwnedFd),
    /// The pipes for standard input and standard error that came with the request; `None` if one
    /// was lost on the way.
    Pipe(Option<(OwnedFd, OwnedFd)>),
}

/// The restrictions that the process of the tool applies to itself.
struct Restrictions<'a> {
    filters: Filters,
    order: &'a Order,
    ruleset: Option<OwnedFd>,
    group: Option<OwnedFd>,
    /// The process of this shim.
    shim: Pid,
}

impl Restrictions<'_> {
    /// Ends this process when its shim is killed. The processes that it starts are not ended; the
    /// daemon, or its next start, finds them by their mark.
    fn die_with_shim(&self) -> Result<(), Errno> {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The shim may have been killed before.
        if getppid() == self.shim { Ok(()) } else { Err(Errno::ESRCH) }
    }

    /// Joins the control group of the run.
    fn enter(&self) -> Result<(), Errno> {
        match &self.group {
            Some(group) => nix::unistd::write(group, b"0").map(drop),
            None if self.order.grouped => Err(Errno::EBADF),
            None => Ok(()),
        }
    }

    /// Applies the sandbox and sends the listener of the hold on groups ([`super::group_hold`]) to
    /// `shim`.
    fn put_on(&self, shim: &OwnedFd) -> Result<(), Errno> {
        if self.order.landlock != self.ruleset.is_some() {
            // The ruleset was lost on the way. Nothing runs without its sandbox.
            return Err(Errno::EBADF);
        }
        let ruleset = self.ruleset.as_ref().map(|fd| fd.as_fd());
        let Some(listener) =
            self.filters.put_on(self.order.filter, self.order.capabilities, ruleset)?
        else {
            return Ok(());
        };
        send(shim.as_fd(), &[HOLD], &[listener.as_fd()]).map_err(|error| errno_of(&error))
    }
}

/// Everything that the child needs, prepared before the fork.
struct Prepared {
    program: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
    working_dir: CString,
    stdin: OwnedFd,
    /// Receives standard error; `None` means that standard error goes to the output.
    stderr: Option<OwnedFd>,
}

fn prepare(order: &Order, input: Input) -> Result<Prepared, Errno> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno::EINVAL);
    let mut stderr = None;
    let stdin = match (&order.stdin, input) {
        (_, Input::Pipe(pipes)) => {
            let (input, errors) = pipes.ok_or(Errno::EBADF)?;
            stderr = Some(errors);
            input
        }
        (None, Input::Null(null)) => null,
        (Some(input), Input::Null(_)) => {
            // A file in memory needs no writer: the tool reads it at its own pace, and the shim
            // only watches.
            let fd = rustix::fs::memfd_create("stdin", rustix::fs::MemfdFlags::CLOEXEC)
                .map_err(|e| Errno::from_raw(e.raw_os_error()))?;
            let mut file = std::fs::File::from(fd);
            file.write_all(input.as_bytes()).map_err(|e| errno_of(&e))?;
            std::io::Seek::rewind(&mut file).map_err(|e| errno_of(&e))?;
            OwnedFd::from(file)
        }
    };
    Ok(Prepared {
        program: text(&order.program)?,
        argv: order.argv.iter().map(|arg| text(arg)).collect::<Result<_, _>>()?,
        env: order
            .env
            .iter()
            .map(|(name, value)| text(&format!("{name}={value}")))
            .collect::<Result<_, _>>()?,
        working_dir: text(&order.working_dir)?,
        stdin,
        stderr,
    })
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The first byte of the message that carries the listener of the hold on groups. A message about a
/// failed step begins with the number of the step, which is never this one.
const HOLD: u8 = u8::MAX;

/// Starts the tool; returns its pid and the hold on its groups as soon as the program runs.
fn start(
    order: &Order,
    input: Input,
    output: OwnedFd,
    restrictions: &Restrictions<'_>,
) -> Result<(Pid, Option<GroupHold>), (Step, Errno)> {
    let prepared = prepare(order, input).map_err(|errno| (Step::Prepare, errno))?;
    // The socket preserves message boundaries. The exec closes it and so ends the stream.
    let (shim, tool) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| (Step::Prepare, Errno::from_raw(errno.raw_os_error())))?;
    // SAFETY: this process has one thread, so the child may do what any process may.
    match unsafe { fork() }.map_err(|errno| (Step::Prepare, errno))? {
        ForkResult::Child => {
            drop(shim);
            let (step, errno) = become_tool(&prepared, &output, restrictions, &tool);
            let step = Step::ALL.iter().position(|known| *known == step).unwrap_or(0);
            let mut message = vec![u8::try_from(step).unwrap_or(0)];
            message.extend((errno as i32).to_be_bytes());
            let _ = send(tool.as_fd(), &message, &[]);
            // SAFETY: ends the child without running cleanup that belongs to its parent.
            unsafe { libc::_exit(127) }
        }
        ForkResult::Parent { child } => {
            drop(tool);
            // Close our copy, so that the output ends when the copies of the tool are closed.
            drop(output);
            follow_start(shim.as_fd(), child)
        }
    }
}

/// Waits until the program runs or has failed to start.
fn follow_start(
    shim: BorrowedFd<'_>,
    child: Pid,
) -> Result<(Pid, Option<GroupHold>), (Step, Errno)> {
    let mut hold = None;
    let failure = loop {
        let mut message = [0; 8];
        match receive::<1>(shim, &mut message, RecvFlags::empty()) {
            // The exec closed the socket: the program runs.
            Ok((0, _)) => return Ok((child, hold)),
            Ok((_, [Some(listener)])) => hold = Some(GroupHold::new(listener)),
            // The listener was lost on the way. Nothing runs without the hold.
            Ok((_, [None])) if message.first() == Some(&HOLD) => {
                break (Step::Sandbox, Errno::EMFILE);
            }
            Ok(_) => {
                let [step, errno @ ..] = message;
                let [a, b, c, d, ..] = errno;
                let step = Step::ALL.get(usize::from(step)).copied().unwrap_or(Step::Prepare);
                break (step, Errno::from_raw(i32::from_be_bytes([a, b, c, d])));
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break (Step::Prepare, errno_of(&error)),
        }
    };
    // The child has not been reaped, so its pid is still its own.
    let _ = nix::sys::signal::kill(child, Signal::SIGKILL);
    let _ = nix::sys::wait::waitpid(child, None);
    Err(failure)
}

/// Runs in the child: sets up everything and executes the program. Returns what failed.
fn become_tool(
    prepared: &Prepared,
    output: &OwnedFd,
    restrictions: &Restrictions<'_>,
    shim: &OwnedFd,
) -> (Step, Errno) {
    match put_in_place(prepared, output, restrictions, shim) {
        Err(failure) => failure,
        Ok(()) => (Step::Exec, exec(prepared)),
    }
}

fn put_in_place(
    prepared: &Prepared,
    output: &OwnedFd,
    restrictions: &Restrictions<'_>,
    shim: &OwnedFd,
) -> Result<(), (Step, Errno)> {
    let failed = |errno| (Step::Prepare, errno);
    setsid().map_err(failed)?;
    restrictions.die_with_shim().map_err(failed)?;
    restrictions.enter().map_err(|errno| (Step::Group, errno))?;
    umask(Mode::from_bits_truncate(0o077));
    chdir(prepared.working_dir.as_c_str()).map_err(|errno| (Step::WorkingDir, errno))?;
    dup2_stdin(prepared.stdin.as_fd()).map_err(failed)?;
    dup2_stdout(output).map_err(failed)?;
    dup2_stderr(prepared.stderr.as_ref().unwrap_or(output)).map_err(failed)?;
    close_on_exec_from(3);
    limits::put_on(restrictions.order.mark).map_err(failed)?;
    // A container may hide this file. The kernel then chooses by itself which process to end.
    let _ = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/oom_score_adj")
        .and_then(|mut file| file.write_all(OOM_SCORE));
    nix::sys::prctl::set_no_new_privs().map_err(failed)?;
    reset_signals();
    // This comes after all steps that need more rights than the tool has.
    restrictions.put_on(shim).map_err(|errno| (Step::Sandbox, errno))?;
    SigSet::empty().thread_set_mask().map_err(failed)
}

/// Resets every signal to its default disposition, including 32 and 33. The C library reserves
/// these two and refuses to set them, but a parent may have left them ignored.
fn reset_signals() {
    /// The kernel's own structure; all zeros mean the default disposition.
    const DEFAULT: [u64; 4] = [0; 4];
    /// Bytes of the kernel's signal set.
    const SET_BYTES: usize = 8;
    for number in 1..=64 {
        // SAFETY: the kernel reads at most 32 bytes and writes nothing; the default disposition
        // runs none of our code. The kernel refuses SIGKILL and SIGSTOP, which need no reset.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                DEFAULT.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SET_BYTES,
            )
        };
    }
}

/// Executes the program. It does not use `execvp`, which passes a file without `#!` to a shell.
fn exec(prepared: &Prepared) -> Errno {
    match nix::unistd::execve(&prepared.program, &prepared.argv, &prepared.env) {
        Err(errno) => errno,
    }
}

fn close_on_exec_from(first: RawFd) {
    let first = libc::c_uint::try_from(first).unwrap_or(3);
    // SAFETY: the call only sets a flag on descriptors. A kernel without this call changes nothing;
    // our own descriptors were opened with the flag.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
}

/// Waits until the call ends for any reason, and then ends all processes that are left. `leader` is
/// the process of the tool itself.
fn watch(
    leader: Pid,
    mut hold: Option<GroupHold>,
    timeout: Duration,
    lifeline: &UnixStream,
    signals: &SignalFd,
) -> Report {
    let deadline = Instant::now().checked_add(timeout);
    let mut kill_at: Option<Instant> = None;
    let mut status = None;
    let (mut timed_out, mut stopped) = (false, false);
    let mut grace = GRACE;
    loop {
        let reaped = tree::reap(leader);
        status = status.or(reaped.leader);
        let now = Instant::now();
        match kill_at {
            // The end of the leader ends the call at once; all processes that are left are killed.
            None if status.is_some() => break,
            None if deadline.is_some_and(|deadline| now >= deadline) => timed_out = true,
            Some(at) if reaped.none_left || now >= at => break,
            _ => {}
        }
        if kill_at.is_none() && (timed_out || stopped) {
            kill_at = Some(now + grace);
            // The leader was not reaped yet, so the group is still its own.
            if !grace.is_zero() {
                let _ = killpg(leader, Signal::SIGTERM);
            }
            continue;
        }
        match wait(kill_at.or(deadline), lifeline, signals, &mut hold, kill_at.is_none()) {
            StopOrder::None => {}
            StopOrder::End => stopped = true,
            StopOrder::KillAtOnce => (stopped, grace) = (true, Duration::ZERO),
        }
    }
    if status.is_none() {
        let _ = killpg(leader, Signal::SIGKILL);
    }
    let reaped = tree::reap(leader);
    status = status.or(reaped.leader);
    if !reaped.none_left {
        // Kill the processes that wait for the hold before the hold refuses them, so that they
        // cannot report the refusal.
        tree::kill_groups(None);
    }
    // From here on, no process of the call can leave its group (PROC-2).
    drop(hold);
    let survivors = if reaped.none_left { 0 } else { tree::end_children(leader, &mut status) };
    let end = match status {
        Some(WaitStatus::Exited(_, code)) => Ending::Exited(code),
        Some(WaitStatus::Signaled(_, number, _)) => Ending::Signaled(number as i32),
        _ => Ending::Signaled(libc::SIGKILL),
    };
    Report { end, timed_out, stopped, survivors }
}

/// The order that [`wait`] received.
enum StopOrder {
    None,
    End,
    KillAtOnce,
}

/// Waits for a signal, for a process that asks for a new group, for an order or the end of the
/// lifeline (if `with_lifeline`), or until the moment `until`.
fn wait(
    until: Option<Instant>,
    lifeline: &UnixStream,
    signals: &SignalFd,
    hold: &mut Option<GroupHold>,
    with_lifeline: bool,
) -> StopOrder {
    /// The longest single wait, because the timeout of `poll` is bounded. If `until` is later, the
    /// caller waits again.
    const LONGEST: Duration = Duration::from_secs(30);
    let rest =
        until.map_or(LONGEST, |until| until.saturating_duration_since(Instant::now()).min(LONGEST));
    let timeout =
        PollTimeout::try_from(rest + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    // A descriptor that we do not need must not wake us, so `signals` takes its place.
    let lifeline_events = if with_lifeline { PollFlags::POLLIN } else { PollFlags::empty() };
    let held = hold.as_ref().map_or_else(|| signals.as_fd(), |hold| hold.as_fd());
    let mut fds = [
        PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        PollFd::new(held, PollFlags::POLLIN),
        PollFd::new(
            if with_lifeline { lifeline.as_fd() } else { signals.as_fd() },
            lifeline_events,
        ),
    ];
    let _ = poll(&mut fds, timeout);
    let [_, of_hold, of_lifeline] = fds.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
    if hold.is_some() && of_hold.contains(PollFlags::POLLIN) {
        hold.iter().for_each(GroupHold::agree);
    } else if hold.is_some() && !of_hold.is_empty() {
        // The listener has hung up: no process of the call is left.
        *hold = None;
    }
    let mut told = false;
    while let Ok(Some(info)) = signals.read_signal() {
        told |= i32::try_from(info.ssi_signo).is_ok_and(|number| number != libc::SIGCHLD);
    }
    if with_lifeline && !of_lifeline.is_empty() {
        let mut order = [0];
        // The lifeline is ready, so this does not block.
        match (&mut &*lifeline).read(&mut order) {
            Ok(1) if order == [KILL_AT_ONCE] => StopOrder::KillAtOnce,
            _ => StopOrder::End,
        }
    } else if told {
        StopOrder::End
    } else {
        StopOrder::None
    }
}
