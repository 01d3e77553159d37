//! Where an answer comes from: a daemon behind its socket, or the files of this host; and whether the caller may read them.
//!
//! Verbs ask [`find`] and nothing else. A thing that exists and is not readable is an error here, never "absent".
//! *Source*: `docs/design/interfaces.md`, "Command line".

use std::path::{Path, PathBuf};

use super::access::{denied, own_state, readable};
use super::args::OutputForm;
use super::client::Client;
use super::context::Context;
use super::error::{CliError, ErrorKind};
use super::output;
use crate::daemon::StatusReport;
use crate::domain::RunId;
use crate::server::RunsQuery;
use crate::store::{DbError, RunSummary};

/// What a verb is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Runs, slots and plans: the state directory.
    Record,
    /// Jobs, tools and rules: the configuration.
    Configuration,
    /// A new run.
    Start,
}

/// A daemon that answers.
pub(crate) struct Daemon {
    pub(crate) client: Client,
    pub(crate) report: StatusReport,
}

/// Where an answer comes from.
pub(crate) enum Source {
    Daemon(Box<Daemon>),
    /// The directory that is read.
    Files(PathBuf),
}

/// Returns the source for a verb.
///
/// *Errors*: it exists and is not readable (1); another configuration than the daemon's is named for a run (2); there is no state directory (3).
pub(crate) async fn find(context: &Context, wanted: Wanted) -> Result<Source, CliError> {
    if let Some(client) = Client::find(context)? {
        let report = client.get("/status", &()).await?;
        let daemon = Box::new(Daemon { client, report });
        match (wanted, daemon.has_other_files(context)) {
            (Wanted::Record, _) | (_, false) => return Ok(Source::Daemon(daemon)),
            (Wanted::Start, true) => return Err(daemon.other_files(context)),
            (Wanted::Configuration, true) => {}
        }
    }
    match wanted {
        Wanted::Record => record_files(context),
        Wanted::Configuration => configuration_files(context),
        Wanted::Start => {
            own_state(&context.dirs)?;
            configuration_files(context)
        }
    }
}

fn record_files(context: &Context) -> Result<Source, CliError> {
    let state = &context.dirs.state;
    if readable(state)? {
        return Ok(Source::Files(state.clone()));
    }
    Err(CliError::not_found(format!("the state directory {} does not exist", state.display()))
        .hint("no daemon runs either; --state-dir names another directory"))
}

fn configuration_files(context: &Context) -> Result<Source, CliError> {
    // A missing directory is reported by the loader, with its hint.
    readable(&context.dirs.config)?;
    Ok(Source::Files(context.dirs.config.clone()))
}

impl Source {
    /// Names the source on stderr, below a table.
    pub(crate) fn tell(&self, form: OutputForm) {
        if form == OutputForm::Table {
            output::note(&self.line());
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Files(directory) => format!("files in {}", directory.display()),
            Self::Daemon(daemon) => {
                let digest = &daemon.report.config.digest;
                let short = digest.get(..8).unwrap_or(digest);
                format!("daemon {}, configuration {short}", daemon.report.pid)
            }
        }
    }

    /// Says that the files differ from the configuration in effect, if they do.
    pub(crate) fn tell_stale(&self) {
        if let Self::Daemon(daemon) = self
            && let Some(stale) = daemon.stale()
        {
            output::note(&stale);
        }
    }
}

impl Daemon {
    fn has_other_files(&self, context: &Context) -> bool {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        context.config_named
            && real(&context.dirs.config) != real(Path::new(&self.report.config.directory))
    }

    fn other_files(&self, context: &Context) -> CliError {
        let (own, named) = (&self.report.config.directory, context.dirs.config.display());
        CliError::usage(format!("the daemon {} uses {own}, not {named}", self.report.pid))
            .hint("leave --config-dir and DUTYD_CONFIG_DIR out, or name another --state-dir")
    }

    /// Returns what to say where the files are not the configuration in effect.
    pub(crate) fn stale(&self) -> Option<String> {
        let config = &self.report.config;
        let directory = &config.directory;
        match &config.disk_digest {
            Some(disk) if *disk == config.digest => None,
            Some(_) => Some(format!(
                "the files in {directory} differ from the configuration in effect: `dutyd reload` loads them"
            )),
            None => Some(format!(
                "the files in {directory} cannot be loaded: `dutyd validate` says why; then `dutyd reload`"
            )),
        }
    }

    /// Adds the stale files to an error about an unknown job.
    pub(crate) fn explained(&self, error: CliError) -> CliError {
        match self.stale().filter(|_| error.kind == ErrorKind::NotFound) {
            Some(stale) => error.hint(stale),
            None => error,
        }
    }

    /// Returns the run that `name` means: an id, a unique prefix, `last`, or `JOB@last`.
    ///
    /// *Errors*: there is none, or there are several.
    pub(crate) async fn run_id(&self, name: &str) -> Result<String, CliError> {
        if RunId::parse(name).is_ok() {
            return Ok(name.to_owned());
        }
        let job = name.strip_suffix("@last").map(str::to_owned);
        let is_last = name == "last" || job.is_some();
        let query = RunsQuery {
            limit: Some(if is_last { 1 } else { 2 }),
            prefix: (!is_last).then(|| name.to_ascii_lowercase()),
            job,
            ..RunsQuery::default()
        };
        let rows: Vec<RunSummary> = self.client.list("/runs", &query).await?;
        match rows.as_slice() {
            [row] if !name.is_empty() => Ok(row.run_id.clone()),
            [_, _, ..] => Err(CliError::ambiguous(name)),
            _ => Err(CliError::not_found(format!("there is no run `{name}`"))),
        }
    }
}

/// Returns the error of a database.
pub(crate) fn of_database(error: DbError) -> CliError {
    match error {
        DbError::Unreadable { path, error } => denied(&path, &error),
        other => CliError::failed(other.to_string()),
    }
}
