//! Routes that inspect runs, plans, jobs and tools. Members of the socket's group need these
//! routes, because they cannot read the state directory themselves.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::api::{Answer, Api, List, internal, missing};
use super::problem::Problem;
use super::socket::Peer;
use crate::config::{Config, Job, McpServer};
use crate::daemon::StatusReport;
use crate::domain::{Plan, RunId};
use crate::process::HostWork;
use crate::run::{
    CheckItem, CheckReport, ExplainError, Explanation, Learned, ModelView, Reach, ToolRow,
    ask_providers, check, examine_config, examine_host, explain, model_views, names_of_server,
    tool_rows,
};
use crate::store::{RecordFacts, RunDir, VerifyReport, verify};

/// Bytes of a file per chunk of the response.
const CHUNK_BYTES: usize = 64 * 1024;

impl Api {
    fn run_dir(&self, id: &str) -> Result<RunDir, Problem> {
        let run_id = self.run_id(id)?;
        self.state.find_run(&run_id).ok_or_else(|| missing(format!("there is no run `{id}`")))
    }

    fn job(&self, name: &str) -> Result<(Arc<Config>, Arc<Job>), Problem> {
        let config = self.handle.config.borrow().clone();
        let job = config.jobs.get(name).cloned();
        job.map(|job| (config, job)).ok_or_else(|| self.no_job(name))
    }

    /// Returns the MCP tools (server, full name) whose pins are in the ledger; starts no server.
    async fn of_servers(
        &self,
        config: &Arc<Config>,
    ) -> Result<Vec<(Arc<McpServer>, String)>, Problem> {
        let config = config.clone();
        self.ledger(move |reader| {
            let mut found = Vec::new();
            for server in config.mcp_servers.values() {
                let pins = reader.mcp_pins(&server.name)?.unwrap_or_default();
                found.extend(names_of_server(&config, server, pins.into_keys()));
            }
            Ok(found)
        })
        .await
    }
}

