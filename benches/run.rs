//! Measures the loop: a process, an iteration with one call of `/bin/true`, and a run of 20
//! iterations with such calls against a model on loopback.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark whose setup fails stops at once"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::routing::post;
use criterion::{Criterion, criterion_group, criterion_main};
use dutyd::clock::{Clock as _, SystemClock};
use dutyd::config::{
    Config, Environment, FileSet, SandboxMode, SecretsMode, ToolSandbox, Trust, load,
};
use dutyd::domain::{Category, Origin, RunId, RunRequest, StopReason};
use dutyd::gate::PathRules;
use dutyd::process::{ForkServer, ProcessSpec, Spawner};
use dutyd::run::{Host, RunSpec, execute};
use dutyd::sinks::Observers;
use dutyd::store::StateDir;
use dutyd::tools::SandboxProfiles;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::watch;

const ITERATIONS: usize = 20;

#[expect(clippy::disallowed_methods, reason = "writes its own configuration")]
fn config(directory: &Path, model: &str, base_url: &str) -> Arc<Config> {
    let steps: Vec<_> = (0..ITERATIONS)
        .map(|n| json!({"call": {"tool": "nothing", "args": {"n": n}}}))
        .chain([json!({"say": "done"})])
        .collect();
    let job = json!({"name": "j", "prompt": "x", "double_confirmation": false, "model": model, "limits": {"max_iterations": 100}});
    let tool = json!({"name": "nothing", "description": "does nothing", "category": "read", "cmd": "true", "args": ["{{n}}"], "parameters": {"n": {"type": "integer", "minimum": 0}}});
    let models = json!({
        "script": {"provider": "scripted", "script": "s.yaml"},
        "chat": {"provider": "openai_chat", "model": "x", "base_url": base_url},
    });
    for (name, value) in [
        ("config.yaml", json!({ "models": models, "default_model": "script" })),
        ("s.yaml", json!({ "steps": steps })),
        ("tools.yaml", json!({"version": 1, "tools": [tool]})),
        ("jobs.yaml", json!({"version": 1, "jobs": [job]})),
    ] {
        std::fs::write(directory.join(name), value.to_string()).unwrap();
    }
    let environment =
        [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into_iter().collect::<Environment>();
    let set = FileSet::of_directory(directory).unwrap();
    let loaded = load(&set, &environment, Trust::Given, SecretsMode::Resolve, 0, SystemClock.now());
    assert!(loaded.report.errors.is_empty(), "{}", loaded.report.render());
    Arc::new(loaded.config.unwrap())
}

/// Runs the job once; returns the elapsed time.
async fn run_once(config: Arc<Config>, state: &Path, fork_server: Arc<ForkServer>) -> Duration {
    let state = StateDir::new(state);
    let (clock, environment) = (Arc::new(SystemClock), Environment::default());
    let observers = Observers::default();
    let host =
        Host { fork_server, ..Host::new(state, clock, environment, observers, Default::default()) };
    let job = config.jobs.values().next().unwrap().clone();
    let origin = Origin::manual(RunRequest::default(), None);
    let run_id = RunId::from_ulid(ulid::Ulid::generate());
    let spec = RunSpec::new(run_id, config, job, origin).unwrap();
    let (_stop, stopped) = watch::channel(None);
    let started = Instant::now();
    let ended = execute(spec, host, stopped.into()).await.unwrap();
    assert_eq!(ended.end.stop_reason, StopReason::Completed, "{:?}", ended.end);
    assert_eq!(ended.end.tool_calls, ITERATIONS as u64);
    started.elapsed()
}

fn fork_server() -> Arc<ForkServer> {
    Arc::new(ForkServer::new(PathBuf::from(env!("CARGO_BIN_EXE_dutyd"))))
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn iteration(criterion: &mut Criterion) {
    let (runtime, temp, server) = (runtime(), tempfile::tempdir().unwrap(), fork_server());
    let config = config(temp.path(), "script", "http://127.0.0.1:1/v1");
    criterion.bench_function("one iteration with a call of /bin/true", |bencher| {
        bencher.iter_custom(|count| {
            let mut total = Duration::ZERO;
            for _ in 0..count {
                total += runtime.block_on(run_once(
                    config.clone(),
                    &temp.path().join("state"),
                    server.clone(),
                )) / u32::try_from(ITERATIONS + 1).unwrap();
            }
            total
        });
    });
}

/// Measures one process through a shim, from the request until both have ended, with and without
/// the sandbox.
fn process(criterion: &mut Criterion) {
    let (runtime, spawner) = (runtime(), Spawner::new(fork_server(), None, "bench"));
    let spec = ProcessSpec {
        program: PathBuf::from("/bin/true"),
        argv: vec!["true".to_owned()],
        env: BTreeMap::new(),
        working_dir: PathBuf::from("/"),
        stdin: None,
        timeout: Duration::from_secs(10),
        sandbox: None,
    };
    let cancel = tokio_util::sync::CancellationToken::new();
    let temp = tempfile::tempdir().unwrap();
    let rules = PathRules { writable: vec![temp.path().to_owned()], ..PathRules::default() };
    let sandboxes = SandboxProfiles::new(SandboxMode::Enforce, rules, temp.path().to_owned(), true);
    let sandbox = sandboxes.of(Category::Read, &ToolSandbox::default(), temp.path()).unwrap();
    let sandboxed = ProcessSpec { sandbox, ..spec.clone() };
    for (name, spec) in [("a process of /bin/true", spec), ("the same in a sandbox", sandboxed)] {
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                runtime.block_on(spawner.run(&spec, &cancel, &mut |_| Ok(()))).unwrap();
            });
        });
    }
}

/// Answers the first [`ITERATIONS`] requests of a run with a call each, and the next one with text.
async fn answer(body: String) -> axum::response::Response {
    let request: serde_json::Value = serde_json::from_str(&body).unwrap();
    let answered = request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "assistant")
        .count();
    let delta = if answered < ITERATIONS {
        json!({"tool_calls": [{"index": 0, "id": format!("c{answered}"), "function": {"name": "nothing", "arguments": json!({"n": answered}).to_string()}}]})
    } else {
        json!({"content": "done"})
    };
    let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]});
    ([(header::CONTENT_TYPE, "text/event-stream")], format!("data: {chunk}\n\ndata: [DONE]\n\n"))
        .into_response()
}

fn loopback(criterion: &mut Criterion) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (runtime, temp, server) = (runtime(), tempfile::tempdir().unwrap(), fork_server());
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/chat/completions", post(answer));
    runtime.spawn(async move { axum::serve(listener, router).await });
    let config = config(temp.path(), "chat", &base_url);
    criterion.bench_function("a run of 20 iterations against a loopback model", |bencher| {
        bencher.iter_custom(|count| {
            (0..count)
                .map(|_| {
                    runtime.block_on(run_once(
                        config.clone(),
                        &temp.path().join("state"),
                        server.clone(),
                    ))
                })
                .sum()
        });
    });
    criterion.bench_function("a first such run, in a new state directory", |bencher| {
        bencher.iter_custom(|count| {
            (0..count)
                .map(|_| {
                    let state = tempfile::tempdir_in(temp.path()).unwrap();
                    runtime.block_on(run_once(config.clone(), state.path(), server.clone()))
                })
                .sum()
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(8));
    targets = process, iteration, loopback
}
criterion_main!(benches);
