//! Plays every recording in the fixtures through its format, whole and in chunks of several sizes,
//! and compares our next request with the recorded one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::RemoteModel;
use super::clients::HttpClients;
use super::failure;
use super::format::digest_of;
use super::refusal::refused;
use super::remote::{of, read};
use crate::agent::{
    DeltaSink, ErrorClass, Model as _, ModelError, ModelReply, ModelRequest, ToolDefinition,
};
use crate::argv::{Diagnostics, parse_arguments};
use crate::catalogue::{Catalogue, Effort, Traits};
use crate::clock::SystemClock;
use crate::config::{OutputSchema, Remote, WireFormat};
use crate::domain::{
    Arguments, AssistantTurn, CallId, FinishReason, Image, ToolCall, ToolResult, Turn,
};
use crate::text::redact::{Redactor, Secret};

const FORMATS: [(WireFormat, &str, usize); 5] = [
    (WireFormat::Anthropic, "anthropic-messages", 19),
    (WireFormat::Openai, "openai-responses", 13),
    (WireFormat::OpenaiChat, "openai-chat", 22),
    (WireFormat::Gemini, "gemini", 13),
    (WireFormat::Ollama, "ollama-chat", 6),
];

struct DiscardDeltas;
impl DeltaSink for DiscardDeltas {
    fn delta(&self, _: &str) {}
}

fn directory(format: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/providers").join(format)
}

fn json_file(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn records(format: &str) -> Vec<Value> {
    json_file(&directory(format).join("index.json")).as_array().unwrap().clone()
}

fn body(format: &str, record: &Value) -> Vec<u8> {
    std::fs::read(directory(format).join(record["file"].as_str().unwrap())).unwrap()
}

fn pieces(
    body: &[u8],
    size: usize,
) -> impl futures_util::Stream<Item = Result<Bytes, ModelError>> + Unpin {
    let pieces: Vec<_> = body.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    futures_util::stream::iter(pieces)
}

async fn answer(format: WireFormat, body: &[u8], size: usize) -> Result<ModelReply, ModelError> {
    read(true, pieces(body, size), of(format).as_ref(), &DiscardDeltas).await
}

async fn play(
    format: WireFormat,
    record: &Value,
    body: &[u8],
    size: usize,
) -> Result<ModelReply, ModelError> {
    let status = u16::try_from(record["http"]["status"].as_u64().unwrap()).unwrap();
    if status < 300 {
        return answer(format, body, size).await;
    }
    let headers: reqwest::header::HeaderMap = record["http"]["headers"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let name: reqwest::header::HeaderName = name.parse().unwrap();
            (name, value.as_str().unwrap().parse().unwrap())
        })
        .collect();
    let now = chrono::DateTime::from_timestamp(0, 0).unwrap();
    Err(failure::of_response(status, &headers, &String::from_utf8_lossy(body), now))
}

fn compare(record: &Value, result: &Result<ModelReply, ModelError>) {
    let (id, expected) = (&record["id"], &record["expect"]);
    let reply = match result {
        Err(error) => {
            let wanted = &expected["error"];
            assert_eq!(expected["finish"], "error", "{id}: {error}");
            assert_eq!(error.class.as_str(), wanted["class"], "{id}: {error}");
            assert_eq!(error.class.is_retryable(), wanted["retryable"].as_bool().unwrap(), "{id}");
            let start: String = wanted["message"].as_str().unwrap().chars().take(500).collect();
            assert!(error.message.contains(&start), "{id}: {error}");
            if let Some(seconds) = wanted["retry-after"].as_str() {
                assert_eq!(error.retry_after.unwrap().as_secs().to_string(), seconds, "{id}");
            }
            return;
        }
        Ok(reply) => reply,
    };
    assert_eq!(json!(reply.finish_reason), expected["finish"], "{id}");
    assert_eq!(json!(reply.stop_reason), expected["stop_reason"], "{id}");
    assert_eq!(reply.text, expected["text"].as_str().unwrap(), "{id}");
    assert_eq!(
        json!(reply.reasoning),
        expected.get("reasoning").cloned().unwrap_or_default(),
        "{id}"
    );
    if let Some(refusal) = expected["refusal"].as_str() {
        assert_eq!(reply.explanation.as_deref(), Some(refusal), "{id}");
    }
    compare_calls(id, expected, reply);
    compare_kept(id, expected, reply);
    let number = |name: &str| expected["usage"][name].as_u64().unwrap_or(0);
    let usage = reply.usage.unwrap_or_default();
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens),
        (number("input"), number("output"), number("cached_input")),
        "{id}"
    );
}

fn compare_calls(id: &Value, expected: &Value, reply: &ModelReply) {
    let calls = expected["tool_calls"].as_array().unwrap();
    assert_eq!(reply.calls.len(), calls.len(), "{id}");
    for (call, expected) in reply.calls.iter().zip(calls) {
        assert_eq!(json!(call.id), expected["id"], "{id}");
        assert_eq!(call.name, expected["name"].as_str().unwrap(), "{id}");
        let parsed = parse_arguments(&call.arguments).ok().map(Value::Object);
        assert_eq!(parsed.is_some(), expected["executable"].as_bool().unwrap(), "{id}");
        if expected["custom"] == true {
            assert_eq!(parsed.unwrap(), json!({"input": expected["input_text"]}), "{id}");
            continue;
        }
        assert_eq!(parsed.unwrap_or_default(), expected["arguments"], "{id}");
        if let Some(text) = expected["arguments_text"].as_str() {
            assert_eq!(call.arguments, text, "{id}");
        }
    }
}

/// Tells whether the recording has OpenAI items. Only there does `encrypted_content` mean
/// reasoning: search results of other providers have this field too.
fn record_is_openai(expected: &Value) -> bool {
    expected["items"].is_array()
}

/// Checks that everything the provider needs back is kept.
fn compare_kept(id: &Value, expected: &Value, reply: &ModelReply) {
    let kept = reply.provider_data.clone().unwrap_or_default().to_string();
    let count = |name: &str| usize::try_from(expected[name].as_u64().unwrap_or(0)).unwrap();
    let signatures =
        kept.matches("\"signature\":").count() + kept.matches("\"thoughtSignature\":").count();
    if !kept.contains("reasoning_details") {
        assert_eq!(signatures, count("signatures"), "{id}");
    }
    assert_eq!(kept.matches("\"redacted_thinking\"").count(), count("redacted_thinking"), "{id}");
    if record_is_openai(expected) {
        assert_eq!(
            kept.matches("\"encrypted_content\":\"").count(),
            count("encrypted_reasoning"),
            "{id}"
        );
    }
    let kinds = |list: &str| -> Option<Vec<Value>> {
        let items = reply.provider_data.as_ref()?.get(list)?.as_array()?;
        Some(items.iter().map(|item| item["type"].clone()).collect())
    };
    for (list, name) in [("content", "blocks"), ("items", "items")] {
        if let (Some(found), Some(wanted)) = (kinds(list), expected[name].as_array()) {
            assert_eq!(&found, wanted, "{id}");
        }
    }
    for call in expected["tool_calls"].as_array().into_iter().flatten() {
        if let Some(signature) = call["thought_signature"].as_str() {
            assert!(kept.contains(signature), "{id}");
        }
    }
}

// proves PROV-2, PROV-5, LLM-5
// conforms 004-C1, 004-C3
#[tokio::test]
async fn every_recording_gives_what_is_expected_of_it() {
    for (format, name, count) in FORMATS {
        let records = records(name);
        for record in &records {
            let body = body(name, record);
            for size in [1, 7, 1000, body.len().max(1)] {
                compare(record, &play(format, record, &body, size).await);
            }
        }
        println!("{name:20} {count:3} recordings, each in 4 chunk sizes");
        assert_eq!(records.len(), count);
    }
}

/// A stream that is cut before the first sign of its end yields neither text nor a call.
// proves LLM-5
#[tokio::test]
async fn a_stream_that_is_cut_anywhere_is_never_a_message() {
    let signs = [
        "\"finish_reason\":\"",
        "\"finish_reason\": \"",
        "[DONE]",
        "\"stop_reason\":\"",
        "\"stop_reason\": \"",
        "message_stop",
        "event: response.completed",
        "event: response.incomplete",
        "\"finishReason\"",
        "blockReason",
        "\"done\":true",
        "\"done\": true",
    ];
    for (format, name, _) in FORMATS {
        for record in records(name) {
            if record["stream"] != true || record["expect"]["finish"] == "error" {
                continue;
            }
            let body = body(name, &record);
            let text = String::from_utf8_lossy(&body).into_owned();
            let end = signs.iter().filter_map(|sign| text.find(sign)).min().unwrap();
            for cut in (0..end).step_by(89) {
                let error = answer(format, &body[..cut], 64).await.unwrap_err();
                assert_eq!(
                    error.class,
                    ErrorClass::StreamInterrupted,
                    "{} cut at {cut}: {error}",
                    record["id"]
                );
            }
        }
    }
}

