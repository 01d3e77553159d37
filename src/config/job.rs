//! A checked job of `jobs.yaml`, with every default filled in.

mod check;
mod declared_call;
mod limits;
mod lists;
mod notify;
mod precheck;
mod slots;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::raw::{RawCompaction, RawDefaults, RawJob, RawMode, RawOnCrash, RawUnanswered};
use super::security::paths;
use super::skill::SkillTools;
use super::tool::Tool;
use super::web::hosts;
use super::{
    AllowedHost, Environment, ExecutionTarget, McpServer, OutputSchema, SandboxMode, Settings,
    Skill,
};
use crate::argv::{ArgumentConditions, Diagnostics};
use crate::catalogue::Effort;
use crate::domain::{JobName, NoticeRule, ToolName};
use crate::schedule::{Expressions, Schedule};
use crate::text::template::Template;

pub(crate) use declared_call::DeclaredCall;
pub use precheck::{Precheck, RunWhen};
pub use slots::{Catchup, DailyBudgets, Overlap, Retry};
pub use verify::VerifyStep;

/// The smallest `max_output_bytes`.
const LEAST_OUTPUT_BYTES: u64 = 4096;

/// How far a run may go on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Autonomy {
    /// The job may make only read calls.
    ReadOnly,
    /// Each allowed admin call is recorded with a warning.
    Supervised,
    /// Allowed admin calls are recorded without a warning.
    Full,
}

/// Whether a job's runs make changes or only plan them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Act,
    /// Runs plan changes, and a person applies them.
    Plan,
}

impl Mode {
    /// Returns the value that selects the mode in `jobs.yaml`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Act => "act",
            Self::Plan => "plan",
        }
    }

    /// Returns the mode with this word; `None` if the word is unknown.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Act, Self::Plan].into_iter().find(|mode| mode.as_str() == word)
    }
}

/// How a run asks a person for approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    /// How long the run waits for an answer.
    pub timeout: Duration,
    /// Whether an unanswered call becomes a step of a plan; otherwise it is denied.
    pub unanswered_is_planned: bool,
}

impl Default for Approval {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(60), unanswered_is_planned: false }
    }
}

/// Which read tools a job may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadPolicy {
    All,
    /// Only the named tools.
    Only(BTreeSet<String>),
}

/// An entry of a job's `write` or `admin` list.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The name of the tool.
    pub tool: ToolName,
    /// Conditions that the arguments must meet; `None` allows any arguments.
    pub args: Option<ArgumentConditions>,
}

/// The tools that a job may use, and under which conditions.
#[derive(Debug, Clone)]
pub struct Policy {
    /// How far the job may go on its own.
    pub autonomy: Autonomy,
    /// Read tools that the job may use.
    pub read: ReadPolicy,
    /// Entries that admit write calls.
    pub write: Vec<Listed>,
    /// Entries that admit admin calls.
    pub admin: Vec<Listed>,
    /// Tools whose otherwise allowed calls need a person's approval.
    pub approve: BTreeSet<String>,
    /// Tools that are denied even if another list names them.
    pub deny: BTreeSet<String>,
    /// For each skill that takes tools away: its name and the tools that it leaves.
    pub narrowed: Vec<(String, SkillTools)>,
}

impl Policy {
    /// Tells whether the job may use no tool at all.
    #[must_use]
    pub fn is_without_tools(&self) -> bool {
        let reads = match &self.read {
            ReadPolicy::All => true,
            ReadPolicy::Only(names) => !names.is_empty(),
        };
        !reads && self.write.is_empty() && self.admin.is_empty()
    }
}

/// The limits of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Model responses per run.
    pub max_iterations: u64,
    /// Tool calls per run.
    pub max_tool_calls: u64,
    /// Calls that the run executes per response; it rejects further ones.
    pub max_tool_calls_per_turn: usize,
    /// Time since the start of the run.
    pub max_duration: Duration,
    /// Input and output tokens; `None` is unlimited.
    pub max_tokens: Option<u64>,
    /// Cost in US dollars; `None` is unlimited.
    pub max_cost_usd: Option<f64>,
    pub max_files_modified: u64,
    /// Changed lines in all files.
    pub max_lines_changed: u64,
    /// Consecutive responses whose calls all failed; this many end the run.
    pub error_threshold: u64,
    /// Timeout of one call if its tool does not set one.
    pub tool_timeout: Duration,
    /// The longest timeout that a tool or the model can ask for: `tool_timeout`, if the job sets it.
    pub tool_timeout_cap: Option<Duration>,
    /// Characters of a call's output that the model sees; a tool may only lower it. `None` is the limit
    /// of each tool.
    pub output_limit: Option<usize>,
    /// The same for lines.
    pub output_lines: Option<usize>,
    /// Bytes at the start of a call's output that are kept; the last 1 MiB is kept as well.
    pub max_output_bytes: u64,
    /// Bytes that the run's temporary directory may contain, inclusive; more end the run.
    pub max_tmp_bytes: u64,
    /// Read calls of one response that run concurrently.
    pub parallel_reads: usize,
    /// Rate limit of tool calls; `None` is unlimited.
    pub rate: Option<Rate>,
}

