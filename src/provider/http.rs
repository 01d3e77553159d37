//! One HTTP request and its response, complete or as a stream of events, with deadlines and size
//! limits.
//!
//! We follow no redirects, so that a key goes only to the configured host (SEC-6), and always
//! verify the certificates of remote hosts. Each size that a server controls has a named limit
//! (PROV-4).

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde_json::Value;
use tokio::time::Instant;

use super::address::with_address;
use super::failure;
use super::size::{ANSWER_BYTES, check_size, check_values, too_large};
use super::tls;
use crate::agent::{ErrorClass, ModelError};
use crate::clock::Clock;

/// Maximum bytes of a stream, as received. It exceeds [`ANSWER_BYTES`], because each short piece of
/// text arrives wrapped in JSON fields.
const STREAM_BYTES: usize = 64 * 1024 * 1024;

/// Maximum bytes of an error body. A longer body is ignored as a whole; the status still counts.
const ERROR_BYTES: usize = 256 * 1024;

/// Maximum bytes that an error quotes from a body that is not JSON. The message is truncated much
/// further, but only after secrets are removed.
const QUOTED_BYTES: usize = 64 * 1024;

/// Timeout for establishing a connection.
const CONNECT: Duration = Duration::from_secs(20);

/// Returns the settings that all clients share.
fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .user_agent(concat!("dutyd/", env!("CARGO_PKG_VERSION")))
}

/// Returns a client for `https://`, which trusts the CA certificates of this host.
///
/// *Errors*: the host has no CA certificates.
pub(super) fn tls_client() -> Result<reqwest::Client, ModelError> {
    builder().build().map_err(|error| {
        let why = causes(&error).join(": ");
        let message = format!("failed to read the CA certificates of this host: {why}; install them (ca-certificates), or name a file with them in SSL_CERT_FILE");
        ModelError::new(ErrorClass::Certificate, message)
    })
}

/// Returns a client for `http://`, which needs no certificates.
///
/// *Errors*: the client cannot be built.
pub(super) fn plain_client() -> Result<reqwest::Client, ModelError> {
    builder().tls_certs_only([]).build().map_err(|error| {
        let why = causes(&error).join(": ");
        ModelError::new(ErrorClass::Network, format!("failed to build the HTTP client: {why}"))
    })
}

/// How long to wait for the bytes of a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// From the request to the first byte of the body.
    pub(super) first_byte: Duration,
    /// From one byte to the next.
    pub(super) idle: Duration,
}

/// When a wait ends, and how long it is, for the error.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    wait: Duration,
}

impl Deadline {
    fn after(wait: Duration) -> Self {
        Self { at: Instant::now() + wait, wait }
    }

    async fn limit<T>(self, work: impl Future<Output = T>) -> Result<T, ModelError> {
        tokio::time::timeout_at(self.at, work).await.map_err(|_| silent(self.wait))
    }
}

/// A response with a success status.
pub(super) struct Answer {
    pub(super) is_stream: bool,
    response: reqwest::Response,
    /// When to give up waiting for the first byte of the body.
    first: Deadline,
    idle: Duration,
}

/// Sends a request and waits for the response headers.
///
/// *Errors*: no connection, no response in time, or a response with an error status.
pub(super) async fn send(
    request: reqwest::RequestBuilder,
    patience: Patience,
    clock: &dyn Clock,
) -> Result<Answer, ModelError> {
    let (first, idle) = (Deadline::after(patience.first_byte), patience.idle);
    let response = first.limit(request.send()).await?.map_err(|error| of_transport(&error))?;
    let status = response.status();
    let headers = response.headers().clone();
    let requested = response.url().clone();
    if !status.is_success() {
        let body = match read(response, idle, ERROR_BYTES).await {
            Ok(body) => String::from_utf8_lossy(&body).into_owned(),
            Err(error) => format!("the response cannot be read: {error}"),
        };
        let error = failure::of_response(status.as_u16(), &headers, &body, clock.now());
        return Err(with_address(error, &requested, status, &headers));
    }
    Ok(Answer { is_stream: is_event_stream(&headers), response, first, idle })
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("event-stream"))
}

