//! `dutyd call`: makes one tool call through the gate, without a model.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::args::{CallArgs, OutputForm};
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use crate::agent::{AcceptedCall, CallExecutor, CallOutput, Unrecorded};
use crate::argv::parse_arguments;
use crate::config::{Autonomy, Config, Job, Limits, Listed, Policy, ReadPolicy, Trust};
use crate::domain::{CallId, DecisionKind, ErrorKind, JobName, RunId, ToolName};
use crate::gate::Decision;
use crate::process::prepare_daemon;
use crate::run::{Host, KnownTool, Links, Servers, gate_rules, tool_context, tools};
use crate::sinks::Observers;
use crate::text::redact::Redactor;
use crate::text::template::Template;
use crate::tools::JudgedCall;

pub(crate) async fn call(context: &Context, args: &CallArgs) -> Result<ExitCode, CliError> {
    // Its directories must belong to the user whose runs need them.
    super::access::check_state_owner(&context.dirs)?;
    let context = &super::source::beside_daemon(context).await?;
    let config = context.config_for_reading(Trust::Required)?;
    let tool = KnownTool::find(&config, &args.tool)?;
    if let Some(unread) = config.unread_in(values(&config, &tool)) {
        let message = format!("`{}` cannot be called from here: {}", tool.name(), unread.message);
        return Err(CliError::failed(message));
    }
    let job = match &args.job {
        Some(name) => Job::clone(context.job(&config, name)?),
        None => operator_job(&config, Some(&tool))?,
    };
    let arguments = arguments(args, &tool)?;
    prepare_daemon()
        .map_err(|error| CliError::failed("cannot prepare the process").because(&error))?;
    let host = context.host(Observers::default());
    host.state.create().map_err(|error| {
        CliError::failed(format!("cannot create {}", context.dirs.state.display())).because(&error)
    })?;
    let redactor = Redactor::new(&config.secrets);
    let run_id = context.new_run_id();
    let ctx = tool_context(&config, &job, &host, &run_id, None, redactor, Links::Resolved)
        .map_err(|error| {
            CliError::failed("cannot create the temporary directory").because(&error)
        })?;
    let rules = gate_rules(&config, &job, ctx.access.paths.clone());
    let mut servers = match &tool {
        KnownTool::Mcp { server, category, .. } => {
            // Do not start the server for a call that is denied in any case.
            let judged = JudgedCall { arguments: arguments.clone(), ..JudgedCall::default() };
            let decision = tool.decide(&rules, &judged);
            if decision.kind == DecisionKind::Deny {
                end(Servers::default(), &host, &run_id).await;
                report(context, &refused(&decision), Some(&decision), 0)?;
                return Ok(Exit::Denied.into());
            }
            Servers::start_one(server, *category, &host, &ctx).await
        }
        _ => Servers::default(),
    };
    for warning in &servers.warnings {
        output::note(&warning.message);
    }
    let registered = tools(&config, &ctx, std::mem::take(&mut servers.tools));
    let named = registered.iter().find(|known| known.definition().name == tool.name());
    let Some(runnable) = named else {
        let is_running = !servers.is_empty();
        end(servers, &host, &run_id).await;
        let why = match tool {
            KnownTool::Mcp { server, .. } if is_running => Some(format!(
                "the server `{}` does not offer it; `dutyd mcp` lists the tools of each server",
                server.name
            )),
            _ => tool.unavailable(&config, Some((&job, &rules.paths)), &context.environment),
        };
        return not_there(context, &tool, why);
    };
    let prepared = match runnable.prepare(&arguments) {
        Ok(prepared) => prepared,
        Err(error) => {
            drop(registered);
            end(servers, &host, &run_id).await;
            if context.form == OutputForm::Table {
                return Err(CliError::usage(error.message));
            }
            report(context, &CallOutput::of_error(&error), None, 0)?;
            return Ok(Exit::Usage.into());
        }
    };
    let judged = JudgedCall {
        arguments: prepared.arguments.clone(),
        resources: prepared.resources.clone(),
        lines: prepared.lines,
    };
    let judged = judged.with_real_paths(job.environment.is_local(), &rules.paths);
    let decision = tool.decide(&rules, &judged);
    let started = Instant::now();
    let result = match decision.kind {
        DecisionKind::Deny => refused(&decision),
        // The operator who runs this command is the approver.
        DecisionKind::Allow | DecisionKind::Ask => {
            let category = decision.category;
            made(tool.name(), AcceptedCall { tool: runnable.clone(), category, prepared }).await?
        }
    };
    let duration_ms = started.elapsed().as_millis();
    drop(registered);
    end(servers, &host, &run_id).await;
    report(context, &result, Some(&decision), duration_ms)?;
    let exit = match result.error_kind {
        None => Exit::Success,
        Some(ErrorKind::Denied) => Exit::Denied,
        Some(ErrorKind::Timeout) => Exit::TimedOut,
        Some(ErrorKind::Interrupted) => Exit::Cancelled,
        Some(ErrorKind::InvalidArguments) => Exit::Usage,
        Some(_) => Exit::Failed,
    };
    Ok(exit.into())
}

