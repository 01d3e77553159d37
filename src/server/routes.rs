//! The routes below `/api/v1`, with JSON requests and responses.

use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api::{Answer, Api, List, missing};
use super::problem::Problem;
use super::socket::{ControlKey, KEY_HEADER, Peer};
use super::{commands, follow, inspect};
use crate::agent::{ApprovalAnswer, ApprovalRequest};
use crate::daemon::{
    AuditReport, Command, JobRow, NextRow, StatusReport, audit, job_rows, next_rows,
};
use crate::process::person;
use crate::run::AnswerError;
use crate::store::{LedgerReader, RunFilter, RunState, RunSummary, SlotRow};

/// Runs in a list if the request sets no limit.
const DEFAULT_LIMIT: u32 = 50;

/// The most runs in a list, whatever limit the request sets.
const MAX_ROWS: u32 = 10_000;

/// Selects runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunsQuery {
    /// Runs of this job.
    pub job: Option<String>,
    /// Runs with this outcome, or `queued` or `running`.
    pub outcome: Option<String>,
    /// Runs with this verdict.
    pub verdict: Option<String>,
    /// If true, only runs with a denied call.
    pub refused: Option<bool>,
    /// Runs that started at this time or later.
    pub since: Option<String>,
    /// Runs that started at this time or earlier.
    pub until: Option<String>,
    /// Runs with an id that starts with this prefix.
    pub prefix: Option<String>,
    /// The number of runs, at most.
    pub limit: Option<u32>,
}

impl RunsQuery {
    /// Returns the filter for the index.
    ///
    /// *Errors*: the outcome is unknown.
    pub fn filter(self) -> Result<RunFilter, String> {
        let state = self.outcome.map(|word| {
            RunState::parse(&word).ok_or_else(|| {
                let known: Vec<&str> = RunState::words().collect();
                format!("unknown outcome `{word}`: use one of {}", known.join(", "))
            })
        });
        Ok(RunFilter {
            job: self.job,
            state: state.transpose()?,
            verdict: self.verdict,
            refused: self.refused == Some(true),
            since: self.since,
            until: self.until,
            prefix: self.prefix,
            limit: self.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_ROWS),
        })
    }
}

/// Selects slots.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlotsQuery {
    /// Slots of this job.
    pub job: Option<String>,
    /// Slots due at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// Slots due at this time or earlier.
    pub until: Option<DateTime<Utc>>,
}

/// The filter of `GET /audit`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditQuery {
    /// Slots of this job.
    pub job: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NextQuery {
    job: Option<String>,
    count: Option<usize>,
    from: Option<DateTime<Utc>>,
}

/// Returns the routes; every request must carry `key`.
pub fn router(api: Api, key: ControlKey) -> Router {
    let routes = Router::new()
        .route("/status", get(status))
        .route("/doctor", get(inspect::doctor))
        .route("/jobs", get(jobs))
        .route("/jobs/{name}", get(job))
        .route("/jobs/{name}/runs", post(commands::start_run))
        .route("/jobs/{name}/pause", post(commands::pause))
        .route("/jobs/{name}/backfill", post(commands::backfill))
        .route("/jobs/{name}/unpause", post(commands::unpause))
        .route("/jobs/{name}/ack", post(commands::acknowledge))
        .route("/pause", post(commands::pause_all))
        .route("/unpause", post(commands::unpause_all))
        .route("/next", get(next))
        .route("/runs", get(runs))
        .route("/runs/{id}", get(run))
        .route("/runs/{id}/events", get(follow::events))
        .route("/runs/{id}/transcript", get(inspect::transcript))
        .route("/runs/{id}/verify", get(inspect::verify_run))
        .route("/runs/{id}/cancel", post(commands::cancel))
        .route("/runs/{id}/steer", post(commands::steer))
        .route("/runs/{id}/follow-up", post(commands::follow_up))
        .route("/cancel", post(commands::cancel_all))
        .route("/plans", get(inspect::plans))
        .route("/plans/{id}", get(inspect::plan))
        .route("/jobs/{name}/check", post(inspect::check_job))
        .route("/jobs/{name}/explain", post(inspect::explain_call))
        .route("/tools", get(inspect::tools))
        .route("/models", get(inspect::models))
        .route("/reload", post(commands::reload))
        .route("/prune", post(commands::prune))
        .route("/approvals", get(approvals))
        .route("/approvals/{id}", post(answer_approval))
        .route("/slots", get(slots))
        .route("/audit", get(audit_slots));
    let with_key = Router::new()
        .nest("/api/v1", routes)
        .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "no such route") })
        .layer(axum::middleware::from_fn_with_state(key, ask_for_key));
    // A monitor needs no key for these, and they tell nothing else.
    Router::new()
        .route("/healthz", get(is_alive))
        .route("/readyz", get(is_ready))
        .merge(with_key)
        .with_state(api)
}

