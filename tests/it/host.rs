//! Tests that the verbs tell what the daemon can do, not what the caller can do, and that they find
//! the daemon wherever its socket is.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Place, skipped, wait_until};

const CONFIG: &str = "models: {m: {provider: scripted, script: s.yaml}}\n";
const JOBS: &str = "version: 1
jobs:
  - {name: hand, prompt: x, double_confirmation: false}
  - {name: user, prompt: x, double_confirmation: false, tools: {read: [only]}}
";

/// Returns a place whose tool `only` is in a directory of its own, and a `PATH` with that directory.
fn place() -> (Place, String) {
    let place = Place::new(&[
        ("config.yaml", CONFIG),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("jobs.yaml", JOBS),
    ]);
    let own = place.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::copy("/usr/bin/true", own.join("only-here")).unwrap();
    let own = own.display();
    place.write(
        "tools.yaml",
        &format!("version: 1\ntools: [{{name: only, description: Only, category: read, cmd: only-here, sandbox: {{read: [{own}]}}}}]\n"),
    );
    (place, format!("{own}:/usr/bin:/bin"))
}

fn json_with(place: &Place, path: &str, args: &[&str]) -> (i32, Value) {
    let args = [&["-o", "json"][..], args].concat();
    let output = place.command(&args).env("PATH", path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code().unwrap(), value)
}

fn job_item(report: &Value) -> Value {
    let items = report["items"].as_array().unwrap();
    items.iter().find(|item| item["name"] == "job user").unwrap().clone()
}

#[test]
fn a_program_is_looked_up_in_the_path_of_the_daemon() {
    let (place, wide) = place();
    let narrow = "/usr/bin:/bin";
    let daemon = place.serve();
    let (code, called) = json_with(&place, &wide, &["call", "only"]);
    assert_eq!((code, &called["error_kind"]), (1, &json!("spawn_failed")), "{called}");
    let (code, report) = json_with(&place, &wide, &["doctor"]);
    let item = job_item(&report);
    assert_eq!((code, &item["ok"]), (1, &json!(false)), "{report}");
    assert!(item["detail"].as_str().unwrap().contains("`only-here` was not found"), "{item}");
    assert_eq!(json_with(&place, &wide, &["check", "user"]).0, 1);
    drop(daemon);
    let _daemon = place.serve_with("PATH", &wide);
    let (code, called) = json_with(&place, narrow, &["call", "only"]);
    assert_eq!(code, 0, "{called}");
    assert_eq!(job_item(&json_with(&place, narrow, &["doctor"]).1)["ok"], json!(true));
    assert_eq!(json_with(&place, narrow, &["check", "user"]).0, 0);
}

