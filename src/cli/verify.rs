//! `dutyd verify`: checks that records were not changed.

mod against;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use self::against::read_ends;
use super::args::VerifyArgs;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::progress::Progress;
use super::runs::row_without_record;
use super::show::no_record_error;
use super::source::{self, Source, Wanted};
use super::time::{first_id, moment};
use crate::domain::RunId;
use crate::store::{
    HeadState, Ledger, LedgerReader, RecordEnd, RecordFacts, RunDir, StateDir, VerifyAllReport,
    VerifyReport, missing_record, verify as verify_record,
};

pub(crate) async fn verify(context: &Context, args: &VerifyArgs) -> Result<ExitCode, CliError> {
    let against = args.against.as_deref().map(read_ends).transpose()?;
    if args.all {
        return all(context, args, against.as_ref());
    }
    let name = args.run.as_deref().unwrap_or("last");
    let source = source::find(context, Wanted::Record).await?;
    if let Some(row) = row_without_record(context, &source, name).await? {
        return Err(no_record_error(&row));
    }
    let report: VerifyReport = match (&source, &against) {
        (_, Some(ends)) => against_log(context, name, ends)?,
        (Source::Daemon(daemon), None) => {
            let run_id = daemon.run_id(name).await?;
            daemon.client.get(&format!("/runs/{run_id}/verify"), &()).await?
        }
        (Source::Files(_), None) => of_files(context, name)?,
    };
    output::value(context.form, &report, || report_text(&report))?;
    Ok(Exit::of_check(report.ok).into())
}

fn of_files(context: &Context, name: &str) -> Result<VerifyReport, CliError> {
    let state = context.state();
    if let Ok(run_id) = RunId::parse(name)
        && state.find_run(&run_id).is_none()
        && ends(context, |reader| reader.record_end(name))?.flatten().is_some()
    {
        return Ok(missing_record(&run_id));
    }
    let run = context.find_run(name)?;
    let end = ends(context, |reader| reader.record_end(run.run_id().as_str()))?.flatten();
    check(&state, &run, end)
}

/// Checks a record against the log. A run that the log does not name is not checked against anything, so
/// that is an error.
fn against_log(
    context: &Context,
    name: &str,
    ends: &BTreeMap<RunId, RecordEnd>,
) -> Result<VerifyReport, CliError> {
    let state = context.state();
    if let Ok(run_id) = RunId::parse(name)
        && state.find_run(&run_id).is_none()
        && ends.contains_key(&run_id)
    {
        return Ok(missing_record(&run_id));
    }
    let run = context.find_run(name)?;
    let Some(end) = ends.get(run.run_id()) else {
        let message = format!("the log does not tell where the record of {} ends", run.run_id());
        return Err(CliError::failed(message));
    };
    check(&state, &run, Some(end.clone()))
}

