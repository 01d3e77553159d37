//! Chooses the source of an answer: a running daemon, or the files of this host if the caller may
//! read them.
//!
//! A verb that can use either source calls [`find`]. A source that exists but is not readable is an
//! error, never "absent".
//! *Source*: `docs/design/interfaces.md`, "Command line".

use std::path::{Path, PathBuf};

use super::access::{check_state_owner, denied, exists_and_readable};
use super::args::OutputForm;
use super::client::{Client, check_unused};
use super::context::Context;
use super::error::{CliError, ErrorKind};
use super::output;
use crate::daemon::StatusReport;
use crate::domain::RunId;
use crate::server::RunsQuery;
use crate::store::{DbError, RunSummary};

/// The purpose for which a verb needs a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// To read runs, slots or plans, which are in the state directory.
    Record,
    /// To read jobs, tools or rules, which are in the configuration.
    Configuration,
    /// To start a run. Without a daemon, only the owner of the state directory may do this.
    Start,
}

/// A running daemon and its status.
pub(crate) struct Daemon {
    pub(crate) client: Client,
    pub(crate) report: StatusReport,
}

/// The source of an answer.
pub(crate) enum Source {
    Daemon(Box<Daemon>),
    /// The directory to read.
    Files(PathBuf),
}

/// Chooses the source for a verb.
///
/// *Errors*, with exit codes: the caller may not use a source that exists (1); the caller wants to
/// start a run with a configuration directory other than the daemon's (2); the state directory does
/// not exist (3).
pub(crate) async fn find(context: &Context, wanted: Wanted) -> Result<Source, CliError> {
    if let Some(client) = Client::find(context)? {
        let report = client.status().await?;
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
            check_state_owner(&context.dirs)?;
            check_unused(context)?;
            configuration_files(context)
        }
    }
}

/// Returns the context of a verb that works in its own process beside the daemon: with the `PATH` of
/// the daemon, so that it finds the programs that a run finds. Warns if no run can begin there.
///
/// *Errors*: those of [`find`].
pub(crate) async fn beside_daemon(context: &Context) -> Result<Context, CliError> {
    let mut own = context.clone();
    if let Source::Daemon(daemon) = find(context, Wanted::Configuration).await? {
        if let Some(why) = &daemon.report.cannot_begin {
            output::note(&format!("warning: {why}"));
        }
        if let Some(path) = &daemon.report.search_path {
            own.environment = own.environment.with("PATH", Some(path));
        }
    }
    Ok(own)
}

fn record_files(context: &Context) -> Result<Source, CliError> {
    let state = &context.dirs.state;
    if exists_and_readable(state)? {
        return Ok(Source::Files(state.clone()));
    }
    Err(CliError::not_found(format!("the state directory {} does not exist", state.display()))
        .hint("no daemon is running either; use --state-dir to name another directory"))
}

fn configuration_files(context: &Context) -> Result<Source, CliError> {
    // The loader reports a missing directory, with a hint.
    exists_and_readable(&context.dirs.config)?;
    Ok(Source::Files(context.dirs.config.clone()))
}

impl Source {
    /// Prints a line about the source to stderr if the output is a table.
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

    /// Tells whether a run that has begun and not ended waits for the next start of a daemon: none
    /// runs, and no process works on the run.
    pub(crate) fn is_suspended(&self, context: &Context, run_id: &str) -> bool {
        let is_live = |run_id: &RunId| context.state().is_live(run_id);
        matches!(self, Self::Files(_)) && !RunId::parse(run_id).as_ref().is_ok_and(is_live)
    }

    /// Warns on stderr if the files differ from the configuration in effect.
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
            .hint("omit --config-dir and DUTYD_CONFIG_DIR, or use another --state-dir")
    }

    /// Returns a warning if the files differ from the configuration in effect.
    pub(crate) fn stale(&self) -> Option<String> {
        let config = &self.report.config;
        let directory = &config.directory;
        match &config.disk_digest {
            Some(disk) if *disk == config.digest => None,
            Some(_) => Some(format!(
                "the files in {directory} differ from the configuration in effect: `dutyd reload` loads them"
            )),
            None => Some(format!(
                "the files in {directory} cannot be loaded: `dutyd validate` shows why; then run `dutyd reload`"
            )),
        }
    }

    /// Adds the warning of [`Self::stale`] to a not-found error, because a reload may resolve it.
    pub(crate) fn explained(&self, error: CliError) -> CliError {
        match self.stale().filter(|_| error.kind == ErrorKind::NotFound) {
            Some(stale) => error.hint(stale),
            None => error,
        }
    }

    /// Returns the run id that `name` means: `name` is an id, a unique prefix of one, `last`, or
    /// `JOB@last`.
    ///
    /// *Errors*: no run matches, or several do.
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

/// Returns what was read from the ledger. If the ledger is lost, warns on stderr and returns `None`, for
/// a verb that shows records, which do not need it.
///
/// *Errors*: the ledger cannot be read.
pub(crate) fn unless_lost<T>(read: Result<Option<T>, DbError>) -> Result<Option<T>, CliError> {
    match read {
        Err(lost @ DbError::Lost(_)) => {
            output::note(&format!("warning: {lost}"));
            Ok(None)
        }
        read => read.map_err(of_database),
    }
}

/// Converts a database error. The error for an unreadable file names the owner and the remedy.
pub(crate) fn of_database(error: DbError) -> CliError {
    match error {
        DbError::Unreadable { path, error } => denied(&path, &error),
        DbError::Damaged(path) if path.file_name().is_some_and(|name| name == "index.db") => {
            let hint = "if no daemon runs, `dutyd reindex` sets it aside and rebuilds it from the transcripts; else restart the daemon";
            CliError::failed(DbError::Damaged(path).to_string()).hint(hint)
        }
        other => CliError::failed_by(other),
    }
}
