//! Control groups: one for each run, where systemd has left the daemon's own to it (`Delegate=yes`).
//!
//! The daemon moves into a leaf of its own, because the kernel takes limits only below a group without processes. What a run starts joins the
//! run's group just before it executes, and nothing that a held tool does afterwards leads out: its end is one write. Shims stay with the daemon,
//! so that they can report.
//!
//! *Source*: `cgroups(7)`; `docs/design/gate.md`, "What a process gets"; systemd, "Control Group APIs and Delegation".

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

use super::shim::PROCESSES;

/// Where systemd mounts the hierarchy: alone, or beside those of version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// By which systemd marks what it leaves to a service; the second only root can read.
const MARKS: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// The daemon's leaf.
const DAEMON: &str = "daemon";

/// What the name of a run's group begins with.
const RUN_PREFIX: &str = "run-";

/// How long the kernel may take to end a group.
const PATIENCE: Duration = Duration::from_secs(2);

/// The daemon's control group.
#[derive(Debug)]
pub struct ControlGroups {
    directory: PathBuf,
    /// As `/proc` names it.
    name: String,
    /// Bytes that the processes of one run may use; `None` is without a limit of its own.
    memory: Option<u64>,
}

impl ControlGroups {
    /// Takes the control group of this process as its own and moves it into a leaf; `None` if it was not left to it. What it has started before
    /// stays outside.
    ///
    /// *Errors*: what the kernel says; the group stays as it was.
    pub fn take() -> io::Result<Option<Self>> {
        let Some((mount, name)) = own() else { return Ok(None) };
        // It may have been started where its predecessor had moved to.
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
        // A system without these controllers has the groups all the same.
        let _ = write(&switch, "+pids");
        if write(&switch, "+memory").is_ok() {
            let whole = std::fs::read_to_string(directory.join("memory.max")).unwrap_or_default();
            // The rest is for the daemon, which the kernel would else have to choose from as well.
            memory = whole.trim().parse::<u64>().ok().map(|whole| whole / 4 * 3);
        }
        Ok(Some(Self { directory, name, memory }))
    }

    /// As `/proc` names it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the group of a run.
    ///
    /// *Errors*: what the kernel says.
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

    /// Ends what a daemon before this one left in the groups of its runs; `is_ours` knows them by their ids. Returns how many processes that
    /// were. Blocks, at most 2 s a group.
    #[must_use]
    pub fn end_orphans(&self, is_ours: impl Fn(&str) -> bool) -> u64 {
        let of_runs = below(&self.directory).into_iter().filter(|directory| {
            let name = directory.file_name().and_then(|name| name.to_str());
            name.and_then(|name| name.strip_prefix(RUN_PREFIX)).is_some_and(&is_ours)
        });
        of_runs.map(|directory| end(&directory).0).sum()
    }
}

/// The control group of one run. If it is dropped without [`Self::end`], whatever is in it is killed.
#[derive(Debug)]
pub(crate) struct RunGroup {
    directory: PathBuf,
    name: String,
    procs: File,
    has_ended: AtomicBool,
}

impl RunGroup {
    /// As `/proc` names it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// To this, a process writes `0` to join.
    pub(crate) fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Ends whatever is in the group, and the group; returns how many processes the kernel could not end.
    pub(crate) async fn end(self: Arc<Self>) -> u64 {
        tokio::task::spawn_blocking(move || self.end_now()).await.unwrap_or(0)
    }

    fn end_now(&self) -> u64 {
        self.has_ended.store(true, Ordering::Relaxed);
        let (found, is_empty) = end(&self.directory);
        if found > 0 {
            tracing::warn!(
                group = self.name,
                found,
                "processes outlived their calls; they are killed"
            );
        }
        if is_empty { 0 } else { count(&self.directory) }
    }
}

impl Drop for RunGroup {
    fn drop(&mut self) {
        if !self.has_ended.load(Ordering::Relaxed) {
            let _ = write(&self.directory.join("cgroup.kill"), "1");
            // While something of it ends, it stays; the next start takes it away.
            remove(&self.directory);
        }
    }
}

/// Kills whatever is in a group and takes it away; returns how many processes were found, and whether all are gone.
fn end(directory: &Path) -> (u64, bool) {
    let found = count(directory);
    if found > 0 {
        let _ = write(&directory.join("cgroup.kill"), "1");
    }
    let is_empty = wait_until_empty(directory);
    remove(directory);
    (found, is_empty)
}

/// Counts the processes of a group and of those below it.
fn count(directory: &Path) -> u64 {
    let own = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    below(directory).iter().map(|group| count(group)).sum::<u64>() + own.lines().count() as u64
}

fn remove(directory: &Path) {
    for group in below(directory) {
        remove(&group);
    }
    // One that cannot be taken away holds a process that the kernel does not end; the next start tries again.
    let _ = std::fs::remove_dir(directory);
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| entry.path()).collect()
}

/// Waits until the kernel says that a group holds no process; returns whether it did.
fn wait_until_empty(directory: &Path) -> bool {
    let Ok(events) = File::open(directory.join("cgroup.events")) else { return true };
    let until = Instant::now() + PATIENCE;
    loop {
        // What has changed since this file was read is what `poll` tells.
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

/// Returns where the kernel's control groups are mounted.
#[must_use]
pub fn control_groups_mount() -> Option<&'static str> {
    MOUNTS.into_iter().find(|mount| {
        statfs(*mount).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC)
    })
}

/// Returns where the groups are mounted and the name of this process's own.
fn own() -> Option<(&'static Path, String)> {
    let mount = control_groups_mount()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let name = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some((Path::new(mount), name.to_owned()))
}

/// Tells whether systemd left a group to its service. Before its version 251 only the owner shows it, of services of the system: everything that
/// a user's own systemd starts belongs to the user.
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

/// Control files take one word in one write.
fn write(path: &Path, word: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(word.as_bytes())
}
