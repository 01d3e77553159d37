//! A model that is called over HTTP, in any wire format. One call is one attempt; the session
//! retries. If a provider refuses an optional parameter, the error says so, and the requests that follow
//! leave it out.
//!
//! Every error that can contain text of a server passes through `told`, which removes secrets
//! before it truncates: a truncated secret would not be recognized. `provider_data` is the data of
//! a response that later requests must return unaltered. If it contains a secret, we reject the
//! whole response.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;

use super::clients::HttpClients;
use super::format::{
    Format, Framing, MetadataRequest, Outgoing, Probe, Progress, Reader, check_calls, digest_of,
    malformed,
};
use super::lessons::{Dropped, Lesson, Lessons};
use super::refusal::{self, Optional};
use super::size::{StreamSize, check_size, check_values};
use super::{anthropic, gemini, http, ollama, openai, openai_chat};
use crate::agent::{DeltaSink, ErrorClass, Model, ModelError, ModelReply, ModelRequest};
use crate::clock::Clock;
use crate::config::{Remote, WireFormat};
use crate::domain::FinishReason;
use crate::text::redact::Redactor;

/// Maximum length of a word for why a model stopped, in characters.
const STOP_WORD_CHARACTERS: usize = 60;

/// Maximum length of an error message in characters, counted after secrets are removed.
const MESSAGE_CHARACTERS: usize = 600;

/// A model that is called over HTTP.
pub struct RemoteModel {
    settings: Remote,
    format: Box<dyn Format>,
    clients: HttpClients,
    clock: Arc<dyn Clock>,
    redactor: Redactor,
    /// The parameters that requests leave out, by name.
    dropped: Mutex<BTreeMap<String, Dropped>>,
    lessons: Option<Arc<dyn Lessons>>,
}

impl RemoteModel {
    /// Returns the model. `redactor` knows the secrets that must not appear in errors or in
    /// `provider_data`. The first request takes its HTTP client from `clients`.
    #[must_use]
    pub fn new(
        settings: Remote,
        clients: HttpClients,
        clock: Arc<dyn Clock>,
        redactor: Redactor,
    ) -> Self {
        let format = of(settings.format);
        let dropped = Mutex::default();
        Self { settings, format, clients, clock, redactor, dropped, lessons: None }
    }

    /// Leaves out the parameters with these names from the first request on, and gives `lessons`
    /// those that the provider refuses later.
    #[must_use]
    pub fn with_lessons(
        mut self,
        known: impl IntoIterator<Item = String>,
        lessons: Arc<dyn Lessons>,
    ) -> Self {
        let known = known.into_iter().map(|name| (name, Dropped::Known)).collect();
        self.dropped = Mutex::new(known);
        self.lessons = Some(lessons);
        self
    }

    /// Removes secrets from the error message, then truncates it. If the provider asks for a long
    /// pause, adds the time of its end.
    fn told(&self, error: ModelError) -> ModelError {
        let clean = self.redactor.text(&error.message);
        let mut message: String = clean.chars().take(MESSAGE_CHARACTERS).collect();
        let pause = error.retry_after.filter(|_| error.has_long_pause());
        let until = pause
            .and_then(|pause| chrono::TimeDelta::from_std(pause).ok())
            .and_then(|pause| self.clock.now().checked_add_signed(pause));
        if let Some(until) = until {
            let until = until.format("%Y-%m-%d %H:%M:%S UTC");
            message.push_str(&format!("; the provider allows the next request at {until}"));
        }
        ModelError { message, ..error }
    }

    fn http(&self) -> Result<reqwest::Client, ModelError> {
        self.clients.get(&self.settings.base_url)
    }

    fn holds_secret(&self, text: &str) -> bool {
        self.redactor.text(text) != text
    }

    /// Records the origin of `data` (format, model and base URL), so that the data is never sent
    /// elsewhere.
    ///
    /// *Errors*: the data contains a secret; the provider would not accept a redacted copy.
    fn mark_origin(&self, data: &mut Value) -> Result<(), ModelError> {
        if self.holds_secret(&data.to_string()) {
            let message = "the answer was discarded: its provider_data, which must be sent back \
                           unaltered, contains a configured secret";
            return Err(ModelError::new(ErrorClass::BadRequest, message));
        }
        let base_url = &self.settings.base_url;
        let base_url =
            if self.holds_secret(base_url) { digest_of(base_url) } else { base_url.clone() };
        if let Some(data) = data.as_object_mut() {
            data.insert("format".to_owned(), self.format.name().into());
            data.insert("model".to_owned(), self.settings.model.clone().into());
            data.insert("base_url".to_owned(), base_url.into());
        }
        Ok(())
    }

