//! `dutyd verify`

use std::process::ExitCode;

use super::args::VerifyArgs;
use super::context::Context;
use super::error::CliError;
use super::output;

pub(crate) fn verify(context: &Context, args: &VerifyArgs) -> Result<ExitCode, CliError> {
    let run = context.find_run(&args.run)?;
    let live = context.state().is_live(run.run_id());
    let path = run.transcript();
    let report = crate::store::verify(&path, live)
        .map_err(|error| CliError::failed(format!("{} cannot be read: {error}", path.display())))?;
    output::value(context.form, &report, || {
        let live = if report.live { ", still being written" } else { "" };
        match (&report.reason, report.broken_at_seq) {
            (Some(reason), Some(seq)) => {
                format!("broken at line {seq}: {reason}\n{}\n", path.display())
            }
            _ => format!("ok: {} lines{live}\n", report.lines),
        }
    })?;
    Ok(ExitCode::from(u8::from(!report.ok)))
}
