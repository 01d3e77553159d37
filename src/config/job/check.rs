//! Checks of the single keys of a job. Each method reports errors and warnings; most return the
//! checked value of a key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;

use super::{Autonomy, JobChecker, Listed, Policy, ReadPolicy};
use crate::argv::{ArgumentConditions, Diagnostic};
use crate::config::raw::{
    RawAutonomy, RawJob, RawListed, RawOneOrMany, RawRead, RawSandbox, RawScalar,
};
use crate::config::reserved::EDITOR;
use crate::config::security::closed_within;
use crate::config::settings::zone;
use crate::config::{Builtin, ExecutionTarget, MCP_SEPARATOR, Skill};
use crate::domain::{Category, ToolName};
use crate::schedule::Schedule;
use crate::text::quantity;
use crate::text::suggest::nearest;
use crate::text::template::Template;

impl JobChecker<'_> {
    pub(super) fn error(&mut self, pointer: &str, message: impl Into<String>) {
        self.diagnostics.error(pointer, message);
    }

    pub(super) fn duration(
        &mut self,
        pointer: &str,
        text: Option<&str>,
        default: Duration,
    ) -> Duration {
        match text.map(quantity::duration) {
            None => default,
            Some(Ok(duration)) => duration,
            Some(Err(message)) => {
                self.error(pointer, message);
                default
            }
        }
    }

    pub(super) fn positive(
        &mut self,
        pointer: &str,
        text: Option<&str>,
        default: Duration,
    ) -> Duration {
        let duration = self.duration(pointer, text, default);
        if duration.is_zero() {
            self.error(pointer, "a duration of zero would expire at once: use a value above 0s");
        }
        duration
    }

    /// Returns the zone of a job.
    pub(super) fn zone(&mut self, raw: &RawJob) -> Option<Tz> {
        let (place, name) = match (&raw.timezone, &self.ctx.defaults.timezone) {
            (Some(name), _) => ("/timezone", Some(name)),
            (None, Some(name)) => ("", Some(name)),
            (None, None) => ("", None),
        };
        match name.map(|name| zone(name, &self.ctx.settings.local_zone)) {
            None => Some(self.ctx.settings.timezone),
            Some(Ok(zone)) => Some(zone),
            Some(Err(message)) => {
                self.error(place, message);
                None
            }
        }
    }

    pub(super) fn schedule(&mut self, raw: &RawJob, zone: Tz) -> Option<Schedule> {
        let (pointer, result) = match (&raw.schedule, &raw.every) {
            (Some(_), Some(_)) => {
                self.error("/every", "`schedule` and `every` are mutually exclusive: keep one");
                return None;
            }
            (None, None) => return None,
            (Some(raw), None) => return self.cron(raw, zone),
            (None, Some(text)) => match quantity::duration(text) {
                Ok(interval) => ("/every".to_owned(), Schedule::every(interval, zone)),
                Err(message) => {
                    self.error("/every", message);
                    return None;
                }
            },
        };
        result.map_err(|error| self.error(&pointer, error.to_string())).ok()
    }

    /// Parses the cron expressions of a job. Checks each expression separately, so that each error
    /// has its own location. An expression that has expired causes a warning.
    fn cron(&mut self, raw: &RawOneOrMany, zone: Tz) -> Option<Schedule> {
        let texts: Vec<(String, String)> = match raw {
            RawOneOrMany::One(text) => vec![("/schedule".to_owned(), text.clone())],
            RawOneOrMany::Many(texts) => texts
                .iter()
                .enumerate()
                .map(|(at, text)| (format!("/schedule/{at}"), text.clone()))
                .collect(),
        };
        let now = self.ctx.now;
        let mut expressions = Vec::new();
        for (pointer, text) in &texts {
            let parsed = self.ctx.expressions.parse(text);
            match parsed.and_then(|parsed| Ok((parsed.comes_due(zone, now)?, parsed))) {
                Err(error) => self.error(pointer, error.to_string()),
                Ok((comes_due, parsed)) => {
                    if let Some(skipped) = parsed.skipped_after(zone, now) {
                        self.diagnostics.warnings.push(Diagnostic {
                            pointer: pointer.clone(),
                            message: format!(
                                "`{text}` skips {}, because the clock is set forward over it: write each time of day as an expression of its own (`schedule: ['0 1 * * *', '0 2 * * *']`), which is then due at the end of the gap",
                                skipped.local.format("%Y-%m-%d %H:%M")
                            ),
                            hint: None,
                        });
                    }
                    expressions.push(parsed);
                    if !comes_due {
                        self.diagnostics.warnings.push(Diagnostic {
                            pointer: pointer.clone(),
                            message: format!("`{text}` has expired: it never comes due again"),
                            hint: None,
                        });
                    }
                }
            }
        }
        (expressions.len() == texts.len()).then(|| Schedule::cron(expressions, zone))
    }

    pub(super) fn prompt(&mut self, raw: &RawJob) -> (Option<Template>, BTreeMap<String, String>) {
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
                self.error(
                    "/prompt_file",
                    "`prompt` and `prompt_file` are mutually exclusive: keep one",
                );
                return (None, vars);
            }
            (None, None) => {
                self.error("", "`prompt` is missing: set `prompt` or `prompt_file`");
                return (None, vars);
            }
            (Some(text), None) => ("/prompt", text.clone()),
            (None, Some(path)) => match (self.ctx.prompt_file)(path) {
                Ok(text) => ("/prompt_file", text),
                Err(message) => {
                    self.error("/prompt_file", message);
                    return (None, vars);
                }
            },
        };
        if text.trim().is_empty() {
            self.error(pointer, "the prompt is empty");
        }
        match Template::parse(&text) {
            Err(error) => {
                self.error(pointer, error.to_string());
                (None, vars)
            }
            Ok(template) => {
                if text.contains("{%") && text.contains("%}") {
                    let message = "`{% … %}` reaches the model as it is: a prompt only replaces `{{name}}` by an entry of `vars`";
                    self.diagnostics.warn(pointer, message);
                }
                let unknown: BTreeSet<&str> =
                    template.placeholders().filter(|name| !vars.contains_key(*name)).collect();
                for name in unknown {
                    self.error(pointer, format!("`{{{{{name}}}}}` is not an entry of `vars`"));
                }
                (Some(template), vars)
            }
        }
    }

    /// Rejects a tree that contains a denied path or the configuration directory, if the job lists
    /// write or admin tools: the sandbox cannot close a part of a writable tree. For such a job,
    /// also rejects a tree inside a denied path.
    pub(super) fn closed_paths(
        &mut self,
        working_dir: Option<&Path>,
        allowed: &[PathBuf],
        policy: &Policy,
    ) {
        if policy.write.is_empty() && policy.admin.is_empty() {
            return;
        }
        let own = self.ctx.directory.to_path_buf();
        let security = &self.ctx.settings.security;
        let closed: Vec<&PathBuf> = security.denied_paths.iter().chain([&own]).collect();
        let working_dir = working_dir.map(|path| ("/working_dir".to_owned(), path));
        let allowed = allowed.iter().enumerate();
        let allowed = allowed.map(|(at, path)| (format!("/allowed_paths/{at}"), path.as_path()));
        let general = security.allowed_paths.iter().map(|path| (String::new(), path.as_path()));
        let roots: Vec<(String, &Path)> =
            working_dir.into_iter().chain(allowed).chain(general).collect();
        for (pointer, root) in roots {
            let problem = if let Some(path) = closed_within(root, closed.iter().copied()) {
                format!(
                    "`{}` would be writable but contains the denied path `{}`",
                    root.display(),
                    path.display()
                )
            } else if let Some(path) =
                security.denied_paths.iter().find(|path| root.starts_with(path))
            {
                format!("`{}` is inside the denied path `{}`", root.display(), path.display())
            } else {
                continue;
            };
            self.error(&pointer, problem);
        }
    }

    /// Returns the skills of a job. A skill that cannot be read is an error.
    pub(super) fn skills(&mut self, names: &[String]) -> Vec<Arc<Skill>> {
        let mut skills: Vec<Arc<Skill>> = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let pointer = format!("/skills/{at}");
            let is_plain = !name.is_empty()
                && !name.starts_with('.')
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
            if !is_plain {
                self.error(
                    &pointer,
                    format!(
                        "`{name}` is not a valid skill name: use letters, digits, `-`, `_` and `.`, but not `.` at the start"
                    ),
                );
                continue;
            }
            if skills.iter().any(|known| known.directory == *name) {
                self.error(&pointer, format!("duplicate skill `{name}`"));
                continue;
            }
            let text = (self.ctx.beside)(&format!("skills/{name}/SKILL.md"));
            match text.and_then(|text| Skill::parse(name, &text)) {
                Err(message) => {
                    self.error(&pointer, format!("cannot use skill `{name}`: {message}"));
                }
                Ok(skill) => {
                    for problem in &skill.problems {
                        self.diagnostics.warnings.push(Diagnostic {
                            pointer: pointer.clone(),
                            message: format!("skill `{name}` deviates from the format: {problem}"),
                            hint: None,
                        });
                    }
                    skills.push(Arc::new(skill));
                }
            }
        }
        skills
    }

    pub(super) fn model(&mut self, raw: &RawJob, model: Option<&str>) {
        let (Some(models), Some(model)) = (self.ctx.models, model) else { return };
        if !models.contains(model) {
            let hint = nearest(model, models.iter().map(String::as_str))
                .map(|near| format!("did you mean `{near}`?"));
            let pointer = if raw.model.is_some() { "/model" } else { "" };
            self.diagnostics.errors.push(Diagnostic {
                pointer: pointer.to_owned(),
                message: format!("unknown model `{model}`: add it to `models` in config.yaml"),
                hint,
            });
        }
    }

    pub(super) fn policy(&mut self, raw: &RawJob) -> Policy {
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
        let approve = policy.and_then(|policy| policy.approve.clone()).unwrap_or_default();
        for (at, name) in approve.iter().enumerate() {
            self.tool_exists(&format!("/tools/approve/{at}"), name);
        }
        Policy {
            approve: approve.into_iter().collect(),
            autonomy: match raw.autonomy {
                Some(RawAutonomy::ReadOnly) => Autonomy::ReadOnly,
                Some(RawAutonomy::Supervised) | None => Autonomy::Supervised,
                Some(RawAutonomy::Full) => Autonomy::Full,
            },
            read,
            write: self.listed("write", policy.and_then(|policy| policy.write.as_deref())),
            admin: self.listed("admin", policy.and_then(|policy| policy.admin.as_deref())),
            deny: deny.into_iter().collect(),
            narrowed: Vec::new(),
        }
    }

    /// Returns the target on which the programs of the job's tools run.
    pub(super) fn environment(&mut self, raw: &RawJob, has_directory: bool) -> ExecutionTarget {
        let place =
            raw.environment.as_deref().map_or(Ok(ExecutionTarget::Local), ExecutionTarget::parse);
        let place = place.unwrap_or_else(|message| {
            self.error("/environment", message);
            ExecutionTarget::Local
        });
        if place.is_local() {
            return place;
        }
        if raw.sandbox.is_none_or(|sandbox| matches!(sandbox, RawSandbox::Enforce)) {
            self.error(
                "/environment",
                "tools on another target cannot be sandboxed: set `sandbox: best_effort` in the job",
            );
        }
        if !has_directory {
            self.error(
                "/environment",
                "`working_dir` is missing: set the directory on the target where tools start",
            );
        }
        if raw.network == Some(false) {
            self.error(
                "/network",
                "the network of another target cannot be disabled: remove this key",
            );
        }
        place
    }

    /// Warns about web tools that the job lists but that cannot work.
    pub(super) fn web(&mut self, policy: &Policy, has_domains: bool) {
        let settings = self.ctx.settings;
        let can_fetch = has_domains || !settings.security.allowed_domains.is_empty();
        for (tool, is_usable, why) in [
            ("web_fetch", can_fetch, "cannot fetch anything: set `allowed_domains`"),
            (
                "web_search",
                settings.web_search.is_some(),
                "is unavailable: set `web_search` in config.yaml",
            ),
        ] {
            if policy.names(tool) && !is_usable {
                self.diagnostics.warnings.push(Diagnostic {
                    pointer: "/tools/read".to_owned(),
                    message: format!("`{tool}` is listed but {why}"),
                    hint: None,
                });
            }
        }
    }

    pub(super) fn listed(&mut self, kind: &str, entries: Option<&[RawListed]>) -> Vec<Listed> {
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
            let tool = self.ctx.tools.and_then(|tools| tools.get(name.as_str()));
            let builtin = Builtin::find(name).filter(|_| tool.is_none());
            let parameters = tool.map(|tool| tool.command.parameters());
            let parameters = parameters.or(builtin.map(|tool| &tool.parameters));
            // The parameters of an MCP tool are known only while its server runs, so conditions on
            // its arguments are compiled without them. The conditions always apply.
            let args = match (args, self.ctx.tools) {
                (Some(conditions), Some(_)) => {
                    match ArgumentConditions::compile(conditions, parameters) {
                        Ok(conditions) => Some(conditions),
                        Err(errors) => {
                            self.diagnostics.errors.extend(errors.into_iter().map(|mut error| {
                                error.pointer = format!("/tools/{kind}/{at}/args{}", error.pointer);
                                error
                            }));
                            continue;
                        }
                    }
                }
                _ => None,
            };
            let category = tool.map(|tool| tool.category).or(builtin.map(|tool| tool.category));
            let useless = match kind {
                "write" => matches!(category, Some(Category::Read | Category::Admin)),
                _ => category == Some(Category::Read),
            };
            if let (true, Some(category)) = (useless, category) {
                let message = format!(
                    "`{name}` has category {category}: an entry under `{kind}` does not admit it"
                );
                let hint = format!("write `{category}: [{name}]` under `tools`");
                self.diagnostics.warnings.push(Diagnostic {
                    pointer: pointer.clone(),
                    message,
                    hint: Some(hint),
                });
            }
            if let Ok(tool) = ToolName::parse(name) {
                listed.push(Listed { tool, args });
            }
        }
        listed
    }

    pub(super) fn tool_exists(&mut self, pointer: &str, name: &str) -> bool {
        if name.is_empty() {
            // The schema has already reported this entry.
            return false;
        }
        if name == EDITOR {
            self.error(pointer, format!("`{EDITOR}` is not in this version"));
            return false;
        }
        let Some(tools) = self.ctx.tools else { return true };
        let server = name.split_once(MCP_SEPARATOR).map(|(server, _)| server);
        let is_of_server = server.is_some_and(|server| self.ctx.mcp_servers.contains_key(server));
        if tools.contains_key(name) || Builtin::find(name).is_some() || is_of_server {
            return true;
        }
        if !self.ctx.broken_tools.contains(name) {
            let known = tools
                .keys()
                .map(ToolName::as_str)
                .chain(Builtin::all().map(|tool| tool.name))
                .chain(self.ctx.broken_tools.iter().map(String::as_str));
            let hint = nearest(name, known).map(|near| format!("did you mean `{near}`?"));
            self.diagnostics.errors.push(Diagnostic {
                pointer: pointer.to_owned(),
                message: format!("unknown tool `{name}`"),
                hint,
            });
        }
        false
    }
}
