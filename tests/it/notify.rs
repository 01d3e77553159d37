//! Tests notifications against real servers on loopback: HTTP, and an SMTP server that others wrote.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Served, serve_on_loopback, wait_until};

/// A request that the server got.
#[derive(Debug, Clone)]
struct Got {
    path: String,
    signature: Option<String>,
    key: Option<String>,
    body: String,
}

/// A server that records what it gets.
struct Receiver {
    served: Served,
    got: Arc<Mutex<Vec<Got>>>,
    is_down: Arc<AtomicBool>,
}

type Shared = (Arc<Mutex<Vec<Got>>>, Arc<AtomicBool>);

async fn receive(
    State((got, is_down)): State<Shared>,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let path = uri.path();
    if path == "/redirect" {
        return (StatusCode::FOUND, [("Location", "/elsewhere")]).into_response();
    }
    if path == "/flood" {
        return (StatusCode::BAD_REQUEST, "x".repeat(100_000_000)).into_response();
    }
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let is_down = is_down.load(Ordering::SeqCst);
    let path = if is_down { format!("down {path}") } else { path.to_owned() };
    let (signature, key) = (header("Dutyd-Signature"), header("Idempotency-Key"));
    got.lock().unwrap().push(Got { path, signature, key, body });
    if is_down { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }.into_response()
}

impl Receiver {
    fn new() -> Self {
        let (got, is_down) = (Arc::default(), Arc::default());
        let shared: Shared = (Arc::clone(&got), Arc::clone(&is_down));
        let served = serve_on_loopback(axum::Router::new().fallback(receive).with_state(shared));
        Self { served, got, is_down }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.served.address)
    }

    /// Returns what arrived at a path.
    fn at(&self, path: &str) -> Vec<Got> {
        self.got.lock().unwrap().iter().filter(|got| got.path == path).cloned().collect()
    }

    fn bodies(&self, path: &str) -> Vec<Value> {
        self.at(path).iter().map(|got| serde_json::from_str(&got.body).unwrap()).collect()
    }
}

/// Returns a place with these destinations and a job `j` with these rules, whose run gives the verdict
/// `s`, and fails for `F`.
fn place(destinations: &str, notify: &str) -> Place {
    let config = format!(
        "default_model: m
models: {{m: {{provider: scripted, script: s.yaml}}}}
security: {{sandbox: off}}
notifications:
{destinations}"
    );
    let jobs = format!(
        "version: 1
jobs:
  - name: j
    prompt: Look
    vars: {{s: ok}}
    double_confirmation: false
    allow_no_calls: true
    output_schema: {{type: object, properties: {{status: {{not: {{const: F}}}}}}}}
    notify: {notify}
"
    );
    let script = "steps: [{say: '{\"status\": \"{{ vars.s }}\", \"summary\": \"db <!channel> is {{ vars.s }}\"}'}]\n";
    let tools = "version: 1\ntools: []\n";
    Place::new(&[
        ("config.yaml", config.as_str()),
        ("jobs.yaml", &jobs),
        ("s.yaml", script),
        ("tools.yaml", tools),
    ])
}

/// Runs the job under the daemon with this verdict; returns the id of the run.
fn run(place: &Place, status: &str) -> String {
    let done = place.dutyd(&["run", "j", "--var", &format!("s={status}"), "-o", "json"]);
    assert_eq!(done.code, i32::from(status == "F"), "{done:?}");
    let run: Value = serde_json::from_str(&done.stdout).unwrap();
    run["run_id"].as_str().unwrap().to_owned()
}

fn hmac(secret: &str, text: &str) -> String {
    let mut openssl = Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut openssl.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = openssl.wait_with_output().unwrap().stdout;
    String::from_utf8(output).unwrap().trim().rsplit(' ').next().unwrap().to_owned()
}

/// After a kill, a message that was on its way is sent again with the same key.
#[test]
fn a_state_is_told_once_with_a_kill_between_any_two_runs() {
    check_alternation(Signal::SIGKILL);
}

#[test]
fn a_state_is_told_once_with_a_restart_between_any_two_runs() {
    check_alternation(Signal::SIGTERM);
}

