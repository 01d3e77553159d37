//! Decodes 10 MB of a streamed answer in each wire format. The stream is in memory, so the measured
//! time is CPU time.
#![expect(clippy::unwrap_used, reason = "a benchmark whose setup fails stops at once")]

use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dutyd::config::WireFormat;
use dutyd::provider::read_as;
use serde_json::{Value, json};

const BYTES: usize = 10_000_000;

/// The text of one event, about as long as in a real stream.
const TEXT: &str = "a few words, ";

fn event(value: &Value) -> String {
    match value["type"].as_str() {
        Some(kind) => format!("event: {kind}\ndata: {value}\n\n"),
        None => format!("data: {value}\n\n"),
    }
}

/// Returns the head, the repeated piece and the end of a stream.
fn parts(format: WireFormat) -> (String, String, String) {
    match format {
        WireFormat::Anthropic => (
            event(
                &json!({"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 1}}}),
            ) + &event(
                &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            ),
            event(
                &json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}}),
            ),
            event(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}))
                + &event(&json!({"type": "message_stop"})),
        ),
        WireFormat::Openai => (
            event(&json!({"type": "response.created", "response": {"id": "r"}})),
            event(
                &json!({"type": "response.output_text.delta", "sequence_number": 7, "item_id": "msg_68f0c2", "output_index": 0, "content_index": 0, "delta": TEXT, "logprobs": [], "obfuscation": "x1Yz"}),
            ),
            event(
                &json!({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}}),
            ),
        ),
        WireFormat::OpenaiChat => {
            let chunk = |delta: Value, finish: Value| {
                event(
                    &json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "fp", "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}], "usage": null}),
                )
            };
            (
                chunk(json!({"role": "assistant", "content": ""}), Value::Null),
                chunk(json!({"content": TEXT}), Value::Null),
                chunk(json!({}), json!("stop")) + "data: [DONE]\n\n",
            )
        }
        WireFormat::Gemini => {
            let chunk = |end: bool| {
                let mut chunk = json!({"candidates": [{"content": {"parts": [{"text": TEXT}], "role": "model"}, "index": 0}], "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 3, "totalTokenCount": 13}, "modelVersion": "m", "responseId": "r"});
                if end {
                    *chunk.pointer_mut("/candidates/0").unwrap() = json!({"finishReason": "STOP"});
                }
                event(&chunk)
            };
            (String::new(), chunk(false), chunk(true))
        }
        WireFormat::Ollama => {
            let line = |done: bool| {
                format!(
                    "{}\n",
                    json!({"model": "qwen3:4b", "created_at": "2026-08-05T08:10:56.372032Z", "message": {"role": "assistant", "content": TEXT}, "done": done})
                )
            };
            (String::new(), line(false), line(true))
        }
    }
}

/// Returns a stream of [`BYTES`] bytes, split into pieces of the size that a socket may deliver.
fn stream(format: WireFormat) -> Vec<Bytes> {
    let (head, piece, end) = parts(format);
    let repeated = piece.repeat(BYTES / piece.len());
    let whole = head + &repeated + &end;
    whole.as_bytes().chunks(16 * 1024).map(Bytes::copy_from_slice).collect()
}

fn decode(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut group = criterion.benchmark_group("10 MB of stream");
    group.throughput(Throughput::Bytes(BYTES as u64));
    for format in [
        WireFormat::Anthropic,
        WireFormat::Openai,
        WireFormat::OpenaiChat,
        WireFormat::Gemini,
        WireFormat::Ollama,
    ] {
        let pieces = stream(format);
        group.bench_function(format.as_str(), |bencher| {
            bencher.iter(|| {
                let pieces =
                    futures_util::stream::iter(pieces.iter().cloned().map(Ok::<_, String>));
                let reply = runtime.block_on(read_as(format, pieces)).unwrap();
                assert!(reply.text.len() > 100_000);
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(4));
    targets = decode
}
criterion_main!(benches);
