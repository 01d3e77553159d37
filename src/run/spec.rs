//! The specification of a run, frozen at its start: configuration, job and task.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalogue::Effort;
use crate::config::{Config, Job, Mode};
use crate::domain::{Origin, Overrides, RunId, RunRequest, SessionStart};
use crate::text::suggest::nearest;

/// The highest limit of iterations.
const MOST_ITERATIONS: u32 = 100;

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
    /// The configuration has no such model.
    #[error("there is no model `{0}` in config.yaml{1}")]
    UnknownModel(String, String),
    /// The job has a limit of cost, and the model that the request names has no price.
    #[error("the model `{0}` has no price, and the job has a limit of cost: set its `price`")]
    NoPrice(String),
    #[error("`{0}` is not an effort: use none, minimal, low, medium, high, xhigh or max")]
    UnknownEffort(String),
    /// The model does not take the effort.
    #[error("{0}")]
    EffortRefused(String),
    #[error("the limit of iterations must be from 1 to {MOST_ITERATIONS}: {0}")]
    Iterations(u32),
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
        let Overrides { prompt, model, effort, max_iterations, newer } = start.overrides.clone();
        let (vars, plan) = (start.vars.clone(), mode == Mode::Plan);
        let stated = RunRequest { vars, prompt, plan, model, effort, max_iterations, newer };
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
        let job = overridden(job, &config, &request)?;
        let RunRequest { vars: replaced, prompt, plan, model, effort, max_iterations, .. } =
            request;
        let unknown = |name: &str| PromptError::UnknownVariable {
            job: job.name.to_string(),
            name: name.to_owned(),
        };
        let mut vars = job.vars.clone();
        for (name, value) in replaced {
            *vars.get_mut(&name).ok_or_else(|| unknown(&name))? = value;
        }
        let newer = serde_json::Map::new();
        let overrides = Overrides { prompt: prompt.clone(), model, effort, max_iterations, newer };
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

/// Returns the mode in which a run began. The transcript of an earlier version lacks it.
///
/// *Errors*: the mode cannot be read, so the run must neither act nor pretend to plan.
pub fn recorded_mode(start: &SessionStart) -> Result<Mode, String> {
    match start.mode.as_str() {
        "" => Err("its first line does not say whether it acts or plans".to_owned()),
        word => Mode::parse(word).ok_or_else(|| {
            format!("its mode `{word}` is unknown to this version; install a newer dutyd")
        }),
    }
}

/// Returns the job with the model, the effort and the limit that a request replaces.
fn overridden(
    job: Arc<Job>,
    config: &Config,
    request: &RunRequest,
) -> Result<Arc<Job>, PromptError> {
    let RunRequest { model, effort, max_iterations, .. } = request;
    if model.is_none() && effort.is_none() && max_iterations.is_none() {
        return Ok(job);
    }
    let mut job = Job::clone(&job);
    if let Some(name) = model {
        let known = config.models.keys().map(String::as_str);
        let near = || match nearest(name, known) {
            Some(near) => format!(": did you mean `{near}`?"),
            None => String::new(),
        };
        let found = config.models.get(name);
        let model = found.ok_or_else(|| PromptError::UnknownModel(name.clone(), near()))?;
        let fallbacks = model.fallback.iter().filter_map(|name| config.models.get(name));
        let mut models = std::iter::once(model).chain(fallbacks);
        if let Some(model) = models.find(|model| model.prices.is_none())
            && job.limits.max_cost_usd.is_some()
        {
            return Err(PromptError::NoPrice(model.name.clone()));
        }
        job.model = Some(name.clone());
    }
    if let Some(word) = effort {
        let parsed = serde_json::from_value(word.as_str().into());
        let effort: Effort = parsed.map_err(|_| PromptError::UnknownEffort(word.clone()))?;
        let model = config.model_of(&job);
        if let Some(why) = model.and_then(|model| model.why_effort_refused(effort)) {
            return Err(PromptError::EffortRefused(why));
        }
        job.reasoning_effort = Some(effort);
    }
    if let Some(limit) = max_iterations {
        if !(1..=MOST_ITERATIONS).contains(limit) {
            return Err(PromptError::Iterations(*limit));
        }
        job.limits.max_iterations = (*limit).into();
    }
    Ok(Arc::new(job))
}
