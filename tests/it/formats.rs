//! Makes a whole run through each wire format, against a loopback server that checks every request,
//! and repeats it with the first answer cut after each of its pieces.

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::support::{Place, Served, serve_on_loopback};

const FORMATS: [&str; 5] = ["anthropic", "openai", "openai_chat", "gemini", "ollama"];

const TOOLS: &str = "version: 1
tools:
  - {name: echo, description: Prints, category: read, cmd: printf, args: ['<%s>', '{{x}}'], parameters: {x: {type: string}}}
  - {name: fails, description: Fails, category: read, cmd: 'false'}
";

/// The answers of the server, each in pieces.
type Answers = Arc<Mutex<VecDeque<Vec<String>>>>;

#[derive(Clone)]
struct Server {
    format: &'static str,
    answers: Answers,
    requests: Arc<Mutex<Vec<Value>>>,
}

async fn answer(
    State(server): State<Server>,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let request: Value = serde_json::from_str(&body).unwrap();
    check(server.format, &uri.to_string(), &headers, &request);
    server.requests.lock().unwrap().push(request);
    let pieces = server.answers.lock().unwrap().pop_front().unwrap_or_default();
    let pieces = pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)));
    let kind = if server.format == "ollama" { "application/x-ndjson" } else { "text/event-stream" };
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(futures_util::stream::iter(pieces)))
        .into_response()
}

/// Calls without a result: ids, or names if the format has no ids. Results must arrive in call
/// order.
#[derive(Default)]
struct Open(VecDeque<Value>);

impl Open {
    fn call(&mut self, id: &Value) {
        self.0.push_back(id.clone());
    }

    fn result(&mut self, id: &Value) {
        assert_eq!(self.0.pop_front().as_ref(), Some(id));
    }

