//! The sandbox of a tool: Landlock for files and signals, seccomp for sockets and for what Landlock
//! does not cover.
//!
//! The daemon builds a [`SandboxProfile`] from a [`SandboxPolicy`] before the tool starts. The
//! child of a shim applies the profile to itself just before it executes the tool; no process can
//! remove the profile again. A directory above a closed path ([`SandboxPolicy::closed`]) is allowed
//! entry by entry. So an entry that appears in it after the profile was built cannot be read.
//!
//! *Source*: `landlock(7)`; `seccomp(2)`; `docs/design/gate.md`, "What a process gets".
#![expect(unsafe_code, reason = "two system calls without a wrapper; each says why it is sound")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};
use nix::errno::Errno;
use nix::libc;
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde::{Deserialize, Serialize};

use super::group_hold;

/// The first Landlock ABI that also restricts truncation: with an older one, a tool could empty a
/// file without the right to write.
const LEAST_ABI: u32 = 3;

/// Devices that every program may use. The rest of `/dev` is closed, because it contains disks and
/// other users' terminals.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The access rights of a tool's processes. All paths are absolute and resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPolicy {
    /// Trees that may be neither read nor written; everything else except `/dev` may be read.
    pub closed: Vec<PathBuf>,
    /// Trees that may be read although a closed tree contains them.
    pub readable: Vec<PathBuf>,
    /// Trees that may be read and written, even inside a closed tree.
    pub writable: Vec<PathBuf>,
    /// Whether the modes, owners, times and attributes of files, the clock and the host name may be
    /// changed; Landlock does not restrict any of this.
    pub metadata: bool,
    /// Whether sockets may be created; `false` refuses local sockets too.
    pub network: bool,
    /// Whether System V IPC, POSIX message queues and keyrings may be used; none of them has a
    /// path.
    pub ipc: bool,
    /// Capabilities that a process of root keeps, as a bit mask.
    pub capabilities: u64,
}

/// A policy in the form that the kernel accepts.
#[derive(Debug, Clone)]
pub struct SandboxProfile {
    ruleset: Option<Arc<OwnedFd>>,
    filter: Filter,
    capabilities: u64,
}

/// The groups of system calls that the seccomp filter can refuse; `true` allows a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Filter {
    metadata: bool,
    network: bool,
    ipc: bool,
}

/// Why a sandbox cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel has no Landlock, or a version that is too old.
    #[error(
        "the sandbox needs Landlock ABI {LEAST_ABI} (Linux 6.2), but this process gets ABI {found} (0: Landlock is missing, or the unit or container closes it)"
    )]
    Kernel {
        /// The Landlock ABI of the kernel; 0 if it has none.
        found: u32,
    },
    /// The kernel rejects a rule.
    #[error("the kernel rejects the sandbox rules: {0}")]
    Ruleset(#[from] RulesetError),
}

/// Returns the Landlock ABI of this kernel; `None` if Landlock is missing or disabled.
#[must_use]
pub fn landlock_abi() -> Option<u32> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag, the kernel reads nothing and only returns a number.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION)
    };
    u32::try_from(abi).ok().filter(|abi| *abi > 0)
}

/// The first Landlock ABI that restricts signals to other processes.
const SIGNAL_ABI: u32 = 6;

/// Returns a clause that names what a kernel with this Landlock ABI cannot restrict, for the end of
/// a text; empty if there is no such gap.
#[must_use]
pub fn sandbox_gaps(abi: u32) -> &'static str {
    if abi < SIGNAL_ABI {
        "; signals to other processes are not restricted (requires Linux 6.12)"
    } else {
        ""
    }
}

/// Returns the Landlock ABI if this kernel can sandbox a tool.
///
/// *Errors*: [`SandboxError::Kernel`].
pub fn sandbox_support() -> Result<u32, SandboxError> {
    match landlock_abi() {
        Some(abi) if abi >= LEAST_ABI => Ok(abi),
        found => Err(SandboxError::Kernel { found: found.unwrap_or(0) }),
    }
}

impl SandboxProfile {
    /// Builds a profile. If `is_strict`, a kernel that cannot sandbox a tool is an error;
    /// otherwise, the profile restricts as much as the kernel can.
    ///
    /// *Errors*: [`SandboxError`].
    pub fn build(policy: &SandboxPolicy, is_strict: bool) -> Result<Self, SandboxError> {
        if is_strict {
            sandbox_support()?;
        }
        let SandboxPolicy { metadata, network, ipc, capabilities, .. } = *policy;
        let filter = Filter { metadata, network, ipc };
        let ruleset = Option::<OwnedFd>::from(ruleset(policy)?).map(Arc::new);
        Ok(Self { ruleset, filter, capabilities })
    }

