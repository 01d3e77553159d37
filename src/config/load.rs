//! Loads files into a [`Config`]: reads and checks all of them, and reports every error at once.

mod models;
mod read;
mod zone;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::destination::notice_rules;
use super::document::Document;
use super::interpolate::{Found, SecretsMode, Unread};
use super::job::JobContext;
use super::raw::{RawDefaults, RawJob, RawSettings, RawTool};
use super::recorded::RecordedFiles;
use super::schema::FileSchema;
use super::settings::zone;
use super::{
    ConfigError, Environment, FileSet, Job, MCP_SEPARATOR, McpServer, Model, Report, SandboxMode,
    SchemaName, Security, Settings, Tool, Trust,
};
use crate::argv::{Diagnostic, Diagnostics};
use crate::domain::{JobName, ToolName};
use crate::schedule::Expressions;
use crate::text::redact::{Redactor, Secret};

/// A checked configuration. It never changes; a reload creates a new one.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory that contains the files.
    pub directory: PathBuf,
    /// SHA-256 (hex) of the configuration files, prompt files, skills and scripts as written,
    /// before references are resolved.
    pub digest: String,
    /// The files that the digest covers.
    pub files: Arc<RecordedFiles>,
    /// Settings of `config.yaml` other than models and MCP servers.
    pub settings: Settings,
    pub models: BTreeMap<String, Arc<Model>>,
    pub tools: BTreeMap<ToolName, Arc<Tool>>,
    /// MCP servers by name.
    pub mcp_servers: BTreeMap<String, Arc<McpServer>>,
    pub jobs: BTreeMap<JobName, Arc<Job>>,
    /// Values to redact from everything that leaves the process.
    pub secrets: Vec<Secret>,
    /// Files named by `${file:…}` references.
    pub secret_files: Vec<PathBuf>,
    /// References that this process could not read. The configuration contains each reference in
    /// place of its value.
    pub unread: Vec<Unread>,
}

impl Config {
    /// Returns the first unread reference that one of `values` contains.
    pub fn unread_in<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Option<&Unread> {
        let values: Vec<&str> = values.into_iter().collect();
        let stands_in =
            |unread: &&Unread| values.iter().any(|value| value.contains(unread.reference.as_str()));
        self.unread.iter().find(stands_in)
    }

    /// Returns the model that `job` runs with: its own, else the default, else the only one. `None`
    /// if there is no such model.
    #[must_use]
    pub fn model_of(&self, job: &Job) -> Option<&Arc<Model>> {
        match job.model.as_ref().or(self.settings.default_model.as_ref()) {
            Some(name) => self.models.get(name),
            None if self.models.len() == 1 => self.models.values().next(),
            None => None,
        }
    }
}

/// The result of loading: the report, and, unless it has errors, the configuration.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// `None` if the report contains an error.
    pub config: Option<Config>,
    /// Every error and warning.
    pub report: Report,
}

/// Loads the files of `set`.
///
/// `now` decides whether a schedule has expired, which is a warning.
#[must_use]
pub fn load(
    set: &FileSet,
    environment: &Environment,
    trust: Trust,
    secrets: SecretsMode,
    own_uid: u32,
    now: DateTime<Utc>,
) -> Loaded {
    let loader = Loader {
        set,
        environment,
        trust,
        own_uid,
        secrets,
        report: RefCell::default(),
        digest: RefCell::new(Sha256::new()),
        files: RefCell::new(RecordedFiles {
            directory: set.directory.clone(),
            ..RecordedFiles::default()
        }),
        found: RefCell::default(),
    };
    let config = loader.load(now);
    loader.finish(config)
}

struct Loader<'a> {
    set: &'a FileSet,
    environment: &'a Environment,
    trust: Trust,
    own_uid: u32,
    secrets: SecretsMode,
    report: RefCell<Report>,
    digest: RefCell<Sha256>,
    files: RefCell<RecordedFiles>,
    found: RefCell<Found>,
}

/// The tools, servers and models that jobs can name.
struct Names<'a> {
    /// `None` if the tools file is missing or cannot be read.
    tools: Option<&'a BTreeMap<ToolName, Tool>>,
    broken_tools: &'a BTreeSet<String>,
    mcp_servers: &'a BTreeMap<String, Arc<McpServer>>,
    /// `None` if `config.yaml` is missing or has schema errors.
    models: Option<&'a BTreeSet<String>>,
}