    fn nothing(&self) {
        assert!(self.0.is_empty(), "calls without results: {:?}", self.0);
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Checks the key and the address of a request, that it has no field that the format does not know,
/// and that each call in it has its result.
fn check(format: &str, uri: &str, headers: &HeaderMap, request: &Value) {
    let header = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
    let key = match format {
        "anthropic" => header("x-api-key").to_owned(),
        "gemini" => header("x-goog-api-key").to_owned(),
        _ => header("authorization").replace("Bearer ", ""),
    };
    assert_eq!(key, "k-secret", "{format}");
    let (path, known, check): (_, &[&str], fn(&Value, &mut Open)) = match format {
        "anthropic" => (
            "/v1/messages",
            &["model", "max_tokens", "system", "messages", "tools", "stream"],
            check_anthropic,
        ),
        "openai" => (
            "/v1/responses",
            &["model", "instructions", "input", "tools", "parallel_tool_calls", "store", "stream"],
            check_openai,
        ),
        "openai_chat" => (
            "/v1/chat/completions",
            &["model", "messages", "tools", "stream", "stream_options"],
            check_chat,
        ),
        "gemini" => (
            "/v1/models/test:streamGenerateContent?alt=sse",
            &["systemInstruction", "contents", "tools"],
            check_gemini,
        ),
        _ => ("/v1/api/chat", &["model", "messages", "tools", "stream", "options"], check_ollama),
    };
    assert_eq!(uri, path, "{format}");
    for key in request.as_object().unwrap().keys() {
        assert!(known.contains(&key.as_str()), "{format} does not know {key}");
    }
    let mut open = Open::default();
    check(request, &mut open);
    open.nothing();
}

fn check_anthropic(request: &Value, open: &mut Open) {
    let mut last = "assistant";
    for message in list(&request["messages"]) {
        let role = message["role"].as_str().unwrap();
        assert_ne!(role, last, "roles must alternate");
        last = role;
        for block in list(&message["content"]) {
            match block["type"].as_str().unwrap() {
                "tool_use" => open.call(&block["id"]),
                "tool_result" => open.result(&block["tool_use_id"]),
                _ if role == "user" => open.nothing(),
                _ => {}
            }
        }
    }
    assert!(list(&request["tools"]).iter().all(|tool| tool["input_schema"]["type"] == "object"));
}

fn check_openai(request: &Value, open: &mut Open) {
    assert_eq!(request["store"], false);
    for item in list(&request["input"]) {
        match item["type"].as_str().unwrap_or("message") {
            "function_call" => open.call(&item["call_id"]),
            "function_call_output" => open.result(&item["call_id"]),
            "reasoning" => assert!(item["encrypted_content"].is_string()),
            _ => open.nothing(),
        }
    }
}

fn check_chat(request: &Value, open: &mut Open) {
    let mut names = std::collections::BTreeMap::new();
    for message in list(&request["messages"]) {
        match message["role"].as_str().unwrap() {
            "tool" => {
                open.result(&message["tool_call_id"]);
                let of_call = &names[message["tool_call_id"].as_str().unwrap()];
                assert_eq!(&message["name"], of_call, "{message}");
            }
            _ => open.nothing(),
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().unwrap().to_owned();
            names.insert(id, call["function"]["name"].clone());
            assert_eq!(call["type"], "function", "{call}");
            assert!(call["function"]["arguments"].is_string(), "{call}");
            open.call(&call["id"]);
        }
    }
    check_functions(request);
}

/// Checks that each tool is wrapped as a function.
fn check_functions(request: &Value) {
    for tool in list(&request["tools"]) {
        assert_eq!(tool["type"], "function", "{tool}");
        assert_eq!(tool["function"]["parameters"]["type"], "object", "{tool}");
    }
}

fn check_gemini(request: &Value, open: &mut Open) {
    for content in list(&request["contents"]) {
        for part in list(&content["parts"]) {
            if let Some(call) = part.get("functionCall") {
                assert!(
                    call["args"].is_object() && call.get("id").is_none(),
                    "the answer had no id, so the request must not have one: {part}"
                );
                open.call(&call["name"]);
            } else if let Some(response) = part.get("functionResponse") {
                assert!(response["response"].is_object());
                open.result(&response["name"]);
            } else {
                assert!(part["text"].is_string());
            }
        }
    }
}

fn check_ollama(request: &Value, open: &mut Open) {
    assert!(request["options"]["num_ctx"].is_u64());
    for message in list(&request["messages"]) {
        match message["role"].as_str().unwrap() {
            "tool" => open.result(&message["tool_name"]),
            _ => open.nothing(),
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            assert!(call["function"]["arguments"].is_object(), "{call}");
            open.call(&call["function"]["name"]);
        }
    }
    check_functions(request);
}

fn events(events: &[Value]) -> Vec<String> {
    events
        .iter()
        .map(|event| {
            format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or("message"))
        })
        .collect()
}

/// Returns an answer with two calls, in the pieces of the format.
fn calls(format: &str) -> Vec<String> {
    match format {
        "anthropic" => events(&[
            json!({"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": {"input_tokens": 10, "cache_read_input_tokens": 4, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig=="}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {}}}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"x\": "}}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "\"a b\"}"}}),
            json!({"type": "content_block_stop", "index": 1}),
            json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "toolu_2", "name": "fails", "input": {}}}),
            json!({"type": "content_block_stop", "index": 2}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 20}}),
            json!({"type": "message_stop"}),
        ]),
        "openai" => {
            let call = |at: u64, name: &str, arguments: &str| json!({"type": "function_call", "id": format!("fc_{at}"), "call_id": format!("call_{at}"), "name": name, "arguments": arguments, "status": "completed"});
            let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"});
            events(&[
                json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}),
                json!({"type": "response.output_item.done", "output_index": 0, "item": reasoning}),
                json!({"type": "response.output_item.added", "output_index": 1, "item": call(1, "echo", "")}),
                json!({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{\"x\":\"a b\"}"}),
                json!({"type": "response.output_item.done", "output_index": 1, "item": call(1, "echo", "{\"x\":\"a b\"}")}),
                json!({"type": "response.output_item.done", "output_index": 2, "item": call(2, "fails", "{}")}),
                json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": [], "usage": {"input_tokens": 14, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 4}}}}),
            ])
        }
        "openai_chat" => {
            let call = |index: u64, part: Value| json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "id": format!("c{index}"), "function": part}]}, "finish_reason": null}]});
            let mut pieces = events(&[
                call(0, json!({"name": "echo", "arguments": "{\"x\":"})),
                call(0, json!({"arguments": "\"a b\"}"})),
                call(1, json!({"name": "fails", "arguments": "{}"})),
                json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
                json!({"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 4}}}),
            ]);
            pieces.push("data: [DONE]\n\n".to_owned());
            pieces
        }
        "gemini" => events(&[
            json!({"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": "echo", "args": {"x": "a b"}}, "thoughtSignature": "sig=="}]}}]}),
            json!({"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": "fails", "args": {}}}]}}]}),
            json!({"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 14, "candidatesTokenCount": 20, "cachedContentTokenCount": 4}}),
        ]),
        _ => {
            let line = |message: Value, done: bool| {
                format!(
                    "{}\n",
                    json!({"model": "test", "message": message, "done": done, "done_reason": "stop", "prompt_eval_count": 14, "eval_count": 20})
                )
            };
            vec![
                line(
                    json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "echo", "arguments": {"x": "a b"}}}]}),
                    false,
                ),
                line(
                    json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "fails", "arguments": {}}}]}),
                    false,
                ),
                line(json!({"role": "assistant", "content": ""}), true),
            ]
        }
    }
}

