//! What a run is: the configuration, the job and the task, frozen at its start.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::config::{Config, Job, Mode};
use crate::domain::{Overrides, Person, RunId, Trigger};

/// Why a run began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerFacts {
    /// The kind.
    pub trigger: Trigger,
    /// The slot, if one made it run.
    pub scheduled_for: Option<DateTime<Utc>>,
    /// 1, 2 …
    pub attempt: u32,
    /// Who started it; `None` for the schedule.
    pub by: Option<Person>,
}

impl TriggerFacts {
    /// Returns those of a run that a person starts.
    #[must_use]
    pub fn manual(by: Option<Person>) -> Self {
        Self { trigger: Trigger::Manual, scheduled_for: None, attempt: 1, by }
    }
}

/// One run before it begins.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// Its id.
    pub run_id: RunId,
    /// The configuration that it keeps.
    pub config: Arc<Config>,
    /// The job.
    pub job: Arc<Job>,
    /// Why it runs.
    pub trigger: TriggerFacts,
    /// The task, with its variables filled in.
    pub task: String,
    /// What replaced parts of the job.
    pub overrides: Overrides,
    /// The variables.
    pub vars: BTreeMap<String, String>,
    /// Whether changes are made or planned.
    pub mode: Mode,
    /// Whether a person is attached to it.
    pub has_person: bool,
    /// Whether the queue of the ledger holds it until its first line is written.
    pub is_queued: bool,
}

impl RunSpec {
    /// Tells whether that person can allow what the job does not list. Who applies a plan cannot: so it is not planned either.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.has_person && self.mode == Mode::Act
    }
}

/// Why a task cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// A variable that the job does not have.
    #[error("the job `{job}` has no variable `{name}` in `vars`")]
    UnknownVariable {
        /// The job.
        job: String,
        /// The variable.
        name: String,
    },
}

impl RunSpec {
    /// Returns a run of `job`; `overrides` replace entries of its `vars`, `prompt` replaces its prompt.
    ///
    /// *Errors*: [`PromptError`].
    pub fn new(
        run_id: RunId,
        config: Arc<Config>,
        job: Arc<Job>,
        trigger: TriggerFacts,
        overrides: &BTreeMap<String, String>,
        prompt: Option<String>,
    ) -> Result<Self, PromptError> {
        let unknown = |name: &str| PromptError::UnknownVariable {
            job: job.name.to_string(),
            name: name.to_owned(),
        };
        let mut vars = job.vars.clone();
        for (name, value) in overrides {
            let slot = vars.get_mut(name).ok_or_else(|| unknown(name))?;
            slot.clone_from(value);
        }
        let overrides = Overrides { prompt: prompt.clone() };
        let task = match prompt {
            Some(prompt) => prompt,
            None => job
                .prompt
                .render(|name| vars.get(name).map(String::as_str))
                .ok_or_else(|| unknown("?"))?,
        };
        let mode = job.mode;
        let (has_person, is_queued) = (false, false);
        Ok(Self {
            run_id,
            config,
            job,
            trigger,
            task,
            overrides,
            vars,
            mode,
            has_person,
            is_queued,
        })
    }

    /// Returns the same run, planned if `plan` says so, whatever the job says.
    #[must_use]
    pub fn planned(self, plan: bool) -> Self {
        Self { mode: if plan { Mode::Plan } else { self.mode }, ..self }
    }
}