pub(super) async fn transcript(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let file = tokio::fs::File::open(api.run_dir(&id)?.transcript()).await.map_err(internal)?;
    let chunks = futures_util::stream::unfold(file, |mut file| async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        match tokio::io::AsyncReadExt::read(&mut file, &mut chunk).await {
            Ok(0) => None,
            Ok(read) => {
                chunk.truncate(read);
                Some((Ok::<_, std::io::Error>(chunk), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, axum::body::Body::from_stream(chunks)).into_response())
}

pub(super) async fn verify_run(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Answer<VerifyReport> {
    let run_id = api.run_id(&id)?;
    let known = run_id.to_string();
    let end = api.ledger(move |reader| reader.record_end(&known)).await?;
    let Some(run) = api.state.find_run(&run_id) else {
        return match end {
            Some(_) => Ok(Json(crate::store::missing_record(&run_id))),
            None => Err(missing(format!("there is no run `{id}`"))),
        };
    };
    let state = api.state.clone();
    let verified = tokio::task::spawn_blocking(move || {
        let (live, is_open) = (state.is_live(run.run_id()), state.is_open(run.run_id()));
        verify(&run, &RecordFacts { live, is_open, end, ..RecordFacts::default() })
    });
    verified.await.map_err(internal)?.map_err(internal).map(Json)
}

pub(super) async fn plans(State(api): State<Api>) -> Answer<List<Plan>> {
    // `status` names those that cannot be read.
    api.ledger(|reader| reader.plans()).await.map(|found| List::whole(found.plans))
}

pub(super) async fn plan(State(api): State<Api>, Path(id): Path<String>) -> Answer<Plan> {
    let wanted = id.clone();
    let found = api.ledger(move |reader| reader.plan(&wanted)).await?;
    found.map(Json).ok_or_else(|| missing(format!("there is no plan `{id}`")))
}

/// The filter of `GET /models`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelsQuery {
    /// Whether to ask the providers first.
    pub online: bool,
}

/// The answer of `GET /models`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelsAnswer {
    pub models: Vec<ModelView>,
    /// A message for each provider that did not answer.
    pub problems: Vec<String>,
}

pub(super) async fn models(
    State(api): State<Api>,
    Query(query): Query<ModelsQuery>,
) -> Answer<ModelsAnswer> {
    let (config, host) = (api.handle.config.borrow().clone(), api.host.clone());
    let problems = if query.online { ask_providers(&config, &host).await } else { Vec::new() };
    let learned = Learned::read(&host).await.map_err(internal)?;
    Ok(Json(ModelsAnswer { models: model_views(&config, &learned, host.clock.now()), problems }))
}

/// The filter of `GET /doctor`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DoctorQuery {
    /// Whether to ask the providers of the models.
    pub online: bool,
}

/// Examines the daemon itself, with the configuration in effect.
pub(super) async fn doctor(
    State(api): State<Api>,
    Query(query): Query<DoctorQuery>,
) -> Answer<CheckReport> {
    let status = api.status().await?;
    let (config, host) = (api.handle.config.borrow().clone(), api.host.clone());
    let of_host = host.clone();
    let examined = tokio::task::spawn_blocking(move || examine_host(&of_host)).await;
    let mut items = examined.map_err(internal)?;
    items.extend([configuration_item(&status), problems_item(&status)]);
    let reach = if query.online { Reach::Online } else { Reach::Offline };
    items.extend(examine_config(&config, &host, reach).await);
    Ok(Json(CheckReport::of(items)))
}

fn configuration_item(status: &StatusReport) -> CheckItem {
    let config = &status.config;
    let says = match &config.disk_digest {
        None => ": the files have errors: run `dutyd validate` to list them",
        Some(_) if !config.valid => ": the last reload failed: run `dutyd reload`",
        Some(disk) if *disk != config.digest => {
            "; the files differ from the configuration in effect: `dutyd reload` loads them"
        }
        Some(_) => ", in effect",
    };
    let warnings: String =
        config.warnings.iter().map(|warning| format!("; warning: {warning}")).collect();
    CheckItem {
        name: "configuration".to_owned(),
        ok: Some(config.valid && config.disk_digest.is_some()),
        detail: format!("{}{says}{warnings}", config.directory),
    }
}

fn problems_item(status: &StatusReport) -> CheckItem {
    let detail = match status.degraded.as_slice() {
        [] => "no problem is known".to_owned(),
        degraded => degraded.join("; "),
    };
    CheckItem { name: "daemon".to_owned(), ok: Some(status.degraded.is_empty()), detail }
}

pub(super) async fn check_job(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Answer<CheckReport> {
    let (config, job) = api.job(&name)?;
    tracing::info!(job = name, uid = peer.uid, "check requested");
    let (host, run_id) = (api.host.clone(), RunId::from_ulid(ulid::Ulid::generate()));
    // A separate task: if the client leaves, the check still cleans up its servers and its
    // directory.
    let checked = tokio::spawn(async move { check(&config, &job, &host, &run_id).await });
    checked.await.map_err(internal)?.map_err(internal).map(Json)
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainBody {
    tool: String,
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

pub(super) async fn explain_call(
    State(api): State<Api>,
    Path(name): Path<String>,
    Json(body): Json<ExplainBody>,
) -> Answer<Explanation> {
    let (config, job) = api.job(&name)?;
    let host = api.host.clone();
    let explained = HostWork::of(&name)
        .run(move || explain(&config, &job, &host, &body.tool, body.arguments.as_ref()))
        .await;
    explained.map_err(internal)?.map(Json).map_err(|error| match error {
        ExplainError::Unknown(error) => missing(error.to_string()),
        ExplainError::Arguments(error) => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.message)
        }
    })
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ToolsQuery {
    job: Option<String>,
}

pub(super) async fn tools(
    State(api): State<Api>,
    Query(query): Query<ToolsQuery>,
) -> Answer<List<ToolRow>> {
    let config = api.handle.config.borrow().clone();
    let job = query.job.as_deref().map(|name| api.job(name)).transpose()?.map(|(_, job)| job);
    let of_servers = api.of_servers(&config).await?;
    let (owner, host) = (query.job.unwrap_or_default(), api.host.clone());
    let rows = HostWork::of(&owner)
        .run(move || tool_rows(&config, job.as_deref(), &host, &of_servers))
        .await;
    Ok(List::whole(rows.map_err(internal)?))
}
