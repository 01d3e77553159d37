//! Makes the precheck of a run, which decides without a model whether there is anything to do.

use tokio_util::sync::CancellationToken;

use super::history::{NO_PRECHECK_ANSWER, RunHistory};
use super::scope::RunScope;
use super::tool_context::gate_rules;
use crate::agent::{AcceptedCall, CallExecutor, CallOutput, EventSink as _, Marker, RecordError};
use crate::config::{Precheck, RunWhen};
use crate::domain::{CallEnd, CallError, CallId, DecisionKind, ErrorKind, Event, PolicyDecision};
use crate::gate::{CallFacts, GateRules, Spent, decide};

/// Maximum bytes of the output that `run_when` looks at.
const JUDGED_BYTES: u64 = 1 << 20;

/// The decision of the precheck of a run.
pub(super) enum Prechecked {
    /// The run continues. The text, if any, follows the prompt.
    Run(Option<String>),
    /// The run has nothing to do.
    NotNeeded,
    /// The stop of the daemon suspended the run.
    Suspended,
}

/// Makes the precheck of a run, unless the job has none or a person is attached. Does not repeat
/// what is in `history`, that of a resumed run.
///
/// *Errors*: a line cannot be recorded.
pub(super) async fn precheck(
    scope: &RunScope,
    marker: &Marker,
    history: Option<&RunHistory>,
) -> Result<Prechecked, RecordError> {
    let job = scope.spec.job.clone();
    let Some(precheck) = job.precheck.as_ref().filter(|_| !scope.spec.has_person) else {
        return Ok(Prechecked::Run(None));
    };
    let record = history.map(|history| history.precheck.clone()).unwrap_or_default();
    let end = match record.call {
        Some(end) => end,
        None => match call(scope, precheck).await? {
            Some(end) => end,
            None => return Ok(Prechecked::Suspended),
        },
    };
    let ok = match (record.found_work, end.precheck_answer()) {
        (Some(ok), _) => ok,
        (None, None) if record.gave_no_answer => return Ok(Prechecked::Run(None)),
        (None, None) => {
            let why = end.output.clone().unwrap_or_default();
            let message = format!("the precheck gave no answer, so the run continues: {why}");
            scope.sink.record(Event::warning(NO_PRECHECK_ANSWER, message)).await?;
            return Ok(Prechecked::Run(None));
        }
        (None, Some(answer)) => {
            let (ok, detail) = judge(scope, precheck, &end, &answer).await;
            let (call_id, tool) = (end.call_id.clone(), precheck.tool.to_string());
            let arguments = precheck.arguments(&scope.spec.vars);
            scope.sink.record(Event::Precheck { call_id, tool, arguments, ok, detail }).await?;
            ok
        }
    };
    Ok(if ok {
        Prechecked::Run(Some(prompt_text(precheck, marker, &end)))
    } else {
        Prechecked::NotNeeded
    })
}

/// Returns the text about the recorded precheck of a run that follows the prompt; `None` if the
/// precheck gave no answer.
pub(super) fn recorded_text(
    scope: &RunScope,
    marker: &Marker,
    history: &RunHistory,
) -> Option<String> {
    let precheck = scope.spec.job.precheck.as_ref()?;
    history.precheck.found_work?;
    Some(prompt_text(precheck, marker, history.precheck.call.as_ref()?))
}

fn prompt_text(precheck: &Precheck, marker: &Marker, end: &CallEnd) -> String {
    let shown = end.view.as_ref().or(end.output.as_ref()).map_or("", String::as_str);
    let code = end.exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
    let output = marker.wrap(&end.call_id, shown);
    format!(
        "Output of the precheck `{}`{code}, which ran before this task:\n{output}",
        precheck.tool
    )
}

/// Judges an output. If it cannot be read, the run is needed.
fn judge_output(
    output: std::io::Result<String>,
    judge: impl FnOnce(&str) -> (bool, String),
) -> (bool, String) {
    match output {
        Ok(text) => judge(&text),
        Err(error) => (true, format!("the output of the precheck cannot be read: {error}")),
    }
}

