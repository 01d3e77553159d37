//! Tests the handles of the night shift: pauses of all jobs and with an end, runs that begin later, runs
//! with another model, and acknowledged states.

use serde_json::{Value, json};

use crate::support::{Place, wait_until};

fn place() -> Place {
    let config = "default_model: m
models:
  m: {provider: scripted, script: s.yaml}
  other: {provider: scripted, script: other.yaml}
  remote: {provider: openai_chat, model: gpt-4o, base_url: 'http://127.0.0.1:9/v1', api_key: of-the-test, max_retries: 0}
";
    let jobs = "version: 1
jobs:
  - {name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false, allow_no_calls: true}
  - {name: hand, prompt: x, vars: {s: ok}, double_confirmation: false, allow_no_calls: true, output_schema: {type: object, properties: {status: {not: {const: F}}}}}
";
    let looping = "steps: [{call: {tool: todo_read}}, {call: {tool: todo_read}}, {say: done}]\n";
    Place::new(&[
        ("config.yaml", config),
        ("jobs.yaml", jobs),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("s.yaml", "steps: [{say: '{\"status\": \"{{ vars.s }}\"}'}]\n"),
        ("other.yaml", looping),
    ])
}

fn states(place: &Place) -> Vec<String> {
    let rows = place.json(&["slots", "tick"]);
    rows.as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
}

fn job(place: &Place, name: &str) -> Value {
    let jobs = place.json(&["jobs"]);
    jobs.as_array().unwrap().iter().find(|job| job["name"] == name).unwrap().clone()
}

#[test]
fn all_jobs_pause_and_a_pause_ends_by_itself() {
    let place = place();
    let daemon = place.serve();
    wait_until(|| states(&place).contains(&"ran".to_owned()), || place.log());
    let paused = place.dutyd(&["pause", "--all", "--note", "maintenance"]);
    assert_eq!(paused.stdout, "all jobs are paused until `dutyd unpause --all`\n");
    wait_until(|| states(&place).contains(&"paused".to_owned()), || place.log());
    let status = place.json(&["status"]);
    assert_eq!(
        (&status["jobs"]["paused"], &status["pause_of_all"]["note"]),
        (&json!(2), &json!("maintenance"))
    );
    assert!(place.dutyd(&["status"]).stdout.contains("all jobs are paused until"));
    // A job has a pause of its own beside it, which ends by itself.
    assert_eq!(place.dutyd(&["pause", "tick", "--until", "3s"]).code, 0);
    assert_eq!(place.json(&["unpause", "--all"])["was_paused"], true);
    let row = job(&place, "tick");
    assert_eq!(row["paused"], true);
    assert!(row["paused_until"].is_string(), "{row}");
    let before = states(&place).len();
    wait_until(|| states(&place).iter().skip(before).any(|state| state == "ran"), || place.log());
    assert_eq!(job(&place, "tick")["paused"], false);
    for wrong in [
        &["pause"][..],
        &["pause", "tick", "--all"],
        &["pause", "tick", "--until", "2026-01-01"],
        &["pause", "tick", "--until", "soon"],
    ] {
        assert_eq!(place.dutyd(wrong).code, 2, "{wrong:?}");
    }
    drop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

#[test]
fn a_run_begins_later_is_listed_and_can_be_cancelled() {
    let place = place();
    let _daemon = place.serve();
    let later = place.dutyd(&["trigger", "hand", "--in", "1h"]).stdout.trim().to_owned();
    let soon = place.dutyd(&["trigger", "hand", "--in", "2s", "--var", "s=late"]);
    assert!(soon.stderr.contains("the run begins at"), "{soon:?}");
    let soon = soon.stdout.trim().to_owned();
    let next = place.json(&["next", "hand"]);
    let ids: Vec<&str> =
        next.as_array().unwrap().iter().filter_map(|row| row["run_id"].as_str()).collect();
    assert!(ids.contains(&later.as_str()), "{next}");
    let queued = place.json(&["runs", "--outcome", "queued"]);
    let waits = |id: &str| {
        let row = queued.as_array().unwrap().iter().find(|row| row["run_id"] == id);
        row.unwrap()["waits_for"].as_str().unwrap().to_owned()
    };
    assert!(waits(&later).starts_with("its time, "), "{queued}");
    wait_until(|| place.json(&["show", &soon])["run"]["verdict"] == "late", || place.log());
    assert_eq!(place.dutyd(&["cancel", &later]).code, 0);
    let over = place.json(&["show", &later]);
    assert_eq!(over["run"]["outcome"], "cancelled", "{over}");
    assert_eq!(place.dutyd(&["trigger", "hand", "--at", "2026-01-01"]).code, 2);
    assert_eq!(place.dutyd(&["trigger", "hand", "--in", "1h", "--at", "2099-01-01"]).code, 2);
}

#[test]
fn a_run_takes_another_model_effort_and_limit() {
    let place = place();
    for with_daemon in [false, true] {
        let _daemon = with_daemon.then(|| place.serve());
        let run = |arguments: &[&str]| {
            let done = place.dutyd(&[&["run", "hand", "-o", "json"], arguments].concat());
            serde_json::from_str::<Value>(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"))
        };
        let other = run(&["--model", "other", "--max-iterations", "1"]);
        assert_eq!(
            (&other["model"], &other["stop_reason"]),
            (&json!("other"), &json!("max_iterations"))
        );
        let shown = place.json(&["show", other["run_id"].as_str().unwrap()]);
        let overrides = &shown["events"][0]["overrides"];
        assert_eq!(overrides, &json!({"model": "other", "max_iterations": 1}));
        let remote = run(&["--model", "remote", "--effort", "none"]);
        assert_eq!(remote["stop_reason"], "provider_unavailable");
        for (arguments, why) in [
            (&["--model", "mother"][..], "did you mean `other`?"),
            (&["--model", "remote", "--effort", "high"], "does not reason"),
            (&["--effort", "huge"], "`huge` is not an effort"),
            (&["--max-iterations", "101"], "from 1 to 100"),
        ] {
            let refused = place.dutyd(&[&["run", "hand"], arguments].concat());
            assert!(refused.code == 2 && refused.stderr.contains(why), "{with_daemon} {refused:?}");
        }
    }
}

#[test]
fn an_acknowledged_state_is_shown_until_it_changes() {
    let place = place();
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["ack", "nobody"]).code, 3);
    let early = place.dutyd(&["ack", "hand"]);
    assert!(early.code == 1 && early.stderr.contains("no run of `hand` has ended"), "{early:?}");
    assert_eq!(place.dutyd(&["run", "hand", "--var", "s=F"]).code, 1);
    let acknowledged = place.json(&["ack", "hand", "--until", "2h"]);
    assert_eq!(acknowledged["state"], "failed");
    drop(daemon);
    let row = job(&place, "hand");
    assert_eq!(row["acknowledged"]["by"]["uid"], nix::unistd::getuid().as_raw(), "{row}");
    let _daemon = place.serve();
    assert_eq!(place.json(&["status"])["jobs"]["acknowledged"], 1);
    assert!(place.dutyd(&["jobs"]).stdout.contains("acknowledged"));
    assert_eq!(place.dutyd(&["run", "hand", "--var", "s=F"]).code, 1);
    assert!(job(&place, "hand")["acknowledged"].is_object());
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    assert!(job(&place, "hand")["acknowledged"].is_null());
}
