//! The routes that make the supervisor do something.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::api::{Answer, Api, internal};
use super::body::OptionalBody;
use super::problem::Problem;
use super::socket::Peer;
use crate::config::Settings;
use crate::daemon::{
    BackfillRequest, BackfillScope, Command, CommandError, PauseRequest, TakenText, TextRequest,
};
use crate::domain::{Acknowledgement, JobState, Origin, RunRequest, TextKind};
use crate::process::person;
use crate::store::{self, Pruned, Retention};

/// Reloads the configuration and reports whether it changed.
///
/// *Shape*: `{"digest":"38be…","changed":true,"widened":["web"],"needs_restart":[],"values":["ops_key"],`
/// `"paused_removed":["backup"],"added":["nightly-backup"]}`
pub(super) async fn reload(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<Value> {
    tracing::info!(uid = peer.uid, "reload requested");
    let before = api.handle.config.borrow().digest.clone();
    let config = api.ask(Command::Reload).await?;
    if !config.valid {
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, config.errors.join("\n")));
    }
    let changed = config.digest != before;
    Ok(Json(json!({
        "digest": config.digest,
        "changed": changed,
        "widened": if changed { config.widened } else { Vec::new() },
        "needs_restart": config.needs_restart,
        "values": config.changed_values,
        "paused_removed": config.paused_removed,
        "added": config.added,
    })))
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PruneBody {
    /// Whether to count what would be removed instead of removing it.
    dry_run: bool,
}

/// Removes old runs and merges old slots, as `retention` of the configuration in effect says.
///
/// *Shape*: `{"runs":3,"slots":120,"bytes":45056}`
pub(super) async fn prune(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(PruneBody { dry_run }): Json<PruneBody>,
) -> Answer<Pruned> {
    tracing::info!(uid = peer.uid, dry_run, "pruning requested");
    let config = api.handle.config.borrow().clone();
    let Settings { keep_runs, keep_days, .. } = config.settings;
    let retention = Retention { keep_runs, keep_days };
    let (host, now) = (api.host.clone(), api.clock.now());
    // A separate task: if the client leaves, no run is left half removed.
    let pruned = tokio::spawn(async move {
        let (ledger, index) = (host.ledger.get().await?, host.index.get().await?);
        store::prune(&host.state, ledger, index, retention, now, dry_run).await
    });
    pruned.await.map_err(internal)?.map_err(internal).map(Json)
}

/// The parts of a job that a new run replaces. Unlike a record, a request must not have a part that
/// this version does not know.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RunBody {
    vars: BTreeMap<String, String>,
    prompt: Option<String>,
    plan: bool,
    model: Option<String>,
    effort: Option<String>,
    max_iterations: Option<u32>,
    /// When the run begins; now if absent.
    at: Option<DateTime<Utc>>,
}

pub(super) async fn start_run(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    OptionalBody(body): OptionalBody<RunBody>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    tracing::info!(job = name, uid = peer.uid, "run requested");
    let RunBody { vars, prompt, plan, model, effort, max_iterations, at } = body;
    let newer = serde_json::Map::new();
    let request = RunRequest { vars, prompt, plan, model, effort, max_iterations, newer };
    let origin = Origin::manual(request, peer.uid.map(person));
    let started = api
        .ask(|reply| Command::Run(name, origin, at, reply))
        .await?
        .map_err(|error| api.refused(error))?;
    Ok((StatusCode::CREATED, Json(json!(started))))
}

pub(super) async fn cancel(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
) -> Answer<Value> {
    let run_id = api.run_id(&id)?;
    tracing::info!(%run_id, uid = peer.uid, "cancel requested");
    let by = peer.uid.map(person);
    let answer = api.ask(|reply| Command::Cancel(run_id.clone(), by, reply)).await?;
    answer.map_err(|error| api.refused(error))?;
    Ok(Json(json!({ "run_id": run_id })))
}

/// A text for a run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TextBody {
    text: String,
}

pub(super) async fn steer(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
    Json(body): Json<TextBody>,
) -> Answer<TakenText> {
    give_text(&api, peer, &id, TextKind::Steering, body.text).await
}

pub(super) async fn follow_up(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
    Json(body): Json<TextBody>,
) -> Answer<TakenText> {
    give_text(&api, peer, &id, TextKind::FollowUp, body.text).await
}

