//! `dutyd slots` and `dutyd audit`

use std::process::ExitCode;

use super::args::{AuditArgs, SlotsArgs};
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::time::moment;
use crate::daemon::AuditReport;
use crate::server::SlotsQuery;
use crate::store::{Ledger, SlotRow};

pub(crate) async fn slots(context: &Context, args: &SlotsArgs) -> Result<ExitCode, CliError> {
    let now = context.clock.now();
    let at = |text: &Option<String>| text.as_deref().map(|text| moment(text, now)).transpose();
    let query =
        SlotsQuery { job: args.job.clone(), since: at(&args.since)?, until: at(&args.until)? };
    let rows: Vec<SlotRow> = match Client::find(context)? {
        Some(client) => client.list("/slots", &query).await?,
        None => Ledger::read_file(&context.dirs.state, |reader| {
            reader.slots(query.job.as_deref(), query.since, query.until)
        })
        .map_err(|error| CliError::failed(error.to_string()))?
        .unwrap_or_default(),
    };
    output::value(context.form, &rows, || {
        output::table(
            &["job", "due (UTC)", "state", "run", "reason"],
            rows.iter().map(|row| {
                vec![
                    row.job.clone(),
                    row.due_at.format("%Y-%m-%d %H:%M:%S").to_string(),
                    row.state.clone(),
                    row.run_id.clone().unwrap_or_else(|| "-".to_owned()),
                    row.reason.clone(),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn audit(context: &Context, args: &AuditArgs) -> Result<ExitCode, CliError> {
    let query = SlotsQuery { job: args.job.clone(), ..SlotsQuery::default() };
    let report: AuditReport = match Client::find(context)? {
        Some(client) => client.get("/audit", &query).await?,
        None => Ledger::read_file(&context.dirs.state, |reader| {
            crate::daemon::audit(reader, query.job.as_deref())
        })
        .map_err(|error| CliError::failed(error.to_string()))?
        .ok_or_else(|| {
            CliError::not_found(format!(
                "{} has no ledger: no daemon ever ran there",
                context.dirs.state.display()
            ))
        })?,
    };
    output::value(context.form, &report, || {
        let mut out = String::new();
        for (word, slots) in [("hole", &report.holes), ("extra", &report.extras)] {
            for slot in slots {
                out.push_str(&format!(
                    "{word}  {}  {}\n",
                    slot.job,
                    slot.due_at.format("%Y-%m-%d %H:%M:%S UTC")
                ));
            }
        }
        let since = report.since.map_or_else(
            || "no schedule was ever in force".to_owned(),
            |since| format!("since {}", since.format("%Y-%m-%d %H:%M:%S UTC")),
        );
        out.push_str(&format!(
            "{}: {} slots, {} holes, {} extras, {since}\n",
            if report.ok { "ok" } else { "NOT ok" },
            report.slots,
            report.holes.len(),
            report.extras.len()
        ));
        out
    })?;
    Ok(ExitCode::from(u8::from(!report.ok)))
}
