//! The models of a session in their order: which one it asks, and which ones failed it.

use std::sync::atomic::Ordering;

use super::{Session, locked};
use crate::agent::counters::BrokenOff;
use crate::agent::machine::Input;
use crate::agent::model::{ErrorClass, ModelError};
use crate::agent::sink::RecordError;

/// A model that gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedModel {
    /// The name of the model in the configuration.
    pub name: String,
    pub error: ModelError,
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

    /// Calls the current model. If that model is unavailable, falls back to the next one that fits
    /// the cost limit.
    pub(super) async fn call_with_fallbacks(&self) -> Result<Input, RecordError> {
        loop {
            let at = self.at.load(Ordering::Relaxed);
            let Some(model) = self.parts.models.get(at) else {
                let error = ModelError::new(ErrorClass::NotFound, "no model is configured");
                return Ok(Input::ModelFailed(error));
            };
            let input = self.call_with_retries(model).await?;
            self.note_result(&model.name, &input);
            let error = match input {
                Input::ModelFailed(error) => error,
                input => return Ok(input),
            };
            let is_unavailable = error.class.is_outage() && error.class != ErrorClass::Auth;
            let mut others = self.parts.models.iter().enumerate().skip(at + 1);
            let affordable = others.find(|(_, next)| {
                let is_asked = !self.parts.passed_over.contains(&next.name);
                is_asked && self.parts.machine.affords(self.facts_of(next).price)
            });
            let Some((to, next)) = affordable.filter(|_| is_unavailable) else {
                return Ok(Input::ModelFailed(error));
            };
            let (class, message) = (error.class.as_str(), &error.message);
            let why = format!("`{}` is unavailable ({class}: {message})", model.name);
            let warning = self.take_broken_off().fallback_warning(&next.name, &why);
            self.parts.sink.record(warning).await?;
            self.at.store(to, Ordering::Relaxed);
        }
    }

    /// Notes whether a model answered.
    fn note_result(&self, name: &str, input: &Input) {
        let mut failed = locked(&self.failed_models);
        failed.retain(|failed| failed.name != name);
        if let Input::ModelFailed(error) = input
            && error.class.is_outage()
        {
            failed.push(FailedModel { name: name.to_owned(), error: error.clone() });
        }
    }
}