/// Tells whether the run is needed, and why.
async fn judge(
    scope: &RunScope,
    precheck: &Precheck,
    end: &CallEnd,
    answer: &str,
) -> (bool, String) {
    let code = end.exit_code.unwrap_or_default();
    let output = || -> std::io::Result<String> {
        let Some(file) = &end.output_file else {
            return Ok(end.output.clone().unwrap_or_default());
        };
        let bytes = scope.directory.read_output(file, JUDGED_BYTES)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let detail = |ok: bool, yes: &str, no: &str| (ok, if ok { yes } else { no }.to_owned());
    match &precheck.run_when {
        RunWhen::ExitNonzero => (code != 0, format!("the exit code is {code}")),
        RunWhen::Nonempty => judge_output(output(), |text| {
            detail(!text.trim().is_empty(), "the output is not empty", "the output is empty")
        }),
        RunWhen::Matches(regex) => judge_output(output(), |text| {
            let found = regex.is_match(text);
            let how = if found { "matches" } else { "does not match" };
            (found, format!("the output {how} `{regex}`"))
        }),
        RunWhen::Changed => {
            let job = scope.spec.job.name.to_string();
            let before = match scope.host.ledger.get().await {
                Ok(ledger) => ledger.read(move |reader| reader.precheck(&job)).await,
                Err(error) => Err(error),
            };
            match before {
                Ok(Some(before)) => detail(
                    before != answer,
                    "the exit code or the output differs from the last run that succeeded or was planned",
                    "the exit code and the output are the same as in the last run that succeeded or was planned",
                ),
                Ok(None) => (true, "there is no earlier answer to compare with".to_owned()),
                Err(error) => (true, format!("the earlier answer cannot be read: {error}")),
            }
        }
    }
}

/// Makes the call of a precheck and records it. Returns its end; `None` if the stop of the daemon
/// suspends the run. If the run must end for another reason, the call ends as interrupted.
async fn call(scope: &RunScope, precheck: &Precheck) -> Result<Option<CallEnd>, RecordError> {
    let executor = CallExecutor::new(scope.sink.clone(), CancellationToken::new());
    let open = executor.open(&CallId::precheck(), precheck.tool.as_str());
    let output = match accepted(scope, precheck).await? {
        Err(error) => CallOutput::of_error(&error),
        Ok(call) => {
            let work = open.run(&call);
            tokio::pin!(work);
            tokio::select! {
                biased;
                _ = scope.stop.reason() => {
                    executor.cancel().cancel();
                    let output = work.await?;
                    if scope.is_suspending() && output.error_kind == Some(ErrorKind::Interrupted) {
                        return Ok(None);
                    }
                    output
                }
                output = &mut work => output?,
            }
        }
    };
    let end = output.clone().end(open.id(), open.name(), 0);
    open.end(output).await?;
    Ok(Some(end))
}

/// Prepares the call of a precheck and asks the gate about it.
///
/// *Errors* (inside): why the call must not be made.
async fn accepted(
    scope: &RunScope,
    precheck: &Precheck,
) -> Result<Result<AcceptedCall, CallError>, RecordError> {
    let name = precheck.tool.as_str();
    let Some(tool) = scope.toolbox.find(name) else {
        let message = format!("The tool `{name}` is not available.");
        return Ok(Err(CallError::new(ErrorKind::UnknownTool, message)));
    };
    let prepared = match tool.prepare(&precheck.arguments(&scope.spec.vars)) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Err(error)),
    };
    let (config, job) = (&scope.spec.config, &scope.spec.job);
    let rules = gate_rules(config, job, scope.ctx.access.paths.clone());
    // The precheck does not count towards the limits of the run.
    let rules = GateRules { rate: None, ..rules };
    let facts = CallFacts {
        tool: name,
        category: tool.category(),
        destructive_when: tool.destructive_when(),
        resources: &prepared.resources,
        lines: prepared.lines,
        spent: &Spent::default(),
    };
    let decision = decide(&rules, facts, &prepared.arguments);
    let decided = PolicyDecision {
        call_id: CallId::precheck(),
        name: name.to_owned(),
        category: decision.category,
        decision: decision.kind,
        rule: decision.rule.to_owned(),
        reason: decision.reason.clone(),
    };
    scope.sink.record(Event::PolicyDecision(decided)).await?;
    Ok(match decision.kind {
        DecisionKind::Allow => {
            Ok(AcceptedCall { tool: tool.clone(), category: decision.category, prepared })
        }
        DecisionKind::Ask | DecisionKind::Deny => {
            let (rule, reason) = (decision.rule, decision.reason);
            let message = format!("Refused by the rule `{rule}`: {reason}. Nothing was run.");
            Err(CallError::new(ErrorKind::Denied, message))
        }
    })
}
