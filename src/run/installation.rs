//! Examines what this process can do: kernel, sandbox, directories, models, and whether the runs of
//! each job can begin.
//!
//! The daemon examines itself for `dutyd doctor`, because another process can have other rights,
//! another `PATH` and other credentials. Without a daemon, the command examines its own process.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use super::check::CheckItem;
use super::host::Host;
use super::lessons::{ask, remember};
use super::preflight::credentials;
use super::tool_catalog::KnownTool;
use super::tool_context::{Links, path_rules};
use super::unit::short_stop_timeout;
use crate::agent::{ErrorClass, ModelError};
use crate::catalogue::Catalogue;
use crate::config::{CONTROL_KEY, Config, Job, Model, Provider, Remote, SandboxMode};
use crate::process::{
    HostWork, SandboxError, control_groups_mount, kernel_features, sandbox_gaps, sandbox_support,
};
use crate::provider::{HttpClients, Probe};
use crate::store::write_atomic;

/// Job names that one sentence lists, at most.
const NAMED_JOBS: usize = 5;

/// Whether to ask the providers of the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Offline,
    Online,
}

/// Returns why no run of some enabled jobs can begin in this process, whatever a person does to the
/// job; `None` if nothing is known that prevents it. `support` is the answer of [`sandbox_support`].
#[must_use]
pub fn why_runs_cannot_begin(
    config: &Config,
    support: &Result<u32, SandboxError>,
) -> Option<String> {
    let error = support.as_ref().err()?;
    let jobs: Vec<String> = config
        .jobs
        .values()
        .filter(|job| job.enabled && needs_sandbox(job))
        .map(|job| format!("`{}`", job.name))
        .collect();
    let more = match jobs.len().saturating_sub(NAMED_JOBS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<String> = jobs.into_iter().take(NAMED_JOBS).collect();
    let named = Some(named.join(", ")).filter(|named| !named.is_empty())?;
    Some(format!("no run of {named}{more} can begin: {error}"))
}

fn needs_sandbox(job: &Job) -> bool {
    job.environment.is_local() && job.sandbox == SandboxMode::Enforce
}

/// Examines this process and its directories. Blocks.
#[must_use]
pub fn examine_host(host: &Host) -> Vec<CheckItem> {
    vec![kernel(), sandbox(), control_groups(), state(host), permissions(host.state.root())]
}

/// Examines the models of a configuration, its secrets, and whether the runs of its enabled jobs
/// can begin here.
pub async fn examine_config(config: &Arc<Config>, host: &Host, reach: Reach) -> Vec<CheckItem> {
    let mut asked = Vec::new();
    for model in config.models.values() {
        asked.push(model_item(config, model, host, reach));
    }
    let mut items: Vec<CheckItem> = futures_util::future::join_all(asked).await;
    items.extend(certificates(config, &host.clients));
    if let Some(as_of) = Catalogue::built_in().ok().and_then(|catalogue| catalogue.as_of()) {
        items.push(item("catalogue", true, format!("models as of {as_of}")));
    }
    items.push(match host.environment.search_path() {
        Some(path) => item("PATH", true, path),
        None => item("PATH", false, "has no absolute entry: no program will be found"),
    });
    if let Some(why) = short_stop_timeout(config.settings.shutdown_grace) {
        items.push(item("shutdown", false, why));
    }
    items.extend(config.unread.iter().map(|unread| unchecked("secret", unread.message.clone())));
    for job in config.jobs.values().filter(|job| job.enabled) {
        items.push(job_item(config, job, host).await);
    }
    items
}

fn item(name: &str, ok: bool, detail: impl Into<String>) -> CheckItem {
    CheckItem { name: name.to_owned(), ok: Some(ok), detail: detail.into() }
}

fn unchecked(name: &str, detail: impl Into<String>) -> CheckItem {
    CheckItem { name: name.to_owned(), ok: None, detail: detail.into() }
}

fn kernel() -> CheckItem {
    let uname = rustix::system::uname();
    let release =
        format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy());
    let missing: Vec<&str> =
        kernel_features().into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect();
    match missing.as_slice() {
        [] => item("kernel", true, release),
        missing => item("kernel", false, format!("{release} lacks {}", missing.join(", "))),
    }
}

