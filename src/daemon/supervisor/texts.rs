//! Gives texts of people to runs that are not over.

use super::{Kind, Supervisor};
use crate::agent::{GivenText, InboxError};
use crate::daemon::book::Phase;
use crate::daemon::command::{CommandError, TakenText, TextRequest};
use crate::domain::{QueuedText, RunId, StopReason, TextError, TextKind};

/// When a run takes a text, for people.
const WITH_NEXT_REQUEST: &str =
    "the model gets it with its next request; calls not yet started are skipped";
const AFTER_ANSWER: &str = "it is the next input once the model has answered the current one";
const WITH_FIRST_REQUEST: &str = "the run has not begun; the model gets it after the task";
const AFTER_TASK: &str = "the run has not begun; it is the next input after the task";
const ONCE_CONTINUED: &str = "the run waits to continue, and takes it then";

impl Supervisor {
    /// Gives a text to a run. Replies once the text is recorded: in the transcript of an active run, else
    /// in the ledger.
    pub(super) async fn give_text(&mut self, request: TextRequest) {
        let TextRequest { run_id, kind, text, by, reply } = request;
        let taken = match self.when_taken(&run_id, kind) {
            Ok(taken) => taken,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let text_id = ulid::Ulid::generate().to_string().to_lowercase();
        // A run that continues after a crash has the text from its record, where secrets are redacted.
        let redacted = self.redactor().text(&text).into_owned();
        let text = match QueuedText::new(text_id, kind, redacted, by) {
            Ok(text) => text,
            Err(error) => return drop(reply.send(Err(CommandError::Invalid(error.to_string())))),
        };
        let accepted = TakenText { run_id: run_id.clone(), kind, taken: taken.to_owned() };
        if self.book.get(&run_id).is_some_and(|run| run.phase.kind() == Kind::Active) {
            let of = run_id.clone();
            let answer = Box::new(move |given: Result<(), InboxError>| {
                let given = given.map(|()| accepted).map_err(|error| match error {
                    InboxError::Over => CommandError::Ending(of),
                    error @ (InboxError::Busy | InboxError::Text(_)) => {
                        CommandError::TextRefused(error.to_string())
                    }
                    InboxError::Record(error) => CommandError::TextUnrecorded(error.to_string()),
                });
                let _ = reply.send(given);
            });
            // A text that the run drops has no answer, which the client takes for the end of the run.
            self.tasks.give(&run_id, GivenText { text, answer });
            return;
        }
        let now = self.parts.host.clock.now();
        let kept = match self.parts.ledger.keep_text(run_id, text, now).await {
            Ok(true) => Ok(accepted),
            Ok(false) => Err(CommandError::TextRefused(TextError::Full.to_string())),
            Err(error) => Err(CommandError::TextUnrecorded(error.to_string())),
        };
        let _ = reply.send(kept);
    }

    /// Returns when a run takes a text that comes now.
    ///
    /// *Errors*: it takes none.
    fn when_taken(&self, run_id: &RunId, kind: TextKind) -> Result<&'static str, CommandError> {
        let Some(run) = self.book.get(run_id) else {
            return Err(match self.parts.host.state.find_run(run_id) {
                Some(_) => CommandError::Over(run_id.clone()),
                None => CommandError::NoRun(run_id.clone()),
            });
        };
        if let Some(stop) = &run.stop {
            return Err(match stop.reason {
                StopReason::Interrupted => CommandError::Stopping,
                _ => CommandError::Ending(run_id.clone()),
            });
        }
        match (&run.phase, kind) {
            (
                Phase::Queued { resumed: Some(_), .. } | Phase::Open { is_given_up: false, .. },
                _,
            ) => Ok(ONCE_CONTINUED),
            (Phase::Delayed { .. } | Phase::Queued { .. }, TextKind::Steering) => {
                Ok(WITH_FIRST_REQUEST)
            }
            (Phase::Delayed { .. } | Phase::Queued { .. }, TextKind::FollowUp) => Ok(AFTER_TASK),
            (Phase::Active { .. }, TextKind::Steering) => Ok(WITH_NEXT_REQUEST),
            (Phase::Active { .. }, TextKind::FollowUp) => Ok(AFTER_ANSWER),
            (Phase::Open { is_given_up: true, .. } | Phase::Settling(_), _) => {
                Err(CommandError::Ending(run_id.clone()))
            }
        }
    }
}
