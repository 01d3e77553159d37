//! What a job of `jobs.yaml` means.

mod check;
mod limits;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::raw::{RawCatchup, RawDefaults, RawJob, RawMode, RawUnanswered};
use super::security::paths;
use super::tool::Tool;
use super::web::hosts;
use super::{AllowedHost, Environment, ExecutionTarget, McpServer, SandboxMode, Settings, Skill};
use crate::argv::{ArgumentConditions, Diagnostics};
use crate::domain::{JobName, ToolName};
use crate::schedule::{Expression, Schedule, ScheduleError};
use crate::text::template::Template;

/// The least of an output that is kept, in bytes.
const LEAST_OUTPUT_BYTES: u64 = 4096;

/// How far a run may go on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Autonomy {
    /// Only read calls.
    ReadOnly,
    /// Admin calls that are allowed are logged as warnings.
    Supervised,
    /// They are not.
    Full,
}

/// Whether a job's runs change things or plan changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Changes are made.
    #[default]
    Act,
    /// Changes are planned; a person applies them.
    Plan,
}

/// How a person is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// Whether a call that nobody answers becomes a step of a plan; else it is refused.
    pub unanswered_is_planned: bool,
}

impl Default for Approval {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(60), unanswered_is_planned: false }
    }
}

/// What becomes of slots that came due while the daemon was down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Catchup {
    /// They are missed.
    None,
    /// The latest one within the window runs.
    Latest,
}

/// Which read tools a job may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadPolicy {
    /// Every one.
    All,
    /// These.
    Only(BTreeSet<String>),
}

/// A tool that a job lists.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The tool.
    pub tool: ToolName,
    /// Only for such arguments.
    pub args: Option<ArgumentConditions>,
}

/// What a job may use.
#[derive(Debug, Clone)]
pub struct Policy {
    /// How far it may go on its own.
    pub autonomy: Autonomy,
    /// Read tools.
    pub read: ReadPolicy,
    /// Write tools.
    pub write: Vec<Listed>,
    /// Admin tools.
    pub admin: Vec<Listed>,
    /// Asked for, although they are listed.
    pub approve: BTreeSet<String>,
    /// Refused whatever else is listed.
    pub deny: BTreeSet<String>,
    /// The tools that each of the job's skills may be used with.
    pub narrowed: Vec<(String, BTreeSet<String>)>,
}

/// Where a run ends at the latest.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Model responses.
    pub max_iterations: u64,
    /// Tool calls.
    pub max_tool_calls: u64,
    /// Calls of one response that are run.
    pub max_tool_calls_per_turn: usize,
    /// From the start of the run.
    pub max_duration: Duration,
    /// Tokens in and out.
    pub max_tokens: Option<u64>,
    /// US dollars.
    pub max_cost_usd: Option<f64>,
    /// Files that are changed.
    pub max_files_modified: u64,
    /// Lines of them that are changed.
    pub max_lines_changed: u64,
    /// Responses in a row whose calls all failed.
    pub error_threshold: u64,
    /// Time of one call of a tool that sets none.
    pub tool_timeout: Duration,
    /// Characters of an output that the model sees, where they are not those of its tool.
    pub output_limit: Option<usize>,
    /// Bytes of an output that are kept.
    pub max_output_bytes: u64,
    /// Bytes of the temporary directory of a run.
    pub max_tmp_bytes: u64,
    /// Read calls of one response that run at once.
    pub parallel_reads: usize,
    /// Tool calls in time.
    pub rate: Option<Rate>,
}

