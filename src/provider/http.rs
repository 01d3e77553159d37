//! One request and its answer, whole or as a stream of events, with deadlines and caps.
//!
//! No redirect is followed, so that no key goes where it was not meant to (SEC-6); certificates of remote hosts are always verified. Every
//! size that a server decides has a limit with a name (PROV-4).

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde_json::Value;

use super::failure;
use super::size::{ANSWER_BYTES, check_size, check_values, too_large};
use crate::agent::{ErrorClass, ModelError};
use crate::clock::Clock;

/// Bytes of a stream, most of which are the names of fields around short pieces of text.
const STREAM_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of an error's body that are read.
const ERROR_BYTES: usize = 256 * 1024;

/// Bytes of a body that is not JSON which its error quotes. The message is cut much shorter, but only after secrets were removed from it.
const QUOTED_BYTES: usize = 64 * 1024;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(20);

/// Returns the client that all formats share.
///
/// *Errors*: the system's certificates or proxies cannot be read.
pub(super) fn client() -> Result<reqwest::Client, ModelError> {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .user_agent(concat!("dutyd/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| {
            ModelError::new(
                ErrorClass::Network,
                format!("the HTTP client cannot be made: {}", sources(&error)),
            )
        })
}

/// An answer that is none of an error.
pub(super) struct Answer {
    pub(super) is_stream: bool,
    response: reqwest::Response,
    idle: Duration,
}

/// Sends a request and waits for the head of its answer.
///
/// *Errors*: no connection, no answer in time, or an answer that is an error.
pub(super) async fn send(
    request: reqwest::RequestBuilder,
    idle: Duration,
    clock: &dyn Clock,
) -> Result<Answer, ModelError> {
    let response = tokio::time::timeout(idle, request.send())
        .await
        .map_err(|_| silent(idle))?
        .map_err(|error| of_transport(&error))?;
    let status = response.status();
    let headers = response.headers().clone();
    if !status.is_success() {
        let body = read(response, idle, ERROR_BYTES).await.unwrap_or_default();
        return Err(failure::of_response(
            status.as_u16(),
            &headers,
            &String::from_utf8_lossy(&body),
            clock.now(),
        ));
    }
    Ok(Answer { is_stream: is_event_stream(&headers), response, idle })
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("event-stream"))
}

impl Answer {
    /// Returns the pieces of the answer as they come.
    pub(super) fn pieces(self) -> impl Stream<Item = Result<Bytes, ModelError>> + Unpin {
        with_deadline(self.response, self.idle)
    }
}

async fn read(
    response: reqwest::Response,
    idle: Duration,
    most: usize,
) -> Result<Vec<u8>, ModelError> {
    let mut pieces = with_deadline(response, idle);
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
    idle: Duration,
) -> impl Stream<Item = Result<Bytes, ModelError>> + Unpin {
    let pieces = response.bytes_stream();
    Box::pin(futures_util::stream::unfold(Some(pieces), move |pieces| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(idle, pieces.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(pieces))),
            Ok(Some(Err(error))) => Some((Err(of_transport(&error)), None)),
            Err(_) => Some((Err(silent(idle)), None)),
        }
    }))
}

/// Gives the pieces on, up to the size of a stream.
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

/// Returns all pieces in one.
///
/// *Errors*: the first one, or that there are more than [`ANSWER_BYTES`].
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

/// Cuts pieces into lines that end with LF or CR LF; in an event stream, also with CR alone.
#[derive(Debug, Default)]
pub(super) struct Lines {
    of_events: bool,
    /// Whether the last line ended with a CR, so that an LF after it belongs to it.
    after_cr: bool,
    buffer: Vec<u8>,
    /// Where the rest begins that was not looked at yet.
    searched: usize,
    start: usize,
    seen: usize,
}

impl Lines {
    fn of_events() -> Self {
        Self { of_events: true, ..Self::default() }
    }

    /// Takes a piece.
    ///
    /// *Errors*: the line is too long.
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

    /// Returns the next whole line, without its end.
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

    /// Returns what stands after the last line end, and forgets it.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let rest = self.buffer.get(self.start..).unwrap_or_default().to_vec();
        *self = Self { seen: self.seen, of_events: self.of_events, ..Self::default() };
        rest
    }

    /// Returns how many whole lines there were.
    pub(super) fn seen(&self) -> usize {
        self.seen
    }
}

/// Gives `take` the data of each server-sent event, in order, until it returns true or the stream ends.
///
/// Fields that are not known are ignored, as the standard wants it; `error:`, which some servers write in their need, counts as data. What
/// stands at the end without the blank line after it is an event too: whether it is whole, its JSON says.
///
/// *Errors*: the stream breaks off or is too large, or `take` says so. *Source*: the HTML standard, "Server-sent events".
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
        return Err(ModelError::new(ErrorClass::StreamInterrupted, "the stream broke off"));
    }
    dispatch(&data, &mut take).map(drop)
}

/// Adds what a line says to the data of its event; returns whether the event goes on.
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
    ModelError::new(ErrorClass::Timeout, format!("nothing came for {} s", idle.as_secs_f64()))
}

fn of_transport(error: &reqwest::Error) -> ModelError {
    let class = if error.is_timeout() {
        ErrorClass::Timeout
    } else if error.is_decode() || error.is_body() {
        ErrorClass::StreamInterrupted
    } else {
        ErrorClass::Network
    };
    let text = sources(error);
    // A certificate does not become valid by trying again (PROV-6).
    let class = if text.contains("certificate") { ErrorClass::BadRequest } else { class };
    ModelError::new(class, text)
}

/// Returns an error with its causes, without the address, which may hold a key.
fn sources(error: &reqwest::Error) -> String {
    let mut text = if error.is_connect() {
        "no connection".to_owned()
    } else {
        "the transport failed".to_owned()
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Parses a JSON body.
///
/// *Errors*: it is not JSON, or has too many values.
pub(super) fn json(body: &[u8]) -> Result<Value, ModelError> {
    check_values(body)?;
    serde_json::from_slice(body).map_err(|error| {
        let start = String::from_utf8_lossy(body.get(..QUOTED_BYTES).unwrap_or(body));
        ModelError::new(
            ErrorClass::MalformedResponse,
            format!("the answer is not JSON ({error}): {start}"),
        )
    })
}