/// Gives a text to a run.
///
/// *Shape*: `{"run_id":"01m8…","kind":"steering","taken":"the model gets it with its next request; …"}`
async fn give_text(
    api: &Api,
    peer: Peer,
    id: &str,
    kind: TextKind,
    text: String,
) -> Answer<TakenText> {
    let run_id = api.run_id(id)?;
    tracing::info!(%run_id, kind = kind.as_str(), bytes = text.len(), uid = peer.uid, "text given");
    let by = peer.uid.map(person);
    let of_run = run_id.to_string();
    let (reply, answer) = oneshot::channel();
    let request = TextRequest { run_id: run_id.clone(), kind, text, by, reply };
    api.tell(Command::GiveText(request)).await?;
    let given = answer.await.unwrap_or(Err(CommandError::Ending(run_id)));
    let mut taken = given.map_err(|error| api.refused(error))?;
    if api.approvals.waiting().iter().any(|waiting| waiting.run_id == of_run) {
        taken.taken =
            "the run waits for an approval; it takes the text once that is decided".to_owned();
    }
    Ok(Json(taken))
}

/// Which runs to cancel.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelBody {
    /// Runs of this job; all runs if absent.
    #[serde(default)]
    job: Option<String>,
}

pub(super) async fn cancel_all(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(body): Json<CancelBody>,
) -> Answer<Value> {
    if let Some(job) = &body.job {
        api.must_know(job).await?;
    }
    tracing::info!(job = body.job, uid = peer.uid, "cancel requested");
    let by = peer.uid.map(person);
    let answer = api.ask(|reply| Command::CancelAll(body.job, by, reply)).await?;
    let cancelled = answer.map_err(|error| api.refused(error))?;
    Ok(Json(json!({ "run_ids": cancelled })))
}

/// Why a job is paused, and until when.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PauseBody {
    note: Option<String>,
    until: Option<DateTime<Utc>>,
}

/// Pauses a job.
///
/// *Shape*: `{"job":"backup","paused":true,"pause_note":"disk swap","paused_until":null}`
pub(super) async fn pause(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(job): Path<String>,
    OptionalBody(body): OptionalBody<PauseBody>,
) -> Answer<Value> {
    pause_for(&api, &peer, Some(job), body).await
}

/// Pauses all jobs.
///
/// *Shape*: as for one job, with `job` null
pub(super) async fn pause_all(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    OptionalBody(body): OptionalBody<PauseBody>,
) -> Answer<Value> {
    pause_for(&api, &peer, None, body).await
}

async fn pause_for(
    api: &Api,
    peer: &Peer,
    job: Option<String>,
    PauseBody { note, until }: PauseBody,
) -> Answer<Value> {
    tracing::info!(job, note, ?until, uid = peer.uid, "pause requested");
    let request = PauseRequest { job: job.clone(), note, until };
    let paused = api.ask(|reply| Command::Pause(request, reply)).await?;
    let paused = paused.map_err(|error| api.refused(error))?;
    Ok(Json(json!({
        "job": job, "paused": true, "pause_note": paused.note, "paused_until": paused.until,
    })))
}

/// Until when the state of a job is silenced.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AckBody {
    until: Option<DateTime<Utc>>,
}

/// Silences the state of a job.
///
/// *Shape*: `{"job":"backup","state":"failed","since":"2026-11-26T03:00:00Z","acknowledged":{"by":{"uid":0,"user":"root"},"at":"…","until":null}}`
pub(super) async fn acknowledge(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(job): Path<String>,
    OptionalBody(AckBody { until }): OptionalBody<AckBody>,
) -> Answer<Value> {
    if !api.handle.config.borrow().jobs.contains_key(job.as_str()) {
        return Err(api.no_job(&job));
    }
    let (by, at) = (peer.uid.map(person), api.clock.now());
    if until.is_some_and(|until| until <= at) {
        return Err(refused(CommandError::Invalid("`until` is in the past".to_owned())));
    }
    tracing::info!(job, ?until, uid = peer.uid, "acknowledgement requested");
    let ledger = api.host.ledger.get().await.map_err(internal)?;
    let acknowledged = Acknowledgement { by, at, until };
    match ledger.acknowledge(job.clone(), acknowledged).await.map_err(internal)? {
        Some(JobState { state, since, acknowledged, .. }) => Ok(Json(
            json!({"job": job, "state": state, "since": since, "acknowledged": acknowledged}),
        )),
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            format!("no run of `{job}` has ended, so there is no state to acknowledge"),
        )),
    }
}

