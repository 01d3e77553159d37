//! Tests daily budgets against a loopback provider whose replies have a price.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::routing::post;
use serde_json::json;

use crate::support::{Place, Served, serve_on_loopback, wait_until};

/// Returns a provider whose replies cost 0.1 USD each at 1 USD per million tokens, and the number of
/// its replies.
fn provider(delay: Duration) -> (Served, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let answer = move || {
        let counted = counted.clone();
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(delay).await;
            axum::Json(json!({
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "done"}}],
                "usage": {"prompt_tokens": 100_000, "completion_tokens": 0},
            }))
        }
    };
    let router = axum::Router::new().route("/v1/chat/completions", post(answer));
    (serve_on_loopback(router), count)
}

fn place(server: &Served, settings: &str, job: &str) -> Place {
    let config = format!(
        "timezone: UTC
models:
  m:
    provider: openai_chat
    model: test
    api_key: sk-local-test
    base_url: 'http://{}/v1'
    stream: false
    price: {{input: 1, output: 0}}
{settings}",
        server.address
    );
    let jobs = format!(
        "version: 1
jobs:
  - {{name: j, schedule: '0 * * * *', prompt: Look., double_confirmation: false, overlap: allow_all, limits: {{max_cost_usd: 0.2}}, {job}}}
"
    );
    let tools = "version: 1\ntools: []\n";
    Place::new(&[("config.yaml", &config), ("tools.yaml", tools), ("jobs.yaml", &jobs)])
}

