//! The client of the control socket.

use std::io;
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
use crate::daemon::StatusReport;
use crate::server::{KEY_HEADER, Problem, SocketAddress, key_path, socket_path};
use crate::store::LockHolder;

/// Default timeout of a request, including its whole response.
const ANSWER: Duration = Duration::from_secs(30);

/// Timeout of the status, which most verbs ask for first. A frozen daemon accepts connections and
/// never answers.
const STATUS: Duration = Duration::from_secs(10);

/// A connection to a running daemon.
pub(crate) struct Client {
    http: reqwest::Client,
    /// Keeps the address of the socket valid.
    _address: SocketAddress,
}

impl Client {
    /// Connects to the daemon; `None` if none is running.
    ///
    /// *Errors*: we may not connect to a socket that exists, or the key beside it cannot be read or
    /// is invalid.
    pub(crate) fn find(context: &Context) -> Result<Option<Self>, CliError> {
        let mut refused = None;
        for path in candidates(context)? {
            let address = SocketAddress::of(&path).and_then(|address| {
                std::os::unix::net::UnixStream::connect(address.path()).map(|_| address)
            });
            match address {
                Ok(address) => return Self::at(&path, address).map(Some),
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
    /// *Errors*: `NoDaemon` if none is running, and those of [`Self::find`] and [`check_unused`].
    pub(crate) fn require(context: &Context) -> Result<Self, CliError> {
        if let Some(client) = Self::find(context)? {
            return Ok(client);
        }
        check_unused(context)?;
        let mut looked: Vec<String> =
            candidates(context)?.iter().map(|path| path.display().to_string()).collect();
        looked.dedup();
        Err(CliError::new(ErrorKind::NoDaemon, "no daemon is running")
            .hint(format!("looked for {}; `dutyd serve` starts a daemon", looked.join(", "))))
    }

    fn at(path: &Path, address: SocketAddress) -> Result<Self, CliError> {
        let key_path = key_path(path);
        let key = std::fs::read_to_string(&key_path)
            .map_err(|error| super::access::denied(&key_path, &error))?;
        let mut key = HeaderValue::from_str(key.trim())
            .map_err(|_| CliError::failed(format!("invalid key in {}", key_path.display())))?;
        key.set_sensitive(true);
        let http = reqwest::Client::builder()
            .default_headers(HeaderMap::from_iter([(HeaderName::from_static(KEY_HEADER), key)]))
            .unix_socket(address.path())
            .no_proxy()
            // The socket needs no TLS, and a host without CA certificates could build none.
            .tls_certs_only([])
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| CliError::failed("cannot create the HTTP client").because(&error))?;
        Ok(Self { http, _address: address })
    }

    pub(crate) async fn status(&self) -> Result<StatusReport, CliError> {
        self.get_within("/status", &(), Some(STATUS)).await
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<T, CliError> {
        self.get_within(path, query, Some(ANSWER)).await
    }

    /// Gets with a timeout other than the default; `None` disables the timeout.
    pub(crate) async fn get_within<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
        limit: Option<Duration>,
    ) -> Result<T, CliError> {
        let response = self.send(Method::GET, path, query, None, limit).await?;
        response
            .json()
            .await
            .map_err(|error| CliError::failed("cannot read the daemon's response").because(&error))
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
        let body = serde_json::to_value(body).map_err(CliError::failed_by)?;
        let response = self.send(Method::POST, path, &[(); 0], Some(body), limit).await?;
        response
            .json()
            .await
            .map_err(|error| CliError::failed("cannot read the daemon's response").because(&error))
    }

    /// Returns a response body as bytes, without a timeout.
    pub(crate) async fn bytes(&self, path: &str) -> Result<Vec<u8>, CliError> {
        let response = self.send(Method::GET, path, &[(); 0], None, None).await?;
        let bytes = response.bytes().await;
        bytes
            .map(|bytes| bytes.to_vec())
            .map_err(|error| CliError::failed("lost the connection to the daemon").because(&error))
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
                CliError::failed("lost the connection to the daemon").because(&error)
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
        let response = request.send().await.map_err(|error| match timeout {
            Some(limit) if error.is_timeout() => {
                let message = format!("the daemon did not answer within {} s", limit.as_secs());
                CliError::failed(message)
                    .hint("it may be frozen or overloaded: look at it in `ps` and at its log")
            }
            _ => CliError::failed("the daemon does not respond").because(&error),
        })?;
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

/// Checks that no process holds the lock of the state directory. Call this only if
/// [`Client::find`] found no daemon.
///
/// *Errors*: a process holds it, so a run in this process would be outside its overlap and limits.
pub(crate) fn check_unused(context: &Context) -> Result<(), CliError> {
    let state = context.dirs.state.display();
    match lock_holder(context)? {
        LockHolder::Nobody => Ok(()),
        LockHolder::Process => {
            Err(CliError::failed(format!("another process uses {state}, but it does not answer"))
                .hint("it starts or stops, or is a verb such as `reindex`: try again"))
        }
        LockHolder::Daemon(address) => {
            let (pid, socket) = (address.pid, address.socket.display());
            Err(CliError::failed(format!(
                "the daemon {pid} uses {state}, but its control socket {socket} cannot be reached"
            ))
            .hint("run this command in the mount namespace of the daemon"))
        }
    }
}

/// Returns the holder of the lock of the state directory; `Nobody` if the caller may not read the
/// lock file, as a member of the group of the socket.
fn lock_holder(context: &Context) -> Result<LockHolder, CliError> {
    match context.state().lock_holder() {
        Ok(holder) => Ok(holder),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied || is_absent(&error) => {
            Ok(LockHolder::Nobody)
        }
        Err(error) => Err(super::access::denied(&context.dirs.state.join("lock"), &error)),
    }
}

/// Tells whether an error of `connect` means that no daemon listens on the socket.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
    matches!(error.kind(), ConnectionRefused | NotADirectory | NotFound)
}

/// Returns the non-null fields of `query` as a query string that begins with `?`; empty if there
/// are none.
fn query_string(query: &impl Serialize) -> Result<String, CliError> {
    let value = serde_json::to_value(query).map_err(CliError::failed_by)?;
    let mut url = reqwest::Url::parse("http://dutyd/").map_err(CliError::failed_by)?;
    for (name, value) in
        value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
    {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        url.query_pairs_mut().append_pair(name, &text);
    }
    Ok(url.query().map(|query| format!("?{query}")).unwrap_or_default())
}

/// Returns the paths at which a daemon may listen, in the order of preference.
fn candidates(context: &Context) -> Result<Vec<PathBuf>, CliError> {
    let own = socket_path(&context.dirs.state, context.environment.get("RUNTIME_DIRECTORY"));
    let announced = match lock_holder(context)? {
        LockHolder::Daemon(address) => Some(address.socket),
        LockHolder::Nobody | LockHolder::Process => None,
    };
    let usual = if context.state_named {
        socket_path(&context.dirs.state, None)
    } else {
        Path::new(SYSTEM_RUNTIME_DIRECTORY).join("control.sock")
    };
    // The lock belongs to the state directory that the user named, or else to a daemon of the user.
    Ok(if context.state_named {
        announced.into_iter().chain([usual, own]).collect()
    } else {
        [usual].into_iter().chain(announced).chain([own]).collect()
    })
}