    /// Returns the request without the parameters that the provider refuses.
    fn outgoing(&self, request: ModelRequest<'_>) -> Outgoing {
        let mut outgoing = self.format.outgoing(&self.settings, request);
        let strip = |body: &mut Value| self.format.strip_reasoning(body);
        let dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        for optional in self.format.optional() {
            if dropped.contains_key(optional.name) {
                optional.adapt(&mut outgoing.body, &strip);
            }
        }
        outgoing
    }

    /// Drops the parameter that an error refuses from the requests that follow. Returns the error,
    /// which names the parameter.
    fn learn_from(&self, error: ModelError, body: &Value) -> ModelError {
        let strip = |body: &mut Value| self.format.strip_reasoning(body);
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let sent: Vec<&Optional> = self
            .format
            .optional()
            .iter()
            .filter(|optional| !dropped.contains_key(optional.name) && optional.is_in(body, &strip))
            .collect();
        let model = &self.settings.model;
        let Some(refused) = refusal::refused(&error, &sent, model) else { return error };
        dropped.insert(refused.name.to_owned(), Dropped::Tried(error.message.clone()));
        ModelError { dropped: Some(refused.name), ..error }
    }

    /// Remembers the parameters without which the provider has answered.
    async fn keep_lessons(&self) {
        let learned: Vec<Lesson> = {
            let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
            let tried = dropped.iter_mut().filter_map(|(name, how)| {
                let Dropped::Tried(said) = std::mem::replace(how, Dropped::Known) else {
                    return None;
                };
                // A history that a provider refuses says nothing about the next one.
                let is_lasting = self.format.optional().iter().any(|o| o.is_lasting(name));
                if !is_lasting {
                    return None;
                }
                let said = self.redactor.text(&said).chars().take(MESSAGE_CHARACTERS).collect();
                Some(Lesson { parameter: name.clone(), said })
            });
            tried.collect()
        };
        if let Some(lessons) = self.lessons.as_ref().filter(|_| !learned.is_empty()) {
            lessons.keep(&self.settings, learned).await;
        }
    }

    async fn exchange(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        let outgoing = self.outgoing(request);
        let builder = self.http()?.post(format!("{}{}", self.settings.base_url, outgoing.path));
        let builder = self.with_headers(builder, &self.format.headers(&self.settings));
        let (first_byte, idle) = if self.settings.stream {
            (self.settings.first_byte(), self.settings.idle_timeout)
        } else {
            (self.settings.first_byte(), self.settings.timeout)
        };
        let patience = http::Patience { first_byte, idle };
        let sent = http::send(builder.json(&outgoing.body), patience, self.clock.as_ref()).await;
        let answer = sent.map_err(|error| self.learn_from(error, &outgoing.body))?;
        let is_stream = answer.is_stream;
        let pieces = answer.pieces().map(|piece| {
            if piece.is_ok() {
                deltas.begin_answer();
            }
            piece
        });
        let mut reply = read(is_stream, pieces, self.format.as_ref(), deltas)
            .await
            .map_err(|error| self.learn_from(error, &outgoing.body))?;
        self.keep_lessons().await;
        let word = reply.stop_reason.as_deref().unwrap_or_default().to_ascii_lowercase();
        if !word.is_empty() && !self.format.stop_words().contains(&word.as_str()) {
            let clean = self.redactor.text(&word);
            deltas.stopped_unknown(&clean.chars().take(STOP_WORD_CHARACTERS).collect::<String>());
            if reply.finish_reason == FinishReason::Stop && reply.text.trim().is_empty() {
                // An unknown reason may be a limit.
                reply.finish_reason = FinishReason::Length;
            }
        }
        if let Some(data) = &mut reply.provider_data {
            self.mark_origin(data)?;
        }
        Ok(reply)
    }