fn sandbox() -> CheckItem {
    match sandbox_support() {
        Ok(abi) => {
            let gaps = sandbox_gaps(abi);
            let said = format!("Landlock {abi} and seccomp: tools can be sandboxed{gaps}");
            item("sandbox", true, said)
        }
        Err(error) => item("sandbox", false, format!("{error}; jobs need `sandbox: best_effort`")),
    }
}

/// Reports whether control groups are available. Whether the daemon uses them is in its log and in
/// the first line of each transcript.
fn control_groups() -> CheckItem {
    let said = match control_groups_mount() {
        Some(mount) => format!(
            "cgroup 2 at {mount}: each run of the daemon gets its own group if the unit sets Delegate=yes"
        ),
        None => "cgroup 2 is not mounted: only shims end the processes of a run".to_owned(),
    };
    // This item never fails, because shims work without control groups.
    item("control groups", true, said)
}

fn state(host: &Host) -> CheckItem {
    let path = host.state.root();
    let probe = path.join(format!(".doctor.{}", std::process::id()));
    // `create` would correct the mode of an existing directory, so the item `permissions` could not
    // report a wrong mode.
    let there = if path.is_dir() { Ok(()) } else { host.state.create() };
    let written =
        there.and_then(|()| write_atomic(&probe, b"x")).and_then(|()| std::fs::remove_file(&probe));
    match written {
        Ok(()) => item("state directory", true, path.display().to_string()),
        Err(error) => item("state directory", false, format!("{}: {error}", path.display())),
    }
}

/// Checks that other users cannot access the state directory or an entry directly in it. These can
/// contain anything that tools have read.
fn permissions(root: &Path) -> CheckItem {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) => {
            let said = format!("{} cannot be listed: {error}", root.display());
            return unchecked("permissions", said);
        }
    };
    let open: Vec<String> = std::iter::once(root.to_path_buf())
        .chain(entries.flatten().map(|entry| entry.path()))
        .filter_map(|path| {
            let meta = path.symlink_metadata().ok()?;
            let mode = meta.permissions().mode() & 0o777;
            // Only the control socket and its key may be open to the group (SEC-3). The mode of a
            // symlink means nothing.
            let kind = meta.file_type();
            let is_key =
                path.file_name().is_some_and(|name| name == CONTROL_KEY) && mode & 0o037 == 0;
            (mode & 0o077 != 0 && !kind.is_socket() && !kind.is_symlink() && !is_key)
                .then(|| format!("{} has mode {mode:o}", path.display()))
        })
        .collect();
    match open.as_slice() {
        [] => item("permissions", true, "only the owner can access the state"),
        open => {
            let said = format!("{}: accessible to other users (chmod go=)", open.join(", "));
            item("permissions", false, said)
        }
    }
}

/// Reports whether the runs of a job can begin, without a connection to its servers and hosts, which
/// `check` makes.
async fn job_item(config: &Arc<Config>, job: &Arc<Job>, host: &Host) -> CheckItem {
    let name = format!("job {}", job.name);
    let work = HostWork::of(job.name.as_str());
    let (config, job, host) = (config.clone(), job.clone(), host.clone());
    match work.run(move || obstacles(&config, &job, &host)).await {
        Err(error) => item(&name, false, error.to_string()),
        Ok(found) if found.is_empty() => item(&name, true, "its runs can begin"),
        Ok(found) => item(&name, false, format!("its runs cannot begin: {}", found.join("; "))),
    }
}

fn obstacles(config: &Config, job: &Job, host: &Host) -> Vec<String> {
    let mut found = Vec::new();
    match config.model_of(job) {
        None => found.push("no model is configured".to_owned()),
        Some(model) => {
            found.extend(credentials(model).filter(|item| !item.ok).map(|item| item.detail));
        }
    }
    if needs_sandbox(job) {
        found.extend(sandbox_support().err().map(|error| error.to_string()));
    }
    let rules = path_rules(config, job, host, None, Links::Resolved);
    let mut named = job.policy.named();
    named.extend(job.own_calls().map(|call| call.tool.as_str()));
    found.extend(named.into_iter().filter_map(|name| {
        // The loader rejects a name that no tool and no server has.
        let tool = KnownTool::find(config, name).ok()?;
        let why = tool.unavailable(config, Some((job, &rules)), &host.environment)?;
        Some(format!("`{name}` is unavailable: {why}"))
    }));
    found
}

