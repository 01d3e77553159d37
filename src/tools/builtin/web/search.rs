//! `web_search`: queries the search service for which the operator has a key.
//!
//! *Source*: the search reference of Exa's API.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::redirect;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::super::ToolContext;
use super::super::{Answer, collected, parsed};
use super::fetch::{MAX_BYTES, shortened};
use super::{VIEW, definition, failed, prepared, unless_stopped};
use crate::agent::{CallContext, CallOutput, PreparedCall, ToolDefinition, ToolRunner, ToolSpec};
use crate::config::{Builtin, WebSearch};
use crate::domain::{CallError, Category, ErrorKind};

pub(super) const NAME: &str = "web_search";

/// The default number of results.
const RESULTS: u64 = 8;

/// The default number of characters of all results together.
const CHARACTERS: u64 = 10_000;

/// The time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Asked {
    query: String,
    num_results: Option<u64>,
    r#type: Option<String>,
    livecrawl: Option<String>,
    context_max_characters: Option<u64>,
}

impl Asked {
    fn number(&self) -> u64 {
        self.num_results.unwrap_or(RESULTS)
    }

    fn search_type(&self) -> &str {
        self.r#type.as_deref().unwrap_or("auto")
    }

    fn livecrawl(&self) -> &str {
        self.livecrawl.as_deref().unwrap_or("fallback")
    }
}

#[derive(Deserialize)]
struct Found {
    results: Vec<FoundPage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FoundPage {
    title: Option<String>,
    url: String,
    published_date: Option<String>,
    author: Option<String>,
    text: Option<String>,
}

/// The `web_search` tool in a run.
pub struct WebSearchTool {
    declared: &'static Builtin,
    definition: ToolDefinition,
    ctx: Arc<ToolContext>,
    service: WebSearch,
}

impl WebSearchTool {
    /// Returns the tool; `None` if the operator has not configured a search service, or if the job
    /// has no network.
    #[must_use]
    pub fn new(ctx: &Arc<ToolContext>) -> Option<Self> {
        let service = ctx.web_search.clone().filter(|_| !ctx.access.domains.is_offline)?;
        let declared = Builtin::find(NAME)?;
        Some(Self { declared, definition: definition(declared), ctx: ctx.clone(), service })
    }

    async fn found(&self, asked: &Asked) -> Result<Answer, CallError> {
        let io = |message: String| CallError::new(ErrorKind::Io, message);
        let number = asked.number();
        let characters = asked.context_max_characters.unwrap_or(CHARACTERS);
        let client = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .user_agent(concat!("dutyd/", env!("CARGO_PKG_VERSION")))
            .timeout(self.ctx.builtin_timeout(NAME, TIMEOUT.min(self.ctx.timeout)))
            .build()
            .map_err(|error| super::fetch::failed(&error))?;
        let mut response = client
            .post(format!("{}/search", self.service.base_url))
            .header("x-api-key", &self.service.api_key)
            .json(&json!({
                "query": asked.query,
                "numResults": number,
                "type": asked.search_type(),
                "contents": {
                    "text": {"maxCharacters": (characters / number.max(1)).max(200)},
                    "livecrawl": asked.livecrawl(),
                },
            }))
            .send()
            .await
            .map_err(|error| super::fetch::failed(&error))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(piece) =
            response.chunk().await.map_err(|error| super::fetch::failed(&error))?
        {
            if body.len() + piece.len() > MAX_BYTES {
                let message = "[ERROR: The answer of the search service is too large.]";
                return Err(CallError::new(ErrorKind::Limit, message));
            }
            body.extend_from_slice(&piece);
        }
        if !status.is_success() {
            // Redact before the text is cut: the redactor would not find half of a secret.
            let said = String::from_utf8_lossy(&body).into_owned();
            let said = shortened(&self.ctx.redactor.text(&said));
            let message = format!("[ERROR: The search service answered HTTP {status}: {said}]");
            return Err(CallError::new(ErrorKind::Tool, message));
        }
        let found: Found = serde_json::from_slice(&body).map_err(|error| {
            io(format!("[ERROR: The answer of the search service cannot be read: {error}.]"))
        })?;
        Ok(told(asked, &found))
    }
}

fn told(asked: &Asked, found: &Found) -> Answer {
    let mut text = String::new();
    for (at, page) in found.results.iter().enumerate() {
        let title = page.title.as_deref().unwrap_or("(no title)");
        let _ = writeln!(text, "{}. {title}\n   {}", at + 1, page.url);
        let about = [page.published_date.as_deref(), page.author.as_deref()];
        let about: Vec<&str> =
            about.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        if !about.is_empty() {
            let _ = writeln!(text, "   {}", about.join(", "));
        }
        if let Some(words) = page.text.as_deref().filter(|words| !words.trim().is_empty()) {
            let _ = writeln!(text, "\n{}", words.trim());
        }
        text.push('\n');
    }
    if found.results.is_empty() {
        text.push_str("[nothing was found]");
    }
    let mut answer = Answer::of(text.trim_end());
    answer.details.insert("query".to_owned(), json!(asked.query));
    answer.details.insert("num_results".to_owned(), json!(asked.number()));
    // The line of the record has a `type` of its own.
    answer.details.insert("search_type".to_owned(), json!(asked.search_type()));
    answer.details.insert("livecrawl".to_owned(), json!(asked.livecrawl()));
    answer.details.insert("results".to_owned(), json!(found.results.len()));
    answer
}

impl ToolSpec for WebSearchTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn category(&self) -> Category {
        self.declared.category
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        prepared(NAME, &self.ctx, arguments)
    }
}

#[async_trait]
impl ToolRunner for WebSearchTool {
    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let done = match parsed::<Asked>(&call.arguments) {
            Ok(asked) => unless_stopped(context, self.found(&asked)).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(answer) => collected(&self.ctx, context, NAME, VIEW, answer),
            Err(error) => failed(&self.ctx, &error),
        }
    }
}