fn ends<T>(
    context: &Context,
    query: impl FnOnce(&LedgerReader<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, CliError> {
    source::unless_lost(Ledger::read_file(&context.dirs.state, query))
}

fn check(state: &StateDir, run: &RunDir, end: Option<RecordEnd>) -> Result<VerifyReport, CliError> {
    let (live, is_open) = (state.is_live(run.run_id()), state.is_open(run.run_id()));
    let report = verify_record(run, &RecordFacts { live, is_open, end, ..RecordFacts::default() });
    report.map_err(|error| super::access::denied(&run.transcript(), &error))
}

fn report_text(report: &VerifyReport) -> String {
    let live = if report.live { ", still being written" } else { "" };
    let run = &report.run_id;
    match (&report.reason, report.broken_at_seq) {
        // `seq` counts from 0.
        (Some(reason), Some(seq)) => format!("{run} is broken at line {}: {reason}\n", seq + 1),
        (Some(reason), None) => format!("{run} is broken: {reason}\n"),
        (None, _) if report.head == HeadState::None && !report.live => {
            format!("ok: {} lines; the ledger does not tell where this record ends\n", report.lines)
        }
        (None, _) => format!("ok: {} lines{live}\n", report.lines),
    }
}

/// Checks every record from `--since` on. Memory use grows only with the number of broken and
/// missing records.
fn all(
    context: &Context,
    args: &VerifyArgs,
    against: Option<&BTreeMap<RunId, RecordEnd>>,
) -> Result<ExitCode, CliError> {
    super::access::exists_and_readable(&context.dirs.state)?;
    let since = args.since.as_deref().map(|text| moment(text, context.clock.now())).transpose()?;
    let since = since.map(first_id).unwrap_or_default();
    let state = context.state();
    let report = match against {
        Some(ends) => check_all(&state, Some(&Known::Log(ends)), &since)?,
        None => {
            let check = |reader: &LedgerReader<'_>| {
                Ok(check_all(&state, Some(&Known::Ledger(reader)), &since))
            };
            ends(context, check)?.unwrap_or_else(|| check_all(&state, None, &since))?
        }
    };
    output::value(context.form, &report, || {
        let broken: String = report.broken.iter().map(report_text).collect();
        let word = if report.ok { "ok" } else { "NOT ok" };
        let place = if against.is_some() { "log" } else { "ledger" };
        format!(
            "{broken}{word}: {}, {} broken, {} whose end is not in the {place}\n",
            output::counted(report.runs, "record"),
            report.broken.len(),
            report.without_head
        )
    })?;
    Ok(Exit::of_check(report.ok).into())
}

/// What tells where records end.
enum Known<'a> {
    Ledger(&'a LedgerReader<'a>),
    Log(&'a BTreeMap<RunId, RecordEnd>),
}

impl Known<'_> {
    fn end_of(&self, run_id: &RunId) -> rusqlite::Result<Option<RecordEnd>> {
        match self {
            Self::Ledger(reader) => reader.record_end(run_id.as_str()),
            Self::Log(ends) => Ok(ends.get(run_id).cloned()),
        }
    }

    /// Calls `take` with the id of each run from `since` on whose end is known.
    fn each(&self, since: &str, mut take: impl FnMut(&str)) -> rusqlite::Result<()> {
        match self {
            Self::Ledger(reader) => reader.each_record_end(since, take),
            Self::Log(ends) => {
                let ids = ends.keys().map(RunId::as_str).filter(|id| *id >= since);
                ids.for_each(&mut take);
                Ok(())
            }
        }
    }
}

fn check_all(
    state: &StateDir,
    known: Option<&Known<'_>>,
    since: &str,
) -> Result<VerifyAllReport, CliError> {
    let failed =
        |error: rusqlite::Error| CliError::failed("cannot read the ledger").because(&error);
    let mut report = VerifyAllReport { ok: true, ..VerifyAllReport::default() };
    let (mut progress, mut wrong) = (Progress::new(), None);
    let unreadable = |error| super::access::denied(&state.root().join("runs"), &error);
    state
        .each_run(|run| {
            if run.run_id().as_str() < since {
                return true;
            }
            let end = known.map(|known| known.end_of(run.run_id())).transpose();
            let checked = end.map_err(failed).and_then(|end| check(state, run, end.flatten()));
            match checked {
                Ok(one) => take(&mut report, one),
                Err(error) => wrong = Some(error),
            }
            progress.show(report.runs);
            wrong.is_none()
        })
        .map_err(unreadable)?;
    if let Some(error) = wrong {
        return Err(error);
    }
    // Find records that were removed entirely.
    let mut gone = BTreeSet::new();
    if let Some(known) = known {
        let each = known.each(since, |id| {
            gone.extend(RunId::parse(id).ok().filter(|run_id| state.find_run(run_id).is_none()));
        });
        each.map_err(failed)?;
    }
    gone.iter().for_each(|run_id| take(&mut report, missing_record(run_id)));
    Ok(report)
}

fn take(report: &mut VerifyAllReport, one: VerifyReport) {
    report.runs += 1;
    report.without_head += u64::from(one.head == HeadState::None && !one.live);
    if !one.ok {
        report.ok = false;
        report.broken.push(one);
    }
}