/// The period of a backfill; both bounds are inclusive.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackfillBody {
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    /// Whether to take the failed and missed slots instead of the due times without a slot.
    #[serde(default)]
    again: bool,
}

/// Runs a job for due times of a period; returns their number.
///
/// *Shape*: `{"slots":12}`
pub(super) async fn backfill(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(job): Path<String>,
    Json(BackfillBody { from, to, again }): Json<BackfillBody>,
) -> Answer<Value> {
    tracing::info!(job, %from, %to, again, uid = peer.uid, "backfill requested");
    let scope = if again { BackfillScope::FailedOrMissed } else { BackfillScope::WithoutSlot };
    let request = BackfillRequest { job, scope, from, to, by: peer.uid.map(person) };
    let slots = api
        .ask(|reply| Command::Backfill(request, reply))
        .await?
        .map_err(|error| api.refused(error))?;
    Ok(Json(json!({ "slots": slots })))
}

/// Ends the pause of a job.
///
/// *Shape*: `{"job":"backup","paused":false,"was_paused":true}`
pub(super) async fn unpause(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(job): Path<String>,
) -> Answer<Value> {
    unpause_for(&api, &peer, Some(job)).await
}

/// Ends the pause of all jobs. The pauses of single jobs stay.
///
/// *Shape*: as for one job, with `job` null
pub(super) async fn unpause_all(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<Value> {
    unpause_for(&api, &peer, None).await
}

async fn unpause_for(api: &Api, peer: &Peer, job: Option<String>) -> Answer<Value> {
    tracing::info!(job, uid = peer.uid, "end of a pause requested");
    let unpaused = api.ask(|reply| Command::Unpause(job.clone(), reply)).await?;
    let was_paused = unpaused.map_err(|error| api.refused(error))?;
    Ok(Json(json!({"job": job, "paused": false, "was_paused": was_paused})))
}

impl Api {
    /// Returns the response to a command that failed.
    fn refused(&self, error: CommandError) -> Problem {
        match error {
            CommandError::NoJob(name) => self.no_job(&name),
            error => refused(error),
        }
    }
}

fn refused(error: CommandError) -> Problem {
    Problem::new(code_of(&error), error.to_string())
}

fn code_of(error: &CommandError) -> StatusCode {
    match error {
        CommandError::NoJob(_) | CommandError::NoRun(_) => StatusCode::NOT_FOUND,
        CommandError::Over(_)
        | CommandError::OverBudget(_)
        | CommandError::Ending(_)
        | CommandError::TextRefused(_) => StatusCode::CONFLICT,
        CommandError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        CommandError::Stopping
        | CommandError::Full(_)
        | CommandError::Unrecorded(_)
        | CommandError::NoIndex(_)
        | CommandError::NotCancelled(_)
        | CommandError::NotPaused(_)
        | CommandError::TextUnrecorded(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RunId;

    #[test]
    fn a_client_tells_from_the_code_whether_to_try_again() {
        let run_id = || RunId::from_ulid(ulid::Ulid::from_parts(1, 1));
        let text = String::new;
        let cases = [
            // The name is wrong: the same request never works.
            (CommandError::NoJob(text()), 404),
            (CommandError::NoRun(run_id()), 404),
            (CommandError::Invalid(text()), 422),
            // The request is right, and the state does not allow it.
            (CommandError::Over(run_id()), 409),
            (CommandError::OverBudget(text()), 409),
            (CommandError::Ending(run_id()), 409),
            (CommandError::TextRefused(text()), 409),
            // It works later.
            (CommandError::Stopping, 503),
            (CommandError::Full(1000), 503),
            (CommandError::Unrecorded(text()), 503),
            (CommandError::NoIndex(text()), 503),
            (CommandError::NotCancelled(text()), 503),
            (CommandError::NotPaused(text()), 503),
            (CommandError::TextUnrecorded(text()), 503),
        ];
        for (error, code) in cases {
            let detail = error.to_string();
            let problem = refused(error);
            assert_eq!((problem.status, problem.detail), (code, detail));
        }
    }
}