/// Reports that a tool is unavailable, and why.
fn not_there(
    context: &Context,
    tool: &KnownTool<'_>,
    why: Option<String>,
) -> Result<ExitCode, CliError> {
    let why = why.unwrap_or_else(|| "its server is not running".to_owned());
    let content = format!("the tool `{}` is unavailable: {why}", tool.name());
    if context.form == OutputForm::Table {
        return Err(CliError::not_found(content));
    }
    let error_kind = Some(ErrorKind::UnknownTool);
    report(context, &CallOutput { error_kind, content, ..CallOutput::default() }, None, 0)?;
    Ok(Exit::NotFound.into())
}

/// Returns the configured values that a call to `tool` uses; each may contain a secret.
fn values<'a>(config: &'a Config, tool: &'a KnownTool<'_>) -> Vec<&'a str> {
    match tool {
        KnownTool::Declared(tool) => tool.env.values().map(String::as_str).collect(),
        KnownTool::Mcp { server, .. } => server.values().collect(),
        KnownTool::Builtin(tool) => {
            let search = config.settings.web_search.as_ref().filter(|_| tool.name == "web_search");
            search.map(|search| search.api_key.as_str()).into_iter().collect()
        }
    }
}

/// Executes a call until it ends or Ctrl-C cancels it. The call is not recorded.
async fn made(name: &str, call: AcceptedCall) -> Result<CallOutput, CliError> {
    let executor = CallExecutor::new(Arc::new(Unrecorded), CancellationToken::new());
    let call_id = CallId::parse("call").map_err(CliError::failed_by)?;
    let open = executor.open(&call_id, name);
    let run = open.run(&call);
    tokio::pin!(run);
    let output = tokio::select! {
        output = &mut run => output,
        _ = tokio::signal::ctrl_c() => {
            executor.cancel().cancel();
            run.await
        }
    };
    output.map_err(CliError::failed_by)
}

fn refused(decision: &Decision) -> CallOutput {
    CallOutput {
        error_kind: Some(ErrorKind::Denied),
        content: format!("refused by rule {}: {}", decision.rule, decision.reason),
        ..CallOutput::default()
    }
}

/// Stops the servers of a call and removes its temporary directory.
async fn end(servers: Servers, host: &Host, run_id: &RunId) {
    servers.end().await;
    if let Err(error) = host.state.remove_temporary(run_id).await {
        output::note(&format!("cannot remove the temporary directory of this call: {error}"));
    }
}

fn report(
    context: &Context,
    result: &CallOutput,
    decision: Option<&Decision>,
    duration_ms: u128,
) -> Result<(), CliError> {
    let mut value = json!({
        "is_error": result.error_kind.is_some(),
        "error_kind": result.error_kind,
        "output": result.content,
        "exit_code": result.exit_code,
        "duration_ms": u64::try_from(duration_ms).unwrap_or(u64::MAX),
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "diff": result.diff,
        "files_modified": result.modified.len(),
        "lines_changed": result.lines_changed,
        "decision": decision.map(|decision| decision.kind.as_str()),
        "rule": decision.map(|decision| decision.rule),
        "category": decision.map(|decision| decision.category),
        "reason": decision.map(|decision| &decision.reason),
    });
    if let Some(value) = value.as_object_mut() {
        value.extend(result.details.clone());
    }
    output::value(context.form, &value, || {
        let mut text = result.content.clone();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text
    })
}

