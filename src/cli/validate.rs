//! `dutyd validate`: checks configuration files.

use std::process::ExitCode;

use serde_json::json;

use super::args::{OutputForm, ValidateArgs};
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use crate::config::{Config, ConfigError, FileSet, Loaded, Report, SecretsMode, Trust};

pub(crate) fn validate(context: &Context, args: &ValidateArgs) -> Result<ExitCode, CliError> {
    let (set, trust) = match args.paths.as_slice() {
        [] => (FileSet::of_directory(&context.dirs.config), Trust::Required),
        [directory] if directory.is_dir() => (FileSet::of_directory(directory), Trust::Advised),
        files => (FileSet::of_files(files), Trust::Advised),
    };
    let secrets = if args.no_secrets { SecretsMode::Leave } else { SecretsMode::Tolerate };
    let loaded = match set {
        Ok(set) => context.load(&set, trust, secrets),
        Err(error) => Loaded { config: None, report: Report::of_errors(vec![error]) },
    };
    let report = &loaded.report;
    let ok = report.errors.is_empty();
    let plain = |errors: &[ConfigError]| serde_json::to_value(errors).unwrap_or_default();
    let mut value =
        json!({"ok": ok, "errors": plain(&report.errors), "warnings": plain(&report.warnings)});
    if let (Some(config), Some(value)) = (&loaded.config, value.as_object_mut()) {
        let local = &config.settings.local_zone;
        let local = json!({"zone": local.zone.name(), "from": local.origin()});
        value.insert("local_time".to_owned(), local);
    }
    // The report is one object, so `jsonl` prints it as a single line.
    let form = context.form;
    output::value(form, &value, || people(&loaded, context))?;
    if form != OutputForm::Table && !ok {
        output::note(&report.summary());
    }
    Ok(if ok { Exit::Success } else { Exit::Usage }.into())
}

fn people(loaded: &Loaded, context: &Context) -> String {
    let mut out = loaded.report.render();
    if !out.is_empty() {
        out.push('\n');
    }
    match &loaded.config {
        None => out.push_str(&format!(
            "{} error(s), {} warning(s)\n",
            loaded.report.error_count(),
            loaded.report.warning_count()
        )),
        Some(config) => {
            out.push_str(&schedule_table(config, context, loaded.report.warning_count()))
        }
    }
    out
}

/// Renders the schedule of each job as we understood it, and the totals.
fn schedule_table(config: &Config, context: &Context, warnings: usize) -> String {
    let now = context.clock.now();
    let rows = config.jobs.values().map(|job| {
        let (schedule, zone, next) = match &job.schedule {
            None => ("manual".to_owned(), String::new(), String::new()),
            Some(schedule) => {
                let next = schedule.next_after(now).map(|due| {
                    due.with_timezone(&schedule.zone()).format("%a %Y-%m-%d %H:%M:%S").to_string()
                });
                (schedule.as_written(), schedule.zone().name().to_owned(), next.unwrap_or_default())
            }
        };
        vec![
            job.name.to_string(),
            schedule,
            zone,
            if job.enabled { next } else { "disabled".to_owned() },
        ]
    });
    let table = output::table(&["job", "schedule", "zone", "next"], rows);
    let local = &config.settings.local_zone;
    format!(
        "{table}\n`timezone: local` means {} (from {})\nok: {} job(s), {} tool(s), {} model(s), {warnings} warning(s)\n",
        local.zone.name(),
        local.origin(),
        config.jobs.len(),
        config.tools.len(),
        config.models.len()
    )
}