    /// Asks the provider for its metadata on the model. The request costs nothing.
    ///
    /// *Errors*: no connection, no response in time, a rejected key, or an unknown model. In the
    /// `openai_chat` format, an unknown model is not an error: `is_known` is then false.
    pub async fn probe(&self) -> Result<Probe, ModelError> {
        let limit = self.settings.idle_timeout;
        let answer = tokio::time::timeout(limit, self.ask()).await.unwrap_or_else(|_| {
            let message = format!("no response within {} s", limit.as_secs_f64());
            Err(ModelError::new(ErrorClass::Timeout, message))
        });
        answer.map_err(|error| self.told(error))
    }

    async fn ask(&self) -> Result<Probe, ModelError> {
        let (base, model) = (&self.settings.base_url, &self.settings.model);
        let MetadataRequest { path, body } = self.format.metadata_request(model);
        let url = format!("{base}{path}");
        let builder = match &body {
            None => self.http()?.get(url),
            Some(body) => self.http()?.post(url).json(body),
        };
        let builder = self.with_headers(builder, &self.format.headers(&self.settings));
        let idle = self.settings.idle_timeout;
        let patience = http::Patience { first_byte: idle, idle };
        let answer = http::send(builder, patience, self.clock.as_ref()).await?;
        let body = http::collect(http::capped(answer.pieces())).await?;
        self.format.read_metadata(model, &body)
    }

    fn with_headers(
        &self,
        mut builder: reqwest::RequestBuilder,
        of_format: &[(&'static str, String)],
    ) -> reqwest::RequestBuilder {
        for (name, value) in of_format {
            if !self.settings.headers.keys().any(|own| own.eq_ignore_ascii_case(name)) {
                builder = builder.header(*name, value);
            }
        }
        for (name, value) in &self.settings.headers {
            builder = builder.header(name, value);
        }
        builder
    }
}

pub(super) fn of(format: WireFormat) -> Box<dyn Format> {
    match format {
        WireFormat::Anthropic => Box::new(anthropic::Anthropic),
        WireFormat::Openai => Box::new(openai::Openai),
        WireFormat::OpenaiChat => Box::new(openai_chat::OpenaiChat),
        WireFormat::Gemini => Box::new(gemini::Gemini),
        WireFormat::Ollama => Box::new(ollama::Ollama),
    }
}

#[async_trait]
impl Model for RemoteModel {
    async fn call(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        let limit = self.settings.timeout;
        match tokio::time::timeout(limit, self.exchange(request, deltas)).await {
            Ok(result) => result.map_err(|error| self.told(error)),
            Err(_) => Err(ModelError::new(
                ErrorClass::Timeout,
                format!("the complete answer took more than {} s", limit.as_secs_f64()),
            )),
        }
    }
}

/// Reads a response: server-sent events, JSON lines, one JSON array, or one JSON object. The first
/// byte after whitespace and the format decide which, because servers often mislabel the content or
/// ignore the requested framing. `is_event_stream`, the server's own claim, only selects the error
/// class of an empty response.
///
/// *Errors*: the response is cut off, stalls, is too large, is malformed, or is an error.
pub(super) async fn read<E: std::fmt::Display>(
    is_event_stream: bool,
    pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
    format: &dyn Format,
    deltas: &dyn DeltaSink,
) -> Result<ModelReply, ModelError> {
    let mut reader = format.reader();
    let mut pieces = http::capped(pieces);
    let mut head = Bytes::new();
    let first = loop {
        if let Some(first) = head.iter().find(|byte| !is_blank(**byte)) {
            break Some(*first);
        }
        // Drop the leading whitespace.
        match pieces.next().await {
            Some(piece) => head = piece?,
            None => break None,
        }
    };
    let rest = futures_util::stream::iter([Ok(head)]).chain(pieces);
    match (first, format.framing()) {
        (Some(b'['), _) => read_list(&http::collect(rest).await?, reader.as_mut(), deltas)?,
        (Some(b'{'), Framing::Lines) => read_lines(rest, reader.as_mut(), deltas).await?,
        (Some(b'{'), Framing::Events) => {
            reader.take_whole(http::json(without_mark(&http::collect(rest).await?))?)?;
            let reply = reader.finish()?;
            if !reply.text.is_empty() {
                deltas.delta(&reply.text);
            }
            check_calls(reply.calls.len())?;
            return Ok(reply);
        }
        (Some(b'd' | b'e' | b':' | b'i' | b'r'), _) => {
            read_events(rest, reader.as_mut(), deltas).await?
        }
        (None, _) => {
            let class = if is_event_stream {
                ErrorClass::StreamInterrupted
            } else {
                ErrorClass::MalformedResponse
            };
            return Err(ModelError::new(class, "the response is empty"));
        }
        // This is rarely JSON. If it is not, `json` fails, and its error quotes the beginning of
        // the body.
        (Some(_), _) => {
            http::json(&http::collect(rest).await?)?;
            return Err(malformed("the response is not a JSON object"));
        }
    }
    if reader.progress() == Progress::Open {
        return Err(ModelError::new(
            ErrorClass::StreamInterrupted,
            "the stream ended before the answer was complete",
        ));
    }
    let reply = reader.finish()?;
    check_calls(reply.calls.len())?;
    Ok(reply)
}

/// Tells whether a byte is ASCII whitespace or part of a byte order mark.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, 0xEF | 0xBB | 0xBF)
}

fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body)
}