/// Tells whether the supervisor answers.
async fn is_alive(State(api): State<Api>) -> StatusCode {
    api.ask(Command::IsReady).await.map_or(StatusCode::SERVICE_UNAVAILABLE, |_| StatusCode::OK)
}

/// Tells whether runs can begin.
async fn is_ready(State(api): State<Api>) -> StatusCode {
    match api.ask(Command::IsReady).await {
        Ok(true) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn status(State(api): State<Api>) -> Answer<StatusReport> {
    api.status().await.map(Json)
}

async fn jobs(State(api): State<Api>) -> Answer<List<JobRow>> {
    let last_runs = api.last_runs().await?;
    let now = api.clock.now();
    let read =
        move |reader: &LedgerReader<'_>| Ok((reader.pauses()?, reader.acknowledgements(now)?));
    let (pauses, acknowledgements) = api.ledger(read).await?;
    let config = api.handle.config.borrow().clone();
    Ok(List::whole(job_rows(&config, &last_runs, pauses, acknowledgements, now)))
}

async fn job(State(api): State<Api>, Path(name): Path<String>) -> Answer<JobRow> {
    let Json(list) = jobs(State(api.clone())).await?;
    let found = list.items.into_iter().find(|job| job.name == name);
    found.map(Json).ok_or_else(|| api.no_job(&name))
}

async fn next(State(api): State<Api>, Query(query): Query<NextQuery>) -> Answer<List<NextRow>> {
    let config = api.handle.config.borrow().clone();
    let job = match &query.job {
        None => None,
        Some(name) => Some(config.jobs.get(name.as_str()).ok_or_else(|| api.no_job(name))?),
    };
    let now = api.clock.now();
    let from = query.from.unwrap_or(now);
    let requested = api.ledger(move |reader| reader.runs_requested_for_later(now)).await?;
    Ok(List::whole(next_rows(
        &config,
        job.map(AsRef::as_ref),
        requested,
        from,
        query.count.unwrap_or(10).min(10_000),
    )))
}

/// The answer to an approval.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerBody {
    approved: bool,
    #[serde(default)]
    reason: Option<String>,
}

/// Rejects a request without the key: a tool must not start, stop or approve anything (WEB-1).
async fn ask_for_key(
    State(key): State<ControlKey>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let given = request.headers().get(KEY_HEADER).map(axum::http::HeaderValue::as_bytes);
    if !given.is_some_and(|given| key.is(given)) {
        tracing::warn!(uid = peer.uid, "rejected a request to the control socket without its key");
        return Problem::new(
            StatusCode::FORBIDDEN,
            "the request does not carry the key of the control socket (control.key)",
        )
        .into_response();
    }
    peer.has_shown_key();
    next.run(request).await
}

async fn approvals(State(api): State<Api>) -> Answer<List<ApprovalRequest>> {
    Ok(List::whole(api.approvals.waiting()))
}

async fn answer_approval(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
    Json(body): Json<AnswerBody>,
) -> Answer<Value> {
    let by = peer.uid.map_or_else(|| "unknown".to_owned(), |uid| person(uid).user);
    let (uid, approved) = (peer.uid, body.approved);
    let answer = ApprovalAnswer { approved, by, reason: body.reason };
    let answered = api.approvals.answer(&id, answer);
    // Also log an answer that is rejected (WEB-8).
    let refused = answered.as_ref().err().map(ToString::to_string);
    tracing::info!(approval_id = id, uid, approved, refused, "an approval was answered");
    answered.map_err(|error| {
        let code = match error {
            AnswerError::Unknown => StatusCode::NOT_FOUND,
            AnswerError::Decided => StatusCode::CONFLICT,
        };
        Problem::new(code, error.to_string())
    })?;
    Ok(Json(json!({"approval_id": id, "approved": approved})))
}

async fn runs(State(api): State<Api>, Query(query): Query<RunsQuery>) -> Answer<List<RunSummary>> {
    let filter = query
        .filter()
        .map_err(|message| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, message))?;
    api.rows(filter).await.map(List::whole)
}

