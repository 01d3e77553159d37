//! The routes: `/api/v1/…`, JSON in and out.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use chrono::{DateTime, Utc};
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use super::socket::{ControlKey, KEY_HEADER, Peer};
use crate::agent::{ApprovalAnswer, ApprovalRequest};
use crate::clock::Clock;
use crate::daemon::{
    AuditReport, Command, CommandError, Handle, JobRow, NextRow, RunRequest, StatusReport, audit,
    job_rows, next_rows,
};
use crate::domain::RunId;
use crate::run::{AnswerError, Approvals};
use crate::sinks::{Observed, Observers};
use crate::store::{
    Index, Ledger, LedgerReader, ReadLine, RunFilter, RunRow, SlotRow, StateDir, raw_lines,
    read_lines,
};

/// Rows of a list, where the caller names no number.
const DEFAULT_LIMIT: u32 = 50;

/// Rows of a list at most.
const MOST_ROWS: u32 = 10_000;

/// How often a follower of a silent run asks whether anybody still works on it.
const RECHECK: std::time::Duration = std::time::Duration::from_secs(2);

/// What the routes work on.
#[derive(Clone)]
pub struct Api {
    /// What waits for a person.
    pub approvals: std::sync::Arc<Approvals>,
    /// To the supervisor.
    pub handle: Handle,
    /// Runs.
    pub index: Index,
    /// Transcripts.
    pub state: StateDir,
    /// What happens.
    pub observers: Observers,
    /// Tells the time.
    pub clock: std::sync::Arc<dyn Clock>,
    /// Ends open streams.
    pub stop: CancellationToken,
}

/// A list.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct List<T> {
    items: Vec<T>,
    next: Option<String>,
}

impl<T> List<T> {
    fn whole(items: Vec<T>) -> Json<Self> {
        Json(Self { items, next: None })
    }
}

/// Which runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunsQuery {
    /// Of this job.
    pub job: Option<String>,
    /// With this outcome.
    pub outcome: Option<String>,
    /// With this verdict.
    pub verdict: Option<String>,
    /// Begun then or later.
    pub since: Option<String>,
    /// Begun then or earlier.
    pub until: Option<String>,
    /// At most so many.
    pub limit: Option<u32>,
}

/// Which slots.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlotsQuery {
    /// Of this job.
    pub job: Option<String>,
    /// Due then or later.
    pub since: Option<DateTime<Utc>>,
    /// Due then or earlier.
    pub until: Option<DateTime<Utc>>,
}

/// From where on.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsQuery {
    /// The first line.
    pub from_seq: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NextQuery {
    job: Option<String>,
    count: Option<usize>,
    from: Option<DateTime<Utc>>,
}

type Answer<T> = Result<Json<T>, Problem>;

impl Api {
    /// Returns the routes; every request must carry `key`.
    pub fn router(self, key: ControlKey) -> Router {
        let api = Router::new()
            .route("/status", get(status))
            .route("/jobs", get(jobs))
            .route("/jobs/{name}", get(job))
            .route("/jobs/{name}/runs", post(start_run))
            .route("/next", get(next))
            .route("/runs", get(runs))
            .route("/runs/{id}", get(run))
            .route("/runs/{id}/events", get(events))
            .route("/runs/{id}/cancel", post(cancel))
            .route("/approvals", get(approvals))
            .route("/approvals/{id}", post(answer_approval))
            .route("/slots", get(slots))
            .route("/audit", get(audit_slots));
        Router::new()
            .nest("/api/v1", api)
            .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "there is no such address") })
            .with_state(self)
            .layer(axum::middleware::from_fn_with_state(key, ask_for_key))
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Problem> {
        let gone =
            |()| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is being stopped");
        let (reply, answer) = oneshot::channel();
        self.handle.commands.send(make(reply)).await.map_err(|_| gone(()))?;
        answer.await.map_err(|_| gone(()))
    }

    async fn rows(&self, filter: RunFilter) -> Result<Vec<RunRow>, Problem> {
        let mut rows = self.index.runs(filter.clone()).await.map_err(internal)?;
        let known: std::collections::BTreeSet<&str> =
            rows.iter().map(|row| row.run_id.as_str()).collect();
        let live: Vec<RunRow> = self
            .state
            .open_rows()
            .into_iter()
            .filter(|row| !known.contains(row.run_id.as_str()) && filter.admits(row))
            .collect();
        rows.extend(live);
        rows.sort_by(|a, b| b.run_id.cmp(&a.run_id));
        rows.truncate(usize::try_from(filter.limit).unwrap_or(usize::MAX));
        Ok(rows)
    }

    async fn last_runs(&self) -> Result<BTreeMap<String, RunRow>, Problem> {
        self.index.last_runs().await.map_err(internal)
    }

    async fn is_known(&self, run_id: &RunId) -> bool {
        self.ask(|reply| Command::IsKnown(run_id.clone(), reply)).await.unwrap_or(false)
    }

    /// Queries the ledger beside its writer, so that nobody who only looks holds up a claim.
    async fn ledger<T: Send + 'static>(
        &self,
        query: impl FnOnce(&LedgerReader<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let state = self.state.clone();
        let read = tokio::task::spawn_blocking(move || Ledger::read_file(state.root(), query))
            .await
            .map_err(internal)?;
        read.map_err(internal)?.ok_or_else(|| internal("there is no ledger"))
    }

    fn run_id(&self, text: &str) -> Result<RunId, Problem> {
        RunId::parse(text)
            .map_err(|_| Problem::new(StatusCode::NOT_FOUND, format!("there is no run `{text}`")))
    }
}