fn arguments(args: &CallArgs, tool: &KnownTool<'_>) -> Result<Map<String, Value>, CliError> {
    if let Some(json) = &args.json {
        let text = match json.strip_prefix('@') {
            None => json.clone(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| CliError::usage(format!("cannot read {path}")).because(&error))?,
        };
        return parse_arguments(&text).map_err(|error| {
            CliError::usage(format!("the arguments are not a JSON object: {error}"))
        });
    }
    let mut arguments = Map::new();
    for pair in &args.pairs {
        let (name, text) =
            pair.split_once('=').ok_or_else(|| CliError::usage(format!("`{pair}` is not K=V")))?;
        let pointer = format!("/properties/{name}");
        let schema = tool.parameters().and_then(|parameters| parameters.schema().pointer(&pointer));
        let kind = |schema: Option<&Value>| {
            schema
                .and_then(|schema| schema.get("type"))
                .and_then(Value::as_str)
                .unwrap_or("string")
                .to_owned()
        };
        let scalar = |kind: &str| match kind {
            "string" => Value::from(text),
            _ => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        };
        match kind(schema).as_str() {
            "array" => {
                let item = scalar(&kind(schema.and_then(|schema| schema.get("items"))));
                if let Some(items) =
                    arguments.entry(name).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
                {
                    items.push(item);
                }
            }
            other => {
                if arguments.insert(name.to_owned(), scalar(other)).is_some() {
                    return Err(CliError::usage(format!("duplicate argument `{name}`")));
                }
            }
        }
    }
    Ok(arguments)
}

/// Returns a job that represents the operator at the terminal. It lists every built-in and declared
/// tool, and the tool `also`, which can be an MCP tool.
pub(crate) fn operator_job(config: &Config, also: Option<&KnownTool<'_>>) -> Result<Job, CliError> {
    let all = || {
        let names = KnownTool::all(config, &[]).into_iter().chain(also.copied());
        let names = names.filter_map(|tool| ToolName::parse(tool.name()).ok());
        names.map(|tool| Listed { tool, args: None }).collect()
    };
    Ok(Job {
        name: JobName::parse("call").map_err(CliError::failed_by)?,
        description: None,
        enabled: false,
        schedule: None,
        jitter: std::time::Duration::ZERO,
        overlap: crate::config::Overlap::Skip,
        catchup: crate::config::Catchup::None,
        pause_after_failures: None,
        retry: None,
        precheck: None,
        verify: Vec::new(),
        verify_retries: 0,
        notify: Vec::new(),
        output_schema: None,
        recall: 0,
        compacts: false,
        daily_budgets: None,
        is_resumed: false,
        catchup_window: std::time::Duration::ZERO,
        prompt: Template::parse("-").map_err(CliError::failed_by)?,
        vars: std::collections::BTreeMap::new(),
        model: None,
        reasoning_effort: None,
        system_prompt: None,
        working_dir: None,
        allowed_paths: Vec::new(),
        allowed_domains: Vec::new(),
        sandbox: config.settings.security.sandbox,
        network: true,
        environment: crate::config::ExecutionTarget::Local,
        skills: Vec::new(),
        approval: crate::config::Approval::default(),
        mode: crate::config::Mode::Act,
        policy: Policy {
            autonomy: Autonomy::Full,
            read: ReadPolicy::All,
            write: all(),
            admin: all(),
            approve: Default::default(),
            deny: BTreeSet::new(),
            narrowed: Vec::new(),
        },
        limits: Limits::default(),
        double_confirmation: false,
        allow_no_calls: true,
        loop_window: None,
    })
}
