//! The specification of a run, frozen at its start: configuration, job and task.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::config::{Config, Job, Mode};
use crate::domain::{Overrides, Person, RunId, Trigger};

/// Why a run began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerFacts {
    /// The kind of the trigger.
    pub trigger: Trigger,
    /// The due time of the slot, if a schedule started the run.
    pub scheduled_for: Option<DateTime<Utc>>,
    /// The epoch of the slot, if a schedule started the run.
    pub epoch: Option<i64>,
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// The person who started the run; `None` if a schedule did, or if the person is
    /// unknown.
    pub by: Option<Person>,
}

impl TriggerFacts {
    /// Returns the facts of a run that a person starts.
    #[must_use]
    pub fn manual(by: Option<Person>) -> Self {
        Self { trigger: Trigger::Manual, scheduled_for: None, epoch: None, attempt: 1, by }
    }
}

/// A run before it starts.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// The id of the run.
    pub run_id: RunId,
    /// The configuration that the run keeps until its end.
    pub config: Arc<Config>,
    pub job: Arc<Job>,
    pub trigger: TriggerFacts,
    /// The task: the prompt of the job with variables filled in, or the text that replaces it.
    pub task: String,
    /// The parts of the job that the caller replaced.
    pub overrides: Overrides,
    /// The values of the variables.
    pub vars: BTreeMap<String, String>,
    /// The plan that the run applies.
    pub plan_id: Option<String>,
    /// Whether changes are made or only planned.
    pub mode: Mode,
    /// Whether a person is attached.
    pub has_person: bool,
    /// Whether the run stays in the queue of the ledger until its first line is written.
    pub is_queued: bool,
}

impl RunSpec {
    /// Tells whether the stop of the daemon suspends the run instead of ending it.
    #[must_use]
    pub fn may_suspend(&self) -> bool {
        self.is_queued && self.job.is_resumed
    }

    /// Tells whether the run can succeed only after a call that worked. A person who watches the run or
    /// wrote its prompt judges it instead.
    #[must_use]
    pub fn needs_call(&self) -> bool {
        let is_own = self.overrides.prompt.is_none();
        !self.has_person && is_own && self.mode == Mode::Act && !self.job.allow_no_calls
    }

    /// Tells whether the attached person can allow calls that the job does not list. That is
    /// not possible in plan mode: the person who applies the plan cannot allow such calls either,
    /// so they are not planned.
    #[must_use]
    pub fn person_can_allow(&self) -> bool {
        self.has_person && self.mode == Mode::Act
    }
}

/// Why the task of a run cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The job has no such variable.
    #[error("the job `{job}` has no variable `{name}` in `vars`")]
    UnknownVariable { job: String, name: String },
}

impl RunSpec {
    /// Returns a run of `job`. `overrides` replace entries of its `vars`, and `prompt` replaces its
    /// prompt.
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
        let overrides = Overrides { prompt: prompt.clone(), ..Overrides::default() };
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
            plan_id: None,
            mode,
            has_person,
            is_queued,
        })
    }

    /// Returns the run in plan mode if `plan` is true, whatever the mode of the job.
    #[must_use]
    pub fn with_plan(self, plan: bool) -> Self {
        Self { mode: if plan { Mode::Plan } else { self.mode }, ..self }
    }
}
