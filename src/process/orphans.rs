//! Ends the orphaned shims and tools of runs whose daemon is dead, and the fork server of that
//! daemon.
//!
//! A shim ends by itself when its lifeline closes, and a fork server when its daemon is gone. We
//! wait for that. Then we kill those that did not end, because they are stopped, for example, and
//! the tools whose shim was killed. We recognize a tool by the mark of its run ([`super::limits`]) or
//! by the run's own `TMPDIR` in its environment (PROC-11).
//!
//! A process of another PID namespace belongs to another daemon (PROC-10), unless it is the first
//! process of its namespace and has the mark: then a tool made that namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::limits::{mark_in, mark_of};
use super::tree::{KILL_LIMIT, Seen, name_of};
use super::{FORK_SERVER_NAME, FORK_SERVER_VERB, GRACE, SHIM_PREFIX, shim_name, tree};

/// The time that a shim may take in addition to [`GRACE`] after its lifeline has closed.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Ancestors of a process that are looked at, at most.
const DEEPEST: usize = 256;

/// Killed processes that are logged one by one, at most.
const MOST_LOGGED: usize = 50;

/// The orphaned processes that [`end_orphans`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Orphans {
    /// The number of shims, and of the other processes that were killed.
    pub found: u64,
    /// The runs of which a process is still alive, because the kernel does not end it. Its effects may
    /// still follow.
    pub alive: BTreeSet<String>,
}

/// Waits until no shim of these runs and no fork server of a dead daemon is alive, and kills those
/// that do not end in time, and the tools of these runs that have no shim.
///
/// Blocks for 3.5 s at most, plus the time to kill what did not end.
#[must_use]
pub fn end_orphans(run_ids: &BTreeSet<String>) -> Orphans {
    let until = Instant::now() + GRACE + PATIENCE;
    // If `/proc` shows the pids of an outer namespace, they mean other processes here.
    if !is_of_our_namespace("self") {
        tracing::warn!("/proc shows another PID namespace; cannot look for orphaned processes");
        return Orphans::default();
    }
    let wanted = Wanted::new(run_ids);
    let is_orphan = |seen| (wanted.is_shim(seen) && !wanted.has_daemon(seen)) || is_server(seen);
    let mut left: Vec<Seen> = tree::all().into_iter().filter(|seen| is_orphan(*seen)).collect();
    let mut found: BTreeSet<i32> =
        left.iter().filter(|seen| wanted.is_shim(**seen)).map(|seen| seen.pid).collect();
    while !left.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        left.retain(|seen| tree::look(seen.pid).is_some_and(|now| now.is_same(*seen)));
    }
    let is_tool = |seen| wanted.run_of(seen).is_some() && !wanted.has_daemon(seen);
    let find = || tree::trees(&|seen| is_orphan(seen) || is_tool(seen));
    let mut logged = BTreeSet::new();
    let stuck = tree::kill_found(&find, KILL_LIMIT, &mut |killed| {
        for seen in killed {
            found.insert(seen.pid);
            if logged.len() < MOST_LOGGED && logged.insert(seen.pid) {
                let name = name_of(seen.pid);
                tracing::warn!(pid = seen.pid, ?name, "killed an orphaned process");
            }
        }
    });
    // A process below a tool is of the same run; one that lost its mark keeps every run waiting.
    let tools = stuck.into_iter().filter(|seen| !is_server(*seen));
    let alive = tools.flat_map(|seen| match wanted.run_of(seen) {
        Some(run_id) => vec![run_id.to_owned()],
        None => run_ids.iter().cloned().collect(),
    });
    Orphans { alive: alive.collect(), found: found.len() as u64 }
}

/// How to recognize the processes of runs.
struct Wanted<'a> {
    /// The runs by the names of their shims.
    names: BTreeMap<String, &'a str>,
    /// The runs by the marks of their tools.
    marks: BTreeMap<u64, &'a str>,
}

impl<'a> Wanted<'a> {
    fn new(run_ids: &'a BTreeSet<String>) -> Self {
        let ids = || run_ids.iter().map(String::as_str);
        Self {
            names: ids().map(|run_id| (shim_name(run_id), run_id)).collect(),
            marks: ids().map(|run_id| (mark_of(run_id), run_id)).collect(),
        }
    }

    fn is_shim(&self, seen: Seen) -> bool {
        self.names.contains_key(&name_of(seen.pid)) && is_of_our_namespace(&seen.pid.to_string())
    }

    /// Tells whether a process is below the fork server of a daemon that lives. The caller holds the
    /// lock of its state directory, so that daemon has another one: a copy, with the same run ids
    /// (PROC-10). A tool that imitates a fork server has a mark.
    fn has_daemon(&self, seen: Seen) -> bool {
        let mut at = Some(seen.pid);
        for _ in 0..DEEPEST {
            let Some(pid) = at.filter(|pid| *pid > 1) else { return false };
            if is_live_server(pid) && self.marked(pid).is_none() {
                return true;
            }
            at = tree::parent(pid);
        }
        false
    }

