//! The tree of processes below one, and how it is ended.
//!
//! Reads `/proc`; a process is only signalled through a pidfd that was checked to be the one that was seen, so that a reused pid is never hit
//! (PROC-8).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a killed tree may take to be gone, if the kernel holds a process of it in a device wait. Such a process can outlast it, and is counted.
const KILL_LIMIT: Duration = Duration::from_millis(900);

/// How long a killed tree may take to be gone where only the machine is busy.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    parent: i32,
    /// In clock ticks since boot; tells a reused pid.
    started: u64,
}

/// Returns the process `pid`; `None` if there is none.
pub(crate) fn look(pid: i32) -> Option<Seen> {
    // The kernel writes a name as it is, UTF-8 or not.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name in parentheses may hold anything; the fields begin after the last one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    let threads: u32 = fields.get(17)?.parse().ok()?;
    // A process whose first thread has ended shows as a zombie while the others live.
    if state == "X" || (state == "Z" && threads <= 1) {
        return None;
    }
    Some(Seen { pid, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
}

/// Returns every process that there is.
pub(crate) fn all() -> Vec<Seen> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| look(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// Returns the processes below `root`, without it.
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

/// Signals exactly the process that was seen.
pub(crate) fn signal(seen: Seen, signal: Signal) {
    // Zero and less mean groups, and everything.
    let Some(pid) = (seen.pid > 1).then(|| rustix::process::Pid::from_raw(seen.pid)).flatten()
    else {
        return;
    };
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if look(seen.pid).is_some_and(|now| now.started == seen.started) {
        let _ = pidfd_send_signal(&fd, signal);
    }
}

/// Kills everything below `root` and reaps what became our child; returns how many are left.
///
/// All are stopped before any is killed, so that few can fork their way out. Where `root` is this process, their groups are killed as well, which
/// also ends a chain of forks.
pub(crate) fn kill_below(root: i32, spare: &dyn Fn(Seen) -> bool) -> u64 {
    let began = Instant::now();
    let find = || descendants(root).into_iter().filter(|seen| !spare(*seen)).collect::<Vec<_>>();
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
            if began.elapsed() > KILL_LIMIT {
                break;
            }
        }
        let victims = find();
        for seen in &victims {
            signal(*seen, Signal::KILL);
        }
        if root == own_pid() {
            kill_groups(Some(spare));
        }
        if victims.is_empty() {
            return 0;
        }
        std::thread::sleep(Duration::from_millis(2));
        for seen in &victims {
            let _ = waitpid(Pid::from_raw(seen.pid), Some(WaitPidFlag::WNOHANG));
        }
        if let Some(left) = left_after(began, || find().iter().map(|seen| seen.pid).collect()) {
            return left;
        }
    }
}

/// Returns how many killed processes are left when their time is over; `None` while it is not. A process that only waits for a core to end on can
/// do nothing any more, and is not counted.
fn left_after(began: Instant, find: impl Fn() -> Vec<i32>) -> Option<u64> {
    if began.elapsed() <= KILL_LIMIT {
        return None;
    }
    let stuck = find().into_iter().filter(|pid| is_stuck(*pid)).count() as u64;
    (stuck > 0 || began.elapsed() > BUSY_LIMIT).then_some(stuck)
}

/// Kills the children of this process with their groups, and those that become its children by that, until none is left; returns how many are.
///
/// For a subreaper to which every child belongs, while nothing below it can leave its group ([`super::group_hold`]). Of a chain of forks, each link
/// becomes a child of the subreaper when the link before it ends, and stays one until it is reaped: so its group is always known, and each round
/// ends at least one of them.
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
        if let Some(left) = left_after(began, children) {
            return left;
        }
    }
}

/// Kills each child of this process, and its whole group, but for those that are spared and their groups.
///
/// A child that was not reaped keeps its pid and the number of its group, so that no other process is hit (PROC-8). The kernel names children also
/// where `/proc` hides them. A group lies in one session, and no session but our own holds processes that are not below us.
pub(crate) fn kill_groups(spare: Option<&dyn Fn(Seen) -> bool>) {
    use rustix::process::{Pid, getpgid, getpgrp, kill_process, kill_process_group};
    let mut spared = BTreeSet::from([getpgrp().as_raw_nonzero()]);
    // Thousands of children may lie in one group.
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

/// Returns the pids of the children of this process, those that have ended and were not reaped included.
fn children() -> Vec<i32> {
    let mut pids = String::new();
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        match std::fs::read_to_string(thread.path().join("children")) {
            Ok(of_thread) => pids.push_str(&of_thread),
            // A kernel without this file.
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

/// Tells whether a process outlives its kill: the kernel holds it in a device wait, or no kill reached it.
fn is_stuck(pid: i32) -> bool {
    /// The bit of SIGKILL in a set of signals.
    const KILL: u64 = 1 << 8;
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
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

/// What [`reap`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reaped {
    /// The status of the process that was asked for.
    pub(crate) leader: Option<WaitStatus>,
    /// Whether no child is left.
    pub(crate) none_left: bool,
}

/// Reaps every child that has ended, without waiting. Only for a process whose children are all its own to reap: the shim.
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

/// Returns the parent of `pid`.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    look(pid).map(|seen| seen.parent)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    // proves PROC-8
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process to look at")]
    fn only_the_process_that_was_seen_is_signalled() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let seen = look(pid).unwrap();
        // One that had the same number before it; everything; our group; the first process.
        let never = [
            Seen { started: seen.started - 1, ..seen },
            Seen { pid: -1, ..seen },
            Seen { pid: 0, ..seen },
            Seen { pid: 1, ..seen },
            Seen { pid: -pid, ..seen },
        ];
        never.into_iter().for_each(|seen| signal(seen, Signal::KILL));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(look(pid), Some(seen), "it lives");
        signal(seen, Signal::KILL);
        child.wait().unwrap();
        signal(seen, Signal::KILL);
        assert_eq!(look(pid), None);
    }
}