    pub(crate) fn ruleset(&self) -> Option<BorrowedFd<'_>> {
        self.ruleset.as_ref().map(|fd| fd.as_fd())
    }

    pub(crate) fn filter(&self) -> Filter {
        self.filter
    }

    pub(crate) fn capabilities(&self) -> u64 {
        self.capabilities
    }
}

fn read_rights() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute
}

/// All rights except making devices: a device in a writable tree would give access to the disk.
fn write_rights() -> BitFlags<AccessFs> {
    AccessFs::from_all(ABI::V3) & !(AccessFs::MakeBlock | AccessFs::MakeChar)
}

fn ruleset(policy: &SandboxPolicy) -> Result<RulesetCreated, SandboxError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V3))?
        .scope(Scope::from_all(ABI::V6))?
        .create()?;
    let mut closed: Vec<&Path> = policy.closed.iter().map(PathBuf::as_path).collect();
    closed.push(Path::new("/dev"));
    allow(&mut rules, Path::new("/"), &closed, read_rights())?;
    for path in DEVICES {
        let rights = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir;
        allow(&mut rules, Path::new(path), &[], rights)?;
    }
    for path in &policy.readable {
        allow(&mut rules, path, &beneath(path, &closed), read_rights())?;
    }
    for path in &policy.writable {
        allow(&mut rules, path, &beneath(path, &closed), write_rights())?;
    }
    Ok(rules)
}

/// Returns the paths in `closed` that are below `root`.
fn beneath<'a>(root: &Path, closed: &[&'a Path]) -> Vec<&'a Path> {
    closed.iter().filter(|path| path.starts_with(root) && **path != root).copied().collect()
}

/// Allows `rights` in the tree `path`, except for closed paths. A directory above a closed path is
/// allowed entry by entry.
fn allow(
    rules: &mut RulesetCreated,
    path: &Path,
    closed: &[&Path],
    rights: BitFlags<AccessFs>,
) -> Result<(), SandboxError> {
    if closed.contains(&path) {
        return Ok(());
    }
    if closed.iter().any(|closed| closed.starts_with(path)) {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            // The path of a symlink's target decides whether the target is allowed.
            if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                allow(rules, &entry.path(), closed, rights)?;
            }
        }
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // If a path does not exist, or if we cannot reach it, then the tool cannot reach it either.
    let Ok(fd) = openat(CWD, path, flags, Mode::empty()) else { return Ok(()) };
    let kind = rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let rights = match kind {
        Ok(FileType::Directory) => rights,
        Ok(FileType::Symlink) | Err(_) => return Ok(()),
        Ok(_) => rights & AccessFs::from_file(ABI::V3),
    };
    rules.add_rule(PathBeneath::new(fd, rights))?;
    Ok(())
}

/// Permanently removes every capability except `kept`, a bit mask, from the programs that this
/// process will execute.
fn drop_capabilities(kept: u64) {
    use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
    let bits = (0..u64::BITS).map(|number| 1_u64 << number);
    for bit in bits.filter(|bit| kept & bit == 0) {
        // The first error ends the loop: the kernel does not know this number nor any above it
        // (EINVAL), or this process may not drop capabilities, and then has none (EPERM).
        if remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(bit)).is_err() {
            break;
        }
    }
}

/// The compiled filters, made once by the fork server.
pub(super) struct Filters {
    sandboxed: Vec<(Filter, BpfProgram)>,
    free: BpfProgram,
}

impl Filters {
    /// Compiles a filter for each combination of rights.
    ///
    /// *Errors*: `ENOSYS` if seccompiler does not support the architecture of this machine.
    pub(super) fn new() -> Result<Self, Errno> {
        let filters = (0..8).map(|bits| Filter {
            metadata: bits & 1 != 0,
            network: bits & 2 != 0,
            ipc: bits & 4 != 0,
        });
        let compiled = filters.map(|filter| filter.compile().map(|program| (filter, program)));
        let sandboxed = compiled.collect::<Result<_, _>>().map_err(|_| Errno::ENOSYS)?;
        Ok(Self { sandboxed, free: group_hold::only_the_hold() })
    }

