//! The specification of a run, frozen at its start: configuration, job and task.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Config, Job, Mode};
use crate::domain::{Origin, Overrides, RunId, RunRequest, SessionStart};

/// A run before it starts.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// The id of the run.
    pub run_id: RunId,
    /// The configuration that the run keeps until its end.
    pub config: Arc<Config>,
    pub job: Arc<Job>,
    pub origin: Origin,
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
    /// The models of the job that are on hold, which the run does not ask.
    pub passed_over: Vec<String>,
}

impl RunSpec {
    /// Returns the origin of the run, as its next attempt repeats it.
    #[must_use]
    pub fn repeatable_origin(&self) -> Origin {
        match self.mode {
            Mode::Act => self.origin.clone(),
            Mode::Plan => self.origin.clone().planning(),
        }
    }

    /// Tells whether the stop of the daemon suspends the run instead of ending it.
    #[must_use]
    pub fn may_suspend(&self) -> bool {
        self.is_queued && self.job.is_resumed
    }

    /// Tells whether notifications are sent about the run: a run of the daemon that is neither
    /// interactive nor applies a plan.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.is_queued && !self.has_person && self.plan_id.is_none()
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
    /// Returns a run of `job`, with the parts of it that the request in `origin` replaces.
    ///
    /// *Errors*: [`PromptError`].
    pub fn new(
        run_id: RunId,
        config: Arc<Config>,
        job: Arc<Job>,
        origin: Origin,
    ) -> Result<Self, PromptError> {
        let request = origin.request.clone().unwrap_or_default();
        Self::with_request(run_id, config, job, origin, request)
    }

    /// Returns a run as its first line says that it began. `config` is the configuration of that line,
    /// and `mode` is its mode.
    ///
    /// *Errors*: [`PromptError`].
    pub fn recorded(
        run_id: RunId,
        config: Arc<Config>,
        job: Arc<Job>,
        start: &SessionStart,
        mode: Mode,
    ) -> Result<Self, PromptError> {
        let (vars, prompt) = (start.vars.clone(), start.overrides.prompt.clone());
        let plan = mode == Mode::Plan;
        let stated = RunRequest { vars, prompt, plan, ..RunRequest::default() };
        let mut spec =
            Self::with_request(run_id, config, job, start.origin.clone(), stated.clone())?;
        if spec.origin.request.is_none() {
            // An earlier version did not record the request, only what it led to.
            let of_job = &spec.job.vars;
            let replaced = stated.vars.into_iter();
            let vars = replaced.filter(|(name, value)| of_job.get(name) != Some(value)).collect();
            spec.origin.request = Some(RunRequest { vars, ..stated });
        }
        Ok(Self { is_queued: true, ..spec })
    }

    fn with_request(
        run_id: RunId,
        config: Arc<Config>,
        job: Arc<Job>,
        origin: Origin,
        request: RunRequest,
    ) -> Result<Self, PromptError> {
        let unknown = |name: &str| PromptError::UnknownVariable {
            job: job.name.to_string(),
            name: name.to_owned(),
        };
        let RunRequest { vars: replaced, prompt, plan, .. } = request;
        let mut vars = job.vars.clone();
        for (name, value) in replaced {
            *vars.get_mut(&name).ok_or_else(|| unknown(&name))? = value;
        }
        let overrides = Overrides { prompt: prompt.clone(), ..Overrides::default() };
        let task = match prompt {
            Some(prompt) => prompt,
            None => job
                .prompt
                .render(|name| vars.get(name).map(String::as_str))
                .ok_or_else(|| unknown("?"))?,
        };
        let mode = if plan { Mode::Plan } else { job.mode };
        Ok(Self {
            run_id,
            config,
            job,
            origin,
            task,
            overrides,
            vars,
            plan_id: None,
            mode,
            has_person: false,
            is_queued: false,
            passed_over: Vec::new(),
        })
    }
}