#[test]
fn the_doctor_asks_the_daemon_for_a_secret_that_only_the_unit_can_read() {
    let (place, _) = place();
    place.write(
        "config.yaml",
        "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}, keyed: {provider: openai, model: x, api_key: '${credential:key}', base_url: 'http://127.0.0.1:9/v1'}}\n",
    );
    place.write("jobs.yaml", "version: 1\njobs: [{name: hand, prompt: x}]\n");
    let keyed = |report: &Value| {
        let items = report["items"].as_array().unwrap();
        items.iter().find(|item| item["name"] == "model keyed").unwrap().clone()
    };
    let report = place.json(&["doctor"]);
    assert_eq!(report["ok"], true, "{report}");
    assert!(keyed(&report)["ok"].is_null(), "{report}");
    let credentials = place.path().join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::write(credentials.join("key"), "the-key").unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(credentials.join("key"), closed).unwrap();
    let _daemon = place.serve_with("CREDENTIALS_DIRECTORY", credentials.to_str().unwrap());
    let report = place.json(&["doctor"]);
    assert_eq!((&report["ok"], &keyed(&report)["ok"]), (&json!(true), &json!(true)), "{report}");
    let online = place.json(&["doctor", "--online"]);
    let detail = keyed(&online)["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("with a key") && detail.contains("not reachable"), "{online}");
}

#[test]
fn status_exits_with_1_while_the_files_have_errors() {
    let (place, _) = place();
    let _daemon = place.serve();
    assert_eq!(place.dutyd(&["status"]).code, 0);
    place.write("jobs.yaml", "broken");
    wait_until(|| place.json(&["status"])["config"]["valid"] == false, || place.log());
    let status = place.dutyd(&["status"]);
    assert!(status.code == 1 && status.stdout.contains("HAS ERRORS"), "{status:?}");
    place.write("jobs.yaml", JOBS);
    assert_eq!(place.dutyd(&["reload"]).code, 0);
    assert_eq!(place.dutyd(&["status"]).code, 0);
}

// proves STATE-2
#[test]
fn a_daemon_is_found_through_the_lock_of_its_state_directory() {
    let (place, _) = place();
    let runtime = place.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    // `serve_with` waits until a client that knows only the state directory gets an answer.
    let daemon = place.serve_with("RUNTIME_DIRECTORY", runtime.to_str().unwrap());
    let run_id = place.json(&["run", "hand", "--detach"])["run_id"].as_str().unwrap().to_owned();
    wait_until(|| place.json(&["runs"])[0]["outcome"] == "succeeded", || place.log());
    assert_eq!(place.json(&["runs"])[0]["run_id"], json!(run_id));
    // No run goes on beside a daemon whose socket is out of reach.
    std::fs::rename(runtime.join("control.sock"), runtime.join("moved")).unwrap();
    let refused = place.dutyd(&["run", "hand"]);
    assert!(refused.code == 1, "{refused:?}");
    assert!(refused.stderr.contains(&daemon.pid().to_string()), "{refused:?}");
    assert_eq!(place.dutyd(&["status"]).code, 1, "a daemon is running");
    assert_eq!(place.json(&["runs"]).as_array().unwrap().len(), 1);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert_eq!(place.dutyd(&["status"]).code, 4);
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
}

#[test]
fn a_call_leaves_nothing_in_the_state_of_another_user() {
    if !nix::unistd::geteuid().is_root() {
        skipped("the state of another user: only root can call there");
        return;
    }
    let (place, wide) = place();
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    std::os::unix::fs::chown(place.state(), Some(65534), Some(65534)).unwrap();
    let before = place.kept();
    let called = place.command(&["call", "only"]).env("PATH", wide).output().unwrap();
    let told = String::from_utf8_lossy(&called.stderr).into_owned();
    assert_eq!(called.status.code(), Some(1), "{told}");
    assert!(told.contains("sudo -u"), "{told}");
    assert_eq!(place.kept(), before);
    assert!(!place.state().join("workspace/call").exists());
}

#[test]
fn a_frozen_daemon_is_told_within_a_limit() {
    let (place, _) = place();
    let daemon = place.serve();
    daemon.signal(Signal::SIGSTOP);
    let began = std::time::Instant::now();
    let status = place.dutyd(&["status"]);
    daemon.signal(Signal::SIGCONT);
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{status:?}");
    assert!(status.code == 1 && status.stderr.contains("did not answer within"), "{status:?}");
}

#[test]
fn a_state_directory_may_have_a_long_path() {
    let (place, _) = place();
    let state: PathBuf = place.path().join("x".repeat(120));
    let place = place.with_env("DUTYD_STATE_DIR", state.to_str().unwrap());
    let _daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
}

#[test]
fn a_scripted_run_needs_no_certificates() {
    let (place, _) = place();
    let jobs = "version: 1\njobs: [{name: hand, prompt: x, double_confirmation: false}]\n";
    place.write("jobs.yaml", jobs);
    let place =
        place.with_env("SSL_CERT_FILE", "/dev/null").with_env("SSL_CERT_DIR", "/nonexistent");
    let _daemon = place.serve();
    let done = place.dutyd(&["run", "hand"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(place.json(&["doctor"])["ok"], true);
    let remote = format!("{CONFIG}default_model: m\n")
        .replace("models: {m:", "models: {r: {provider: anthropic, model: x, api_key: k}, m:");
    place.write("config.yaml", &remote);
    assert_eq!(place.dutyd(&["reload"]).code, 0);
    let report = place.dutyd(&["doctor"]);
    assert!(report.code == 1 && report.stdout.contains("CA certificates"), "{report:?}");
}

#[test]
fn run_detach_without_a_daemon_is_exit_4_for_everyone() {
    let (place, _) = place();
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    assert_eq!(place.dutyd(&["run", "hand", "--detach"]).code, 4);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(place.state(), Some(65534), Some(65534)).unwrap();
        assert_eq!(place.dutyd(&["run", "hand", "--detach"]).code, 4);
    }
}
