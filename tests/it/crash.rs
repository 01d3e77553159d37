//! Kills the daemon with SIGKILL at every line of a transcript and at random instants, and checks
//! after each start that nothing was lost, doubled or left behind.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Daemon, Place, alive, wait_until};

const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: 'true'}
  - name: mark
    description: Appends the id of its call to a file
    category: write
    cmd: sh
    args: [-c, 'printf \"%s %s\\n\" \"$${TMPDIR##*/}\" \"$1\" >> ROOT/made', sh, '{{id}}']
    parameters: {id: {type: string, enum: [a, b]}}
  - name: late
    description: Appends the id of its run to a file, a moment after its child was started
    category: write
    cmd: sh
    args: [-c, '(sleep 0.3; echo \"$${TMPDIR##*/}\" >> ROOT/late) & wait']
    probe:
      args: [-c, 'touch ROOT/late; grep -qx \"$${TMPDIR##*/}\" ROOT/late']
      done_when: {exit_code: 0}
";
const SCRIPT: &str = "steps:
  - call: [{tool: look}, {tool: look}]
  - call: {tool: mark, args: {id: a}}
  - call: [{tool: look}, {tool: mark, args: {id: b}}, {tool: look}]
  - say: done
";
const CONFIG: &str = "default_model: m
models: {m: {provider: scripted, script: s.yaml}, looks: {provider: scripted, script: looks.yaml}, lates: {provider: scripted, script: lates.yaml}}
security: {sandbox: off}
shutdown_grace: 5s
";

fn place(jobs: &str) -> Place {
    let place = Place::new(&[
        ("config.yaml", CONFIG),
        ("s.yaml", SCRIPT),
        ("looks.yaml", "steps: [{call: {tool: look}}, {call: {tool: look}}]\n"),
        ("lates.yaml", "steps: [{call: {tool: late}}, {say: done}]\n"),
        ("jobs.yaml", jobs),
    ]);
    let root = place.path().display().to_string();
    place.write("tools.yaml", &TOOLS.replace("ROOT", &root));
    place
}

/// Returns how often each call was made, by run and call.
fn made(place: &Place) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(place.path().join("made")).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// Checks that no call of a run was made twice, and that each call with a good result was made.
fn check_calls(place: &Place, run_id: &str) {
    let counts = made(place);
    let shown = place.json(&["show", run_id]);
    let of_type = |kind: &str| -> Vec<Value> {
        let events = shown["events"].as_array().unwrap().iter();
        events.filter(|event| event["type"] == kind && event["name"] == "mark").cloned().collect()
    };
    for end in of_type("tool_call_end") {
        let start =
            of_type("tool_call_start").into_iter().find(|of| of["call_id"] == end["call_id"]);
        let id = start.unwrap()["arguments"]["id"].as_str().unwrap().to_owned();
        let count = counts.get(&format!("{run_id} {id}")).copied().unwrap_or(0);
        if end["is_error"].as_bool().unwrap() {
            assert!(end["error_kind"] == "interrupted" && count <= 1, "{count}: {end}")
        } else {
            assert_eq!(count, 1, "{end}")
        }
    }
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
}

/// Checks that no process of this place is left. Call it while no daemon runs.
fn check_processes(place: &Place) {
    let left = || alive(&place.path().display().to_string());
    wait_until(|| left().is_empty(), || format!("{:?}", left()));
}

/// The recorded calls of a run that have a result: id and output.
type Results = BTreeMap<String, String>;

fn results(place: &Place, run_id: &str) -> Results {
    let shown = place.dutyd(&["-o", "json", "show", run_id]).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
    let events = shown["events"].as_array().cloned().unwrap_or_default().into_iter();
    let ends = events.filter(|event| event["type"] == "tool_call_end");
    ends.map(|end| (end["call_id"].to_string(), end.to_string())).collect()
}

fn check_record(place: &Place) {
    let verified = place.json(&["verify", "--all"]);
    assert_eq!(verified["ok"], true, "{verified}");
    let audit = place.json(&["audit"]);
    assert_eq!(audit["ok"], true, "{audit}\n{}", place.log());
}

