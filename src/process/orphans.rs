//! Ends the orphaned shims of runs whose daemon is dead, and the fork server of that daemon.
//!
//! A shim ends by itself when its lifeline closes, and a fork server when its daemon is gone. We
//! wait for that. If one does not end, because it is stopped, for example, we kill it and all
//! processes below it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::tree::KILL_LIMIT;
use super::{FORK_SERVER_NAME, FORK_SERVER_VERB, GRACE, SHIM_PREFIX, shim_name, tree};

/// The time that a shim may take in addition to [`GRACE`] after its lifeline has closed.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Waits until no shim of these runs and no fork server of a dead daemon is alive, and kills those
/// that do not end in time. Returns how many shims it found.
///
/// Blocks for 3.5 s at most, plus the time to kill what did not end.
#[must_use]
pub fn end_orphans(run_ids: &BTreeSet<String>) -> u64 {
    let until = Instant::now() + GRACE + PATIENCE;
    let (shims, servers) = orphans(run_ids);
    let mut left: Vec<tree::Seen> = shims.iter().chain(&servers).copied().collect();
    while !left.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        left.retain(|seen| tree::look(seen.pid).is_some_and(|now| now.is_same(*seen)));
    }
    for orphan in left {
        if !tree::look(orphan.pid).is_some_and(|now| now.is_same(orphan)) {
            continue;
        }
        let _ = tree::kill_below(orphan.pid, KILL_LIMIT, &|_| false);
        tree::signal(orphan, Signal::KILL);
    }
    shims.len() as u64
}

/// Returns the shims of these runs, and the fork servers without a daemon.
///
/// A waiting shim has the name of its fork server, which is its parent, and is below it.
fn orphans(run_ids: &BTreeSet<String>) -> (Vec<tree::Seen>, Vec<tree::Seen>) {
    let names: BTreeSet<String> = run_ids.iter().map(|run_id| shim_name(run_id)).collect();
    let (mut shims, mut servers) = (Vec::new(), Vec::new());
    for seen in tree::all() {
        let name = name_of(seen.pid);
        if names.contains(&name) {
            shims.push(seen);
        } else if name == FORK_SERVER_NAME && is_orphan(seen) {
            servers.push(seen);
        }
    }
    (shims, servers)
}

/// Tells whether a process is a fork server of this user whose daemon is dead. Its last argument is
/// the pid of that daemon.
fn is_orphan(server: tree::Seen) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let own_user = rustix::process::geteuid().as_raw();
    let is_own =
        std::fs::metadata(format!("/proc/{}", server.pid)).is_ok_and(|meta| meta.uid() == own_user);
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", server.pid)).unwrap_or_default();
    let mut words = line.trim_end_matches('\0').rsplit('\0');
    let daemon: Option<i32> = words.next().and_then(|pid| pid.parse().ok());
    let is_server = words.next() == Some(FORK_SERVER_VERB);
    // A waiting shim has the command line of the fork server, and the fork server as its parent.
    let parent = tree::parent(server.pid);
    is_own
        && is_server
        && daemon.is_some()
        && parent != daemon
        && parent.is_none_or(|parent| name_of(parent) != FORK_SERVER_NAME)
}

fn name_of(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Tells whether a process is a shim or a fork server, or descends from one or from this process.
/// The control socket rejects such a process, and a process with too many ancestors to check.
///
/// This relies on what `/proc` shows: a process with hidden ancestors is not recognized as a tool.
/// A process that gives itself the name of a shim counts as a tool, and so loses only its own
/// access.
#[must_use]
pub fn is_tool(pid: i32) -> bool {
    const DEEPEST: usize = 256;
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mut at = pid;
    for _ in 0..DEEPEST {
        if at <= 1 || at == own && pid == own {
            return false;
        }
        if at == own || name_of(at).starts_with(SHIM_PREFIX) {
            return true;
        }
        match tree::parent(at) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    true
}
