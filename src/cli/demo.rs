//! `dutyd demo`: runs a real daemon with example files, real host tools and scripted models,
//! offline. `--model` replaces the scripts by a real model.
//!
//! The demo works in a new private temporary directory and leaves it in place, so that the user can
//! read the transcripts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::args::DemoArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::render::Renderer;
use super::serve::Daemon;
use super::wrap::{Wrap, terminal_width};
use crate::config::{Config, FileSet, Loaded, Report, STARTER_FILES, SecretsMode, Trust, load};
use crate::daemon::Command;
use crate::run::Host;
use crate::sinks::{Observed, Observers};
use crate::store::{RawLine, StateDir, create_private_dir, write_atomic};

/// How long the demo runs with the scripted models; with a real model, ten times as long.
const DEMO_DURATION: Duration = Duration::from_secs(12);

/// The files of the demo in addition to the starter `tools.yaml`: jobs that come due every few
/// seconds, with their tools and scripts.
const FILES: &[(&str, &str)] = &[
    ("config.yaml", include_str!("demo/config.yaml")),
    ("jobs.yaml", include_str!("demo/jobs.yaml")),
    ("tools.d/demo.yaml", include_str!("demo/tools.yaml")),
    ("watch.script.yaml", include_str!("demo/watch.script.yaml")),
    ("admin.script.yaml", include_str!("demo/admin.script.yaml")),
    ("slow.script.yaml", include_str!("demo/slow.script.yaml")),
];

