//! Tests the verbs that control schedules: pause, unpause, trigger, backfill.

use serde_json::{Value, json};

use nix::sys::signal::Signal;

use crate::support::{Place, wait_until};

const JOBS: &str = "version: 1
jobs:
  - {name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false}
  - {name: daily, schedule: '0 3 * * *', timezone: UTC, prompt: x, double_confirmation: false}
  - {name: weak, prompt: x, model: silent, pause_after_failures: 1}
";

fn place() -> Place {
    Place::new(&[
        (
            "config.yaml",
            "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}, silent: {provider: scripted, script: wrong.yaml}}\n",
        ),
        (
            "tools.yaml",
            "version: 1\ntools: [{name: look, description: Looks, category: read, cmd: 'false'}]\n",
        ),
        ("s.yaml", "steps: [{say: done}]\n"),
        (
            "wrong.yaml",
            "steps: [{call: {tool: look}}, {call: {tool: look}}, {call: {tool: look}}]\n",
        ),
        ("jobs.yaml", JOBS),
    ])
}

fn job(place: &Place, name: &str) -> Value {
    let jobs = place.json(&["jobs"]);
    jobs.as_array().unwrap().iter().find(|job| job["name"] == name).unwrap().clone()
}

fn states(place: &Place) -> Vec<String> {
    let rows = place.json(&["slots", "tick"]);
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_job_that_fails_still_counts_after_a_restart() {
    let place = place();
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "weak"]).code, 1);
    wait_until(|| place.json(&["status"])["jobs"]["failing"] == 1, || place.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let _daemon = place.serve();
    assert_eq!(place.json(&["status"])["jobs"]["failing"], 1);
}

#[test]
fn a_pause_lasts_over_a_restart_and_is_shown() {
    let place = place();
    assert_eq!(place.dutyd(&["pause", "tick"]).code, 4, "there is no daemon");
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["pause", "nobody"]).code, 3);
    let paused = place.json(&["pause", "tick", "--note", "disk swap"]);
    let expected =
        json!({"job": "tick", "paused": true, "pause_note": "disk swap", "paused_until": null});
    assert_eq!(paused, expected);
    wait_until(|| states(&place).contains(&"paused".to_owned()), || place.log());
    drop(daemon);
    assert_eq!(job(&place, "tick")["pause_note"], "disk swap", "read from the files");
    let daemon = place.serve();
    let row = job(&place, "tick");
    assert_eq!((&row["paused"], &row["pause_note"]), (&json!(true), &json!("disk swap")));
    assert_eq!(place.json(&["status"])["jobs"]["paused"], 1);
    assert!(place.dutyd(&["jobs"]).stdout.contains("paused"));

    let triggered = place.dutyd(&["trigger", "tick"]);
    assert_eq!(triggered.code, 0, "a manual run ignores the pause: {triggered:?}");
    let run_id = triggered.stdout.trim().to_owned();
    wait_until(|| place.json(&["show", &run_id])["run"]["outcome"] == "succeeded", || place.log());
    assert_eq!(place.json(&["show", &run_id])["run"]["trigger"], "manual");

    let rows = states(&place).len();
    assert_eq!(place.json(&["unpause", "tick"])["was_paused"], true);
    wait_until(|| states(&place).iter().skip(rows).any(|state| state == "ran"), || place.log());
    assert_eq!(job(&place, "tick")["paused"], false);
    drop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

#[test]
fn failures_pause_a_job_with_a_note() {
    let place = place();
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "weak"]).code, 1);
    wait_until(|| job(&place, "weak")["paused"] == true, || place.log());
    let note = job(&place, "weak")["pause_note"].as_str().unwrap().to_owned();
    assert!(note.starts_with("consecutive failures: 1;"), "{note}");
    drop(daemon);
}

