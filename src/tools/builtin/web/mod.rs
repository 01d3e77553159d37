//! `web_fetch`, `web_search`: access to the web, limited to hosts that the operator configured.

mod fetch;
mod page;
mod search;

pub(in crate::tools) use fetch::judged_addresses;
pub use page::{CONVERTER_VERB, run_converter};
pub use search::WebSearchTool;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::ToolContext;
use super::super::image;
use super::{Answer, JudgedCall, collected, parsed, prepare_builtin, view};
use crate::agent::{CallContext, CallOutput, PreparedCall, ToolDefinition, ToolRunner, ToolSpec};
use crate::config::Builtin;
use crate::domain::{CallError, Category, ErrorKind};
use crate::gate::Resource;
use crate::text::truncate::{Keep, ViewLimit};
use fetch::{FetchLimits, Fetched, MAX_BYTES, fetch};

const NAME: &str = "web_fetch";

const TIMEOUT: Duration = Duration::from_secs(30);

/// The model's view of a page or of search results.
const VIEW: ViewLimit = view(50_000, usize::MAX, Keep::HeadAndTail);

/// The form in which a page is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    #[default]
    Markdown,
    Text,
    Html,
}

#[derive(Deserialize)]
struct WebFetch {
    url: String,
    format: Option<Form>,
    timeout: Option<u64>,
}

/// The `web_fetch` tool in a run.
pub struct WebFetchTool {
    declared: &'static Builtin,
    definition: ToolDefinition,
    ctx: Arc<ToolContext>,
}

/// Returns the address that a call accesses; none for `web_search`.
pub(super) fn resources(name: &str, arguments: &Map<String, Value>) -> Vec<Resource> {
    if name != NAME {
        return Vec::new();
    }
    let url = arguments.get("url").and_then(Value::as_str).unwrap_or_default();
    vec![Resource::Url(url.to_owned())]
}

/// Returns whether `name` is a tool of this module.
pub(super) fn is_one(name: &str) -> bool {
    name == NAME || name == search::NAME
}

fn definition(declared: &Builtin) -> ToolDefinition {
    ToolDefinition {
        name: declared.name.to_owned(),
        description: declared.description.clone(),
        parameters: declared.parameters.schema().clone(),
    }
}

fn prepared(
    name: &str,
    ctx: &ToolContext,
    arguments: &Map<String, Value>,
) -> Result<PreparedCall, CallError> {
    let JudgedCall { arguments, resources, lines } = prepare_builtin(name, arguments)?;
    Ok(PreparedCall {
        resources,
        lines,
        working_dir: ctx.working_dir.display().to_string(),
        argv: Vec::new(),
        stdin: None,
        sandboxed: false,
        arguments,
    })
}

/// Waits for `work`, or fails when the run is stopped.
async fn unless_stopped<T>(
    context: &CallContext,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    tokio::select! {
        biased;
        () = context.cancel.cancelled() => {
            Err(CallError::new(ErrorKind::Interrupted, "The run was stopped."))
        }
        done = work => done,
    }
}

fn failed(ctx: &ToolContext, error: &CallError) -> CallOutput {
    let message = ctx.redactor.text(&error.message).into_owned();
    CallOutput::of_error(&CallError::new(error.kind, message))
}

impl WebFetchTool {
    /// Returns the tool for a run.
    #[must_use]
    pub fn new(ctx: &Arc<ToolContext>) -> Option<Self> {
        let declared = Builtin::find(NAME)?;
        Some(Self { declared, definition: definition(declared), ctx: ctx.clone() })
    }

    async fn fetched(
        &self,
        asked: &WebFetch,
        context: &CallContext,
    ) -> Result<(Answer, Option<ErrorKind>), CallError> {
        let form = asked.format.unwrap_or_default();
        let default = TIMEOUT.min(self.ctx.timeout);
        let asked_for = asked.timeout.map(Duration::from_secs);
        let own = self.ctx.builtin_timeout(NAME, default);
        let total = asked_for.map_or(own, |asked| self.ctx.capped(asked.min(self.ctx.timeout)));
        let accept = match form {
            Form::Markdown => "text/markdown, text/html;q=0.9, text/plain;q=0.8, */*;q=0.1",
            Form::Text => "text/plain, text/html;q=0.9, */*;q=0.1",
            Form::Html => "text/html, application/xhtml+xml;q=0.9, */*;q=0.1",
        };
        let (domains, redactor) = (&self.ctx.access.domains, &self.ctx.redactor);
        let bytes = self.ctx.builtin(NAME).response_bytes.unwrap_or(MAX_BYTES);
        let most = FetchLimits { time: total, bytes };
        let fetched = fetch(domains, &asked.url, accept, most, redactor);
        let mut got = unless_stopped(context, fetched).await?;
        if image::media_type(&got.body).is_some() {
            let body = std::mem::take(&mut got.body);
            let picture = tokio::task::spawn_blocking(move || image::attached(body)).await;
            let picture = picture.map_err(|error| {
                tracing::error!(tool = NAME, %error, "failed to decode a picture");
                CallError::new(ErrorKind::Tool, "[ERROR: The picture cannot be read.]")
            })??;
            return Ok(told(&asked.url, &got, Answer::of_image(picture)));
        }
        let text = page::text(&got, form, &self.ctx, context).await?;
        Ok(told(&asked.url, &got, Answer::of(text)))
    }
}

/// For the model, adds the address (if it differs from the requested one) and the HTTP status (if
/// it is a failure). For the transcript, adds details of the response. Returns the kind of the
/// failure as well.
fn told(asked: &str, got: &Fetched, mut answer: Answer) -> (Answer, Option<ErrorKind>) {
    let mut head = String::new();
    let normal = url::Url::parse(asked).map(String::from);
    if normal.is_ok_and(|asked| asked != got.url) {
        head = format!("[the page is at {}]\n", fetch::shortened(&got.url));
    }
    let error = match got.status.as_u16() {
        200..=299 => None,
        404 | 410 => Some(ErrorKind::NotFound),
        _ => Some(ErrorKind::Tool),
    };
    if error.is_some() {
        head.push_str(&format!("[HTTP {}]\n", got.status));
    }
    answer.text = head + &answer.text;
    answer.details = [
        ("url", json!(fetch::shortened(&got.url))),
        ("http_status", json!(got.status.as_u16())),
        ("content_type", json!(got.content_type.as_deref().map(fetch::shortened))),
        ("fetched_bytes", json!(got.bytes)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    (answer, error)
}

impl ToolSpec for WebFetchTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn category(&self) -> Category {
        self.declared.category
    }

    /// Hides the tool if the job may not fetch from any host.
    fn is_available(&self) -> bool {
        !self.ctx.access.domains.is_offline && !self.ctx.access.domains.hosts.is_empty()
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        prepared(NAME, &self.ctx, arguments)
    }
}

#[async_trait]
impl ToolRunner for WebFetchTool {
    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let done = match parsed::<WebFetch>(&call.arguments) {
            Ok(asked) => self.fetched(&asked, context).await,
            Err(error) => Err(error),
        };
        match done {
            Ok((answer, error_kind)) => {
                let output = collected(&self.ctx, context, NAME, VIEW, answer);
                CallOutput { error_kind: output.error_kind.or(error_kind), ..output }
            }
            Err(error) => failed(&self.ctx, &error),
        }
    }
}