fn internal(error: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn status(State(api): State<Api>) -> Answer<StatusReport> {
    api.ask(Command::Status).await.map(Json)
}

async fn jobs(State(api): State<Api>) -> Answer<List<JobRow>> {
    let last_runs = api.last_runs().await?;
    let config = api.handle.config.borrow().clone();
    Ok(List::whole(job_rows(&config, &last_runs, api.clock.now())))
}

async fn job(State(api): State<Api>, Path(name): Path<String>) -> Answer<JobRow> {
    let Json(list) = jobs(State(api)).await?;
    let found = list.items.into_iter().find(|job| job.name == name);
    found
        .map(Json)
        .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("there is no job `{name}`")))
}

async fn next(State(api): State<Api>, Query(query): Query<NextQuery>) -> Answer<List<NextRow>> {
    let config = api.handle.config.borrow().clone();
    let job = match &query.job {
        None => None,
        Some(name) => Some(config.jobs.get(name.as_str()).ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, format!("there is no job `{name}`"))
        })?),
    };
    let from = query.from.unwrap_or_else(|| api.clock.now());
    Ok(List::whole(next_rows(
        &config,
        job.map(AsRef::as_ref),
        from,
        query.count.unwrap_or(10).min(10_000),
    )))
}

/// Who answers an approval, and how.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerBody {
    approved: bool,
    #[serde(default)]
    reason: Option<String>,
}

