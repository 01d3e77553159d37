//! Faults that tests inject. Only the cargo feature `faults` compiles this file; a release has
//! nothing of it.
//!
//! The environment variable `DUTYD_FAULTS` names one fault: `kill_after_line=N` kills this process
//! with SIGKILL after line `N` (its `seq`) of any transcript reached the kernel,
//! `panic_in_job=NAME` makes the session of each run of a job panic, `panic_in_prompt=NAME` makes its
//! run panic before the session, `fail_line_once=TYPE` fails the first write of a line of this
//! type as if the disk were full, and `no_directory_for=RUN` fails the temporary directory of a run.

use std::sync::LazyLock;

#[expect(
    clippy::disallowed_methods,
    reason = "a fault is not part of the configuration, and a release has none"
)]
static FAULT: LazyLock<Option<(String, String)>> = LazyLock::new(|| {
    let fault = std::env::var("DUTYD_FAULTS").ok()?;
    fault.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
});

fn is_set(name: &str, value: &str) -> bool {
    FAULT.as_ref().is_some_and(|(of, given)| of == name && given == value)
}

/// Injects the fault that follows a line of a transcript.
pub(super) fn after_line(seq: u64) {
    if is_set("kill_after_line", &seq.to_string()) {
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        // The signal is on its way; nothing may happen before it arrives.
        loop {
            std::thread::park();
        }
    }
}

/// Fails the first write of a line of this type, if `DUTYD_FAULTS` names the type.
///
/// *Errors*: the fault.
pub(super) fn before_line(kind: Option<&str>) -> std::io::Result<()> {
    static HAS_FAILED: std::sync::Once = std::sync::Once::new();
    let mut result = Ok(());
    if kind.is_some_and(|kind| is_set("fail_line_once", kind)) {
        HAS_FAILED.call_once(|| result = Err(nix::errno::Errno::ENOSPC.into()));
    }
    result
}

/// Injects the fault in the temporary directory of this run.
///
/// *Errors*: the fault.
pub(super) fn in_temporary(run_id: &str) -> std::io::Result<()> {
    if is_set("no_directory_for", run_id) { Err(nix::errno::Errno::ENOTDIR.into()) } else { Ok(()) }
}

/// Injects the fault in the session of a run of `job`.
pub(crate) fn in_session(job: &str) {
    panic_if(is_set("panic_in_job", job));
}

/// Injects the fault in a run of `job` before its session.
pub(crate) fn in_prompt(job: &str) {
    panic_if(is_set("panic_in_prompt", job));
}

#[expect(clippy::panic, reason = "the panic is the fault")]
fn panic_if(is_set: bool) {
    if is_set {
        panic!("a fault of a test");
    }
}
