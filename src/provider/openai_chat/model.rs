//! One attempt: the request out, the answer in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;

use super::super::http;
use super::answer::Answer;
use super::request;
use crate::agent::{DeltaSink, ErrorClass, Model, ModelError, ModelReply, ModelRequest};
use crate::clock::Clock;
use crate::config::ChatModel;

/// A model behind OpenAI Chat Completions.
pub struct OpenaiChat {
    settings: ChatModel,
    http: reqwest::Client,
    clock: Arc<dyn Clock>,
    /// Whether the server takes the wish for usage in streams; a few refuse it.
    asks_usage: AtomicBool,
}

impl OpenaiChat {
    /// Returns the model.
    ///
    /// *Errors*: the HTTP client cannot be made.
    pub fn new(settings: ChatModel, clock: Arc<dyn Clock>) -> Result<Self, ModelError> {
        Ok(Self { settings, http: http::client()?, clock, asks_usage: AtomicBool::new(true) })
    }

    async fn attempt(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        let asks_usage = self.asks_usage.load(Ordering::Relaxed);
        match self.exchange(request, asks_usage, deltas).await {
            Err(error) if asks_usage && self.settings.stream && refuses_usage(&error) => {
                self.asks_usage.store(false, Ordering::Relaxed);
                self.exchange(request, false, deltas).await
            }
            result => result,
        }
    }

    async fn exchange(
        &self,
        request: ModelRequest<'_>,
        asks_usage: bool,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        let mut builder = self.http.post(format!("{}/chat/completions", self.settings.base_url));
        if let Some(key) = &self.settings.api_key {
            builder = builder.bearer_auth(key);
        }
        for (name, value) in &self.settings.headers {
            builder = builder.header(name, value);
        }
        let builder = builder.json(&request::body(&self.settings, request, asks_usage));
        // Without a stream the first byte comes with the last.
        let idle =
            if self.settings.stream { self.settings.idle_timeout } else { self.settings.timeout };
        let answer = http::send(builder, idle, self.clock.as_ref()).await?;
        if answer.is_stream {
            return read_stream(answer.pieces(), deltas).await;
        }
        // Some servers answer a request for a stream with plain JSON, and some send a stream under another type.
        let body = answer.whole().await?;
        let start = body
            .iter()
            .position(|byte| !byte.is_ascii_whitespace())
            .and_then(|at| body.get(at..))
            .unwrap_or_default();
        if start.starts_with(b"data:") || start.starts_with(b"event:") || start.starts_with(b":") {
            let pieces = futures_util::stream::iter([Ok::<_, ModelError>(Bytes::from(body))]);
            return read_stream(pieces, deltas).await;
        }
        read_whole(&body, deltas)
    }
}

fn refuses_usage(error: &ModelError) -> bool {
    error.class == ErrorClass::BadRequest
        && (error.message.contains("stream_options") || error.message.contains("include_usage"))
}

pub(super) async fn read_stream<E: std::fmt::Display>(
    pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
    deltas: &dyn DeltaSink,
) -> Result<ModelReply, ModelError> {
    let mut answer = Answer::default();
    let read = http::decode_events(pieces, |data| {
        let text = answer.take_event(data)?;
        if !text.is_empty() {
            deltas.delta(&text);
        }
        Ok(answer.done)
    })
    .await;
    match read {
        // A stream is whole when a finish reason was seen; some servers then close without the rest, or do not close at all.
        Err(error)
            if matches!(error.class, ErrorClass::StreamInterrupted | ErrorClass::Timeout)
                && answer.has_finished() => {}
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    answer.finish()
}

fn read_whole(body: &[u8], deltas: &dyn DeltaSink) -> Result<ModelReply, ModelError> {
    let mut answer = Answer::default();
    answer.take_whole(&http::json(body)?)?;
    let reply = answer.finish()?;
    if !reply.text.is_empty() {
        deltas.delta(&reply.text);
    }
    Ok(reply)
}

#[async_trait]
impl Model for OpenaiChat {
    async fn call(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        let limit = self.settings.timeout;
        match tokio::time::timeout(limit, self.attempt(request, deltas)).await {
            Ok(result) => result,
            Err(_) => Err(ModelError::new(
                ErrorClass::Timeout,
                format!("the whole answer took more than {} s", limit.as_secs_f64()),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
