//! The models of a session in their order: which one it asks, and which ones failed it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{ModelInUse, Session, locked};
use crate::agent::counters::BrokenOff;
use crate::agent::machine::Input;
use crate::agent::model::{ErrorClass, ModelError};
use crate::agent::sink::RecordError;
use crate::agent::wait::ModelWait;
use crate::domain::{Outage, StopReason};
use crate::text::escape::one_line;
use crate::text::truncate::shorten;

/// Limit of the characters of the cause of an outage.
const CAUSE_CHARACTERS: usize = 300;

/// How long a call must have been silent for its model to count as failed when the time of the run is
/// over.
const SILENT: Duration = Duration::from_secs(30);

/// A call in progress.
pub(super) struct Calling {
    name: String,
    access: String,
    wait: Arc<ModelWait>,
    /// The error of its last attempt.
    failed: Option<ModelError>,
}

impl Session {
    /// Begins with the model at this index, or with another one if that is on hold.
    pub(super) async fn pass_over(&self, at: usize) -> Result<(), RecordError> {
        let is_asked = |at: &usize| {
            let model = self.parts.models.get(*at);
            model.is_some_and(|model| !self.parts.passed_over.contains(&model.name))
        };
        let count = self.parts.models.len();
        let to = (at..count).chain(0..at).find(is_asked).unwrap_or(at);
        self.at.store(to, Ordering::Relaxed);
        let models = self.parts.models.get(at).zip(self.parts.models.get(to));
        let Some((held, next)) = models.filter(|_| at != to) else { return Ok(()) };
        let why = format!("`{}` is on hold", held.name);
        self.parts.sink.record(BrokenOff::default().fallback_warning(&next.name, &why)).await
    }

    /// Calls the current model. If that model is unavailable or takes no tools, falls back to the next one that fits
    /// the cost limit.
    pub(super) async fn call_with_fallbacks(&self) -> Result<Input, RecordError> {
        locked(&self.outages).clear();
        loop {
            let at = self.at.load(Ordering::Relaxed);
            let Some(model) = self.parts.models.get(at) else {
                let error = ModelError::new(ErrorClass::NotFound, "no model is configured");
                return Ok(Input::ModelFailed(error));
            };
            let input = self.call_with_retries(model).await?;
            self.note_result(model, &input);
            let error = match input {
                Input::ModelFailed(error) => error,
                input => return Ok(input),
            };
            let takes_no_tools = error.class == ErrorClass::ToolsRejected;
            let may_fall_back =
                takes_no_tools || error.class.is_outage() && error.class != ErrorClass::Auth;
            let mut others = self.parts.models.iter().enumerate().skip(at + 1);
            let affordable = others.find(|(_, next)| {
                let is_asked = !self.parts.passed_over.contains(&next.name);
                is_asked && self.parts.machine.affords(self.facts_of(next).price)
            });
            let (name, class) = (&model.name, error.class.as_str());
            let why = if takes_no_tools {
                format!("`{name}` takes no tools ({})", error.message)
            } else {
                format!("`{name}` is unavailable ({class}: {})", error.message)
            };
            let Some((to, next)) = affordable.filter(|_| may_fall_back) else {
                let message = if takes_no_tools { why } else { error.message };
                return Ok(Input::ModelFailed(ModelError { message, ..error }));
            };
            let warning = self.take_broken_off().fallback_warning(&next.name, &why);
            self.parts.sink.record(warning).await?;
            self.at.store(to, Ordering::Relaxed);
        }
    }

    /// Notes that a call begins.
    pub(super) fn begin_call(&self, model: &ModelInUse, wait: Arc<ModelWait>) {
        let (name, access) = (model.name.clone(), model.access.clone());
        *locked(&self.calling) = Some(Calling { name, access, wait, failed: None });
    }

    /// Notes the error of an attempt.
    pub(super) fn note_attempt(&self, error: &ModelError) {
        if let Some(calling) = &mut *locked(&self.calling) {
            calling.failed = Some(error.clone());
        }
    }

    /// Notes whether a model answered.
    fn note_result(&self, model: &ModelInUse, input: &Input) {
        *locked(&self.calling) = None;
        let ModelInUse { name, access, .. } = model;
        match input {
            Input::ModelFailed(error) if !error.class.is_answer() => {
                let outage = self.outage(name, access, error);
                if error.class.is_outage() {
                    locked(&self.outages).push(outage.clone());
                }
                self.parts.waits.note_failure(&self.parts.run_id, outage);
            }
            _ => self.parts.waits.note_answer(name, access),
        }
    }

    /// Notes that the time of the run was over before a model answered.
    pub(super) fn note_cut(&self, reason: StopReason) {
        let calling = locked(&self.calling).take();
        let Some(calling) = calling.filter(|calling| calling.wait.is_silent()) else { return };
        if reason != StopReason::MaxDuration {
            return;
        }
        let has_lasted = calling.failed.is_some() || calling.wait.since.elapsed() >= SILENT;
        let no_answer =
            || ModelError::new(ErrorClass::Timeout, "no answer before the end of the run");
        let error = calling.failed.unwrap_or_else(no_answer);
        let outage = self.outage(&calling.name, &calling.access, &error);
        if has_lasted && error.class.is_outage() {
            locked(&self.outages).push(outage.clone());
        }
        self.parts.waits.note_failure(&self.parts.run_id, outage);
    }

    fn outage(&self, name: &str, access: &str, error: &ModelError) -> Outage {
        Outage {
            model: name.to_owned(),
            settings: access.to_owned(),
            cause: shorten(&one_line(error.message.trim()), CAUSE_CHARACTERS),
            retry_after: error.retry_after,
            at: self.parts.clock.now(),
        }
    }
}