/// A file, and its value without the parts that its schema rejected.
struct Checked {
    document: Document,
    value: Value,
}

impl Loader<'_> {
    fn load(&self, now: DateTime<Utc>) -> Config {
        self.trust_directory();
        self.refuse_misnamed();
        let config = self
            .set
            .config
            .as_ref()
            .and_then(|path| self.read(path, &FileSchema::new(SchemaName::Config)));
        let schema = FileSchema::new(SchemaName::Tools);
        let tool_files: Vec<Checked> =
            self.set.tools.iter().filter_map(|path| self.read(path, &schema)).collect();
        let schema = FileSchema::new(SchemaName::Jobs);
        let job_files: Vec<Checked> =
            self.set.jobs.iter().filter_map(|path| self.read(path, &schema)).collect();

        let raw: RawSettings = config
            .as_ref()
            .and_then(|file| {
                self.decode(
                    file.value.clone(),
                    &file.document,
                    "",
                    file.value == file.document.value,
                )
            })
            .unwrap_or_default();
        let mut diagnostics = Diagnostics::default();
        let settings = Settings::from_raw(&raw, self.environment, &mut diagnostics);
        if let Some(file) = &config {
            self.report(&file.document, "", diagnostics);
        }
        let (models, model_names) = self.models(&raw, config.as_ref(), now);
        if let (Some(name), Some(file)) = (&settings.default_model, &config)
            && !model_names.contains(name)
        {
            self.error(
                file.document
                    .error("/default_model", format!("unknown model `{name}`: add it to `models`")),
            );
        }
        let (tools, broken_tools) = self.tools(&tool_files, &settings.security);
        // Unless every tools file was read, a name that seems unknown may be defined in a file that
        // was not read.
        let tools_known = !tool_files.is_empty() && tool_files.len() == self.set.tools.len();
        let mcp_servers = self.mcp_servers(&raw, config.as_ref());
        self.reject_shadowed(&tool_files, &mcp_servers);
        let names = Names {
            mcp_servers: &mcp_servers,
            tools: tools_known.then_some(&tools),
            broken_tools: &broken_tools,
            models: config
                .as_ref()
                .filter(|file| file.value == file.document.value)
                .map(|_| &model_names),
        };
        let jobs = self.jobs(&job_files, &settings, &names, &models, now);
        self.check_local_zone(&settings, config.as_ref(), &job_files);
        let checked = Config {
            directory: self.set.directory.clone(),
            digest: String::new(),
            files: Arc::default(),
            settings,
            models,
            tools: tools.into_iter().map(|(name, tool)| (name, Arc::new(tool))).collect(),
            jobs,
            mcp_servers,
            secrets: Vec::new(),
            secret_files: Vec::new(),
            unread: Vec::new(),
        };
        if let Some(file) = &config {
            self.check_tools_of_models(&checked, &file.document);
        }
        checked
    }

    fn finish(self, mut config: Config) -> Loaded {
        let found = self.found.into_inner();
        let mut report = found.report;
        report.merge(self.report.into_inner());
        let redactor = Redactor::new(&found.secrets);
        for error in report.errors.iter_mut().chain(&mut report.warnings) {
            error.message = redactor.text(&error.message).into_owned();
            error.source_line = redactor.text(&error.source_line).into_owned();
        }
        report.sort();
        report.shorten();
        config.digest = hex::encode(self.digest.into_inner().finalize());
        config.files = Arc::new(self.files.into_inner());
        config.secrets = found.secrets;
        config.secret_files = found.secret_files;
        config.unread = found.unread;
        Loaded { config: report.errors.is_empty().then_some(config), report }
    }

    fn error(&self, error: ConfigError) {
        // An error at the place of an unresolved reference is only a consequence of that reference.
        let place = (error.file.clone(), error.line, error.column);
        if self.found.borrow().unresolved.contains(&place) {
            return;
        }
        self.report.borrow_mut().add_error(error);
    }

    fn warning(&self, warning: ConfigError) {
        self.report.borrow_mut().add_warning(warning);
    }

    /// Reports the diagnostics of the declaration at `pointer`.
    fn report(&self, document: &Document, pointer: &str, diagnostics: Diagnostics) {
        let located = |diagnostic: Diagnostic| {
            let pointer = format!("{pointer}{}", diagnostic.pointer);
            let mut error = document.error(&pointer, diagnostic.message);
            error.hint = diagnostic.hint;
            error
        };
        diagnostics.errors.into_iter().for_each(|error| self.error(located(error)));
        diagnostics.warnings.into_iter().for_each(|warning| self.warning(located(warning)));
    }

    /// Decodes an entry. `must` tells whether the schema check left the entry intact. If not, a
    /// failure is not reported, because the schema check has already reported its cause.
    fn decode<T: DeserializeOwned>(
        &self,
        value: Value,
        document: &Document,
        pointer: &str,
        must: bool,
    ) -> Option<T> {
        match serde_json::from_value(value) {
            Ok(raw) => Some(raw),
            Err(error) => {
                if must {
                    self.error(
                        document.error(pointer, format!("cannot decode this entry: {error}")),
                    );
                }
                None
            }
        }
    }

    /// Returns a warning if the sandbox would keep the tool from opening its own program or script.
    fn closed(&self, tool: &Tool, security: &Security) -> Option<Diagnostic> {
        let closed = security.denied_paths.iter().chain([&self.set.directory]);
        let (file, folder) = (security.sandbox != SandboxMode::Off)
            .then(|| tool.closed_file(closed, &security.allowed_paths))??;
        let (file, folder) = (file.display(), folder.display());
        Some(Diagnostic {
            pointer: "/cmd".to_owned(),
            message: format!(
                "`{file}` is inside `{folder}`, which is closed to tools; a job that may use this tool fails its preflight"
            ),
            hint: Some("open its folder with `sandbox: {read: […]}`, or move the file".to_owned()),
        })
    }

    fn tools(
        &self,
        files: &[Checked],
        security: &Security,
    ) -> (BTreeMap<ToolName, Tool>, BTreeSet<String>) {
        let mut tools = BTreeMap::new();
        let mut broken = BTreeSet::new();
        let mut places: BTreeMap<String, String> = BTreeMap::new();
        for (file, at, entry) in entries(files, "tools") {
            let document = &file.document;
            let pointer = format!("/tools/{at}");
            let is_whole = document.value.pointer(&pointer) == Some(entry);
            let Some(raw) = self.decode::<RawTool>(entry.clone(), document, &pointer, is_whole)
            else {
                broken.extend(entry.get("name").and_then(Value::as_str).map(str::to_owned));
                continue;
            };
            self.unique(&mut places, raw.name.as_deref(), "tool", document, &pointer);
            let (tool, mut diagnostics) = Tool::from_raw(&raw, self.environment);
            let closed = tool.as_ref().and_then(|tool| self.closed(tool, security));
            diagnostics.warnings.extend(closed);
            self.report(document, &pointer, diagnostics);
            match tool {
                Some(tool) => drop(tools.entry(tool.name.clone()).or_insert(tool)),
                None => broken.extend(raw.name),
            }
        }
        (tools, broken)
    }

    /// Rejects declared tools whose names belong to an MCP server (MCP-2).
    fn reject_shadowed(&self, files: &[Checked], servers: &BTreeMap<String, Arc<McpServer>>) {
        for (file, at, entry) in entries(files, "tools") {
            let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
            let server = name.split_once(MCP_SEPARATOR).map(|(server, _)| server);
            if let Some(server) = server.filter(|server| servers.contains_key(*server)) {
                let message = format!(
                    "`{name}` is reserved for tools of the MCP server `{server}`: choose another name"
                );
                self.error(file.document.error(&format!("/tools/{at}/name"), message));
            }
        }
    }

    fn jobs(
        &self,
        files: &[Checked],
        settings: &Settings,
        names: &Names<'_>,
        models: &BTreeMap<String, Arc<Model>>,
        now: DateTime<Utc>,
    ) -> BTreeMap<JobName, Arc<Job>> {
        let defaults_of = |file: &Checked| {
            file.value
                .get("defaults")
                .cloned()
                .and_then(|value| serde_json::from_value::<RawDefaults>(value).ok())
        };
        let is_main = |file: &&Checked| {
            Path::new(&file.document.file).file_name().is_some_and(|name| name == "jobs.yaml")
        };
        let common = files.iter().find(is_main).and_then(defaults_of).unwrap_or_default();
        let mut jobs = BTreeMap::new();
        let mut places = BTreeMap::new();
        let prompt_file = |path: &str| {
            self.beside(path)
                .map(|(_, text)| text)
                .map_err(|error| format!("{}: {}", error.file, error.message))
        };
        let expressions = Expressions::default();
        for file in files {
            let own = defaults_of(file).unwrap_or_default();
            let own = self.checked_defaults(own, &file.document, names, settings);
            let known = |model: &String| names.models.is_none_or(|models| models.contains(model));
            let defaults = RawDefaults {
                model: own.model.or_else(|| common.model.clone().filter(known)),
                timezone: own.timezone.or_else(|| {
                    common.timezone.clone().filter(|name| zone(name, &settings.local_zone).is_ok())
                }),
                notify: own.notify.or_else(|| common.notify.clone()),
            };
            let ctx = JobContext {
                environment: self.environment,
                settings,
                directory: &self.set.directory,
                defaults: &defaults,
                tools: names.tools,
                broken_tools: names.broken_tools,
                mcp_servers: names.mcp_servers,
                models: names.models,
                prompt_file: &prompt_file,
                beside: &prompt_file,
                expressions: &expressions,
                now,
            };
            for (file, at, entry) in entries(std::slice::from_ref(file), "jobs") {
                let document = &file.document;
                let pointer = format!("/jobs/{at}");
                let is_whole = document.value.pointer(&pointer) == Some(entry);
                let Some(raw) = self.decode::<RawJob>(entry.clone(), document, &pointer, is_whole)
                else {
                    continue;
                };
                self.unique(&mut places, raw.name.as_deref(), "job", document, &pointer);
                let (job, diagnostics) = Job::from_raw(&raw, &ctx);
                self.report(document, &pointer, diagnostics);
                let Some(job) = job else { continue };
                if !self.set.is_partial && job.model.is_none() && settings.default_model.is_none() {
                    self.no_model(names.models, document, &pointer, &job);
                }
                let named = job.model.as_ref().or(settings.default_model.as_ref());
                let only = || models.values().next().filter(|_| models.len() == 1);
                let model = named.map_or_else(only, |name| models.get(name));
                self.check_cost(models, model, document, &pointer, &job);
                self.check_effort(model, document, &pointer, &job);
                jobs.insert(job.name.clone(), Arc::new(job));
            }
        }
        jobs
    }

    /// Returns the valid defaults of a file. Reports the others here, so that they are not reported
    /// at every job.
    fn checked_defaults(
        &self,
        mut defaults: RawDefaults,
        document: &Document,
        names: &Names<'_>,
        settings: &Settings,
    ) -> RawDefaults {
        let (local, destinations) = (&settings.local_zone, &settings.destinations);
        let named = defaults.timezone.as_deref();
        if let Some(message) = named.and_then(|name| zone(name, local).err()) {
            self.error(document.error("/defaults/timezone", message));
            defaults.timezone = None;
        }
        if let (Some(model), Some(models)) = (&defaults.model, names.models)
            && !models.contains(model)
        {
            self.error(document.error(
                "/defaults/model",
                format!("unknown model `{model}`: add it to `models` in config.yaml"),
            ));
            defaults.model = None;
        }
        if let Some(rules) = &defaults.notify {
            let mut found = Diagnostics::default();
            let known = names.models.map(|_| destinations);
            notice_rules(rules, "/defaults/notify", known, &mut found);
            for error in found.errors {
                self.error(document.error(&error.pointer, error.message));
            }
        }
        defaults
    }

    fn unique(
        &self,
        places: &mut BTreeMap<String, String>,
        name: Option<&str>,
        what: &str,
        document: &Document,
        pointer: &str,
    ) {
        let Some(name) = name else { return };
        let error =
            document.error(&format!("{pointer}/name"), format!("duplicate {what} `{name}`"));
        let place = format!("{}:{}", error.file, error.line);
        match places.get(name) {
            Some(first) => self.error(error.with_hint(format!("first defined at {first}"))),
            None => drop(places.insert(name.to_owned(), place)),
        }
    }
}

/// Returns the entries of the key `list` in all files, with their positions.
fn entries<'a>(
    files: &'a [Checked],
    list: &'a str,
) -> impl Iterator<Item = (&'a Checked, usize, &'a Value)> {
    files.iter().flat_map(move |file| {
        file.value
            .get(list)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
            // The schema check has reported entries that are not mappings.
            .filter(|(_, entry)| !entry.is_null())
            .map(move |(at, entry)| (file, at, entry))
    })
}

#[cfg(test)]
mod tests;
