//! Wire formats: how to write a request and how to read a response.
//!
//! A format knows the fields, their meaning, and how a stream is split into messages. Sending,
//! deadlines and size limits are the same for all formats and live in `remote.rs`, `http.rs` and
//! `size.rs`. `provider_data` is the data of a response that later requests must return unaltered.

use std::borrow::Cow;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::refusal::Optional;
use crate::agent::{ErrorClass, ModelError, ModelReply, ModelRequest, RequestedCall};
use crate::catalogue::{PriceRow, Traits};
use crate::config::{ProviderForm, Remote};
use crate::domain::{Arguments, AssistantTurn, CallId, Image, ToolCall, ToolResult};

/// Maximum number of calls in one response, and of its parts of any kind (blocks, items); no model
/// makes more on purpose.
const MAX_CALLS: usize = 1000;

/// Output tokens that every supported model can write. If no setting or catalogue limit
/// applies, a request for a budget carries only a lower limit, because the model may reject a higher
/// one.
const COMMON_OUTPUT_TOKENS: u32 = 8192;

/// Factor by which a request that follows a cut answer raises the limit.
const RAISE_FACTOR: u32 = 4;

/// Returns the most tokens of a reply, reasoning included; `None` leaves the limit to the provider.
///
/// After an answer that was cut off, the limit is higher, as far as the model and the budget of the
/// request allow.
pub(super) fn output_limit(settings: &Remote, request: &ModelRequest<'_>) -> Option<u32> {
    let known = settings.traits.output_limit;
    let own = match settings.sent_output_tokens() {
        Some(own) if request.follows_cut => {
            let most = known.map_or(u32::MAX, |known| known.max(own));
            Some(own.saturating_mul(RAISE_FACTOR).min(most).min(room(settings, request).max(own)))
        }
        // The limit of the server cut the answer off.
        None if request.follows_cut => {
            Some(settings.raised_output_tokens().min(room(settings, request)))
        }
        // Some servers count the limit towards the window.
        own if settings.max_output_tokens.is_none() => {
            own.map(|own| own.min(room(settings, request)))
        }
        own => own,
    };
    match (own, request.max_output_tokens) {
        (Some(own), Some(most)) => Some(own.min(most)),
        // The model may reject a higher limit.
        (None, Some(most)) => Some(most.min(COMMON_OUTPUT_TOKENS)),
        (own, None) => own,
    }
}

/// Returns the tokens that the context window still has for an answer; at least as many as every model
/// can write, because the input is an estimate.
fn room(settings: &Remote, request: &ModelRequest<'_>) -> u32 {
    let room = settings.context_window().saturating_sub(request.input_tokens);
    u32::try_from(room).unwrap_or(u32::MAX).max(COMMON_OUTPUT_TOKENS)
}

/// The name of the schema of an answer, for providers that require one.
pub(super) const SCHEMA_NAME: &str = "answer";

/// Returns the schema of the answer in the form of the provider, if the model takes one in this
/// request.
pub(super) fn native_schema<'a>(
    settings: &Remote,
    request: &ModelRequest<'a>,
) -> Option<&'a ProviderForm> {
    let has_tools = !request.tools.is_empty();
    request.output_schema?.provider_form().filter(|_| settings.takes_schema(has_tools))
}

/// Returns the images of a result that are sent to this model: none if the model does not support
/// images.
pub(super) fn images<'a>(settings: &Remote, result: &'a ToolResult) -> &'a [Image] {
    if settings.sees_images() { &result.images } else { &[] }
}

/// Returns the text of a result. If the images of the result are withheld, the text ends with a
/// note that tells the model.
pub(super) fn content<'a>(settings: &Remote, result: &'a ToolResult) -> Cow<'a, str> {
    if settings.sees_images() || result.images.is_empty() {
        return Cow::Borrowed(&result.content);
    }
    Cow::Owned(format!(
        "{}\n[Images omitted: you cannot view images. Continue without them.]",
        result.content
    ))
}

/// Returns an image as a `data:` URL.
pub(super) fn data_url(image: &Image) -> String {
    format!("data:{};base64,{}", image.media_type, image.base64)
}