fn text(format: &str) -> Vec<String> {
    match format {
        "anthropic" => events(&[
            json!({"type": "message_start", "message": {"id": "msg_2", "content": [], "usage": {"input_tokens": 30, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "All "}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "well."}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}),
            json!({"type": "message_stop"}),
        ]),
        "openai" => {
            let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "All well."}]});
            events(&[
                json!({"type": "response.output_text.delta", "output_index": 0, "delta": "All well."}),
                json!({"type": "response.completed", "response": {"id": "resp_2", "status": "completed", "output": [message]}}),
            ])
        }
        "openai_chat" => events(&[
            json!({"choices": [{"index": 0, "delta": {"content": "All well."}, "finish_reason": null}]}),
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        ]),
        "gemini" => events(&[
            json!({"candidates": [{"content": {"parts": [{"text": "All "}]}}]}),
            json!({"candidates": [{"content": {"parts": [{"text": "well."}]}, "finishReason": "STOP"}]}),
        ]),
        _ => vec![
            format!(
                "{}\n",
                json!({"model": "test", "created_at": "x", "message": {"role": "assistant", "content": "All "}, "done": false})
            ),
            format!(
                "{}\n",
                json!({"model": "test", "created_at": "x", "message": {"role": "assistant", "content": "well."}, "done": true, "done_reason": "stop"})
            ),
        ],
    }
}

/// Returns the number of pieces after which an answer is complete.
fn whole(format: &str, pieces: &[String]) -> usize {
    let signs = [
        "\"stop_reason\":\"",
        "response.completed",
        "\"finish_reason\":\"",
        "\"finishReason\"",
        "\"done\":true",
    ];
    let end = pieces.iter().position(|piece| signs.iter().any(|sign| piece.contains(sign)));
    end.unwrap_or_else(|| panic!("{format} has no end")) + 1
}

struct Bench {
    place: Place,
    answers: Answers,
    requests: Arc<Mutex<Vec<Value>>>,
    served: Served,
}

fn bench(format: &'static str) -> Bench {
    let (answers, requests) = (Answers::default(), Arc::default());
    let server = Server { format, answers: answers.clone(), requests: Arc::clone(&requests) };
    let served = serve_on_loopback(Router::new().fallback(answer).with_state(server));
    let config = format!(
        "models: {{m: {{provider: {format}, model: test, api_key: k-secret, base_url: 'http://{}/v1', max_retries: 0, idle_timeout: 5s, price: {{input: 10, output: 100, cached_input: 1}}}}}}\n",
        served.address
    );
    let jobs = "version: 1\njobs:\n  - {name: j, prompt: Look., double_confirmation: false}\n";
    let place = Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    Bench { place, answers, requests, served }
}

impl Bench {
    /// Runs the job against the answers; returns the exit code, the row and the transcript's
    /// events.
    fn run(&self, answers: &[Vec<String>]) -> (i32, Value, Vec<Value>) {
        *self.answers.lock().unwrap() = answers.iter().cloned().collect();
        self.requests.lock().unwrap().clear();
        let done = self.place.dutyd(&["-o", "json", "run", "j"]);
        let row: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
        let lines = self.place.json(&["show", "last"]);
        (done.code, row, lines["events"].as_array().unwrap().clone())
    }
}

fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

