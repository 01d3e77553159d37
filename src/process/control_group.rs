//! Control groups: one per run, if systemd delegated the daemon's own group to it (`Delegate=yes`).
//!
//! The daemon moves into a leaf group, because the kernel accepts limits only below a group without
//! processes. A process of a run joins the group of the run before it executes its program. A
//! sandboxed tool cannot leave that group, so one write to the `cgroup.kill` of the group kills all
//! of the tool's processes. Shims stay in the group of the daemon, so that they survive this kill
//! and can report.
//!
//! *Source*: `cgroups(7)`; `docs/design/gate.md`, "What a process gets"; systemd,
//! "Control Group APIs and Delegation".

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::limits::PROCESSES;

/// The directories where version 2 of control groups may be mounted: alone, or beside the
/// hierarchies of version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The extended attributes with which systemd marks a delegated group. Only root can read the
/// second one.
const MARKS: [&str; 2] = ["user.delegate", "trusted.delegate"];

const DAEMON: &str = "daemon";

/// The prefix of the names of run groups.
const RUN_PREFIX: &str = "run-";

/// How long the kernel may take to end the processes of a group.
const PATIENCE: Duration = Duration::from_secs(2);

/// The delegated control group of the daemon, with one group per run below it.
#[derive(Debug)]
pub struct ControlGroups {
    directory: PathBuf,
    /// The name of the delegated group, as in `/proc/self/cgroup`.
    name: String,
    /// Bytes of memory that the processes of one run may use together; `None` means that only the
    /// limit of the delegated group applies.
    memory: Option<u64>,
}

impl ControlGroups {
    /// Takes over the control group of this process and moves this process into a leaf; `None` if
    /// the group is not delegated. Processes that this process started earlier stay outside the
    /// leaf.
    ///
    /// *Errors*: the OS error, or `cgroup.kill` is missing; this process then stays in its group.
    pub fn take() -> io::Result<Option<Self>> {
        let Some((mount, name)) = own() else { return Ok(None) };
        // This daemon may have been started in the leaf of its predecessor.
        let above = name.strip_suffix(DAEMON).and_then(|name| name.strip_suffix('/'));
        let above = above.map(str::to_owned);
        let Some((directory, name)) = std::iter::once(name)
            .chain(above)
            .map(|name| (mount.join(name.trim_start_matches('/')), name))
            .find(|(directory, name)| is_delegated(directory, name))
        else {
            return Ok(None);
        };
        let leaf = directory.join(DAEMON);
        make(&leaf)?;
        if !leaf.join("cgroup.kill").exists() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "cgroup.kill (Linux 5.14) is missing",
            ));
        }
        write(&leaf.join("cgroup.procs"), &std::process::id().to_string())?;
        let (mut memory, switch) = (None, directory.join("cgroup.subtree_control"));
        // A system without these controllers still has groups.
        let _ = write(&switch, "+pids");
        if write(&switch, "+memory").is_ok() {
            let whole = std::fs::read_to_string(directory.join("memory.max")).unwrap_or_default();
            // A run may use three quarters. The rest is for the daemon: otherwise, the kernel could
            // kill the daemon when memory runs out.
            memory = whole.trim().parse::<u64>().ok().map(|whole| whole / 4 * 3);
        }
        Ok(Some(Self { directory, name, memory }))
    }

    /// Returns the name of the delegated group, as in `/proc/self/cgroup`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates the group of a run.
    ///
    /// *Errors*: the OS error.
    pub(crate) fn of_run(&self, run_id: &str) -> io::Result<RunGroup> {
        let name = format!("{RUN_PREFIX}{run_id}");
        let directory = self.directory.join(&name);
        make(&directory)?;
        let group = RunGroup {
            procs: OpenOptions::new().write(true).open(directory.join("cgroup.procs"))?,
            directory,
            name: format!("{}/{name}", self.name.trim_end_matches('/')),
            has_ended: AtomicBool::new(false),
        };
        if self.has("pids") {
            write(&group.directory.join("pids.max"), &PROCESSES.to_string())?;
        }
        if let Some(memory) = self.memory {
            write(&group.directory.join("memory.max"), &memory.to_string())?;
        }
        Ok(group)
    }

    fn has(&self, controller: &str) -> bool {
        std::fs::read_to_string(self.directory.join("cgroup.subtree_control"))
            .is_ok_and(|known| known.split_whitespace().any(|known| known == controller))
    }

    /// Ends the processes that an earlier daemon left in the groups of its runs; `is_ours`
    /// recognizes the ids of these runs. Returns how many processes it found. Blocks for at most
    /// 2 s per group.
    #[must_use]
    pub fn end_orphans(&self, is_ours: impl Fn(&str) -> bool) -> u64 {
        let of_runs = below(&self.directory).into_iter().filter(|directory| {
            let name = directory.file_name().and_then(|name| name.to_str());
            name.and_then(|name| name.strip_prefix(RUN_PREFIX)).is_some_and(&is_ours)
        });
        of_runs.map(|directory| end(&directory).0).sum()
    }
}

