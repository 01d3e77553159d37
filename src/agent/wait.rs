//! The model calls in progress. The daemon reads them: a run that waits for its model works on
//! nothing, so its place does not hold up the runs of other models.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::domain::Outage;

/// A call is listed once it has lasted for this long. Listing each shorter one would only wake the
/// daemon, and a longer pause would make the runs of other models miss slots of a second.
const LISTED_AFTER: Duration = Duration::from_millis(100);

/// A call of a model with all its attempts.
#[derive(Debug)]
pub struct ModelWait {
    /// The name of the model in the configuration.
    pub model: String,
    /// When the first attempt began.
    pub since: Instant,
    /// Whether a byte of an answer has arrived in the current attempt.
    is_answering: AtomicBool,
}

impl ModelWait {
    pub(super) fn new(model: &str) -> Self {
        let (model, is_answering) = (model.to_owned(), AtomicBool::new(false));
        Self { model, since: Instant::now(), is_answering }
    }

    /// Tells whether no byte of an answer has arrived in the current attempt.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        !self.is_answering.load(Ordering::Relaxed)
    }

    pub(super) fn begin_attempt(&self) {
        self.is_answering.store(false, Ordering::Relaxed);
    }

    pub(super) fn begin_answer(&self) {
        self.is_answering.store(true, Ordering::Relaxed);
    }
}

/// The model calls in progress, by the id of the run.
#[derive(Debug, Clone, Default)]
pub struct ModelWaits(Arc<Listed>);

#[derive(Debug, Default)]
struct Listed {
    waits: Mutex<BTreeMap<String, Arc<ModelWait>>>,
    answers: Mutex<Answers>,
    added: Notify,
}

/// The models of which the daemon wants to hear, and what has happened.
#[derive(Debug, Default)]
struct Answers {
    /// The digest of the settings of each model.
    wanted: BTreeMap<String, String>,
    heard: HeardOfModels,
}

/// What has happened to the calls of models of which the daemon wants to hear.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeardOfModels {
    /// The models that have answered.
    pub answers: BTreeSet<String>,
    /// The models that failed, each with the id of the run.
    pub failures: Vec<(String, Outage)>,
}

impl ModelWaits {
    /// Returns the calls that are listed now.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, Arc<ModelWait>> {
        self.locked().clone()
    }

    /// Sets the models, each with the digest of its settings, whose next answer and whose failures are
    /// to be noted.
    pub fn want(&self, models: BTreeMap<String, String>) {
        self.answers().wanted = models;
    }

    /// Returns what has happened since the last call.
    #[must_use]
    pub fn take_heard(&self) -> HeardOfModels {
        std::mem::take(&mut self.answers().heard)
    }

    /// Notes that a model with these settings has answered.
    pub(super) fn note_answer(&self, model: &str, settings: &str) {
        let mut answers = self.answers();
        if answers.wanted.get(model).is_some_and(|wanted| wanted == settings) {
            answers.wanted.remove(model);
            answers.heard.answers.insert(model.to_owned());
            self.0.added.notify_one();
        }
    }

    /// Notes that a model has failed a run.
    pub(super) fn note_failure(&self, run_id: &str, outage: Outage) {
        let mut answers = self.answers();
        if answers.wanted.get(&outage.model).is_some_and(|wanted| *wanted == outage.settings) {
            answers.heard.failures.push((run_id.to_owned(), outage));
            self.0.added.notify_one();
        }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns as soon as a call has been listed, or something was noted, since it last returned.
    /// Supports one caller.
    ///
    /// *Cancel*: safe.
    pub async fn added(&self) {
        self.0.added.notified().await;
    }

    /// Lists the call of a run once it has lasted for a moment.
    ///
    /// *Cancel*: dropping this future removes the call from the list. Poll it beside the model
    /// call, and drop both together.
    pub(super) async fn list(&self, run_id: &str, wait: Arc<ModelWait>) -> Infallible {
        tokio::time::sleep_until(wait.since + LISTED_AFTER).await;
        self.locked().insert(run_id.to_owned(), wait);
        let _entry = Entry { waits: self, run_id };
        self.0.added.notify_one();
        std::future::pending().await
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ModelWait>>> {
        self.0.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry in the list; removed when dropped.
struct Entry<'a> {
    waits: &'a ModelWaits,
    run_id: &'a str,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.waits.locked().remove(self.run_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_listed_after_a_moment_and_until_it_ends() {
        let waits = ModelWaits::default();
        let wait = Arc::new(ModelWait::new("m"));
        let mut listing = Box::pin(waits.list("run", wait.clone()));
        tokio::select! {
            biased;
            never = &mut listing => match never {},
            () = tokio::time::sleep(LISTED_AFTER / 2) => {}
        }
        assert!(waits.all().is_empty(), "a short call does not wake the daemon");
        tokio::select! {
            biased;
            never = &mut listing => match never {},
            () = waits.added() => {}
        }
        let listed = || waits.all().get("run").map(|wait| (wait.model.clone(), wait.is_silent()));
        assert_eq!(listed(), Some(("m".to_owned(), true)));
        wait.begin_answer();
        assert_eq!(listed(), Some(("m".to_owned(), false)));
        wait.begin_attempt();
        assert_eq!(listed(), Some(("m".to_owned(), true)));
        drop(listing);
        assert_eq!(listed(), None);
    }

    #[tokio::test]
    async fn only_what_is_wanted_is_noted_and_an_answer_once() {
        let waits = ModelWaits::default();
        let outage = |settings: &str| Outage {
            model: "m".to_owned(),
            settings: settings.to_owned(),
            cause: "no".to_owned(),
            retry_after: None,
            at: chrono::DateTime::UNIX_EPOCH,
        };
        waits.note_answer("m", "new key");
        waits.note_failure("run", outage("new key"));
        assert_eq!(waits.take_heard(), HeardOfModels::default());
        waits.want(BTreeMap::from([("m".to_owned(), "new key".to_owned())]));
        waits.note_answer("other", "new key");
        waits.note_answer("m", "old key");
        waits.note_failure("run", outage("old key"));
        assert_eq!(waits.take_heard(), HeardOfModels::default());
        waits.note_failure("run", outage("new key"));
        waits.note_answer("m", "new key");
        waits.note_answer("m", "new key");
        waits.added().await;
        let heard = waits.take_heard();
        assert_eq!(heard.answers, BTreeSet::from(["m".to_owned()]));
        assert_eq!(heard.failures, [("run".to_owned(), outage("new key"))]);
        assert_eq!(waits.take_heard(), HeardOfModels::default());
    }
}
