//! The client of the control socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::context::Context;
use super::error::{CliError, ErrorKind};
use crate::config::SYSTEM_RUNTIME_DIRECTORY;
use crate::server::{KEY_HEADER, Problem, key_path, socket_path};

/// Default timeout of a request, including its whole response.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection to a running daemon.
pub(crate) struct Client {
    http: reqwest::Client,
}

impl Client {
    /// Connects to the daemon; `None` if none is running.
    ///
    /// *Errors*: we may not connect to a socket that exists, or the key beside it cannot be read or
    /// is invalid.
    pub(crate) fn find(context: &Context) -> Result<Option<Self>, CliError> {
        let mut refused = None;
        for path in candidates(context) {
            match std::os::unix::net::UnixStream::connect(&path) {
                Ok(_) => return Self::at(&path).map(Some),
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    refused.get_or_insert_with(|| super::access::denied(&path, &error));
                }
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Connects to the daemon.
    ///
    /// *Errors*: `NoDaemon` if none is running, and those of [`Self::find`].
    pub(crate) fn require(context: &Context) -> Result<Self, CliError> {
        Self::find(context)?.ok_or_else(|| {
            let mut looked: Vec<String> =
                candidates(context).iter().map(|path| path.display().to_string()).collect();
            looked.dedup();
            CliError::new(ErrorKind::NoDaemon, "no daemon is running")
                .hint(format!("looked for {}; `dutyd serve` starts a daemon", looked.join(", ")))
        })
    }

    fn at(path: &Path) -> Result<Self, CliError> {
        let key_path = key_path(path);
        let key = std::fs::read_to_string(&key_path)
            .map_err(|error| super::access::denied(&key_path, &error))?;
        let mut key = HeaderValue::from_str(key.trim())
            .map_err(|_| CliError::failed(format!("invalid key in {}", key_path.display())))?;
        key.set_sensitive(true);
        let http = reqwest::Client::builder()
            .default_headers(HeaderMap::from_iter([(HeaderName::from_static(KEY_HEADER), key)]))
            .unix_socket(path)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| CliError::failed(format!("cannot create the HTTP client: {error}")))?;
        Ok(Self { http })
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<T, CliError> {
        let response = self.send(Method::GET, path, query, None, Some(ANSWER)).await?;
        response.json().await.map_err(|error| {
            CliError::failed(format!("cannot read the daemon's response: {error}"))
        })
    }

    /// Returns the `items` of the list at `path`.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<Vec<T>, CliError> {
        #[derive(serde::Deserialize)]
        struct List<T> {
            items: Vec<T>,
        }
        self.get::<List<T>>(path, query).await.map(|list| list.items)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CliError> {
        self.post_within(path, body, Some(ANSWER)).await
    }

    /// Posts with a timeout other than the default; `None` disables the timeout.
    pub(crate) async fn post_within<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Option<Duration>,
    ) -> Result<T, CliError> {
        let body =
            serde_json::to_value(body).map_err(|error| CliError::failed(error.to_string()))?;
        let response = self.send(Method::POST, path, &[(); 0], Some(body), limit).await?;
        response.json().await.map_err(|error| {
            CliError::failed(format!("cannot read the daemon's response: {error}"))
        })
    }

    /// Returns a response body as bytes, without a timeout.
    pub(crate) async fn bytes(&self, path: &str) -> Result<Vec<u8>, CliError> {
        let response = self.send(Method::GET, path, &[(); 0], None, None).await?;
        let bytes = response.bytes().await;
        bytes.map(|bytes| bytes.to_vec()).map_err(|error| {
            CliError::failed(format!("lost the connection to the daemon: {error}"))
        })
    }

    /// Calls `take` with each event of a run as it arrives, until the stream ends.
    pub(crate) async fn follow(
        &self,
        run_id: &str,
        mut take: impl FnMut(&str),
    ) -> Result<(), CliError> {
        let response =
            self.send(Method::GET, &format!("/runs/{run_id}/events"), &[(); 0], None, None).await?;
        let mut events = sse_stream::SseStream::from_bytes_stream(response.bytes_stream());
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| {
                CliError::failed(format!("lost the connection to the daemon: {error}"))
            })?;
            if let Some(data) = event.data {
                take(&data);
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &impl Serialize,
        body: Option<Value>,
        timeout: Option<Duration>,
    ) -> Result<Response, CliError> {
        let query = query_string(query)?;
        let mut request = self.http.request(method, format!("http://dutyd/api/v1{path}{query}"));
        if let Some(body) = body {
            request = request.json(&body);
        }
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        let response = request
            .send()
            .await
            .map_err(|error| CliError::failed(format!("the daemon does not respond: {error}")))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let detail = response
            .json::<Problem>()
            .await
            .map_or_else(|_| status.to_string(), |problem| problem.detail);
        Err(match status {
            StatusCode::NOT_FOUND => CliError::not_found(detail),
            StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST => CliError::usage(detail),
            _ => CliError::failed(detail),
        })
    }
}

/// Tells whether an error of `connect` means that no daemon listens on the socket.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, InvalidInput, NotADirectory, NotFound};
    // `InvalidInput`: the path is too long for a socket.
    matches!(error.kind(), ConnectionRefused | InvalidInput | NotADirectory | NotFound)
}

/// Returns the non-null fields of `query` as a query string that begins with `?`; empty if there
/// are none.
fn query_string(query: &impl Serialize) -> Result<String, CliError> {
    let value = serde_json::to_value(query).map_err(|error| CliError::failed(error.to_string()))?;
    let mut url = reqwest::Url::parse("http://dutyd/")
        .map_err(|error| CliError::failed(error.to_string()))?;
    for (name, value) in
        value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
    {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        url.query_pairs_mut().append_pair(name, &text);
    }
    Ok(url.query().map(|query| format!("?{query}")).unwrap_or_default())
}

fn candidates(context: &Context) -> Vec<PathBuf> {
    let own = socket_path(&context.dirs.state, context.environment.get("RUNTIME_DIRECTORY"));
    if context.state_named {
        return vec![socket_path(&context.dirs.state, None), own];
    }
    vec![Path::new(SYSTEM_RUNTIME_DIRECTORY).join("control.sock"), own]
}