fn traits_of(model: &str) -> Traits {
    let known = Catalogue::built_in().unwrap().find(model, None).facts.traits().clone();
    Traits { images: Some(true), ..known }
}

fn settings(format: WireFormat, model: &str) -> Remote {
    Remote {
        traits: traits_of(model),
        is_at_provider: true,
        chat: Catalogue::built_in().unwrap().chat_rules(""),
        format,
        model: model.to_owned(),
        api_key: Some("k".to_owned()),
        base_url: format.base_url().to_owned(),
        stream: true,
        max_output_tokens: None,
        temperature: None,
        reasoning_effort: None,
        timeout: std::time::Duration::from_secs(1),
        first_byte_timeout: std::time::Duration::from_secs(1),
        idle_timeout: std::time::Duration::from_secs(1),
        headers: std::collections::BTreeMap::new(),
    }
}

/// Counts the times at which bytes of an answer arrive.
#[derive(Default)]
struct CountAnswers(std::sync::atomic::AtomicUsize);
impl DeltaSink for CountAnswers {
    fn begin_answer(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    fn delta(&self, _: &str) {}
}

// proves PROV-3
#[tokio::test]
async fn the_first_byte_has_a_limit_of_its_own() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let _ = rustls::crypto::ring::default_provider().install_default();
    let limit = std::time::Duration::from_millis(100);
    let long = std::time::Duration::from_secs(60);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    for sent in ["", head] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            while !seen.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                client.read_buf(&mut seen).await.unwrap();
            }
            client.write_all(sent.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
        });
        let settings = Remote {
            base_url,
            timeout: long,
            first_byte_timeout: limit,
            idle_timeout: long,
            ..settings(WireFormat::OpenaiChat, "m")
        };
        let model = RemoteModel::new(
            settings,
            HttpClients::default(),
            Arc::new(SystemClock),
            Redactor::default(),
        );
        let history = [Turn::User("hi".into())];
        let request = ModelRequest {
            system: "",
            stable: 0,
            parallel_calls: true,
            history: &history,
            tools: &[],
            max_output_tokens: None,
            follows_cut: false,
            output_schema: None,
            input_tokens: 0,
        };
        let counted = CountAnswers::default();
        let error = model.call(request, &counted).await.unwrap_err();
        assert!(error.message.contains("received no data for 0.1 s"), "{error:?}");
        assert_eq!(counted.0.into_inner(), 0, "the head of a response is not an answer");
        server.abort();
    }
}

/// Converts the reply to a turn, as the loop does.
fn turn(reply: ModelReply, format: WireFormat, model: &str) -> AssistantTurn {
    let calls = reply.calls.into_iter().enumerate().map(|(at, call)| ToolCall {
        call_id: CallId::parse(&call.id.unwrap_or_else(|| format!("call_1_{at}"))).unwrap(),
        name: call.name,
        arguments: match parse_arguments(&call.arguments) {
            Ok(arguments) => Arguments::Parsed(arguments),
            Err(message) => Arguments::Invalid { text: call.arguments, message },
        },
    });
    let mut provider_data = reply.provider_data;
    if let Some(data) = provider_data.as_mut().and_then(Value::as_object_mut) {
        data.insert("format".to_owned(), of(format).name().into());
        data.insert("model".to_owned(), model.into());
        data.insert("base_url".to_owned(), format.base_url().into());
    }
    AssistantTurn {
        text: reply.text,
        reasoning: reply.reasoning,
        tool_calls: calls.collect(),
        finish_reason: reply.finish_reason,
        stop_reason: reply.stop_reason,
        usage: reply.usage,
        response_id: reply.response_id,
        provider_data,
    }
}

/// Returns the parts of a request that the provider needs, after the first user message, normalized
/// so that two clients can be compared.
fn needed(format: WireFormat, request: &Value) -> Vec<Value> {
    let texts = |content: &Value| match content {
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<String>()
        }
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    let parsed = |text: &Value| -> Value { serde_json::from_str(text.as_str().unwrap()).unwrap() };
    let list = ["messages", "input", "contents"]
        .into_iter()
        .find_map(|name| request[name].as_array())
        .unwrap();
    let mut out = Vec::new();
    for message in list {
        let role = message["role"].as_str().unwrap_or_default();
        match format {
            WireFormat::Anthropic => {
                for block in message["content"].as_array().unwrap() {
                    match block["type"].as_str().unwrap() {
                        "text"
                            if role == "user"
                                || block["text"].as_str().unwrap().trim().is_empty() => {}
                        "tool_result" => {
                            out.push(json!([role, block["tool_use_id"], texts(&block["content"])]))
                        }
                        _ => {
                            let mut block = block.clone();
                            block.as_object_mut().unwrap().remove("cache_control");
                            out.push(json!([role, block]));
                        }
                    }
                }
            }
            WireFormat::Openai => match message["type"].as_str().unwrap_or("message") {
                "function_call" => out.push(json!([
                    message["call_id"],
                    message["name"],
                    parsed(&message["arguments"])
                ])),
                "reasoning" => out.push(json!([message["id"], message["encrypted_content"]])),
                "message" if role == "user" => {}
                "message" => out.push(json!([
                    message["id"],
                    message["phase"],
                    texts(&message["content"]).replace(['“', '”'], "\"").replace('’', "'")
                ])),
                _ => out.push(json!([message["type"], message["call_id"], message["output"]])),
            },
            WireFormat::Gemini => {
                for part in message["parts"].as_array().unwrap() {
                    let call = part.get("functionCall").or_else(|| part.get("function_call"));
                    let response =
                        part.get("functionResponse").or_else(|| part.get("function_response"));
                    if let Some(call) = call {
                        // One client writes base64 in the URL-safe alphabet.
                        let signature = part["thoughtSignature"]
                            .as_str()
                            .map(|text| text.replace('-', "+").replace('_', "/"));
                        out.push(json!([role, call["name"], call["args"], signature]));
                    } else if let Some(response) = response {
                        out.push(json!([role, response["name"]]));
                    }
                }
            }
            WireFormat::Ollama | WireFormat::OpenaiChat => match role {
                "assistant" => {
                    for call in message["tool_calls"].as_array().into_iter().flatten() {
                        let arguments = &call["function"]["arguments"];
                        let arguments = match arguments {
                            Value::String(_) => parsed(arguments),
                            other => other.clone(),
                        };
                        // One client sends `null` for missing arguments.
                        let arguments = if arguments.is_null() { json!({}) } else { arguments };
                        let id = if format == WireFormat::Ollama {
                            Value::Null
                        } else {
                            call["id"].clone()
                        };
                        out.push(json!([role, id, call["function"]["name"], arguments]));
                    }
                    out.extend(message.get("reasoning_details").cloned());
                }
                "tool" => out.push(json!([
                    role,
                    message["tool_call_id"],
                    message["tool_name"],
                    texts(&message["content"])
                ])),
                _ => {}
            },
        }
    }
    out
}