/// Tool calls in time: a bucket that is full at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many calls a minute brings.
    pub per_minute: u64,
    /// How many may be made at once.
    pub burst: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_iterations: 20,
            max_tool_calls: 200,
            max_tool_calls_per_turn: 5,
            max_duration: Duration::from_secs(3600),
            max_tokens: None,
            max_cost_usd: None,
            max_files_modified: 50,
            max_lines_changed: 5000,
            error_threshold: 3,
            tool_timeout: Duration::from_secs(120),
            output_limit: None,
            max_output_bytes: 64 << 20,
            max_tmp_bytes: 1 << 30,
            parallel_reads: 4,
            rate: None,
        }
    }
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name.
    pub name: JobName,
    /// For people.
    pub description: Option<String>,
    /// Whether its schedule is in force.
    pub enabled: bool,
    /// When it is due; `None` is only by hand.
    pub schedule: Option<Schedule>,
    /// The spread of its starts.
    pub jitter: Duration,
    /// What becomes of missed slots.
    pub catchup: Catchup,
    /// How old a slot may be that is caught up.
    pub catchup_window: Duration,
    /// What the agent is asked to do, with places for `vars`.
    pub prompt: Template,
    /// Values for the prompt.
    pub vars: BTreeMap<String, String>,
    /// Its model, if it names one.
    pub model: Option<String>,
    /// Appended last to the system prompt.
    pub system_prompt: Option<String>,
    /// Where its tools start, if it names a directory.
    pub working_dir: Option<PathBuf>,
    /// Trees that it may use besides its working directory.
    pub allowed_paths: Vec<PathBuf>,
    /// Hosts that it may reach besides the daemon's.
    pub allowed_domains: Vec<AllowedHost>,
    /// How the kernel holds its tools.
    pub sandbox: SandboxMode,
    /// Whether its tools have a network.
    pub network: bool,
    /// Where the programs of its tools are started.
    pub environment: ExecutionTarget,
    /// Whether its runs change things.
    pub mode: Mode,
    /// How a person is asked.
    pub approval: Approval,
    /// What its model is told besides.
    pub skills: Vec<Arc<Skill>>,
    /// What it may use.
    pub policy: Policy,
    /// Where a run ends at the latest.
    pub limits: Limits,
    /// Whether the first answer without calls is asked for once more.
    pub double_confirmation: bool,
    /// How many calls are looked at for repetitions; `None` is not at all.
    pub loop_window: Option<usize>,
}

/// What a job is checked against.
pub(crate) struct JobContext<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) settings: &'a Settings,
    /// Where the configuration lies.
    pub(crate) directory: &'a Path,
    pub(crate) defaults: &'a RawDefaults,
    /// `None` where no tools file is at hand, so that names cannot be checked.
    pub(crate) tools: Option<&'a BTreeMap<ToolName, Tool>>,
    /// Names of tools that are declared with mistakes; a job may name them.
    pub(crate) broken_tools: &'a BTreeSet<String>,
    /// Their tools are known only when they run.
    pub(crate) mcp_servers: &'a BTreeMap<String, Arc<McpServer>>,
    /// `None` likewise.
    pub(crate) models: Option<&'a BTreeSet<String>>,
    pub(crate) prompt_file: &'a dyn Fn(&str) -> Result<String, String>,
    /// Returns the text of a file relative to the configuration directory.
    pub(crate) beside: &'a dyn Fn(&str) -> Result<String, String>,
    /// The cron expressions that were parsed so far. Jobs share them, because a parsed one takes 5 KB.
    pub(crate) expressions: &'a RefCell<BTreeMap<String, Expression>>,
    pub(crate) now: DateTime<Utc>,
}

impl JobContext<'_> {
    fn expression(&self, text: &str) -> Result<Expression, ScheduleError> {
        if let Some(parsed) = self.expressions.borrow().get(text) {
            return Ok(parsed.clone());
        }
        let parsed = Expression::parse(text)?;
        self.expressions.borrow_mut().insert(text.to_owned(), parsed.clone());
        Ok(parsed)
    }
}

/// Collects what is wrong with a job.
struct JobChecker<'a> {
    diagnostics: Diagnostics,
    ctx: &'a JobContext<'a>,
}

