//! `dutyd cancel`: stops one run, the runs of a job, or all runs.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::CancelArgs;
use super::client::Client;
use super::context::Context;
use super::error::{CliError, ErrorKind};
use super::output;
use super::source::Daemon;
use crate::domain::JobName;

pub(crate) async fn cancel(context: &Context, args: &CancelArgs) -> Result<ExitCode, CliError> {
    let client = Client::require(context)?;
    let report = client.get("/status", &()).await?;
    let daemon = Daemon { client, report };
    if args.all {
        return many(context, &daemon, None).await;
    }
    let name = args.target.as_deref().unwrap_or_default();
    match daemon.run_id(name).await {
        Ok(run_id) => {
            let path = format!("/runs/{run_id}/cancel");
            let answer: Value = daemon.client.post(&path, &json!({})).await?;
            output::value(context.form, &answer, || format!("stopping {run_id}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        // No run id begins with this name, so try it as a job.
        Err(error)
            if error.kind == ErrorKind::NotFound
                && name != "last"
                && JobName::parse(name).is_ok() =>
        {
            many(context, &daemon, Some(name)).await
        }
        Err(error) => Err(error),
    }
}

async fn many(context: &Context, daemon: &Daemon, job: Option<&str>) -> Result<ExitCode, CliError> {
    let answer: Value = daemon.client.post("/cancel", &json!({"job": job})).await?;
    let cancelled: Vec<&str> = answer
        .get("run_ids")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    output::value(context.form, &answer, || match cancelled.as_slice() {
        [] => "no queued or running runs\n".to_owned(),
        some => some.iter().map(|run_id| format!("stopping {run_id}\n")).collect(),
    })?;
    Ok(ExitCode::SUCCESS)
}