#[test]
fn a_run_that_does_not_fit_into_the_day_does_not_begin() {
    let (server, count) = provider(Duration::ZERO);
    let place = place(&server, "", "budget: {max_cost_usd_per_day: 0.5}");
    for _ in 0..4 {
        let done = place.dutyd(&["run", "j"]);
        assert_eq!(done.code, 0, "{done:?}");
    }
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(
        done.stderr.contains("the daily budget of the job `j` has too little left"),
        "{done:?}"
    );
    assert!(done.stderr.contains("0.4 of 0.5 USD are spent or reserved"), "{done:?}");
    let daemon = place.serve();
    let done = place.dutyd(&["trigger", "j"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("too little left"), "{done:?}");
    drop(daemon);
    assert_eq!(count.load(Ordering::SeqCst), 4);
    assert_eq!(place.json(&["runs"]).as_array().unwrap().len(), 4);
}

#[test]
fn a_run_that_fails_to_begin_reserves_nothing() {
    let (server, _count) = provider(Duration::ZERO);
    let place = place(&server, "", "budget: {max_cost_usd_per_day: 0.5}");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let runs = place.state().join("runs");
    let is_year = |name: &str| name.len() == 4 && name.bytes().all(|byte| byte.is_ascii_digit());
    let entries = std::fs::read_dir(&runs).unwrap().flatten();
    let mut names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let year = names.find(|name| is_year(name)).unwrap();
    let (directory, aside) = (runs.join(&year), place.path().join("aside"));
    std::fs::rename(&directory, &aside).unwrap();
    std::fs::write(&directory, "").unwrap();
    for _ in 0..3 {
        let done = place.dutyd(&["run", "j"]);
        assert!(done.code == 1 && done.stderr.contains("cannot record the run"), "{done:?}");
    }
    std::fs::remove_file(&directory).unwrap();
    std::fs::rename(&aside, &directory).unwrap();
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
}

#[test]
fn parallel_runs_stay_within_the_budget_of_all_jobs_also_over_a_crash() {
    let (server, count) = provider(Duration::from_millis(300));
    let place = place(&server, "budget: {max_cost_usd_per_day: 0.7}\n", "on_crash: fail");
    let daemon = place.serve();
    let period =
        ["backfill", "j", "--from", "2025-11-01T00:00:00Z", "--to", "2025-11-01T09:00:00Z"];
    assert_eq!(place.dutyd(&period).stdout, "10\n");
    wait_until(|| count.load(Ordering::SeqCst) >= 1, || place.log());
    daemon.signal(nix::sys::signal::Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    let states = || -> Vec<String> {
        let slots = place.json(&["slots", "j", "--until", "2025-11-02"]);
        let slots = slots.as_array().unwrap().iter();
        slots.map(|slot| slot["state"].as_str().unwrap().to_owned()).collect()
    };
    let is_open = |state: &String| state == "queued" || state == "running";
    wait_until(|| !states().iter().any(is_open), || format!("{:?}\n{}", states(), place.log()));
    let over = states().iter().filter(|state| *state == "over_budget").count();
    // The run that the crash cut off keeps its whole reservation: 0.2 + 4 × 0.1, and 0.2 does not fit.
    assert_eq!((states().len(), over), (10, 5), "{:?}", states());
    assert_eq!(count.load(Ordering::SeqCst), 5);
    drop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

#[test]
fn a_run_that_continues_after_a_crash_keeps_only_its_cost_reserved() {
    let (server, count) = provider(Duration::from_millis(300));
    let place = place(&server, "budget: {max_cost_usd_per_day: 0.7}\n", "on_crash: resume");
    let daemon = place.serve();
    let period =
        ["backfill", "j", "--from", "2025-11-01T00:00:00Z", "--to", "2025-11-01T09:00:00Z"];
    assert_eq!(place.dutyd(&period).stdout, "10\n");
    wait_until(|| count.load(Ordering::SeqCst) >= 1, || place.log());
    daemon.signal(nix::sys::signal::Signal::SIGKILL);
    daemon.wait();
    let _daemon = place.serve();
    let states = || -> Vec<String> {
        let slots = place.json(&["slots", "j", "--until", "2025-11-02"]);
        let slots = slots.as_array().unwrap().iter();
        slots.map(|slot| slot["state"].as_str().unwrap().to_owned()).collect()
    };
    let is_open = |state: &String| state == "queued" || state == "running";
    wait_until(|| !states().iter().any(is_open), || format!("{:?}\n{}", states(), place.log()));
    // Five runs have spent 0.1 each when the sixth reserves 0.2.
    let ran = states().iter().filter(|state| *state == "ran").count();
    assert_eq!((states().len(), ran), (10, 6), "{:?}", states());
}

/// A provider that writes as much as it may: its replies have `max_tokens` tokens.
fn talkative() -> Served {
    let answer = |axum::Json(request): axum::Json<serde_json::Value>| async move {
        let limit = request["max_completion_tokens"].as_u64().or(request["max_tokens"].as_u64());
        axum::Json(json!({
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "done"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": limit.unwrap_or(100_000)},
        }))
    };
    serve_on_loopback(axum::Router::new().route("/v1/chat/completions", post(answer)))
}

#[test]
fn a_long_reply_does_not_exceed_a_daily_budget() {
    let server = talkative();
    let place = place(&server, "", "budget: {max_cost_usd_per_day: 0.4}");
    let config = std::fs::read_to_string(place.config().join("config.yaml")).unwrap();
    place.write("config.yaml", &config.replace("{input: 1, output: 0}", "{input: 1, output: 75}"));
    for _ in 0..2 {
        let done = place.dutyd(&["run", "j"]);
        assert_eq!(done.code, 0, "{done:?}");
    }
    assert_eq!(place.dutyd(&["run", "j"]).code, 1);
    let runs = place.json(&["runs"]);
    let costs = runs.as_array().unwrap().iter().map(|run| run["cost_usd"].as_f64().unwrap());
    let (each, all) = (costs.clone().fold(0.0, f64::max), costs.sum::<f64>());
    assert!(each <= 0.2 && all <= 0.4, "{runs}");
    assert!(each > 0.15, "the replies are as long as the limit allows: {runs}");
}

/// Returns the first request that a model of this provider gets, under these limits of the job.
fn first_request(provider: &str, limits: &str) -> serde_json::Value {
    let (sender, receiver) = std::sync::mpsc::channel();
    let answer = move |axum::Json(request): axum::Json<serde_json::Value>| async move {
        let _ = sender.send(request);
        axum::http::StatusCode::NOT_FOUND
    };
    let server = serve_on_loopback(axum::Router::new().fallback(post(answer)));
    let key = if provider == "ollama" { "" } else { "api_key: sk-local-test, " };
    let config = format!(
        "models: {{m: {{provider: {provider}, model: test, {key}base_url: 'http://{}/v1', stream: false, price: {{input: 1, output: 100}}}}}}\n",
        server.address
    );
    let jobs = format!(
        "version: 1\njobs:\n  - {{name: j, prompt: Look., double_confirmation: false, limits: {{{limits}}}}}\n"
    );
    let tools = "version: 1\ntools: []\n";
    let place =
        Place::new(&[("config.yaml", &config), ("tools.yaml", tools), ("jobs.yaml", &jobs)]);
    let done = place.dutyd(&["run", "j"]);
    receiver.try_recv().unwrap_or_else(|error| panic!("{provider}: {error}: {done:?}"))
}

#[test]
fn the_limit_of_a_reply_covers_what_is_left_in_every_format() {
    for (provider, pointer) in [
        ("anthropic", "/max_tokens"),
        ("openai", "/max_output_tokens"),
        ("openai_chat", "/max_tokens"),
        ("gemini", "/generationConfig/maxOutputTokens"),
        ("ollama", "/options/num_predict"),
    ] {
        let limit = |limits: &str| {
            let request = first_request(provider, limits);
            let limit = request.pointer(pointer).and_then(serde_json::Value::as_u64);
            limit.unwrap_or_else(|| panic!("{provider}: {request:#}"))
        };
        // The input has some thousands of tokens, each of which costs a hundredth of an output token.
        let of_tokens = limit("max_tokens: 9000");
        assert!((1000..9000).contains(&of_tokens), "{provider}: {of_tokens}");
        let of_cost = limit("max_cost_usd: 0.2");
        assert!((1500..2000).contains(&of_cost), "{provider}: {of_cost}");
        assert!(limit("max_tokens: 9000, max_cost_usd: 0.2") <= of_cost, "{provider}");
    }
}
