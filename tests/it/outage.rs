//! Tests an outage of a provider: the runs wait, one run asks again, two messages are sent, and the work
//! is done afterwards.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, TimeDelta, Utc};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::clock::Clocked;
use crate::support::{Daemon, Served, serve_at, serve_on_loopback, wait_until};

/// What the provider does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Mood {
    Answers,
    Overloaded,
    /// It asks for two hours.
    Limits,
    RejectsKey,
    Hangs,
    /// It closes the connection in the middle of an answer.
    Breaks,
}

const BAD: [Mood; 5] =
    [Mood::Overloaded, Mood::Limits, Mood::RejectsKey, Mood::Hangs, Mood::Breaks];

#[derive(Clone, Default)]
struct Shared {
    mood: Arc<AtomicU8>,
    asked: Arc<AtomicUsize>,
    told: Arc<Mutex<Vec<Value>>>,
}

async fn answer(State(shared): State<Shared>, uri: Uri, body: String) -> Response {
    if uri.path() == "/hook" {
        shared.told.lock().unwrap().push(serde_json::from_str(&body).unwrap());
        return StatusCode::OK.into_response();
    }
    shared.asked.fetch_add(1, Ordering::SeqCst);
    let mood = shared.mood.load(Ordering::SeqCst);
    let is = |of: Mood| mood == of as u8;
    if is(Mood::Overloaded) {
        return (StatusCode::SERVICE_UNAVAILABLE, "{\"error\": \"<!channel> overloaded\"}")
            .into_response();
    }
    if is(Mood::Limits) {
        return (StatusCode::TOO_MANY_REQUESTS, [("Retry-After", "7200")], "{}").into_response();
    }
    if is(Mood::RejectsKey) {
        return (StatusCode::UNAUTHORIZED, "{\"error\": {\"message\": \"bad key\"}}")
            .into_response();
    }
    if is(Mood::Hangs) {
        std::future::pending::<()>().await;
    }
    if is(Mood::Breaks) {
        return (StatusCode::OK, "{\"choices\": [").into_response();
    }
    axum::Json(json!({
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "done"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }))
    .into_response()
}

fn router(shared: &Shared) -> axum::Router {
    axum::Router::new().fallback(answer).with_state(shared.clone())
}

struct Bench {
    shared: Shared,
    provider: Option<Served>,
    _hook: Served,
    clocked: Clocked,
    now: DateTime<Utc>,
}

impl Bench {
    fn new() -> Self {
        let shared = Shared::default();
        let served = serve_on_loopback(router(&shared));
        let hook = serve_on_loopback(router(&shared));
        let config = format!(
            "timezone: UTC
max_concurrent_runs: 4
models:
  m: {{provider: openai_chat, model: x, base_url: 'http://{0}/v1', api_key: of-the-test, stream: false, timeout: 4s, max_retries: 0}}
notifications: {{ops: {{type: webhook, url: 'http://{1}/hook'}}}}
notify: [{{to: ops, on: [unavailable, degraded, recovered]}}]
",
            served.address, hook.address
        );
        let mut jobs = "version: 1\njobs:\n".to_owned();
        for n in 0..10 {
            jobs += &format!(
                "  - {{name: j{n}, schedule: '* * * * * *', catchup_window: 1d, prompt: x, double_confirmation: false, allow_no_calls: true, notify: [{{to: ops, on: [failed, recovered]}}]}}\n"
            );
        }
        let files = [
            ("config.yaml", config.as_str()),
            ("jobs.yaml", jobs.as_str()),
            ("tools.yaml", "version: 1\ntools: []\n"),
        ];
        let now = "2026-11-25T03:00:00Z".parse().unwrap();
        let clocked = Clocked::with_files("2026-11-25T03:00:00Z", &files);
        Self { shared, provider: Some(served), _hook: hook, clocked, now }
    }

    /// Makes the provider refuse connections; returns its address.
    fn close(&mut self) -> std::net::SocketAddr {
        let served = self.provider.take().unwrap();
        let address = served.address;
        drop(served);
        wait_until(
            || std::net::TcpStream::connect(address).is_err(),
            || format!("{address} still answers"),
        );
        address
    }

    fn open(&mut self, address: std::net::SocketAddr) {
        self.provider = Some(serve_at(address, router(&self.shared)));
    }

    /// Waits until a failed question has renewed the hold, and no run works.
    fn wait_for_renewal(&self) {
        let renewed = || {
            let until: DateTime<Utc> = self.holds()[0]["until"].as_str().unwrap().parse().unwrap();
            until > self.now + TimeDelta::seconds(50)
        };
        wait_until(|| renewed() && self.is_quiet(), || self.log());
    }

