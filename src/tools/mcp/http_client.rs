//! The transport to a server over streamable HTTP.
//!
//! The library keeps the session and its streams. This client sends each message and reads the
//! answer, with [`super::answers`]. Whatever a server answers to a request ends the request at once
//! (MCP-6): an answer of the protocol with what it says, also under an error status, and everything
//! else with an error that says what came.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::error::Error as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::Response;
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::Sse;

use super::answers::OpenRequests;
use super::error::McpError;
use super::events::{EventReader, RawEvent};
use crate::text::escape::one_line;
use crate::text::json::Measure;

/// Maximum bytes of one event of a stream.
const EVENT_BYTES: usize = 8 << 20;

/// Maximum bytes of an answer that is not a stream.
const BODY_BYTES: usize = 16 << 20;

/// The time limit for establishing a connection.
const CONNECT: Duration = Duration::from_secs(20);

/// Characters that an error quotes of an answer that is not of the protocol.
const QUOTED_CHARACTERS: usize = 300;

/// The media types that we accept.
const ACCEPTED: &str = "text/event-stream, application/json";

/// Headers that the protocol sets.
const RESERVED: [&str; 4] = ["accept", "mcp-session-id", "mcp-protocol-version", "last-event-id"];

/// The answers of a stream, as the library reads them.
type Events = BoxStream<'static, Result<Sse, SseError>>;

type HttpError = StreamableHttpError<Infallible>;

/// Returns the transport to the server at `url`.
///
/// *Errors*: a header cannot be sent, or the system's certificates cannot be read.
pub(super) fn transport(
    url: &str,
    headers: &BTreeMap<String, String>,
) -> Result<StreamableHttpClientTransport<HttpClient>, McpError> {
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT);
    // Without TLS, a host needs no CA certificates.
    let is_plain = url.starts_with("http:");
    let builder = if is_plain { builder.tls_certs_only([]) } else { builder };
    let client = builder.build().map_err(McpError::HttpClient)?;
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.to_owned());
    for (name, value) in headers {
        let name =
            HeaderName::try_from(name.as_str()).map_err(|_| McpError::HeaderName(name.clone()))?;
        if RESERVED.contains(&name.as_str()) {
            return Err(McpError::HeaderReserved(name.to_string()));
        }
        let mut value = HeaderValue::try_from(value.as_str())
            .map_err(|_| McpError::HeaderValue(name.to_string()))?;
        value.set_sensitive(true);
        config.custom_headers.insert(name, value);
    }
    let client = HttpClient { client, requests: Arc::default() };
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// Sends messages to one server.
#[derive(Debug, Clone)]
pub(super) struct HttpClient {
    client: reqwest::Client,
    requests: Arc<Mutex<OpenRequests>>,
}

impl HttpClient {
    fn requests(&self) -> MutexGuard<'_, OpenRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the request `own` with an error; `why` continues a sentence about the server.
    fn fail(&self, own: i64, why: String) -> StreamableHttpPostResponse {
        StreamableHttpPostResponse::Json(self.requests().fail(own, why), None)
    }

    /// Returns the answer to the request `own` in a body, if there is one.
    fn answer_in(&self, body: &[u8], own: i64) -> Option<ServerJsonRpcMessage> {
        let messages = self.requests().read(body, Some(own));
        messages.into_iter().find(|message| match message {
            JsonRpcMessage::Response(answer) => answer.id == RequestId::Number(own),
            JsonRpcMessage::Error(answer) => answer.id == Some(RequestId::Number(own)),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => false,
        })
    }

