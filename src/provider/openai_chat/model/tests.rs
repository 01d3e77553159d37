//! Every recording of the fixtures, whole and in pieces of every size.

use std::path::Path;

use serde_json::{Value, json};

use super::super::super::failure;
use super::*;
use crate::call::parse_arguments;
use crate::domain::FinishReason;

struct Nobody;
impl DeltaSink for Nobody {
    fn delta(&self, _: &str) {}
}

fn fixtures() -> (std::path::PathBuf, Vec<Value>) {
    let directory =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/providers/openai-chat");
    let index = std::fs::read_to_string(directory.join("index.json")).unwrap();
    (directory, serde_json::from_str(&index).unwrap())
}

async fn read(record: &Value, body: &[u8], size: usize) -> Result<ModelReply, ModelError> {
    let status = u16::try_from(record["http"]["status"].as_u64().unwrap()).unwrap();
    if status >= 300 {
        let now = chrono::DateTime::from_timestamp(0, 0).unwrap();
        return Err(failure::of_response(
            status,
            &reqwest::header::HeaderMap::new(),
            &String::from_utf8_lossy(body),
            now,
        ));
    }
    if record["stream"] == true {
        let pieces: Vec<_> = body
            .chunks(size)
            .map(|piece| Ok::<_, ModelError>(Bytes::copy_from_slice(piece)))
            .collect();
        return read_stream(futures_util::stream::iter(pieces), &Nobody).await;
    }
    read_whole(body, &Nobody)
}

fn compare(record: &Value, result: &Result<ModelReply, ModelError>) {
    let id = &record["id"];
    let expected = &record["expect"];
    let reply = match result {
        Err(error) => {
            assert_eq!(expected["finish"], "error", "{id}: {error}");
            assert_eq!(error.class.as_str(), expected["error"]["class"], "{id}: {error}");
            assert_eq!(
                error.class.is_retryable(),
                expected["error"]["retryable"].as_bool().unwrap(),
                "{id}"
            );
            assert!(
                error.message.contains(expected["error"]["message"].as_str().unwrap()),
                "{id}: {error}"
            );
            return;
        }
        Ok(reply) => reply,
    };
    assert_eq!(json!(reply.finish_reason), expected["finish"], "{id}");
    assert_eq!(json!(reply.stop_reason), expected["stop_reason"], "{id}");
    let is_refusal = reply.finish_reason == FinishReason::Refusal;
    assert_eq!(
        reply.text,
        if is_refusal { expected["refusal"].as_str() } else { expected["text"].as_str() }.unwrap(),
        "{id}"
    );
    assert_eq!(
        json!(reply.reasoning),
        expected.get("reasoning").cloned().unwrap_or_default(),
        "{id}"
    );
    let calls = expected["tool_calls"].as_array().unwrap();
    assert_eq!(reply.calls.len(), calls.len(), "{id}");
    for (call, expected) in reply.calls.iter().zip(calls) {
        assert_eq!(json!(call.id), expected["id"], "{id}");
        assert_eq!(call.name, expected["name"].as_str().unwrap(), "{id}");
        assert_eq!(call.arguments, expected["arguments_text"].as_str().unwrap(), "{id}");
        let parsed = parse_arguments(&call.arguments).ok().map(Value::Object);
        assert_eq!(parsed.clone().unwrap_or_default(), expected["arguments"], "{id}");
        assert_eq!(parsed.is_some(), expected["executable"].as_bool().unwrap(), "{id}");
    }
    if expected["usage"].is_object() {
        let usage = reply.usage.unwrap();
        let found = json!({"input": usage.input_tokens, "output": usage.output_tokens, "cached_input": usage.cached_input_tokens});
        assert_eq!(found, expected["usage"], "{id}");
    }
}

// proves PROV-2, PROV-5, LLM-5
#[tokio::test]
async fn every_recording_gives_what_is_expected_of_it() {
    let (directory, records) = fixtures();
    let mut seen = 0;
    for record in &records {
        let body = std::fs::read(directory.join(record["file"].as_str().unwrap())).unwrap();
        for size in [1, 7, 1000, body.len().max(1)] {
            compare(record, &read(record, &body, size).await);
        }
        seen += 1;
    }
    println!("openai-chat: {seen} recordings of {}, in 4 sizes of pieces each", records.len());
    assert_eq!(seen, 22);
}