    /// Applies the sandbox to this process permanently and returns the listener of the hold on its
    /// process groups ([`group_hold`]), if the kernel offers one. A process of root keeps
    /// `capabilities`. Without a `filter`, this applies only the hold.
    ///
    /// *Errors*: the OS error; the process must then end.
    pub(super) fn put_on(
        &self,
        filter: Option<Filter>,
        capabilities: u64,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, Errno> {
        let Some(filter) = filter else { return group_hold::put_on(&self.free) };
        drop_capabilities(capabilities);
        if let Some(ruleset) = ruleset {
            // SAFETY: the kernel only reads the descriptor, which is open.
            let result = unsafe {
                libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32)
            };
            Errno::result(result)?;
        }
        let known = self.sandboxed.iter().find(|(known, _)| *known == filter);
        let (_, program) = known.ok_or(Errno::EINVAL)?;
        group_hold::put_on(program)
    }
}

/// System calls that would bypass the rules: they open files by handle, pass work to threads of the
/// kernel, mount file systems, or control the kernel itself.
const NEVER: &[libc::c_long] = &[
    libc::SYS_open_by_handle_at,
    libc::SYS_io_uring_setup,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_userfaultfd,
];

/// System calls that change a file without opening it for writing, or that set the clock or the
/// host name.
const METADATA: &[libc::c_long] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SYS_SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// System calls for IPC without a path, which may reach another process of the same user.
const IPC: &[libc::c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// System calls whose first argument is a process or thread; zero means the caller.
const BY_PROCESS: &[libc::c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

/// `setpriority` and `ioprio_set`, each with the value of its first argument that means "all
/// processes of a user". The second argument names the target; zero means the caller.
const BY_KIND: &[(libc::c_long, u64)] = &[(libc::SYS_setpriority, 2), (libc::SYS_ioprio_set, 3)];

/// Numbers of system calls that `libc` does not name yet; they are the same on every architecture.
const SYS_FCHMODAT2: libc::c_long = 452;
const SYS_SETXATTRAT: libc::c_long = 463;
const SYS_REMOVEXATTRAT: libc::c_long = 466;
const SYS_FILE_SETATTR: libc::c_long = 469;

/// `ioctl` requests that set file flags such as "immutable". Root can send them through a
/// descriptor that is open only for reading.
const FS_IOC_SETFLAGS: u64 = 0x4008_6602;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;

/// Older forms of the calls in [`METADATA`], which only this architecture has.
#[cfg(target_arch = "x86_64")]
const OLDER_METADATA: &[libc::c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_METADATA: &[libc::c_long] = &[];

impl Filter {
    fn compile(self) -> Result<BpfProgram, seccompiler::BackendError> {
        let metadata = METADATA.iter().chain(OLDER_METADATA).filter(|_| !self.metadata);
        let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> =
            NEVER.iter().chain(metadata).map(|number| (*number, Vec::new())).collect();
        if !self.network {
            // Refuse local sockets too: a daemon behind one could start processes without a
            // sandbox.
            rules.insert(libc::SYS_socket, Vec::new());
        }
        if !self.ipc {
            rules.extend(IPC.iter().map(|number| (*number, Vec::new())));
        }
        let argument =
            |at, is, value| SeccompCondition::new(at, SeccompCmpArgLen::Dword, is, value);
        // Changing the limits and priorities of other processes of the same user is as bad as a
        // signal: the daemon is one of them.
        for number in BY_PROCESS {
            let others = argument(0, SeccompCmpOp::Ne, 0)?;
            rules.insert(*number, vec![SeccompRule::new(vec![others])?]);
        }
        for (number, of_user) in BY_KIND {
            let others = SeccompRule::new(vec![argument(1, SeccompCmpOp::Ne, 0)?])?;
            let of_user = SeccompRule::new(vec![argument(0, SeccompCmpOp::Eq, *of_user)?])?;
            rules.insert(*number, vec![others, of_user]);
        }
        if !self.metadata {
            let by_ioctl = |request| {
                let request =
                    SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request)?;
                SeccompRule::new(vec![request])
            };
            let requests = [by_ioctl(FS_IOC_SETFLAGS)?, by_ioctl(FS_IOC_FSSETXATTR)?];
            rules.insert(libc::SYS_ioctl, requests.into());
        }
        let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let arch = std::env::consts::ARCH.try_into()?;
        let filter: BpfProgram =
            SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()?;
        // One program instead of two: the kernel compiles each program anew for each process.
        Ok([group_hold::head(), filter].concat())
    }
}

/// Resolves all links in the existing part of a path. A path that does not exist yet can then be
/// compared by where it would be.
///
/// *Errors*: the OS error, except "not found"; `ELOOP` for a magic link.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut missing = Vec::new();
    let mut at = path;
    loop {
        match super::real_path(at) {
            Ok(real) => return Ok(missing.iter().rev().fold(real, |path, name| path.join(name))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
                    return Err(error);
                };
                missing.push(name);
                at = parent;
            }
            Err(error) => return Err(error),
        }
    }
}
