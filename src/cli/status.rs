//! `dutyd status`: shows the status of the daemon.

use std::process::ExitCode;

use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::pause::lost_pauses;

/// The column in which the values begin.
const VALUE: usize = 15;

pub(crate) async fn status(context: &Context) -> Result<ExitCode, CliError> {
    let report = Client::require(context)?.status().await?;
    output::value(context.form, &report, || {
        let mut out = format!(
            "dutyd {} (pid {}), since {}\nconfiguration  {} {}\nruns           {} active, {} queued\njobs           {}, {} paused, {} with a failed last run{}\nsandbox        {}\n",
            report.version,
            report.pid,
            report.started_at.format("%Y-%m-%d %H:%M:%S UTC"),
            if report.config.valid { "valid," } else { "HAS ERRORS on disk; in effect:" },
            report.config.digest.get(..12).unwrap_or_default(),
            report.runs.active,
            report.runs.queued,
            report.jobs.total,
            report.jobs.paused,
            report.jobs.failing,
            match report.jobs.acknowledged {
                None | Some(0) => String::new(),
                Some(count) => format!(", {count} acknowledged"),
            },
            report.sandbox,
        );
        if let Some(waiting) = report.approvals.filter(|waiting| *waiting > 0) {
            out.push_str(&format!(
                "approvals      {} waiting: `dutyd approvals` shows them\n",
                output::counted(waiting, "call")
            ));
        }
        match &report.config.disk_digest {
            Some(disk) if *disk == report.config.digest => {}
            Some(_) => {
                out.push_str("               the files on disk differ: `dutyd reload` loads them\n")
            }
            None => out.push_str(
                "               the files on disk cannot be loaded: `dutyd validate` shows why\n",
            ),
        }
        let widened: Vec<String> =
            report.config.widened.iter().map(|job| format!("`{job}`")).collect();
        if !widened.is_empty() {
            let jobs = widened.join(", ");
            out.push_str(&format!("               {jobs} gained rights at the last reload\n"));
        }
        if let Some(pause) = &report.pause_of_all {
            let until = match pause.until {
                Some(until) => until.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
                None => "`dutyd unpause --all`".to_owned(),
            };
            out.push_str(&format!("               all jobs are paused until {until}"));
            out.extend(pause.note.iter().map(|note| format!(": {note}")));
            out.push('\n');
        }
        for line in lost_pauses(&report.config.paused_removed, &report.config.added) {
            out.push_str(&format!("               {line}\n"));
        }
        for key in &report.config.needs_restart {
            out.push_str(&format!(
                "               the change of `{key}` takes effect at the next start\n"
            ));
        }
        for refused in report.refused_parameters.iter().flatten() {
            out.push_str(&format!(
                "               `{}` refuses {} (since {})\n",
                refused.model,
                refused.parameters.join(", "),
                refused.since.format("%Y-%m-%d")
            ));
        }
        for wait in &report.waits {
            out.push_str(&format!(
                "waits          {} run(s) for an answer of `{}`, since {}\n",
                wait.runs.len(),
                wait.model,
                wait.since.format("%H:%M:%S UTC"),
            ));
        }
        for hold in report.holds.iter().filter(|hold| hold.waiting > 0) {
            out.push_str(&format!(
                "waits          {} for the model `{}`, which is on hold\n",
                output::counted(hold.waiting, "run"),
                hold.model,
            ));
        }
        for reason in &report.degraded {
            out.push_str(&format!("degraded       {reason}\n"));
        }
        for error in &report.config.errors {
            out.push_str(&format!("  {error}\n"));
        }
        output::hanging(&out, VALUE)
    })?;
    Ok(Exit::of_check(report.is_good()).into())
}
