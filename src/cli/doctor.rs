//! `dutyd doctor`: checks the installation.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use super::args::DoctorArgs;
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::agent::ErrorClass;
use crate::config::{Config, FileSet, Loaded, Model, Price, Provider, SecretsMode, Trust};
use crate::daemon::StatusReport;
use crate::domain::PreflightItem;
use crate::provider::RemoteModel;
use crate::run::UNIT_DIRECTORIES;
use crate::server::key_path;
use crate::text::redact::Redactor;

pub(crate) async fn doctor(context: &Context, args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let mut items = vec![kernel(), sandbox(), control_groups(), state(context)];
    items.extend([permissions(context), unit(context).await]);
    let loaded = FileSet::of_directory(&context.dirs.config)
        .map(|set| context.load(&set, Trust::Required, SecretsMode::Resolve));
    let config = match loaded {
        Err(error) => {
            items.push(item("configuration", false, format!("{}: {}", error.file, error.message)));
            None
        }
        Ok(loaded) => {
            items.push(configuration(context, &loaded));
            loaded.config
        }
    };
    if let Some(config) = &config {
        items.extend(models(context, config, args.online).await);
    }
    let ok = items.iter().all(|item| item.ok);
    output::value(context.form, &json!({"ok": ok, "items": items}), || {
        let mut out = String::new();
        for item in &items {
            let mark = if item.ok { "ok  " } else { "FAIL" };
            out.push_str(&format!("{mark}  {:<24}  {}\n", item.name, item.detail));
        }
        out
    })?;
    Ok(ExitCode::from(u8::from(!ok)))
}

fn item(name: &str, ok: bool, detail: impl Into<String>) -> PreflightItem {
    PreflightItem { name: name.to_owned(), ok, detail: detail.into() }
}

fn sandbox() -> PreflightItem {
    match crate::process::sandbox_support() {
        Ok(abi) => item(
            "sandbox",
            true,
            format!(
                "Landlock {abi} and seccomp: tools can be sandboxed{}",
                crate::process::sandbox_gaps(abi)
            ),
        ),
        Err(error) => item("sandbox", false, format!("{error}; jobs need `sandbox: best_effort`")),
    }
}

/// Reports whether control groups are available. Whether the daemon uses them is in its log and in
/// the first line of each transcript.
fn control_groups() -> PreflightItem {
    let said = match crate::process::control_groups_mount() {
        Some(mount) => format!(
            "cgroup 2 at {mount}: each run of the daemon gets its own group if the unit sets Delegate=yes"
        ),
        None => "cgroup 2 is not mounted: only shims end the processes of a run".to_owned(),
    };
    // This item never fails, because shims work without control groups.
    item("control groups", true, said)
}

fn kernel() -> PreflightItem {
    let uname = rustix::system::uname();
    let release =
        format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy());
    let missing: Vec<&str> = crate::process::kernel_features()
        .into_iter()
        .filter(|(_, there)| !there)
        .map(|(name, _)| name)
        .collect();
    match missing.as_slice() {
        [] => item("kernel", true, release),
        missing => item("kernel", false, format!("{release} lacks {}", missing.join(", "))),
    }
}

fn state(context: &Context) -> PreflightItem {
    let path = &context.dirs.state;
    let probe = path.join(format!(".doctor.{}", std::process::id()));
    // `create` would correct the mode of an existing directory, so the item `permissions` could not
    // report a wrong mode.
    let there = if path.is_dir() { Ok(()) } else { context.state().create() };
    let written = there
        .and_then(|()| crate::store::write_atomic(&probe, b"x"))
        .and_then(|()| std::fs::remove_file(&probe));
    match written {
        Ok(()) => item("state directory", true, path.display().to_string()),
        Err(error) => item("state directory", false, format!("{}: {error}", path.display())),
    }
}

