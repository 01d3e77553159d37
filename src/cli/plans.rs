//! `dutyd plans`, `plan`, `apply`, `discard`

use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use super::args::{ApplyArgs, PlanArgs};
use super::context::Context;
use super::error::CliError;
use super::output;
use super::run::take_in;
use crate::config::Trust;
use crate::domain::{Plan, PlanState, Trigger};
use crate::run::{RunSpec, TriggerFacts, apply as apply_plan};
use crate::sinks::Observers;
use crate::store::Ledger;

/// The exit code of a plan that was not applied.
const NOT_DONE: u8 = 1;

pub(crate) fn plans(context: &Context) -> Result<ExitCode, CliError> {
    let plans = all(context)?;
    output::value(context.form, &plans, || {
        output::table(
            &["plan", "job", "made at", "state", "steps"],
            plans.iter().map(|plan| {
                let names: Vec<&str> =
                    plan.steps.iter().map(|kept| kept.step.name.as_str()).collect();
                vec![
                    plan.plan_id.clone(),
                    plan.job.clone(),
                    plan.created_at.format("%Y-%m-%d %H:%M:%S").to_string(),
                    plan.state.as_str().to_owned(),
                    names.join(", "),
                ]
            }),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn plan(context: &Context, args: &PlanArgs) -> Result<ExitCode, CliError> {
    let plan = find(context, &args.plan)?;
    output::value(context.form, &plan, || story(&plan))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn discard(context: &Context, args: &PlanArgs) -> Result<ExitCode, CliError> {
    let plan = find(context, &args.plan)?;
    super::run::own_state(context)?;
    let discarded = ledger(context)?
        .claim_plan(plan.plan_id.clone(), PlanState::Discarded)
        .await
        .map_err(|error| CliError::failed(error.to_string()))?;
    if discarded.is_none() {
        return Err(CliError::failed(format!("the plan is {} already", plan.state.as_str())));
    }
    output::note(&format!("{} is discarded", plan.plan_id));
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn apply(context: &Context, args: &ApplyArgs) -> Result<ExitCode, CliError> {
    let plan = find(context, &args.plan)?;
    if plan.state != PlanState::Waiting {
        return Err(CliError::failed(format!("the plan is {} already", plan.state.as_str())));
    }
    if let Some(only) = args.only
        && !plan.steps.iter().any(|kept| kept.step.step == only)
    {
        return Err(CliError::not_found(format!("the plan has no step {only}")));
    }
    super::run::own_state(context)?;
    let config = context.config(Trust::Required)?;
    let job = context.job(&config, &plan.job)?.clone();
    let facts = TriggerFacts { trigger: Trigger::Manual, scheduled_for: None, attempt: 1 };
    let task = format!("Apply the plan {}.", plan.plan_id);
    let run_id = context.new_run_id();
    let spec = RunSpec::new(run_id, config, job, facts, &Default::default(), Some(task))
        .map_err(|error| CliError::usage(error.to_string()))?;
    crate::process::prepare_daemon()
        .map_err(|error| CliError::failed(format!("the process cannot be prepared: {error}")))?;
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    let signals = tokio::spawn(async move {
        super::run::wait_for_signal().await;
        output::note("stopping; the step at work gets 2 s");
        stop.cancel();
    });
    let applied =
        apply_plan(spec, context.host(Observers::default()), plan, args.only, cancel).await;
    signals.abort();
    let applied = applied.map_err(|error| CliError::failed(error.to_string()))?;
    take_in(context, &applied.ended).await;
    output::value(context.form, &applied.plan, || story(&applied.plan))?;
    let error = applied.refused.as_ref().or(applied.ended.end.error.as_ref());
    if let Some(error) = error {
        let what = if applied.refused.is_some() { "nothing was done" } else { "not all was done" };
        output::note(&format!("{what}: {error}"));
    }
    output::note(&format!("run {}: dutyd show {}", applied.ended.run_id, applied.ended.run_id));
    Ok(if error.is_some() { ExitCode::from(NOT_DONE) } else { ExitCode::SUCCESS })
}

fn ledger(context: &Context) -> Result<Ledger, CliError> {
    Ledger::open(&context.dirs.state)
        .map(|(ledger, _)| ledger)
        .map_err(|error| CliError::failed(format!("the ledger cannot be opened: {error}")))
}

fn all(context: &Context) -> Result<Vec<Plan>, CliError> {
    let read = Ledger::read_file(&context.dirs.state, |ledger| ledger.plans());
    let plans = read.map_err(|error| CliError::failed(error.to_string()))?;
    Ok(plans.unwrap_or_default())
}

/// Returns the plan of this id, of this beginning of one, or the last.
fn find(context: &Context, wanted: &str) -> Result<Plan, CliError> {
    let mut plans = all(context)?;
    if wanted != "last" {
        plans.retain(|plan| plan.plan_id.starts_with(wanted));
        if plans.len() > 1 {
            return Err(CliError::usage(format!("{} plans begin with `{wanted}`", plans.len())));
        }
    }
    let first = plans.into_iter().next();
    first.ok_or_else(|| CliError::not_found(format!("there is no plan `{wanted}`")))
}

fn story(plan: &Plan) -> String {
    let mut text = format!("plan {} of {}: {}\n", plan.plan_id, plan.job, plan.state.as_str());
    for kept in &plan.steps {
        let step = &kept.step;
        let call = if step.argv.is_empty() {
            serde_json::Value::from(step.arguments.clone()).to_string()
        } else {
            serde_json::json!(step.argv).to_string()
        };
        text.push_str(&format!(
            "\n{}. {} ({}, {})\n   {call}\n   in {}\n   rests on {} reads, digest {}\n",
            step.step,
            step.name,
            step.category,
            kept.state.as_str(),
            step.working_dir,
            step.rests_on.len(),
            step.digest.get(..16).unwrap_or_default(),
        ));
        for line in step.dry_run_output.iter().flat_map(|output| output.lines()) {
            text.push_str(&format!("   | {line}\n"));
        }
    }
    crate::text::escape::for_terminal(&text)
}