    fn set(&self, mood: Mood) {
        self.shared.mood.store(mood as u8, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// Moves the clock.
    fn pass(&mut self, minutes: i64) {
        self.now += TimeDelta::minutes(minutes);
        self.clocked.set(&self.now.to_rfc3339());
    }

    fn holds(&self) -> Vec<Value> {
        self.clocked.place.json(&["status"])["holds"].as_array().unwrap().clone()
    }

    fn is_on_hold(&self) -> bool {
        !self.holds().is_empty()
    }

    /// Tells whether no run of a job works.
    fn is_quiet(&self) -> bool {
        self.clocked.place.json(&["status"])["runs"]["active"] == 0
    }

    fn events(&self) -> Vec<String> {
        let told = self.shared.told.lock().unwrap();
        told.iter().map(|body| body["event"].as_str().unwrap().to_owned()).collect()
    }

    fn log(&self) -> String {
        format!("{:?}\n{}", self.holds(), self.clocked.place.log())
    }

    fn kill(&self, daemon: Daemon) -> Daemon {
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        self.clocked.place.serve()
    }
}

// proves PROV-8
#[test]
fn an_outage_holds_all_runs_of_a_model_and_loses_none() {
    let mut bench = Bench::new();
    let mut daemon = bench.clocked.place.serve();
    wait_until(|| bench.asked() >= 10, || bench.log());
    bench.set(Mood::Overloaded);
    wait_until(|| bench.is_on_hold() && bench.is_quiet(), || bench.log());
    let first = bench.holds()[0].clone();
    assert_eq!(first["model"], "m");
    assert!(first["cause"].as_str().unwrap().contains("503"), "{first}");
    wait_until(|| bench.holds()[0]["waiting"] == 10, || bench.log());
    let runs = bench.clocked.place.json(&["runs", "--outcome", "queued"]);
    assert!(
        runs[0]["waits_for"].as_str().unwrap().contains("the model `m`, on hold until"),
        "{runs}"
    );
    let status = bench.clocked.place.dutyd(&["status"]);
    assert_eq!(status.code, 1, "{status:?}");
    // A person may ask nevertheless, and is warned.
    let before = bench.asked();
    let requested = bench.clocked.place.dutyd(&["run", "j0"]);
    assert!(requested.stderr.contains("the model `m` is on hold"), "{requested:?}");
    assert_eq!(bench.asked(), before + 1);
    for (nth, mood) in BAD.into_iter().enumerate() {
        bench.set(mood);
        let before = bench.asked();
        // Longer than the longest hold, unless the provider asks for more.
        bench.pass(if nth > 0 && BAD[nth - 1] == Mood::Limits { 121 } else { 16 });
        wait_until(|| bench.asked() > before, || bench.log());
        daemon = bench.kill(daemon);
        // The run that asked is continued or its end is recorded; either way one run asks at a time.
        bench.pass(if mood == Mood::Limits { 121 } else { 16 });
        wait_until(|| bench.asked() > before + 1, || bench.log());
        bench.wait_for_renewal();
        assert!(bench.asked() <= before + 3, "{mood:?}: {} more requests", bench.asked() - before);
        daemon = bench.kill(daemon);
    }
    let (before, address) = (bench.asked(), bench.close());
    for _ in 0..2 {
        bench.pass(16);
        bench.wait_for_renewal();
        daemon = bench.kill(daemon);
    }
    assert_eq!(bench.asked(), before, "the server refuses connections, so it counts none");
    bench.open(address);
    bench.set(Mood::Answers);
    bench.pass(16);
    wait_until(|| !bench.is_on_hold(), || bench.log());
    let answered = bench.asked();
    wait_until(|| bench.asked() >= answered + 20, || bench.log());
    bench.pass(2);
    wait_until(|| bench.events().contains(&"recovered".to_owned()), || bench.log());
    assert_eq!(bench.events(), ["unavailable", "recovered"], "{:?}", bench.shared.told);
    let told = bench.shared.told.lock().unwrap()[0].clone();
    assert!(told["summary"].as_str().unwrap().contains("the model `m` is on hold"), "{told}");
    drop(daemon);
    let audit = bench.clocked.place.json(&["audit"]);
    assert_eq!((&audit["holes"], &audit["extras"]), (&json!([]), &json!([])), "{audit}");
    for n in 0..10 {
        let slots = bench.clocked.place.json(&["slots", &format!("j{n}"), "--limit", "100000"]);
        let missed = slots.as_array().unwrap().iter().filter(|slot| slot["state"] == "missed");
        assert_eq!(missed.count(), 0, "all work was due within the window");
    }
}