impl Job {
    /// Returns what `raw` means, with every error and warning, by pointers below the job.
    pub(crate) fn from_raw(raw: &RawJob, ctx: &JobContext<'_>) -> (Option<Self>, Diagnostics) {
        let mut check = JobChecker { diagnostics: Diagnostics::default(), ctx };
        let name = raw.name.as_deref().and_then(|name| JobName::parse(name).ok());
        let schedule = check.schedule(raw);
        let jitter = check.duration("/jitter", raw.jitter.as_deref(), Duration::ZERO);
        let catchup_window = check.duration(
            "/catchup_window",
            raw.catchup_window.as_deref(),
            Duration::from_secs(3600),
        );
        let (prompt, vars) = check.prompt(raw);
        let model = raw.model.as_ref().or(ctx.defaults.model.as_ref()).cloned();
        check.model(raw, model.as_deref());
        let working_dir = raw.working_dir.as_deref().map(|text| ctx.environment.expand_home(text));
        if working_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            check.error("/working_dir", "a working directory must be an absolute path");
        }
        let (allowed_paths, errors) =
            paths("/allowed_paths", raw.allowed_paths.as_ref(), ctx.environment);
        check.diagnostics.errors.extend(errors);
        let (allowed_domains, errors) = hosts("/allowed_domains", raw.allowed_domains.as_ref());
        check.diagnostics.errors.extend(errors);
        let mut policy = check.policy(raw);
        let skills = check.skills(raw.skills.as_deref().unwrap_or_default());
        policy.narrowed = skills
            .iter()
            .filter_map(|skill| Some((skill.directory.clone(), skill.allowed_tools.clone()?)))
            .collect();
        check.closed_paths(working_dir.as_deref(), &allowed_paths, &policy);
        check.web(&policy, !allowed_domains.is_empty());
        let approval = Approval {
            timeout: check.positive(
                "/approval/timeout",
                raw.approval.as_ref().and_then(|approval| approval.timeout.as_deref()),
                Approval::default().timeout,
            ),
            unanswered_is_planned: matches!(
                raw.approval.as_ref().and_then(|approval| approval.unanswered),
                Some(RawUnanswered::Plan)
            ),
        };
        let environment = check.environment(raw, working_dir.is_some());
        let limits = check.limits(raw.limits.as_ref());
        let detection = raw.loop_detection.as_ref();
        let built = || {
            Some(Self {
                name: name?,
                description: raw.description.clone(),
                enabled: raw.enabled.unwrap_or(true),
                schedule,
                jitter,
                catchup: match raw.catchup {
                    Some(RawCatchup::None) => Catchup::None,
                    Some(RawCatchup::Latest) | None => Catchup::Latest,
                },
                catchup_window,
                prompt: prompt?,
                vars,
                model,
                system_prompt: raw.system_prompt.clone(),
                working_dir,
                allowed_paths,
                allowed_domains,
                sandbox: raw.sandbox.map_or(ctx.settings.security.sandbox, SandboxMode::of),
                network: raw.network.unwrap_or(true),
                environment,
                mode: match raw.mode {
                    Some(RawMode::Plan) => Mode::Plan,
                    Some(RawMode::Act) | None => Mode::Act,
                },
                approval,
                skills,
                policy,
                limits,
                double_confirmation: raw.double_confirmation.unwrap_or(true),
                loop_window: detection.and_then(|d| d.enabled).unwrap_or(true).then(|| {
                    detection
                        .and_then(|d| d.window)
                        .and_then(|w| usize::try_from(w).ok())
                        .unwrap_or(10)
                }),
            })
        };
        (built(), check.diagnostics)
    }
}

impl Policy {
    /// Returns the tools that the job names as ones that it uses.
    #[must_use]
    pub fn named(&self) -> BTreeSet<&str> {
        let read = match &self.read {
            ReadPolicy::All => None,
            ReadPolicy::Only(names) => Some(names),
        };
        let plain = read.into_iter().flatten().chain(&self.approve).map(String::as_str);
        let listed = self.write.iter().chain(&self.admin).map(|entry| entry.tool.as_str());
        listed.chain(plain).collect()
    }

    /// Returns the first of the job's skills that this tool may not be used with.
    #[must_use]
    pub fn excluded_by_skill(&self, tool: &str) -> Option<&str> {
        // What a skill says is always there to be read again.
        let mut excluding = self.narrowed.iter().filter(|(_, tools)| !tools.contains(tool));
        excluding.next().filter(|_| tool != "skill").map(|(skill, _)| skill.as_str())
    }

    /// Tells whether the job names this tool as one that it uses.
    #[must_use]
    pub fn names(&self, tool: &str) -> bool {
        let listed = |list: &[Listed]| list.iter().any(|entry| entry.tool.as_str() == tool);
        let read = match &self.read {
            ReadPolicy::All => false,
            ReadPolicy::Only(names) => names.contains(tool),
        };
        read || listed(&self.write) || listed(&self.admin)
    }

    /// Returns the policy as it stands in a transcript.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let listed = |list: &[Listed]| -> Value {
            list.iter()
                .map(|entry| match &entry.args {
                    None => json!(entry.tool),
                    Some(args) => json!({"tool": entry.tool, "args": args.as_written()}),
                })
                .collect()
        };
        json!({
            "autonomy": match self.autonomy {
                Autonomy::ReadOnly => "read_only",
                Autonomy::Supervised => "supervised",
                Autonomy::Full => "full",
            },
            "read": match &self.read {
                ReadPolicy::All => json!("all"),
                ReadPolicy::Only(names) => json!(names),
            },
            "write": listed(&self.write),
            "admin": listed(&self.admin),
            "approve": self.approve,
            "deny": self.deny,
            "skills": self.narrowed.iter().map(|(skill, tools)| json!({"skill": skill, "allowed_tools": tools})).collect::<Value>(),
        })
    }
}
