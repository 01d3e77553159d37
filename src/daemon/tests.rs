//! A small configuration for the tests of this folder.

use std::path::Path;
use std::sync::Arc;

use crate::config::{Config, Environment, FileSet, SecretsMode, Trust, load};

/// Writes a configuration with these jobs into a directory, and loads it. Its only model answers
/// `done`; it has no tools.
pub(super) fn config_in(directory: &Path, jobs: &str) -> Arc<Config> {
    let settings = "timezone: UTC\nmodels: {m: {provider: scripted, script: s.yaml}}\n";
    config_of(directory, settings, jobs)
}

/// Loads a configuration with these settings and jobs.
pub(super) fn config_with(settings: &str, jobs: &str) -> Arc<Config> {
    config_of(tempfile::tempdir().unwrap().path(), settings, jobs)
}

fn config_of(directory: &Path, settings: &str, jobs: &str) -> Arc<Config> {
    let files = [
        ("config.yaml", settings),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", jobs),
    ];
    for (name, text) in files {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let set = FileSet::of_directory(directory).unwrap();
    let (trust, secrets) = (Trust::Given, SecretsMode::Resolve);
    let now = chrono::DateTime::UNIX_EPOCH;
    let loaded = load(&set, &Environment::default(), trust, secrets, 0, now);
    Arc::new(loaded.config.unwrap_or_else(|| panic!("{}", loaded.report.summary())))
}

/// Loads a configuration with these jobs.
pub(super) fn config(jobs: &str) -> Arc<Config> {
    config_in(tempfile::tempdir().unwrap().path(), jobs)
}
