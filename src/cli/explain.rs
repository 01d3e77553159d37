//! `dutyd explain`: shows which rule decides a call.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::args::ExplainArgs;
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::source::{self, Source, Wanted};
use crate::argv::parse_arguments;
use crate::config::Trust;
use crate::domain::DecisionKind;
use crate::run::{ExplainError, Explanation, explain as explain_call};
use crate::sinks::Observers;

/// The column in which the reason begins.
const REASON: usize = 7;

pub(crate) async fn explain(context: &Context, args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let arguments: Option<Map<String, Value>> = args
        .arguments
        .as_deref()
        .map(|text| {
            parse_arguments(text).map_err(|error| {
                CliError::usage(format!("the arguments are not a JSON object: {error}"))
            })
        })
        .transpose()?;
    let source = source::find(context, Wanted::Configuration).await?;
    let explained: Explanation = match &source {
        Source::Daemon(daemon) => {
            let path = format!("/jobs/{}/explain", super::run::path_segment(&args.job));
            let body = json!({"tool": args.tool, "arguments": arguments});
            let answer = daemon.client.post(&path, &body).await;
            answer.map_err(|error| daemon.explained(error))?
        }
        Source::Files(_) => {
            let config = context.config_for_reading(Trust::Advised)?;
            let job = context.job(&config, &args.job)?;
            let host = context.host(Observers::default());
            let explained = explain_call(&config, job, &host, &args.tool, arguments.as_ref());
            explained.map_err(|error| match error {
                ExplainError::Unknown(unknown) => unknown.into(),
                ExplainError::Arguments(error) => CliError::usage(error.message),
            })?
        }
    };
    output::value(context.form, &explained, || {
        let text = format!(
            "{}  {} by rule {}\n       {}\n",
            explained.decision.as_str(),
            explained.category,
            explained.rule,
            explained.reason
        );
        output::hanging(&text, REASON)
    })?;
    source.tell(context.form);
    source.tell_stale();
    let exit = match explained.decision {
        DecisionKind::Allow => Exit::Success,
        DecisionKind::Ask => Exit::Failed,
        DecisionKind::Deny => Exit::Denied,
    };
    Ok(exit.into())
}