// conforms 000-S5.4, 001-X5, 002-1, 002-12, 002-20, 003-9.1b, 003-9.2e, 003-9.3d, 003-9.12g
// conforms 003-9.12n, 004-C2, 004-C5, 004-C6, 004-C10, 004-C11, 004-T2, 004-T14, 004-T16, 004-T23
// conforms 004-T24, 004-T25, 004-T28, 004-T29, 004-T32
#[test]
fn two_calls_an_error_and_an_answer_work_through_each_format() {
    for format in FORMATS {
        let bench = bench(format);
        let (code, row, events) = bench.run(&[calls(format), text(format)]);
        assert_eq!((code, &row["result"]), (0, &json!("All well.")), "{format}: {row}");
        // The calls run in parallel, so either may end first.
        let end = |name: &str| {
            let ends = of_type(&events, "tool_call_end");
            (*ends.iter().find(|end| end["name"] == name).unwrap()).clone()
        };
        assert_eq!(
            (&end("echo")["is_error"], &end("fails")["is_error"]),
            (&json!(false), &json!(true)),
            "{format}"
        );
        assert_eq!(end("echo")["output"], "<a b>", "{format}");
        let answered = of_type(&events, "assistant_text_end");
        let usage = &answered[0]["usage"];
        assert_eq!(
            (&usage["input_tokens"], &usage["output_tokens"]),
            (&json!(14), &json!(20)),
            "{format}"
        );
        // 10 uncached and 4 cached input tokens, 20 output tokens; Ollama has no cache.
        let expected = if format == "ollama" { 0.00214 } else { 0.002104 };
        let cost = answered[0]["cost_usd"].as_f64().unwrap();
        assert!((cost - expected).abs() < 1e-9, "{format}: {cost}");
        assert!(row["cost_usd"].as_f64().unwrap() >= cost, "{format}: {row}");
        let last = events.last().unwrap();
        assert_eq!(
            json!([
                last["type"],
                last["stop_reason"],
                last["iterations"],
                last["tool_calls"],
                last["tools_used"],
                last["result"],
                row["model"]
            ]),
            json!(["session_end", "completed", 2, 2, ["echo", "fails"], "All well.", "test"]),
            "{format}"
        );
        assert_eq!(row["tools_used"], last["tools_used"], "{format}");
        assert!(last["usage"]["input_tokens"].as_u64().unwrap() > 14, "{format}: {last}");
        let requests = bench.requests.lock().unwrap();
        assert_eq!(requests.len(), 2, "{format}");
        let prompt = of_type(&events, "system_prompt")[0]["text"].as_str().unwrap();
        let last = prompt.trim_end().lines().last().unwrap();
        let pointer = match format {
            "anthropic" => "/system",
            "openai" => "/instructions",
            "gemini" => "/systemInstruction",
            _ => "/messages/0",
        };
        let parts = |at: usize| (requests[at].pointer(pointer).unwrap(), &requests[at]["tools"]);
        assert!(parts(0).0.to_string().contains(last), "{format}: {last}");
        assert!(parts(0).1.to_string().contains("Prints"), "{format}");
        assert_eq!(parts(0), parts(1), "{format}");
        let sent = requests[1].to_string();
        assert!(sent.contains("<tool_output ") && sent.contains("<a b>"), "{format}: {sent}");
        assert_eq!(sent.contains("\"is_error\":true"), format == "anthropic", "{sent}");
        match format {
            "anthropic" => assert!(sent.contains("sig==") && sent.contains("\"cache_control\"")),
            "openai" => assert!(sent.contains("\"encrypted_content\":\"gAAA\"")),
            "gemini" => {
                assert!(sent.contains("sig==") && sent.contains("\"response\":{\"error\":"));
            }
            _ => {}
        }
        assert!(!bench.place.everything().contains("k-secret"), "{format}");
    }
}

/// Each family: its format, and its names of the shell and of the tool that edits files.
const FAMILIES: [(&str, &str, &str); 3] = [
    ("anthropic", "bash", "edit_file"),
    ("openai", "shell", "apply_patch"),
    ("gemini", "shell", "edit_file"),
];

/// Lets the job write files and run commands.
fn allow_changes(bench: &Bench, editor: &str) {
    let jobs = format!(
        "version: 1\njobs:\n  - {{name: j, prompt: Look., double_confirmation: false, tools: {{write: [bash, write_file, {editor}]}}}}\n"
    );
    bench.place.write("jobs.yaml", &jobs);
}

/// Returns an answer of a family with these calls.
fn asks(format: &str, calls: &[(&str, Value)]) -> Vec<String> {
    let numbered = calls.iter().enumerate();
    match format {
        "anthropic" => {
            let start = json!({"type": "message_start", "message": {"id": "msg_3", "content": [], "usage": {"input_tokens": 10, "output_tokens": 1}}});
            let blocks = numbered.flat_map(|(at, (name, arguments))| {
                [
                    json!({"type": "content_block_start", "index": at, "content_block": {"type": "tool_use", "id": format!("toolu_{at}"), "name": name, "input": {}}}),
                    json!({"type": "content_block_delta", "index": at, "delta": {"type": "input_json_delta", "partial_json": arguments.to_string()}}),
                    json!({"type": "content_block_stop", "index": at}),
                ]
            });
            let end = [
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 20}}),
                json!({"type": "message_stop"}),
            ];
            events(&[start].into_iter().chain(blocks).chain(end).collect::<Vec<_>>())
        }
        "openai" => {
            let items = numbered.map(|(at, (name, arguments))| json!({"type": "response.output_item.done", "output_index": at, "item": {"type": "function_call", "id": format!("fc_{at}"), "call_id": format!("call_{at}"), "name": name, "arguments": arguments.to_string(), "status": "completed"}}));
            let end = json!({"type": "response.completed", "response": {"id": "resp_3", "status": "completed", "output": [], "usage": {"input_tokens": 10, "output_tokens": 20}}});
            events(&items.chain([end]).collect::<Vec<_>>())
        }
        _ => {
            let parts: Vec<Value> = calls
                .iter()
                .map(|(name, arguments)| json!({"functionCall": {"name": name, "args": arguments}}))
                .collect();
            events(&[
                json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}),
            ])
        }
    }
}

