//! Tests runs against an OpenAI-compatible loopback server that checks every request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use serde_json::{Value, json};

use crate::support::Place;

enum Answer {
    Chunks(Vec<Value>),
    Status(u16, Value),
    /// An error with one header.
    Headed(u16, &'static str, &'static str),
    /// A stream without an end marker.
    Cut(Vec<Value>),
}

#[derive(Clone)]
struct Server {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: Arc<Mutex<Vec<Value>>>,
}

async fn completions(State(server): State<Server>, body: String) -> Response {
    let request: Value = serde_json::from_str(&body).unwrap();
    check(&request);
    server.requests.lock().unwrap().push(request);
    let stream = |chunks: Vec<Value>, end: &str| {
        let text: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        ([(header::CONTENT_TYPE, "text/event-stream")], format!("{text}{end}")).into_response()
    };
    let next = server.answers.lock().unwrap().pop_front();
    match next {
        Some(Answer::Chunks(chunks)) => stream(chunks, "data: [DONE]\n\n"),
        Some(Answer::Cut(chunks)) => stream(chunks, ""),
        Some(Answer::Status(code, body)) => {
            (StatusCode::from_u16(code).unwrap(), body.to_string()).into_response()
        }
        Some(Answer::Headed(code, name, value)) => {
            (StatusCode::from_u16(code).unwrap(), [(name, value)]).into_response()
        }
        None => stream(say("done"), "data: [DONE]\n\n"),
    }
}

/// Checks that every call has exactly one result, in order, before any other message.
fn check(request: &Value) {
    let mut open: VecDeque<String> = VecDeque::new();
    for message in request["messages"].as_array().unwrap() {
        match message["role"].as_str().unwrap() {
            "tool" => assert_eq!(open.pop_front().as_deref(), message["tool_call_id"].as_str()),
            "assistant" => {
                assert!(open.is_empty());
                open.extend(
                    message["tool_calls"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .map(|call| call["id"].as_str().unwrap().to_owned()),
                );
            }
            _ => assert!(open.is_empty(), "calls without results: {open:?}"),
        }
    }
    assert!(open.is_empty());
}

fn say(text: &str) -> Vec<Value> {
    vec![
        json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}),
    ]
}

fn call(calls: &[(&str, Value)]) -> Vec<Value> {
    let calls: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(at, (name, arguments))| json!({"index": at, "id": format!("id_{at}"), "function": {"name": name, "arguments": arguments.to_string()}}))
        .collect();
    vec![
        json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": null}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
    ]
}

const TOOLS: &str = "version: 1
tools:
  - {name: echo, description: Prints, category: read, cmd: printf, args: ['<%s>', '{{x}}'], parameters: {x: {type: string}}}
  - {name: fails, description: Fails, category: read, cmd: 'false'}
  - {name: change, description: Changes, category: write, cmd: touch, args: [changed]}
  - {name: slow, description: Sleeps, category: read, cmd: sleep, args: ['20']}
";

/// Runs a job against the answers; returns the exit code, the run and the requests.
fn run(job: &str, answers: Vec<Answer>) -> (i32, Value, Vec<Value>) {
    let server = Server { answers: Arc::new(Mutex::new(answers.into())), requests: Arc::default() };
    let requests = server.requests.clone();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/v1/chat/completions", post(completions)).with_state(server);
    let serving = runtime.spawn(async move { axum::serve(listener, router).await });
    let config = format!(
        "models: {{m: {{provider: openai_chat, model: test, api_key: sk-local-test, base_url: 'http://{address}/v1', max_retries: 1, idle_timeout: 5s}}}}\n"
    );
    let place = Place::new(&[
        ("config.yaml", &config),
        ("tools.yaml", TOOLS),
        (
            "jobs.yaml",
            &format!(
                "version: 1\njobs:\n  - {{name: j, prompt: Look., double_confirmation: false, {job}}}\n"
            ),
        ),
    ]);
    let done = place.dutyd(&["-o", "json", "run", "j"]);
    let row: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
    assert_eq!(place.json(&["verify", "last"])["ok"], true);
    serving.abort();
    let requests = requests.lock().unwrap().clone();
    (done.code, row, requests)
}