pub(crate) async fn demo(context: &Context, args: &DemoArgs) -> Result<ExitCode, CliError> {
    let directory = create_temp_dir(context)?;
    let config_dir = directory.join("config");
    write_files(&config_dir, args.model.is_some())?;
    let config = Arc::new(demo_config(context, &config_dir, args.model.as_deref())?);
    print_introduction(&config, &directory, args.model.as_deref());

    crate::process::prepare_daemon()
        .map_err(|error| CliError::failed("cannot prepare the process").because(&error))?;
    let observers = Observers::default();
    let state = StateDir::new(&directory.join("state"));
    let host = Host::new(
        state.clone(),
        context.clock.clone(),
        context.environment.clone(),
        observers.clone(),
        Default::default(),
    );
    state.create().map_err(|error| {
        CliError::failed(format!("cannot create {}", directory.display())).because(&error)
    })?;
    let lock = super::serve::lock(&state)?;
    let watcher = tokio::spawn(show(observers.watch(), context.color));
    drop(observers);
    let reload = Box::new(|| Loaded { config: None, report: Report::default() });
    // The empty environment has no RUNTIME_DIRECTORY, so the control socket is created in the state
    // directory of the demo.
    let daemon = Daemon::start(
        host,
        Default::default(),
        config,
        &lock,
        reload,
        &crate::config::Environment::default(),
    )
    .await?;
    let commands = daemon.commands.clone();
    let duration = if args.model.is_some() { DEMO_DURATION * 10 } else { DEMO_DURATION };
    let stopper = tokio::spawn(async move {
        tokio::select! {
            () = tokio::time::sleep(duration) => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        let _ = commands.send(Command::Stop).await;
    });
    daemon.run().await;
    stopper.abort();
    watcher.abort();
    print_summary(&state, &directory);
    Ok(ExitCode::SUCCESS)
}

/// Creates a private directory with an unpredictable name, so that other users cannot create it
/// first.
fn create_temp_dir(context: &Context) -> Result<PathBuf, CliError> {
    let base =
        context.environment.get("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let path =
        base.join(format!("dutyd-demo-{}", ulid::Ulid::generate().to_string().to_lowercase()));
    create_private_dir(&path).map_err(|error| {
        CliError::failed(format!("cannot create {}", path.display())).because(&error)
    })?;
    Ok(path)
}

fn write_files(directory: &Path, with_model: bool) -> Result<(), CliError> {
    let failed = |error: std::io::Error| {
        CliError::failed(format!("cannot write to {}", directory.display())).because(&error)
    };
    create_private_dir(&directory.join("tools.d")).map_err(failed)?;
    let starters = STARTER_FILES
        .iter()
        .filter(|file| file.name == "tools.yaml")
        .map(|file| (file.name, file.text));
    for (name, text) in starters.chain(FILES.iter().copied()) {
        // With a real model, every job uses that model instead of its script.
        let text =
            if with_model { text.replace("    model: ", "    # model: ") } else { text.to_owned() };
        write_atomic(&directory.join(name), text.as_bytes()).map_err(failed)?;
    }
    Ok(())
}

/// Loads the configuration of the demo. If `model` names a model, the jobs use that model instead
/// of the scripts.
fn demo_config(
    context: &Context,
    directory: &Path,
    model: Option<&str>,
) -> Result<Config, CliError> {
    let set = FileSet::of_directory(directory).map_err(|error| CliError::failed(error.message))?;
    let own_uid = nix::unistd::geteuid().as_raw();
    let loaded = load(
        &set,
        &context.environment,
        Trust::Given,
        SecretsMode::Resolve,
        own_uid,
        context.clock.now(),
    );
    let mut config = loaded.config.ok_or_else(|| {
        CliError::failed(format!("the demo's files have errors\n{}", loaded.report.render()))
    })?;
    if let Some(name) = model {
        let (model, secrets) = find_model(context, name)?;
        config.models.insert(name.to_owned(), model);
        config.secrets.extend(secrets);
        config.settings.default_model = Some(name.to_owned());
    }
    Ok(config)
}

fn find_model(
    context: &Context,
    name: &str,
) -> Result<(Arc<crate::config::Model>, Vec<crate::text::redact::Secret>), CliError> {
    if let Ok(config) = context.config(Trust::Required)
        && let Some(model) = config.models.get(name)
    {
        return Ok((model.clone(), config.secrets.clone()));
    }
    let missing = || {
        CliError::usage(format!("there is no model `{name}`")).hint(format!(
            "declare it in {}/config.yaml, or set OPENAI_API_KEY and use --model openai",
            context.dirs.config.display()
        ))
    };
    let key = context
        .environment
        .get("OPENAI_API_KEY")
        .filter(|_| name == "openai")
        .ok_or_else(missing)?;
    let model = context.environment.get("OPENAI_MODEL").unwrap_or("gpt-6-luna");
    let base_url = context.environment.get("OPENAI_BASE_URL");
    let model = crate::config::Model::of_openai(name, model, key, base_url, context.clock.now())
        .ok_or_else(|| {
            CliError::usage("OPENAI_MODEL, OPENAI_BASE_URL or OPENAI_API_KEY is not valid")
        })?;
    Ok((
        Arc::new(model),
        vec![crate::text::redact::Secret {
            name: "OPENAI_API_KEY".to_owned(),
            value: key.to_owned(),
        }],
    ))
}

fn print_introduction(config: &Config, directory: &Path, model: Option<&str>) {
    let rows = config.jobs.values().map(|job| {
        let schedule =
            job.schedule.as_ref().map(crate::schedule::Schedule::as_written).unwrap_or_default();
        vec![job.name.to_string(), schedule, job.description.clone().unwrap_or_default()]
    });
    let table = output::table(&["job", "schedule", "about"], rows);
    let model = match model {
        None => "A script plays the model: it follows its file, whatever the tools return. Tools, policy, clock and record are real.".to_owned(),
        Some(name) => format!("The model `{name}` decides which tools to call; the first answer can take a while. Ctrl-C ends the demo."),
    };
    let model = Wrap::new(terminal_width(), String::new(), 0).push(&model);
    output::text(&format!("dutyd demo in {}\n\n{table}\n{model}\n\n", directory.display()));
}

fn print_summary(state: &StateDir, directory: &Path) {
    let word = |text: &dyn std::fmt::Display| output::shell_word(&text.to_string());
    let own = output::shell_word(&output::own_path());
    let runs = state.runs().unwrap_or_default();
    let mut lines = vec![
        format!("export DUTYD_CONFIG_DIR={}", word(&directory.join("config").display())),
        format!("export DUTYD_STATE_DIR={}", word(&directory.join("state").display())),
    ];
    let verbs = ["runs", "show last", "verify last", "slots", "audit"];
    lines.extend(verbs.map(|verb| format!("{own} {verb}")));
    let told = format!(
        "\nThe daemon made {}. Every due time and every call is on record. To look around:\n\n  {}\n\nTo set up your own jobs: {own} init. To remove this demo: rm -r {}\n",
        output::counted(runs.len(), "run"),
        lines.join("\n  "),
        word(&directory.display())
    );
    output::text(&Wrap::new(terminal_width(), String::new(), 0).push(&told));
}

/// Columns reserved for the job name before each line.
const JOB_COLUMNS: usize = 14;

/// Prints the events of all runs as they happen, each line prefixed with the name of its job.
async fn show(mut events: Receiver<Observed>, color: bool) {
    let width = terminal_width().map(|width| width.saturating_sub(JOB_COLUMNS + 1));
    let mut jobs = std::collections::BTreeMap::new();
    let mut renderers = std::collections::BTreeMap::new();
    loop {
        match events.recv().await {
            Ok(Observed::Line { run_id, line, .. }) => {
                let Ok(line) = serde_json::from_str::<RawLine>(&line) else { continue };
                let text = |field: &str| line.event.get(field).and_then(serde_json::Value::as_str);
                if text("type") == Some("session_start") {
                    jobs.insert(run_id.clone(), text("job").unwrap_or_default().to_owned());
                }
                // Skip the prompts, which are the same in every run of a job.
                if matches!(text("type"), Some("user_input" | "system_prompt")) {
                    continue;
                }
                let job = jobs.get(&run_id).map(String::as_str).unwrap_or_default();
                // The runs are interleaved, and a renderer takes the lines of one run.
                let renderer =
                    renderers.entry(run_id.clone()).or_insert_with(|| Renderer::new(color, width));
                let told: String = renderer
                    .event(&line)
                    .lines()
                    .map(|line| format!("{job:<JOB_COLUMNS$} {line}\n"))
                    .collect();
                output::raw(told.as_bytes());
            }
            Ok(Observed::Live { .. }) => {}
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
