//! Tests what the daemon and the verbs do when a database is gone, damaged or locked.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Daemon, Place, wait_until};

const JOBS: &str = "version: 1
jobs:
  - {name: tick, schedule: '* * * * * *', prompt: x}
  - {name: hand, prompt: x}
";

fn place() -> Place {
    Place::new(&[
        ("config.yaml", "models: {m: {provider: scripted, script: s.yaml}}\n"),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", JOBS),
    ])
}

fn slots(place: &Place) -> Vec<Value> {
    place.json(&["slots", "tick"]).as_array().unwrap().clone()
}

fn ran(place: &Place) -> Vec<(Value, Value)> {
    let slots = slots(place).into_iter().filter(|slot| slot["state"] == "ran");
    slots.map(|slot| (slot["due_at"].clone(), slot["run_id"].clone())).collect()
}

fn stop(daemon: Daemon) {
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
}

fn files(place: &Place, name: &str) -> Vec<PathBuf> {
    let kept = place.kept().into_iter();
    let is_of = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(name);
    kept.filter(is_of).collect()
}

/// Replaces the content of a database. Its log goes too, because it may hold every page.
fn damage(place: &Place, name: &str) {
    for file in files(place, &format!("{name}-")) {
        std::fs::remove_file(file).unwrap();
    }
    std::fs::write(place.state().join(name), "this is not a database ".repeat(1000)).unwrap();
}

// proves STATE-3
#[test]
fn the_slots_of_a_lost_ledger_are_restored_from_the_records() {
    for is_damaged in [false, true] {
        let place = place();
        let daemon = place.serve();
        wait_until(|| ran(&place).len() >= 2, || place.log());
        stop(daemon);
        let before = ran(&place);
        for file in files(&place, "ledger.db") {
            std::fs::remove_file(file).unwrap();
        }
        if is_damaged {
            damage(&place, "ledger.db");
        }
        let daemon = place.serve();
        let degraded = place.json(&["status"])["degraded"].to_string();
        assert!(degraded.contains("the ledger was lost"), "{degraded}");
        assert!(degraded.contains("pauses, plans"), "{degraded}");
        assert_eq!(degraded.contains("damaged"), is_damaged, "{degraded}");
        assert_eq!(files(&place, "ledger.damaged").len(), usize::from(is_damaged));
        assert_eq!(ran(&place)[..before.len()], before);
        wait_until(|| ran(&place).len() > before.len(), || place.log());
        stop(daemon);
        let audit = place.json(&["audit"]);
        assert_eq!(audit["ok"], true, "{audit}");
        // What is restored is not restored again.
        let daemon = place.serve();
        assert_eq!(place.json(&["status"])["degraded"], serde_json::json!([]));
        drop(daemon);
    }
}

// proves STATE-3
#[test]
fn only_the_daemon_sets_a_damaged_database_aside() {
    let place = place();
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    damage(&place, "ledger.db");
    damage(&place, "index.db");
    let done = place.dutyd(&["run", "hand"]);
    let log = format!("{} {}", done.stdout, done.stderr);
    let warning = "the ledger or the index lacks the end of the run";
    assert!(log.contains(warning) && log.contains("ledger.db is damaged"), "{log}");
    assert!(
        files(&place, "ledger.damaged").is_empty() && files(&place, "index.damaged").is_empty()
    );
    let done = place.dutyd(&["reindex"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "2 runs\n"), "{done:?}");
    assert_eq!(files(&place, "index.damaged").len(), 1, "without a daemon, reindex may do it");
    let daemon = place.serve();
    assert_eq!(files(&place, "ledger.damaged").len(), 1);
    damage(&place, "index.db");
    let done = place.dutyd(&["reindex"]);
    assert!(done.code == 1 && done.stderr.contains("is damaged"), "{done:?}");
    assert_eq!(files(&place, "index.damaged").len(), 1, "not under the feet of the daemon");
    drop(daemon);
}

// proves STATE-7
#[test]
fn a_row_that_cannot_be_read_does_not_keep_the_daemon_from_starting() {
    const RUN: &str = "01m8266a6bdtqp42bjvv982dj6";
    let place = place();
    let daemon = place.serve();
    wait_until(|| ran(&place).len() >= 2, || place.log());
    stop(daemon);
    let ledger = rusqlite::Connection::open(place.state().join("ledger.db")).unwrap();
    let damage = format!(
        "INSERT INTO queue (run_id, job, trigger) VALUES ('{RUN}', 'hand', 'of_a_newer_version');
         INSERT INTO queue (run_id, job, trigger) VALUES (x'00', 'hand', 'manual');
         INSERT INTO plans VALUES ('bad', 1, 'waiting', '{{');
         UPDATE slots SET state = 'deferred' WHERE due_at = (SELECT min(due_at) FROM slots);"
    );
    ledger.execute_batch(&damage).unwrap();
    drop(ledger);
    let plans = place.dutyd(&["plans"]);
    assert!(plans.code == 0 && plans.stderr.contains("the plan bad cannot be read"), "{plans:?}");
    let daemon = place.serve();
    let run = place.json(&["show", RUN])["run"].clone();
    assert_eq!((&run["outcome"], &run["job"]), (&"interrupted".into(), &"hand".into()), "{run}");
    assert!(run["error"].as_str().unwrap().contains("of_a_newer_version"), "{run}");
    let degraded = place.json(&["status"])["degraded"].to_string();
    assert!(["bad", RUN, "blob_hex"].iter().all(|word| degraded.contains(word)), "{degraded}");
    assert!(place.log().contains(RUN) && place.log().contains("a row of the ledger"));
    assert_eq!(place.dutyd(&["plans"]).code, 0);
    assert_eq!(slots(&place)[0]["state"], "deferred");
    let before = ran(&place).len();
    wait_until(|| ran(&place).len() > before, || place.log());
    stop(daemon);
    let daemon = place.serve();
    let degraded = place.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("bad") && !degraded.contains(RUN), "{degraded}");
    stop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

// proves STATE-3
#[test]
fn a_locked_ledger_delays_slots_and_loses_none() {
    let place = place();
    let daemon = place.serve();
    wait_until(|| !ran(&place).is_empty(), || place.log());
    let other = rusqlite::Connection::open(place.state().join("ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let degraded = || place.json(&["status"])["degraded"].to_string();
    wait_until(|| degraded().contains("ledger"), || place.log());
    other.execute_batch("ROLLBACK").unwrap();
    wait_until(|| degraded() == "[]", || place.log());
    let before = ran(&place).len();
    wait_until(|| ran(&place).len() > before, || place.log());
    stop(daemon);
    let audit = place.json(&["audit"]);
    assert_eq!(audit["ok"], true, "{audit}");
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
}
