//! How people reach a run while it works.

use tokio::sync::watch;

use crate::agent::Inbox;
use crate::domain::Stop;

/// How a run is ended and steered from outside.
#[derive(Clone)]
pub struct Controls {
    /// Holds a stop once the run must end.
    pub stop: watch::Receiver<Option<Stop>>,
    pub inbox: Inbox,
}

impl From<watch::Receiver<Option<Stop>>> for Controls {
    /// Returns the controls of a run to which nobody can give texts.
    fn from(stop: watch::Receiver<Option<Stop>>) -> Self {
        Self { stop, inbox: Inbox::default() }
    }
}