/// A request that is ready to be sent.
pub(super) struct Outgoing {
    /// Appended to the base URL.
    pub(super) path: String,
    pub(super) body: Value,
}

/// A provider's metadata on a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Whether the provider offers the model; `None` if unknown.
    pub is_known: Option<bool>,
    /// Whether the model supports tool calls; `None` if unknown.
    pub tools: Option<bool>,
    /// The traits that the provider states.
    pub traits: Traits,
    /// The price that the provider states.
    pub price: Option<PriceRow>,
    /// The day from which the provider does not serve the model.
    pub shutdown: Option<NaiveDate>,
}

/// A request for the metadata on a model; it costs nothing.
pub(super) struct MetadataRequest {
    /// Appended to the base URL.
    pub(super) path: String,
    /// The body of a POST; `None` makes it a GET.
    pub(super) body: Option<Value>,
}

/// How a streamed response is split into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON object per line.
    Lines,
}

pub(super) trait Format: Send + Sync {
    /// Returns the name of the format. It is recorded in `provider_data`, which is sent back only
    /// in the same format.
    fn name(&self) -> &'static str;

    /// Returns the headers, including the API key.
    fn headers(&self, settings: &Remote) -> Vec<(&'static str, String)> {
        settings.api_key.iter().map(|key| ("authorization", format!("Bearer {key}"))).collect()
    }

    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing;

    fn reader(&self) -> Box<dyn Reader>;

    fn framing(&self) -> Framing {
        Framing::Events
    }

    /// Returns the request for the provider's metadata on a model.
    fn metadata_request(&self, model: &str) -> MetadataRequest {
        MetadataRequest { path: format!("/models/{model}"), body: None }
    }

    /// Reads the answer to that request.
    ///
    /// *Errors*: the answer is not JSON.
    fn read_metadata(&self, model: &str, body: &[u8]) -> Result<Probe, ModelError>;

    /// Returns the words for why a model stopped that this format knows, in lower case.
    fn stop_words(&self) -> &'static [&'static str];

    /// Returns the parameters that a request of this format can do without.
    fn optional(&self) -> &'static [Optional];

    /// Removes the reasoning from the model's turns in a body. Returns whether there was any.
    fn strip_reasoning(&self, _body: &mut Value) -> bool {
        false
    }
}

pub(super) trait Reader: Send {
    /// Takes the data of one event or line, and appends new answer text to `text`.
    ///
    /// *Errors*: the data is malformed, or reports an error.
    fn take(&mut self, data: &str, text: &mut String) -> Result<(), ModelError>;

    /// Takes a response that arrived as one JSON object.
    ///
    /// *Errors*: the body is malformed, or reports an error.
    fn take_whole(&mut self, body: Value) -> Result<(), ModelError>;

    /// Returns roughly how many bytes of memory the answer takes so far.
    fn size(&self) -> usize;

    fn progress(&self) -> Progress;

    /// Returns the answer. Call this only after the answer is complete.
    ///
    /// *Errors*: the response does not contain an answer.
    fn finish(self: Box<Self>) -> Result<ModelReply, ModelError>;
}

/// How much of an answer has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// The answer is incomplete.
    Open,
    /// The answer is complete; usage data may still follow.
    Whole,
    /// The answer is complete, and no data follows.
    Done,
}

/// Parses the data of an event.
///
/// *Errors*: the data is not valid JSON.
pub(super) fn parse(data: &str) -> Result<Value, ModelError> {
    serde_json::from_str(data)
        .map_err(|error| malformed(format!("an event of the stream is not JSON: {error}")))
}

/// Returns a `MalformedResponse` error.
pub(super) fn malformed(message: impl Into<String>) -> ModelError {
    ModelError::new(ErrorClass::MalformedResponse, message)
}

/// Checks the number of calls, or of parts of any kind, in a response.
///
/// *Errors*: `count` exceeds [`MAX_CALLS`].
pub(super) fn check_calls(count: usize) -> Result<(), ModelError> {
    if count > MAX_CALLS {
        return Err(malformed(format!("the answer has more than {MAX_CALLS} calls")));
    }
    Ok(())
}

