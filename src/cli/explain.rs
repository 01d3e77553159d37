//! `dutyd explain`

use std::process::ExitCode;

use serde_json::{Map, json};

use super::args::ExplainArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::call::parse_arguments;
use crate::config::{Config, Trust};
use crate::domain::DecisionKind;
use crate::gate::{Decision, Facts, decide};
use crate::text::near::nearest;

/// The exit code of a call that the gate refuses.
pub(crate) const REFUSED: u8 = 5;

pub(crate) fn explain(context: &Context, args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let config = context.config(Trust::Advised)?;
    let job = context.job(&config, &args.job)?;
    let tool = find_tool(&config, &args.tool)?;
    let arguments = match &args.arguments {
        None => Map::new(),
        Some(text) => {
            let arguments = parse_arguments(text).map_err(|error| {
                CliError::usage(format!("the arguments are no JSON object: {error}"))
            })?;
            tool.command.validate(&arguments).map_err(|error| CliError::usage(error.message))?
        }
    };
    let facts = Facts {
        tool: tool.name.as_str(),
        category: tool.category,
        destructive_when: &tool.destructive_when,
        calls: (0, job.limits.max_tool_calls),
    };
    let decision = decide(job.name.as_str(), &job.policy, facts, &arguments);
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

pub(crate) fn find_tool<'a>(
    config: &'a Config,
    name: &str,
) -> Result<&'a std::sync::Arc<crate::config::Tool>, CliError> {
    config.tools.get(name).ok_or_else(|| {
        let error = CliError::not_found(format!("there is no tool `{name}`"));
        match nearest(name, config.tools.keys().map(crate::domain::ToolName::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    })
}
