//! Faults that tests inject. Only the cargo feature `faults` compiles this file; a release has
//! nothing of it.
//!
//! The environment variable `DUTYD_FAULTS` names one fault: `kill_after_line=N` kills this process
//! with SIGKILL after line `N` (its `seq`) of any transcript reached the kernel.

use std::sync::LazyLock;

#[expect(
    clippy::disallowed_methods,
    reason = "a fault is not part of the configuration, and a release has none"
)]
static KILL_AFTER: LazyLock<Option<u64>> = LazyLock::new(|| {
    std::env::var("DUTYD_FAULTS").ok()?.strip_prefix("kill_after_line=")?.parse().ok()
});

/// Injects the fault that follows a line of a transcript.
pub(super) fn after_line(seq: u64) {
    if *KILL_AFTER == Some(seq) {
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        // The signal is on its way; nothing may happen before it arrives.
        loop {
            std::thread::park();
        }
    }
}
