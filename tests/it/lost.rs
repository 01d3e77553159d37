//! Tests what the daemon and the verbs do when a database is gone, damaged or locked.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Daemon, Place, asked, wait_until};

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
        assert!(degraded.contains("plans, waiting attempts"), "{degraded}");
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

/// Removes the ledger, as a person would who restores a backup.
fn lose(place: &Place) {
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(place.state().join(name));
    }
}

// proves STATE-7
#[test]
fn a_pause_outlives_the_ledger() {
    let place = place();
    let daemon = place.serve();
    wait_until(|| !ran(&place).is_empty(), || place.log());
    assert_eq!(place.dutyd(&["pause", "tick", "--note", "disk swap"]).code, 0);
    wait_until(|| place.json(&["status"])["runs"]["active"] == 0, || place.log());
    stop(daemon);
    let before = ran(&place);
    let notes = || -> Vec<Value> {
        let jobs = place.json(&["jobs"]).as_array().unwrap().clone();
        jobs.iter().map(|job| job["pause_note"].clone()).collect()
    };
    lose(&place);
    let daemon = place.serve();
    assert_eq!(notes(), [Value::Null, "disk swap".into()]);
    wait_until(|| slots(&place).iter().any(|slot| slot["state"] == "paused"), || place.log());
    stop(daemon);
    lose(&place);
    std::fs::remove_file(place.state().join("guards.json")).unwrap();
    let daemon = place.serve();
    let degraded = place.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("every job is paused until `dutyd unpause JOB`"), "{degraded}");
    assert!(notes().iter().all(|note| note.to_string().contains("were lost")), "{:?}", notes());
    wait_until(|| slots(&place).iter().any(|slot| slot["state"] == "paused"), || place.log());
    assert_eq!(ran(&place), before);
    assert_eq!(place.dutyd(&["unpause", "tick"]).code, 0);
    wait_until(|| ran(&place).len() > before.len(), || place.log());
    drop(daemon);
}

// proves STATE-8
#[test]
fn an_older_ledger_repeats_no_slot() {
    let place = place();
    let daemon = place.serve();
    wait_until(|| ran(&place).len() >= 2, || place.log());
    stop(daemon);
    let backup = place.path().join("backup");
    std::fs::create_dir(&backup).unwrap();
    let own = || files(&place, "ledger.db");
    for file in own() {
        std::fs::copy(&file, backup.join(file.file_name().unwrap())).unwrap();
    }
    let daemon = place.serve();
    let count = ran(&place).len();
    wait_until(|| ran(&place).len() >= count + 4, || place.log());
    stop(daemon);
    let before = ran(&place);
    lose(&place);
    for file in std::fs::read_dir(&backup).unwrap().flatten() {
        std::fs::copy(file.path(), place.state().join(file.file_name())).unwrap();
    }
    let daemon = place.serve();
    let degraded = place.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("the ledger is older than the records"), "{degraded}");
    assert_eq!(ran(&place)[..before.len()], before);
    wait_until(|| ran(&place).len() > before.len(), || place.log());
    stop(daemon);
    let runs = place.json(&["runs", "--limit", "10000"]);
    let mut due: Vec<&str> =
        runs.as_array().unwrap().iter().filter_map(|run| run["scheduled_for"].as_str()).collect();
    let all = due.len();
    due.sort_unstable();
    due.dedup();
    assert_eq!(due.len(), all, "a slot ran twice: {runs}");
    let audit = place.json(&["audit"]);
    assert_eq!(audit["ok"], true, "{audit}");
    let daemon = place.serve();
    assert_eq!(place.json(&["status"])["degraded"], serde_json::json!([]));
    drop(daemon);
}

// proves STATE-7
#[test]
fn a_start_without_both_databases_needs_no_descriptor_for_each_run() {
    let place = place();
    for _ in 0..3 {
        assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    }
    let one = place.kept().into_iter().find(|path| path.ends_with("transcript.jsonl")).unwrap();
    let text = std::fs::read_to_string(&one).unwrap();
    let run = one.parent().unwrap();
    let run_id = run.file_name().unwrap().to_str().unwrap();
    // The same moment, so the same day, with other random parts.
    for number in 0..200 {
        let other = format!("{}{number:06}", &run_id[..20]);
        std::fs::create_dir(run.with_file_name(&other)).unwrap();
        let path = run.with_file_name(&other).join("transcript.jsonl");
        std::fs::write(path, text.replace(run_id, &other)).unwrap();
    }
    for name in ["ledger.db", "index.db"] {
        files(&place, name).into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
    let daemon = place.serve_with_files(150);
    let runs = || place.json(&["runs", "--job", "hand", "--limit", "500"]);
    assert_eq!(runs().as_array().unwrap().len(), 203);
    assert!(!place.log().contains("has lost its lock file"), "{}", place.log());
    drop(daemon);
}

// proves STATE-7
#[test]
fn a_file_among_the_directories_of_runs_does_not_keep_the_daemon_from_starting() {
    let place = place();
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    let runs = place.state().join("runs");
    std::fs::write(runs.join("1999"), "x").unwrap();
    let daemon = place.serve();
    let degraded = place.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("runs/1999 is not a directory of runs"), "{degraded}");
    assert_eq!(place.json(&["runs", "--job", "hand"]).as_array().unwrap().len(), 1);
    drop(daemon);
}

// proves STATE-8
#[test]
fn no_run_begins_while_the_state_directory_is_not_in_place() {
    let place = place();
    place.write("jobs.yaml", "version: 1\njobs: [{name: hand, prompt: x}]\n");
    let daemon = place.serve();
    let moved = place.path().join("moved");
    std::fs::rename(place.state(), &moved).unwrap();
    let ready = |state: &std::path::Path| asked(&state.join("control.sock"), None, "GET /readyz");
    wait_until(|| ready(&moved).contains("503"), || place.log());
    assert!(place.log().contains("was moved, removed or replaced"), "{}", place.log());
    std::fs::rename(&moved, place.state()).unwrap();
    wait_until(|| ready(&place.state()).contains("200"), || place.log());
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    std::fs::remove_file(place.state().join("ledger.db")).unwrap();
    wait_until(|| ready(&place.state()).contains("503"), || place.log());
    let degraded = place.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("ledger.db was moved, removed or replaced"), "{degraded}");
    drop(daemon);
}

// proves STATE-7
#[test]
fn a_lost_ledger_is_not_shown_as_one_without_slots() {
    for is_emptied in [true, false] {
        let place = place();
        let daemon = place.serve();
        wait_until(|| !ran(&place).is_empty(), || place.log());
        stop(daemon);
        lose(&place);
        let ledger = place.state().join("ledger.db");
        if is_emptied {
            std::fs::write(&ledger, "").unwrap();
        }
        let bytes = || std::fs::metadata(&ledger).map(|file| file.len()).ok();
        let before = bytes();
        let says = "ledger.db is missing or empty although dutyd has run here";
        for verb in ["slots", "audit", "plans", "prune"] {
            let done = place.dutyd(&[verb]);
            assert!(done.code == 1 && done.stderr.contains(says), "{verb}: {done:?}");
        }
        for verb in [&["runs"][..], &["verify", "--all"], &["run", "hand"]] {
            let done = place.dutyd(verb);
            assert!(done.code == 0 && done.stderr.contains(says), "{verb:?}: {done:?}");
        }
        assert_eq!(bytes(), before, "no verb makes a new ledger");
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