// conforms 000-5.1e, 000-S5.2, 000-S5.3, 000-6.1b, 000-S6.1, 000-S6.7, 001-L6, 001-X5, 003-3.7
// conforms 003-3.8b, 003-9.3a, 003-9.11a, 004-C4, 004-C9b, 004-C14, 004-T6, 004-T8
#[test]
fn declared_tools_are_called_and_their_results_given_back() {
    let answers = vec![
        Answer::Chunks(call(&[
            ("echo", json!({"x": "a b"})),
            ("change", json!({})),
            ("fails", json!({})),
        ])),
        Answer::Chunks(say("{\"status\": \"warn\", \"summary\": \"seen\"}")),
    ];
    let (code, row, requests) = run("limits: {max_iterations: 5}", answers);
    assert_eq!((code, &row["outcome"], &row["verdict"]), (0, &json!("succeeded"), &json!("warn")));
    assert_eq!(row["result"]["summary"], "seen");
    let names: Vec<&str> = requests[0]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["echo", "fails", "find", "grep", "ls", "read", "slow", "todoread", "todowrite"],
        "the model must not see tools that the job can never use"
    );
    let echo = &requests[0]["tools"][0]["function"]["parameters"];
    assert_eq!(
        (&echo["required"], &echo["properties"]["x"]["type"], &echo["additionalProperties"]),
        (&json!(["x"]), &json!("string"), &json!(false))
    );
    let read = &requests[0]["tools"][5]["function"]["parameters"];
    assert_eq!(
        (&read["required"], &read["properties"]["file_path"]),
        (&json!(["path"]), &Value::Null)
    );
    let results: Vec<&str> = requests[1]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| m["content"].as_str().unwrap())
        .collect();
    assert!(results[0].starts_with("<tool_output "), "{results:?}");
    assert_eq!(dutyd::agent::unmarked(results[0]), "<a b>");
    assert!(results[1].starts_with("Refused by the rule `category`"), "{results:?}");
    assert!(results[2].contains("[exit code 1]"), "{results:?}");
    assert!(row["usage"]["input_tokens"].as_u64().unwrap() > 0);
}

// conforms 001-X6
#[test]
fn a_reply_that_was_cut_off_is_not_sent_back() {
    let cut = say("half an answer")[..1].to_vec();
    let answers = vec![Answer::Cut(cut), Answer::Chunks(say("done"))];
    let (code, row, requests) = run("description: x", answers);
    assert_eq!((code, &row["result"]), (0, &json!("done")), "{row}");
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0]["messages"], requests[1]["messages"]);
}

// conforms 000-5.1a
#[test]
fn every_stop_reason_has_its_exit_code() {
    let looks = |count: usize| {
        (0..count)
            .map(|n| Answer::Chunks(call(&[("echo", json!({"x": n.to_string()}))])))
            .collect::<Vec<_>>()
    };
    let fails = |count: usize| {
        (0..count).map(|_| Answer::Chunks(call(&[("fails", json!({}))]))).collect::<Vec<_>>()
    };
    let same = (0..40)
        .map(|_| Answer::Chunks(call(&[("echo", json!({"x": "same"}))])))
        .collect::<Vec<_>>();
    let error = |status: u16, body: Value| vec![Answer::Status(status, body)];
    let context = json!({"error": {"code": 400, "message": "request (2009 tokens) exceeds the available context size (512 tokens)"}});
    let spelled =
        || Answer::Chunks(say("<tool_call>{\"name\": \"slow\", \"arguments\": {}}</tool_call>"));
    let announced = || Answer::Chunks(call(&[])[1..].to_vec());
    let cut = || Answer::Cut(call(&[("echo", json!({"x": "never"}))])[..1].to_vec());
    let cases: Vec<(&str, Vec<Answer>, &str, i32)> = vec![
        ("limits: {max_iterations: 2}", looks(5), "max_iterations", 1),
        ("limits: {max_tool_calls: 1}", looks(5), "max_tool_calls", 1),
        ("limits: {max_tokens: 50}", looks(5), "budget_exceeded", 1),
        (
            "limits: {max_duration: 1s}",
            vec![Answer::Chunks(call(&[("slow", json!({}))]))],
            "max_duration",
            124,
        ),
        ("", fails(5), "error_threshold", 1),
        ("limits: {max_iterations: 100}", same, "loop_detected", 1),
        ("", error(401, json!({"error": {"message": "bad key"}})), "provider_auth", 1),
        ("", error(400, json!({"error": {"message": "no such field"}})), "provider_rejected", 1),
        ("", error(404, json!({"error": {"message": "no such model"}})), "provider_rejected", 1),
        ("", error(400, context), "context_overflow", 1),
        (
            "",
            error(429, json!({"error": {"code": "insufficient_quota", "message": "spent"}})),
            "provider_unavailable",
            1,
        ),
        (
            "",
            vec![Answer::Status(503, json!({})), Answer::Status(500, json!({}))],
            "provider_unavailable",
            1,
        ),
        ("", vec![Answer::Status(503, json!({}))], "completed", 0),
        ("", vec![cut(), cut()], "provider_unavailable", 1),
        ("", vec![Answer::Chunks(say("")), Answer::Chunks(say(" "))], "no_answer", 1),
        ("", vec![spelled(), spelled()], "no_answer", 1),
        ("", vec![announced(), announced()], "provider_unavailable", 1),
        ("", vec![announced(), Answer::Chunks(say("done"))], "completed", 0),
    ];
    for (job, answers, expected, code) in cases {
        let (found, row, _) = run(if job.is_empty() { "description: x" } else { job }, answers);
        assert_eq!((row["stop_reason"].as_str(), found), (Some(expected), code), "{job} {row}");
        if expected == "provider_unavailable" {
            assert_eq!(row["tool_calls"], 0, "a partial message must not run a call");
        }
    }
}