/// The calls write, read and edit two files, run two commands and search.
// conforms 003-5.4, 003-9.2b, 003-9.12a, 003-9.12b, 003-9.12c, 003-9.12d, 003-9.12e, 003-9.12f
// conforms 003-9.12o
#[test]
fn each_family_edits_runs_and_searches() {
    for (format, shell, editor) in FAMILIES {
        let bench = bench(format);
        allow_changes(&bench, editor);
        let write =
            |path: &str, text: &str| ("write_file", json!({"file_path": path, "content": text}));
        let read = |path: &str| ("read_file", json!({"file_path": path}));
        let edit = |path: &str, old: &str, new: &str| match editor {
            "apply_patch" => {
                let change = format!("*** Update File: {path}\n@@\n-{old}\n+{new}\n");
                (editor, json!({"patch": format!("*** Begin Patch\n{change}*** End Patch\n")}))
            }
            _ => (editor, json!({"file_path": path, "old_string": old, "new_string": new})),
        };
        let run = |command: &str, ms: u64| (shell, json!({"command": command, "timeout_ms": ms}));
        let grep = ("grep", json!({"pattern": "^2$"}));
        let glob = ("glob", json!({"pattern": "*.txt"}));
        let (code, row, events) = bench.run(&[
            asks(format, &[write("a.txt", "one\n"), write("b.txt", "two\n")]),
            asks(format, &[read("a.txt"), read("b.txt")]),
            asks(format, &[edit("a.txt", "one", "1"), edit("b.txt", "two", "2")]),
            asks(format, &[run("cat a.txt b.txt; exit 3", 20_000)]),
            asks(format, &[run("echo begun; sleep 30", 1_000)]),
            asks(format, &[grep, glob]),
            text(format),
        ]);
        assert_eq!(code, 0, "{format}: {row}");
        let requests = bench.requests.lock().unwrap();
        let sent = requests.last().unwrap().to_string();
        let ends = of_type(&events, "tool_call_end");
        let of = |name: &str, nth: usize| {
            let mut named = ends.iter().filter(|end| end["name"] == name);
            (*named.nth(nth).unwrap()).clone()
        };
        let files = ["a.txt", "b.txt"].map(|name| {
            std::fs::read_to_string(bench.place.state().join("workspace/j").join(name)).unwrap()
        });
        for name in ["write_file", editor] {
            assert_eq!(of(name, 1)["is_error"], false, "{format}: {ends:#?}");
        }
        assert!(sent.contains("1 | one") && sent.contains("1 | two"), "{format}");
        assert_eq!(files, ["1\n", "2\n"], "{format}");
        let (ran, late) = (of("bash", 0), of("bash", 1));
        assert_eq!(
            (&ran["output"], &ran["exit_code"]),
            (&json!("1\n2\n"), &json!(3)),
            "{format}: {ran}"
        );
        assert_eq!(
            (&late["output"], &late["error_kind"]),
            (&json!("begun\n"), &json!("timeout")),
            "{format}: {late}"
        );
        let note = "[ERROR: Command timed out after 1000ms. Partial output is shown above. You can retry with a longer timeout by setting the timeout_ms parameter.]";
        assert!(sent.contains(note), "{format}: {late}");
        assert_eq!(of("grep", 0)["output"], "b.txt:1: 2\n", "{format}");
        let found = of("glob", 0)["output"].as_str().unwrap().to_owned();
        assert!(found.contains("a.txt\n") && found.contains("b.txt\n"), "{format}: {found}");
    }
}

// conforms 003-3.8b, 003-9.12h, 003-9.12i, 003-9.12m
#[test]
fn each_family_is_told_of_cut_outputs_and_of_loops() {
    let rest = "  - {name: rest, description: Rests, category: read, cmd: sleep, args: ['1']}\n";
    for (format, shell, editor) in FAMILIES {
        let bench = bench(format);
        allow_changes(&bench, editor);
        bench.place.write("tools.yaml", &format!("{TOOLS}{rest}"));
        let read = |path: &str| asks(format, &[("read_file", json!({"file_path": path}))]);
        let command = json!({"command": "echo 1 > small; seq -f %040.0f 1900 > big"});
        let mut answers = vec![
            asks(format, &[(shell, command)]),
            read("big"),
            asks(format, &[("rest", json!({})), ("rest", json!({}))]),
        ];
        answers.extend(vec![read("small"); 10]);
        answers.push(text(format));
        let (code, row, events) = bench.run(&answers);
        assert_eq!(code, 0, "{format}: {row}");
        let requests = bench.requests.lock().unwrap();
        let sent = requests.last().unwrap().to_string();
        // The record has the whole file, the model its two ends.
        let ends = of_type(&events, "tool_call_end");
        let big = ends.iter().find(|end| end["name"] == "read_file").unwrap();
        assert!(big["truncated"]["characters"].as_u64().unwrap() > 30_000, "{format}: {big}");
        assert!(sent.contains("characters were removed from the middle"), "{format}");
        assert!(sent.contains("1 | 0") && !sent.contains("1000 | 0"), "{format}");
        let name = big["output_file"].as_str().unwrap();
        let kept = bench.place.kept().into_iter().find(|path| path.ends_with(name)).unwrap();
        assert!(std::fs::read_to_string(kept).unwrap().contains("1000 | 0"), "{format}");
        // The second read of one response starts before the first one ends.
        let rests = events.iter().filter(|event| event["name"] == "rest");
        let kinds: Vec<&str> = rests.filter_map(|event| event["type"].as_str()).collect();
        let calls: Vec<&&str> = kinds.iter().filter(|kind| kind.starts_with("tool_call")).collect();
        assert_eq!(calls[..2], [&"tool_call_start"; 2], "{format}: {kinds:?}");
        assert_eq!(of_type(&events, "loop_detection").len(), 1, "{format}");
        assert!(sent.contains("Your last calls repeat without progress"), "{format}");
    }
}