// proves CRON-1
#[test]
fn a_backfill_runs_the_due_times_of_the_past() {
    let place = place();
    let daemon = place.serve();
    let period = ["--from", "2025-11-01", "--to", "2025-11-05T03:00:00Z"];
    let backfill = |job: &str, rest: &[&str]| place.dutyd(&[&["backfill", job], rest].concat());
    let taken = backfill("daily", &period);
    assert_eq!((taken.code, taken.stdout.as_str()), (0, "5\n"), "{taken:?}");
    assert_eq!(backfill("daily", &period).stdout, "0\n");
    let rows = || place.json(&["slots", "daily", "--until", "2025-11-06"]);
    let is_done = || rows().as_array().unwrap().iter().all(|row| row["state"] == "ran");
    wait_until(is_done, || place.log());
    let first = place.json(&["show", rows()[0]["run_id"].as_str().unwrap()])["run"].clone();
    assert_eq!((&first["trigger"], &first["outcome"]), (&json!("backfill"), &json!("succeeded")),);
    assert_eq!(first["scheduled_for"], "2025-11-01T03:00:00.000000Z");
    let row = rows()[0].clone();
    assert_eq!((&row["until"], &row["count"]), (&Value::Null, &json!(1)));

    let refused = [
        ("daily", ["--from", "2025-11-01", "--to", "2999-01-01"], 2, "in the future"),
        ("tick", ["--from", "2020-01-01", "--to", "1h"], 2, "due times"),
        ("weak", ["--from", "2h", "--to", "1h"], 2, "has no schedule"),
        ("nobody", ["--from", "2h", "--to", "1h"], 3, "no job `nobody`"),
    ];
    for (job, period, code, why) in refused {
        let answer = backfill(job, &period);
        assert!(answer.code == code && answer.stderr.contains(why), "{job}: {answer:?}");
    }
    drop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

/// A job whose read call fails until it was made `needed` times. `write` adds a write call before it.
fn failing(needed: usize, write: bool) -> Place {
    let place = Place::new(&[
        (
            "config.yaml",
            "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}}\nsecurity: {sandbox: off}\n",
        ),
        (
            "jobs.yaml",
            "version: 1
jobs:
  - name: j
    schedule: '0 3 * * *'
    timezone: UTC
    prompt: x
    double_confirmation: false
    retry: {max_attempts: 3, backoff: 1s}
    pause_after_failures: 1
    limits: {error_threshold: 1}
    tools: {write: [change]}
",
        ),
    ]);
    let tries = place.path().join("tries").display().to_string();
    place.write(
        "tools.yaml",
        &format!(
            "version: 1
tools:
  - {{name: look, description: Looks, category: read, cmd: sh, args: [-c, 'echo x >> {tries}; test $(wc -l < {tries}) -ge {needed}']}}
  - {{name: change, description: Changes, category: write, cmd: 'true'}}
"
        ),
    );
    let first = if write { "{call: {tool: change}}, " } else { "" };
    place.write("s.yaml", &format!("steps: [{first}{{call: {{tool: look}}}}, {{say: done}}]\n"));
    place
}

fn attempts(place: &Place) -> Vec<(u64, String, String)> {
    let runs = place.json(&["runs", "--job", "j"]);
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let runs = runs.as_array().unwrap().iter().rev();
    runs.map(|run| (run["attempt"].as_u64().unwrap(), text(&run["trigger"]), text(&run["outcome"])))
        .collect()
}

#[test]
fn a_failed_run_is_repeated_also_over_a_crash() {
    let place = failing(3, false);
    let daemon = place.serve();
    let period =
        ["backfill", "j", "--from", "2025-11-01T03:00:00Z", "--to", "2025-11-01T03:00:00Z"];
    assert_eq!(place.dutyd(&period).stdout, "1\n");
    let slot = || place.json(&["slots", "j", "--until", "2025-11-02"])[0].clone();
    wait_until(|| slot()["reason"].as_str().unwrap().contains("attempt 2 begins"), || place.log());
    assert_eq!(slot()["state"], "queued");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    wait_until(|| slot()["state"] == "ran", || place.log());
    let of =
        |attempt, trigger: &str, outcome: &str| (attempt, trigger.to_owned(), outcome.to_owned());
    let expected =
        [of(1, "backfill", "failed"), of(2, "retry", "failed"), of(3, "retry", "succeeded")];
    assert_eq!(attempts(&place), expected);
    let last = place.json(&["show", "last"])["run"].clone();
    assert_eq!(last["run_id"], slot()["run_id"], "the slot names the last attempt");
    assert_eq!(last["scheduled_for"], "2025-11-01T03:00:00.000000Z");
    assert_eq!(job(&place, "j")["paused"], false, "failed attempts do not count");
    drop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

// proves CRON-1
#[test]
fn a_failed_slot_runs_again_on_request() {
    let place = failing(2, true);
    let daemon = place.serve();
    let period = ["--from", "2025-11-01T03:00:00Z", "--to", "2025-11-01T03:00:00Z"];
    let backfill = |more: &[&str]| {
        let done = place.dutyd(&[&["backfill", "j"], &period[..], more].concat());
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout
    };
    assert_eq!(backfill(&["--again"]), "0\n", "there is no slot yet");
    assert_eq!(backfill(&[]), "1\n");
    let slot = || place.json(&["slots", "j", "--until", "2025-11-02"])[0].clone();
    wait_until(|| slot()["reason"] == "failed (error_threshold)", || place.log());
    let failed = slot()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(backfill(&[]), "0\n", "it has a slot");
    assert_eq!(backfill(&["--again"]), "1\n");
    wait_until(|| slot()["reason"] == "succeeded (completed)", || place.log());
    assert_ne!(slot()["run_id"], failed.as_str());
    assert_eq!(place.json(&["show", &failed])["run"]["outcome"], "failed", "its run stays");
    let expected =
        ["failed", "succeeded"].map(|outcome| (1, "backfill".to_owned(), outcome.to_owned()));
    assert_eq!(attempts(&place), expected);
    assert_eq!(backfill(&["--again"]), "0\n", "it has succeeded");
    drop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

#[test]
fn trigger_sets_variables_and_warns_of_a_disabled_job() {
    let place = place();
    place.write(
        "jobs.yaml",
        "version: 1
jobs:
  - {name: off, schedule: '0 3 * * *', enabled: false, vars: {host: a}, prompt: 'Look at {{host}}.', double_confirmation: false}
",
    );
    let alone = place.dutyd(&["run", "off"]);
    assert_eq!(alone.code, 0, "{alone:?}");
    assert!(alone.stderr.contains("warning: the job is disabled\n"), "{alone:?}");
    let daemon = place.serve();
    let triggered = place.dutyd(&["trigger", "off", "--var", "host=b"]);
    assert_eq!((triggered.code, &*triggered.stderr), (0, "warning: the job is disabled\n"));
    let run_id = triggered.stdout.trim().to_owned();
    let shown = || place.json(&["show", &run_id]);
    wait_until(|| shown()["run"]["outcome"] == "succeeded", || place.log());
    assert!(shown()["events"].to_string().contains("Look at b."), "{}", shown());
    for (var, why) in [("host", "is not K=V"), ("port=1", "has no variable `port`")] {
        let refused = place.dutyd(&["trigger", "off", "--var", var]);
        assert!(refused.code == 2 && refused.stderr.contains(why), "{refused:?}");
    }
    drop(daemon);
}

/// Starts a planned run whose first attempt fails, kills the daemon while the second one waits, and sets
/// `request` of its row, as SQL. Returns the id of the second attempt, which is due at once.
fn attempt_with_request(place: &Place, request: &str) -> String {
    let jobs = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap();
    place.write("jobs.yaml", &jobs.replace("backoff: 1s", "backoff: 1h"));
    place.write("s.yaml", "steps: [{call: {tool: look}}, {call: {tool: change}}, {say: done}]\n");
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "j", "--plan"]).code, 1);
    let queued = || place.json(&["runs", "--outcome", "queued"]);
    wait_until(|| queued().as_array().unwrap().len() == 1, || place.log());
    let run_id = queued()[0]["run_id"].as_str().unwrap().to_owned();
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let ledger = rusqlite::Connection::open(place.state().join("ledger.db")).unwrap();
    let change = format!("UPDATE queue SET not_before = not_before - 3600000, request = {request}");
    assert_eq!(ledger.execute(&change, []).unwrap(), 1);
    run_id
}

