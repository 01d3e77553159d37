//! Reads what an MCP server sends, however it is written: decides which open request each answer
//! ends, and passes on to the library only messages that it accepts.
//!
//! An answer always ends its request (MCP-6): with the result, or with an error that says what the
//! server said or why its answer cannot be read. The text of every error that reaches the library
//! is therefore ours, and continues a sentence about the server.

use std::collections::{BTreeMap, BTreeSet};

use rmcp::model::{
    CallToolResult, ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, ErrorData,
    InitializeResult, JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerResult,
};
use serde_json::{Map, Value, json};

use super::repair::{message_in, repair, top_keys};
use crate::text::json::{self, says_nothing};

/// Maximum number of JSON values in one message, which is enough for several thousand tools.
pub(super) const MESSAGE_VALUES: usize = 100_000;

/// Why a message with more values is not parsed.
pub(super) const TOO_MANY_VALUES: &str = "it sent a message of more than 100,000 values";

/// Characters of an error of a server that we pass on.
const ERROR_CHARACTERS: usize = 2000;

/// The kind of a request, as far as it decides how its answer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Handshake,
    Tools,
    Other,
}

/// The content of an answer.
#[derive(Debug)]
enum Answer {
    Fields(Map<String, Value>),
    /// It cannot be read, for this reason.
    Unreadable(String),
}

/// The request that an answer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Request(i64),
    /// It names none, or nothing that can be an id of ours.
    Nothing,
}

/// Reads bytes as what a server sends while some requests are open, for fuzz targets. Returns the
/// number of messages.
#[doc(hidden)]
#[must_use]
pub fn read_as_answer(bytes: &[u8], requests: u8) -> usize {
    let mut open = OpenRequests::default();
    open.open.extend((0..requests.into()).map(|id| (id, Asked::Other)));
    open.after_last = requests.into();
    open.read(bytes, None).len()
}

/// The requests that have no answer yet.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    open: BTreeMap<i64, Asked>,
    /// Answers that name no request and came while several were open; always fewer than `open`.
    nameless: Vec<Answer>,
    /// Requests that we no longer wait for and whose answers may still come.
    given_up: BTreeSet<i64>,
    /// The id after the highest that was sent.
    after_last: i64,
    /// How many of the next answers that name no request may belong to notifications: some servers
    /// answer these too.
    notified: usize,
    /// Whether the server has answered a notification.
    answers_notifications: bool,
}