    /// Reads the response to the request `own`.
    async fn read(
        &self,
        response: Response,
        own: i64,
        url: &str,
        has_session: bool,
    ) -> StreamableHttpPostResponse {
        let status = response.status();
        let session = header(&response, HEADER_SESSION_ID);
        if status.is_success() && is_stream(&response) {
            let events = self.events(response, Some(own));
            return StreamableHttpPostResponse::Sse(events, session);
        }
        let is_accepted = matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT);
        if has_session && is_accepted && !is_json(&response) {
            // The answer comes on the stream of the session.
            return StreamableHttpPostResponse::Accepted;
        }
        if let Some(why) = refusal(&response, url) {
            return self.fail(own, why);
        }
        let kind = header(&response, CONTENT_TYPE.as_str());
        let body = match body(response).await {
            Ok(body) => body,
            Err(why) => return self.fail(own, why),
        };
        match self.answer_in(&body, own) {
            Some(answer) => StreamableHttpPostResponse::Json(answer, session),
            None if has_session && is_accepted => StreamableHttpPostResponse::Accepted,
            None => self.fail(own, no_answer(status, kind.as_deref(), &body, url)),
        }
    }

    /// Returns the events of a stream. `own` is the request to which the stream answers; without
    /// one, it is the stream of the session.
    fn events(&self, response: Response, own: Option<i64>) -> Events {
        let client = self.clone();
        let reader = EventReader::new(EVENT_BYTES);
        let state = Some((response, reader));
        let batches = futures_util::stream::unfold(state, move |state| {
            let client = client.clone();
            async move {
                let (mut response, mut reader) = state?;
                match response.chunk().await {
                    Err(error) => Some((vec![Err(SseError::Body(Box::new(error)))], None)),
                    Ok(None) => {
                        let last = reader.end().map(|event| client.of_event(event, own));
                        Some((last.unwrap_or_default(), None))
                    }
                    Ok(Some(chunk)) => match reader.take(&chunk) {
                        Ok(events) => {
                            let events = events.into_iter();
                            let read = events.flat_map(|event| client.of_event(event, own));
                            Some((read.collect(), Some((response, reader))))
                        }
                        Err(_) => Some((client.of_large_event(own), None)),
                    },
                }
            }
        });
        batches.flat_map(futures_util::stream::iter).boxed()
    }

    /// Returns the messages of an event, each as an event of its own.
    fn of_event(&self, event: RawEvent, own: Option<i64>) -> Vec<Result<Sse, SseError>> {
        let messages = self.requests().read(&event.data, own);
        let mut events: Vec<Sse> = messages.iter().map(sse).collect();
        match events.last_mut() {
            Some(last) => (last.id, last.retry) = (event.rest.id, event.rest.retry),
            None => events.push(event.rest),
        }
        events.into_iter().map(Ok).collect()
    }

    fn of_large_event(&self, own: Option<i64>) -> Vec<Result<Sse, SseError>> {
        let why = "it sent a message of more than 8 MiB".to_owned();
        own.map(|own| Ok(sse(&self.requests().fail(own, why)))).into_iter().collect()
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = Infallible;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let own = self.requests().send(&message);
        let mut request = self.client.post(uri.as_ref()).header(ACCEPT, ACCEPTED);
        for (name, value) in custom_headers {
            request = request.header(name, value);
        }
        if let Some(session_id) = &session_id {
            request = request.header(HEADER_SESSION_ID, session_id.as_ref());
        }
        let sent = request.json(&message).send().await;
        // The library waits only for the answer to a request. A server that does not like a
        // notification says so again at the next request.
        let Some(own) = own else { return Ok(StreamableHttpPostResponse::Accepted) };
        match sent {
            Err(error) => Ok(self.fail(own, transport_words(&error))),
            // The library begins a new session and sends the request again.
            Ok(response) if response.status() == StatusCode::NOT_FOUND && session_id.is_some() => {
                Err(StreamableHttpError::SessionExpired)
            }
            Ok(response) => Ok(self.read(response, own, &uri, session_id.is_some()).await),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, HttpError> {
        let mut request = self.client.get(uri.as_ref()).header(ACCEPT, ACCEPTED);
        for (name, value) in custom_headers {
            request = request.header(name, value);
        }
        if let Some(session_id) = session_id {
            request = request.header(HEADER_SESSION_ID, session_id.as_ref());
        }
        if let Some(last) = last_event_id {
            request = request.header(HEADER_LAST_EVENT_ID, last);
        }
        let failed = |why: String| StreamableHttpError::UnexpectedServerResponse(why.into());
        let response = request.send().await.map_err(|error| failed(transport_words(&error)))?;
        let status = response.status();
        if status.is_client_error() || status.is_success() && !is_stream(&response) {
            // Another try would not help.
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if !status.is_success() {
            return Err(failed(format!("HTTP {status}")));
        }
        Ok(self.events(response, None))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        let mut request = self.client.delete(uri.as_ref());
        for (name, value) in custom_headers {
            request = request.header(name, value);
        }
        // A server that does not end the session now ends it later by itself.
        let _ = request.header(HEADER_SESSION_ID, session_id.as_ref()).send().await;
        Ok(())
    }
}

fn sse(message: &ServerJsonRpcMessage) -> Sse {
    Sse { data: serde_json::to_string(message).ok(), ..Sse::default() }
}

fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

fn is_stream(response: &Response) -> bool {
    is_of_type(response, EVENT_STREAM_MIME_TYPE)
}

fn is_json(response: &Response) -> bool {
    is_of_type(response, JSON_MIME_TYPE)
}

fn is_of_type(response: &Response, media_type: &str) -> bool {
    header(response, CONTENT_TYPE.as_str())
        .is_some_and(|kind| kind.to_ascii_lowercase().starts_with(media_type))
}

/// Reads a body up to the end of the JSON value in it, or to its own end.
///
/// *Errors*: the body is too large or was cut off; the text continues a sentence about the server.
async fn body(mut response: Response) -> Result<Vec<u8>, String> {
    let mut body: Vec<u8> = Vec::new();
    let mut measure = Measure::default();
    loop {
        match response.chunk().await {
            Err(error) => return Err(format!("its answer was cut off: {}", causes(&error))),
            Ok(None) => return Ok(body),
            Ok(Some(chunk)) => {
                if body.len() + chunk.len() > BODY_BYTES {
                    return Err("it sent a message of more than 16 MiB".to_owned());
                }
                chunk.iter().for_each(|byte| measure.take(*byte));
                body.extend_from_slice(&chunk);
            }
        }
        // A server may keep the connection open after its answer.
        let is_json = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
        if is_json && !measure.is_open() {
            return Ok(body);
        }
    }
}

/// Returns why a status means that the server refuses the request, whatever its body says; `None`
/// for every other status.
fn refusal(response: &Response, url: &str) -> Option<String> {
    let (status, url) = (response.status(), shown_url(url));
    match status {
        StatusCode::UNAUTHORIZED => Some(format!(
            "the server at {url} wants a login (401): set what it expects, such as an `Authorization` header with a token, under `headers` of this server in config.yaml"
        )),
        StatusCode::FORBIDDEN => Some(format!(
            "the server at {url} refuses access (403): check `headers` of this server in config.yaml"
        )),
        status if status.is_redirection() => {
            let target = header(response, LOCATION.as_str()).unwrap_or_default();
            Some(format!(
                "the server at {url} redirects to {} ({}), which is not followed: set this address as `url` in config.yaml",
                quoted(target.as_bytes()),
                status.as_u16()
            ))
        }
        _ => None,
    }
}

/// Describes a response that is not an answer of the protocol.
fn no_answer(status: StatusCode, kind: Option<&str>, body: &[u8], url: &str) -> String {
    let said = match quoted(body) {
        said if said.is_empty() => "an empty body".to_owned(),
        said => said,
    };
    match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            let url = shown_url(url);
            format!("there is no MCP server at {url} ({}): {said}", status.as_u16())
        }
        status if status.is_success() => {
            let kind = kind.map_or("without a content type".to_owned(), |kind| {
                format!("of type {}", quoted(kind.as_bytes()))
            });
            format!("its answer {kind} is not a message of the protocol: {said}")
        }
        status => format!("it answered with HTTP {status}: {said}"),
    }
}

/// Returns the beginning of a text of a server on one line.
fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = one_line(text.trim());
    let mut start: String = line.chars().take(QUOTED_CHARACTERS).collect();
    if start.len() < line.len() {
        start.push('…');
    }
    start
}

/// Returns an address without its query, which may contain a key.
fn shown_url(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// Describes a request that got no response.
fn transport_words(error: &reqwest::Error) -> String {
    if error.is_connect() {
        format!("no connection to it: {}", causes(error))
    } else {
        format!("it gave no answer: {}", causes(error))
    }
}

/// Returns the causes of an error, without the URL, which may contain a key.
fn causes(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    if causes.is_empty() { "the connection failed".to_owned() } else { causes.join(": ") }
}
