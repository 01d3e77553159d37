//! The context of every verb: directories, environment, clock and configuration. It also resolves
//! names of runs.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use super::args::{Cli, OutputForm};
use super::error::CliError;
use crate::clock::{Clock, SystemClock};
use crate::config::{
    Config, ConfigError, Dirs, Environment, FileSet, Job, Loaded, SecretsMode, Trust, load,
};
use crate::domain::RunId;
use crate::run::{Approvals, Host, RunHistory};
use crate::sinks::Observers;
use crate::store::{RunDir, StateDir};
use crate::text::suggest::nearest;

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) dirs: Dirs,
    pub(crate) environment: Environment,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) form: OutputForm,
    pub(crate) color: bool,
    /// The user named the state directory, so we do not look for the system daemon.
    pub(crate) state_named: bool,
    /// The user named the configuration directory; a running daemon may use another one.
    pub(crate) config_named: bool,
}

impl Context {
    pub(crate) fn new(cli: &Cli) -> Result<Self, CliError> {
        let environment = Environment::of_process();
        let is_root = nix::unistd::geteuid().is_root();
        let dirs =
            Dirs::find(cli.config_dir.as_deref(), cli.state_dir.as_deref(), &environment, is_root)
                .map_err(CliError::usage_by)?;
        let color = !cli.no_color
            && environment.get("NO_COLOR").is_none()
            && std::io::IsTerminal::is_terminal(&std::io::stdout());
        let state_named = cli.state_dir.is_some() || environment.get("DUTYD_STATE_DIR").is_some();
        let config_named =
            cli.config_dir.is_some() || environment.get("DUTYD_CONFIG_DIR").is_some();
        Ok(Self {
            config_named,
            state_named,
            dirs,
            environment,
            clock: Arc::new(SystemClock),
            form: cli.output,
            color,
        })
    }

    /// Runs a future to completion on a new runtime.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, CliError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| CliError::failed("cannot start the runtime").because(&error))?;
        let value = runtime.block_on(future);
        // A thread that waits for a dead file system must not hold up the end of the process.
        runtime.shutdown_background();
        Ok(value)
    }

    pub(crate) fn load(&self, set: &FileSet, trust: Trust, secrets: SecretsMode) -> Loaded {
        load(
            set,
            &self.environment,
            trust,
            secrets,
            nix::unistd::geteuid().as_raw(),
            self.clock.now(),
        )
    }

    /// Loads the configuration for a verb that acts on it. Every secret must be readable.
    ///
    /// *Errors*: the configuration has errors; the message lists all of them.
    pub(crate) fn config(&self, trust: Trust) -> Result<Arc<Config>, CliError> {
        self.config_as_of(trust, self.clock.now(), SecretsMode::Resolve)
    }

    /// Loads the configuration for a verb that may not need every secret. A secret that this
    /// process cannot read is a warning.
    ///
    /// *Errors*: the configuration has errors; the message lists all of them.
    pub(crate) fn config_for_reading(&self, trust: Trust) -> Result<Arc<Config>, CliError> {
        let config = self.config_as_of(trust, self.clock.now(), SecretsMode::Tolerate)?;
        for unread in &config.unread {
            super::output::note(&format!("warning: {}", unread.message));
        }
        Ok(config)
    }

    /// Loads the configuration and checks it as of `now`.
    ///
    /// *Errors*: the configuration has errors; the message lists all of them.
    pub(crate) fn config_as_of(
        &self,
        trust: Trust,
        now: chrono::DateTime<chrono::Utc>,
        secrets: SecretsMode,
    ) -> Result<Arc<Config>, CliError> {
        self.config_and_warnings(trust, now, secrets).map(|(config, _)| config)
    }

    /// Loads the configuration as `config_as_of` does, and also returns the warnings.
    ///
    /// *Errors*: the configuration has errors; the message lists all of them.
    pub(crate) fn config_and_warnings(
        &self,
        trust: Trust,
        now: chrono::DateTime<chrono::Utc>,
        secrets: SecretsMode,
    ) -> Result<(Arc<Config>, Vec<ConfigError>), CliError> {
        let set = FileSet::of_directory(&self.dirs.config).map_err(|error| {
            let failed = CliError::usage(format!("{}: {}", error.file, error.message));
            error.hint.into_iter().fold(failed, CliError::hint)
        })?;
        let loaded =
            load(&set, &self.environment, trust, secrets, nix::unistd::geteuid().as_raw(), now);
        if let Some(config) = loaded.config {
            return Ok((Arc::new(config), loaded.report.warnings));
        }
        let count = loaded.report.error_count();
        let errors = crate::config::Report::of_errors(loaded.report.errors);
        Err(CliError::usage(format!(
            "the configuration has {count} error(s)\n{}",
            errors.render().trim_end()
        )))
    }

    pub(crate) fn job<'a>(&self, config: &'a Config, name: &str) -> Result<&'a Arc<Job>, CliError> {
        config.jobs.get(name).ok_or_else(|| {
            let error = CliError::not_found(format!("there is no job `{name}`"));
            match nearest(name, config.jobs.keys().map(crate::domain::JobName::as_str)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            }
        })
    }

    pub(crate) fn state(&self) -> StateDir {
        StateDir::new(&self.dirs.state)
    }

    pub(crate) fn host(&self, observers: Observers) -> Host {
        self.host_with(observers, Default::default())
    }

    /// Returns a host that keeps pending approvals in `approvals`.
    pub(crate) fn host_with(&self, observers: Observers, approvals: Arc<Approvals>) -> Host {
        Host::new(self.state(), self.clock.clone(), self.environment.clone(), observers, approvals)
    }

    pub(crate) fn new_run_id(&self) -> RunId {
        RunId::from_ulid(ulid::Ulid::generate())
    }

    /// Returns the run that `name` means: `name` is an id, a unique prefix of one, `last`, or
    /// `JOB@last`.
    ///
    /// *Errors*: no run matches, several do, or the directory of the runs cannot be read.
    pub(crate) fn find_run(&self, name: &str) -> Result<RunDir, CliError> {
        let state = self.state();
        super::access::exists_and_readable(&state.root().join("runs"))?;
        if let Ok(run_id) = RunId::parse(name)
            && let Some(run) = state.find_run(&run_id)
        {
            return Ok(run);
        }
        let missing = || {
            CliError::not_found(format!("there is no run `{name}` in {}", state.root().display()))
        };
        let mut runs = state
            .runs()
            .map_err(|error| super::access::denied(&state.root().join("runs"), &error))?;
        if name == "last" {
            return runs.drain(..).next().ok_or_else(missing);
        }
        if let Some(job) = name.strip_suffix("@last") {
            return runs
                .into_iter()
                .find(|run| job_of(&run.transcript()).as_deref() == Some(job))
                .ok_or_else(missing);
        }
        let name = name.to_ascii_lowercase();
        runs.retain(|run| !name.is_empty() && run.run_id().as_str().starts_with(&name));
        match runs.as_slice() {
            [] => Err(missing()),
            [run] => Ok(run.clone()),
            _ => Err(CliError::ambiguous(&name)),
        }
    }
}

fn job_of(transcript: &Path) -> Option<String> {
    RunHistory::read_start(transcript).map(|start| start.job)
}