/// Runs the job with alternating verdicts, and ends the daemon with `signal` after each run.
fn check_alternation(signal: Signal) {
    let receiver = Receiver::new();
    let hook = format!(
        "  hook: {{type: webhook, url: '{}', secret: secret-of-hook}}\n",
        receiver.url("/hook")
    );
    let place = place(&hook, "[{to: hook, on: ['status:critical', recovered]}]");
    let mut runs = Vec::new();
    for status in ["ok", "ok", "critical", "critical", "ok"] {
        let daemon = place.serve();
        runs.push(run(&place, status));
        daemon.signal(signal);
        daemon.wait();
    }
    let daemon = place.serve();
    let has_recovered = || receiver.bodies("/hook").iter().any(|body| body["event"] == "recovered");
    wait_until(has_recovered, || place.log());
    run(&place, "ok");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let mut got = receiver.at("/hook");
    if signal == Signal::SIGKILL {
        got.dedup_by(|one, other| one.key == other.key);
    }
    let bodies: Vec<Value> =
        got.iter().map(|got| serde_json::from_str(&got.body).unwrap()).collect();
    let events: Vec<_> = bodies.iter().map(|body| body["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["status:critical", "recovered"], "{bodies:#?}");
    assert_eq!((&bodies[0]["run_id"], &bodies[1]["run_id"]), (&json!(runs[2]), &json!(runs[4])));
    assert_eq!((&bodies[0]["job"], &bodies[0]["verdict"]), (&json!("j"), &json!("critical")));
    assert_eq!(bodies[0]["summary"], "j reports critical: db <!channel> is critical");
    let got = &got[0];
    let (time, signature) = got.signature.as_deref().unwrap().split_once(',').unwrap();
    let expected = hmac("secret-of-hook", &format!("{}.{}", &time[2..], got.body));
    assert_eq!(signature, format!("v1={expected}"));
    assert!(!place.everything().contains("secret-of-hook"));
}

#[test]
fn a_destination_that_is_down_gets_its_messages_afterwards_in_order_and_once() {
    let receiver = Receiver::new();
    receiver.is_down.store(true, Ordering::SeqCst);
    let hook = format!("  hook: {{type: webhook, url: '{}'}}\n", receiver.url("/hook"));
    let place = place(&hook, "[{to: hook, on: [succeeded, failed, recovered]}]");
    let daemon = place.serve();
    let runs: Vec<String> = ["ok", "F", "ok"].map(|status| run(&place, status)).to_vec();
    wait_until(|| !receiver.at("down /hook").is_empty(), || place.log());
    receiver.is_down.store(false, Ordering::SeqCst);
    wait_until(|| receiver.at("/hook").len() >= 4, || place.log());
    let bodies = receiver.bodies("/hook");
    let told: Vec<_> = bodies
        .iter()
        .map(|b| (b["event"].as_str().unwrap(), b["run_id"].as_str().unwrap()))
        .collect();
    let expected = [
        ("succeeded", &runs[0]),
        ("failed", &runs[1]),
        ("recovered", &runs[2]),
        ("succeeded", &runs[2]),
    ];
    assert_eq!(told, expected.map(|(event, run)| (event, run.as_str())));
    let mut keys: Vec<_> = receiver.at("/hook").into_iter().map(|got| got.key.unwrap()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
}

#[test]
fn thousands_of_waiting_messages_neither_delay_the_start_nor_a_run() {
    let receiver = Receiver::new();
    receiver.is_down.store(true, Ordering::SeqCst);
    let hook = format!("  hook: {{type: webhook, url: '{}'}}\n", receiver.url("/hook"));
    let place = place(&hook, "[{to: hook, on: [succeeded]}]");
    let daemon = place.serve();
    run(&place, "ok");
    wait_until(|| !receiver.at("down /hook").is_empty(), || place.log());
    drop(daemon);
    let ledger = rusqlite::Connection::open(place.state().join("ledger.db")).unwrap();
    // A destination that is gone from the configuration has messages too.
    ledger
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
             INSERT INTO messages (destination, created_at, message)
             SELECT d, created_at, message FROM n, (SELECT 'hook' AS d UNION SELECT 'gone'), messages WHERE id = 1;",
        )
        .unwrap();
    drop(ledger);
    let daemon = place.serve();
    let first = run(&place, "ok");
    receiver.is_down.store(false, Ordering::SeqCst);
    wait_until(|| receiver.at("/hook").len() >= 200, || place.log());
    let told = receiver.bodies("/hook");
    assert!(told.iter().all(|body| body["event"] == "succeeded"), "{:?}", told[0]);
    assert!(told.iter().take(200).all(|body| body["run_id"] != first), "the oldest come first");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
}

#[test]
fn each_kind_of_destination_gets_its_form_and_text_stays_text() {
    let receiver = Receiver::new();
    let destinations = format!(
        "  chat: {{type: slack, url: '{}'}}\n  duty: {{type: pagerduty, routing_key: key-of-duty, url: '{}'}}\n  alive: {{type: ping, url: '{}'}}\n",
        receiver.url("/slack"),
        receiver.url("/duty"),
        receiver.url("/ping"),
    );
    let events = "on: [failed, recovered]";
    let place = place(
        &destinations,
        &format!("[{{to: chat, on: ['status:critical']}}, {{to: duty, {events}}}, {{to: alive}}]"),
    );
    let daemon = place.serve();
    for status in ["critical", "F", "ok"] {
        run(&place, status);
    }
    wait_until(|| receiver.at("/duty").len() == 2, || place.log());
    wait_until(|| receiver.at("/ping").len() == 2, || place.log());
    let slack = receiver.bodies("/slack");
    assert_eq!(slack.len(), 1);
    let text = slack[0]["text"].as_str().unwrap();
    assert!(text.contains("db &lt;!channel&gt; is critical") && !text.contains('<'), "{text}");
    let duty = receiver.bodies("/duty");
    assert_eq!(
        (&duty[0]["event_action"], &duty[1]["event_action"]),
        (&json!("trigger"), &json!("resolve"))
    );
    assert_eq!(duty[0]["dedup_key"], duty[1]["dedup_key"]);
    assert!(duty[0]["payload"]["summary"].as_str().unwrap().contains("invalid_output"), "{duty:?}");
    assert_eq!((receiver.at("/ping/start").len(), receiver.at("/ping/fail").len()), (3, 1));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert!(!place.everything().contains("key-of-duty"));
}

#[test]
fn a_test_message_says_what_the_destination_answers() {
    let receiver = Receiver::new();
    let destinations: String = ["hook", "redirect", "flood"]
        .map(|name| {
            format!("  {name}: {{type: webhook, url: '{}'}}\n", receiver.url(&format!("/{name}")))
        })
        .concat();
    let closed = "  closed: {type: webhook, url: 'http://127.0.0.1:1/x-secret-path'}\n";
    let place = place(&format!("{destinations}{closed}"), "[]");
    let test = |name: &str| place.dutyd(&["notify", "test", name]);
    let done = test("hook");
    assert_eq!((done.code, done.stdout.as_str()), (0, "hook (webhook) took the test message\n"));
    assert_eq!(receiver.bodies("/hook")[0]["event"], "test");
    let done = test("redirect");
    assert!(done.code == 1 && done.stderr.contains("HTTP 302"), "{done:?}");
    assert!(receiver.at("/elsewhere").is_empty(), "the redirect was followed");
    let done = test("flood");
    assert!(done.code == 1 && done.stderr.contains("HTTP 400"), "{done:?}");
    assert!(done.stderr.len() < 2000, "{}", done.stderr.len());
    let done = test("closed");
    assert!(done.code == 1 && !done.stderr.contains("x-secret-path"), "{done:?}");
    let done = test("hok");
    assert!(done.code == 3 && done.stderr.contains("did you mean `hook`?"), "{done:?}");
}

/// An SMTP server that refuses the recipient `gone@…` and prints each mail as a JSON line.
const SMTP: &str = r#"
import json, socket, sys
from email import message_from_bytes
from email.header import decode_header, make_header
from aiosmtpd.controller import Controller

class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("gone@"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"
    async def handle_DATA(self, server, session, envelope):
        mail = message_from_bytes(envelope.content)
        print(json.dumps({"to": envelope.rcpt_tos, "subject": str(make_header(decode_header(mail["Subject"]))),
            "headers": mail.keys(), "body": mail.get_payload(decode=True).decode()}), flush=True)
        return "250 OK"

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
controller = Controller(Handler(), hostname="127.0.0.1", port=port)
controller.start()
print(port, flush=True)
sys.stdin.read()
"#;

#[test]
fn the_other_recipients_get_their_mail_if_one_is_refused() {
    let mut server = Command::new("/usr/bin/python3")
        .args(["-c", SMTP])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap();
    let mails: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = Arc::clone(&mails);
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            kept.lock().unwrap().push(serde_json::from_str(&line).unwrap());
        }
    });
    let mail = format!(
        "  mail: {{type: email, smtp: 'smtp://127.0.0.1:{port}', from: dutyd@example.org, to: [ann@example.org, gone@example.org, Bob <bob@example.org>]}}\n"
    );
    let place = place(&mail, "[{to: mail, on: [succeeded]}]");
    let daemon = place.serve();
    // A line end in the answer of a model must not become a header.
    run(&place, "ok\\r\\nBcc: eve@example.org");
    wait_until(|| mails.lock().unwrap().len() == 2, || place.log());
    let degraded = || place.json(&["status"])["degraded"].to_string();
    wait_until(|| degraded().contains("gone@example.org was refused"), degraded);
    run(&place, "ok");
    wait_until(|| mails.lock().unwrap().len() == 4, || place.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    drop(server.stdin.take());
    server.wait().unwrap();
    reader.join().unwrap();
    let mails = mails.lock().unwrap();
    assert_eq!(mails[0]["to"], json!(["ann@example.org"]));
    assert_eq!(mails[1]["to"], json!(["bob@example.org"]));
    let headers = mails[0]["headers"].as_array().unwrap();
    assert!(!headers.contains(&json!("Bcc")), "{headers:?}");
    let subject = mails[0]["subject"].as_str().unwrap();
    assert!(subject.contains("j reports ok"), "{subject}");
    assert!(mails[0]["body"].as_str().unwrap().contains("dutyd show "), "{mails:?}");
}

#[test]
fn the_heart_beats_as_long_as_the_daemon_does_what_is_due() {
    let receiver = Receiver::new();
    let alive = format!("  alive: {{type: ping, url: '{}'}}\n", receiver.url("/alive"));
    let place = place(&alive, "[]");
    let config = std::fs::read_to_string(place.config().join("config.yaml")).unwrap();
    place.write("config.yaml", &format!("{config}heartbeat: {{to: alive, every: 10s}}\n"));
    let daemon = place.serve();
    wait_until(|| receiver.at("/alive").len() >= 2, || place.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
}
