//! What ends a run from outside its loop.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Limits;
use crate::domain::{Event, Stop, StopReason};

/// Tells when a run is to end: somebody stops it, or its time is up.
#[derive(Debug, Clone)]
pub struct StopSignal {
    stop: watch::Receiver<Option<Stop>>,
    deadline: Instant,
}

impl StopSignal {
    /// Returns a signal that is given as soon as `stop` holds a reason, or at `deadline`.
    #[must_use]
    pub fn new(stop: watch::Receiver<Option<Stop>>, deadline: Instant) -> Self {
        Self { stop, deadline }
    }

    /// Waits until the run is to end; returns why.
    ///
    /// *Cancel*: safe.
    pub async fn reason(&self) -> StopReason {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            stop = async { stop.wait_for(Option::is_some).await.map(|stop| stop.clone()) } => match stop {
                Ok(Some(stop)) => stop.reason,
                // Whoever could stop the run is gone, and with it the daemon.
                Ok(None) | Err(_) => StopReason::Interrupted,
            },
            () = tokio::time::sleep_until(self.deadline) => StopReason::MaxDuration,
        }
    }

    /// Tells whether somebody stopped the run already.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Returns what stopped the run, if somebody did.
    #[must_use]
    pub fn given(&self) -> Option<Stop> {
        self.stop.borrow().clone()
    }
}

/// Returns the event of a limit that is checked outside the loop, and what its end tells the operator; `None` if `reason` is not such a limit.
#[must_use]
pub fn outer_limit(reason: StopReason, limits: &Limits) -> Option<(Event, String)> {
    let (limit, value, error) = match reason {
        StopReason::MaxDuration => {
            let seconds = limits.max_duration.as_secs();
            ("max_duration", seconds, format!("the run took longer than {seconds} s"))
        }
        // The temporary directory is the only budget that is checked outside the loop.
        StopReason::BudgetExceeded => {
            let most = limits.max_tmp_bytes;
            let error = format!("the temporary directory of the run took more than {most} bytes");
            ("max_tmp_bytes", most, error)
        }
        _ => return None,
    };
    Some((Event::TurnLimit { limit: limit.to_owned(), value }, error))
}