    /// Returns the run of a shim or of a tool.
    fn run_of(&self, seen: Seen) -> Option<&'a str> {
        let run_id = self.marked(seen.pid).or_else(|| self.names.get(&name_of(seen.pid)).copied());
        run_id.filter(|_| {
            let pids = namespace_pids(&seen.pid.to_string());
            matches!(pids.as_slice(), [_] | [_, .., 1])
        })
    }

    /// Returns the run of a tool, by its mark or by its environment.
    fn marked(&self, pid: i32) -> Option<&'a str> {
        if self.marks.is_empty() {
            return None;
        }
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let mark = mark_in(&limits)?;
        self.marks.get(&mark).copied().or_else(|| {
            // This limit was there before and could not be raised to the mark. A process of another
            // user, or one that ends, has no environment that we can read.
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            self.names.values().copied().find(|run_id| has_directory_of(&environment, run_id))
        })
    }
}

/// Tells whether an environment, as `/proc` shows it, has the temporary directory of a run.
///
/// *Shape*: `PATH=/usr/bin\0TMPDIR=/var/lib/dutyd/tmp/01K…\0`
fn has_directory_of(environment: &[u8], run_id: &str) -> bool {
    let end = format!("/tmp/{run_id}");
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|of| of.starts_with(b"TMPDIR=") && of.ends_with(end.as_bytes()))
}

/// Tells whether a process (`self` or a pid) is in the PID namespace that `/proc` shows.
fn is_of_our_namespace(process: &str) -> bool {
    namespace_pids(process).len() == 1
}

/// Returns the pids of a process in the namespaces from that of `/proc` down to its own; empty if the
/// process has ended or is hidden. *Source*: `proc_pid_status(5)`, `NSpid`.
fn namespace_pids(process: &str) -> Vec<i32> {
    let Ok(status) = std::fs::read(format!("/proc/{process}/status")) else { return Vec::new() };
    let status = String::from_utf8_lossy(&status);
    // A kernel without PID namespaces has only the first of these lines.
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let pids = field("NSpid:").or_else(|| field("Pid:")).unwrap_or_default();
    pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Tells whether a process is a fork server of this user and of this PID namespace whose daemon is
/// dead. Its last argument is the pid of that daemon, as its own namespace shows it.
///
/// A waiting shim has the name of its fork server, which is its parent, and is below it.
fn is_server(server: Seen) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let Some(daemon) = daemon_of(server.pid) else { return false };
    let own_user = rustix::process::geteuid().as_raw();
    let is_own =
        std::fs::metadata(format!("/proc/{}", server.pid)).is_ok_and(|meta| meta.uid() == own_user);
    // A waiting shim has the command line of the fork server, and the fork server as its parent.
    let parent = tree::parent(server.pid);
    is_own
        && parent != Some(daemon)
        && parent.is_none_or(|parent| name_of(parent) != FORK_SERVER_NAME)
}

/// Tells whether a process is a fork server of this PID namespace whose daemon lives.
fn is_live_server(pid: i32) -> bool {
    daemon_of(pid).is_some_and(|daemon| tree::parent(pid) == Some(daemon))
}

/// Returns the pid of the daemon that started this fork server, from its last argument; `None` if the
/// process is neither a fork server nor a waiting shim of this PID namespace.
fn daemon_of(pid: i32) -> Option<i32> {
    if name_of(pid) != FORK_SERVER_NAME || !is_of_our_namespace(&pid.to_string()) {
        return None;
    }
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.trim_end_matches('\0').rsplit('\0');
    let daemon = words.next()?.parse().ok()?;
    (words.next() == Some(FORK_SERVER_VERB)).then_some(daemon)
}

/// Tells whether a process is a shim or a fork server, or descends from one or from this process.
/// The control socket rejects such a process, and a process with too many ancestors to check.
///
/// This relies on what `/proc` shows: a process with hidden ancestors is not recognized as a tool.
/// A process that gives itself the name of a shim counts as a tool, and so loses only its own
/// access.
#[must_use]
pub fn is_tool(pid: i32) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_directory_of_a_run_tells_its_tools() {
        let check = |environment: &str| has_directory_of(environment.as_bytes(), "01RUN");
        assert!(check("PATH=/bin\0TMPDIR=/var/lib/dutyd/tmp/01RUN\0HOME=/\0"));
        assert!(!check("PATH=/bin\0TMPDIR=/var/lib/dutyd/tmp/01RUN2\0"));
        assert!(!check("RUN=/var/lib/dutyd/tmp/01RUN\0"));
        assert!(!check(""));
    }

    // proves PROC-10
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process")]
    fn a_process_of_another_pid_namespace_is_not_ours() {
        assert!(is_of_our_namespace("self"));
        assert!(!is_of_our_namespace("no such process"));
        let inner = std::process::Command::new("unshare")
            .args(["--user", "--pid", "--fork", "--kill-child", "cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let Ok(mut unshare) = inner else { return };
        // Once `cat` answers, it runs in the new namespace. Without user namespaces it never does.
        use std::io::{Read as _, Write as _};
        let _ = unshare.stdin.as_mut().unwrap().write_all(b"x");
        let mut answer = [0];
        if unshare.stdout.as_mut().unwrap().read(&mut answer).unwrap() == 1 {
            let outer = i32::try_from(unshare.id()).unwrap();
            let [cat] = tree::descendants(outer).try_into().unwrap();
            assert!(is_of_our_namespace(&outer.to_string()));
            assert_eq!(namespace_pids(&cat.pid.to_string()), [cat.pid, 1]);
            assert!(!is_of_our_namespace(&cat.pid.to_string()));
        }
        drop(unshare.stdin.take());
        unshare.wait().unwrap();
    }
}
