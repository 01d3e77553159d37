//! Loads the MCP servers, and the models with their scripts; checks the models that jobs use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Checked, Loader};
use crate::argv::{Diagnostics, pointer_segment};
use crate::config::document::{self, Document};
use crate::config::raw::{RawScript, RawSettings};
use crate::config::schema::FileSchema;
use crate::config::{Job, McpServer, Model, SchemaName, Script};

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
    ) -> (BTreeMap<String, Arc<Model>>, BTreeSet<String>) {
        let mut models = BTreeMap::new();
        let mut names = BTreeSet::new();
        let Some(file) = file else { return (models, names) };
        for (name, raw) in raw.models.iter().flatten() {
            let pointer = format!("/models/{}", crate::argv::pointer_segment(name));
            names.insert(name.clone());
            let script =
                |path: &str| self.script(path, &file.document, &format!("{pointer}/script"));
            let mut diagnostics = Diagnostics::default();
            let model = Model::from_raw(name, raw, &mut diagnostics, script);
            self.report(&file.document, &pointer, diagnostics);
            if let Some(model) = model {
                models.insert(name.clone(), Arc::new(model));
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

    /// Reports a cost limit that cannot be enforced because a model has no known price.
    pub(super) fn check_cost(
        &self,
        models: &BTreeMap<String, Arc<Model>>,
        model: Option<&String>,
        document: &Document,
        pointer: &str,
        job: &Job,
    ) {
        if job.limits.max_cost_usd.is_none() {
            return;
        }
        let only = || models.values().next().filter(|_| models.len() == 1);
        let Some(model) = model.map_or_else(only, |name| models.get(name)) else { return };
        let fallbacks = model.fallback.iter().filter_map(|name| models.get(name));
        for model in std::iter::once(model).chain(fallbacks).filter(|model| model.price.is_none()) {
            let message = format!(
                "the price of the model `{}` is unknown, so this limit cannot be enforced",
                model.name
            );
            self.error(
                document
                    .error(&format!("{pointer}/limits/max_cost_usd"), message)
                    .with_hint("add `price:` to the model in config.yaml"),
            );
        }
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