/// Each family gets the tools, the timeout and the prompt that its models were trained on.
// conforms 003-3.5b, 003-3.6a, 003-9.2b, 003-9.2c, 003-9.4b, 003-9.8a
#[test]
fn each_family_is_offered_its_own_tools_and_prompt() {
    let common = [
        "echo",
        "fails",
        "glob",
        "grep",
        "read_file",
        "todo_read",
        "todo_write",
        "web_fetch",
        "web_search",
        "write_file",
    ];
    let (anthropic, openai, gemini) = (
        include_str!("../../src/config/profile/anthropic.md"),
        include_str!("../../src/config/profile/openai.md"),
        include_str!("../../src/config/profile/gemini.md"),
    );
    let own: [(&[&str], &str, &str); 3] = [
        (&["list_directory"], "120 s", anthropic),
        (&["list_dir"], "10 s", openai),
        (&["list_dir", "read_many_files"], "10 s", gemini),
    ];
    for ((format, shell, editor), (own, timeout, prompt)) in FAMILIES.into_iter().zip(own) {
        let bench = bench(format);
        let config = std::fs::read_to_string(bench.place.config().join("config.yaml")).unwrap();
        let web =
            "security: {allowed_domains: [example.org]}\nweb_search: {api_key: k-web-search}\n";
        bench.place.write("config.yaml", &format!("{config}{web}"));
        allow_changes(&bench, editor);
        let (code, row, events) = bench.run(&[text(format)]);
        assert_eq!(code, 0, "{format}: {row}");
        let requests = bench.requests.lock().unwrap();
        let tools = &requests[0]["tools"];
        let tools = list(tools.pointer("/0/functionDeclarations").unwrap_or(tools));
        let mut names: Vec<&str> =
            tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        let mut expected = [&common[..], own, &[shell, editor]].concat();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{format}");
        let tool = tools.iter().find(|tool| tool["name"] == shell).unwrap();
        let about = tool["description"].as_str().unwrap();
        assert!(about.ends_with(&format!("The default timeout is {timeout}.")), "{about}");
        let said = of_type(&events, "system_prompt")[0]["text"].as_str().unwrap();
        assert!(said.starts_with("You are an agent") && said.contains(prompt), "{format}: {said}");
    }
}

/// The server checks each request: every call has its result, and nothing else is new.
#[test]
fn a_compacted_history_is_whole_in_each_format() {
    for format in FORMATS {
        let bench = bench(format);
        let config = std::fs::read_to_string(bench.place.config().join("config.yaml")).unwrap();
        let narrow = config.replace("max_retries: 0,", "max_retries: 0, context_window: 3000,");
        bench.place.write("config.yaml", &narrow);
        // The provider counts few tokens, so the last results alone fill most of the window.
        bench.place.write(
            "tools.yaml",
            &TOOLS.replace(
                "cmd: printf, args: ['<%s>', '{{x}}']",
                "cmd: sh, args: [-c, 'printf \"x%.0s\" $(seq 9900); echo \"<$1>\"', sh, '{{x}}']",
            ),
        );
        bench.place.write(
            "jobs.yaml",
            "version: 1\njobs:\n  - {name: j, prompt: Look., double_confirmation: false, compaction: auto, tools: {read: [echo, fails]}}\n",
        );
        let rounds = vec![calls(format); 4];
        let answers: Vec<_> = rounds.into_iter().chain([text(format)]).collect();
        let (code, row, events) = bench.run(&answers);
        assert_eq!(code, 0, "{format}: {row}");
        let compacted = of_type(&events, "compaction");
        let ids: Vec<&Value> =
            compacted.iter().flat_map(|event| list(&event["call_ids"])).collect();
        assert!(!ids.is_empty(), "{format}: {events:#?}");
        let requests = bench.requests.lock().unwrap();
        assert_eq!(requests.len(), 5, "{format}");
        let sent = requests[4].to_string();
        let count = |text: &str| sent.matches(text).count();
        assert_eq!(count("dutyd removed the output of this call"), ids.len(), "{format}");
        assert!(count(&"x".repeat(9000)) >= 2, "{format}: the last two results stay");
        match format {
            "anthropic" | "gemini" => assert_eq!(count("sig=="), 4, "{format}"),
            "openai" => assert_eq!(count("\"encrypted_content\":\"gAAA\""), 4),
            _ => {}
        }
    }
}