/// If a recording has the request that another client sent next, ours equals it in everything that
/// the provider needs.
// conforms 004-T23, 004-T24
#[tokio::test]
async fn what_is_sent_next_is_what_the_provider_needs() {
    for (format, name, _) in FORMATS {
        let mut compared = 0;
        for record in records(name) {
            let Some(next) = record["next_request_file"].as_str() else { continue };
            let body = body(name, &record);
            let Ok(reply) = play(format, &record, &body, 7).await else { continue };
            let theirs = needed(format, &json_file(&directory(name).join(next)));
            let model = "m";
            let mut turn = turn(reply, format, model);
            // If the provider sent no id, each client generates its own.
            if format == WireFormat::OpenaiChat {
                let theirs = theirs.iter().rev().filter(|item| item[0] == "assistant");
                for (call, theirs) in turn.tool_calls.iter_mut().rev().zip(theirs) {
                    if call.call_id.as_str().starts_with("call_1_") {
                        call.call_id = CallId::parse(theirs[1].as_str().unwrap()).unwrap();
                    }
                }
            }
            let mut results: Vec<ToolResult> = turn
                .tool_calls
                .iter()
                .map(|call| ToolResult {
                    images: Vec::new(),
                    call_id: call.call_id.clone(),
                    name: call.name.clone(),
                    content: String::new(),
                    is_error: false,
                })
                .collect();
            // Use the recorded results, in their order.
            let contents = theirs.iter().filter(|item| match format {
                WireFormat::Anthropic => item[0] == "user",
                WireFormat::Openai => item[0] == "function_call_output",
                WireFormat::OpenaiChat | WireFormat::Ollama => item[0] == "tool",
                WireFormat::Gemini => false,
            });
            let contents: Vec<&Value> = contents.collect();
            for (result, theirs) in results.iter_mut().rev().zip(contents.iter().rev()) {
                result.content =
                    theirs.as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
            }
            let history = [
                Turn::User("task".to_owned()),
                Turn::Assistant(Box::new(turn)),
                Turn::ToolResults(results),
            ];
            let request = ModelRequest {
                system: "s",
                stable: 0,
                parallel_calls: true,
                history: &history,
                tools: &[],
                max_output_tokens: None,
                follows_cut: false,
                output_schema: None,
                input_tokens: 0,
            };
            let ours = of(format).outgoing(&settings(format, model), request).body;
            let tool_names = |items: Vec<Value>| -> Vec<Value> {
                // The other client of Ollama sends no call id with a result; chat servers need no
                // tool name.
                items
                    .into_iter()
                    .map(|mut item| {
                        if item[0] == "tool" {
                            let field = if format == WireFormat::Ollama { 1 } else { 2 };
                            item[field] = Value::Null;
                        }
                        // The other client drops it; newer models of Anthropic need it.
                        if let Some(block) = item.get_mut(1).and_then(Value::as_object_mut) {
                            block.remove("caller");
                        }
                        item
                    })
                    .collect()
            };
            let ours = tool_names(needed(format, &ours));
            // Our history begins with this answer, so skip what precedes the answer in theirs.
            let before = theirs.len() - ours.len();
            assert_eq!(ours, tool_names(theirs[before..].to_vec()), "{}", record["id"]);
            compared += 1;
        }
        println!("{name:20} {compared:3} next requests compared");
        assert!(compared > 1, "{name}");
    }
}

fn sse(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\r\n\r\n")).collect()
}

// proves PROV-5
#[tokio::test]
async fn odd_answers_are_read_or_named() {
    for (format, name, _) in FORMATS {
        let class = |text: &'static str| async move {
            answer(format, text.as_bytes(), 5).await.unwrap_err().class
        };
        assert_eq!(class("<html>busy</html>\n\n").await, ErrorClass::MalformedResponse, "{name}");
        assert_eq!(class("data: {not json}\n\n").await, ErrorClass::MalformedResponse, "{name}");
        assert_eq!(class("null").await, ErrorClass::MalformedResponse, "{name}");
        assert_eq!(class("").await, ErrorClass::StreamInterrupted, "{name}");
        assert_eq!(class("data: {}\n\n").await, ErrorClass::StreamInterrupted, "{name}");
        assert_eq!(
            class("{\"error\":{\"message\":\"x\",\"code\":503}}").await,
            ErrorClass::Overloaded,
            "{name}"
        );
        assert_eq!(class("{\"error\":\"model crash\"}").await, ErrorClass::Server, "{name}");
        assert_eq!(
            class("data: {\"error\":{\"message\":\"slow down\",\"code\":429}}\n\n").await,
            ErrorClass::RateLimit,
            "{name}"
        );
        let wrong = answer(format, br#"{"hello":"world"}"#, 9).await.unwrap_err();
        assert!(
            matches!(wrong.class, ErrorClass::MalformedResponse | ErrorClass::StreamInterrupted),
            "{name}: {wrong}"
        );
    }
}

/// Text that looks like a tool call or an event stays text.
// proves LLM-2
// conforms 004-8.4
#[tokio::test]
async fn a_call_that_is_only_written_is_no_call() {
    let text = "<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call> [DONE] \n\ndata: {\"choices\":[]}";
    let chat = json!({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]});
    let anthropic = json!({"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"});
    let openai = json!({"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]});
    let gemini =
        json!({"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]});
    let ollama = json!({"message": {"content": text}, "done": true});
    for (format, body) in [
        (WireFormat::OpenaiChat, chat),
        (WireFormat::Anthropic, anthropic),
        (WireFormat::Openai, openai),
        (WireFormat::Gemini, gemini),
        (WireFormat::Ollama, ollama),
    ] {
        let reply = answer(format, body.to_string().as_bytes(), 10).await.unwrap();
        assert_eq!((reply.text.as_str(), reply.calls.len()), (text, 0), "{format:?}");
    }
}

#[tokio::test]
async fn odd_chat_streams_are_read_or_named() {
    let stream =
        |text: String| async move { answer(WireFormat::OpenaiChat, text.as_bytes(), 5).await };
    let chunk = |delta: Value, finish: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let text = format!(
        "\u{feff}: hello\r\n\r\n{}data: [DONE]\r\n\r\n",
        sse(&[
            chunk(json!({"content": "a"}), Value::Null),
            chunk(json!({"content": "b"}), json!("stop"))
        ])
    );
    assert_eq!(stream(text).await.unwrap().text, "ab");
    assert_eq!(
        stream("data: [DONE]\n\n".to_owned()).await.unwrap_err().class,
        ErrorClass::MalformedResponse
    );
    let finished = sse(&[chunk(json!({"content": "whole"}), json!("stop"))]);
    let broken =
        [Ok(Bytes::from(finished)), Err(ModelError::new(ErrorClass::StreamInterrupted, "cut"))];
    let format = of(WireFormat::OpenaiChat);
    let reply =
        read(true, futures_util::stream::iter(broken), format.as_ref(), &DiscardDeltas).await;
    assert_eq!(reply.unwrap().text, "whole");
    let vllm = sse(&[
        chunk(json!({"content": "half"}), Value::Null),
        json!({"object": "error", "message": "CUDA out of memory", "code": 500}),
    ]);
    assert_eq!(stream(vllm).await.unwrap_err().class, ErrorClass::Server);
    let failed = sse(&[chunk(json!({"content": "x"}), json!("insufficient_system_resource"))]);
    assert_eq!(stream(failed).await.unwrap_err().class, ErrorClass::Server);
    let call = |id: &str, name: &str| json!({"tool_calls": [{"index": 0, "id": id, "function": {"name": name, "arguments": "{}"}}]});
    let same_index = sse(&[
        chunk(call("a", "x"), Value::Null),
        chunk(call("b", "y"), Value::Null),
        chunk(json!({}), json!("tool_calls")),
    ]);
    let calls = stream(same_index).await.unwrap().calls;
    assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
}

#[tokio::test]
async fn lines_are_read_as_they_come_and_as_one_object() {
    let done = json!({"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": true, "done_reason": "stop"});
    let pretty = serde_json::to_string_pretty(&done).unwrap();
    for text in [done.to_string(), format!("\n{done}\r\n"), pretty] {
        assert_eq!(
            answer(WireFormat::Ollama, text.as_bytes(), 3).await.unwrap().text,
            "hi",
            "{text}"
        );
    }
    let cut =
        json!({"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": false});
    for text in [format!("{cut}\n"), format!("{cut}\n{{\"mess"), format!("{cut}\n{{\n")] {
        let error = answer(WireFormat::Ollama, text.as_bytes(), 4).await.unwrap_err();
        assert!(
            matches!(error.class, ErrorClass::StreamInterrupted | ErrorClass::MalformedResponse),
            "{text}: {error}"
        );
    }
}

// proves PROV-4
#[tokio::test]
async fn an_endless_answer_is_refused_in_bounded_memory() {
    for (format, name, _) in FORMATS {
        for start in ["data: ", "[", "{", "x"] {
            let endless = futures_util::stream::iter([Ok::<_, ModelError>(Bytes::from(start))])
                .chain(futures_util::stream::repeat_with(|| Ok(Bytes::from(vec![b'x'; 1 << 20]))));
            let error = read(true, Box::pin(endless), of(format).as_ref(), &DiscardDeltas)
                .await
                .unwrap_err();
            assert!(error.message.contains("more than"), "{name} {start}: {error}");
        }
    }
}

// proves PROV-4
#[tokio::test]
async fn an_answer_that_never_stops_saying_a_little_more_is_refused() {
    let said = "y".repeat(400);
    let empty = vec![json!({}); 90];
    for (format, before, piece) in [
        (
            WireFormat::Anthropic,
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "b", "input": {}}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": said}}),
        ),
        (
            WireFormat::Anthropic,
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": empty}}),
        ),
        (
            WireFormat::Openai,
            json!({"type": "response.created", "response": {}}),
            json!({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": said}),
        ),
        (
            WireFormat::OpenaiChat,
            json!({"choices": []}),
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "b", "arguments": said}}]}}]}),
        ),
        (
            WireFormat::Gemini,
            json!({}),
            json!({"candidates": [{"content": {"parts": [{"text": said, "thought": true}]}}]}),
        ),
        (
            WireFormat::Ollama,
            json!({"message": {"content": ""}}),
            json!({"message": {"content": "", "thinking": said}}),
        ),
    ] {
        let line = |value: &Value| match of(format).framing() {
            super::format::Framing::Events => Bytes::from(format!("data: {value}\n\n")),
            super::format::Framing::Lines => Bytes::from(format!("{value}\n")),
        };
        let (before, piece) = (line(&before), line(&piece));
        let mut given = 0;
        let endless = futures_util::stream::iter([Ok::<_, ModelError>(before)]).chain(
            futures_util::stream::repeat_with(|| {
                given += piece.len();
                Ok(piece.clone())
            }),
        );
        let error =
            read(true, Box::pin(endless), of(format).as_ref(), &DiscardDeltas).await.unwrap_err();
        assert_eq!(error.message, "the answer has more than 8388608 bytes", "{format:?}");
        assert!(given < 24 << 20, "{format:?}: {given}");
    }
}

