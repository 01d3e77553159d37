//! Tests what the verbs show of the daemon and its queue, and what they do if the caller cannot
//! read a secret.

use std::io::{BufRead as _, BufReader};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Place, is_asleep, wait_until};

const CONFIG: &str = "models: {main: {provider: scripted, script: s.yaml}, slow: {provider: scripted, script: slow.yaml}}\ndefault_model: main\nmax_concurrent_runs: 1\n";
const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: 'true'}
  - {name: hang, description: Hangs, category: read, cmd: sleep, args: ['7201.OWN']}
";
const JOBS: &str = "version: 1
jobs:
  - {name: hand, prompt: x, double_confirmation: false}
  - {name: stuck, prompt: x, model: slow}
  - {name: poor, prompt: x, double_confirmation: false, limits: {max_iterations: 1}, model: slow, tools: {read: [look]}}
";

fn place() -> Place {
    Place::new(&[
        ("config.yaml", CONFIG),
        ("tools.yaml", TOOLS),
        ("jobs.yaml", JOBS),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("slow.yaml", "steps: [{call: {tool: hang}}, {say: done}]\n"),
    ])
}

fn outcomes(place: &Place, filter: &[&str]) -> Vec<(String, String)> {
    let rows = place.json(&[&["runs"], filter].concat());
    let outcome = |row: &Value| match (row["outcome"].as_str(), row["started_at"].is_string()) {
        (Some(outcome), _) => outcome.to_owned(),
        (None, true) => "running".to_owned(),
        (None, false) => "queued".to_owned(),
    };
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| (row["job"].as_str().unwrap().to_owned(), outcome(row))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(job, outcome)| ((*job).to_owned(), (*outcome).to_owned())).collect()
}

/// Starts a run that hangs and a second run that queues behind it; returns the id of the second.
fn queued(place: &Place) -> String {
    assert_eq!(place.dutyd(&["run", "stuck", "--detach"]).code, 0);
    wait_until(|| is_asleep("7201.OWN"), || place.log());
    let detached = place.json(&["run", "hand", "--detach"]);
    detached["run_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_that_waits_in_the_queue_is_listed_and_leaves_a_row() {
    let place = place();
    let daemon = place.serve();
    let id = queued(&place);
    assert_eq!(outcomes(&place, &[]), pairs(&[("hand", "queued"), ("stuck", "running")]));
    assert_eq!(outcomes(&place, &["--outcome", "running"]), pairs(&[("stuck", "running")]));
    assert_eq!(outcomes(&place, &["--outcome", "queued"]), pairs(&[("hand", "queued")]));
    assert_eq!(place.json(&["show", &id])["run"]["job"], "hand");
    assert_eq!(place.dutyd(&["show", &id]).stdout, format!("run {id} of hand\nqueued\n"));
    let verified = place.dutyd(&["verify", &id]);
    assert!(verified.code == 3 && verified.stderr.contains("has not begun"), "{verified:?}");
    let cancelled = place.dutyd(&["cancel", "hand@last"]);
    assert_eq!(cancelled.code, 0, "{cancelled:?}");
    assert_eq!(outcomes(&place, &["--job", "hand"]), pairs(&[("hand", "cancelled")]));
    // A queued run outlives a stop of the daemon, like the run of a slot.
    assert_eq!(place.dutyd(&["run", "hand", "--detach"]).code, 0);
    assert_eq!(place.dutyd(&["cancel", "stuck"]).code, 0);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let left = outcomes(&place, &["--job", "hand"]);
    assert_eq!(left.len(), 2, "{left:?}");
    let _daemon = place.serve();
    let ended = pairs(&[("hand", "succeeded"), ("hand", "cancelled")]);
    wait_until(|| outcomes(&place, &["--job", "hand"]) == ended, || place.log());
    let shown = place.dutyd(&["show", &id]);
    assert!(shown.stdout.contains("ended in the queue: cancelled by "), "{shown:?}");
}

#[test]
fn run_prints_its_id_first_and_says_what_it_waits_for() {
    let place = place();
    let _daemon = place.serve();
    let done = place.dutyd(&["run", "hand"]);
    assert!(done.stderr.starts_with("run 01"), "{done:?}");
    queued(&place);
    let waiting = place.command(&["run", "hand"]).stderr(std::process::Stdio::piped()).spawn();
    let waiting = waiting.unwrap();
    wait_until(|| outcomes(&place, &["--outcome", "queued"]).len() == 2, || place.log());
    assert_eq!(place.dutyd(&["cancel", "--all"]).code, 0);
    let told = waiting.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("run 01"), "{text}");
    assert_eq!(lines[1], "warning: another run of the job is queued or running");
    assert_eq!(lines[2], "waits: 1 of 1 runs are active, 1 queued ahead");
    assert_eq!(told.status.code(), Some(130));
}