#[tokio::test]
async fn a_stream_that_is_cut_anywhere_is_never_a_message() {
    let (directory, records) = fixtures();
    for record in records
        .iter()
        .filter(|record| record["stream"] == true && record["expect"]["finish"] != "error")
    {
        let body = std::fs::read(directory.join(record["file"].as_str().unwrap())).unwrap();
        let text = String::from_utf8_lossy(&body).into_owned();
        // Up to the first sign of an end nothing may come out of it.
        let end = ["\"finish_reason\":\"", "\"finish_reason\": \"", "[DONE]"]
            .iter()
            .filter_map(|sign| text.find(sign))
            .min()
            .unwrap();
        for cut in (0..end).step_by(97) {
            let error = read(record, &body[..cut], 64).await.unwrap_err();
            assert_eq!(error.class, ErrorClass::StreamInterrupted, "{} cut at {cut}", record["id"]);
        }
    }
}

#[tokio::test]
async fn odd_streams_are_read_or_named() {
    let stream = |text: &str| {
        let pieces: Vec<_> = text
            .as_bytes()
            .chunks(5)
            .map(|piece| Ok::<_, ModelError>(Bytes::copy_from_slice(piece)))
            .collect();
        async move { read_stream(futures_util::stream::iter(pieces), &Nobody).await }
    };
    let chunk = |delta: Value, finish: Value| {
        format!(
            "data: {}\r\n\r\n",
            json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        )
    };
    let text = format!(
        "\u{feff}: hello\r\n\r\n{}{}data: [DONE]\r\n\r\n",
        chunk(json!({"content": "a"}), Value::Null),
        chunk(json!({"content": "b"}), json!("stop"))
    );
    assert_eq!(stream(&text).await.unwrap().text, "ab");
    assert_eq!(
        stream("<html>busy</html>\n\n").await.unwrap_err().class,
        ErrorClass::MalformedResponse
    );
    assert_eq!(
        stream("data: {not json}\n\n").await.unwrap_err().class,
        ErrorClass::MalformedResponse
    );
    assert_eq!(stream("").await.unwrap_err().class, ErrorClass::StreamInterrupted);
    let finished = chunk(json!({"content": "whole"}), json!("stop"));
    let pieces =
        [Ok(Bytes::from(finished)), Err(ModelError::new(ErrorClass::StreamInterrupted, "cut"))];
    assert_eq!(
        read_stream(futures_util::stream::iter(pieces), &Nobody).await.unwrap().text,
        "whole"
    );
    let vllm = format!(
        "{}data: {{\"object\":\"error\",\"message\":\"CUDA out of memory\",\"code\":500}}\n\ndata: [DONE]\n\n",
        chunk(json!({"content": "half"}), Value::Null)
    );
    assert_eq!(stream(&vllm).await.unwrap_err().class, ErrorClass::Server);
    assert_eq!(stream("data: [DONE]\n\n").await.unwrap_err().class, ErrorClass::MalformedResponse);
    assert_eq!(
        stream(&chunk(json!({"content": "x"}), json!("insufficient_system_resource")))
            .await
            .unwrap_err()
            .class,
        ErrorClass::Server
    );
    let same_index = format!(
        "{}{}{}",
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{}"}}]}),
            Value::Null
        ),
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "y", "arguments": "{}"}}]}),
            Value::Null
        ),
        chunk(json!({}), json!("tool_calls")),
    );
    let calls = stream(&same_index).await.unwrap().calls;
    assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
}

// proves PROV-4
#[tokio::test]
async fn an_endless_event_is_refused_in_bounded_memory() {
    let pieces =
        futures_util::stream::repeat_with(|| Ok::<_, ModelError>(Bytes::from(vec![b'x'; 1 << 20])));
    let error = read_stream(Box::pin(pieces), &Nobody).await.unwrap_err();
    assert!(error.message.contains("more than"), "{error}");
}

#[tokio::test]
async fn what_a_provider_needs_back_is_sent_again_as_it_came() {
    let (directory, records) = fixtures();
    let record = records.iter().find(|record| record["id"] == "chat-09").unwrap();
    let body = std::fs::read(directory.join("chat-09.response.sse")).unwrap();
    let reply = read(record, &body, 7).await.unwrap();
    let next: Value = serde_json::from_str(
        &std::fs::read_to_string(directory.join("chat-09.next-request.json")).unwrap(),
    )
    .unwrap();
    assert_eq!(
        reply.provider_data.unwrap()["reasoning_details"],
        next["messages"][1]["reasoning_details"]
    );
}
