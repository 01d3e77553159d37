//! `dutyd explain`

use std::process::ExitCode;

use serde_json::json;

use super::args::ExplainArgs;
use super::context::Context;
use super::error::CliError;
use super::known_tool::KnownTool;
use super::output;
use crate::call::parse_arguments;
use crate::config::Trust;
use crate::domain::DecisionKind;
use crate::gate::Decision;
use crate::run::{gate_rules, path_rules};
use crate::sinks::Observers;
use crate::tools::JudgedCall;

/// The exit code of a call that the gate refuses.
pub(crate) const REFUSED: u8 = 5;

pub(crate) fn explain(context: &Context, args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Advised)?;
    let job = context.job(&config, &args.job)?;
    let tool = KnownTool::find(&config, &args.tool)?;
    let call = match &args.arguments {
        // Without arguments the answer is about the tool.
        None => JudgedCall::default(),
        Some(text) => {
            let arguments = parse_arguments(text).map_err(|error| {
                CliError::usage(format!("the arguments are no JSON object: {error}"))
            })?;
            tool.prepare(&arguments).map_err(|error| CliError::usage(error.message))?
        }
    };
    let host = context.host(Observers::default());
    let rules = gate_rules(&config, job, path_rules(&config, job, &host, None));
    let call = call.with_real_paths(job.environment.is_local(), &rules.paths);
    let decision = tool.decide(&rules, &call);
    output::value(context.form, &to_json(&decision), || {
        format!(
            "{}  {} by rule {}\n       {}\n",
            decision.kind.as_str(),
            decision.category,
            decision.rule,
            decision.reason
        )
    })?;
    Ok(ExitCode::from(match decision.kind {
        DecisionKind::Allow => 0,
        DecisionKind::Ask => 1,
        DecisionKind::Deny => REFUSED,
    }))
}

fn to_json(decision: &Decision) -> serde_json::Value {
    json!({
        "decision": decision.kind.as_str(),
        "rule": decision.rule,
        "category": decision.category.as_str(),
        "reason": decision.reason,
    })
}