// proves LLM-5, PROV-2
#[test]
fn a_stream_that_is_cut_at_any_piece_runs_nothing() {
    for format in FORMATS {
        let bench = bench(format);
        let pieces = calls(format);
        let whole = whole(format, &pieces);
        for cut in 0..=pieces.len() {
            let (code, row, events) = bench.run(&[pieces[..cut].to_vec(), text(format)]);
            let started = of_type(&events, "tool_call_start").len();
            if cut < whole {
                assert_eq!(
                    (code, &row["stop_reason"]),
                    (1, &json!("provider_unavailable")),
                    "{format} cut at {cut}: {row}"
                );
                assert_eq!(started, 0, "{format} cut at {cut}");
            } else {
                assert_eq!((code, started), (0, 2), "{format} cut at {cut}: {row}");
            }
        }
    }
}

// conforms 003-B8
#[test]
fn a_fallback_stands_in_for_a_model_that_is_unavailable() {
    let (first, second) = (bench("openai_chat"), bench("anthropic"));
    let address = |bench: &Bench| bench.served.address;
    let config = format!(
        "default_model: m
models:
  m: {{provider: openai_chat, model: test, api_key: k-secret, base_url: 'http://{}/v1', max_retries: 0, fallback: [down, n]}}
  down: {{provider: openai_chat, model: test, base_url: 'http://127.0.0.1:9/v1', max_retries: 1}}
  n: {{provider: anthropic, model: test, api_key: k-secret, base_url: 'http://{}/v1', max_retries: 0}}
",
        address(&first),
        address(&second)
    );
    first.place.write("config.yaml", &config);
    *second.answers.lock().unwrap() = [text("anthropic")].into();
    // The first model answers with calls and then fails for good; the history continues in another
    // format.
    let (code, row, events) = first.run(&[calls("openai_chat")]);
    assert_eq!((code, &row["result"]), (0, &json!("All well.")), "{row}");
    let warnings = of_type(&events, "warning");
    let codes: Vec<&Value> = warnings.iter().map(|warning| &warning["code"]).collect();
    assert_eq!(codes, ["model_fallback", "model_retry", "model_fallback"], "{warnings:?}");
    let retried = warnings[1]["message"].as_str().unwrap();
    assert!(retried.starts_with("network: no connection"), "{retried}");
    assert_eq!(second.requests.lock().unwrap().len(), 1);
    assert_eq!(row["cost_usd"], Value::Null, "the answering model has no price");
}

/// A key goes only to the configured address.
// proves SEC-6
#[test]
fn a_redirect_is_not_followed() {
    let seen = Arc::new(Mutex::new(0));
    let count = seen.clone();
    let elsewhere = serve_on_loopback(Router::new().fallback(move || async move {
        *count.lock().unwrap() += 1;
        ""
    }));
    let target = format!("http://{}/v1/messages", elsewhere.address);
    let server = serve_on_loopback(
        Router::new().fallback(move || async move { axum::response::Redirect::temporary(&target) }),
    );
    for format in FORMATS {
        let (code, row) = run_at(&server, format, "max_retries: 0");
        assert_eq!(
            (code, &row["stop_reason"]),
            (1, &json!("provider_rejected")),
            "{format}: {row}"
        );
    }
    assert_eq!(*seen.lock().unwrap(), 0);
}

// proves PROV-3, PROV-4
#[test]
fn silence_drip_and_size_end_in_time_and_memory() {
    let server = serve_on_loopback(Router::new().fallback(|uri: Uri| async move {
        let piece = |text: &'static str| Ok::<_, std::io::Error>(Bytes::from(text));
        let stream: std::pin::Pin<Box<dyn futures_util::Stream<Item = _> + Send>> =
            match uri.path().split('/').nth(1).unwrap_or_default() {
                "silent" => Box::pin(futures_util::stream::pending()),
                // An occasional comment resets the idle timeout, so only the total timeout ends the
                // stream.
                "drip" => Box::pin(futures_util::stream::unfold((), move |()| async move {
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                    Some((piece(": still here\n\n"), ()))
                })),
                _ => Box::pin(futures_util::stream::repeat_with(move || {
                    Ok(Bytes::from(vec![b'{'; 1 << 20]))
                })),
            };
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
    }));
    for (path, words) in
        [("silent", "received no data"), ("drip", "took more than"), ("huge", "more than")]
    {
        let keys = format!(
            "max_retries: 0, idle_timeout: 1s, timeout: 3s, base_url: 'http://{}/{path}'",
            server.address
        );
        let started = std::time::Instant::now();
        let (code, row) = run_at(&server, "anthropic", &keys);
        assert_eq!(
            (code, &row["stop_reason"]),
            (1, &json!("provider_unavailable")),
            "{path}: {row}"
        );
        assert!(row["error"].as_str().unwrap_or_default().contains(words), "{path}: {row}");
        assert!(started.elapsed().as_secs() < 6, "{path}: {:?}", started.elapsed());
    }
}