/// Tells whether a candidate (one of several alternative answers) is the first one: its `index` is
/// 0, null or absent.
///
/// The text, calls and finish reason of other candidates are ignored.
pub(super) fn is_first(candidate: &Value) -> bool {
    candidate.get("index").is_none_or(|index| index.is_null() || index.as_u64() == Some(0))
}

/// Tells whether a call has a name. A call without one is ignored.
pub(super) fn is_named(name: &str) -> bool {
    !name.trim().is_empty()
}

/// Removes the calls without a name. Returns true if the answer then counts as one invalid call: a
/// removed call had arguments, and no call with a name is left. Text beside such a call only
/// announces it.
pub(super) fn drop_nameless(calls: &mut Vec<RequestedCall>) -> bool {
    let is_empty =
        |arguments: &str| matches!(arguments.trim(), "" | "{}" | "null" | r#"{"input":""}"#);
    let had_arguments =
        calls.iter().any(|call| !is_named(&call.name) && !is_empty(&call.arguments));
    calls.retain(|call| is_named(&call.name));
    had_arguments && calls.is_empty()
}

/// Returns the string at `field`, or the empty string.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number at `pointer`, or 0.
pub(super) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// Returns the items of the list at `field`, or an empty slice.
pub(super) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Adds what a user says. Many chat templates reject two user messages in a row, so it continues the last
/// message if that is the user's.
pub(super) fn push_user(messages: &mut Vec<Value>, said: &str) {
    let last = messages.last_mut().filter(|last| text(last, "role") == "user");
    match last.and_then(|last| last.get_mut("content")) {
        Some(Value::String(before)) => {
            before.push_str("\n\n");
            before.push_str(said);
        }
        _ => messages.push(json!({"role": "user", "content": said})),
    }
}

/// Sets a field of `object`; does nothing if `object` is not a JSON object.
pub(super) fn set(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Some(object) = object.as_object_mut() {
        object.insert(field.to_owned(), value.into());
    }
}

/// Returns the arguments of a call for the history. Arguments that did not parse become an empty
/// object, because a server that parses the history would reject them.
pub(super) fn arguments(call: &ToolCall) -> Map<String, Value> {
    match &call.arguments {
        Arguments::Parsed(arguments) => arguments.clone(),
        Arguments::Invalid { .. } => Map::new(),
    }
}

/// Returns the `provider_data` of `turn` if it came in this format from the model and the base URL
/// in `settings`. Signatures and encrypted reasoning are meaningless to any other model.
pub(super) fn kept<'a>(
    turn: &'a AssistantTurn,
    format: &str,
    settings: &Remote,
) -> Option<&'a Value> {
    let data = turn.provider_data.as_ref()?;
    let is_own = text(data, "format") == format
        && text(data, "model") == settings.model
        && [&settings.base_url, &digest_of(&settings.base_url)]
            .iter()
            .any(|known| text(data, "base_url") == known.as_str());
    is_own.then_some(data)
}

/// Returns the digest that `provider_data` holds instead of a base URL that contains a secret.
pub(super) fn digest_of(base_url: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(base_url)))
}

/// Returns an id that the provider accepts: at most `most` letters, digits, `_` and `-`. An id that
/// does not fit is replaced by a derived one, which is the same for a call and its result.
pub(super) fn wire_id(call_id: &CallId, most: usize) -> String {
    let id = call_id.as_str();
    let fits = id.len() <= most
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if fits { id.to_owned() } else { derived_id(call_id, most) }
}

/// Returns an id derived from `call_id`: `most` hex digits, but never more than 24.
pub(super) fn derived_id(call_id: &CallId, most: usize) -> String {
    hex::encode(Sha256::digest(call_id.as_str())).chars().take(most.min(24)).collect()
}

/// Returns a tool name that providers accept; the model may have invented the original.
pub(super) fn wire_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let name: String = name.chars().take(64).map(plain).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}
