//! Loads the MCP servers, and the models with their scripts; checks the models that jobs use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::{Checked, Loader};
use crate::argv::{Diagnostics, pointer_segment};
use crate::catalogue::{Catalogue, CatalogueFile};
use crate::config::document::{self, Document};
use crate::config::raw::{RawScript, RawSettings};
use crate::config::schema::FileSchema;
use crate::config::{Config, ConfigError, Job, McpServer, Model, SchemaName, Script};

/// The age in days from which we warn that the built-in catalogue is old.
const CATALOGUE_DAYS: i64 = 90;

impl Loader<'_> {
    /// Returns the MCP servers that could be built, and reports the errors of every server.
    pub(super) fn mcp_servers(
        &self,
        raw: &RawSettings,
        file: Option<&Checked>,
    ) -> BTreeMap<String, Arc<McpServer>> {
        let mut servers = BTreeMap::new();
        for (name, raw) in raw.mcp_servers.iter().flatten() {
            let (server, diagnostics) = McpServer::from_raw(name, raw, self.environment);
            let Some(file) = file else { continue };
            let pointer = format!("/mcp_servers/{}", pointer_segment(name));
            self.report(&file.document, &pointer, diagnostics);
            servers.extend(server.map(|server| (name.clone(), Arc::new(server))));
        }
        servers
    }

    pub(super) fn models(
        &self,
        raw: &RawSettings,
        file: Option<&Checked>,
        now: DateTime<Utc>,
    ) -> (BTreeMap<String, Arc<Model>>, BTreeSet<String>) {
        let mut models = BTreeMap::new();
        let mut names = BTreeSet::new();
        let catalogue = self.catalogue(now);
        let Some(file) = file else { return (models, names) };
        for (name, raw) in raw.models.iter().flatten() {
            let pointer = format!("/models/{}", crate::argv::pointer_segment(name));
            names.insert(name.clone());
            let script =
                |path: &str| self.script(path, &file.document, &format!("{pointer}/script"));
            let mut diagnostics = Diagnostics::default();
            let model = Model::from_raw(name, raw, &catalogue, now, &mut diagnostics, script);
            let price = format!("{pointer}/price");
            if file.value.pointer(&price) != file.document.value.pointer(&price) {
                // The schema check has reported why a part of the price is missing.
                diagnostics.errors.retain(|error| error.pointer != "/price");
            }
            let warnings = diagnostics.warnings.iter().map(|warning| {
                let pointer = format!("{pointer}{}", warning.pointer);
                let located = file.document.error(&pointer, warning.message.clone());
                format!("{}:{}: {}", located.file_name(), located.line, located.message)
            });
            let warnings = warnings.collect();
            self.report(&file.document, &pointer, diagnostics);
            if let Some(model) = model {
                models.insert(name.clone(), Arc::new(Model { warnings, ..model }));
            }
        }
        for (name, model) in &models {
            let pointer = format!("/models/{}/fallback", crate::argv::pointer_segment(name));
            for (at, fallback) in model.fallback.iter().enumerate() {
                let message = if fallback == name {
                    format!("`{name}` cannot be its own fallback")
                } else if !names.contains(fallback) {
                    format!("unknown model `{fallback}`: add it to `models`")
                } else if model.fallback.iter().take(at).any(|before| before == fallback) {
                    format!("duplicate fallback `{fallback}`")
                } else {
                    continue;
                };
                self.error(file.document.error(&format!("{pointer}/{at}"), message));
            }
        }
        (models, names)
    }

    /// Reports each model whose provider rejects requests with tools, unless it serves only jobs
    /// without any.
    pub(super) fn check_tools_of_models(&self, config: &Config, document: &Document) {
        for (name, model) in config.models.iter().filter(|(_, model)| model.rejects_tools) {
            let uses = |job: &&Arc<Job>| {
                let of_job = config.model_of(job);
                of_job.is_some_and(|of| of.name == *name || of.fallback.contains(name))
            };
            let mut jobs = config.jobs.values().filter(uses).peekable();
            if jobs.peek().is_some() && jobs.all(|job| job.policy.is_without_tools()) {
                continue;
            }
            let message = format!(
                "OpenAI rejects each request with tools for `{}` over Chat Completions: use `provider: openai`",
                model.model_word()
            );
            let pointer = format!("/models/{}/provider", pointer_segment(name));
            self.error(document.error(&pointer, message));
        }
    }

    /// Reports an effort that the model of the job does not take. A fallback that does not take it keeps
    /// its own.
    pub(super) fn check_effort(
        &self,
        model: Option<&Arc<Model>>,
        document: &Document,
        pointer: &str,
        job: &Job,
    ) {
        let effort = model.zip(job.reasoning_effort);
        if let Some(message) = effort.and_then(|(model, effort)| model.why_effort_refused(effort)) {
            self.error(document.error(&format!("{pointer}/reasoning_effort"), message));
        }
    }

    /// Reports a cost limit that cannot be enforced because a model has no known price.
    pub(super) fn check_cost(
        &self,
        models: &BTreeMap<String, Arc<Model>>,
        model: Option<&Arc<Model>>,
        document: &Document,
        pointer: &str,
        job: &Job,
    ) {
        if job.limits.max_cost_usd.is_none() {
            return;
        }
        let Some(model) = model else { return };
        let fallbacks = model.fallback.iter().filter_map(|name| models.get(name));
        for model in std::iter::once(model).chain(fallbacks) {
            let report = |message: String| {
                document
                    .error(&format!("{pointer}/limits/max_cost_usd"), message)
                    .with_hint("add `price:` to the model in config.yaml")
            };
            let name = &model.name;
            match &model.prices {
                None => self.error(report(format!(
                    "the price of the model `{name}` is unknown, so this limit cannot be enforced"
                ))),
                Some(priced) if priced.prices.is_estimated() => self.warning(report(format!(
                    "the price of the model `{name}` is an estimate, the highest known for it or its family, so the limit may be reached early"
                ))),
                Some(_) => {}
            }
        }
    }

    /// Returns the built-in catalogue with the files of `models.d`, and reports their errors.
    fn catalogue(&self, now: DateTime<Utc>) -> Catalogue {
        let mut files = Vec::new();
        let schema = FileSchema::new(SchemaName::Models);
        for path in &self.set.models {
            let Some(file) = self.read(path, &schema) else { continue };
            let is_whole = file.value == file.document.value;
            let decoded =
                self.decode::<CatalogueFile>(file.value.clone(), &file.document, "", is_whole);
            let Some(decoded) = decoded else { continue };
            let problems = decoded.problems();
            if problems.is_empty() {
                files.push(decoded);
            }
            for (pointer, message) in problems {
                self.error(file.document.error(&pointer, message));
            }
        }
        let built_in = Catalogue::built_in().unwrap_or_else(|error| {
            let message = format!("the built-in catalogue of models cannot be read: {error}");
            self.error(ConfigError::of_file("catalogue.json", message));
            Catalogue::default()
        });
        let old = now.date_naive().checked_sub_signed(TimeDelta::days(CATALOGUE_DAYS));
        if let (Some(as_of), Some(file)) = (built_in.as_of(), &self.set.config)
            && old.is_some_and(|old| as_of < old)
        {
            let message = format!(
                "the built-in catalogue of models is from {as_of}, over {CATALOGUE_DAYS} days ago"
            );
            let hint = "install a newer version, or add newer rows in models.d";
            let warning = ConfigError::of_file(file.display().to_string(), message);
            self.warning(warning.with_hint(hint));
        }
        built_in.with(files)
    }

    fn script(&self, path: &str, referrer: &Document, pointer: &str) -> Option<Script> {
        let (path, text) = self
            .beside(path)
            .map_err(|error| {
                self.error(referrer.error(pointer, format!("{}: {}", error.file, error.message)))
            })
            .ok()?;
        let (document, errors) = document::parse(&path.display().to_string(), &text);
        let broken = !errors.is_empty();
        errors.into_iter().for_each(|error| self.error(error));
        let document = document?;
        let (errors, value) = FileSchema::new(SchemaName::Script).check(&document);
        if broken || !errors.is_empty() {
            errors.into_iter().for_each(|error| self.error(error));
            return None;
        }
        let raw: RawScript = self.decode(value, &document, "", true)?;
        let mut diagnostics = Diagnostics::default();
        let script = Script::from_raw(&raw, &mut diagnostics);
        self.report(&document, "", diagnostics);
        Some(script)
    }

    pub(super) fn no_model(
        &self,
        models: Option<&BTreeSet<String>>,
        document: &Document,
        pointer: &str,
        job: &Job,
    ) {
        match models.map_or(0, BTreeSet::len) {
            1 => {}
            0 => self.warning(
                document.error(pointer, format!("no model is configured, so every run of `{}` fails its preflight", job.name)).with_hint("add `models:` to config.yaml"),
            ),
            _ => self.error(
                document.error(pointer, format!("`{}` does not name a model, and config.yaml has several models but no `default_model`", job.name)).with_hint("add `default_model:` to config.yaml, or `model:` here"),
            ),
        }
    }
}
