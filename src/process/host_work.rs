//! Work on files of this host that a dead file system can hold up forever.
//!
//! A network file system whose server is gone blocks the thread that touches it. Such work runs on a
//! thread of its own, so that it holds up neither the runtime nor its end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The longest time that the caller of [`on_host`] waits.
const DEADLINE: Duration = Duration::from_secs(10);

/// Maximum number of threads that are busy or blocked at the same time.
const MAX_THREADS: usize = 256;

/// Maximum number of threads of one owner that are blocked although their callers have given up. One
/// job on a dead file system must not take the threads of all.
const MAX_BLOCKED: usize = 8;

static THREADS: AtomicUsize = AtomicUsize::new(0);

static OWNERS: Mutex<BTreeMap<String, Arc<AtomicUsize>>> = Mutex::new(BTreeMap::new());

/// Why the work has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostWorkError {
    /// The work takes too long, or the caller stopped waiting. Its thread continues on its own.
    #[error("the file system gave no answer in time")]
    Late,
    /// Too much other work is blocked: of this owner ([`MAX_BLOCKED`]), or of all.
    #[error("too many file operations wait for a file system that gives no answer")]
    Busy,
    /// The work panicked, or its thread could not start.
    #[error("a bug in dutyd, or the host has no thread left")]
    Failed,
}

/// Runs the work on files of this host for one owner: a job, or the daemon itself.
#[derive(Debug, Clone)]
pub struct HostWork {
    /// The threads of the owner whose callers have given up.
    blocked: Arc<AtomicUsize>,
}

/// Counts a thread until it is dropped.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of one call of [`HostWork::run`], which its caller and its thread share. Each of the
/// two sets `is_over` when it finishes. If the caller finishes first, the thread counts as blocked
/// until it ends.
struct WorkState {
    is_over: AtomicBool,
    blocked: Arc<AtomicUsize>,
}

impl WorkState {
    fn ended(&self) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            self.blocked.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Drops when the caller has a result or stops waiting. In the second case, counts the thread as
/// blocked.
struct CallerGuard(Arc<WorkState>);

impl Drop for CallerGuard {
    fn drop(&mut self) {
        // Add first: the thread subtracts as soon as it sees that `is_over` was set.
        self.0.blocked.fetch_add(1, Ordering::AcqRel);
        if self.0.is_over.swap(true, Ordering::AcqRel) {
            self.0.blocked.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl HostWork {
    /// Returns the work of this owner: the name of a job, or an empty text for the daemon.
    #[must_use]
    pub fn of(owner: &str) -> Self {
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        Self { blocked: owners.entry(owner.to_owned()).or_default().clone() }
    }

    /// Runs `work` on a thread of its own and waits at most 10 s for the result.
    ///
    /// *Errors*: [`HostWorkError`]. *Cancel*: the work continues; its result is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostWorkError> {
        self.run_within(DEADLINE, work).await
    }

    /// Like [`Self::run`], but waits at most `limit`.
    ///
    /// *Errors* and *cancel*: as [`Self::run`].
    pub async fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostWorkError> {
        if self.blocked.load(Ordering::Acquire) >= MAX_BLOCKED {
            return Err(HostWorkError::Busy);
        }
        if THREADS.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS {
            THREADS.fetch_sub(1, Ordering::Relaxed);
            return Err(HostWorkError::Busy);
        }
        let (reply, answer) = oneshot::channel();
        let counted = Counted;
        // Work on a remote host waits for the runtime.
        let runtime = Handle::current();
        let state =
            Arc::new(WorkState { is_over: AtomicBool::new(false), blocked: self.blocked.clone() });
        let of_thread = state.clone();
        let thread = std::thread::Builder::new().name("host-work".to_owned()).spawn(move || {
            let _counted = counted;
            let _entered = runtime.enter();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            of_thread.ended();
            if let Ok(value) = done {
                let _ = reply.send(value);
            }
        });
        if thread.is_err() {
            return Err(HostWorkError::Failed);
        }
        let _guard = CallerGuard(state);
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(HostWorkError::Failed),
            Err(_) => Err(HostWorkError::Late),
        }
    }
}

/// Runs work of the daemon itself ([`HostWork::run`]).
///
/// *Errors* and *cancel*: as [`HostWork::run`].
pub async fn on_host<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HostWorkError> {
    HostWork::of("").run(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_hangs_ends_for_its_caller() {
        assert_eq!(on_host(|| 7).await, Ok(7));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let of_job = HostWork::of("a job that hangs");
        let hangs = of_job.run_within(Duration::from_millis(10), move || wait.recv().is_ok());
        assert_eq!(hangs.await, Err(HostWorkError::Late));
        assert_eq!(of_job.blocked.load(Ordering::Acquire), 1);
        drop(go);
        assert_eq!(on_host(|| panic!("a bug")).await, Err::<(), _>(HostWorkError::Failed));
    }

    #[tokio::test]
    async fn a_job_whose_files_hang_does_not_use_up_the_threads_of_others() {
        let (one, other) = (HostWork::of("one of two jobs"), HostWork::of("the other job"));
        let mut gates = Vec::new();
        for _ in 0..MAX_BLOCKED {
            let (gate, wait) = std::sync::mpsc::channel::<()>();
            gates.push(gate);
            let hangs = one.run_within(Duration::from_millis(1), move || wait.recv().is_ok());
            assert_eq!(hangs.await, Err(HostWorkError::Late));
        }
        assert_eq!(one.run(|| 7).await, Err(HostWorkError::Busy));
        assert_eq!(other.run(|| 7).await, Ok(7));
        drop(gates);
        while one.blocked.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        assert_eq!(one.run(|| 7).await, Ok(7));
    }
}
