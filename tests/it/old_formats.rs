//! Checks that state directories of earlier versions still load completely.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::Place;

const PLANNED: &str = "01m8266a6bdtqp42bjvv982dj6";
const SCHEDULED: [&str; 3] =
    ["01m8266940e7rjz4ck9cv24d00", "01m826675gvzvkdxrdhkzetb53", "01m8266571vx19bbd2518qy1hm"];

/// Returns a place whose state directory is a copy of a fixture.
fn old_state(version: &str) -> Place {
    let place = Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: s.yaml}}\n"),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", "version: 1\njobs: [{name: hand, prompt: x}]\n"),
    ]);
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/formats").join(version);
    copy(&fixture, &place.state());
    place
}

fn copy(from: &Path, to: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(to).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target: PathBuf = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
            std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

fn field(rows: &Value, name: &str) -> Vec<Value> {
    rows.as_array().unwrap().iter().map(|row| row[name].clone()).collect()
}

fn assert_all_is_there(place: &Place) {
    let runs = place.json(&["runs"]);
    let runs: Vec<&Value> =
        runs.as_array().unwrap().iter().filter(|run| run["job"] != "hand").collect();
    let shown: Vec<_> = runs.iter().map(|run| (&run["run_id"], &run["outcome"])).collect();
    let expected: Vec<_> = std::iter::once((json!(PLANNED), json!("planned")))
        .chain(SCHEDULED.iter().map(|run| (json!(run), json!("succeeded"))))
        .collect();
    assert_eq!(shown, expected.iter().map(|(run, how)| (run, how)).collect::<Vec<_>>());
    assert_eq!(runs[0]["verdict"], "ok");
    assert_eq!(runs[1]["trigger"], "schedule");
    let slots = place.json(&["slots", "often"]);
    assert_eq!(field(&slots, "state"), ["ran", "ran", "ran"]);
    assert_eq!(field(&slots, "run_id"), [SCHEDULED[2], SCHEDULED[1], SCHEDULED[0]]);
    let audit = place.json(&["audit"]);
    assert_eq!((&audit["holes"], &audit["extras"]), (&json!([]), &json!([])), "{audit}");
    let plans = place.json(&["plans"]);
    assert_eq!(field(&plans, "plan_id"), [PLANNED]);
    assert_eq!(plans[0]["state"], "waiting");
    for run in SCHEDULED.iter().chain([&PLANNED]) {
        let verified = place.dutyd(&["verify", run]);
        assert_eq!(verified.code, 0, "{verified:?}");
        let shown = place.json(&["show", run]);
        assert_eq!(shown["run"]["run_id"], *run);
        assert!(shown["events"].as_array().unwrap().len() > 10, "{shown}");
    }
}

#[test]
fn a_state_directory_of_the_first_version_is_read() {
    assert_all_is_there(&old_state("v1"));
}

#[test]
fn a_state_directory_of_the_first_version_is_taken_over_by_a_daemon() {
    let place = old_state("v1");
    let daemon = place.serve();
    assert_all_is_there(&place);
    // The daemon keeps a copy of each database that it migrates.
    for database in ["ledger", "index"] {
        let copies = std::fs::read_dir(place.state()).unwrap().flatten();
        let copies = copies.map(|entry| entry.file_name().into_string().unwrap());
        let is_copy = |name: &String| name.starts_with(&format!("{database}.v"));
        assert_eq!(copies.filter(is_copy).count(), 1, "{database}");
    }
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    drop(daemon);
    assert_all_is_there(&place);
    let reindexed = place.dutyd(&["reindex"]);
    assert_eq!(reindexed.code, 0, "{reindexed:?}");
    assert_all_is_there(&place);
}

// proves STATE-3
#[test]
fn a_ledger_of_a_newer_version_is_refused_and_stays_as_it_is() {
    let place = old_state("v11");
    let path = place.state().join("ledger.db");
    let ledger = rusqlite::Connection::open(&path).unwrap();
    ledger.pragma_update(None, "user_version", 99).unwrap();
    drop(ledger);
    let before = std::fs::read(&path).unwrap();
    let done = place.dutyd(&["serve"]);
    assert_eq!(done.code, 1, "{done:?}");
    let says = "was created by a newer dutyd (schema 99, supported up to ";
    assert!(done.stderr.contains(says), "{}", done.stderr);
    assert!(done.stderr.contains("ledger.db"), "{}", done.stderr);
    assert!(std::fs::read(&path).unwrap() == before, "the file changed");
}

/// Checks what the state directory of ledger format 11 holds.
fn assert_v11_is_there(place: &Place) {
    let runs = place.json(&["runs", "--limit", "100"]);
    let outcomes = |job: &str| -> Vec<Value> {
        let runs = runs.as_array().unwrap().iter().filter(|run| run["job"] == job);
        runs.map(|run| run["outcome"].clone()).collect()
    };
    assert_eq!(outcomes("checked"), ["skipped", "succeeded"]);
    assert_eq!(outcomes("failing"), [Value::Null, json!("failed")]);
    assert_eq!(outcomes("planner"), ["planned"]);
    let often = outcomes("often");
    assert!(often.len() > 5 && often.iter().all(|outcome| outcome == "succeeded"), "{often:?}");
    let slots = place.json(&["slots", "failing"]);
    assert_eq!((&slots[0]["state"], slots.as_array().unwrap().len()), (&json!("queued"), 1));
    assert_eq!(field(&place.json(&["plans"]), "state"), ["waiting"]);
    assert_eq!(place.json(&["audit"])["ok"], true);
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
    let jobs = place.json(&["jobs"]);
    let paused = jobs.as_array().unwrap().iter().find(|job| job["name"] == "paused").unwrap();
    assert_eq!(paused["paused"], true, "{paused}");
}

#[test]
fn a_state_directory_with_ledger_format_11_is_taken_over() {
    let place = old_state("v11");
    place.write(
        "jobs.yaml",
        "version: 1\njobs: [{name: paused, prompt: x}, {name: failing, prompt: x, retry: {max_attempts: 2}}]\n",
    );
    assert_v11_is_there(&place);
    let daemon = place.serve();
    assert_v11_is_there(&place);
    drop(daemon);
    assert_eq!(place.dutyd(&["reindex"]).code, 0);
    assert_v11_is_there(&place);
}
