//! Finds and ends the tree of processes below a process.
//!
//! This module reads `/proc`. It never signals a reused pid (PROC-8): before it signals a process,
//! it opens a pidfd and checks that the process is still the one that it saw. Children of this
//! process need no such check, because they keep their pids until we reap them.
//!
//! A chain of forks is a series of processes, each of which forks the next one and exits. Such a
//! chain outruns every scan of `/proc`, but not a signal to its process group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a shim waits for its killed tree to disappear. After this time, it gives up if a process
/// is stuck (see [`is_stuck`]), and counts the stuck processes. The shim must report before the
/// daemon treats it as lost.
pub(super) const KILL_LIMIT: Duration = Duration::from_millis(500);

/// How long to wait for a killed tree if no process is stuck: the machine is only busy.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    parent: i32,
    /// The start time in clock ticks since boot, which differs for a reused pid.
    started: u64,
}

impl Seen {
    /// Tells whether both are the same process. Its parent may have ended in the meantime.
    pub(crate) fn is_same(self, other: Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }
}

/// Returns the process `pid`; `None` if it does not exist or has ended.
pub(crate) fn look(pid: i32) -> Option<Seen> {
    // The kernel writes the name verbatim, even if it is not UTF-8.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name in parentheses may contain anything, so the fields begin after the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    let threads: u32 = fields.get(17)?.parse().ok()?;
    // A process whose first thread has ended looks like a zombie while its other threads live.
    if state == "X" || (state == "Z" && threads <= 1) {
        return None;
    }
    Some(Seen { pid, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
}

/// Returns every process that `/proc` shows.
pub(crate) fn all() -> Vec<Seen> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| look(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// Returns all descendants of `root`.
pub(crate) fn descendants(root: i32) -> Vec<Seen> {
    let mut children: BTreeMap<i32, Vec<Seen>> = BTreeMap::new();
    for seen in all() {
        children.entry(seen.parent).or_default().push(seen);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for seen in children.remove(&pid).unwrap_or_default() {
            open.push(seen.pid);
            found.push(seen);
        }
    }
    found
}

/// Returns the processes that `is_root` accepts, and all that is below them. Leaves out this process
/// and all that is below it.
pub(crate) fn trees(is_root: &dyn Fn(Seen) -> bool) -> Vec<Seen> {
    let own = own_pid();
    let mut children: BTreeMap<i32, Vec<Seen>> = BTreeMap::new();
    let mut open = Vec::new();
    for seen in all().into_iter().filter(|seen| seen.pid != own) {
        children.entry(seen.parent).or_default().push(seen);
        if is_root(seen) {
            open.push(seen);
        }
    }
    children.remove(&own);
    let mut found = BTreeMap::new();
    while let Some(seen) = open.pop() {
        if found.insert(seen.pid, seen).is_none() {
            open.extend(children.remove(&seen.pid).unwrap_or_default());
        }
    }
    found.into_values().collect()
}

/// Returns the name of a process, as `/proc` shows it; empty if it has ended.
pub(crate) fn name_of(pid: i32) -> String {
    // The kernel writes the name verbatim, even if it is not UTF-8.
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Signals a process only if it is still the one that was seen.
pub(crate) fn signal(seen: Seen, signal: Signal) {
    // Zero and negative pids name groups or all processes, and 1 is init.
    let Some(pid) = (seen.pid > 1).then(|| rustix::process::Pid::from_raw(seen.pid)).flatten()
    else {
        return;
    };
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if look(seen.pid).is_some_and(|now| now.is_same(seen)) {
        let _ = pidfd_send_signal(&fd, signal);
    }
}

/// Kills all descendants of `root`, except those that `spare` accepts, and reaps those that became
/// our children. Returns those that survive. Waits up to `limit` for a process that is stuck.
///
/// This function sends SIGSTOP to all of them before it kills any, so that few can fork in between.
/// If `root` is this process, the function also kills the process groups of the children of this
/// process, which ends chains of forks.
pub(crate) fn kill_below(root: i32, limit: Duration, spare: &dyn Fn(Seen) -> bool) -> Vec<Seen> {
    let find = || descendants(root).into_iter().filter(|seen| !spare(*seen)).collect::<Vec<_>>();
    kill_found(&find, limit, &mut |_| {
        if root == own_pid() {
            kill_groups(Some(spare));
        }
    })
}

/// Kills the processes that `find` returns, until it returns none, as [`kill_below`] does. Passes
/// those of each round to `on_kill` before it kills them.
pub(crate) fn kill_found(
    find: &dyn Fn() -> Vec<Seen>,
    limit: Duration,
    on_kill: &mut dyn FnMut(&[Seen]),
) -> Vec<Seen> {
    let began = Instant::now();
    let mut killed = BTreeSet::new();
    loop {
        let mut stopped = BTreeSet::new();
        loop {
            let fresh: Vec<Seen> =
                find().into_iter().filter(|seen| !stopped.contains(&seen.pid)).collect();
            if fresh.is_empty() {
                break;
            }
            for seen in fresh {
                signal(seen, Signal::STOP);
                stopped.insert(seen.pid);
            }
            if began.elapsed() > limit {
                break;
            }
        }
        let victims = find();
        on_kill(&victims);
        for seen in &victims {
            signal(*seen, Signal::KILL);
            killed.insert(seen.pid);
        }
        // A process that ends becomes our child before it can be reaped, if its parent is dead.
        killed.retain(|pid| {
            waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive)
        });
        if victims.is_empty() {
            return Vec::new();
        }
        std::thread::sleep(Duration::from_millis(2));
        if let Some(left) = left_after(began, limit, find) {
            return left;
        }
    }
}

/// Returns the stuck ones among the processes that `find` returns; `None` while it is too early to
/// give up. A process that only waits for a CPU to finish its exit cannot do anything any more and is
/// not counted.
fn left_after(began: Instant, limit: Duration, find: impl Fn() -> Vec<Seen>) -> Option<Vec<Seen>> {
    if began.elapsed() <= limit {
        return None;
    }
    let stuck: Vec<Seen> = find().into_iter().filter(|seen| is_stuck(seen.pid)).collect();
    (!stuck.is_empty() || began.elapsed() > BUSY_LIMIT).then_some(stuck)
}

/// Kills the children of this process with their groups, and also the processes that become its
/// children when their parents end. Returns how many survive. Stores the exit status of `leader`,
/// the process of the tool itself, in `status`.
///
/// Call this only in a subreaper that reaps all its children itself, and only while no process
/// below it can leave its group ([`super::group_hold`]). Each link of a chain of forks becomes a
/// child of the subreaper when the previous link ends, and stays one until it is reaped. So the
/// group of the link is always known, and each round ends at least one group.
pub(crate) fn end_children(leader: Pid, status: &mut Option<WaitStatus>) -> u64 {
    let began = Instant::now();
    loop {
        kill_groups(None);
        let reaped = reap(leader);
        *status = status.or(reaped.leader);
        if reaped.none_left {
            return 0;
        }
        std::thread::sleep(Duration::from_micros(200));
        let find = || children().into_iter().filter_map(look).collect();
        if let Some(left) = left_after(began, KILL_LIMIT, find) {
            return left.len() as u64;
        }
    }
}

/// Kills each child of this process with its whole group, except for the children that `spare`
/// accepts and their groups.
///
/// A child that was not reaped keeps its pid and its group number, so no other process is hit
/// (PROC-8). `/proc/self/task/*/children` lists the children even if `/proc` hides their
/// directories. A group lies within one session, and every session except our own began below us,
/// so killing a group hits only our own descendants.
pub(crate) fn kill_groups(spare: Option<&dyn Fn(Seen) -> bool>) {
    use rustix::process::{Pid, getpgid, getpgrp, kill_process, kill_process_group};
    let mut spared = BTreeSet::from([getpgrp().as_raw_nonzero()]);
    // One group may contain thousands of children.
    let (mut pids, mut groups) = (Vec::new(), BTreeMap::new());
    for pid in children() {
        let Some(child) = Pid::from_raw(pid) else { continue };
        let group = getpgid(Some(child)).ok();
        if spare.is_some_and(|spare| look(pid).is_some_and(spare)) {
            spared.extend(group.map(Pid::as_raw_nonzero));
        } else {
            pids.push(child);
            groups.extend(group.map(|group| (group.as_raw_nonzero(), group)));
        }
    }
    for pid in pids {
        let _ = kill_process(pid, Signal::KILL);
    }
    for (_, group) in groups.into_iter().filter(|(number, _)| !spared.contains(number)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(0)
}

/// Returns the pids of the children of this process. They include children that have ended and were
/// not reaped, if the kernel has the file `children` in `/proc`.
fn children() -> Vec<i32> {
    let mut pids = String::new();
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        match std::fs::read_to_string(thread.path().join("children")) {
            Ok(of_thread) => pids.push_str(&of_thread),
            // This kernel does not have the file. `all` returns only children that have not ended.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let own = own_pid();
                return all()
                    .iter()
                    .filter(|seen| seen.parent == own)
                    .map(|seen| seen.pid)
                    .collect();
            }
            Err(_) => {}
        }
    }
    pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Reaps the children of this process that have ended, except those that `spare` accepts.
pub(crate) fn reap_children(spare: &dyn Fn(i32) -> bool) {
    for pid in children().into_iter().filter(|pid| !spare(*pid)) {
        let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// Tells whether a process survives its kill: the kernel holds it in an uninterruptible sleep
/// (state `D`), or it has no pending SIGKILL.
fn is_stuck(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| survives_kill(&status))
}

/// Like [`is_stuck`], for the content of `/proc/PID/status`.
fn survives_kill(status: &str) -> bool {
    /// The bit of SIGKILL in a set of signals.
    const KILL: u64 = 1 << 8;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim()
    };
    let pending = |name| u64::from_str_radix(field(name), 16).unwrap_or(0);
    match field("State:").chars().next() {
        Some('Z' | 'X') | None => false,
        Some('D') => true,
        Some(_) => (pending("SigPnd:") | pending("ShdPnd:")) & KILL == 0,
    }
}

/// The result of [`reap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reaped {
    /// The exit status of the leader, if this call reaped it.
    pub(crate) leader: Option<WaitStatus>,
    /// Whether no child is left.
    pub(crate) none_left: bool,
}

/// Reaps every child that has ended, without blocking. `leader` is the process of the tool itself.
/// Call this only in the shim, which must reap all its children itself.
pub(crate) fn reap(leader: Pid) -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return reaped,
            Ok(status @ (WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)))
                if pid == leader =>
            {
                reaped.leader = Some(status);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => {
                reaped.none_left = true;
                return reaped;
            }
        }
    }
}

