//! Work on files of this host that a dead file system can hold up forever.
//!
//! A network file system whose server is gone blocks the thread that touches it. Such work runs on a
//! thread of its own, so that it holds up neither the runtime nor its end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The longest time that the caller of [`on_host`] waits.
const DEADLINE: Duration = Duration::from_secs(10);

/// Maximum number of threads that are busy or blocked at the same time.
const MAX_THREADS: usize = 256;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Why the work has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostWorkError {
    /// The work takes too long. Its thread continues on its own.
    #[error("the file system gave no answer in time")]
    Late,
    /// Too much other work is blocked.
    #[error("too many file operations wait for a file system that gives no answer")]
    Busy,
    /// The work panicked, or its thread could not start.
    #[error("a bug in dutyd, or the host has no thread left")]
    Failed,
}

/// Counts a thread until it is dropped.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work` on a thread of its own and waits at most 10 s for the result.
///
/// *Errors*: [`HostWorkError`]. *Cancel*: the work continues; its result is dropped.
pub async fn on_host<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HostWorkError> {
    on_host_within(DEADLINE, work).await
}

/// Like [`on_host`], but waits at most `limit`.
///
/// *Errors* and *cancel*: as [`on_host`].
pub async fn on_host_within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HostWorkError> {
    if THREADS.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        return Err(HostWorkError::Busy);
    }
    let (reply, answer) = oneshot::channel();
    let counted = Counted;
    // Work on a remote host waits for the runtime.
    let runtime = Handle::current();
    let thread = std::thread::Builder::new().name("host-work".to_owned()).spawn(move || {
        let _counted = counted;
        let _entered = runtime.enter();
        let _ = reply.send(work());
    });
    if thread.is_err() {
        return Err(HostWorkError::Failed);
    }
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(HostWorkError::Failed),
        Err(_) => Err(HostWorkError::Late),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_hangs_ends_for_its_caller() {
        assert_eq!(on_host(|| 7).await, Ok(7));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let hangs = on_host_within(Duration::from_millis(10), move || wait.recv().is_ok());
        assert_eq!(hangs.await, Err(HostWorkError::Late));
        drop(go);
        assert_eq!(on_host(|| panic!("a bug")).await, Err::<(), _>(HostWorkError::Failed));
    }
}