// proves STATE-7
#[test]
fn a_waiting_attempt_whose_request_cannot_be_read_ends_with_the_reason() {
    for request in [
        "NULL",
        "'{\"vars\":{},\"prompt\":null,\"pl'",
        "'{\"vars\":{},\"prompt\":null}'",
        "'{\"vars\":{},\"prompt\":null,\"plan\":true,\"later\":1}'",
    ] {
        let place = failing(2, true);
        let run_id = attempt_with_request(&place, request);
        let daemon = place.serve();
        let run = || place.json(&["show", &run_id])["run"].clone();
        wait_until(|| !run()["outcome"].is_null(), || place.log());
        assert_eq!(run()["outcome"], "interrupted", "{request}: {}", run());
        let error = run()["error"].as_str().unwrap().to_owned();
        assert!(error.contains("attempt 2 did not begin") && error.contains("request"), "{error}");
        let degraded = place.json(&["status"])["degraded"].to_string();
        assert!(degraded.contains(&run_id) && place.log().contains(&run_id), "{degraded}");
        let tries = std::fs::read_to_string(place.path().join("tries")).unwrap();
        assert_eq!(tries.lines().count(), 1, "the attempt did not begin");
        drop(daemon);
    }
}

// proves STATE-7
#[test]
fn a_waiting_attempt_keeps_its_request_and_its_person_over_a_crash() {
    let place = failing(2, true);
    let run_id = attempt_with_request(&place, "request");
    let daemon = place.serve();
    let run = || place.json(&["show", &run_id])["run"].clone();
    wait_until(|| !run()["outcome"].is_null(), || place.log());
    assert_eq!(run()["outcome"], "planned", "{}", run());
    let start = place.json(&["show", &run_id])["events"][0].clone();
    assert_eq!((&start["mode"], &start["attempt"]), (&json!("plan"), &json!(2)));
    assert!(start["by"]["user"].is_string(), "{start}");
    drop(daemon);
}