pub(crate) fn parent(pid: i32) -> Option<i32> {
    look(pid).map(|seen| seen.parent)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process")]
    fn a_process_that_loses_its_parent_stays_the_same() {
        let mut parent = Command::new("sh")
            .args(["-c", "sleep 60 >/dev/null & echo $!; read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(parent.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        let before = look(pid).unwrap();
        drop(parent.stdin.take());
        parent.wait().unwrap();
        let after = look(pid).unwrap();
        assert_ne!(before, after, "it has another parent");
        assert!(after.is_same(before));
        signal(before, Signal::KILL);
    }

    #[test]
    fn a_process_without_a_pending_kill_is_stuck() {
        let status = |state: &str, own: &str, shared: &str| {
            format!("Name:\tx\nState:\t{state}\nSigPnd:\t{own}\nShdPnd:\t{shared}\n")
        };
        const NONE: &str = "0000000000000000";
        const KILL: &str = "0000000000000100";
        const OTHERS: &str = "fffffffffffffeff";
        assert!(survives_kill(&status("R (running)", NONE, NONE)));
        assert!(survives_kill(&status("S (sleeping)", OTHERS, OTHERS)));
        assert!(survives_kill(&status("D (disk sleep)", KILL, KILL)));
        for (own, shared) in [(KILL, NONE), (NONE, KILL), (KILL, KILL)] {
            assert!(!survives_kill(&status("R (running)", own, shared)), "{own} {shared}");
        }
        for ended in ["Z (zombie)", "X (dead)", ""] {
            assert!(!survives_kill(&status(ended, NONE, NONE)), "{ended}");
        }
    }

    // proves PROC-8
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process")]
    fn only_the_process_that_was_seen_is_signalled() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let seen = look(pid).unwrap();
        // In order: an earlier process with the same pid, all processes, our group, init, a group.
        let never = [
            Seen { started: seen.started - 1, ..seen },
            Seen { pid: -1, ..seen },
            Seen { pid: 0, ..seen },
            Seen { pid: 1, ..seen },
            Seen { pid: -pid, ..seen },
        ];
        never.into_iter().for_each(|seen| signal(seen, Signal::KILL));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(look(pid), Some(seen), "the process must still live");
        signal(seen, Signal::KILL);
        child.wait().unwrap();
        signal(seen, Signal::KILL);
        assert_eq!(look(pid), None);
    }
}