/// Checks that other users cannot access the state directory or an entry directly in it. These can
/// contain anything that tools have read.
fn permissions(context: &Context) -> PreflightItem {
    let root = &context.dirs.state;
    let open: Vec<String> = std::iter::once(root.clone())
        .chain(std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()))
        .filter_map(|path| {
            let meta = path.symlink_metadata().ok()?;
            let mode = meta.permissions().mode() & 0o777;
            // Only the control socket and its key may be open to the group (SEC-3). The mode of a
            // symlink means nothing.
            let kind = meta.file_type();
            let is_key = path == key_path(&path) && mode & 0o037 == 0;
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

async fn unit(context: &Context) -> PreflightItem {
    let installed = UNIT_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join("dutyd.service"))
        .find(|path| path.exists());
    let daemon = match Client::find(context) {
        Ok(Some(client)) => match client.get::<StatusReport>("/status", &()).await {
            Ok(report) => Ok(format!("dutyd {} is running (pid {})", report.version, report.pid)),
            Err(error) => Err(format!("a daemon is running but fails: {}", error.message)),
        },
        Ok(None) => Err("no daemon is running".to_owned()),
        Err(error) => Err(error.message),
    };
    match (installed, daemon) {
        (Some(path), Ok(daemon)) => item("unit", true, format!("{}; {daemon}", path.display())),
        (None, Ok(daemon)) => item("unit", true, format!("not installed; {daemon}")),
        // If the unit is installed, the daemon should be running.
        (Some(path), Err(why)) => item("unit", false, format!("{}; {why}", path.display())),
        (None, Err(why)) => item("unit", true, format!("not installed; {why}")),
    }
}

fn configuration(context: &Context, loaded: &Loaded) -> PreflightItem {
    let path = context.dirs.config.display();
    let warnings = loaded.report.warning_count();
    match loaded.report.error_count() {
        0 => item("configuration", true, format!("{path}, {warnings} warning(s)")),
        errors => item(
            "configuration",
            false,
            format!("{path} has {errors} error(s): run `dutyd validate` to list them"),
        ),
    }
}

async fn models(context: &Context, config: &Config, online: bool) -> Vec<PreflightItem> {
    let asked = config.models.values().map(|model| async move {
        let (name, facts) = (format!("model {}", model.name), facts(model));
        match (&model.provider, online) {
            (Provider::Scripted(_), _) => item(&name, true, "a script, with tools"),
            (Provider::Remote(_), false) => {
                item(&name, true, format!("{facts}; not checked (use --online)"))
            }
            (Provider::Remote(remote), true) => {
                let redactor = Redactor::new(&config.secrets);
                let model = RemoteModel::new(remote.clone(), context.clock.clone(), redactor);
                let probe = match model {
                    Ok(remote) => remote.probe().await,
                    Err(error) => Err(error),
                };
                let (ok, said) = match probe {
                    Ok(probe) => {
                        // Only the provider's own server surely lists every model that it accepts;
                        // many compatible servers do not.
                        let is_own = remote.base_url == remote.format.base_url();
                        let known = match probe.is_known {
                            Some(false) if is_own => ", BUT THIS MODEL DOES NOT EXIST",
                            Some(false) => ", but this model is not listed",
                            Some(true) | None => "",
                        };
                        let ok = (!is_own || probe.is_known != Some(false))
                            && probe.tools != Some(false);
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
                            ErrorClass::NotFound => {
                                "reachable, but the model or the address is unknown"
                            }
                            ErrorClass::Network | ErrorClass::Timeout => "not reachable",
                            _ => "the provider returned an error",
                        };
                        (false, format!("{what}: {}", error.message))
                    }
                };
                item(&name, ok, format!("{facts}; {said}"))
            }
        }
    });
    let mut items: Vec<PreflightItem> = futures_util::future::join_all(asked).await;
    if config.models.values().any(|model| model.price.is_some()) {
        items.push(item("prices", true, format!("known models as of {}", Price::as_of())));
    }
    items
}

fn facts(model: &Model) -> String {
    let Provider::Remote(remote) = &model.provider else { return String::new() };
    format!(
        "{} {} at {}, profile {}, {}, {}",
        model.provider_word(),
        remote.model,
        remote.base_url,
        model.profile.name,
        if remote.api_key.is_some() { "with a key" } else { "without a key" },
        if model.price.is_some() { "price known" } else { "price unknown" },
    )
}
