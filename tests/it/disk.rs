//! Fills the disk under a daemon: nothing may happen without its record, and the daemon must recover
//! by itself.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::support::{Place, skipped, wait_until};

const CONFIG: &str = "default_model: m
models: {m: {provider: scripted, script: s.yaml}}
security: {sandbox: off}
";
const JOBS: &str = "version: 1
jobs:
  - name: tick
    schedule: '* * * * * *'
    overlap: skip
    catchup_window: 1h
    prompt: x
    double_confirmation: false
    tools: {write: [mark]}
";

/// A state directory on a file system of 8 MiB; unmounted when dropped.
struct SmallDisk(Place);

impl SmallDisk {
    fn new() -> Option<Self> {
        let place = Place::new(&[
            ("config.yaml", CONFIG),
            ("s.yaml", "steps: [{call: {tool: mark}}, {say: done}]\n"),
            ("jobs.yaml", JOBS),
        ]);
        let root = place.path().display().to_string();
        place.write(
            "tools.yaml",
            &format!(
                "version: 1
tools:
  - {{name: mark, description: Marks, category: write, cmd: sh, args: [-c, 'echo \"$${{TMPDIR##*/}}\" >> {root}/made']}}
"
            ),
        );
        let state = place.state().display().to_string();
        let mounted = place.shell(&format!(
            "mkdir -p -m 700 {state} && mount -t tmpfs -o size=8m,mode=700 tmpfs {state}"
        ));
        if mounted.code != 0 {
            skipped("a full disk: only root can mount a file system");
            return None;
        }
        Some(Self(place))
    }

    fn fill(&self) {
        let full = self.0.state().join("full");
        let mut file = std::fs::File::create(full).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.state().join("full")).unwrap();
    }

    fn answer(&self, path: &str) -> String {
        let mut client = UnixStream::connect(self.0.state().join("control.sock")).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: dutyd\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.0.shell(&format!("umount -l {}", self.0.state().display()));
    }
}

fn ran(place: &Place) -> usize {
    let runs = place.json(&["runs", "--outcome", "succeeded", "--limit", "10000"]);
    runs.as_array().unwrap().len()
}

// proves STATE-4, LOG-6
#[test]
fn no_run_begins_on_a_full_disk_and_runs_begin_again_by_themselves() {
    let Some(disk) = SmallDisk::new() else { return };
    let place = &disk.0;
    place.write("config.yaml", &format!("{CONFIG}telemetry: {{log: {{level: debug}}}}\n"));
    let daemon = place.serve();
    wait_until(|| ran(place) >= 2, || place.log());
    assert!(disk.answer("/healthz").contains("200") && disk.answer("/readyz").contains("200"));
    disk.fill();
    let degraded = || place.json(&["status"])["degraded"].to_string();
    wait_until(|| degraded().contains("no run begins"), || place.log());
    assert!(disk.answer("/readyz").contains("503"), "{}", disk.answer("/readyz"));
    assert!(disk.answer("/healthz").contains("200"));
    let made = || std::fs::read_to_string(place.path().join("made")).unwrap();
    let before = made();
    // Five seconds pass between two attempts to write, and a slot comes due in each of them.
    const AGAIN: &str = "still cannot be written";
    wait_until(|| place.log().matches(AGAIN).count() >= 2, || place.log());
    assert_eq!(made(), before, "no effect without a record");
    let log = place.log();
    assert_eq!(log.matches("no run begins until it can").count(), 1, "one line for a fault: {log}");
    let is_quiet = |line: &str| !line.contains(AGAIN) || line.contains("DEBUG");
    assert!(log.lines().all(is_quiet), "{log}");
    disk.empty();
    wait_until(|| place.json(&["status"])["degraded"] == serde_json::json!([]), || place.log());
    assert!(disk.answer("/readyz").contains("200"));
    let after = ran(place);
    wait_until(|| ran(place) > after, || place.log());
    drop(daemon);
    // The next start ends the runs that could not write their end.
    drop(place.serve());
    let verified = place.json(&["verify", "--all"]);
    assert_eq!(verified["ok"], true, "{verified}");
    let audit = place.json(&["audit"]);
    assert_eq!(audit["ok"], true, "{audit}");
    // Each effect belongs to a run that has a record of it.
    for run_id in made().lines() {
        let shown = place.json(&["show", run_id]);
        let events = shown["events"].as_array().unwrap();
        let started = |event: &&Value| event["type"] == "tool_call_start";
        assert_eq!(events.iter().filter(started).count(), 1, "{run_id}");
    }
    let slots = place.json(&["slots", "tick"]);
    let states: Vec<&str> =
        slots.as_array().unwrap().iter().map(|slot| slot["state"].as_str().unwrap()).collect();
    let known = ["ran", "skipped", "coalesced", "missed"];
    assert!(states.iter().all(|state| known.contains(state)), "{states:?}");
}