impl OpenRequests {
    /// Notes a message that is sent to the server. Returns the id of a request.
    pub(super) fn send(&mut self, message: &ClientJsonRpcMessage) -> Option<i64> {
        match message {
            JsonRpcMessage::Request(request) => {
                let RequestId::Number(id) = &request.id else { return None };
                let asked = match &request.request {
                    ClientRequest::InitializeRequest(_) => Asked::Handshake,
                    ClientRequest::ListToolsRequest(_) => Asked::Tools,
                    _ => Asked::Other,
                };
                self.open.insert(*id, asked);
                self.after_last = self.after_last.max(id.saturating_add(1));
                Some(*id)
            }
            JsonRpcMessage::Notification(sent) => {
                match &sent.notification {
                    ClientNotification::InitializedNotification(_) => self.notified += 1,
                    ClientNotification::CancelledNotification(cancelled) => {
                        if let Some(RequestId::Number(id)) = &cancelled.params.request_id {
                            self.give_up(*id);
                        }
                    }
                    _ => {}
                }
                None
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => None,
        }
    }

    /// Reads the messages in a text. `own` is the request to which the text answers, if the
    /// transport tells. Text that is not a message is dropped.
    pub(super) fn read(&mut self, bytes: &[u8], own: Option<i64>) -> Vec<ServerJsonRpcMessage> {
        let repaired = repair(bytes);
        let text = message_in(&repaired, is_message);
        let mut messages = Vec::new();
        if json::check_values(text.as_bytes(), MESSAGE_VALUES).is_err() {
            self.take_unreadable(text, TOO_MANY_VALUES.to_owned(), own, &mut messages);
            return messages;
        }
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        while let Some(value) = values.next() {
            match value {
                Ok(Value::Array(batch)) => {
                    for value in batch {
                        self.take(value, own, &mut messages);
                    }
                }
                Ok(value) => self.take(value, own, &mut messages),
                Err(error) => {
                    let why = format!("its answer cannot be read: {error}");
                    let rest = text.get(values.byte_offset()..).unwrap_or(text);
                    self.take_unreadable(rest, why, own, &mut messages);
                    break;
                }
            }
        }
        messages
    }

    /// Ends a request for which no answer will come. The text continues a sentence about the
    /// server.
    pub(super) fn fail(&mut self, id: i64, why: String) -> ServerJsonRpcMessage {
        self.open.remove(&id);
        failure(id, why)
    }

    fn take(&mut self, value: Value, own: Option<i64>, messages: &mut Vec<ServerJsonRpcMessage>) {
        let Value::Object(fields) = value else { return };
        let says = |key: &str| fields.get(key).is_some_and(|field| !field.is_null() && field != "");
        if is_answer(|key| fields.contains_key(key), says) {
            let named = fields.get("id").map_or(Named::Nothing, named);
            self.settle(named, own, Answer::Fields(fields), messages);
        } else if fields.get("method").is_some_and(Value::is_string) {
            messages.extend(asked(fields));
        }
    }

    fn take_unreadable(
        &mut self,
        text: &str,
        why: String,
        own: Option<i64>,
        messages: &mut Vec<ServerJsonRpcMessage>,
    ) {
        let keys = top_keys(text.trim_start_matches(['[', ' ', '\t', '\r', '\n']));
        let has = |key: &str| keys.iter().any(|(known, _)| *known == key);
        if !is_answer(has, |key| is_written(&keys, key)) {
            return;
        }
        let id =
            keys.iter().find(|(key, _)| *key == "id").map_or("", |(_, rest)| rest.trim_start());
        let id: String =
            id.chars().take_while(|c| !matches!(c, ',' | '}' | '\n')).take(64).collect();
        let id = id.trim().trim_matches('"').parse().map_or(Named::Nothing, Named::Request);
        self.settle(id, own, Answer::Unreadable(why), messages);
    }

    /// Ends the request to which an answer belongs.
    fn settle(
        &mut self,
        named: Named,
        own: Option<i64>,
        answer: Answer,
        messages: &mut Vec<ServerJsonRpcMessage>,
    ) {
        let is_open = |id: &i64| self.open.contains_key(id);
        let own = own.filter(is_open);
        let open = match named {
            Named::Request(id) if is_open(&id) => Some(id),
            // The answer to a request that we no longer wait for comes late, also when the
            // transport delivers it with the answer to another request.
            Named::Request(id) if self.given_up.remove(&id) => return,
            Named::Request(id) if own.is_none() && (0..self.after_last).contains(&id) => return,
            // An id that we never sent names nothing.
            Named::Request(_) | Named::Nothing => own,
        };
        match open {
            Some(id) => messages.extend(self.end(id, answer)),
            None if self.is_of_notification(&answer) => return,
            None if self.open.is_empty() => {
                self.given_up.pop_first();
                return;
            }
            None => self.nameless.push(answer),
        }
        self.settle_nameless(messages);
    }

    /// Stops waiting for a request. Its answer may still come.
    fn give_up(&mut self, id: i64) {
        if self.open.remove(&id).is_some() {
            self.given_up.insert(id);
        }
        // Any of them may be the answer to this request.
        self.nameless.clear();
        if self.answers_notifications {
            self.notified += 1;
        }
    }

    /// Tells whether an answer that names no request belongs to a notification that we sent, and
    /// counts it.
    fn is_of_notification(&mut self, answer: &Answer) -> bool {
        let lists_tools = self.open.values().any(|asked| *asked == Asked::Tools)
            && answer.result().is_some_and(|result| result.get("tools").is_some());
        if self.notified == 0 || lists_tools || matches!(answer, Answer::Unreadable(_)) {
            return false;
        }
        self.notified -= 1;
        self.answers_notifications = true;
        true
    }

    /// Ends the open requests once each must have one of the answers that name none.
    fn settle_nameless(&mut self, messages: &mut Vec<ServerJsonRpcMessage>) {
        if self.nameless.is_empty() || self.nameless.len() < self.open.len() {
            return;
        }
        let ids: Vec<i64> = self.open.keys().copied().collect();
        let mut answers = std::mem::take(&mut self.nameless);
        if let [id] = ids.as_slice() {
            let Some(answer) = answers.pop() else { return };
            if self.given_up.pop_first().is_none() {
                messages.extend(self.end(*id, answer));
                return;
            }
            let why = format!(
                "it answered without an id while the answer to an earlier call may still come, so we cannot tell to which of the calls it answered. It said: {}",
                answer.words()
            );
            messages.push(self.fail(*id, why));
            // One of the two answers has come.
            self.given_up.insert(*id);
            return;
        }
        for id in ids {
            let why = format!(
                "it answered {} calls without an id, so we cannot tell which answer is whose",
                answers.len()
            );
            messages.push(self.fail(id, why));
        }
    }

    fn end(&mut self, id: i64, answer: Answer) -> Option<ServerJsonRpcMessage> {
        let asked = self.open.remove(&id)?;
        if asked != Asked::Handshake {
            // Servers answer in turn, so no answer to an earlier notification follows.
            self.notified = 0;
        }
        let result = match answer {
            Answer::Unreadable(why) => Err(why),
            Answer::Fields(fields) => result_of(fields, asked),
        };
        Some(match result {
            Ok(result) => JsonRpcMessage::response(result, RequestId::Number(id)),
            Err(why) => failure(id, why),
        })
    }
}

impl Answer {
    fn result(&self) -> Option<&Value> {
        match self {
            Self::Fields(fields) => fields.get("result"),
            Self::Unreadable(_) => None,
        }
    }

