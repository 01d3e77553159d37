//! Tests `prune`: what goes, what stays, and that links are not followed.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::{Place, skipped, wait_until};

const CONFIG: &str = "default_model: m
models: {m: {provider: scripted, script: s.yaml}, bad: {provider: scripted, script: bad.yaml}}
security: {sandbox: off}
";
const JOBS: &str = "version: 1
jobs:
  - {name: good, prompt: x, double_confirmation: false}
  - {name: bad, prompt: x, double_confirmation: false, model: bad, limits: {error_threshold: 1}, tools: {read: []}}
  - {name: planner, prompt: x, double_confirmation: false, mode: plan, tools: {write: [change]}}
";

fn place() -> Place {
    Place::new(&[
        ("config.yaml", &format!("{CONFIG}retention: {{keep_runs: 2}}\n")),
        (
            "tools.yaml",
            "version: 1\ntools: [{name: change, description: Changes, category: write, cmd: 'true'}]\n",
        ),
        ("s.yaml", "steps: [{call: {tool: change}}, {say: done}]\n"),
        ("bad.yaml", "steps: [{call: {tool: nothing}}]\n"),
        ("jobs.yaml", JOBS),
    ])
}

fn run(place: &Place, job: &str) -> String {
    place.dutyd(&["run", job]);
    place.json(&["show", "last"])["run"]["run_id"].as_str().unwrap().to_owned()
}

fn ids(place: &Place) -> Vec<String> {
    let runs = place.json(&["runs"]);
    let runs = runs.as_array().unwrap().iter().rev();
    runs.map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

/// Returns the directory of a run.
fn directory(place: &Place, run_id: &str) -> std::path::PathBuf {
    let below = walk(&place.state().join("runs"));
    below.into_iter().find(|path| path.ends_with(run_id)).unwrap()
}

fn walk(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

// proves STATE-6
#[test]
fn old_runs_go_and_unfinished_ones_stay_and_links_are_not_followed() {
    let place = place();
    let bad = run(&place, "bad");
    let good: Vec<String> = (0..5).map(|_| run(&place, "good")).collect();
    let plans: Vec<String> = (0..4).map(|_| run(&place, "planner")).collect();
    // An open run, and a link to a directory outside the state directory.
    std::fs::write(place.state().join("runs/open").join(&good[0]), "").unwrap();
    let outside = place.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), "x").unwrap();
    std::os::unix::fs::symlink(&outside, directory(&place, &good[1]).join("link")).unwrap();

    let before = ids(&place);
    let counted = place.json(&["prune", "--dry-run"]);
    assert_eq!((&counted["runs"], &counted["slots"]), (&json!(2), &json!(0)), "{counted}");
    assert!(counted["bytes"].as_u64().unwrap() > 1000);
    assert_eq!(ids(&place), before, "nothing is removed");

    let pruned = place.json(&["prune"]);
    assert_eq!(pruned, counted);
    let mut kept = vec![bad, good[0].clone()];
    kept.extend_from_slice(&good[3..]);
    kept.extend(plans);
    assert_eq!(ids(&place), kept, "a waiting plan keeps its run");
    assert_eq!(std::fs::read_to_string(outside.join("precious")).unwrap(), "x");
    assert!(!walk(&place.state()).iter().any(|path| path.ends_with(&good[1])));
    std::fs::remove_file(place.state().join("runs/open").join(&good[0])).unwrap();
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
    place.dutyd(&["reindex"]);
    assert_eq!(ids(&place), kept);
    assert_eq!(place.json(&["prune"])["runs"], 1, "the run is not open any more");
}

#[test]
fn a_run_that_cannot_be_removed_keeps_its_rows_and_prune_fails() {
    let place = place();
    let good: Vec<String> = (0..3).map(|_| run(&place, "good")).collect();
    // A removal does not enter another file system.
    let other = directory(&place, &good[0]).join("other");
    std::fs::create_dir(&other).unwrap();
    let mounted = place.shell(&format!("mount -t tmpfs tmpfs {}", other.display()));
    if mounted.code != 0 {
        skipped("a directory that cannot be removed: only root can mount a file system");
        return;
    }
    let pruned = place.dutyd(&["-o", "json", "prune"]);
    place.shell(&format!("umount -l {}", other.display()));
    let counts: Value = serde_json::from_str(&pruned.stdout).unwrap();
    assert_eq!((pruned.code, &counts["runs"], &counts["failed"]), (1, &json!(0), &json!(1)));
    assert!(pruned.stderr.contains("1 old runs could not be removed"), "{}", pruned.stderr);
    assert_eq!(ids(&place), good, "the run keeps its row");
    place.json(&["prune"]);
    assert_eq!(ids(&place), good[1..]);
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
}

#[test]
fn configurations_that_no_run_names_go() {
    let place = place();
    let configs = || -> Vec<String> {
        let entries = std::fs::read_dir(place.state().join("configs")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    for version in 0..4 {
        place.write("s.yaml", &format!("steps: [{{say: done {version}}}]\n"));
        run(&place, "good");
    }
    assert_eq!(configs().len(), 4);
    place.json(&["prune"]);
    assert_eq!(configs().len(), 4, "a run that is about to begin may name one");
    for name in configs() {
        let path = place.state().join("configs").join(name);
        let file = std::fs::File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
    }
    place.json(&["prune"]);
    assert_eq!(configs().len(), 2);
}

#[test]
fn the_daemon_prunes_by_itself_once_a_day() {
    let place = place();
    (0..4).for_each(|_| drop(run(&place, "good")));
    let daemon = place.serve();
    wait_until(|| ids(&place).len() == 2, || place.log());
    drop(daemon);
    (0..2).for_each(|_| drop(run(&place, "good")));
    let daemon = place.serve();
    assert_eq!(place.json(&["status"])["degraded"], Value::Array(Vec::new()));
    drop(daemon);
    assert_eq!(ids(&place).len(), 4, "a restart does not begin a new day");
}

#[test]
fn a_daemon_prunes_as_its_own_configuration_says() {
    let place = place();
    for _ in 0..4 {
        run(&place, "good");
    }
    let daemon = place.serve();
    // The files differ from the configuration in effect.
    place.write("config.yaml", &format!("{CONFIG}retention: {{keep_runs: 1, keep_days: 0}}\n"));
    wait_until(|| place.json(&["status"])["config"]["valid"] == false, || place.log());
    assert_eq!(place.json(&["prune", "--dry-run"])["runs"], 2);
    assert_eq!(ids(&place).len(), 4);
    assert_eq!(place.json(&["prune"])["runs"], 2);
    assert_eq!(ids(&place).len(), 2);
    drop(daemon);
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
    std::fs::remove_dir_all(place.state()).unwrap();
    assert_eq!(place.dutyd(&["prune"]).code, 3, "there is nothing to prune");
    assert!(!place.state().exists());
}
