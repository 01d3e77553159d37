//! Ends the orphaned shims of runs whose daemon is dead.
//!
//! A shim ends by itself when its lifeline closes. We wait for that. If a shim does not end, we
//! kill it and all processes below it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::SHIM_PREFIX;
use super::{GRACE, shim_name, tree};

/// The time that a shim may take in addition to [`GRACE`] after its lifeline has closed.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Waits until no shim of these runs is alive, and kills those that do not end in time. Returns how
/// many shims it found.
///
/// Blocks for 3.5 s at most, plus the time to kill the shims that did not end.
#[must_use]
pub fn end_orphans(run_ids: &BTreeSet<String>) -> u64 {
    let until = Instant::now() + GRACE + PATIENCE;
    let found = shims(run_ids);
    let mut left = found.clone();
    while !left.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        left.retain(|seen| tree::look(seen.pid).is_some_and(|now| now.is_same(*seen)));
    }
    for shim in left {
        if !tree::look(shim.pid).is_some_and(|now| now.is_same(shim)) {
            continue;
        }
        let _ = tree::kill_below(shim.pid, &|_| false);
        tree::signal(shim, Signal::KILL);
    }
    found.len() as u64
}

fn shims(run_ids: &BTreeSet<String>) -> Vec<tree::Seen> {
    let names: BTreeSet<String> = run_ids.iter().map(|run_id| shim_name(run_id)).collect();
    if names.is_empty() {
        return Vec::new();
    }
    tree::all()
        .into_iter()
        .filter(|seen| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", seen.pid));
            name.is_ok_and(|name| names.contains(name.trim_end()))
        })
        .collect()
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
        let name = std::fs::read_to_string(format!("/proc/{at}/comm")).unwrap_or_default();
        if at == own || name.starts_with(SHIM_PREFIX) {
            return true;
        }
        match tree::parent(at) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    true
}
