//! `dutyd doctor`: checks the installation.
//!
//! A running daemon examines itself, because it can have other rights, another `PATH` and other
//! credentials than the caller. This module adds what only the caller knows: unit and connection.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::args::DoctorArgs;
use super::check::checklist;
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::source::{self, Source, Wanted};
use crate::config::{FileSet, Loaded, SecretsMode, Trust};
use crate::run::{CheckItem, CheckReport, Reach, UNIT_DIRECTORIES, examine_config, examine_host};
use crate::server::DoctorQuery;
use crate::sinks::Observers;

pub(crate) async fn doctor(context: &Context, args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let mut items = match source::find(context, Wanted::Configuration).await {
        Ok(Source::Daemon(daemon)) => {
            let query = DoctorQuery { online: args.online };
            // No timeout: the daemon limits the time of each check.
            match daemon.client.get_within::<CheckReport>("/doctor", &query, None).await {
                Ok(report) => report.items,
                Err(error) => {
                    let mut items = of_files(context, args).await;
                    items.push(item("daemon", false, error.message));
                    items
                }
            }
        }
        // The item `unit` reports a daemon that does not answer.
        Ok(Source::Files(_)) | Err(_) => of_files(context, args).await,
    };
    let host_items = items.iter().position(|item| item.name == "permissions");
    let at = host_items.map_or(items.len(), |at| at + 1);
    items.insert(at, unit(context).await);
    let report = CheckReport::of(items);
    output::value(context.form, &report, || checklist(&report))?;
    Ok(Exit::of_check(report.ok).into())
}

fn item(name: &str, ok: bool, detail: impl Into<String>) -> CheckItem {
    CheckItem { name: name.to_owned(), ok: Some(ok), detail: detail.into() }
}

/// Examines this process with the files.
async fn of_files(context: &Context, args: &DoctorArgs) -> Vec<CheckItem> {
    let host = context.host(Observers::default());
    let mut items = examine_host(&host);
    // A secret that only the unit can read is no fault of the installation.
    let loaded = FileSet::of_directory(&context.dirs.config)
        .map(|set| context.load(&set, Trust::Required, SecretsMode::Tolerate));
    match loaded {
        Err(error) => {
            items.push(item("configuration", false, format!("{}: {}", error.file, error.message)));
        }
        Ok(loaded) => {
            items.push(configuration(context, &loaded));
            if let Some(config) = loaded.config {
                let reach = if args.online { Reach::Online } else { Reach::Offline };
                items.extend(examine_config(&Arc::new(config), &host, reach).await);
            }
        }
    }
    items
}

async fn unit(context: &Context) -> CheckItem {
    let installed = UNIT_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join("dutyd.service"))
        .find(|path| path.exists());
    let daemon = match Client::find(context) {
        Ok(Some(client)) => match client.status().await {
            Ok(report) => Ok(format!("dutyd {} is running (pid {})", report.version, report.pid)),
            Err(error) => {
                let said = format!("a daemon is running but fails: {}", error.message);
                return item("unit", false, said);
            }
        },
        Ok(None) => Err("no daemon is running".to_owned()),
        // A daemon may run that this user cannot ask.
        Err(error) => return item("unit", false, error.message),
    };
    match (installed, daemon) {
        (Some(path), Ok(daemon)) => item("unit", true, format!("{}; {daemon}", path.display())),
        (None, Ok(daemon)) => item("unit", true, format!("not installed; {daemon}")),
        // If the unit is installed, the daemon should be running.
        (Some(path), Err(why)) => item("unit", false, format!("{}; {why}", path.display())),
        (None, Err(why)) => item("unit", true, format!("not installed; {why}")),
    }
}

fn configuration(context: &Context, loaded: &Loaded) -> CheckItem {
    let path = context.dirs.config.display();
    let warnings = loaded.report.warning_count();
    match loaded.report.error_count() {
        0 => {
            let said: Vec<&str> = loaded.report.warnings.iter().map(|of| &*of.message).collect();
            let colon = if said.is_empty() { "" } else { ": " };
            let said = said.join("; ");
            item("configuration", true, format!("{path}, {warnings} warning(s){colon}{said}"))
        }
        errors => item(
            "configuration",
            false,
            format!("{path} has {errors} error(s): run `dutyd validate` to list them"),
        ),
    }
}