fn run_at(server: &Served, format: &str, keys: &str) -> (i32, Value) {
    let base_url = if keys.contains("base_url") {
        String::new()
    } else {
        format!("base_url: 'http://{}/v1', ", server.address)
    };
    let config = format!(
        "models: {{m: {{provider: {format}, model: test, api_key: k-secret, {base_url}{keys}}}}}\n"
    );
    let jobs = "version: 1\njobs:\n  - {name: j, prompt: Look., double_confirmation: false}\n";
    let place = Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    let done = place.dutyd(&["-o", "json", "run", "j"]);
    (done.code, serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done:?}")))
}

// conforms 003-3.5d
#[test]
fn headers_of_the_operator_go_along() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = seen.clone();
    let server = serve_on_loopback(Router::new().fallback(move |headers: HeaderMap| async move {
        let beta = headers.get("anthropic-beta").and_then(|value| value.to_str().ok());
        kept.lock().unwrap().push(beta.unwrap_or_default().to_owned());
        ""
    }));
    run_at(&server, "anthropic", "max_retries: 0, headers: {anthropic-beta: context-1m}");
    assert_eq!(seen.lock().unwrap()[0], "context-1m");
}

#[test]
fn the_doctor_says_what_is_wrong_with_a_model() {
    let models = |uri: Uri, headers: HeaderMap| async move {
        use axum::http::StatusCode;
        let key = ["authorization", "x-api-key", "x-goog-api-key"]
            .iter()
            .find_map(|name| headers.get(*name)?.to_str().ok().map(str::to_owned));
        match uri.path() {
            "/v1/api/show" => (StatusCode::OK, json!({"capabilities": ["completion"]}).to_string()),
            _ if key.is_none_or(|key| !key.ends_with("good")) => {
                (StatusCode::UNAUTHORIZED, json!({"error": {"message": "no"}}).to_string())
            }
            "/v1/models/known" => (StatusCode::OK, json!({"id": "known"}).to_string()),
            "/v1/models" => (StatusCode::OK, json!({"data": [{"id": "known"}]}).to_string()),
            _ => {
                (StatusCode::NOT_FOUND, json!({"error": {"message": "no such model"}}).to_string())
            }
        }
    };
    let server = serve_on_loopback(Router::new().fallback(models));
    let line = |name: &str, format: &str, model: &str, key: &str| {
        format!(
            "  {name}: {{provider: {format}, model: {model}, api_key: {key}, base_url: 'http://{}/v1'}}\n",
            server.address
        )
    };
    let mut config = "default_model: a\nmodels:\n".to_owned();
    for (name, format, model, key) in [
        ("a", "anthropic", "known", "good"),
        ("b", "openai", "unknown", "good"),
        ("c", "gemini", "known", "bad-key"),
        ("d", "openai_chat", "known", "good"),
        ("e", "openai_chat", "unknown", "good"),
        ("f", "ollama", "any", "good"),
    ] {
        config += &line(name, format, model, key);
    }
    config += "  g: {provider: ollama, model: any, base_url: 'http://127.0.0.1:9'}\n";
    let jobs = "version: 1\njobs: []\n";
    let place = Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    let offline = place.json(&["doctor"]);
    assert_eq!(offline["ok"], true, "{offline}");
    let names: Vec<&str> =
        offline["items"].as_array().unwrap().iter().filter_map(|i| i["name"].as_str()).collect();
    let installation =
        ["kernel", "sandbox", "control groups", "state directory", "permissions", "unit"];
    assert_eq!(names[..6], installation);
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(place.state(), mode(0o755)).unwrap();
    let open = place.json(&["doctor"]);
    assert_eq!((&open["ok"], &open["items"][4]["ok"]), (&json!(false), &json!(false)), "{open}");
    std::fs::set_permissions(place.state(), mode(0o700)).unwrap();
    let done = place.dutyd(&["-o", "json", "doctor", "--online"]);
    let online: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((done.code, &online["ok"]), (1, &json!(false)));
    let of = |name: &str| {
        let items = online["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["name"] == format!("model {name}")).unwrap();
        (item["ok"] == true, item["detail"].as_str().unwrap().to_owned())
    };
    for (name, ok, words) in [
        ("a", true, "reachable, key accepted, tools supported"),
        ("b", false, "the model or the address is unknown"),
        ("c", false, "the key was rejected"),
        ("d", true, "tool support unknown"),
        ("e", true, "this model is not listed"),
        ("f", false, "NO TOOLS"),
        ("g", false, "not reachable"),
    ] {
        let (found, detail) = of(name);
        assert!(found == ok && detail.contains(words), "{name}: {detail}");
        assert!(!detail.contains("bad-key"), "{detail}");
    }
}