impl Answer {
    /// Returns the chunks of the body as they arrive.
    pub(super) fn pieces(self) -> impl Stream<Item = Result<Bytes, ModelError>> + Unpin {
        with_deadline(self.response, self.first, self.idle)
    }
}

async fn read(
    response: reqwest::Response,
    idle: Duration,
    most: usize,
) -> Result<Vec<u8>, ModelError> {
    let mut pieces = with_deadline(response, Deadline::after(idle), idle);
    let mut body = Vec::new();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
        if body.len() > most {
            return Err(too_large("answer", most));
        }
    }
    Ok(body)
}

fn with_deadline(
    response: reqwest::Response,
    first: Deadline,
    idle: Duration,
) -> impl Stream<Item = Result<Bytes, ModelError>> + Unpin {
    let state = Some((response.bytes_stream(), first));
    Box::pin(futures_util::stream::unfold(state, move |state| async move {
        let (mut pieces, deadline) = state?;
        match deadline.limit(pieces.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some((pieces, Deadline::after(idle))))),
            Ok(Some(Err(error))) => Some((Err(of_transport(&error)), None)),
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// Passes chunks on. The chunk that brings the total above [`STREAM_BYTES`] becomes an error.
pub(super) fn capped<E: std::fmt::Display>(
    pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> impl Stream<Item = Result<Bytes, ModelError>> + Unpin {
    let mut all = 0_usize;
    pieces.map(move |piece| {
        let piece = piece
            .map_err(|error| ModelError::new(ErrorClass::StreamInterrupted, error.to_string()))?;
        all = all.saturating_add(piece.len());
        if all > STREAM_BYTES { Err(too_large("stream", STREAM_BYTES)) } else { Ok(piece) }
    })
}

/// Joins all chunks.
///
/// *Errors*: the stream's first error, or a total of more than [`ANSWER_BYTES`].
pub(super) async fn collect(
    mut pieces: impl Stream<Item = Result<Bytes, ModelError>> + Unpin,
) -> Result<Vec<u8>, ModelError> {
    let mut body = Vec::new();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
        check_size(body.len())?;
    }
    Ok(body)
}

/// Splits chunks into lines. A line ends with LF; in an event stream, also with CR or CR LF.
#[derive(Debug, Default)]
pub(super) struct Lines {
    of_events: bool,
    /// Whether the last line ended with a CR, so that a following LF is part of its line end.
    after_cr: bool,
    buffer: Vec<u8>,
    /// Offset up to which the buffer was searched for a line end.
    searched: usize,
    /// Offset in the buffer at which the next line starts.
    start: usize,
    /// Number of complete lines returned so far.
    seen: usize,
}

impl Lines {
    fn of_events() -> Self {
        Self { of_events: true, ..Self::default() }
    }

    /// Appends a chunk.
    ///
    /// *Errors*: the line that earlier chunks left unfinished exceeds [`ANSWER_BYTES`].
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), ModelError> {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() > ANSWER_BYTES.saturating_add(piece.len()) {
            return Err(too_large("line", ANSWER_BYTES));
        }
        Ok(())
    }

    /// Returns the next complete line, without its line end.
    pub(super) fn next_line(&mut self) -> Option<&[u8]> {
        if self.after_cr && self.start < self.buffer.len() {
            self.after_cr = false;
            if self.buffer.get(self.start) == Some(&b'\n') {
                self.start += 1;
                self.searched = self.start;
            }
        }
        let unseen = self.buffer.get(self.searched..).unwrap_or_default();
        let is_end = |byte: &u8| *byte == b'\n' || (self.of_events && *byte == b'\r');
        let Some(at) = unseen.iter().position(is_end) else {
            self.searched = self.buffer.len();
            return None;
        };
        let (start, end) = (self.start, self.searched + at);
        self.after_cr = self.buffer.get(end) == Some(&b'\r');
        self.start = end + 1;
        self.searched = self.start;
        self.seen += 1;
        self.buffer.get(start..end)
    }

    /// Empties the buffer and returns the bytes in it that were not returned yet.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let rest = self.buffer.get(self.start..).unwrap_or_default().to_vec();
        *self = Self { seen: self.seen, of_events: self.of_events, ..Self::default() };
        rest
    }

    /// Returns how many complete lines [`Self::next_line`] has returned.
    pub(super) fn seen(&self) -> usize {
        self.seen
    }
}

/// Passes the data of each server-sent event to `take`, in order, until `take` returns true or the
/// stream ends. Events without data are skipped.
///
/// `error:`, which some servers send, counts as `data:`. Every other field is ignored. A last event
/// without the blank line that ends it is accepted if its data is complete JSON or `[DONE]`.
///
/// *Errors*: the stream fails or is cut off, an event is too large or not UTF-8, or `take` fails.
/// *Source*: the HTML standard, "Server-sent events".
pub(super) async fn decode_events(
    mut pieces: impl Stream<Item = Result<Bytes, ModelError>> + Unpin,
    mut take: impl FnMut(&str) -> Result<bool, ModelError>,
) -> Result<(), ModelError> {
    let mut lines = Lines::of_events();
    let mut data = Vec::new();
    while let Some(piece) = pieces.next().await {
        lines.push(&piece?)?;
        while let Some(line) = lines.next_line() {
            if add_field(line, &mut data)? {
                continue;
            }
            let is_end = dispatch(&data, &mut take)?;
            data.clear();
            if is_end {
                return Ok(());
            }
        }
    }
    let rest = lines.rest();
    add_field(&rest, &mut data)?;
    let is_whole = data.trim_ascii() == b"[DONE]"
        || serde_json::from_slice::<serde::de::IgnoredAny>(&data).is_ok();
    if !is_whole && !data.is_empty() {
        return Err(ModelError::new(ErrorClass::StreamInterrupted, "the stream was cut off"));
    }
    dispatch(&data, &mut take).map(drop)
}

/// Adds the value of a `data:` or `error:` line to the data of its event, and ignores other lines.
/// Returns false at the blank line that ends the event.
fn add_field(line: &[u8], data: &mut Vec<u8>) -> Result<bool, ModelError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
    if line.is_empty() {
        return Ok(false);
    }
    let value = line.strip_prefix(b"data:").or_else(|| line.strip_prefix(b"error:"));
    if let Some(value) = value {
        if !data.is_empty() {
            data.push(b'\n');
        }
        data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        if data.len() > ANSWER_BYTES {
            return Err(too_large("event", ANSWER_BYTES));
        }
    }
    Ok(true)
}