/// The fixtures of the field log: what a provider answers, and what the run must say.
// proves PROV-1, PROV-5
#[test]
fn an_answer_that_the_operator_must_know_of_is_told() {
    let target = "https://llm.example.org/v1/chat/completions";
    let (code, row, requests) =
        run("description: x", vec![Answer::Headed(308, "location", target)]);
    assert_eq!((code, &row["stop_reason"]), (1, &json!("provider_rejected")), "{row}");
    let error = row["error"].as_str().unwrap();
    assert!(error.contains(target) && error.contains("`base_url: https://llm.example.org/v1`"));
    assert_eq!(requests.len(), 1);

    let answers = vec![Answer::Headed(429, "retry-after", "7200")];
    let (code, row, requests) = run("description: x", answers);
    assert_eq!((code, &row["stop_reason"]), (1, &json!("provider_unavailable")), "{row}");
    let error = row["error"].as_str().unwrap();
    assert!(error.contains("the provider allows the next request at 20"), "{error}");
    assert_eq!(requests.len(), 1);

    let answers = vec![Answer::Status(404, json!({"error": {"message": "no such model"}}))];
    let (_, row, _) = run("description: x", answers);
    assert!(row["error"].as_str().unwrap().contains("/v1/chat/completions: HTTP 404"), "{row}");
}

// conforms 004-T22
#[test]
fn reasoning_that_came_as_text_is_not_in_the_result_and_goes_back_as_it_came() {
    let text = "<think>\nI look at the disks first.\n</think>\n\n{\"status\":\"failed\",\"summary\":\"full\"}";
    let mut looks = call(&[("echo", json!({"x": "a"}))]);
    looks.insert(0, say("<think>\nFirst a look.\n</think>\n\nI look.").remove(0));
    let (code, row, requests) =
        run("description: x", vec![Answer::Chunks(looks), Answer::Chunks(say(text))]);
    assert_eq!((code, &row["verdict"]), (0, &json!("failed")), "{row}");
    assert_eq!(row["result"], json!({"status": "failed", "summary": "full"}));
    let sent = &requests[1]["messages"][2]["content"];
    assert_eq!(sent, "<think>\nFirst a look.\n</think>\n\nI look.");
}

/// A host without CA certificates needs none for a scripted model and for the control socket.
#[test]
fn a_host_without_certificates_runs_a_scripted_model() {
    let place = Place::new(&[
        ("config.yaml", "version: 1\nmodels: {m: {provider: scripted, script: s.yaml}}\n"),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", "version: 1\njobs: [{name: j, prompt: x}]\n"),
    ]);
    let place = place.with_env("SSL_CERT_FILE", "/dev/null");
    let _daemon = place.serve();
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
}

/// A server with a self-signed certificate. It prints its port, and a line for each connection and
/// each request.
const WITH_OWN_CERTIFICATE: &str = r#"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    print("tried", flush=True)
    try:
        context.wrap_socket(connection, server_side=True).recv(1)
        print("READ", flush=True)
    except OSError:
        pass
"#;

// proves PROV-6
#[test]
#[expect(clippy::disallowed_methods, reason = "runs a TLS server")]
fn a_certificate_that_is_not_valid_is_never_accepted_and_not_tried_again() {
    use std::io::BufRead as _;
    use std::process::{Command, Stdio};
    let place = Place::new(&[
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", "version: 1\njobs: [{name: j, prompt: x}]\n"),
    ]);
    let (key, certificate) = (place.path().join("key"), place.path().join("certificate"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let mut server = Command::new("python3")
        .args(["-c", WITH_OWN_CERTIFICATE])
        .args([&certificate, &key])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(server.stdout.take().unwrap()).lines();
    let port = said.next().unwrap().unwrap();
    let model = format!(
        "provider: openai_chat, model: m, api_key: k-test-key, base_url: 'https://127.0.0.1:{port}/v1'"
    );
    place.write("config.yaml", &format!("models: {{m: {{{model}}}}}\n"));
    let done = place.dutyd(&["-o", "json", "run", "j"]);
    server.kill().unwrap();
    server.wait().unwrap();
    let said: Vec<String> = said.map_while(Result::ok).collect();
    assert_eq!(said, ["tried"], "expected one connection and no request");
    let row: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
    assert_eq!((done.code, &row["stop_reason"]), (1, &json!("provider_rejected")), "{row}");
    let error = row["error"].as_str().unwrap();
    assert!(error.contains("is one of a CA") && error.contains("CA:FALSE"), "{row}");
    assert!(!error.contains("OtherError") && !error.contains("no connection"), "{row}");
    for key in ["verify", "insecure", "tls_verify", "skip_verify"] {
        place.write("config.yaml", &format!("models: {{m: {{{model}, {key}: false}}}}\n"));
        assert_eq!(place.dutyd(&["validate"]).code, 2, "`{key}` must not turn verification off");
    }
}
