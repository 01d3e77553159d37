//! The limits of a tool process. One of them limits nothing and serves as a mark: it identifies the
//! run of a process, even if shim, fork server and daemon were killed at once (PROC-11).
//!
//! *Source*: `getrlimit(2)`; `proc_pid_limits(5)`.

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use sha2::{Digest as _, Sha256};

/// Bytes of the largest file that a tool may write.
const FILE_BYTES: u64 = 16 << 30;
/// Descriptors that a tool may have open.
const OPEN_FILES: u64 = 4096;
/// Limit on the processes of the daemon's user, and on those in the control group of a run: a tool
/// cannot start more. The systemd unit allows twice as many, so the daemon has room. The limit per
/// user does not apply to root.
pub(super) const PROCESSES: u64 = 4096;

/// The lowest mark. No program sets such a limit, and an unlimited process has a higher one.
const LEAST_MARK: u64 = 1 << 61;

/// The line of the marked limit in `/proc/PID/limits`.
const MARKED: &str = "Max file locks";

/// Returns the mark of a run's processes.
pub(super) fn mark_of(run_id: &str) -> u64 {
    let digest = Sha256::digest(run_id);
    let number =
        digest.iter().take(8).fold(0, |number: u64, byte| (number << 8) | u64::from(*byte));
    LEAST_MARK + number % LEAST_MARK
}

/// Limits this process, and marks it with `mark`.
///
/// *Errors*: the OS error.
pub(super) fn put_on(mark: u64) -> Result<(), Errno> {
    limit(Resource::RLIMIT_CORE, 0)?;
    limit(Resource::RLIMIT_FSIZE, FILE_BYTES)?;
    limit(Resource::RLIMIT_NOFILE, OPEN_FILES)?;
    if !nix::unistd::geteuid().is_root() {
        limit(Resource::RLIMIT_NPROC, PROCESSES)?;
    }
    // Linux has not enforced this limit since 2.4, but every process inherits it, no exec removes it,
    // and everyone may read it. Setting it fails only where it is lower already; the process is then
    // recognized by its environment. A tool of a tool keeps the mark of the outer run.
    let (_, hard) = getrlimit(Resource::RLIMIT_LOCKS)?;
    if !(LEAST_MARK..RLIM_INFINITY).contains(&hard) {
        let _ = setrlimit(Resource::RLIMIT_LOCKS, mark, mark);
    }
    Ok(())
}

fn limit(resource: Resource, most: u64) -> Result<(), Errno> {
    let (soft, hard) = getrlimit(resource)?;
    setrlimit(resource, soft.min(most), hard.min(most))
}

/// Returns the limit that may be a mark, from the content of `/proc/PID/limits`; `None` if the process
/// has no such limit, and so is not a tool.
pub(super) fn mark_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(MARKED))?;
    let hard = line.split_whitespace().nth(1)?;
    // Without a limit, the word is `unlimited`.
    hard.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_from_the_limits_of_a_process() {
        let limits = |hard: &dyn std::fmt::Display| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \nMax file locks            {hard:<20} {hard:<20} locks     \nMax pending signals       96365                96365                signals   \n"
            )
        };
        let mark = mark_of("01J0000000000000000000TEST");
        assert_eq!(mark_in(&limits(&mark)), Some(mark));
        assert_ne!(mark, mark_of("01J0000000000000000000TEST2"));
        assert_eq!(mark_in(&limits(&"unlimited")), None);
        assert_eq!(mark_in(&limits(&1024)), Some(1024));
        assert_eq!(mark_in(""), None);
        assert!(mark < nix::libc::RLIM_INFINITY);
    }
}
