//! What a wire format is: how a request is written, and how an answer is read.
//!
//! A format knows fields and their meaning. Sending, framing, deadlines and sizes are the same for all and stand in `remote.rs` and `http.rs`.

use std::borrow::Cow;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::agent::{ErrorClass, ModelError, ModelReply, ModelRequest, RequestedCall};
use crate::config::Remote;
use crate::domain::{Arguments, AssistantTurn, CallId, Image, ToolCall, ToolResult};

/// Calls of one answer; more is no answer of a model.
const MOST_CALLS: usize = 1000;

/// Returns the pictures of a result that this model is shown.
pub(super) fn images<'a>(settings: &Remote, result: &'a ToolResult) -> &'a [Image] {
    if settings.sees_images { &result.images } else { &[] }
}

/// Returns the text of a result; where a picture is not shown, it says so.
pub(super) fn content<'a>(settings: &Remote, result: &'a ToolResult) -> Cow<'a, str> {
    if settings.sees_images || result.images.is_empty() {
        return Cow::Borrowed(&result.content);
    }
    Cow::Owned(format!("{}\n[You are not shown pictures: work without it.]", result.content))
}

/// Returns a picture as an address that holds it.
pub(super) fn data_url(image: &Image) -> String {
    format!("data:{};base64,{}", image.media_type, image.base64)
}

/// A request, as it goes out.
pub(super) struct Outgoing {
    /// What follows the base address.
    pub(super) path: String,
    pub(super) body: Value,
}

/// How a streamed answer is cut into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON object a line.
    Lines,
}

/// A wire format.
pub(super) trait Format: Send + Sync {
    /// Returns the name that marks what is kept for the provider.
    fn name(&self) -> &'static str;

    /// Returns the headers, the key among them.
    fn headers(&self, settings: &Remote) -> Vec<(&'static str, String)> {
        settings.api_key.iter().map(|key| ("authorization", format!("Bearer {key}"))).collect()
    }

    /// Returns the request.
    fn outgoing(&self, settings: &Remote, request: ModelRequest<'_>) -> Outgoing;

    /// Returns a reader for one answer.
    fn reader(&self) -> Box<dyn Reader>;

    fn framing(&self) -> Framing {
        Framing::Events
    }

    /// Tells whether the request is to be sent again at once, written in another way, because of what the server said.
    fn adapts_to(&self, _error: &ModelError) -> bool {
        false
    }
}

/// Reads one answer.
pub(super) trait Reader: Send {
    /// Takes the data of one event and adds new answer text to `text`.
    ///
    /// *Errors*: it is not JSON, or an error.
    fn take(&mut self, data: &str, text: &mut String) -> Result<(), ModelError>;

    /// Takes an answer that came in one piece.
    ///
    /// *Errors*: it is an error.
    fn take_whole(&mut self, body: Value) -> Result<(), ModelError>;

    /// Returns about how many bytes of memory the answer takes so far.
    fn size(&self) -> usize;

    /// How far the answer is.
    fn progress(&self) -> Progress;

    /// Returns the answer. Called only when it is whole.
    ///
    /// *Errors*: it is none.
    fn finish(self: Box<Self>) -> Result<ModelReply, ModelError>;
}

/// How far an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// More must come.
    Open,
    /// Nothing of it can be missing; usage may still come.
    Whole,
    /// Nothing further will come.
    Done,
}

/// Parses the data of an event.
///
/// *Errors*: it is not JSON.
pub(super) fn parse(data: &str) -> Result<Value, ModelError> {
    serde_json::from_str(data)
        .map_err(|error| malformed(format!("a piece of the stream is not JSON: {error}")))
}

/// Returns a named error for what cannot be understood.
pub(super) fn malformed(message: impl Into<String>) -> ModelError {
    ModelError::new(ErrorClass::MalformedResponse, message)
}

/// Tells that there are too many calls.
///
/// *Errors*: always, over the limit.
pub(super) fn check_calls(count: usize) -> Result<(), ModelError> {
    if count > MOST_CALLS {
        return Err(malformed(format!("the answer has more than {MOST_CALLS} calls")));
    }
    Ok(())
}

/// Tells whether a candidate is the first of its answer: its `index` is 0, null or absent.
///
/// The text, the calls and the finish reason of another candidate belong to another answer.
pub(super) fn is_first(candidate: &Value) -> bool {
    candidate.get("index").is_none_or(|index| index.is_null() || index.as_u64() == Some(0))
}

/// Tells whether a call has a name; without one it is not a call.
pub(super) fn is_named(name: &str) -> bool {
    !name.trim().is_empty()
}

/// Removes the calls without a name. Returns whether the answer is then an invalid call: a removed call had arguments, and the answer has
/// neither text nor another call.
pub(super) fn drop_nameless(calls: &mut Vec<RequestedCall>, text: &str) -> bool {
    let is_empty =
        |arguments: &str| matches!(arguments.trim(), "" | "{}" | "null" | r#"{"input":""}"#);
    let had_arguments =
        calls.iter().any(|call| !is_named(&call.name) && !is_empty(&call.arguments));
    calls.retain(|call| is_named(&call.name));
    had_arguments && calls.is_empty() && text.trim().is_empty()
}

/// Returns the text of `value` at `field`, or nothing.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number at `pointer`, or 0.
pub(super) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// Returns the items of the list at `field`, or none.
pub(super) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Sets a field of an object; what is none stays as it is.
pub(super) fn set(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Some(object) = object.as_object_mut() {
        object.insert(field.to_owned(), value.into());
    }
}

/// Returns the arguments of a call that is given back. Those that did not parse are left out: a server that parses its own history would
/// refuse them.
pub(super) fn arguments(call: &ToolCall) -> Map<String, Value> {
    match &call.arguments {
        Arguments::Parsed(arguments) => arguments.clone(),
        Arguments::Invalid { .. } => Map::new(),
    }
}

/// Returns what `turn` holds for the provider, if it came from the same format and model: signatures and encrypted reasoning mean nothing to
/// another.
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

/// Returns what is kept of a base address that holds a secret: enough to recognize it.
pub(super) fn digest_of(base_url: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(base_url)))
}

/// Returns an id as the provider takes it: `most` letters, digits, `_` and `-` at the longest. One that does not fit is derived from ours, so
/// that call and result still agree.
pub(super) fn wire_id(call_id: &CallId, most: usize) -> String {
    let id = call_id.as_str();
    let fits = id.len() <= most
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if fits { id.to_owned() } else { derived_id(call_id, most) }
}

/// Returns an id of at most 24 letters and digits that is derived from ours.
pub(super) fn derived_id(call_id: &CallId, most: usize) -> String {
    hex::encode(Sha256::digest(call_id.as_str())).chars().take(most.min(24)).collect()
}

/// Returns the name of a tool that a model may have made up, as providers take it back.
pub(super) fn wire_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let name: String = name.chars().take(64).map(plain).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}
