//! Makes the precheck of a run, which decides without a model whether there is anything to do.

use super::history::{NO_PRECHECK_ANSWER, RecordRead, RunHistory};
use super::own_call::{Made, OwnCalls};
use super::scope::RunScope;
use crate::agent::{EventSink as _, Marker, RecordError};
use crate::config::{Job, Precheck, RunWhen};
use crate::domain::{CallEnd, CallId, Event, RunId};
use crate::store::RunDir;
use crate::text::diff::diff;
use crate::text::truncate::shorten;

/// Maximum bytes of the output that `run_when` looks at.
const JUDGED_BYTES: u64 = 1 << 20;

/// How the text about the precheck begins, which follows the task.
pub(super) const TEXT_START: &str = "Output of the precheck `";

/// Limit of the characters of the difference that the model gets.
const DIFFERENCE_CHARACTERS: usize = 10_000;

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
        None => {
            let (tool, arguments) =
                (&precheck.call.tool, precheck.call.arguments(&scope.spec.vars));
            match OwnCalls::of(scope).make(&CallId::precheck(), tool, arguments).await? {
                Made::Ended(end) | Made::Stopped(end) => *end,
                Made::Suspended => return Ok(Prechecked::Suspended),
            }
        }
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
            let (call_id, tool) = (end.call_id.clone(), precheck.call.tool.to_string());
            let arguments = precheck.call.arguments(&scope.spec.vars);
            scope.sink.record(Event::Precheck { call_id, tool, arguments, ok, detail }).await?;
            ok
        }
    };
    if !ok {
        return Ok(Prechecked::NotNeeded);
    }
    let mut text = prompt_text(precheck, marker, &end);
    match difference(scope, precheck, &end).await {
        Ok(None) => {}
        Ok(Some((before, difference))) => {
            let difference = marker.wrap(&end.call_id, &difference);
            text.push_str(&format!(
                "\n\nDifference from its output in the run {before}, the last one that succeeded or was planned:\n{difference}"
            ));
        }
        Err(why) => {
            let message = format!("the earlier output of the precheck cannot be compared: {why}");
            scope.sink.record(Event::warning("precheck_difference", message)).await?;
        }
    }
    Ok(Prechecked::Run(Some(text)))
}

/// Returns the text about the recorded precheck of a run that follows the prompt; `None` if the
/// precheck gave no answer.
pub(super) fn recorded_text(job: &Job, marker: &Marker, history: &RunHistory) -> Option<String> {
    let precheck = job.precheck.as_ref()?;
    history.precheck.found_work?;
    Some(prompt_text(precheck, marker, history.precheck.call.as_ref()?))
}

/// Returns the difference of an output from that of the last run that succeeded or was planned, and the
/// id of that run. `None` if the precheck does not look for changes, if that run is not kept any more, or
/// if the texts are the same.
///
/// *Errors*: one of the outputs cannot be read.
async fn difference(
    scope: &RunScope,
    precheck: &Precheck,
    end: &CallEnd,
) -> Result<Option<(RunId, String)>, String> {
    if !matches!(precheck.run_when, RunWhen::Changed) {
        return Ok(None);
    }
    let job = scope.spec.job.name.to_string();
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let ledger = scope.host.ledger.get().await.map_err(|error| told(&error))?;
    let before = ledger.read(move |reader| reader.precheck(&job)).await;
    let Some((_, Some(run_id))) = before.map_err(|error| told(&error))? else { return Ok(None) };
    let run_id = RunId::parse(&run_id).map_err(|error| told(&error))?;
    let Some(before) = scope.host.state.find_run(&run_id) else { return Ok(None) };
    let (directory, end) = (scope.directory.clone(), end.clone());
    let tool = precheck.call.tool.to_string();
    let compare = move || {
        let RecordRead::Whole(history) = RunHistory::read(&before.transcript())? else {
            return Err(std::io::Error::other(format!("the record of {run_id} is broken")));
        };
        let Some(call) = &history.precheck.call else { return Ok(None) };
        let (old, new) = (judged_output(&before, call)?, judged_output(&directory, &end)?);
        let difference = shorten(&diff(&tool, &old, &new).unified, DIFFERENCE_CHARACTERS);
        Ok((!difference.is_empty()).then_some((run_id, difference)))
    };
    let compared = tokio::task::spawn_blocking(compare).await.map_err(|error| told(&error))?;
    compared.map_err(|error| told(&error))
}

/// Returns the output of a precheck, as far as `run_when` looks at it.
fn judged_output(run: &RunDir, end: &CallEnd) -> std::io::Result<String> {
    let Some(file) = &end.output_file else {
        return Ok(end.output.clone().unwrap_or_default());
    };
    let bytes = run.read_output(file, JUDGED_BYTES)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn prompt_text(precheck: &Precheck, marker: &Marker, end: &CallEnd) -> String {
    let code = end.exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
    let output = marker.wrap(&end.call_id, end.shown());
    format!("{TEXT_START}{}`{code}, which ran before this task:\n{output}", precheck.call.tool)
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
    let output = || judged_output(&scope.directory, end);
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
                Ok(Some((before, _))) => detail(
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
