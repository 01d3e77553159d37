//! `dutyd models`: lists the configured models and what is known of them, with the source of each
//! value.

use std::process::ExitCode;

use serde_json::Value;

use super::args::ModelsArgs;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::source::{self, Source, Wanted};
use super::wrap::{hang, terminal_width};
use crate::config::{FileSet, SecretsMode, Trust};
use crate::run::{Learned, ModelView, ask_providers, model_views};
use crate::server::{ModelsAnswer, ModelsQuery};
use crate::sinks::Observers;

/// The column in which a warning goes on.
const WARNING_MARGIN: usize = 9;

pub(crate) async fn models(context: &Context, args: &ModelsArgs) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Configuration).await?;
    let answer = match &source {
        Source::Daemon(daemon) => {
            let query = ModelsQuery { online: args.online };
            // No timeout: the daemon limits the time of each question.
            let answer = daemon.client.get_within("/models", &query, None).await;
            answer.map_err(|error| daemon.explained(error))?
        }
        Source::Files(_) => of_files(context, args).await?,
    };
    for problem in &answer.problems {
        output::note(&format!("warning: {problem}"));
    }
    let mut views = answer.models;
    if let Some(name) = &args.model {
        views.retain(|view| view.name == *name);
        if views.is_empty() {
            return Err(CliError::not_found(format!("there is no model `{name}`")));
        }
    }
    output::value(context.form, &views, || match &args.model {
        Some(_) => views.iter().map(details).collect(),
        None => table(&views),
    })?;
    source.tell(context.form);
    Ok(Exit::of_check(answer.problems.is_empty()).into())
}

async fn of_files(context: &Context, args: &ModelsArgs) -> Result<ModelsAnswer, CliError> {
    let config = match context.config_for_reading(Trust::Advised) {
        Ok(config) => config,
        Err(error) => return Err(with_warnings(context, error)),
    };
    let mut problems = Vec::new();
    if args.online {
        let host = context.host(Observers::default());
        // Only a ledger can keep the answers, so we do not ask without one.
        if !host.has_ledger() {
            let message = format!(
                "the answers of the providers cannot be kept: {} does not contain a ledger",
                context.dirs.state.display()
            );
            return Err(CliError::not_found(message).hint(
                "run `dutyd models --online` on the host of the daemon, or set --state-dir",
            ));
        }
        problems = ask_providers(&config, &host).await;
    }
    let learned = source::unless_lost(Learned::read_file(&context.dirs.state).map(Some))?;
    let learned = learned.unwrap_or_default();
    Ok(ModelsAnswer { models: model_views(&config, &learned, context.clock.now()), problems })
}

/// Adds the warnings about models to the errors of a configuration: the values of a model are not shown
/// before they are mended.
fn with_warnings(context: &Context, error: CliError) -> CliError {
    let Ok(set) = FileSet::of_directory(&context.dirs.config) else { return error };
    let mut report = context.load(&set, Trust::Advised, SecretsMode::Tolerate).report;
    report.warnings.retain(|warning| warning.field.starts_with("models."));
    report.errors.clear();
    if report.warnings.is_empty() {
        error
    } else {
        CliError { message: format!("{}\n{}", error.message, report.render().trim_end()), ..error }
    }
}

/// Returns a value for people; empty if it is unknown.
fn shown(view: &ModelView, key: &str) -> String {
    view.values.get(key).map(|value| plain(&value.value)).unwrap_or_default()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| format!("{key} {}", plain(value)));
            pairs.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

fn price(view: &ModelView) -> String {
    let Some(price) = view.values.get("price") else { return "unknown".to_owned() };
    let rate = |key: &str| price.value.get(key).map(plain).unwrap_or_default();
    let estimated = match price.value.get("estimated") {
        Some(_) => " (estimated)",
        None => "",
    };
    format!("{} / {}{estimated}", rate("input"), rate("output"))
}

fn table(views: &[ModelView]) -> String {
    let header = ["name", "model", "window", "output", "USD per million", "effort", "refuses"];
    let rows = views.iter().map(|view| {
        vec![
            view.name.clone(),
            format!("{} {}", view.provider, view.model),
            shown(view, "context_window"),
            shown(view, "output_limit"),
            match view.provider.as_str() {
                "scripted" => String::new(),
                _ => price(view),
            },
            shown(view, "efforts"),
            shown(view, "refused"),
        ]
    });
    output::table(&header, rows) + &views.iter().map(warnings).collect::<String>()
}

fn warnings(view: &ModelView) -> String {
    let lines = view.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    hang(&lines.collect::<String>(), WARNING_MARGIN, terminal_width())
}

fn details(view: &ModelView) -> String {
    let header = ["key", "value", "source", "as of"];
    let rows = view.values.iter().map(|(key, value)| {
        let source = serde_json::to_value(value.source).map(|word| plain(&word));
        vec![
            key.clone(),
            plain(&value.value),
            source.unwrap_or_default(),
            value.as_of.map(|day| day.to_string()).unwrap_or_default(),
        ]
    });
    let known = if view.known { "" } else { " (neither in the catalogue nor in models.d)" };
    let mut text = format!("{}: {} {}{known}\n", view.name, view.provider, view.model);
    text.push_str(&output::table(&header, rows));
    text.push_str(&warnings(view));
    text
}