fn dispatch(
    data: &[u8],
    take: &mut impl FnMut(&str) -> Result<bool, ModelError>,
) -> Result<bool, ModelError> {
    let text = std::str::from_utf8(data).map_err(|_| {
        ModelError::new(ErrorClass::MalformedResponse, "an event of the stream is not UTF-8")
    })?;
    if text.trim().is_empty() { Ok(false) } else { take(text) }
}

fn silent(idle: Duration) -> ModelError {
    ModelError::new(ErrorClass::Timeout, format!("received no data for {} s", idle.as_secs_f64()))
}

fn of_transport(error: &reqwest::Error) -> ModelError {
    // Retrying does not make a certificate valid (PROV-6).
    if let Some(refusal) = tls::refusal(error) {
        return ModelError::new(ErrorClass::Certificate, refusal);
    }
    let class = if error.is_timeout() {
        ErrorClass::Timeout
    } else if error.is_decode() || error.is_body() {
        ErrorClass::StreamInterrupted
    } else {
        ErrorClass::Network
    };
    let what = if error.is_connect() { "no connection" } else { "HTTP transport error" };
    let texts: Vec<String> = std::iter::once(what.to_owned()).chain(causes(error)).collect();
    ModelError::new(class, texts.join(": "))
}

/// Returns the causes of an error, without the URL, which may contain a key.
fn causes(error: &reqwest::Error) -> Vec<String> {
    let first = std::error::Error::source(error);
    std::iter::successors(first, |cause| cause.source()).map(ToString::to_string).collect()
}

/// Parses a JSON body.
///
/// *Errors*: the body is not valid JSON, or has too many values.
pub(super) fn json(body: &[u8]) -> Result<Value, ModelError> {
    check_values(body)?;
    serde_json::from_slice(body).map_err(|error| {
        let start = String::from_utf8_lossy(body.get(..QUOTED_BYTES).unwrap_or(body));
        ModelError::new(
            ErrorClass::MalformedResponse,
            format!("the response is not JSON ({error}): {start}"),
        )
    })
}