use futures_util::StreamExt as _;

/// Reads a line of 4 MiB in small chunks, and rejects a response with too many calls.
#[tokio::test]
async fn one_long_line_is_read_and_many_calls_are_not() {
    let long = "y".repeat(4 << 20);
    let chat = sse(&[
        json!({"choices": [{"index": 0, "delta": {"content": long}, "finish_reason": "stop"}]}),
    ]);
    assert_eq!(
        answer(WireFormat::OpenaiChat, chat.as_bytes(), 1400).await.unwrap().text.len(),
        4 << 20
    );
    let line = json!({"message": {"role": "assistant", "content": long}, "done": true}).to_string();
    assert_eq!(
        answer(WireFormat::Ollama, line.as_bytes(), 1400).await.unwrap().text.len(),
        4 << 20
    );
    let calls: Vec<Value> = (0..2000)
        .map(|n| json!({"type": "tool_use", "id": format!("t{n}"), "name": "x", "input": {}}))
        .collect();
    let many = json!({"type": "message", "content": calls, "stop_reason": "tool_use"}).to_string();
    let error = answer(WireFormat::Anthropic, many.as_bytes(), 1000).await.unwrap_err();
    assert!(error.message.contains("calls"), "{error}");
}

/// Signatures and encrypted reasoning of one model are meaningless to another.
#[tokio::test]
async fn what_was_kept_for_one_model_is_not_sent_to_another() {
    let record =
        records("anthropic-messages").into_iter().find(|record| record["id"] == "ant-04").unwrap();
    let body = body("anthropic-messages", &record);
    let reply = play(WireFormat::Anthropic, &record, &body, 1000).await.unwrap();
    let history = [
        Turn::User("x".into()),
        Turn::Assistant(Box::new(turn(reply, WireFormat::Anthropic, "one"))),
    ];
    for (format, model, kept) in [
        (WireFormat::Anthropic, "one", true),
        (WireFormat::Anthropic, "two", false),
        (WireFormat::Openai, "one", false),
        (WireFormat::Gemini, "one", false),
        (WireFormat::OpenaiChat, "one", false),
    ] {
        let request = ModelRequest {
            system: "s",
            stable: 0,
            parallel_calls: true,
            history: &history,
            tools: &[],
            max_output_tokens: None,
            follows_cut: false,
            output_schema: None,
            input_tokens: 0,
        };
        let sent = of(format).outgoing(&settings(format, model), request).body.to_string();
        assert_eq!(sent.contains("\"signature\""), kept, "{format:?} {model}");
        assert!(sent.contains("fixed_version"), "{format:?}: the call itself must be sent");
    }
}

