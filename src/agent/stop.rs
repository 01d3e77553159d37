//! The signal that ends a run from outside its loop.

use std::time::Duration;

use serde_json::Number;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Limits;
use crate::domain::{Event, Stop, StopReason};

/// The source of a steering turn about a budget that is almost used.
pub(super) const BUDGET: &str = "budget";

/// The source of a steering turn that a person gave.
pub(crate) const PERSON: &str = "person";

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
            let seconds = in_seconds(limits.max_duration);
            ("max_duration", seconds.clone(), format!("the run took longer than {seconds} s"))
        }
        // The temporary directory is the only budget that is checked outside the loop.
        StopReason::BudgetExceeded => {
            let most = limits.max_tmp_bytes;
            let error = format!(
                "the temporary directory of the run took more than {most} bytes, or more than its share of the free space"
            );
            ("max_tmp_bytes", most.into(), error)
        }
        _ => return None,
    };
    Some((Event::TurnLimit { limit: limit.to_owned(), value }, error))
}

fn in_seconds(duration: Duration) -> Number {
    let whole = || duration.as_secs().into();
    match duration.subsec_nanos() {
        0 => whole(),
        _ => Number::from_f64(duration.as_secs_f64()).unwrap_or_else(whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_time_is_reported_in_seconds() {
        for (millis, expected) in [(60_000, "60"), (1500, "1.5")] {
            let limits =
                Limits { max_duration: Duration::from_millis(millis), ..Limits::default() };
            let (event, error) = outer_limit(StopReason::MaxDuration, &limits).unwrap();
            let Event::TurnLimit { limit, value } = event else { panic!("{event:?}") };
            assert_eq!((limit.as_str(), value.to_string().as_str()), ("max_duration", expected));
            assert_eq!(error, format!("the run took longer than {expected} s"));
        }
        assert!(outer_limit(StopReason::Completed, &Limits::default()).is_none());
    }
}