#[test]
fn another_configuration_beside_the_daemon_is_refused() {
    let place = place();
    let _daemon = place.serve();
    let other = place.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for entry in std::fs::read_dir(place.config()).unwrap().flatten() {
        std::fs::copy(entry.path(), other.join(entry.file_name())).unwrap();
    }
    let other = other.display().to_string();
    let refused = place.dutyd(&["--config-dir", &other, "run", "hand"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    let config = place.config().display().to_string();
    assert!(refused.stderr.contains(&format!("uses {config}, not {other}")), "{refused:?}");
    assert_eq!(outcomes(&place, &[]), pairs(&[]), "a rejected command must not start a run");
    assert_eq!(place.dutyd(&["--config-dir", &other, "explain", "hand", "look"]).code, 0);
    // The job `new` is only in the changed files, not in the configuration in effect.
    place.write("jobs.yaml", &format!("{JOBS}  - {{name: new, prompt: x}}\n"));
    let unknown = place.dutyd(&["run", "new"]);
    assert!(unknown.code == 3 && unknown.stderr.contains("dutyd reload"), "{unknown:?}");
    let explained = place.dutyd(&["explain", "hand", "look"]);
    assert!(explained.stderr.contains("dutyd reload"), "{explained:?}");
    assert_eq!(place.dutyd(&["reload"]).code, 0);
    assert_eq!(place.dutyd(&["run", "new"]).code, 0);
}

// proves SEC-5
#[test]
fn a_secret_that_is_not_here_stops_only_what_needs_it() {
    let place = place();
    place.write(
        "config.yaml",
        "models: {main: {provider: scripted, script: s.yaml}, slow: {provider: scripted, script: slow.yaml}, keyed: {provider: openai, model: x, api_key: '${credential:key}'}}\ndefault_model: main\n",
    );
    place.write("jobs.yaml", &format!("{JOBS}  - {{name: keyed, prompt: x, model: keyed}}\n"));
    for args in [
        &["validate"][..],
        &["explain", "hand", "look"],
        &["check", "hand"],
        &["tools"],
        &["jobs"],
        &["next"],
        &["call", "look"],
        &["runs"],
    ] {
        let done = place.dutyd(args);
        assert_eq!(done.code, 0, "{args:?}: {done:?}");
    }
    let checked = place.json(&["check", "keyed"]);
    let items = checked["items"].as_array().unwrap();
    let secret = items.iter().find(|item| item["name"] == "secret").unwrap();
    assert!(secret["ok"].is_null(), "{secret}");
    assert!(secret["detail"].as_str().unwrap().contains("${credential:key}"), "{secret}");
    let run = place.dutyd(&["run", "keyed"]);
    assert!(run.code == 2 && run.stderr.contains("${credential:key}"), "{run:?}");
}

#[test]
fn an_unknown_name_is_never_an_empty_answer() {
    let place = place();
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    let check = |args: &[&str], code: i32| {
        let done = place.dutyd(args);
        assert_eq!(done.code, code, "{args:?}: {done:?}");
    };
    for _ in 0..2 {
        check(&["runs", "--outcome", "nonsense"], 2);
        check(&["runs", "--job", "nojob"], 3);
        check(&["slots", "nojob"], 3);
        check(&["audit", "nojob"], 3);
        check(&["show", "01nosuch"], 3);
        check(&["verify", "01nosuch"], 3);
        check(&["plan", "01nosuch"], 3);
    }
    let _daemon = place.serve();
    check(&["runs", "--job", "nojob"], 3);
    check(&["slots", "nojob"], 3);
    check(&["audit", "nojob"], 3);
    check(&["cancel", "nojob"], 3);
    check(&["cancel", "01nosuch"], 3);
}

#[test]
fn a_run_that_failed_is_a_warning_with_its_reason() {
    let place = place();
    let _daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "poor"]).code, 1);
    // A run never waits for the log, so the line can appear after `dutyd run` has returned.
    wait_until(|| place.log().contains("run ended"), || place.log());
    let log = place.log();
    let line = log.lines().find(|line| line.contains("run ended")).unwrap();
    let run_id = place.json(&["runs"])[0]["run_id"].as_str().unwrap().to_owned();
    for part in ["WARN", "job=\"poor\"", &run_id, "stop_reason=max_iterations", "error="] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn status_says_what_a_reload_cannot_change() {
    let place = place();
    let _daemon = place.serve();
    assert_eq!(place.json(&["status"])["config"]["needs_restart"], json!([]));
    place.write("config.yaml", &format!("{CONFIG}telemetry: {{log: {{level: debug}}}}\n"));
    assert_eq!(place.dutyd(&["reload"]).code, 0);
    let status = place.json(&["status"]);
    let told = status["config"]["needs_restart"].to_string();
    assert!(told.contains("telemetry"), "{status}");
}