fn chat(delta: Value, finish: Value) -> Value {
    json!({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

async fn chat_calls(events: &[Value]) -> Vec<(Option<String>, String, String)> {
    let reply = answer(WireFormat::OpenaiChat, sse(events).as_bytes(), 50).await.unwrap();
    reply.calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
}

fn piece(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    chat(
        json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}),
        Value::Null,
    )
}

// proves LLM-6
#[tokio::test]
async fn calls_of_chat_servers_are_told_apart() {
    let end = || chat(json!({}), json!("tool_calls"));
    let names = |calls: Vec<(Option<String>, String, String)>| -> Vec<String> {
        calls.into_iter().map(|(_, name, arguments)| format!("{name}{arguments}")).collect()
    };
    let no_ids = [piece(0, "", "a", "{}"), piece(0, "", "b", "{}"), end()];
    assert_eq!(names(chat_calls(&no_ids).await), ["a{}", "b{}"]);
    let fresh_ids = [piece(0, "1", "a", "{\"x\":"), piece(0, "2", "", "1}"), end()];
    assert_eq!(names(chat_calls(&fresh_ids).await), ["a{\"x\":1}"]);
    let names_again =
        [piece(0, "1", "a", ""), piece(0, "1", "a", "{\"x\":"), piece(0, "1", "a", "1}"), end()];
    assert_eq!(names(chat_calls(&names_again).await), ["a{\"x\":1}"]);
    let blank_behind = [piece(0, "", "a", "{}"), piece(0, "", "a", "\n"), end()];
    assert_eq!(names(chat_calls(&blank_behind).await), ["a{}\n"]);
    let named_behind =
        [piece(0, "", "a", "{}"), piece(0, "", "b", ""), piece(0, "", "", "{}"), end()];
    assert_eq!(names(chat_calls(&named_behind).await), ["a{}", "b{}"]);
    let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
    let same_id = json!({"choices": [{"message": {"tool_calls": [call("i", "a"), call("i", "b")]}, "finish_reason": "tool_calls"}]});
    let reply = answer(WireFormat::OpenaiChat, same_id.to_string().as_bytes(), 9).await.unwrap();
    assert_eq!(reply.calls.len(), 2);
    let legacy = json!({"choices": [{"message": {"content": null, "function_call": {"name": "a", "arguments": "{}"}}, "finish_reason": "function_call"}]});
    let reply = answer(WireFormat::OpenaiChat, legacy.to_string().as_bytes(), 9).await.unwrap();
    assert_eq!((reply.calls.len(), reply.finish_reason), (1, FinishReason::ToolCalls));
    let custom = json!({"choices": [{"message": {"tool_calls": [{"id": "i", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}]}, "finish_reason": "tool_calls"}]});
    let reply = answer(WireFormat::OpenaiChat, custom.to_string().as_bytes(), 9).await.unwrap();
    assert_eq!(
        (reply.calls[0].name.as_str(), reply.calls[0].arguments.as_str()),
        ("sql", r#"{"input":"SELECT 1"}"#)
    );
}

#[tokio::test]
async fn words_and_numbers_of_other_servers_are_understood() {
    let whole = |finish: &str, usage: Value| {
        json!({"choices": [{"message": {"content": "x"}, "finish_reason": finish}], "usage": usage})
            .to_string()
    };
    for (word, expected) in [
        ("STOP", FinishReason::Stop),
        ("MAX_TOKENS", FinishReason::Length),
        ("content_filter: PROHIBITED_CONTENT", FinishReason::ContentFilter),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", FinishReason::InvalidToolCall),
        ("refusal", FinishReason::Refusal),
    ] {
        let reply =
            answer(WireFormat::OpenaiChat, whole(word, Value::Null).as_bytes(), 9).await.unwrap();
        assert_eq!(reply.finish_reason, expected, "{word}");
    }
    let beside = json!({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135, "completion_tokens_details": {"reasoning_tokens": 94}});
    let usage = answer(WireFormat::OpenaiChat, whole("stop", beside).as_bytes(), 9)
        .await
        .unwrap()
        .usage
        .unwrap();
    assert_eq!((usage.output_tokens, usage.reasoning_tokens), (103, 94));
    for (word, class) in [
        ("OTHER", ErrorClass::Server),
        ("MALFORMED_RESPONSE", ErrorClass::MalformedResponse),
        ("MISSING_THOUGHT_SIGNATURE", ErrorClass::BadRequest),
    ] {
        let body = json!({"candidates": [{"content": {}, "finishReason": word}]}).to_string();
        assert_eq!(
            answer(WireFormat::Gemini, body.as_bytes(), 9).await.unwrap_err().class,
            class,
            "{word}"
        );
    }
}

/// The text, calls and finish reason of other candidates are ignored.
// proves LLM-2
#[tokio::test]
async fn only_the_first_candidate_is_taken() {
    let text = |index: Value, text: &str| json!({"id": "x", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": null}]});
    let call = |index: u64, name: &str, finish: Value| json!({"id": "x", "choices": [{"index": index, "delta": {"tool_calls": [{"index": 0, "id": name, "function": {"name": name, "arguments": "{}"}}]}, "finish_reason": finish}]});
    let both = json!({"id": "x", "choices": [
        {"index": 1, "delta": {"content": "B"}, "finish_reason": "length"},
        {"index": 0, "delta": {"content": "e"}, "finish_reason": null},
    ]});
    let chat = [
        text(json!(0), "a"),
        text(json!(1), "B"),
        text(Value::Null, "b"),
        json!({"id": "x", "choices": [{"delta": {"content": "c"}}]}),
        both,
        call(1, "rm", json!("tool_calls")),
        json!({"id": "x", "choices": [{"index": 2, "delta": {"refusal": "no"}, "finish_reason": "content_filter"}]}),
        json!({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        json!({"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}),
    ];
    let reply = answer(WireFormat::OpenaiChat, sse(&chat).as_bytes(), 50).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.calls.len()), ("abce", 0));
    assert_eq!((reply.finish_reason, reply.explanation), (FinishReason::Stop, None));
    assert_eq!(reply.usage.unwrap().output_tokens, 4);
    let whole = json!({"choices": [
        {"index": 1, "message": {"content": "B"}, "finish_reason": "stop"},
        {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"},
    ]});
    let reply = answer(WireFormat::OpenaiChat, whole.to_string().as_bytes(), 50).await.unwrap();
    assert_eq!(reply.text, "a");
    let part = |index: Value, part: Value| json!({"candidates": [{"index": index, "content": {"parts": [part]}}], "usageMetadata": {"promptTokenCount": 3}});
    let gemini = [
        part(json!(0), json!({"text": "a"})),
        part(json!(1), json!({"text": "B"})),
        part(Value::Null, json!({"text": "b"})),
        part(json!(1), json!({"functionCall": {"name": "rm", "args": {}}})),
        json!({"candidates": [{"index": 0, "finishReason": "STOP"}]}),
    ];
    let reply = answer(WireFormat::Gemini, sse(&gemini).as_bytes(), 50).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.calls.len()), ("ab", 0));
    assert_eq!(reply.finish_reason, FinishReason::Stop);
}

/// Returns an answer with a text and calls, as a server of this format sends it without streaming.
fn with_calls(format: WireFormat, text: &str, calls: &[(&str, Value)]) -> Value {
    let calls = calls.iter();
    match format {
        WireFormat::OpenaiChat => {
            let calls: Vec<Value> = calls
                .map(|(name, arguments)| json!({"id": name, "function": {"name": name, "arguments": arguments.to_string()}, "extra_content": {"of": name}}))
                .collect();
            json!({"choices": [{"message": {"content": text, "tool_calls": calls}, "finish_reason": "tool_calls"}]})
        }
        WireFormat::Anthropic => {
            let thinking = json!({"type": "thinking", "thinking": "t", "signature": "s"});
            let blocks = calls.map(|(name, input)| json!({"type": "tool_use", "id": format!("t{name}"), "name": name, "input": input}));
            let text = json!({"type": "text", "text": text});
            let content: Vec<Value> = [thinking, text].into_iter().chain(blocks).collect();
            json!({"content": content, "stop_reason": "tool_use"})
        }
        WireFormat::Openai => {
            let message =
                json!({"type": "message", "content": [{"type": "output_text", "text": text}]});
            let reasoning = json!({"type": "reasoning", "encrypted_content": "e"});
            let items = calls.map(|(name, arguments)| json!({"type": "function_call", "call_id": format!("c{name}"), "name": name, "arguments": arguments.to_string()}));
            let output: Vec<Value> = [reasoning, message].into_iter().chain(items).collect();
            json!({"status": "completed", "output": output})
        }
        WireFormat::Gemini => {
            let calls = calls.map(|(name, args)| json!({"functionCall": {"name": name, "args": args}, "thoughtSignature": "s"}));
            let parts: Vec<Value> = std::iter::once(json!({"text": text})).chain(calls).collect();
            json!({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
        }
        WireFormat::Ollama => {
            let calls: Vec<Value> = calls
                .map(
                    |(name, arguments)| json!({"function": {"name": name, "arguments": arguments}}),
                )
                .collect();
            json!({"message": {"content": text, "tool_calls": calls}, "done": true})
        }
    }
}

// proves LLM-2
// conforms 004-T20
#[tokio::test]
async fn a_call_without_a_name_is_no_call() {
    let (none, some) = (json!({}), json!({"a": 1}));
    for (format, name, _) in FORMATS {
        let read = |text: &'static str, calls: Vec<(&'static str, Value)>| async move {
            let body = with_calls(format, text, &calls).to_string();
            answer(format, body.as_bytes(), 50).await.unwrap()
        };
        for text in ["done", ""] {
            let body = with_calls(format, text, &[("", none.clone())]).to_string();
            let reply = answer(format, body.as_bytes(), 50).await;
            if matches!(format, WireFormat::OpenaiChat | WireFormat::Anthropic) {
                // The finish reason announces a call.
                let error = reply.unwrap_err();
                assert_eq!(error.class, ErrorClass::MalformedResponse, "{name}");
                continue;
            }
            let reply = reply.unwrap();
            assert_eq!((reply.calls.len(), reply.finish_reason), (0, FinishReason::Stop), "{name}");
        }
        let reply = read("I restart it now.", vec![("", some.clone())]).await;
        assert_eq!(reply.calls.len(), 0, "{name}");
        assert_eq!(reply.finish_reason, FinishReason::InvalidToolCall, "{name}");
        let reply = read("", vec![(" ", some.clone())]).await;
        assert_eq!(reply.calls.len(), 0, "{name}");
        assert_eq!(reply.finish_reason, FinishReason::InvalidToolCall, "{name}");
        let reply = read("", vec![("", some.clone()), ("look", some.clone())]).await;
        assert_eq!(reply.finish_reason, FinishReason::ToolCalls, "{name}");
        let names: Vec<&str> = reply.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, ["look"], "{name}");
        // The data kept for the provider is sent back with the call to which it belongs.
        let history = [user(), Turn::Assistant(Box::new(turn(reply, format, "m")))];
        let sent = sent_body(&settings(format, "m"), &history).to_string();
        let is_kept = match format {
            WireFormat::OpenaiChat => sent.contains(r#""extra_content":{"of":"look"}"#),
            WireFormat::Gemini => sent.matches("thoughtSignature").count() == 1,
            _ => true,
        };
        assert!(is_kept && !sent.contains("unknown") && !sent.contains(r#""name":"""#), "{sent}");
    }
    // A server may fill in the deprecated `function_call` field in addition to the answer.
    let legacy = json!({"choices": [{"message": {"content": "done", "function_call": {"name": "", "arguments": ""}}, "finish_reason": "stop"}]});
    let reply = answer(WireFormat::OpenaiChat, legacy.to_string().as_bytes(), 9).await.unwrap();
    assert_eq!((reply.calls.len(), reply.finish_reason), (0, FinishReason::Stop));
    let custom = json!({"status": "completed", "output": [{"type": "custom_tool_call", "call_id": "c", "name": "", "input": ""}]});
    let reply = answer(WireFormat::Openai, custom.to_string().as_bytes(), 9).await.unwrap();
    assert_eq!((reply.calls.len(), reply.finish_reason), (0, FinishReason::Stop));
    let message = json!({"content": "done", "tool_calls": []});
    for (format, empty) in [
        (
            WireFormat::OpenaiChat,
            json!({"choices": [{"message": message, "finish_reason": "stop"}]}),
        ),
        (WireFormat::Ollama, json!({"message": message, "done": true})),
    ] {
        let reply = answer(format, empty.to_string().as_bytes(), 9).await.unwrap();
        assert_eq!((reply.calls.len(), reply.finish_reason), (0, FinishReason::Stop));
    }
    let call =
        |call: Value| json!({"candidates": [{"content": {"parts": [{"functionCall": call}]}}]});
    let goes_on = [
        call(json!({"name": "look", "willContinue": true})),
        call(json!({"name": "", "partialArgs": [{"jsonPath": "$.a", "stringValue": "v"}]})),
        json!({"candidates": [{"finishReason": "STOP"}]}),
    ];
    let reply = answer(WireFormat::Gemini, sse(&goes_on).as_bytes(), 50).await.unwrap();
    assert_eq!((reply.calls.len(), reply.calls[0].arguments.as_str()), (1, r#"{"a":"v"}"#));
}

// proves LLM-5
#[tokio::test]
async fn a_call_that_may_be_cut_is_not_executed() {
    let cut = json!({"stop_reason": "max_tokens", "content": [
        {"type": "tool_use", "id": "a", "name": "write", "input": {"path": "a", "text": "x"}},
        {"type": "tool_use", "id": "b", "name": "write", "input": {"path": "b"}},
    ]});
    let reply = answer(WireFormat::Anthropic, cut.to_string().as_bytes(), 50).await.unwrap();
    assert_eq!(reply.finish_reason, FinishReason::Length);
    let parses: Vec<bool> =
        reply.calls.iter().map(|call| parse_arguments(&call.arguments).is_ok()).collect();
    assert_eq!(parses, [true, false], "{:?}", reply.calls);
}

// proves LLM-6
#[tokio::test]
async fn calls_that_share_an_id_are_not_mixed() {
    let part = |name: &str| json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": name, "arguments": "{}"}}]}}]});
    let end = json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]});
    let stream = sse(&[part("look"), part("look"), part("change"), end]);
    let reply = answer(WireFormat::OpenaiChat, stream.as_bytes(), 50).await.unwrap();
    let names: Vec<&str> = reply.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["look", "change"]);
}

#[tokio::test]
async fn an_error_that_says_nothing_beside_an_answer_is_no_error() {
    for (format, name, _) in FORMATS {
        for error in [json!({"code": 0, "message": ""}), json!({"message": "", "code": null})] {
            let mut body = with_calls(format, "done", &[("look", json!({}))]);
            body["error"] = error;
            let reply = answer(format, body.to_string().as_bytes(), 50).await.unwrap();
            assert_eq!(reply.text, "done", "{name}");
        }
        let mut body = with_calls(format, "done", &[("look", json!({}))]);
        body["error"] = json!({"code": 0, "message": "overloaded"});
        assert!(answer(format, body.to_string().as_bytes(), 50).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn calls_beside_a_refusal_are_not_run() {
    let call =
        json!([{"id": "i", "type": "function", "function": {"name": "rm", "arguments": "{}"}}]);
    for (word, expected) in [
        ("tool_calls", FinishReason::Refusal),
        ("stop", FinishReason::Refusal),
        ("length", FinishReason::Refusal),
        ("refusal", FinishReason::Refusal),
        ("content_filter", FinishReason::ContentFilter),
    ] {
        let body = json!({"choices": [{"message": {"refusal": "no", "tool_calls": call}, "finish_reason": word}]});
        let reply = answer(WireFormat::OpenaiChat, body.to_string().as_bytes(), 9).await.unwrap();
        assert_eq!(reply.finish_reason, expected, "{word}");
        let alone =
            json!({"choices": [{"message": {"refusal": "no"}, "finish_reason": word}]}).to_string();
        let reply = answer(WireFormat::OpenaiChat, alone.as_bytes(), 9).await.unwrap();
        assert_eq!(reply.finish_reason, expected, "{word}");
    }
    for status in ["completed", "incomplete"] {
        let body = json!({"status": status, "output": [
            {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},
            {"type": "function_call", "call_id": "c", "name": "rm", "arguments": "{}"},
        ]});
        let reply = answer(WireFormat::Openai, body.to_string().as_bytes(), 9).await.unwrap();
        assert_eq!(reply.finish_reason, FinishReason::Refusal, "{status}");
    }
    let blocked = json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": "rm", "args": {}}}]}, "finishReason": "STOP"}], "promptFeedback": {"blockReason": "SAFETY"}});
    let reply = answer(WireFormat::Gemini, blocked.to_string().as_bytes(), 9).await.unwrap();
    assert_eq!(reply.finish_reason, FinishReason::ContentFilter);
}

/// Serves one request with this status and body; returns the model's result.
async fn served(
    format: WireFormat,
    status: u16,
    body: String,
    base: &str,
) -> Result<ModelReply, ModelError> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}{base}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            stream.read_buf(&mut seen).await.unwrap();
        }
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        // Read the rest of the request, so that closing does not reset the connection.
        stream.shutdown().await.unwrap();
        while stream.read_buf(&mut seen).await.is_ok_and(|count| count > 0) {}
    });
    let remote = Remote { stream: false, base_url, ..settings(format, "m") };
    let secret = Secret { name: "KEY".into(), value: "hunter2hunter2".into() };
    let (clients, redactor) = (HttpClients::default(), Redactor::new(&[secret]));
    let model = RemoteModel::new(remote, clients, Arc::new(SystemClock), redactor);
    let history = [user()];
    let request = ModelRequest {
        system: "s",
        stable: 0,
        parallel_calls: true,
        history: &history,
        tools: &[],
        max_output_tokens: None,
        follows_cut: false,
        output_schema: None,
        input_tokens: 0,
    };
    let reply = model.call(request, &DiscardDeltas).await;
    server.await.unwrap();
    reply
}

// proves SEC-2
#[tokio::test]
async fn an_error_is_cut_only_after_secrets_are_removed() {
    let said = |before: usize| format!("{}hunter2hunter2 {}", "x".repeat(before), "y".repeat(900));
    for before in [0, 105, 580, 590] {
        let error = json!({"error": {"message": said(before)}}).to_string();
        for (status, body) in [(401, error.clone()), (200, error), (200, said(before))] {
            let error = served(WireFormat::OpenaiChat, status, body, "").await.unwrap_err().message;
            assert!(!error.contains("hunter2") && error.chars().count() == 600, "{error}");
        }
    }
}

// proves SEC-2
#[tokio::test]
async fn kept_data_with_a_secret_rejects_the_answer() {
    let body = |signature: &str| {
        let content = json!([{"type": "thinking", "thinking": "t", "signature": signature}, {"type": "text", "text": "x"}]);
        json!({"content": content, "stop_reason": "end_turn"}).to_string()
    };
    let error = served(WireFormat::Anthropic, 200, body("a hunter2hunter2"), "").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::BadRequest, "{error}");
    assert!(error.message.contains("provider_data") && !error.message.contains("hunter2"));
    let reply = served(WireFormat::Anthropic, 200, body("fine"), "").await.unwrap();
    assert!(reply.provider_data.unwrap()["base_url"].as_str().unwrap().starts_with("http://"));
    // A base URL with a secret is recognized, but only its digest is kept.
    let reply = served(WireFormat::Anthropic, 200, body("fine"), "/hunter2hunter2").await.unwrap();
    let data = reply.provider_data.unwrap();
    assert!(!data.to_string().contains("hunter2"), "{data}");
    let remote =
        Remote { base_url: "http://h/hunter2".into(), ..settings(WireFormat::Anthropic, "m") };
    let mut data = data;
    data["base_url"] = digest_of(&remote.base_url).into();
    let history = [user(), said("x", &[], data), user()];
    assert!(sent_body(&remote, &history).to_string().contains("fine"));
}

/// Covers input that the standard permits, and deviations of real servers.
#[tokio::test]
async fn events_are_framed_as_the_standard_has_it() {
    let read = |text: String| async move {
        let mut found = Vec::new();
        for size in [1, 7, 1000] {
            found.push(
                answer(WireFormat::OpenaiChat, text.as_bytes(), size)
                    .await
                    .map(|reply| reply.text)
                    .map_err(|error| error.class),
            );
        }
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{text}: {found:?}");
        found.remove(0)
    };
    let done = chat(json!({"content": "hi"}), json!("stop")).to_string();
    let lines = done.split_at(5);
    for text in [
        format!("retry: soon\nunknown: x\nno colon\nevent: a\nevent: b\nid\ndata: {done}\n\n"),
        format!("data: {done}\n"),
        format!("data: {done}"),
        format!("data:{done}\r\n\r\n"),
        format!("event: a\rdata: {done}\r\r"),
        format!("data: {}\rdata: {}\r\n\n", lines.0, lines.1),
        format!("data: {}\ndata: {}\n\n", lines.0, lines.1),
    ] {
        assert_eq!(read(text).await, Ok("hi".to_owned()));
    }
    assert_eq!(
        read("error: {\"code\":500,\"message\":\"oops\"}\n\n".to_owned()).await,
        Err(ErrorClass::Server)
    );
    assert_eq!(
        read(format!("data: {}", done.split_at(done.len() - 3).0)).await,
        Err(ErrorClass::StreamInterrupted)
    );
}

// proves LLM-5
#[tokio::test]
async fn a_call_that_was_cut_never_parses() {
    let start = |index: u64| json!({"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "id": format!("t{index}"), "name": "x", "input": {}}});
    let end = |reason: &str| json!({"type": "message_delta", "delta": {"stop_reason": reason}});
    let calls = |events: Vec<Value>, format| async move {
        let reply = answer(format, sse(&events).as_bytes(), 50).await.unwrap();
        reply.calls.iter().map(|call| parse_arguments(&call.arguments).is_ok()).collect::<Vec<_>>()
    };
    let head = || json!({"type": "message_start", "message": {"id": "m"}});
    assert_eq!(
        calls(vec![head(), start(0), start(1), end("max_tokens")], WireFormat::Anthropic).await,
        [true, false]
    );
    assert_eq!(calls(vec![head(), start(0), end("tool_use")], WireFormat::Anthropic).await, [true]);
    let item = |status: &str, arguments: &str| json!({"type": "function_call", "call_id": "c", "name": "x", "arguments": arguments, "status": status});
    for (status, arguments, whole) in
        [("incomplete", "", false), ("incomplete", "{\"a\":1}", false), ("completed", "{}", true)]
    {
        let response = json!({"type": "response.completed", "response": {"status": "completed", "output": [item(status, arguments)]}});
        assert_eq!(
            calls(vec![response], WireFormat::Openai).await,
            [whole],
            "{status} {arguments}"
        );
    }
    // A gateway whose server dies may end the stream properly, but without a stop reason.
    let closed = vec![head(), start(0), json!({"type": "message_stop"})];
    assert_eq!(calls(closed, WireFormat::Anthropic).await, [false]);
    let half = json!({"choices": [{"message": {"tool_calls": [{"id": "i", "custom": {"name": "sql", "input": "DELETE FROM t WHERE"}}]}, "finish_reason": "length"}]});
    let reply = answer(WireFormat::OpenaiChat, half.to_string().as_bytes(), 50).await.unwrap();
    assert!(parse_arguments(&reply.calls[0].arguments).is_err());
    let call = |call: Value| json!({"candidates": [{"content": {"parts": [call]}}]});
    let gemini = vec![
        call(json!({"functionCall": {"name": "x", "willContinue": true}})),
        call(json!({"functionCall": {"name": "y", "willContinue": true}})),
        call(json!({"text": "between", "thought": true})),
        call(
            json!({"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "v"}]}, "thoughtSignature": "late"}),
        ),
        json!({"candidates": [{"finishReason": "STOP"}]}),
    ];
    let reply = answer(WireFormat::Gemini, sse(&gemini).as_bytes(), 50).await.unwrap();
    assert!(parse_arguments(&reply.calls[0].arguments).is_err(), "the first call is unfinished");
    assert_eq!(reply.calls[1].arguments, r#"{"a":"v"}"#);
    assert!(reply.provider_data.unwrap().to_string().contains("late"));
}

#[tokio::test]
async fn items_without_numbers_are_taken_from_the_whole() {
    let item = |n: u64| json!({"type": "function_call", "call_id": format!("c{n}"), "name": format!("f{n}"), "arguments": "{}"});
    let done = |n: u64| json!({"type": "response.output_item.done", "item": item(n)});
    let events = [
        done(1),
        done(2),
        json!({"type": "response.done", "response": {"status": "completed", "output": [item(1), item(2)]}}),
    ];
    let reply = answer(WireFormat::Openai, sse(&events).as_bytes(), 50).await.unwrap();
    assert_eq!(reply.calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["f1", "f2"]);
}

fn said(text: &str, calls: &[(&str, &str)], data: Value) -> Turn {
    Turn::Assistant(Box::new(AssistantTurn {
        text: text.to_owned(),
        reasoning: None,
        tool_calls: calls
            .iter()
            .map(|(id, name)| ToolCall {
                call_id: CallId::parse(id).unwrap(),
                name: (*name).to_owned(),
                arguments: Arguments::Parsed(serde_json::Map::new()),
            })
            .collect(),
        finish_reason: FinishReason::Stop,
        stop_reason: None,
        usage: None,
        response_id: None,
        provider_data: Some(data).filter(|data| !data.is_null()),
    }))
}

fn result(id: &str) -> Turn {
    Turn::ToolResults(vec![ToolResult {
        images: Vec::new(),
        call_id: CallId::parse(id).unwrap(),
        name: "no<|x|>".into(),
        content: "r".into(),
        is_error: false,
    }])
}

fn sent_body(remote: &Remote, history: &[Turn]) -> Value {
    let request = ModelRequest {
        system: "s",
        stable: 0,
        parallel_calls: true,
        history,
        tools: &[],
        max_output_tokens: None,
        follows_cut: false,
        output_schema: None,
        input_tokens: 0,
    };
    of(remote.format).outgoing(remote, request).body
}

fn user() -> Turn {
    Turn::User("u".into())
}
/// Each provider takes images in a different place; a model without image support gets a note.
#[test]
fn pictures_are_sent_where_each_provider_looks_for_them() {
    let Turn::ToolResults(mut results) = result("c1") else { return };
    results[0].images =
        vec![Image { media_type: "image/png", width: 3, height: 2, base64: "QUJD".into() }];
    let history = [user(), said("", &[("c1", "look")], Value::Null), Turn::ToolResults(results)];
    let url = "data:image/png;base64,QUJD";
    for (format, pointer, expected) in [
        (
            WireFormat::Anthropic,
            "/messages/2/content/0/content/1",
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}),
        ),
        (WireFormat::Openai, "/input/2/output/1", json!({"type": "input_image", "image_url": url})),
        (
            WireFormat::OpenaiChat,
            "/messages/4/content/1",
            json!({"type": "image_url", "image_url": {"url": url}}),
        ),
        (
            WireFormat::Gemini,
            "/contents/2/parts/1",
            json!({"inlineData": {"mimeType": "image/png", "data": "QUJD"}}),
        ),
        (WireFormat::Ollama, "/messages/3/images/0", json!("QUJD")),
    ] {
        let remote = settings(format, "m");
        let sent = sent_body(&remote, &history);
        assert_eq!(sent.pointer(pointer), Some(&expected), "{sent:#}");
        // Anthropic rejects an image in a result that is an error.
        let mut failed = history.clone();
        if let Turn::ToolResults(results) = &mut failed[2] {
            results[0].is_error = true;
        }
        let has_picture = sent_body(&remote, &failed).to_string().contains("QUJD");
        assert_eq!(has_picture, format != WireFormat::Anthropic);
        let blind = sent_body(
            &Remote { traits: Traits { images: Some(false), ..remote.traits.clone() }, ..remote },
            &history,
        )
        .to_string();
        assert!(!blind.contains("QUJD") && blind.contains("Images omitted"), "{blind}");
    }
}

/// A history that some provider rejected is sent in a form that each provider accepts.
#[test]
fn a_history_is_sent_as_each_provider_takes_it() {
    let history = [
        user(),
        said("", &[("call.1", "no<|x|>")], Value::Null),
        result("call.1"),
        user(),
        said("", &[], Value::Null),
        user(),
    ];
    for (format, _, _) in FORMATS {
        let sent = sent_body(&settings(format, "m"), &history).to_string();
        assert!(!sent.contains("<|") && sent.contains("no__x__"), "{format:?}: {sent}");
    }
    let mistral = Remote {
        base_url: "https://api.mistral.ai/v1".into(),
        chat: Catalogue::built_in().unwrap().chat_rules("api.mistral.ai"),
        ..settings(WireFormat::OpenaiChat, "m")
    };
    let sent = sent_body(&mistral, &history);
    let messages = sent["messages"].as_array().unwrap();
    let roles: Vec<&str> =
        messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "user"]);
    let id = messages[2]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.len() == 9 && messages[3]["tool_call_id"] == id, "{sent}");
    let kept = |format: WireFormat, name: &str, value: Value| json!({"format": format.as_str(), "model": "m", "base_url": format.base_url(), name: value});
    let thinking = json!([{"type": "thinking", "thinking": "cut", "signature": ""}, {"type": "text", "text": "\n\n"}, {"type": "text", "text": "x"}]);
    let cut = [user(), said("x", &[], kept(WireFormat::Anthropic, "content", thinking)), user()];
    let sent = sent_body(&settings(WireFormat::Anthropic, "m"), &cut);
    assert_eq!(sent["messages"][1]["content"].as_array().unwrap().len(), 1, "{sent}");
    let reasoning = json!([{"type": "reasoning", "id": "rs", "encrypted_content": "e"}]);
    let alone = [user(), said("", &[], kept(WireFormat::Openai, "items", reasoning)), user()];
    assert!(
        !sent_body(&settings(WireFormat::Openai, "m"), &alone)
            .to_string()
            .contains("encrypted_content\":\"e")
    );
}

// conforms 003-2.6c, 003-9.6d
#[test]
fn steering_is_sent_as_a_message_of_the_user() {
    let with = |last: Turn| [user(), said("", &[("c1", "look")], Value::Null), result("c1"), last];
    for (format, _, _) in FORMATS {
        let remote = settings(format, "m");
        let steered = sent_body(&remote, &with(Turn::Steering("turn back".into())));
        assert!(steered.to_string().contains("turn back"), "{format:?}: {steered}");
        let told = sent_body(&remote, &with(Turn::User("turn back".into())));
        assert_eq!(steered, told, "{format:?}");
    }
}

#[test]
fn a_blank_text_goes_back_only_where_the_api_takes_it() {
    let kept = |content: Value| json!({"format": "anthropic", "model": "m", "base_url": WireFormat::Anthropic.base_url(), "content": content});
    let text = |text: &str| json!({"type": "text", "text": text});
    let call = || json!({"type": "tool_use", "id": "c", "name": "x", "input": {}});
    let sent = |is_bound: bool, turn: Turn| {
        let mut settings = settings(WireFormat::Anthropic, "m");
        settings.traits.bound_history = Some(is_bound);
        let body = sent_body(&settings, &[user(), turn, user()]);
        let turn = body["messages"].as_array().unwrap().iter().find(|m| m["role"] == "assistant");
        turn.map_or(0, |turn| turn["content"].as_array().unwrap().len())
    };
    let with_call = |blank: &str| said("", &[("c", "x")], kept(json!([text(blank), call()])));
    assert_eq!([sent(true, with_call("\n\n")), sent(true, with_call(""))], [2, 1]);
    assert_eq!([sent(false, with_call("\n\n")), sent(false, with_call(""))], [1, 1]);
    let with_text = said("ok", &[], kept(json!([text(" "), text("ok")])));
    assert_eq!(sent(true, with_text), 2);
    assert_eq!(sent(true, said("", &[], kept(json!([text(" ")])))), 0, "nothing else to send");
}

#[test]
fn the_request_after_a_pause_begins_like_the_one_before_it() {
    let paused = [user(), said("I go on.", &[], Value::Null)];
    let after = [
        user(),
        said("I go on.", &[], Value::Null),
        said("", &[("c", "x")], Value::Null),
        result("c"),
    ];
    for (format, list) in [(WireFormat::Anthropic, "messages"), (WireFormat::Gemini, "contents")] {
        let first = sent_body(&settings(format, "m"), &paused)[list].to_string();
        let next = sent_body(&settings(format, "m"), &after)[list].to_string();
        let first = first.replace(r#","cache_control":{"type":"ephemeral"}"#, "");
        let first = first.trim_end_matches(']');
        assert!(first.contains("Continue.") && next.starts_with(first), "{first}\n{next}");
    }
}

#[test]
fn the_effort_none_is_not_sent_to_a_model_that_does_not_reason() {
    for (format, _, _) in FORMATS {
        let mut remote = Remote { reasoning_effort: Some(Effort::None), ..settings(format, "m") };
        let plain = sent_body(&settings(format, "m"), &[user()]);
        remote.traits.reasoning = Some(crate::catalogue::ReasoningForm::None);
        assert_eq!(sent_body(&remote, &[user()]), plain, "{format:?}");
    }
}

#[test]
fn thoughts_of_another_model_are_neither_sent_nor_missed() {
    let thinks = Remote {
        reasoning_effort: Some(Effort::Low),
        ..settings(WireFormat::Anthropic, "claude-sonnet-4-5")
    };
    let foreign = [user(), said("", &[("c", "x")], Value::Null), result("c")];
    assert!(
        sent_body(&thinks, &foreign).get("thinking").is_none(),
        "calls of another model have no thinking"
    );
    assert!(sent_body(&thinks, &[user()]).get("thinking").is_some());
    let signed = json!({"format": "gemini", "model": "gemini-2.5-flash", "base_url": WireFormat::Gemini.base_url(), "parts": [{"functionCall": {"name": "x", "args": {}}, "thoughtSignature": "old"}]});
    for data in [Value::Null, signed] {
        let foreign = [user(), said("", &[("c", "x")], data), result("c")];
        let gemini = sent_body(&settings(WireFormat::Gemini, "gemini-3-pro"), &foreign).to_string();
        assert!(
            gemini.contains("skip_thought_signature_validator") && !gemini.contains("old"),
            "{gemini}"
        );
    }
    let thought = json!([{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "c", "name": "x", "input": {}}]);
    let data = json!({"format": "anthropic", "model": "claude-sonnet-4-5", "base_url": WireFormat::Anthropic.base_url(), "content": thought});
    let going_on = [
        user(),
        said("", &[("c", "x")], data),
        result("c"),
        said("", &[("d", "x")], Value::Null),
        result("d"),
    ];
    assert!(
        sent_body(&thinks, &going_on).get("thinking").is_some(),
        "thinking precedes the first call only"
    );
    let opus = Remote {
        reasoning_effort: Some(Effort::High),
        ..settings(WireFormat::Anthropic, "claude-opus-4-1")
    };
    assert_eq!(sent_body(&opus, &[user()])["max_tokens"], 32_000);
}

/// The schema of the answer goes to the models that take one beside tools.
#[test]
fn the_schema_of_the_answer_has_its_place_in_each_format() {
    let schema = json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string", "maxLength": 9}}});
    let form = json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}, "additionalProperties": false});
    let mut diagnostics = Diagnostics::default();
    let schema = OutputSchema::compile(schema.as_object().unwrap(), "", &mut diagnostics).unwrap();
    let tool = ToolDefinition {
        name: "look".into(),
        description: "Looks".into(),
        parameters: json!({"type": "object"}),
    };
    let body = |remote: &Remote, tools: &[ToolDefinition]| {
        let request = ModelRequest {
            system: "s",
            stable: 0,
            parallel_calls: true,
            history: &[user()],
            tools,
            max_output_tokens: None,
            follows_cut: false,
            output_schema: Some(&schema),
            input_tokens: 0,
        };
        of(remote.format).outgoing(remote, request).body
    };
    let named = json!({"type": "json_schema", "name": "answer", "schema": form, "strict": true});
    let chat = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": form, "strict": true}});
    for (format, model, older, pointer, expected) in [
        (
            WireFormat::Anthropic,
            "claude-sonnet-4-5",
            "claude-sonnet-4",
            "/output_config/format",
            json!({"type": "json_schema", "schema": form}),
        ),
        (WireFormat::Openai, "gpt-5", "gpt-4-turbo", "/text/format", named),
        (WireFormat::OpenaiChat, "gpt-5", "deepseek-v4", "/response_format", chat),
        (
            WireFormat::Gemini,
            "gemini-3-pro",
            "gemini-2.5-flash",
            "/generationConfig/responseJsonSchema",
            form.clone(),
        ),
    ] {
        let remote = settings(format, model);
        let tools = std::slice::from_ref(&tool);
        let sent = body(&remote, tools);
        assert_eq!(sent.pointer(pointer), Some(&expected), "{model}");
        assert!(sent["tools"].is_array(), "{model}");
        assert_eq!(body(&settings(format, older), tools).pointer(pointer), None, "{older}");
        let elsewhere = Remote { is_at_provider: false, ..remote.clone() };
        assert_eq!(body(&elsewhere, tools).pointer(pointer), None, "{model} elsewhere");
        let optional = of(format).optional().iter().find(|of| of.name == "output_schema").unwrap();
        let mut without = sent.clone();
        assert!(optional.adapt(&mut without, &|_| false));
        let plain = ModelRequest {
            system: "s",
            stable: 0,
            parallel_calls: true,
            history: &[user()],
            tools,
            max_output_tokens: None,
            follows_cut: false,
            output_schema: None,
            input_tokens: 0,
        };
        assert_eq!(without, of(format).outgoing(&remote, plain).body, "{model}");
    }
    let ollama = settings(WireFormat::Ollama, "qwen3");
    assert_eq!(body(&ollama, &[])["format"], form);
    assert!(body(&ollama, &[tool]).get("format").is_none(), "it could not call the tool");
}

/// A provider that does not take a schema is asked without it, for the rest of the run only.
#[test]
fn a_rejected_schema_is_left_out() {
    for (format, said) in [
        (
            WireFormat::Openai,
            r#"{"error":{"message":"Invalid schema for response_format 'answer': In context=(), 'required' is required to be supplied","param":"text.format.schema","code":"invalid_json_schema"}}"#,
        ),
        (
            WireFormat::OpenaiChat,
            r#"{"error":{"message":"json mode cannot be combined with tool/function calling: response_format"}}"#,
        ),
        (
            WireFormat::Anthropic,
            r#"{"error":{"type":"invalid_request_error","message":"output_config.format.schema: For 'array' type, property 'maxItems' is not supported"}}"#,
        ),
        (
            WireFormat::Gemini,
            r#"{"error":{"code":400,"message":"Function calling with a response mime type: 'application/json' is unsupported","status":"INVALID_ARGUMENT"}}"#,
        ),
    ] {
        let now = chrono::DateTime::from_timestamp(0, 0).unwrap();
        let error = failure::of_response(400, &Default::default(), said, now);
        let wire = of(format);
        let sent: Vec<_> = wire.optional().iter().collect();
        let found = refused(&error, &sent, "m").unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!(found.name, "output_schema");
        assert!(!found.is_lasting("output_schema"));
    }
}