/// A rate limit of tool calls: a token bucket that is full at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Calls that are added to the bucket per minute.
    pub per_minute: u64,
    /// The capacity of the bucket, in calls.
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
            tool_timeout_cap: None,
            output_limit: None,
            output_lines: None,
            max_output_bytes: 64 << 20,
            max_tmp_bytes: 1 << 30,
            parallel_reads: 4,
            rate: None,
        }
    }
}

/// A checked job.
#[derive(Debug, Clone)]
pub struct Job {
    /// The unique name of the job.
    pub name: JobName,
    /// The purpose of the job; people and the model see it.
    pub description: Option<String>,
    /// Whether the schedule is in effect. A disabled job can still be run by hand.
    pub enabled: bool,
    /// When the job comes due; `None` means that it runs only by hand.
    pub schedule: Option<Schedule>,
    /// The span over which start times are spread.
    pub jitter: Duration,
    /// The policy for a slot that comes due while a run waits or works.
    pub overlap: Overlap,
    /// The policy for slots that the daemon could not start in time.
    pub catchup: Catchup,
    /// The maximum age of a slot to catch up.
    pub catchup_window: Duration,
    /// The limits on the attempts of a failed run; `None` if failed runs are not repeated.
    pub retry: Option<Retry>,
    /// The daily budgets of the job, if it has any.
    pub daily_budgets: Option<DailyBudgets>,
    /// The call that decides whether a run has anything to do, if the job has one.
    pub precheck: Option<Precheck>,
    /// The checks after the final answer, in order.
    pub verify: Vec<VerifyStep>,
    /// How many times the model gets the checks that failed.
    pub verify_retries: u32,
    /// Who is told what of the job.
    pub notify: Vec<NoticeRule>,
    /// The schema of the final answer, if the job has one.
    pub output_schema: Option<OutputSchema>,
    /// The number of consecutive failed runs that pauses the job.
    pub pause_after_failures: Option<u32>,
    /// Whether a run that the daemon's death or stop cut off continues; else it ends as interrupted.
    pub is_resumed: bool,
    /// The task of the agent, with placeholders for `vars`.
    pub prompt: Template,
    /// Values for the placeholders of the prompt.
    pub vars: BTreeMap<String, String>,
    /// The model of the job, or of the `defaults` of its file; for `None`, see `Config::model_of`.
    pub model: Option<String>,
    /// How much the model may reason, in place of its own setting.
    pub reasoning_effort: Option<Effort>,
    /// Text to append at the end of the system prompt.
    pub system_prompt: Option<String>,
    /// The directory where tools start; `None` is the job's own, under the state directory.
    pub working_dir: Option<PathBuf>,
    /// Trees that the job may use in addition to its working directory.
    pub allowed_paths: Vec<PathBuf>,
    /// Hosts for `web_fetch` and `format: url`, in addition to those in `config.yaml`.
    pub allowed_domains: Vec<AllowedHost>,
    /// How strictly the kernel sandboxes the job's tools.
    pub sandbox: SandboxMode,
    /// Whether the job's tools have a network.
    pub network: bool,
    /// The target on which the programs of the job's tools run.
    pub environment: ExecutionTarget,
    /// Whether runs make changes or only plan them.
    pub mode: Mode,
    /// How a run asks a person for approval.
    pub approval: Approval,
    /// Skills for the model.
    pub skills: Vec<Arc<Skill>>,
    /// The tools that the job may use.
    pub policy: Policy,
    /// The limits of each run.
    pub limits: Limits,
    /// Whether the model must confirm its first answer without calls.
    pub double_confirmation: bool,
    /// Whether a run in which no call worked may succeed.
    pub allow_no_calls: bool,
    /// The number of recent calls to check for repetitions; `None` disables the check.
    pub loop_window: Option<usize>,
    /// How many results of earlier runs the model gets.
    pub recall: u32,
    /// Whether old results are removed from a history that fills the context window.
    pub compacts: bool,
}

/// The configuration around a job, which its checks need.
pub(crate) struct JobContext<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) settings: &'a Settings,
    pub(crate) directory: &'a Path,
    pub(crate) defaults: &'a RawDefaults,
    /// `None` if the tools file is missing or cannot be read; tool names are then not checked.
    pub(crate) tools: Option<&'a BTreeMap<ToolName, Tool>>,
    /// Names of tools whose declarations have errors. A job may name them without a further error.
    pub(crate) broken_tools: &'a BTreeSet<String>,
    /// The configured MCP servers. A job may name any tool of a server, because the tools of a
    /// server are known only while it runs.
    pub(crate) mcp_servers: &'a BTreeMap<String, Arc<McpServer>>,
    /// `None` if `config.yaml` is missing or has schema errors; model names are then not checked.
    pub(crate) models: Option<&'a BTreeSet<String>>,
    pub(crate) prompt_file: &'a dyn Fn(&str) -> Result<String, String>,
    /// Reads a file relative to the configuration directory.
    pub(crate) beside: &'a dyn Fn(&str) -> Result<String, String>,
    pub(crate) expressions: &'a Expressions,
    pub(crate) now: DateTime<Utc>,
}