/// Reports whether the CA certificates of this host can be read, if a model needs them.
fn certificates(config: &Config, clients: &HttpClients) -> Option<CheckItem> {
    let needs_them = |model: &Model| match &model.provider {
        Provider::Remote(remote) => remote.base_url.starts_with("https:"),
        Provider::Scripted(_) => false,
    };
    config.models.values().any(|model| needs_them(model)).then(|| {
        match clients.check_certificates() {
            Ok(()) => item("certificates", true, "the CA certificates of this host can be read"),
            Err(error) => item("certificates", false, error.message),
        }
    })
}

async fn model_item(config: &Config, model: &Model, host: &Host, reach: Reach) -> CheckItem {
    let name = format!("model {}", model.name);
    let Provider::Remote(remote) = &model.provider else {
        return item(&name, true, "a script, with tools");
    };
    let facts = facts(model, remote);
    let values = remote.api_key.iter().chain([&remote.base_url]).chain(remote.headers.values());
    if config.unread_in(values.map(String::as_str)).is_some() {
        let said = format!("{facts}; not checked: this process cannot read its secret");
        return unchecked(&name, said);
    }
    let (ok, said) = match reach {
        Reach::Offline => (true, "not checked (use --online)".to_owned()),
        Reach::Online => {
            let probe = ask(config, remote, host).await;
            let kept = match &probe {
                Ok(probe) if host.has_ledger() => remember(remote, probe, host).await,
                Ok(_) | Err(_) => Ok(()),
            };
            let (ok, mut said) = describe(remote, probe);
            if let Err(error) = kept {
                said.push_str(&format!("; failed to remember what it said: {error}"));
            }
            (ok, said)
        }
    };
    item(&name, ok, format!("{facts}; {said}"))
}

/// Describes the answer of a provider, and tells whether the model can be used.
fn describe(remote: &Remote, probe: Result<Probe, ModelError>) -> (bool, String) {
    match probe {
        Ok(probe) => {
            // Only the provider's own server surely lists every model that it accepts; many
            // compatible servers do not.
            let is_own = remote.base_url == remote.format.base_url();
            let known = match probe.is_known {
                Some(false) if is_own => ", BUT THIS MODEL DOES NOT EXIST",
                Some(false) => ", but this model is not listed",
                Some(true) | None => "",
            };
            let ok = (!is_own || probe.is_known != Some(false)) && probe.tools != Some(false);
            let tools = match probe.tools {
                Some(true) => "tools supported",
                Some(false) => "NO TOOLS",
                None => "tool support unknown",
            };
            (ok, format!("reachable, key accepted{known}, {tools}"))
        }
        Err(error) => {
            let what = match error.class {
                ErrorClass::Auth => "reachable, but the key was rejected",
                ErrorClass::NotFound => "reachable, but the model or the address is unknown",
                ErrorClass::Network | ErrorClass::Timeout => "not reachable",
                ErrorClass::Loading => "reachable, but the model is still loading",
                ErrorClass::Certificate => "reachable, but not trusted",
                _ => "the provider returned an error",
            };
            (false, format!("{what}: {}", error.message))
        }
    }
}

fn facts(model: &Model, remote: &Remote) -> String {
    format!(
        "{} {} at {}, profile {}, {}, {}",
        model.provider_word(),
        remote.model,
        remote.base_url,
        model.profile.name,
        if remote.api_key.is_some() { "with a key" } else { "without a key" },
        match &model.prices {
            None => "price unknown",
            Some(priced) if priced.prices.is_estimated() => "price estimated",
            Some(_) => "price known",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_that_cannot_be_listed_is_not_ok() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(permissions(&dir.path().join("none")).ok, None);
    }
}
