//! Tests that dutyd never reports a modified record as intact, or an unreadable state directory
//! as an empty one.

use std::path::{Path, PathBuf};

use crate::support::{Place, skipped};

fn place() -> Place {
    Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: s.yaml}}\n"),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", "version: 1\njobs: [{name: hand, prompt: x}]\n"),
    ])
}

/// Makes a run; returns its id and its directory.
fn run(place: &Place) -> (String, PathBuf) {
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    let shown = place.json(&["runs"]);
    let id = shown[0]["run_id"].as_str().unwrap().to_owned();
    let directory = find(&place.state().join("runs"), &id).unwrap();
    (id, directory)
}

fn find(below: &Path, name: &str) -> Option<PathBuf> {
    std::fs::read_dir(below).ok()?.flatten().find_map(|entry| {
        if entry.file_name() == name { Some(entry.path()) } else { find(&entry.path(), name) }
    })
}

// proves LOG-2
#[test]
fn a_record_that_was_cut_or_removed_is_not_called_whole() {
    let place = place();
    let (kept, _) = run(&place);
    let (cut, directory) = run(&place);
    let (removed, gone) = run(&place);
    let all = place.json(&["verify", "--all"]);
    assert_eq!(all["ok"], true, "{all}");
    let transcript = directory.join("transcript.jsonl");
    let text = std::fs::read_to_string(&transcript).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let shorter = lines.split_last().unwrap().1.join("\n") + "\n";
    std::fs::write(&transcript, shorter).unwrap();
    std::fs::remove_dir_all(gone).unwrap();
    assert_eq!(place.dutyd(&["verify", &kept]).code, 0);
    for run in [&cut, &removed] {
        let done = place.dutyd(&["verify", run]);
        assert_eq!(done.code, 1, "{done:?}");
    }
    let done = place.dutyd(&["verify", "--all"]);
    assert_eq!(done.code, 1, "{done:?}");
    let said = done.stdout + &done.stderr;
    assert!(said.contains(&cut) && said.contains(&removed), "{said}");
}

#[test]
fn what_cannot_be_read_is_an_error_and_no_empty_list() {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root can run as another user");
        return;
    }
    let place = place().given_to(65_533);
    let (id, _) = run(&place);
    // Give the state directory to root, to whom an ordinary user has as little access as to the
    // state of the service.
    std::os::unix::fs::chown(place.state(), Some(0), Some(0)).unwrap();
    for args in [&["runs"][..], &["show", "last"], &["verify", &id], &["slots"], &["plans"]] {
        let done = place.dutyd(args);
        assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{args:?}: {done:?}");
        assert!(done.stderr.contains("cannot be read"), "{args:?}: {done:?}");
    }
}

#[test]
fn output_that_nobody_takes_is_a_failure() {
    let place = place();
    run(&place);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = place.command(&["-o", "json", "runs"]).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_record_without_an_end_is_an_open_run_or_an_interrupted_one() {
    let place = place();
    let (id, directory) = run(&place);
    let transcript = directory.join("transcript.jsonl");
    let text = std::fs::read_to_string(&transcript).unwrap();
    let before = text.trim_end().rsplit_once('\n').unwrap().0;
    std::fs::write(&transcript, format!("{before}\n")).unwrap();
    let lock = place.state().join("runs/open").join(&id);
    std::fs::write(&lock, "").unwrap();
    assert_eq!(place.dutyd(&["reindex"]).stdout, "0 runs\n", "the lock file keeps the run open");
    std::fs::remove_file(lock).unwrap();
    assert_eq!(place.dutyd(&["reindex"]).stdout, "1 runs\n");
    let row = &place.json(&["runs"])[0];
    assert_eq!((&row["run_id"], &row["outcome"]), (&id.into(), &"interrupted".into()), "{row}");
}

/// A record can be verified and shown even if the index has no row for it.
// proves LOG-2
#[test]
fn a_record_that_no_listing_holds_is_still_verified() {
    let place = place();
    let (id, directory) = run(&place);
    let transcript = directory.join("transcript.jsonl");
    let text = std::fs::read_to_string(&transcript).unwrap();
    std::fs::write(&transcript, text.replacen('{', "x", 1)).unwrap();
    assert_eq!(place.dutyd(&["reindex"]).code, 0);
    let _daemon = place.serve();
    let verified = place.dutyd(&["verify", &id]);
    assert_eq!(verified.code, 1, "{verified:?}");
    let raw = place.dutyd(&["show", &id, "--raw"]);
    assert!(raw.code == 0 && raw.stdout.contains("session_end"), "{raw:?}");
}

// proves LOG-2
#[test]
fn a_record_is_compared_with_the_log_that_has_left_the_machine() {
    let place = place();
    let daemon = place.serve();
    let ids: Vec<String> = (0..3)
        .map(|_| {
            let run = place.json(&["run", "hand", "-o", "json"]);
            run["run_id"].as_str().unwrap().to_owned()
        })
        .collect();
    let ended = |log: &str| log.lines().filter(|line| line.contains("run ended")).count();
    crate::support::wait_until(|| ended(&place.log()) == 3, || place.log());
    drop(daemon);
    let log = place.path().join("kept.log");
    std::fs::write(&log, place.log()).unwrap();
    let against = log.to_str().unwrap();
    let verify = |arguments: &[&str]| {
        place.dutyd(&[&["verify"], arguments, &["--against", against, "-o", "json"]].concat())
    };
    let all: serde_json::Value = serde_json::from_str(&verify(&["--all"]).stdout).unwrap();
    assert_eq!(
        (&all["ok"], &all["runs"], &all["without_head"]),
        (&true.into(), &3.into(), &0.into())
    );
    assert_eq!(verify(&[&ids[0]]).code, 0);
    // The attacker who changes a record also has the ledger.
    std::fs::remove_file(place.state().join("ledger.db")).unwrap();
    let directory = |id: &str| find(&place.state().join("runs"), id).unwrap();
    let transcript = directory(&ids[0]).join("transcript.jsonl");
    let text = std::fs::read_to_string(&transcript).unwrap();
    let cut: Vec<&str> = text.lines().collect();
    std::fs::write(&transcript, format!("{}\n", cut[..cut.len() - 1].join("\n"))).unwrap();
    std::fs::remove_dir_all(directory(&ids[1])).unwrap();
    for id in &ids[..2] {
        let report = verify(&[id]);
        assert_eq!(report.code, 1, "{report:?}");
    }
    let all: serde_json::Value = serde_json::from_str(&verify(&["--all"]).stdout).unwrap();
    assert_eq!((&all["ok"], all["broken"].as_array().unwrap().len()), (&false.into(), 2), "{all}");
    assert_eq!(verify(&[&ids[2]]).code, 0);
    // A run that the log does not name is not called whole.
    std::fs::write(&log, "").unwrap();
    let unknown = verify(&[&ids[2]]);
    assert!(unknown.code == 1 && unknown.stderr.contains("the log does not tell"), "{unknown:?}");
}
