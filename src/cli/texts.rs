//! `dutyd steer` and `dutyd follow-up`: give a text to a run that is not over.

use std::process::ExitCode;

use serde_json::json;

use super::args::TextArgs;
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::source::Daemon;
use crate::daemon::TakenText;
use crate::domain::TextKind;

pub(crate) async fn give(
    context: &Context,
    args: &TextArgs,
    kind: TextKind,
) -> Result<ExitCode, CliError> {
    let client = Client::require(context)?;
    let report = client.get("/status", &()).await?;
    let daemon = Daemon { client, report };
    let run_id = daemon.run_id(&args.run).await?;
    let verb = match kind {
        TextKind::Steering => "steer",
        TextKind::FollowUp => "follow-up",
    };
    let body = json!({"text": args.text});
    let taken: TakenText = daemon.client.post(&format!("/runs/{run_id}/{verb}"), &body).await?;
    output::value(context.form, &taken, || format!("given to run {run_id}:\n  {}\n", taken.taken))?;
    Ok(ExitCode::SUCCESS)
}