/// Refuses a request without the key: a tool must not start, stop or approve anything (WEB-1).
async fn ask_for_key(
    State(key): State<ControlKey>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let given = request.headers().get(KEY_HEADER).map(axum::http::HeaderValue::as_bytes);
    if !given.is_some_and(|given| key.is(given)) {
        tracing::warn!(uid = peer.uid, "a request to the control socket came without its key");
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
    let by = peer.uid.map_or_else(|| "unknown".to_owned(), |uid| format!("uid {uid}"));
    let (uid, approved) = (peer.uid, body.approved);
    let answer = ApprovalAnswer { approved, by, reason: body.reason };
    let answered = api.approvals.answer(&id, answer);
    // One that comes too late or twice is told as well (WEB-8).
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

async fn start_run(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    body: Option<Json<RunRequest>>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let request = RunRequest { job: name, ..body.map(|Json(request)| request).unwrap_or_default() };
    tracing::info!(job = request.job, uid = peer.uid, "run asked for");
    let run_id = api
        .ask(|reply| Command::Run(request, reply))
        .await?
        .map_err(|error| Problem::new(code_of(&error), error.to_string()))?;
    Ok((StatusCode::CREATED, Json(json!({ "run_id": run_id }))))
}

async fn cancel(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
) -> Answer<Value> {
    let run_id = api.run_id(&id)?;
    tracing::info!(%run_id, uid = peer.uid, "cancel asked for");
    let answer = api.ask(|reply| Command::Cancel(run_id.clone(), reply)).await?;
    answer.map_err(|error| Problem::new(code_of(&error), error.to_string()))?;
    Ok(Json(json!({ "run_id": run_id })))
}

fn code_of(error: &CommandError) -> StatusCode {
    match error {
        CommandError::NoJob(_) | CommandError::NoRun(_) => StatusCode::NOT_FOUND,
        CommandError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        CommandError::Stopping | CommandError::Full(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn runs(State(api): State<Api>, Query(query): Query<RunsQuery>) -> Answer<List<RunRow>> {
    let filter = RunFilter {
        job: query.job,
        outcome: query.outcome,
        verdict: query.verdict,
        since: query.since,
        until: query.until,
        limit: query.limit.unwrap_or(DEFAULT_LIMIT).min(MOST_ROWS),
    };
    api.rows(filter).await.map(List::whole)
}

async fn run(State(api): State<Api>, Path(id): Path<String>) -> Answer<RunRow> {
    let run_id = api.run_id(&id)?;
    let missing = || Problem::new(StatusCode::NOT_FOUND, format!("there is no run `{id}`"));
    let run = api.state.find_run(&run_id).ok_or_else(missing)?;
    let lines: Vec<ReadLine> =
        read_lines(&run.transcript()).map_err(internal)?.map_while(Result::ok).collect();
    RunRow::fold(&lines).map(Json).ok_or_else(missing)
}

/// Streams a run's lines: those that are written, then those that come, and ends after the last.
async fn events(
    State(api): State<Api>,
    Path(id): Path<String>,
    Query(query): Query<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<SseEvent, Infallible>>>, Problem> {
    let run_id = api.run_id(&id)?;
    // Watching begins before reading, so that nothing falls between.
    let watcher = api.observers.watch();
    if api.state.find_run(&run_id).is_none() && !api.is_known(&run_id).await {
        return Err(Problem::new(StatusCode::NOT_FOUND, format!("there is no run `{id}`")));
    }
    let (sender, receiver) = mpsc::channel::<SseEvent>(64);
    tokio::spawn(async move {
        let stop = api.stop.clone();
        tokio::select! {
            () = follow(api, run_id, query.from_seq, watcher, &sender) => {}
            () = stop.cancelled() => {}
            () = sender.closed() => {}
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|event| (Ok(event), receiver))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

/// Sends a run's lines until the last; ends too when nobody works on the run any more.
async fn follow(
    api: Api,
    run_id: RunId,
    from: u64,
    mut watcher: Receiver<Observed>,
    sender: &mpsc::Sender<SseEvent>,
) {
    let mut next = from;
    loop {
        // Asked before reading: what was written by then is read below.
        let at_work = api.state.is_live(&run_id) || api.is_known(&run_id).await;
        let (state, id) = (api.state.clone(), run_id.clone());
        let lines = tokio::task::spawn_blocking(move || written(&state, &id, next))
            .await
            .unwrap_or_default();
        let mut ended = false;
        for (seq, line, last) in lines {
            next = seq + 1;
            ended = last;
            if sender.send(SseEvent::default().id(seq.to_string()).data(line)).await.is_err() {
                return;
            }
        }
        if ended || !at_work {
            return;
        }
        // The file is the truth: what is watched only says that there is more of it. Lines that come together are read together.
        let more = async {
            loop {
                match watcher.recv().await {
                    Ok(Observed::Line { run_id: other, seq, .. })
                        if other == run_id && seq >= next =>
                    {
                        return;
                    }
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        };
        let _ = tokio::time::timeout(RECHECK, more).await;
    }
}

/// Returns the lines of a transcript from `from` on, each with its number and whether it is the last of the run.
fn written(state: &StateDir, run_id: &RunId, from: u64) -> Vec<(u64, String, bool)> {
    let Some(lines) = state.find_run(run_id).and_then(|run| raw_lines(&run.transcript()).ok())
    else {
        return Vec::new();
    };
    lines
        .filter(|(_, line)| line.seq >= from)
        .map(|(text, line)| {
            (line.seq, text, line.event.get("type").and_then(Value::as_str) == Some("session_end"))
        })
        .collect()
}

async fn slots(State(api): State<Api>, Query(query): Query<SlotsQuery>) -> Answer<List<SlotRow>> {
    api.ledger(move |reader| reader.slots(query.job.as_deref(), query.since, query.until))
        .await
        .map(List::whole)
}

async fn audit_slots(
    State(api): State<Api>,
    Query(query): Query<SlotsQuery>,
) -> Answer<AuditReport> {
    api.ledger(move |reader| audit(reader, query.job.as_deref())).await.map(Json)
}