/// The control group of one run. Dropping it without [`Self::end`] kills every process in it.
#[derive(Debug)]
pub(crate) struct RunGroup {
    directory: PathBuf,
    name: String,
    procs: File,
    has_ended: AtomicBool,
}

impl RunGroup {
    /// Returns the name as `/proc` shows it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file to which a process writes `0` to join the group.
    pub(crate) fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Ends all processes of the group and removes it; returns how many processes the kernel could
    /// not end.
    pub(crate) async fn end(self: Arc<Self>) -> u64 {
        tokio::task::spawn_blocking(move || self.end_now()).await.unwrap_or(0)
    }

    fn end_now(&self) -> u64 {
        self.has_ended.store(true, Ordering::Relaxed);
        let (found, is_empty) = end(&self.directory);
        if found > 0 {
            tracing::warn!(group = self.name, found, "killed processes that outlived their calls");
        }
        if is_empty { 0 } else { count(&self.directory) }
    }
}

impl Drop for RunGroup {
    fn drop(&mut self) {
        if !self.has_ended.load(Ordering::Relaxed) {
            let _ = write(&self.directory.join("cgroup.kill"), "1");
            // A group with a process that has not ended yet stays; the next start of the daemon
            // removes it.
            remove(&self.directory);
        }
    }
}

/// Kills all processes of a group and removes it; returns how many it found, and whether all are
/// gone.
fn end(directory: &Path) -> (u64, bool) {
    let found = count(directory);
    if found > 0 {
        let _ = write(&directory.join("cgroup.kill"), "1");
    }
    let is_empty = wait_until_empty(directory);
    remove(directory);
    (found, is_empty)
}

/// Counts the processes of a group and of the groups below it.
fn count(directory: &Path) -> u64 {
    let own = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    below(directory).iter().map(|group| count(group)).sum::<u64>() + own.lines().count() as u64
}

fn remove(directory: &Path) {
    for group in below(directory) {
        remove(&group);
    }
    // The removal fails if the group still holds a process; the next start of the daemon tries
    // again.
    let _ = std::fs::remove_dir(directory);
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| entry.path()).collect()
}

/// Waits until a group holds no process, for at most [`PATIENCE`]; returns whether it is empty.
fn wait_until_empty(directory: &Path) -> bool {
    let Ok(events) = File::open(directory.join("cgroup.events")) else { return true };
    let until = Instant::now() + PATIENCE;
    loop {
        // Read before each `poll`, which reports changes since the last read of this file.
        let mut said = [0; 256];
        let length = events.read_at(&mut said, 0).unwrap_or(0);
        let said = String::from_utf8_lossy(said.get(..length).unwrap_or_default());
        if !said.contains("populated 1") {
            return true;
        }
        let rest = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(rest).unwrap_or(PollTimeout::ZERO);
        let mut changes = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        if rest.is_zero() || poll(&mut changes, timeout).is_err() {
            return false;
        }
    }
}

/// Returns where the control groups of version 2 are mounted.
#[must_use]
pub fn control_groups_mount() -> Option<&'static str> {
    MOUNTS.into_iter().find(|mount| {
        statfs(*mount).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC)
    })
}

/// Returns where the groups are mounted, and the name of the group of this process.
fn own() -> Option<(&'static Path, String)> {
    let mount = control_groups_mount()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let name = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some((Path::new(mount), name.to_owned()))
}

/// Tells whether systemd delegated a group to its service. Before version 251, only root can read
/// the mark of a delegation; other users see only the owner of the group. The owner proves a
/// delegation only for a system service that does not run as root: root owns the groups that are
/// not delegated, and under a user's own systemd, that user owns every group.
fn is_delegated(directory: &Path, name: &str) -> bool {
    let is_marked = MARKS.iter().any(|mark| {
        let mut value = [0; 8];
        rustix::fs::getxattr(directory, *mark, &mut value)
            .is_ok_and(|length| value.get(..length) == Some(b"1"))
    });
    let user = nix::unistd::geteuid();
    let may_be = name.ends_with(".service") && !name.contains("/user@") && !user.is_root();
    let is_its_owner =
        || std::fs::metadata(directory).is_ok_and(|group| group.uid() == user.as_raw());
    is_marked || may_be && is_its_owner()
}

fn make(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Writes a word to a control file, in a single write.
fn write(path: &Path, word: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(word.as_bytes())
}