/// Reads a JSON array of chunks. Gemini streams such an array unless we request server-sent events.
fn read_list(
    body: &[u8],
    reader: &mut dyn Reader,
    deltas: &dyn DeltaSink,
) -> Result<(), ModelError> {
    check_values(body)?;
    let chunks: Vec<&serde_json::value::RawValue> = serde_json::from_slice(without_mark(body))
        .map_err(|error| {
            if error.is_eof() {
                ModelError::new(ErrorClass::StreamInterrupted, "the response was cut off")
            } else {
                malformed(format!("the response is not JSON: {error}"))
            }
        })?;
    let mut text = String::new();
    for chunk in chunks {
        reader.take(chunk.get(), &mut text)?;
    }
    if !text.is_empty() {
        deltas.delta(&text);
    }
    Ok(())
}

async fn read_lines(
    mut pieces: impl Stream<Item = Result<Bytes, ModelError>> + Unpin,
    reader: &mut dyn Reader,
    deltas: &dyn DeltaSink,
) -> Result<(), ModelError> {
    let (mut lines, mut size) = (http::Lines::default(), StreamSize::default());
    let mut ended = false;
    while !ended && reader.progress() < Progress::Done {
        let line = match lines.next_line() {
            Some(line) => line.to_vec(),
            None => match pieces.next().await {
                Some(piece) => {
                    lines.push(&piece?)?;
                    continue;
                }
                None => {
                    ended = true;
                    lines.rest()
                }
            },
        };
        let line = std::str::from_utf8(without_mark(&line))
            .map_err(|_| malformed("a line of the stream is not UTF-8"))?;
        if line.trim().is_empty() {
            continue;
        }
        size.count(line)?;
        let mut text = String::new();
        if let Err(error) = reader.take(line, &mut text) {
            // A server that does not stream may spread one object over several lines.
            let is_cut =
                serde_json::from_str::<serde::de::IgnoredAny>(line).is_err_and(|e| e.is_eof());
            match (is_cut, ended) {
                (true, true) => {
                    return Err(ModelError::new(
                        ErrorClass::StreamInterrupted,
                        "the stream was cut off",
                    ));
                }
                (true, false) if lines.seen() == 1 => {
                    let rest = http::collect(&mut pieces).await?;
                    let body = [line.as_bytes(), b"\n", &lines.rest(), &rest].concat();
                    check_size(body.len())?;
                    return reader.take_whole(http::json(&body)?);
                }
                _ => return Err(error),
            }
        }
        size.check(|| reader.size())?;
        if !text.is_empty() {
            deltas.delta(&text);
        }
    }
    Ok(())
}

async fn read_events(
    pieces: impl Stream<Item = Result<Bytes, ModelError>> + Unpin,
    reader: &mut dyn Reader,
    deltas: &dyn DeltaSink,
) -> Result<(), ModelError> {
    let (mut text, mut size) = (String::new(), StreamSize::default());
    let read = http::decode_events(pieces, |data| {
        size.count(data)?;
        reader.take(data, &mut text)?;
        size.check(|| reader.size())?;
        if !text.is_empty() {
            deltas.delta(&text);
            text.clear();
        }
        Ok(reader.progress() == Progress::Done)
    })
    .await;
    match read {
        // The answer is complete, so ignore the error: some servers then cut the connection, or
        // never close it.
        Err(error)
            if matches!(error.class, ErrorClass::StreamInterrupted | ErrorClass::Timeout)
                && reader.progress() >= Progress::Whole =>
        {
            Ok(())
        }
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}
