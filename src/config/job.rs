//! What a job of `jobs.yaml` means.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde_json::{Value, json};

use super::Environment;
use super::raw::{
    RawAutonomy, RawCatchup, RawDefaults, RawJob, RawLimits, RawListed, RawOneOrMany, RawRead,
    RawScalar,
};
use super::settings::zone;
use super::tool::Tool;
use crate::call::{ArgumentConditions, Fault};
use crate::domain::{Category, JobName, ToolName};
use crate::schedule::Schedule;
use crate::text::near::nearest;
use crate::text::quantity;
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
    /// Refused whatever else is listed.
    pub deny: BTreeSet<String>,
}

/// Where a run ends at the latest.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Responses in a row whose calls all failed.
    pub error_threshold: u64,
    /// Time of one call of a tool that sets none.
    pub tool_timeout: Duration,
    /// Characters of an output that the model sees.
    pub output_limit: usize,
    /// Bytes of an output that are kept.
    pub max_output_bytes: u64,
    /// Read calls of one response that run at once.
    pub parallel_reads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_iterations: 20,
            max_tool_calls: 200,
            max_tool_calls_per_turn: 5,
            max_duration: Duration::from_secs(3600),
            max_tokens: None,
            error_threshold: 3,
            tool_timeout: Duration::from_secs(120),
            output_limit: 30_000,
            max_output_bytes: 64 << 20,
            parallel_reads: 4,
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
pub(crate) struct Surroundings<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) default_zone: Tz,
    pub(crate) defaults: &'a RawDefaults,
    /// `None` where no tools file is at hand, so that names cannot be checked.
    pub(crate) tools: Option<&'a BTreeMap<ToolName, Tool>>,
    /// Names of tools that are declared with mistakes; a job may name them.
    pub(crate) broken_tools: &'a BTreeSet<String>,
    /// `None` likewise.
    pub(crate) models: Option<&'a BTreeSet<String>>,
    pub(crate) prompt_file: &'a dyn Fn(&str) -> Result<String, String>,
    pub(crate) now: DateTime<Utc>,
}

/// Collects what is wrong with a job.
struct Check<'a> {
    faults: Vec<Fault>,
    warnings: Vec<Fault>,
    around: &'a Surroundings<'a>,
}

impl Job {
    /// Returns what `raw` means, with every error and warning, by pointers below the job.
    pub(crate) fn from_raw(
        raw: &RawJob,
        around: &Surroundings<'_>,
    ) -> (Option<Self>, Vec<Fault>, Vec<Fault>) {
        let mut check = Check { faults: Vec::new(), warnings: Vec::new(), around };
        let name = raw.name.as_deref().and_then(|name| JobName::parse(name).ok());
        let schedule = check.schedule(raw);
        let jitter = check.duration("/jitter", raw.jitter.as_deref(), Duration::ZERO);
        let catchup_window = check.duration(
            "/catchup_window",
            raw.catchup_window.as_deref(),
            Duration::from_secs(3600),
        );
        let (prompt, vars) = check.prompt(raw);
        let model = raw.model.as_ref().or(around.defaults.model.as_ref()).cloned();
        check.model(raw, model.as_deref());
        let working_dir =
            raw.working_dir.as_deref().map(|text| around.environment.expand_home(text));
        if working_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            check.fault("/working_dir", "a working directory must be an absolute path");
        }
        let policy = check.policy(raw);
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
        (built(), check.faults, check.warnings)
    }
}

impl Policy {
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
            "deny": self.deny,
        })
    }
}

