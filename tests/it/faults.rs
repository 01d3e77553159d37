//! Tests that a fault inside the daemon costs only the run that it hits.

use serde_json::Value;

use crate::support::{Place, wait_until};

fn place(jobs: &str) -> Place {
    Place::new(&[
        (
            "config.yaml",
            "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}}\nmax_concurrent_runs: 40\nsecurity: {sandbox: off}\n",
        ),
        ("s.yaml", "steps: [{call: {tool: wait}}, {say: done}]\n"),
        (
            "tools.yaml",
            "version: 1\ntools:\n  - {name: wait, description: Waits, category: read, cmd: sleep, args: ['0.5']}\n",
        ),
        ("jobs.yaml", jobs),
    ])
}

fn succeeded(place: &Place) -> usize {
    let runs = place.json(&["runs", "--outcome", "succeeded", "--limit", "10000"]);
    runs.as_array().unwrap().len()
}

fn is_sound(place: &Place) {
    let audit = place.json(&["audit"]);
    assert_eq!((&audit["holes"], &audit["extras"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
}

#[test]
fn a_panic_in_a_run_ends_only_this_run() {
    let place = place(
        "version: 1
jobs:
  - {name: tick, schedule: '* * * * * *', overlap: allow_all, prompt: x, double_confirmation: false}
  - {name: bad, schedule: '* * * * * *', prompt: x}
",
    );
    let daemon = place.serve_with("DUTYD_FAULTS", "panic_in_job=bad");
    let failed = || place.json(&["runs", "--job", "bad"]).as_array().unwrap().clone();
    wait_until(|| succeeded(&place) >= 3 && failed().len() >= 3, || place.log());
    let run = failed().pop().unwrap();
    assert_eq!(
        (run["outcome"].as_str(), run["stop_reason"].as_str()),
        (Some("failed"), Some("internal_error"))
    );
    assert_eq!(run["cost_usd"], Value::Null, "what it cost is unknown");
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    is_sound(&place);
}

// proves STATE-4
#[test]
fn a_slot_whose_run_cannot_begin_on_a_full_disk_waits_for_the_disk() {
    let place = place(
        "version: 1\njobs:\n  - {name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false}\n",
    );
    let daemon = place.serve_with("DUTYD_FAULTS", "fail_line_once=session_start");
    wait_until(|| place.log().contains("no run begins until it can"), || place.log());
    wait_until(|| succeeded(&place) >= 2, || place.log());
    assert!(!place.log().contains("did not run to its end"), "{}", place.log());
    let slots = place.json(&["slots", "tick"]);
    let slots = slots.as_array().unwrap();
    assert_eq!(slots[0]["state"], "ran", "the first run began once the disk could be written");
    assert!(slots.iter().all(|slot| slot["state"] != "missed"), "{slots:?}");
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    is_sound(&place);
}

#[test]
fn a_panic_before_the_session_ends_the_run_as_internal_error() {
    let place = place("version: 1\njobs:\n  - {name: bad, schedule: '* * * * * *', prompt: x}\n");
    let daemon = place.serve_with("DUTYD_FAULTS", "panic_in_prompt=bad");
    let rows = || place.json(&["runs", "--outcome", "failed"]).as_array().unwrap().clone();
    wait_until(|| rows().len() >= 2, || place.log());
    let run = rows().pop().unwrap();
    assert_eq!(run["stop_reason"], "internal_error");
    let open = std::fs::read_dir(place.state().join("runs/open")).unwrap();
    let open: Vec<_> = open.map(|entry| entry.unwrap().file_name()).collect();
    assert!(open.iter().all(|run_id| run["run_id"] != run_id.to_str().unwrap()), "{open:?}");
    daemon.signal(nix::sys::signal::Signal::SIGKILL);
    daemon.wait();
    drop(place.serve());
    is_sound(&place);
    let slots = place.json(&["slots", "bad"]);
    let of_run = slots.as_array().unwrap().iter().find(|slot| slot["run_id"] == run["run_id"]);
    assert_eq!(of_run.unwrap()["reason"], "failed (internal_error)");
}

// proves STATE-4
#[test]
fn a_daemon_without_descriptors_says_so_and_continues() {
    let job = |number: u32| {
        format!(
            "  - {{name: j{number}, schedule: '*/2 * * * * *', prompt: x, double_confirmation: false}}\n"
        )
    };
    let jobs: String = (0..30).map(job).collect();
    let place = place(&format!("version: 1\njobs:\n{jobs}"));
    let daemon = place.serve_with_files(100);
    wait_until(|| place.log().contains("Too many open files"), || place.log());
    let before = succeeded(&place);
    wait_until(|| succeeded(&place) > before + 10, || place.log());
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    drop(place.serve());
    is_sound(&place);
}