// proves STATE-4
#[test]
fn a_run_that_fills_the_disk_makes_no_slot_of_another_job_missed() {
    let Some(disk) = SmallDisk::new() else { return };
    let place = &disk.0;
    place.write(
        "config.yaml",
        &CONFIG.replace("s.yaml}", "s.yaml}, hog: {provider: scripted, script: hog.yaml}"),
    );
    place.write("hog.yaml", "steps: [{call: {tool: fill}}, {say: done}]\n");
    place.write("jobs.yaml", &format!("{JOBS}  - {{name: hog, prompt: x, model: hog}}\n"));
    place.write(
        "tools.d/fill.yaml",
        "version: 1\ntools:\n  - {name: fill, description: Fills, category: read, cmd: sh, args: [-c, 'cat /dev/zero > $TMPDIR/full; sleep 600']}\n",
    );
    let _daemon = place.serve();
    wait_until(|| ran(place) >= 2, || place.log());
    for _ in 0..3 {
        let done = place.dutyd(&["run", "hog"]);
        assert_eq!(done.code, 1, "{done:?}");
    }
    wait_until(|| place.json(&["status"])["degraded"] == serde_json::json!([]), || place.log());
    let after = ran(place);
    wait_until(|| ran(place) > after, || place.log());
    let slots = place.json(&["slots", "tick"]);
    let is_missed = |slot: &&Value| slot["state"] == "missed";
    let missed: Vec<&Value> = slots.as_array().unwrap().iter().filter(is_missed).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

// proves STATE-4
#[test]
fn a_daemon_that_starts_on_a_full_disk_waits_for_room() {
    let Some(disk) = SmallDisk::new() else { return };
    let place = &disk.0;
    disk.fill();
    let daemon = place.serve_without_waiting();
    wait_until(|| place.log().contains("the daemon starts once it can"), || place.log());
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0), "{}", place.log());
    let daemon = place.serve_without_waiting();
    disk.empty();
    wait_until(|| place.dutyd(&["status"]).code == 0, || place.log());
    wait_until(|| ran(place) >= 1, || place.log());
    drop(daemon);
}

// proves STATE-4
#[test]
fn a_daemon_that_starts_on_a_read_only_disk_waits_until_it_can_write() {
    let Some(disk) = SmallDisk::new() else { return };
    let place = &disk.0;
    let remount = |how: &str| {
        let state = place.state().display().to_string();
        let done = place.shell(&format!("mount -o remount,{how} {state}"));
        assert_eq!(done.code, 0, "{done:?}");
    };
    remount("ro");
    let daemon = place.serve_without_waiting();
    wait_until(|| place.log().contains("the daemon starts once it can"), || place.log());
    remount("rw");
    wait_until(|| place.dutyd(&["status"]).code == 0, || place.log());
    wait_until(|| ran(place) >= 1, || place.log());
    drop(daemon);
    drop(place.serve());
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
}