    /// Returns the beginning of what it says.
    fn words(&self) -> String {
        let text = match self {
            Self::Fields(fields) => {
                let error = fields.get("error").filter(|error| !says_nothing(error));
                error.or_else(|| fields.get("result")).map_or_else(String::new, Value::to_string)
            }
            Self::Unreadable(why) => why.clone(),
        };
        text.chars().take(ERROR_CHARACTERS).collect()
    }
}

/// Tells whether an object can only be an answer. `has` tells whether it has a key, and `says`
/// whether the value of the key is neither null nor an empty text.
fn is_answer(has: impl Fn(&str) -> bool, says: impl Fn(&str) -> bool) -> bool {
    // Some servers repeat the method of the request in its answer, or write an empty one.
    let is_asked = says("method") && !(has("id") && (says("result") || says("error")));
    let has_content = has("result") || has("error");
    let has_head = has("jsonrpc") || has("id");
    !is_asked && (has_head && has_content || has("jsonrpc") && has("id"))
}

/// Tells whether one of the keys that [`top_keys`] found has a value that is neither null nor an
/// empty text.
fn is_written(keys: &[(&str, &str)], key: &str) -> bool {
    let is_empty = |rest: &str| rest.starts_with("null") || rest.starts_with("\"\"");
    keys.iter().any(|(known, rest)| *known == key && !is_empty(rest.trim_start()))
}

/// Tells whether a line is a message by itself, so that it does not continue the lines before it.
pub(super) fn is_message(line: &[u8]) -> bool {
    let text = String::from_utf8_lossy(line);
    let keys = top_keys(&text);
    let has = |key: &str| keys.iter().any(|(known, _)| *known == key);
    let is_answer = is_answer(has, |key| is_written(&keys, key));
    text.starts_with('{') && (is_answer || has("jsonrpc") && has("method"))
}

/// Returns the request that an id names. Our ids are whole numbers; some servers send them back as
/// text or with a fraction of zero.
fn named(id: &Value) -> Named {
    let number = match id {
        Value::Number(number) => {
            number.as_i64().or_else(|| number.as_f64()?.to_string().parse().ok())
        }
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.map_or(Named::Nothing, Named::Request)
}

/// Returns a request or notification of the server; `None` if the library cannot read it. No rule
/// depends on what a server asks or tells, because we refuse its requests (MCP-4).
fn asked(mut fields: Map<String, Value>) -> Option<ServerJsonRpcMessage> {
    fields.insert("jsonrpc".to_owned(), "2.0".into());
    if fields.get("id").is_some_and(Value::is_null) {
        fields.remove("id");
    }
    serde_json::from_value(Value::Object(fields)).ok()
}

/// Returns the result of an answer, or the sentence about its error.
fn result_of(mut fields: Map<String, Value>, asked: Asked) -> Result<ServerResult, String> {
    let (error, result) = (fields.remove("error"), fields.remove("result"));
    // Several servers write an empty error beside a result.
    let is_error = |error: &Value| !error.is_null() && (result.is_none() || !says_nothing(error));
    if let Some(error) = error.filter(is_error) {
        return Err(error_words(&error));
    }
    match (result, asked) {
        (Some(result), Asked::Handshake) => handshake(&result),
        (Some(result), Asked::Tools | Asked::Other) => Ok(carry(result)),
        (None, _) => Err("its answer has neither a `result` nor an `error`".to_owned()),
    }
}

fn error_words(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str).or(error.as_str());
    let message = message.filter(|message| !message.trim().is_empty());
    let mut text = message.map_or_else(|| error.to_string(), str::to_owned);
    if let Some(data) = error.get("data").filter(|data| message.is_some() && !data.is_null()) {
        text.push_str(&format!(" ({data})"));
    }
    let text: String = text.chars().take(ERROR_CHARACTERS).collect();
    match error.get("code") {
        None | Some(Value::Null) => format!("it answered with an error: {text}"),
        Some(Value::String(code)) => format!("it answered with the error {code}: {text}"),
        Some(code) => format!("it answered with the error {code}: {text}"),
    }
}

/// Reads the answer to `initialize`. We use only the version of the protocol, so nothing else in
/// it can make a server unusable.
fn handshake(result: &Value) -> Result<ServerResult, String> {
    let version = result.get("protocolVersion").and_then(Value::as_str);
    let version =
        version.ok_or("its answer to `initialize` has no `protocolVersion` that is text")?;
    let plain = json!({
        "protocolVersion": version,
        "capabilities": {},
        "serverInfo": {"name": "", "version": ""},
    });
    serde_json::from_value::<InitializeResult>(plain)
        .map(ServerResult::InitializeResult)
        .map_err(|error| format!("its answer to `initialize` cannot be used: {error}"))
}

/// Returns a result in a form that the library passes on without reading it.
fn carry(result: Value) -> ServerResult {
    let mut carrier = CallToolResult::default();
    carrier.result_type = None;
    carrier.structured_content = Some(result);
    ServerResult::CallToolResult(carrier)
}

/// Returns the result that [`carry`] packed; null if there is none.
pub(super) fn carried(carrier: CallToolResult) -> Value {
    carrier.structured_content.unwrap_or(Value::Null)
}

fn failure(id: i64, why: String) -> ServerJsonRpcMessage {
    let error = ErrorData::new(ErrorCode::INTERNAL_ERROR, why, None);
    JsonRpcMessage::error(error, Some(RequestId::Number(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the open requests after a handshake with id 0 and calls with the given ids.
    fn open(ids: &[i64]) -> OpenRequests {
        let open = ids.iter().map(|id| (*id, Asked::Other)).collect();
        OpenRequests { open, after_last: 10, ..OpenRequests::default() }
    }

    /// Returns the id and the text, or the error, of each answer that is read.
    fn answers(requests: &mut OpenRequests, text: &str) -> Vec<(i64, Result<String, String>)> {
        let read = requests.read(text.as_bytes(), None).into_iter();
        let answer = read.filter_map(|message| {
            let (result, id) = message.into_result()?;
            let Some(RequestId::Number(id)) = id else { panic!("{id:?}") };
            Some((
                id,
                match result {
                    Ok(ServerResult::CallToolResult(carrier)) => {
                        Ok(carried(carrier)["text"].to_string())
                    }
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => Err(error.message.into_owned()),
                },
            ))
        });
        answer.collect()
    }

    fn ends(text: &str, expected: Result<&str, &str>) {
        let mut requests = open(&[4]);
        let read = answers(&mut requests, text);
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        match (read.as_slice(), &expected) {
            ([(4, Err(error))], Err(part)) => assert!(error.contains(part.as_str()), "{error}"),
            _ => assert_eq!(read, [(4, expected.clone())], "{text}"),
        }
        assert!(requests.open.is_empty(), "{text}");
    }

    // proves MCP-6
    #[test]
    fn an_answer_ends_its_request_however_it_is_written() {
        let good = Ok("\"ok\"");
        ends(r#"{"jsonrpc":"2.0","id":4,"result":{"text":"ok"}}"#, good);
        ends(r#"{"id":4,"result":{"text":"ok"}}"#, good);
        ends(r#"{"jsonrpc":"2.0","id":"4","result":{"text":"ok"},"error":null}"#, good);
        ends(r#"{"jsonrpc":"2.0","id":4.0,"result":{"text":"ok"},"error":""}"#, good);
        ends(r#"{"jsonrpc":"2.0","id":null,"result":{"text":"ok"}}"#, good);
        ends(r#"{"jsonrpc":"2.0","result":{"text":"ok"}}"#, good);
        ends("{\n  \"id\": 4,\n  \"result\": {\"text\": \"ok\"}\n}", good);
        ends(r#"{"jsonrpc":"2.0","id":99,"result":{"text":"ok"}}"#, good);
        ends(r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","result":{"text":"ok"}}"#, good);
        ends(
            r#"{"jsonrpc":"2.0","id":4,"method":"","params":null,"result":{"text":"ok"},"error":null}"#,
            good,
        );
        for empty in [r#"{"code":0,"message":""}"#, "{}", "0", "false", "[]", r#"{"code":null}"#] {
            let text = format!(r#"{{"id":4,"error":{empty},"result":{{"text":"ok"}}}}"#);
            ends(&text, good);
        }
        for before in ["[INFO] ", "[12:00:01] [main] ", "{main} ", "\u{1b}[32m", "[1] "] {
            let text = format!(r#"{before}{{"id":4,"result":{{"text":"ok"}}}} done"#);
            ends(&text, good);
        }
        ends(
            r#"{"jsonrpc":"2.0","method":"notifications/x"}{"jsonrpc":"2.0","id":4,"result":tru}"#,
            Err("its answer cannot be read"),
        );
        ends(r#"{"id":4,"error":{"code":0,"message":""}}"#, Err("the error 0: {"));
        ends(
            r#"[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":4,"result":{"text":"ok"}}]"#,
            good,
        );
        ends(r#"12:00 answer: {"jsonrpc":"2.0","id":4,"result":{"text":"ok","n":NaN}}"#, good);
        ends(
            r#"{"jsonrpc":"2.0","id":4,"error":{"code":"E_FULL","message":"no space","data":{"free":0}}}"#,
            Err("it answered with the error E_FULL: no space ({\"free\":0})"),
        );
        ends(
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#,
            Err("the error -32700: Parse error"),
        );
        ends(
            r#"{"jsonrpc":"2.0","id":"server-error","error":"broken"}"#,
            Err("with an error: broken"),
        );
        ends(r#"{"jsonrpc":"2.0","id":4}"#, Err("neither a `result` nor an `error`"));
        ends(
            r#"{"jsonrpc":"2.0","id":4,"result":{"content":["#,
            Err("its answer cannot be read: EOF"),
        );
        ends(
            r#"{"jsonrpc":"2.0","result":{"n":1e999},"id":4}"#,
            Err("its answer cannot be read: number out of range"),
        );
        ends(
            &format!(r#"{{"jsonrpc":"2.0","id":4,"result":[{}1]}}"#, "{},".repeat(100_000)),
            Err(TOO_MANY_VALUES),
        );
    }

    // proves MCP-6
    #[test]
    fn what_is_not_an_answer_ends_nothing() {
        for text in [
            "",
            "this is no message",
            "{",
            "[INFO] {\"id\": 4}",
            r#"{"level":"error","error":"no space","msg":"x"}"#,
            r#"{"jsonrpc":"2.0","id":3,"result":{"text":"late"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"result":{"te"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"id":4,"result":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/x","id":null,"result":null,"error":null}"#,
            r#"{"level":"debug","sent":{"jsonrpc":"2.0","id":4,"result":{}}}"#,
        ] {
            let mut requests = open(&[4]);
            assert_eq!(answers(&mut requests, text), [], "{text}");
            assert_eq!(requests.open.len(), 1, "{text}");
        }
    }

    // proves MCP-6
    #[test]
    fn an_answer_without_an_id_waits_until_only_one_request_can_be_meant() {
        let nameless = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"bad"}}"#;
        let mut requests = open(&[4, 5]);
        assert_eq!(answers(&mut requests, nameless), []);
        let read = answers(&mut requests, r#"{"jsonrpc":"2.0","id":4,"result":{"text":"ok"}}"#);
        let error = Err("it answered with the error 1: bad".to_owned());
        assert_eq!(read, [(4, Ok("\"ok\"".to_owned())), (5, error)]);
        let mut requests = open(&[4, 5]);
        assert_eq!(answers(&mut requests, nameless), []);
        let read = answers(&mut requests, nameless);
        assert!(matches!(read.as_slice(), [(4, Err(_)), (5, Err(_))]), "{read:?}");
    }

    fn cancel(requests: &mut OpenRequests, id: i64) {
        let params = json!({"requestId": id, "reason": "late"});
        let cancelled =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        requests.send(&serde_json::from_value(cancelled).unwrap());
    }

    // proves MCP-6
    #[test]
    fn a_late_answer_is_not_the_answer_of_the_next_call() {
        let nameless = r#"{"jsonrpc":"2.0","id":null,"result":{"text":"?"}}"#;
        let mut requests = open(&[4]);
        cancel(&mut requests, 4);
        requests.open.insert(5, Asked::Other);
        let read = answers(&mut requests, nameless);
        let [(5, Err(error))] = read.as_slice() else { panic!("{read:?}") };
        assert!(error.contains("cannot tell") && error.contains(r#"{"text":"?"}"#), "{error}");
        // Over HTTP, a proxy may send the late answer in the response to the next call.
        let late = r#"{"jsonrpc":"2.0","id":4,"result":{"text":"late"}}"#;
        let mut requests = open(&[4]);
        cancel(&mut requests, 4);
        requests.open.insert(5, Asked::Other);
        assert!(requests.read(late.as_bytes(), Some(5)).is_empty());
        // Once the late answer has come, an answer without an id can only be that of the call.
        assert_eq!(answers(&mut requests, nameless), [(5, Ok("\"?\"".to_owned()))]);
        let mut requests = open(&[4]);
        cancel(&mut requests, 4);
        assert_eq!(answers(&mut requests, nameless), []);
        requests.open.insert(5, Asked::Other);
        assert_eq!(answers(&mut requests, nameless), [(5, Ok("\"?\"".to_owned()))]);
    }

    // proves MCP-6
    #[test]
    fn an_answer_to_a_notification_ends_no_request() {
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let initialized = serde_json::from_value(initialized).unwrap();
        let list = r#"{"jsonrpc":"2.0","id":null,"result":{"tools":[],"text":"ok"}}"#;
        for answer in [
            r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
            r#"{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"}}"#,
        ] {
            let mut requests = open(&[]);
            requests.send(&initialized);
            requests.open.insert(4, Asked::Tools);
            assert_eq!(answers(&mut requests, answer), [], "{answer}");
            let named = r#"{"jsonrpc":"2.0","id":4,"result":{"text":"ok"}}"#;
            assert_eq!(answers(&mut requests, named), [(4, Ok("\"ok\"".to_owned()))]);
            // The server also answers the notification that a call is cancelled.
            requests.open.insert(5, Asked::Other);
            cancel(&mut requests, 5);
            requests.open.insert(6, Asked::Other);
            assert_eq!(answers(&mut requests, answer), [], "{answer}");
            assert_eq!(requests.open.len(), 1);
        }
        let mut requests = open(&[]);
        requests.send(&initialized);
        requests.open.insert(4, Asked::Tools);
        assert_eq!(answers(&mut requests, list), [(4, Ok("\"ok\"".to_owned()))]);
    }

    #[test]
    fn a_handshake_needs_only_a_version() {
        let shake = |result: Value| {
            let mut requests = OpenRequests::default();
            requests.open.insert(0, Asked::Handshake);
            let text = json!({"jsonrpc": "2.0", "id": 0, "result": result}).to_string();
            let message = requests.read(text.as_bytes(), None).pop().unwrap();
            message.into_result().unwrap().0
        };
        let loose = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": true}, "serverInfo": {"version": 1}});
        for result in [loose, json!({"protocolVersion": "2025-06-18"})] {
            let Ok(ServerResult::InitializeResult(result)) = shake(result) else { panic!() };
            assert_eq!(result.protocol_version.as_str(), "2025-06-18");
        }
        let error = shake(json!({"serverInfo": {}})).unwrap_err();
        assert!(error.message.contains("`protocolVersion`"), "{error:?}");
    }
}