async fn run(State(api): State<Api>, Path(id): Path<String>) -> Answer<RunSummary> {
    let filter = RunFilter { prefix: Some(id.clone()), limit: 1, ..RunFilter::default() };
    let run_id = api.run_id(&id)?;
    let found = api.rows(filter).await?.into_iter().find(|row| row.run_id == run_id.as_str());
    found.map(Json).ok_or_else(|| missing(format!("there is no run `{id}`")))
}

async fn slots(State(api): State<Api>, Query(query): Query<SlotsQuery>) -> Answer<List<SlotRow>> {
    let job = query.job.clone();
    let rows = api
        .ledger(move |reader| reader.slots(query.job.as_deref(), query.since, query.until))
        .await?;
    if let Some(job) = job.filter(|_| rows.is_empty()) {
        api.must_know(&job).await?;
    }
    Ok(List::whole(rows))
}

async fn audit_slots(
    State(api): State<Api>,
    Query(query): Query<AuditQuery>,
) -> Answer<AuditReport> {
    if let Some(job) = &query.job {
        api.must_know(job).await?;
    }
    let (config, now) = (api.handle.config.borrow().clone(), api.clock.now());
    let report = api
        .ledger(move |reader| {
            let jitter = |job: &str| config.jobs.get(job).map(|job| job.jitter).unwrap_or_default();
            audit(reader, query.job.as_deref(), jitter, now)
        })
        .await?;
    Ok(Json(AuditReport { daemon: Some(std::process::id()), ..report }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(query: &str) -> Result<RunFilter, String> {
        let uri: axum::http::Uri = format!("/runs?{query}").parse().unwrap();
        let parsed = Query::<RunsQuery>::try_from_uri(&uri);
        parsed.map_err(|error| error.body_text())?.0.filter()
    }

    #[test]
    fn a_word_of_a_query_that_is_unknown_is_an_error() {
        let known = filter("job=j&outcome=failed&refused=true&limit=7").unwrap();
        assert_eq!(known.job.as_deref(), Some("j"));
        assert_eq!((known.refused, known.limit), (true, 7));
        assert!(known.state.is_some());
        let unknown = filter("outcome=fine").unwrap_err();
        assert!(unknown.starts_with("unknown outcome `fine`: use one of "), "{unknown}");
        for query in ["outcomes=failed", "refused=maybe", "limit=many", "limit=-1"] {
            assert!(filter(query).is_err(), "{query}");
        }
    }

    #[test]
    fn a_list_has_a_limit() {
        assert_eq!(filter("").unwrap().limit, DEFAULT_LIMIT);
        assert_eq!(filter("limit=4000000000").unwrap().limit, MAX_ROWS);
    }
}