/// Collects the errors and warnings of a job.
struct JobChecker<'a> {
    diagnostics: Diagnostics,
    ctx: &'a JobContext<'a>,
}

impl Job {
    /// Checks `raw` and fills in the defaults. The pointers of errors and warnings are relative to
    /// the job.
    pub(crate) fn from_raw(raw: &RawJob, ctx: &JobContext<'_>) -> (Option<Self>, Diagnostics) {
        let mut check = JobChecker { diagnostics: Diagnostics::default(), ctx };
        let name = raw.name.as_deref().and_then(|name| JobName::parse(name).ok());
        let zone = check.zone(raw);
        let schedule = zone.and_then(|zone| check.schedule(raw, zone));
        let jitter = check.duration("/jitter", raw.jitter.as_deref(), Duration::ZERO);
        let catchup_window = check.duration(
            "/catchup_window",
            raw.catchup_window.as_deref(),
            Duration::from_secs(3600),
        );
        let retry = check.retry(raw.retry.as_ref());
        let (prompt, vars) = check.prompt(raw);
        let precheck = check.precheck(raw.precheck.as_ref(), &vars);
        let verify = check.verify(raw, &vars);
        let notify = check.notify(raw);
        check.verdicts(raw, &notify);
        let output_schema = raw.output_schema.as_ref().and_then(|schema| {
            OutputSchema::compile(schema, "/output_schema", &mut check.diagnostics)
        });
        let model = raw.model.as_ref().or(ctx.defaults.model.as_ref()).cloned();
        check.model(raw, model.as_deref());
        let working_dir = raw.working_dir.as_deref().map(|text| ctx.environment.expand_home(text));
        if working_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            check.error("/working_dir", "a working directory must be an absolute path");
        }
        let (allowed_paths, errors) =
            paths("/allowed_paths", raw.allowed_paths.as_ref(), ctx.environment);
        check.diagnostics.errors.extend(errors);
        let raw_domains = raw.allowed_domains.as_ref();
        let allowed_domains = hosts("/allowed_domains", raw_domains, &mut check.diagnostics);
        let mut policy = check.policy(raw);
        check.lists_without_effect(raw);
        let skills = check.skills(raw.skills.as_deref().unwrap_or_default());
        policy.narrowed = skills
            .iter()
            .filter_map(|skill| Some((skill.directory.clone(), skill.tools.clone()?)))
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
        let daily_budgets = zone.and_then(|zone| check.budgets(raw, &limits, zone));
        let loop_window = limits::loop_window(raw);
        let built = || {
            Some(Self {
                name: name?,
                description: raw.description.clone(),
                enabled: raw.enabled.unwrap_or(true),
                schedule,
                jitter,
                overlap: raw.overlap.map_or(Overlap::Skip, Overlap::from),
                catchup: raw.catchup.map_or(Catchup::Latest, Catchup::from),
                catchup_window,
                is_resumed: !matches!(raw.on_crash, Some(RawOnCrash::Fail)),
                retry,
                precheck,
                verify,
                verify_retries: raw.verify_retries.unwrap_or(0),
                notify,
                output_schema,
                daily_budgets,
                pause_after_failures: raw.pause_after_failures,
                prompt: prompt?,
                vars,
                model,
                reasoning_effort: raw.reasoning_effort,
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
                allow_no_calls: raw.allow_no_calls.unwrap_or(false),
                recall: raw.recall.unwrap_or(0),
                compacts: raw.compaction == Some(RawCompaction::Auto),
                loop_window,
            })
        };
        (built(), check.diagnostics)
    }
}

impl Job {
    /// Returns the calls that dutyd itself makes in each run: the precheck and the checks of `verify`.
    pub fn own_calls(&self) -> impl Iterator<Item = &DeclaredCall> {
        let checks = self.verify.iter().map(|step| &step.call);
        self.precheck.iter().map(|precheck| &precheck.call).chain(checks)
    }
}

impl Policy {
    /// Returns the tools that `read`, `write`, `admin` and `approve` name.
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

    /// Returns the first of the job's skills that takes this tool away.
    #[must_use]
    pub fn excluded_by_skill(&self, tool: &str) -> Option<&str> {
        let mut excluding = self.narrowed.iter().filter(|(_, tools)| tools.exclude(tool));
        excluding.next().map(|(skill, _)| skill.as_str())
    }

    /// Tells whether `read`, `write` or `admin` names this tool.
    #[must_use]
    pub fn names(&self, tool: &str) -> bool {
        let listed = |list: &[Listed]| list.iter().any(|entry| entry.tool.as_str() == tool);
        let read = match &self.read {
            ReadPolicy::All => false,
            ReadPolicy::Only(names) => names.contains(tool),
        };
        read || listed(&self.write) || listed(&self.admin)
    }

    /// Returns the policy in the form of the transcript.
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
            "skills": self.narrowed.iter().map(|(skill, tools)| json!({"skill": skill, "allowed_tools": tools.allowed, "disallowed_tools": tools.disallowed})).collect::<Value>(),
        })
    }
}
