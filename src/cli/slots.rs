//! `dutyd slots` and `dutyd audit`: list the slots, and find due times without one.

use std::process::ExitCode;

use super::args::{AuditArgs, SlotsArgs};
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::source::{self, Source, Wanted};
use super::time::moment;
use crate::config::Trust;
use crate::daemon::AuditReport;
use crate::server::{AuditQuery, SlotsQuery};
use crate::store::{Ledger, SlotRow, SlotState};

pub(crate) async fn slots(context: &Context, args: &SlotsArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let at = |text: &Option<String>| text.as_deref().map(|text| moment(text, now)).transpose();
    let query =
        SlotsQuery { job: args.job.clone(), since: at(&args.since)?, until: at(&args.until)? };
    let source = source::find(context, Wanted::Record).await?;
    let mut rows: Vec<SlotRow> = match &source {
        Source::Daemon(daemon) => daemon.client.list("/slots", &query).await?,
        Source::Files(state) => {
            let read = Ledger::read_file(state, |reader| {
                reader.slots(query.job.as_deref(), query.since, query.until)
            });
            let rows = read.map_err(source::of_database)?.unwrap_or_default();
            if let Some(job) = query.job.as_deref().filter(|_| rows.is_empty()) {
                super::runs::must_know(context, job)?;
            }
            rows
        }
    };
    if let Some(limit) = args.limit {
        rows.drain(..rows.len().saturating_sub(limit));
    }
    let is_suspended = |row: &SlotRow| {
        let of_run = |run_id: &String| source.is_suspended(context, run_id);
        row.state == SlotState::Running && row.run_id.as_ref().is_some_and(of_run)
    };
    output::value(context.form, &rows, || {
        output::table(
            &["job", "due (UTC)", "state", "run", "reason"],
            rows.iter().map(|row| {
                let (state, reason) = if is_suspended(row) {
                    ("suspended", "until the next start of the daemon")
                } else {
                    (row.state.as_str(), row.reason.as_str())
                };
                let mut due = row.due_at.format("%Y-%m-%d %H:%M:%S").to_string();
                if let Some(until) = row.until {
                    let until = until.format("%Y-%m-%d %H:%M:%S");
                    due.push_str(&format!(" to {until} ({} slots)", row.count));
                }
                vec![
                    row.job.clone(),
                    due,
                    state.to_owned(),
                    row.run_id.clone().unwrap_or_else(|| "-".to_owned()),
                    reason.to_owned(),
                ]
            }),
        )
    })?;
    source.tell(context.form);
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn audit(context: &Context, args: &AuditArgs) -> Result<ExitCode, CliError> {
    let query = AuditQuery { job: args.job.clone() };
    let source = source::find(context, Wanted::Record).await?;
    let report: AuditReport = match &source {
        Source::Daemon(daemon) => daemon.client.get("/audit", &query).await?,
        Source::Files(state) => audit_of_files(context, state, query.job.as_deref())?,
    };
    output::value(context.form, &report, || report_text(&report))?;
    source.tell(context.form);
    Ok(Exit::of_check(report.ok).into())
}

fn audit_of_files(
    context: &Context,
    state: &std::path::Path,
    job: Option<&str>,
) -> Result<AuditReport, CliError> {
    // If the configuration cannot be loaded, assume no jitter.
    let config = context.config_for_reading(Trust::Advised).ok();
    let jitter = |job: &str| {
        let job = config.as_ref().and_then(|config| config.jobs.get(job));
        job.map(|job| job.jitter).unwrap_or_default()
    };
    let now = context.clock.now();
    let read = Ledger::read_file(state, |reader| crate::daemon::audit(reader, job, jitter, now));
    let report = read.map_err(source::of_database)?.ok_or_else(|| {
        CliError::not_found(format!("{} has no ledger: no daemon has run there", state.display()))
    })?;
    if let Some(job) = job {
        super::runs::must_know(context, job)?;
    }
    Ok(report)
}

fn report_text(report: &AuditReport) -> String {
    const MOMENT: &str = "%Y-%m-%d %H:%M:%S UTC";
    let mut out = String::new();
    for (word, slots) in [("hole", &report.holes), ("extra", &report.extras)] {
        for slot in slots {
            out.push_str(&format!("{word}  {}  {}\n", slot.job, slot.due_at.format(MOMENT)));
        }
    }
    for waits in &report.undecided {
        let (job, first) = (&waits.job, waits.first_due_at.format(MOMENT));
        out.push_str(&format!("undecided  {job}  {} since {first}\n", waits.count));
    }
    if !report.undecided.is_empty() {
        let daemon = match report.daemon {
            Some(pid) => format!("the daemon {pid} is stuck"),
            None => "no daemon is running".to_owned(),
        };
        let last = report.last_decided_at.map_or_else(String::new, |last| {
            format!("; the last slot was decided at {}", last.format(MOMENT))
        });
        out.push_str(&format!("{daemon}{last}\n"));
    }
    let from = report.valid_from.map_or_else(
        || "no schedule was ever in effect".to_owned(),
        |from| format!("since {}", from.format(MOMENT)),
    );
    out.push_str(&format!(
        "{}: {} slots, {} holes, {} extras, {from}\n",
        if report.ok { "ok" } else { "NOT ok" },
        report.slots,
        report.holes.len(),
        report.extras.len()
    ));
    out
}
