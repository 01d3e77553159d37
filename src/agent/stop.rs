//! The signal that ends a run from outside its loop.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Limits;
use crate::domain::{Event, Stop, StopReason};

/// Signals that a run must end: it was stopped, or its deadline has passed.
#[derive(Debug, Clone)]
pub struct StopSignal {
    stop: watch::Receiver<Option<Stop>>,
    deadline: Instant,
}

impl StopSignal {
    /// Returns a signal that fires at `deadline`, or earlier once `stop` holds a request or has
    /// lost its sender.
    #[must_use]
    pub fn new(stop: watch::Receiver<Option<Stop>>, deadline: Instant) -> Self {
        Self { stop, deadline }
    }

    /// Waits until the run must end, and returns the reason.
    ///
    /// *Cancel*: safe.
    pub async fn reason(&self) -> StopReason {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            stop = async { stop.wait_for(Option::is_some).await.map(|stop| stop.clone()) } => match stop {
                Ok(Some(stop)) => stop.reason,
                // The sender is gone, and with it the daemon.
                Ok(None) | Err(_) => StopReason::Interrupted,
            },
            () = tokio::time::sleep_until(self.deadline) => StopReason::MaxDuration,
        }
    }

    /// Tells whether there is a stop request. Ignores the deadline and the loss of the sender.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Returns the stop request, if any. Ignores the deadline.
    #[must_use]
    pub fn given(&self) -> Option<Stop> {
        self.stop.borrow().clone()
    }
}

/// Returns the event and the error for the operator if `reason` is a limit that is checked outside
/// the loop; otherwise `None`.
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
    Some((Event::TurnLimit { limit: limit.to_owned(), value: value.into() }, error))
}