// proves STATE-1, LOG-1
#[test]
fn a_kill_after_any_line_repeats_no_call_and_loses_none() {
    let place = place(
        "version: 1\njobs: [{name: j, prompt: x, precheck: {tool: look, run_when: {matches: ''}}, tools: {write: [mark]}}]\n",
    );
    let mut resumed = 0;
    for line in 0.. {
        let daemon = place.serve_with("DUTYD_FAULTS", &format!("kill_after_line={line}"));
        let run_id = place.dutyd(&["trigger", "j"]).stdout.trim().to_owned();
        let pid = daemon.pid().to_string();
        // While the daemon dies, there may be no answer.
        let has_ended = || {
            let shown = place.dutyd(&["-o", "json", "show", &run_id]).stdout;
            let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
            shown["run"]["outcome"] == "succeeded"
        };
        let is_dead = || !std::path::Path::new("/proc").join(&pid).join("exe").exists();
        wait_until(|| is_dead() || has_ended(), || place.log());
        let survived = !is_dead();
        drop(daemon);
        if survived {
            // The run has fewer lines.
            break;
        }
        let before = results(&place, &run_id);
        let daemon = place.serve();
        wait_until(has_ended, || format!("killed after line {line}\n{}", place.log()));
        check_calls(&place, &run_id);
        let shown = place.json(&["show", &run_id]);
        let events = shown["events"].as_array().unwrap();
        resumed += events.iter().filter(|event| event["type"] == "session_resumed").count();
        let after = results(&place, &run_id);
        assert!(before.iter().all(|(id, end)| after.get(id) == Some(end)), "{before:?} {after:?}");
        drop(daemon);
        check_record(&place);
        check_processes(&place);
    }
    assert!(resumed > 25, "{resumed}");
}

/// Kills the daemon this often at random instants; `scripts/crash` sets another number.
fn kills() -> usize {
    std::env::var("DUTYD_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(30)
}

/// Kills the daemon; every third time with its fork server and all its shims, none of which can act in
/// between.
fn kill(daemon: Daemon, random: &mut fastrand::Rng) {
    let mut pids = vec![daemon.pid()];
    if random.u8(0..3) == 0 {
        let processes = processes();
        let mut below = vec![daemon.pid()];
        while let Some(parent) = below.pop() {
            let children = processes.iter().filter(|(_, of, _)| *of == parent);
            below.extend(children.clone().map(|(pid, ..)| *pid));
            pids.extend(children.filter(|(.., is_ours)| *is_ours).map(|(pid, ..)| *pid));
        }
    }
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for pid in &pids {
            // A shim may have ended.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), signal);
        }
    }
    daemon.wait();
}

/// Returns the pid and the parent of each process, and whether it is a fork server or a shim.
fn processes() -> Vec<(i32, i32, bool)> {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (head, rest) = stat.rsplit_once(')')?;
            let (pid, name) = head.split_once(" (")?;
            let parent = rest.split_whitespace().nth(1)?;
            Some((pid.parse().ok()?, parent.parse().ok()?, name.starts_with("dutyd:")))
        })
        .collect()
}

/// Checks that no effect followed a probe that said "not done", and that none happened twice.
#[expect(clippy::print_stdout, reason = "the number belongs in the report of `scripts/crash`")]
fn check_probes(place: &Place, run_ids: &[&str]) {
    let late = std::fs::read_to_string(place.path().join("late")).unwrap_or_default();
    let mut probes = 0;
    for run_id in run_ids {
        let effects = late.lines().filter(|line| line == run_id).count();
        assert!(effects <= 1, "{run_id} took effect {effects} times");
        let shown = place.json(&["show", run_id]);
        let events = shown["events"].as_array().unwrap().iter();
        for probe in events.filter(|event| event["type"] == "probe") {
            probes += 1;
            if let Some(done) = probe["done"].as_bool() {
                assert_eq!(effects, usize::from(done), "an effect followed its probe: {probe}");
            }
        }
    }
    println!("{probes} probes");
}

/// Returns the number of slots that are not decided yet.
fn slots_left(place: &Place) -> usize {
    let slots = place.json(&["slots"]);
    let is_open = |slot: &&Value| slot["state"] == "queued" || slot["state"] == "running";
    slots.as_array().unwrap().iter().filter(is_open).count()
}