impl Check<'_> {
    fn fault(&mut self, pointer: &str, message: impl Into<String>) {
        self.faults.push(Fault {
            pointer: pointer.to_owned(),
            message: message.into(),
            hint: None,
        });
    }

    fn duration(&mut self, pointer: &str, text: Option<&str>, default: Duration) -> Duration {
        match text.map(quantity::duration) {
            None => default,
            Some(Ok(duration)) => duration,
            Some(Err(message)) => {
                self.fault(pointer, message);
                default
            }
        }
    }

    fn positive(&mut self, pointer: &str, text: Option<&str>, default: Duration) -> Duration {
        let duration = self.duration(pointer, text, default);
        if duration.is_zero() {
            self.fault(pointer, "a limit of zero would mean 'never': write more than 0s");
        }
        duration
    }

    fn schedule(&mut self, raw: &RawJob) -> Option<Schedule> {
        let (place, name) = match (&raw.timezone, &self.around.defaults.timezone) {
            (Some(name), _) => ("/timezone", Some(name)),
            (None, Some(name)) => ("", Some(name)),
            (None, None) => ("", None),
        };
        let zone = match name.map(|name| zone(name)) {
            None => self.around.default_zone,
            Some(Ok(zone)) => zone,
            Some(Err(message)) => {
                self.fault(place, message);
                return None;
            }
        };
        let (pointer, result) = match (&raw.schedule, &raw.every) {
            (Some(_), Some(_)) => {
                self.fault("/every", "`schedule` and `every` exclude each other: keep one");
                return None;
            }
            (None, None) => return None,
            (Some(RawOneOrMany::One(text)), None) => (
                "/schedule".to_owned(),
                Schedule::cron(std::slice::from_ref(text), zone, self.around.now),
            ),
            (Some(RawOneOrMany::Many(texts)), None) => {
                // Each on its own first, so that the error stands at the right one.
                for (at, text) in texts.iter().enumerate() {
                    if let Err(error) =
                        Schedule::cron(std::slice::from_ref(text), zone, self.around.now)
                    {
                        self.fault(&format!("/schedule/{at}"), error.to_string());
                        return None;
                    }
                }
                ("/schedule".to_owned(), Schedule::cron(texts, zone, self.around.now))
            }
            (None, Some(text)) => match quantity::duration(text) {
                Ok(interval) => ("/every".to_owned(), Schedule::every(interval, zone)),
                Err(message) => {
                    self.fault("/every", message);
                    return None;
                }
            },
        };
        result.map_err(|error| self.fault(&pointer, error.to_string())).ok()
    }

    fn prompt(&mut self, raw: &RawJob) -> (Option<Template>, BTreeMap<String, String>) {
        let vars: BTreeMap<String, String> = raw
            .vars
            .iter()
            .flatten()
            .map(|(name, value)| {
                let text = match value {
                    RawScalar::Text(text) => text.clone(),
                    RawScalar::Boolean(value) => value.to_string(),
                    RawScalar::Number(number) => number.to_string(),
                };
                (name.clone(), text)
            })
            .collect();
        let (pointer, text) = match (&raw.prompt, &raw.prompt_file) {
            (Some(_), Some(_)) => {
                self.fault(
                    "/prompt_file",
                    "`prompt` and `prompt_file` exclude each other: keep one",
                );
                return (None, vars);
            }
            (None, None) => {
                self.fault("", "`prompt` is missing: what is the agent asked to do?");
                return (None, vars);
            }
            (Some(text), None) => ("/prompt", text.clone()),
            (None, Some(path)) => match (self.around.prompt_file)(path) {
                Ok(text) => ("/prompt_file", text),
                Err(message) => {
                    self.fault("/prompt_file", message);
                    return (None, vars);
                }
            },
        };
        if text.trim().is_empty() {
            self.fault(pointer, "the prompt is empty");
        }
        match Template::parse(&text) {
            Err(error) => {
                self.fault(pointer, error.to_string());
                (None, vars)
            }
            Ok(template) => {
                let unknown: BTreeSet<&str> =
                    template.places().filter(|name| !vars.contains_key(*name)).collect();
                for name in unknown {
                    self.fault(pointer, format!("`{{{{{name}}}}}` is no entry of `vars`"));
                }
                (Some(template), vars)
            }
        }
    }

    fn model(&mut self, raw: &RawJob, model: Option<&str>) {
        let (Some(models), Some(model)) = (self.around.models, model) else { return };
        if !models.contains(model) {
            let hint = nearest(model, models.iter().map(String::as_str))
                .map(|near| format!("did you mean `{near}`?"));
            let pointer = if raw.model.is_some() { "/model" } else { "" };
            self.faults.push(Fault {
                pointer: pointer.to_owned(),
                message: format!("there is no model `{model}` in config.yaml"),
                hint,
            });
        }
    }

    fn policy(&mut self, raw: &RawJob) -> Policy {
        let policy = raw.tools.as_ref();
        let read = match policy.and_then(|policy| policy.read.as_ref()) {
            None | Some(RawRead::All(_)) => ReadPolicy::All,
            Some(RawRead::Names(names)) => {
                for (at, name) in names.iter().enumerate() {
                    self.tool_exists(&format!("/tools/read/{at}"), name);
                }
                ReadPolicy::Only(names.iter().cloned().collect())
            }
        };
        let deny = policy.and_then(|policy| policy.deny.clone()).unwrap_or_default();
        for (at, name) in deny.iter().enumerate() {
            self.tool_exists(&format!("/tools/deny/{at}"), name);
        }
        Policy {
            autonomy: match raw.autonomy {
                Some(RawAutonomy::ReadOnly) => Autonomy::ReadOnly,
                Some(RawAutonomy::Supervised) | None => Autonomy::Supervised,
                Some(RawAutonomy::Full) => Autonomy::Full,
            },
            read,
            write: self.listed("write", policy.and_then(|policy| policy.write.as_deref())),
            admin: self.listed("admin", policy.and_then(|policy| policy.admin.as_deref())),
            deny: deny.into_iter().collect(),
        }
    }

    fn listed(&mut self, kind: &str, entries: Option<&[RawListed]>) -> Vec<Listed> {
        let mut listed = Vec::new();
        for (at, entry) in entries.unwrap_or_default().iter().enumerate() {
            let (pointer, name, args) = match entry {
                RawListed::Name(name) => (format!("/tools/{kind}/{at}"), name, None),
                RawListed::Conditional(entry) => {
                    (format!("/tools/{kind}/{at}/tool"), &entry.tool, entry.args.as_ref())
                }
            };
            if !self.tool_exists(&pointer, name) {
                continue;
            }
            let tool = self.around.tools.and_then(|tools| tools.get(name.as_str()));
            let args = match (args, tool) {
                (Some(conditions), Some(tool)) => {
                    match ArgumentConditions::compile(conditions, tool.command.parameters()) {
                        Ok(conditions) => Some(conditions),
                        Err(faults) => {
                            self.faults.extend(faults.into_iter().map(|mut fault| {
                                fault.pointer = format!("/tools/{kind}/{at}/args{}", fault.pointer);
                                fault
                            }));
                            continue;
                        }
                    }
                }
                _ => None,
            };
            let category = tool.map(|tool| tool.category);
            let useless = match kind {
                "write" => matches!(category, Some(Category::Read | Category::Admin)),
                _ => category == Some(Category::Read),
            };
            if let (true, Some(category)) = (useless, category) {
                let message = format!(
                    "`{name}` is a tool of category {category}: listed under `{kind}` it is not admitted by this entry"
                );
                self.warnings.push(Fault { pointer: pointer.clone(), message, hint: None });
            }
            if let Ok(tool) = ToolName::parse(name) {
                listed.push(Listed { tool, args });
            }
        }
        listed
    }

    fn tool_exists(&mut self, pointer: &str, name: &str) -> bool {
        let Some(tools) = self.around.tools else { return true };
        if tools.contains_key(name) {
            return true;
        }
        if !self.around.broken_tools.contains(name) {
            let known = tools
                .keys()
                .map(ToolName::as_str)
                .chain(self.around.broken_tools.iter().map(String::as_str));
            let hint = nearest(name, known).map(|near| format!("did you mean `{near}`?"));
            self.faults.push(Fault {
                pointer: pointer.to_owned(),
                message: format!("there is no tool `{name}`"),
                hint,
            });
        }
        false
    }

    fn limits(&mut self, raw: Option<&RawLimits>) -> Limits {
        let empty = RawLimits::default();
        let raw = raw.unwrap_or(&empty);
        let defaults = Limits::default();
        let max_output_bytes = match raw.max_output_bytes.as_deref().map(quantity::size) {
            None => defaults.max_output_bytes,
            Some(Ok(bytes)) if bytes >= LEAST_OUTPUT_BYTES => bytes,
            Some(Ok(_)) => {
                self.fault("/limits/max_output_bytes", "at least 4KiB of an output are kept");
                LEAST_OUTPUT_BYTES
            }
            Some(Err(message)) => {
                self.fault("/limits/max_output_bytes", message);
                LEAST_OUTPUT_BYTES
            }
        };
        let count = |value: Option<u64>, default: usize| {
            value.and_then(|v| usize::try_from(v).ok()).unwrap_or(default)
        };
        Limits {
            max_iterations: raw.max_iterations.unwrap_or(defaults.max_iterations),
            max_tool_calls: raw.max_tool_calls.unwrap_or(defaults.max_tool_calls),
            max_tool_calls_per_turn: count(
                raw.max_tool_calls_per_turn,
                defaults.max_tool_calls_per_turn,
            ),
            max_duration: self.positive(
                "/limits/max_duration",
                raw.max_duration.as_deref(),
                defaults.max_duration,
            ),
            max_tokens: raw.max_tokens,
            error_threshold: raw.error_threshold.unwrap_or(defaults.error_threshold),
            tool_timeout: self.positive(
                "/limits/tool_timeout",
                raw.tool_timeout.as_deref(),
                defaults.tool_timeout,
            ),
            output_limit: count(raw.output_limit, defaults.output_limit),
            max_output_bytes,
            parallel_reads: count(raw.parallel_reads, defaults.parallel_reads),
        }
    }
}
