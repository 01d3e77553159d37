//! Starts processes and ends all that they start. No other folder starts a process.
//!
//! Every tool runs below a shim, a small single-threaded process of this binary. The shim is the
//! subreaper of everything that the tool starts and holds one end of a lifeline socket. When the
//! call ends, the deadline passes, the run is cancelled or the daemon dies, the shim ends the whole
//! tree. The fork server (`dutyd __exec`) forks the shims. The child of a shim applies the kernel
//! sandbox to itself, then executes the tool. This folder knows neither models nor policies.

mod beneath;
mod control_group;
mod exec_relay;
mod fork_server;
mod group_hold;
mod host_work;
mod limits;
mod memory;
mod messages;
mod orphans;
mod piped;
mod real_path;
mod sandbox;
mod shim;
mod spawner;
mod tree;
mod wire;

pub use beneath::{open_beneath, open_without_links};
pub use control_group::{ControlGroups, control_groups_mount};
pub(crate) use exec_relay::MARK_START;
pub use exec_relay::{HUNG_UP, RELAY_VERB, run_relay};
pub use fork_server::{ForkServer, run_fork_server};
pub use host_work::{HostWork, HostWorkError, on_host};
pub use memory::{return_freed, share_heap};
pub use orphans::{Orphans, end_orphans, is_tool};
pub use piped::{Piped, PipedEnd, PipedEnded};
pub use real_path::{path_of, real_path};
pub use sandbox::{
    SandboxError, SandboxPolicy, SandboxProfile, landlock_abi, resolved, sandbox_gaps,
    sandbox_support,
};
pub use spawner::{Exit, ProcessSpec, SpawnFailure, Spawner, prepare_daemon};

/// The argument that starts this binary as the fork server.
pub const FORK_SERVER_VERB: &str = "__exec";

/// The prefix of the process names of shims and of the fork server.
pub(crate) const SHIM_PREFIX: &str = "dutyd:";

/// The process name of the fork server, and of a shim that waits for its request.
pub(crate) const FORK_SERVER_NAME: &str = "dutyd:forks";

/// Bytes of a process name that the kernel keeps.
pub(crate) const NAME_LIMIT: usize = 15;

/// Returns the process name of the shims of a run. It contains the end of the run id, which is the
/// random part.
pub(crate) fn shim_name(run_id: &str) -> String {
    let from = run_id.len().saturating_sub(NAME_LIMIT - SHIM_PREFIX.len());
    format!("{SHIM_PREFIX}{}", run_id.get(from..).unwrap_or_default())
}

/// Returns the kernel features that this program needs, and whether each one is available.
#[must_use]
pub fn kernel_features() -> Vec<(&'static str, bool)> {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    vec![
        ("pidfd_open (5.3)", pidfd_open(getpid(), PidfdFlags::empty()).is_ok()),
        ("openat2 (5.6)", beneath::has_openat2()),
        ("seccomp notifications (5.0)", group_hold::is_supported()),
        ("/proc", std::fs::metadata("/proc/self/stat").is_ok()),
    ]
}

/// The time between SIGTERM and SIGKILL.
pub(crate) const GRACE: std::time::Duration = std::time::Duration::from_secs(2);

/// Returns the user of this host with the given uid; a user without a name is shown as `#uid`.
#[must_use]
pub fn person(uid: u32) -> crate::domain::Person {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    let user = user.map_or_else(|| format!("#{uid}"), |user| user.name);
    crate::domain::Person { uid, user }
}
