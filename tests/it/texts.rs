//! Tests texts that people give to runs: `steer` and `follow-up`, also over a kill, in the queue and
//! beside calls.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{Daemon, Place, Served, serve_on_loopback, wait_until};

/// A provider that answers once it may.
#[derive(Clone)]
struct Provider {
    may_answer: Arc<Semaphore>,
    /// The messages of each request.
    requests: Arc<Mutex<Vec<Vec<Value>>>>,
    /// Calls to answer with, before the answers without calls.
    calls: Arc<Mutex<VecDeque<Vec<&'static str>>>>,
}

async fn answer(State(provider): State<Provider>, body: String) -> axum::Json<Value> {
    let request: Value = serde_json::from_str(&body).unwrap();
    let number = {
        let mut requests = provider.requests.lock().unwrap();
        requests.push(request["messages"].as_array().unwrap().clone());
        requests.len()
    };
    provider.may_answer.acquire().await.unwrap().forget();
    let calls = provider.calls.lock().unwrap().pop_front().unwrap_or_default();
    let calls = calls.iter().enumerate().map(|(at, name)| {
        json!({"id": format!("c{number}-{at}"), "type": "function", "function": {"name": name, "arguments": "{}"}})
    });
    let calls: Vec<Value> = calls.collect();
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    axum::Json(json!({
        "choices": [{"index": 0, "finish_reason": finish, "message": {
            "role": "assistant", "content": format!("answer {number}"), "tool_calls": calls,
        }}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }))
}

struct Bench {
    provider: Provider,
    place: Place,
    _served: Served,
}

const JOBS: &str = "version: 1
jobs:
  - {name: first, prompt: Look., double_confirmation: false, allow_no_calls: true, tools: {write: [wait, change]}}
  - {name: second, prompt: Look too., double_confirmation: false, allow_no_calls: true}
  - {name: tick, prompt: Tick., double_confirmation: false, allow_no_calls: true, schedule: '* * * * * *', enabled: false}
";

impl Bench {
    fn new() -> Self {
        let provider = Provider {
            may_answer: Arc::new(Semaphore::new(0)),
            requests: Arc::default(),
            calls: Arc::default(),
        };
        let served =
            serve_on_loopback(axum::Router::new().fallback(answer).with_state(provider.clone()));
        let config = format!(
            "version: 1
max_concurrent_runs: 1
shutdown_grace: 1s
models:
  m: {{provider: openai_chat, model: x, base_url: 'http://{}/v1', api_key: of-the-test, stream: false, price: {{input: 0, output: 0}}, context_window: 100000}}
",
            served.address
        );
        let place = Place::new(&[("config.yaml", &config), ("jobs.yaml", JOBS)]);
        let gate = place.path().join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (here, gate) = (place.path().display(), gate.display());
        place.write("tools.yaml", &format!(
            "version: 1\ntools:\n  - {{name: wait, description: Waits, category: write, cmd: cat, args: [{gate}], sandbox: {{read: [{here}]}}}}\n  - {{name: change, description: Changes, category: write, cmd: 'true'}}\n"
        ));
        Self { provider, place, _served: served }
    }

    /// Starts a run of a job; returns its id.
    fn start(&self, job: &str) -> String {
        let started = self.place.dutyd(&["trigger", job]);
        assert_eq!(started.code, 0, "{started:?}");
        started.stdout.trim().to_owned()
    }

    fn let_answer(&self, count: usize) {
        self.provider.may_answer.add_permits(count);
    }

    /// Waits until the provider has this number of requests.
    fn wait_for_request(&self, count: usize) {
        let made = || self.provider.requests.lock().unwrap().len();
        wait_until(|| made() >= count, || self.place.log());
    }

    /// Returns what follows the system prompt in each request.
    fn said(&self) -> Vec<Vec<String>> {
        let said = |message: &Value| {
            format!(
                "{}: {}",
                message["role"].as_str().unwrap(),
                message["content"].as_str().unwrap()
            )
        };
        let requests = self.provider.requests.lock().unwrap();
        requests.iter().map(|messages| messages.iter().skip(1).map(said).collect()).collect()
    }

    fn wait_for_end(&self, run_id: &str) -> Value {
        let run = || self.place.json(&["show", run_id]);
        wait_until(|| run()["run"]["outcome"].is_string(), || self.place.log());
        let verified = self.place.json(&["verify", run_id]);
        assert_eq!((&verified["ok"], &verified["head"]), (&json!(true), &json!("match")));
        run()
    }

    /// Gives a text to a run; returns what the person reads.
    fn give(&self, verb: &str, run: &str, text: &str) -> String {
        let given = self.place.dutyd(&[verb, run, text]);
        assert_eq!(given.code, 0, "{given:?}");
        given.stdout
    }

    fn kill(&self, daemon: Daemon) -> Daemon {
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        self.place.serve()
    }
}

fn events(shown: &Value, kind: &str) -> Vec<Value> {
    let events = shown["events"].as_array().unwrap().iter();
    events.filter(|event| event["type"] == kind).cloned().collect()
}

// conforms 001-L7, 003-2.6a, 003-2.6b, 003-9.6a, 003-9.6b
#[test]
fn a_run_takes_steering_with_its_next_request_and_a_follow_up_after_its_answer() {
    let bench = Bench::new();
    let _daemon = bench.place.serve();
    let run_id = bench.start("first");
    bench.wait_for_request(1);
    let steered = bench.give("steer", &run_id, "Only look.");
    assert_eq!(
        steered,
        format!(
            "given to run {run_id}:\n  the model gets it with its next request; calls not yet started are skipped\n"
        )
    );
    let followed = bench.give("follow-up", "last", "And the disk?");
    assert!(followed.contains("it is the next input once the model has answered"), "{followed}");
    bench.let_answer(9);
    let shown = bench.wait_for_end(&run_id);
    assert_eq!(shown["run"]["result"], "answer 3");
    let first = ["user: Look."];
    let second = ["user: Look.", "assistant: answer 1", "user: Only look."];
    let third = [&second[..], &["assistant: answer 2", "user: And the disk?"]].concat();
    assert_eq!(bench.said(), [&first[..], &second[..], &third[..]]);
    let queued = events(&shown, "input_queued");
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    assert_eq!(
        (&queued[0]["kind"], &queued[0]["text"], &queued[0]["by"]["user"]),
        (&json!("steering"), &json!("Only look."), &json!(user))
    );
    assert_eq!((queued.len(), &queued[1]["kind"]), (2, &json!("follow_up")));
    assert_eq!(events(&shown, "steering_injected")[0]["source"], "person");
    assert_eq!(events(&shown, "user_input")[1]["source"], "follow_up");
    let text = bench.place.dutyd(&["show", &run_id]).stdout;
    let given = format!("given     steering by {user}, 10 characters");
    assert!(text.contains(&given) && text.contains("follow-up"), "{text}");
    for verb in ["steer", "follow-up"] {
        let late = bench.place.dutyd(&[verb, &run_id, "x"]);
        assert!(late.code == 1 && late.stderr.contains("has already ended"), "{late:?}");
    }
}

/// A request that a kill cut off is repeated as it was, and the text comes with the next one.
#[test]
fn a_kill_right_after_a_text_changes_nothing_of_what_the_model_sees() {
    let bench = Bench::new();
    let daemon = bench.place.serve();
    let run_id = bench.start("first");
    bench.wait_for_request(1);
    bench.give("steer", &run_id, "Only look.");
    bench.give("follow-up", &run_id, "And the disk?");
    let daemon = bench.kill(daemon);
    bench.wait_for_request(2);
    let daemon = bench.kill(daemon);
    bench.wait_for_request(3);
    bench.let_answer(9);
    let shown = bench.wait_for_end(&run_id);
    assert_eq!(events(&shown, "input_queued").len(), 2);
    let said = bench.said();
    assert_eq!(said[..3], [["user: Look."]; 3]);
    // The requests that were cut off may have taken an answer.
    let inputs = |said: &Vec<String>| {
        said.iter().filter(|line| line.starts_with("user")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(inputs(&said[3]), ["user: Look.", "user: Only look."]);
    assert_eq!(inputs(&said[4]), ["user: Look.", "user: Only look.", "user: And the disk?"]);
    drop(daemon);
}

// conforms 001-X3
#[test]
fn calls_that_have_not_started_are_skipped() {
    let bench = Bench::new();
    let _daemon = bench.place.serve();
    bench.provider.calls.lock().unwrap().push_back(vec!["wait", "change"]);
    bench.let_answer(9);
    let run_id = bench.start("first");
    let begun = || !events(&bench.place.json(&["show", &run_id]), "tool_call_start").is_empty();
    wait_until(begun, || bench.place.log());
    bench.give("steer", &run_id, "Do not change it.");
    std::fs::write(bench.place.path().join("gate"), "go").unwrap();
    let shown = bench.wait_for_end(&run_id);
    let ends: Vec<Value> =
        events(&shown, "tool_call_end").iter().map(|end| end["error_kind"].clone()).collect();
    assert_eq!(ends, [Value::Null, json!("skipped")]);
    assert_eq!(events(&shown, "tool_call_start").len(), 1);
    let last = bench.said()[1].clone();
    assert!(last[3].contains("a newer instruction came"), "{last:?}");
    assert_eq!(last[4], "user: Do not change it.");
}

#[test]
fn a_text_for_a_run_that_has_not_begun_is_kept_for_it() {
    let bench = Bench::new();
    let daemon = bench.place.serve();
    bench.start("first");
    bench.wait_for_request(1);
    let waiting = bench.start("second");
    let steered = bench.give("steer", &waiting, "Only look.");
    assert!(steered.contains("the run has not begun; the model gets it"), "{steered}");
    bench.give("follow-up", &waiting, "And the disk?");
    let daemon = bench.kill(daemon);
    bench.let_answer(9);
    let shown = bench.wait_for_end(&waiting);
    assert_eq!(events(&shown, "input_queued").len(), 2);
    let last = bench.said().last().unwrap().clone();
    // Many chat templates reject two user messages in a row.
    let first = "user: Look too.\n\nOnly look.";
    assert_eq!(last, [first, "assistant: answer 3", "user: And the disk?"]);
    // A queued run that is cancelled takes its texts along.
    bench.provider.may_answer.forget_permits(9);
    bench.start("first");
    let waiting = bench.start("second");
    bench.give("steer", &waiting, "Only look.");
    assert_eq!(bench.place.dutyd(&["cancel", &waiting]).code, 0);
    let late = bench.place.dutyd(&["steer", &waiting, "x"]);
    assert!(matches!(late.code, 1 | 3), "{late:?}");
    drop(daemon);
}

/// The next start of the daemon decides a waiting slot again, with a new run.
#[test]
fn a_text_for_a_slot_follows_the_slot() {
    let bench = Bench::new();
    let daemon = bench.place.serve();
    bench.start("first");
    bench.wait_for_request(1);
    bench.place.write("jobs.yaml", &JOBS.replace("enabled: false", "enabled: true"));
    assert_eq!(bench.place.dutyd(&["reload"]).code, 0);
    let waiting = || bench.place.json(&["runs", "--job", "tick"]);
    wait_until(|| waiting()[0]["run_id"].is_string(), || bench.place.log());
    let run_id = waiting()[0]["run_id"].as_str().unwrap().to_owned();
    bench.give("steer", &run_id, "Only look.");
    let daemon = bench.kill(daemon);
    bench.let_answer(99);
    let given = || {
        let said = bench.said();
        said.iter().any(|said| said[0] == "user: Tick.\n\nOnly look.")
    };
    wait_until(given, || format!("{:?}\n{}", bench.said(), bench.place.log()));
    drop(daemon);
}

#[test]
fn what_no_run_takes_is_refused() {
    let bench = Bench::new();
    let _daemon = bench.place.serve();
    let run_id = bench.start("first");
    bench.wait_for_request(1);
    let longest = "x".repeat(64 << 10);
    for (text, code, why) in [
        ("", 2, "the text is empty"),
        (" \n", 2, "the text is empty"),
        (&format!("{longest}x"), 2, "at most 65536 bytes"),
        (&longest, 0, ""),
    ] {
        let given = bench.place.dutyd(&["steer", &run_id, text]);
        assert_eq!(given.code, code, "{}", given.stderr);
        assert!(given.stderr.contains(why), "{}", given.stderr);
    }
    let unknown = bench.place.dutyd(&["steer", "01m8266a6bdtqp42bjvv982dj6", "x"]);
    assert_eq!(unknown.code, 3, "{unknown:?}");
    let statuses: Vec<String> = (0..100).map(|_| bench.post(&run_id, r#"{"text": "x"}"#)).collect();
    assert!(statuses[..99].iter().all(|status| status.contains("200")), "{statuses:?}");
    assert!(statuses[99].contains("409"), "{statuses:?}");
    assert!(bench.post(&run_id, r#"{"words": "x"}"#).contains("422"));
    let queued = events(&bench.place.json(&["show", &run_id]), "input_queued");
    assert_eq!(queued.len(), 100);
    assert_eq!(bench.place.dutyd(&["cancel", &run_id]).code, 0);
    let shown = bench.wait_for_end(&run_id);
    let warnings = events(&shown, "warning");
    let left = warnings.iter().find(|warning| warning["code"] == "texts_not_taken").unwrap();
    assert!(left["message"].as_str().unwrap().contains("100 texts"), "{left}");
}

impl Bench {
    /// Posts a body to `steer` over the socket; returns the status line.
    fn post(&self, run_id: &str, body: &str) -> String {
        use std::io::{Read as _, Write as _};
        let mut client = UnixStream::connect(self.place.state().join("control.sock")).unwrap();
        let key = std::fs::read_to_string(self.place.state().join("control.key")).unwrap();
        write!(
            client,
            "POST /api/v1/runs/{run_id}/steer HTTP/1.1\r\nHost: x\r\nDutyd-Key: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            key.trim(),
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }
}
