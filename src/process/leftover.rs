//! Shims of runs whose daemon is dead.
//!
//! A shim ends by itself when its lifeline does; this waits for it, and kills what does not.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{GRACE, SHIM_MARK, tree};

/// What a shim needs after its lifeline has ended.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Waits until no shim with one of these marks is alive, and kills what is left after the grace; returns how many shims there were.
///
/// Blocks; at most about 4 s.
#[must_use]
pub fn end_leftovers(marks: &BTreeSet<String>) -> u64 {
    let until = Instant::now() + GRACE + PATIENCE;
    let found = shims(marks);
    let mut left = found.clone();
    while !left.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        left.retain(|seen| tree::look(seen.pid) == Some(*seen));
    }
    for shim in left {
        let _ = tree::kill_below(shim.pid, &|_| false);
        tree::signal(shim, Signal::KILL);
    }
    found.len() as u64
}

fn shims(marks: &BTreeSet<String>) -> Vec<tree::Seen> {
    if marks.is_empty() {
        return Vec::new();
    }
    tree::all()
        .into_iter()
        .filter(|seen| mark_of(seen.pid).is_some_and(|mark| marks.contains(&mark)))
        .collect()
}

fn mark_of(pid: i32) -> Option<String> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        (name == SHIM_MARK).then(|| value.to_owned())
    })
}
