//! `dutyd plans`, `plan`, `apply` and `discard`: change plans.

use std::process::ExitCode;

use tokio::sync::watch;

use super::approvals::Terminal;
use super::args::{ApplyArgs, PlanArgs, ShowPlanArgs};
use super::call_view::{CallView, Extent, MARGIN};
use super::context::Context;
use super::error::CliError;
use super::exit::Exit;
use super::output;
use super::source::{self, Source, Wanted};
use crate::config::Trust;
use crate::domain::{Origin, Plan, PlanState, RunRequest, Stop, StopReason, Trigger};
use crate::run::{RunSpec, apply as apply_plan};
use crate::sinks::Observers;
use crate::store::{Ledger, SharedLedger, UnreadablePlan};
use crate::text::escape::one_line;

pub(crate) async fn plans(context: &Context) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Record).await?;
    let plans = all(&source).await?;
    output::value(context.form, &plans, || {
        output::table(
            &["plan", "job", "made at (UTC)", "state", "steps"],
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
    source.tell(context.form);
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn plan(context: &Context, args: &ShowPlanArgs) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Record).await?;
    let plan = find(&source, &args.plan).await?;
    output::value(context.form, &plan, || shown(&plan, Extent::of_flag(args.full)))?;
    source.tell(context.form);
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn discard(context: &Context, args: &PlanArgs) -> Result<ExitCode, CliError> {
    let plan = find(&own_files(context)?, &args.plan).await?;
    let ledger = SharedLedger::of(&context.dirs.state);
    let discarded = ledger
        .get()
        .await
        .map_err(source::of_database)?
        .claim_plan(plan.plan_id.clone(), PlanState::Discarded)
        .await
        .map_err(CliError::failed_by)?;
    if discarded.is_none() {
        return Err(CliError::failed(format!("the plan is already {}", plan.state.as_str())));
    }
    output::note(&format!("discarded plan {}", plan.plan_id));
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn apply(context: &Context, args: &ApplyArgs) -> Result<ExitCode, CliError> {
    let plan = find(&own_files(context)?, &args.plan).await?;
    if plan.state != PlanState::Waiting {
        return Err(CliError::failed(format!("the plan is already {}", plan.state.as_str())));
    }
    if let Some(only) = args.only
        && !plan.steps.iter().any(|kept| kept.step.step == only)
    {
        return Err(CliError::not_found(format!("the plan has no step {only}")));
    }
    if !args.yes && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        output::text(&shown(&plan, Extent::of_flag(args.full)));
        let full = shown(&plan, Extent::Full);
        if !Terminal::new().yes_about("Apply this?", &full).await {
            output::note("nothing was done");
            return Ok(Exit::Failed.into());
        }
    }
    let config = context.config(Trust::Required)?;
    let job = context.job(&config, &plan.job)?.clone();
    let task = format!("Apply the plan {}.", plan.plan_id);
    let request = RunRequest { prompt: Some(task), ..RunRequest::default() };
    let origin = Origin::manual(request, Some(super::run::myself()));
    let origin = Origin { trigger: Trigger::Apply, ..origin };
    let spec =
        RunSpec::new(context.new_run_id(), config, job, origin).map_err(CliError::usage_by)?;
    crate::process::prepare_daemon()
        .map_err(|error| CliError::failed("cannot prepare the process").because(&error))?;
    let (sender, stop) = watch::channel(None);
    let signals = tokio::spawn(async move {
        super::run::wait_for_signal().await;
        output::note("stopping; the running step has 2 s to exit");
        let by = Some(super::run::myself());
        // Sending fails only if the run has ended and dropped the receiver.
        let _ = sender.send(Some(Stop { by, ..StopReason::Cancelled.into() }));
        // Keep the channel open until the run drops the receiver.
        sender.closed().await;
    });
    let applied = apply_plan(spec, context.host(Observers::default()), plan, args.only, stop).await;
    signals.abort();
    let applied = applied.map_err(CliError::failed_by)?;
    output::value(context.form, &applied.plan, || {
        shown(&applied.plan, Extent::of_flag(args.full))
    })?;
    let error = applied.refused.as_ref().or(applied.ended.end.error.as_ref());
    if let Some(error) = error {
        let what =
            if applied.refused.is_some() { "nothing was done" } else { "only partly applied" };
        // The error of a step contains what its program printed.
        output::note(&format!("{what}: {}", one_line(error)));
    }
    output::note(&format!("run {}: dutyd show {}", applied.ended.run_id, applied.ended.run_id));
    Ok(Exit::of_check(error.is_none()).into())
}

/// Returns the state directory as the source, never the daemon: only the owner of the directory may
/// change plans.
///
/// *Errors*: the caller is not the owner.
fn own_files(context: &Context) -> Result<Source, CliError> {
    super::access::check_state_owner(&context.dirs)?;
    Ok(Source::Files(context.dirs.state.clone()))
}

async fn all(source: &Source) -> Result<Vec<Plan>, CliError> {
    match source {
        Source::Daemon(daemon) => daemon.client.list("/plans", &()).await,
        Source::Files(state) => {
            let read = Ledger::read_file(state, |ledger| ledger.plans());
            let found = read.map_err(source::of_database)?.unwrap_or_default();
            for UnreadablePlan { plan_id, why } in found.unreadable {
                output::note(&format!("the plan {plan_id} cannot be read: {why}"));
            }
            Ok(found.plans)
        }
    }
}

/// Finds a plan by its id or a unique prefix. `last` is the newest waiting plan; if none is
/// waiting, it is the newest plan.
///
/// *Errors*: no plan matches, or several do.
async fn find(source: &Source, wanted: &str) -> Result<Plan, CliError> {
    let mut plans = all(source).await?;
    if wanted == "last" {
        if let Some(at) = plans.iter().position(|plan| plan.state == PlanState::Waiting) {
            plans.drain(..at);
        }
    } else {
        plans.retain(|plan| plan.plan_id.starts_with(&wanted.to_ascii_lowercase()));
        if plans.len() > 1 {
            return Err(CliError::ambiguous(wanted));
        }
    }
    let first = plans.into_iter().next();
    first.ok_or_else(|| CliError::not_found(format!("there is no plan `{wanted}`")))
}

/// Renders a plan for the terminal.
fn shown(plan: &Plan, extent: Extent) -> String {
    output::hanging(&described(plan, extent), MARGIN)
}

fn described(plan: &Plan, extent: Extent) -> String {
    let mut text = format!("plan {} of {}: {}\n", plan.plan_id, plan.job, plan.state.as_str());
    for kept in &plan.steps {
        let step = &kept.step;
        let view = CallView {
            argv: &step.argv,
            arguments: &step.arguments,
            working_dir: &step.working_dir,
            binding: &step.binding,
        };
        text.push_str(&format!(
            "\n{}. {} ({}, {})\n{}  rests on {}, digest {}\n",
            step.step,
            step.name,
            step.category,
            kept.state.as_str(),
            view.render(extent),
            output::counted(step.rests_on.len(), "read"),
            step.digest.get(..16).unwrap_or(&step.digest),
        ));
        if let Some(output) = &step.dry_run_output {
            text.push_str("  dry run\n");
            text.extend(output.lines().map(|line| format!("    | {}\n", one_line(line))));
        }
    }
    text
}