// conforms 004-C16a
#[test]
fn a_body_that_is_not_declared_as_json_does_nothing() {
    use std::io::{Read as _, Write as _};
    let place = place();
    let daemon = place.serve();
    let key = std::fs::read_to_string(place.state().join("control.key")).unwrap();
    let post = |path: &str, header: &str, body: &str| {
        let socket = place.state().join("control.sock");
        let mut client = std::os::unix::net::UnixStream::connect(socket).unwrap();
        let length = body.len();
        // Write all of it at once: the server may close before it has read the body.
        let request = format!(
            "POST /api/v1/jobs/daily/{path} HTTP/1.1\r\nHost: x\r\nDutyd-Key: {}\r\n{header}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}",
            key.trim()
        );
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = client.read_to_string(&mut answer);
        answer.lines().next().unwrap_or_default().to_owned()
    };
    for header in ["", "Content-Type: text/plain\r\n"] {
        for (path, body) in [("runs", "{\"plan\": true}"), ("pause", "{\"note\": \"n\"}")] {
            let answer = post(path, header, body);
            assert_eq!(answer, "HTTP/1.1 415 Unsupported Media Type", "{path} {header:?}");
        }
    }
    assert_eq!(place.json(&["runs", "--job", "daily"]), json!([]));
    assert_eq!(job(&place, "daily")["paused"], false);
    assert_eq!(post("runs", "", ""), "HTTP/1.1 201 Created", "every field is optional");
    drop(daemon);
}

#[test]
fn a_crash_right_after_a_failed_attempt_loses_no_attempt() {
    let lines_of_a_failed_attempt = {
        let place = failing(100, false);
        assert_eq!(place.dutyd(&["run", "j"]).code, 1);
        place.json(&["show", "last"])["events"].as_array().unwrap().len()
    };
    let place = failing(2, false);
    let fault = format!("kill_after_line={}", lines_of_a_failed_attempt - 1);
    let daemon = place.serve_with("DUTYD_FAULTS", &fault);
    let period =
        ["backfill", "j", "--from", "2025-11-01T03:00:00Z", "--to", "2025-11-01T03:00:00Z"];
    assert_eq!(place.dutyd(&period).stdout, "1\n");
    daemon.wait();
    let daemon = place.serve();
    let slot = || place.json(&["slots", "j", "--until", "2025-11-02"])[0].clone();
    wait_until(|| slot()["state"] == "ran", || place.log());
    let outcomes = attempts(&place).into_iter().map(|(_, trigger, outcome)| (trigger, outcome));
    let expected = [("backfill", "failed"), ("retry", "succeeded")];
    assert_eq!(
        outcomes.collect::<Vec<_>>(),
        expected.map(|(trigger, outcome)| (trigger.to_owned(), outcome.to_owned()))
    );
    drop(daemon);
}

#[test]
fn a_run_that_changed_something_is_not_repeated() {
    let place = failing(100, true);
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "j"]).code, 1);
    wait_until(|| job(&place, "j")["paused"] == true, || place.log());
    assert_eq!(attempts(&place).len(), 1);
    drop(daemon);
}

#[test]
fn an_attempt_that_waits_can_be_cancelled() {
    let place = failing(100, false);
    let jobs = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap();
    place.write("jobs.yaml", &jobs.replace("backoff: 1s", "backoff: 1h"));
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "j"]).code, 1);
    let queued = || place.json(&["runs", "--outcome", "queued"]);
    wait_until(|| queued().as_array().unwrap().len() == 1, || place.log());
    assert_eq!(queued()[0]["attempt"], 2);
    let run_id = queued()[0]["run_id"].as_str().unwrap().to_owned();
    assert_eq!(place.dutyd(&["cancel", &run_id]).code, 0);
    assert_eq!(place.json(&["show", &run_id])["run"]["outcome"], "cancelled");
    assert_eq!(place.json(&["status"])["runs"], json!({"active": 0, "queued": 0}));
    drop(daemon);
}