// conforms 000-5.1c, 001-L3, 003-2.9c
#[test]
fn text_is_shown_while_it_comes() {
    let place = place();
    let gate = place.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let here = place.path().display();
    let tool = format!(
        "  - {{name: wait, description: Waits, category: read, cmd: cat, args: [{}], sandbox: {{read: [{here}]}}}}\n",
        gate.display()
    );
    place.write("tools.yaml", &format!("{TOOLS}{tool}"));
    place.write("s.yaml", "steps: [{call: {tool: wait}}, {say: done}]\n");
    for daemon in [false, true] {
        let _daemon = daemon.then(|| place.serve());
        let mut command = place.command(&["-o", "jsonl", "run", "hand"]);
        let mut run = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let mut deltas = String::new();
        let mut seen = Vec::new();
        for line in lines.map(Result::unwrap) {
            let event: Value = serde_json::from_str(&line).unwrap();
            // We follow the run by now, so we see all text that comes after the gate opens.
            if event["type"] == "tool_call_start" {
                std::fs::write(&gate, "go").unwrap();
            }
            if event["type"] == "assistant_text_delta" {
                deltas.push_str(event["text"].as_str().unwrap());
            }
            seen.push(line);
        }
        assert!(run.wait().unwrap().success(), "{seen:?}");
        assert_eq!(deltas, "done", "{seen:?}");
        assert!(seen.concat().contains(r#""type":"assistant_text_start""#), "{seen:?}");
    }
}

#[test]
fn slots_that_no_daemon_decides_are_told() {
    let place = place();
    let tick = "  - {name: tick, schedule: '* * * * *', prompt: x}\n";
    place.write("jobs.yaml", &format!("{JOBS}{tick}"));
    let daemon = place.serve();
    wait_until(|| place.json(&["audit"])["valid_from"].is_string(), || place.log());
    assert_eq!(place.json(&["audit"])["daemon"], json!(daemon.pid()));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert_eq!(place.dutyd(&["audit"]).code, 0);
    // Simulate a daemon that ended an hour ago.
    let ledger = rusqlite::Connection::open(place.state().join("ledger.db")).unwrap();
    let hour = 3_600_000;
    ledger
        .execute("UPDATE periods SET began = began - ?1, settled = settled - ?1", [hour])
        .unwrap();
    let report = place.json(&["audit", "tick"]);
    assert_eq!((&report["ok"], &report["holes"]), (&json!(false), &json!([])), "{report}");
    assert!(report["daemon"].is_null(), "{report}");
    let undecided = &report["undecided"][0];
    assert_eq!(undecided["job"], "tick");
    assert!((58..=60).contains(&undecided["count"].as_u64().unwrap()), "{report}");
    let told = place.dutyd(&["audit"]);
    assert!(told.code == 1 && told.stdout.contains("undecided  tick"), "{told:?}");
    let jobs = place.json(&["jobs"]);
    let next = jobs.as_array().unwrap().iter().find(|job| job["name"] == "tick").unwrap();
    let now = chrono::Utc::now().to_rfc3339();
    assert!(next["next_fire"].as_str().is_none_or(|next| next > now.as_str()), "{next}");
}