// proves CRON-1, STATE-1
#[test]
fn kills_at_random_instants_lose_and_double_no_slot() {
    let place = place(
        "version: 1
jobs:
  - {name: tick, schedule: '* * * * * *', overlap: buffer_all, catchup: all, prompt: x, tools: {write: [mark]}}
  - {name: other, schedule: '*/2 * * * * *', overlap: buffer_all, catchup: all, prompt: x, tools: {write: [mark]}}
  - {name: lates, schedule: '*/2 * * * * *', overlap: buffer_all, catchup: all, model: lates, prompt: x, tools: {write: [late]}}
  - {name: fails, schedule: '*/2 * * * * *', overlap: buffer_all, catchup: all, retry: {max_attempts: 2, backoff: 1s}, limits: {max_iterations: 1}, model: looks, prompt: x}
",
    );
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..kills() {
        let daemon = place.serve();
        // A run that was killed before its first line counts as broken until the next start. The end
        // of the test verifies the older records too.
        let verified = place.json(&["verify", "--all", "--since", "2m"]);
        assert_eq!(verified["broken"], serde_json::json!([]), "{verified}");
        std::thread::sleep(std::time::Duration::from_millis(random.u64(0..1200)));
        kill(daemon, &mut random);
        assert!(made(&place).values().all(|count| *count == 1), "{:?}", made(&place));
    }
    let daemon = place.serve();
    for job in ["tick", "other", "lates", "fails"] {
        assert_eq!(place.dutyd(&["pause", job]).code, 0);
    }
    // A slot that waits for its next attempt is `queued`.
    let mut left = slots_left(&place);
    while left > 0 {
        // Each attempt takes a second, so wait as long as there is progress.
        wait_until(|| slots_left(&place) < left, || place.log());
        left = slots_left(&place);
    }
    drop(daemon);
    check_record(&place);
    let slots = place.json(&["slots"]);
    let slots: Vec<&Value> =
        slots.as_array().unwrap().iter().filter(|slot| slot["state"] != "paused").collect();
    assert!(slots.iter().all(|slot| slot["state"] == "ran"), "{slots:?}");
    let mut runs: Vec<&str> = slots.iter().map(|slot| slot["run_id"].as_str().unwrap()).collect();
    for run_id in &runs {
        check_calls(&place, run_id);
        let run = place.json(&["show", run_id])["run"].clone();
        let outcome = run["outcome"].as_str().unwrap();
        // A run that the daemon's death cut off four times ends as interrupted.
        let expected = if run["job"] == "fails" { "failed" } else { "succeeded" };
        assert!([expected, "interrupted"].contains(&outcome), "{run}");
        let attempts = if run["job"] == "fails" { 2 } else { 1 };
        assert!(run["attempt"] == attempts || outcome == "interrupted", "{run}");
    }
    let all = place.json(&["runs", "--job", "fails", "--limit", "100000"]);
    let attempts = all
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["scheduled_for"].to_string(), run["attempt"].to_string()));
    let mut attempts: Vec<_> = attempts.collect();
    attempts.sort();
    assert!(attempts.windows(2).all(|two| two[0] != two[1]), "made twice: {attempts:?}");
    check_probes(&place, &runs);
    let count = runs.len();
    runs.sort_unstable();
    runs.dedup();
    assert_eq!(runs.len(), count, "each slot has its own run");
    check_processes(&place);
}

// proves STATE-1
#[test]
fn a_kill_in_apply_repeats_no_step() {
    let place = place(
        "version: 1\njobs: [{name: j, mode: plan, prompt: x, double_confirmation: false, tools: {write: [mark]}}]\n",
    );
    for line in 0.. {
        assert_eq!(place.dutyd(&["run", "j"]).code, 0);
        let mut apply = place.command(&["apply", "last", "--yes"]);
        apply.env("DUTYD_FAULTS", format!("kill_after_line={line}"));
        let done = apply.output().unwrap();
        if done.status.signal() != Some(9) {
            assert!(done.status.success(), "{done:?}");
            break;
        }
        let before = made(&place);
        let daemon = place.serve();
        drop(daemon);
        // A step whose effect is unknown is not made again; the others may be.
        place.dutyd(&["apply", "last", "--yes"]);
        let after = made(&place);
        assert!(after.values().all(|count| *count == 1), "line {line}: {before:?} {after:?}");
        place.dutyd(&["discard", "last"]);
        check_record(&place);
    }
}
