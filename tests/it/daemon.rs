//! Tests the daemon: slots, crashes, the control socket.

use std::io::{Read as _, Write as _};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Place, alive, is_asleep, wait_until};

const CONFIG: &str = "models: {offline: {provider: scripted, script: s.yaml}, slow: {provider: scripted, script: slow.yaml}}\ndefault_model: offline\nshutdown_grace: 5s\n";
const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: 'true'}
  - {name: hang, description: Hangs, category: write, cmd: sh, args: [-c, \"trap '' TERM; setsid sleep SECONDS & sleep SECONDS\"]}
";
const SCRIPT: &str = "steps: [{call: {tool: look}}, {say: done}]\n";
const SLOW: &str = "steps: [{call: {tool: hang}}, {say: done}]\n";

/// `seconds` distinguishes the sleeping processes of one test from those of another.
fn place(jobs: &str, seconds: &str) -> Place {
    let tools = TOOLS.replace("SECONDS", seconds);
    Place::new(&[
        ("config.yaml", CONFIG),
        ("tools.yaml", &tools),
        ("s.yaml", SCRIPT),
        ("slow.yaml", SLOW),
        ("jobs.yaml", jobs),
    ])
}

const EVERY_SECOND: &str = "version: 1
jobs:
  - {name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false}
  - {name: hand, prompt: x}
  - {name: stuck, prompt: x, model: slow, on_crash: fail, tools: {write: [hang]}}
";

fn slots(place: &Place) -> Vec<(String, String)> {
    let rows = place.json(&["slots", "tick"]);
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (row["due_at"].as_str().unwrap().to_owned(), row["state"].as_str().unwrap().to_owned())
        })
        .collect()
}

// proves CRON-1, STATE-1, STATE-2, PROC-2
#[test]
fn kill_minus_nine_loses_nothing_and_leaves_nothing() {
    let place = place(EVERY_SECOND, "7101.OWN");
    let daemon = place.serve();
    let second = place.dutyd(&["serve"]);
    assert!(second.code == 1 && second.stderr.contains("another daemon"), "{second:?}");
    assert_eq!(place.dutyd(&["run", "--detach", "stuck"]).code, 0);
    wait_until(|| alive("sleep 7101.OWN").len() >= 2 && slots(&place).len() >= 2, || place.log());
    assert!(!place.log().contains("orphaned"), "the first daemon had nothing to kill");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    assert_eq!(
        alive("sleep 7101.OWN"),
        [""; 0],
        "orphans of the dead daemon must be gone before the new one is ready"
    );
    let last = place.json(&["runs", "--job", "stuck"])[0].clone();
    assert_eq!(
        (&last["outcome"], &last["stop_reason"]),
        (&json!("interrupted"), &json!("interrupted"))
    );
    let verified = place.json(&["verify", last["run_id"].as_str().unwrap()]);
    assert_eq!(verified["ok"], true);
    let shown = place.dutyd(&["show", last["run_id"].as_str().unwrap()]).stdout;
    assert!(shown.contains("effect_unknown"), "{shown}");
    let before = slots(&place).len();
    wait_until(|| slots(&place).len() > before + 1, || place.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let audit = place.json(&["audit"]);
    assert_eq!(
        (&audit["ok"], &audit["holes"], &audit["extras"]),
        (&json!(true), &json!([]), &json!([])),
        "{audit}"
    );
    let all = slots(&place);
    let unique: std::collections::BTreeSet<_> = all.iter().map(|(due, _)| due).collect();
    assert_eq!(unique.len(), all.len());
    assert!(
        all.iter()
            .all(|(_, state)| ["ran", "skipped", "coalesced", "missed"].contains(&state.as_str())),
        "{all:?}"
    );
    assert!(
        place.json(&["runs"]).as_array().unwrap().iter().all(|run| run["outcome"] != Value::Null)
    );
}

// conforms 003-9.1f, 003-9.11e, 003-B16, 004-C16a
#[test]
fn runs_are_started_followed_and_cancelled_through_the_socket() {
    let place = place(EVERY_SECOND, "7102.OWN");
    let daemon = place.serve();
    let status = place.json(&["status"]);
    assert_eq!(
        (&status["config"]["valid"], &status["jobs"]["total"], &status["degraded"]),
        (&json!(true), &json!(3), &json!([]))
    );
    assert!(status["sandbox"].as_str().unwrap().starts_with("enforce, Landlock "), "{status}");
    let doctor = place.json(&["doctor"]);
    let of = |name: &str| {
        doctor["items"].as_array().unwrap().iter().find(|item| item["name"] == name).unwrap()
    };
    assert_eq!(of("permissions")["ok"], true, "{doctor}");
    assert!(of("unit")["detail"].as_str().unwrap().contains(&daemon.pid().to_string()), "{doctor}");
    let row = place.json(&["run", "hand"]);
    assert_eq!((&row["outcome"], &row["trigger"]), (&json!("succeeded"), &json!("manual")));
    let lines = place.dutyd(&["-o", "jsonl", "run", "hand"]).stdout;
    let events: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kept: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(kept, (0..kept.len() as u64).collect::<Vec<_>>());
    assert_eq!(events.last().unwrap()["type"], "session_end");
    assert_eq!(place.dutyd(&["run", "nope"]).code, 3);

    let run_id = place.json(&["run", "--detach", "stuck"])["run_id"].as_str().unwrap().to_owned();
    wait_until(|| is_asleep("7102.OWN"), || place.log());
    assert_eq!(place.dutyd(&["cancel", &run_id]).code, 0);
    wait_until(|| place.json(&["show", &run_id])["run"]["outcome"] == "cancelled", || place.log());
    assert_eq!(alive("sleep 7102.OWN"), [""; 0]);
    let shown = place.json(&["show", &run_id]);
    let last = shown["events"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["type"], &last["outcome"]),
        (&json!("session_end"), &json!("cancelled")),
        "{last}"
    );
    let late = place.dutyd(&["cancel", &run_id]);
    assert!(late.code == 1 && late.stderr.contains("has already ended"), "{late:?}");
    let jobs = place.json(&["jobs"]);
    let stuck = jobs.as_array().unwrap().iter().find(|job| job["name"] == "stuck").unwrap();
    assert_eq!(stuck["last_run"]["outcome"], "cancelled");
    assert_eq!(
        jobs.as_array().unwrap().iter().find(|job| job["name"] == "tick").unwrap()["paused"],
        false
    );
    drop(daemon);
}

// proves CFG-1
#[test]
fn a_wrong_file_never_stops_a_running_daemon() {
    let place = place(EVERY_SECOND, "7103.OWN");
    let daemon = place.serve();
    place.write("jobs.yaml", "version: 1\njobs:\n  - {name: tick, shedule: x}\n");
    daemon.signal(Signal::SIGHUP);
    wait_until(|| place.json(&["status"])["config"]["valid"] == false, || place.log());
    let status = place.json(&["status"]);
    assert!(status["config"]["errors"][0].as_str().unwrap().contains("jobs.yaml:3:"), "{status}");
    assert_eq!(status["jobs"]["total"], 3, "the old configuration stays in effect");
    let before = slots(&place).len();
    wait_until(|| slots(&place).len() > before + 1, || place.log());
    place.write("jobs.yaml", "version: 1\njobs:\n  - {name: other, every: 1h, prompt: x}\n");
    daemon.signal(Signal::SIGHUP);
    wait_until(|| place.json(&["status"])["jobs"]["total"] == 1, || place.log());
    assert_eq!(place.json(&["audit"])["ok"], true);
    assert_eq!(place.dutyd(&["serve"]).code, 1);
}

// proves CRON-7
#[test]
fn a_schedule_that_has_expired_stops_no_other_job() {
    let past = "  - {name: past, schedule: '0 0 0 1 1 * 2020', prompt: x}\n";
    let place = place(&format!("{EVERY_SECOND}{past}"), "7118.OWN");
    let warning = "`0 0 0 1 1 * 2020` has expired: it never comes due again";
    let validated = place.dutyd(&["validate"]);
    assert!(validated.stdout.contains(warning) || validated.stderr.contains(warning));
    let daemon = place.serve();
    let logged = || place.log().matches(warning).count();
    assert_eq!(logged(), 1, "{}", place.log());
    assert_eq!(place.dutyd(&["reload"]).code, 0);
    wait_until(|| logged() == 2, || place.log());
    wait_until(|| slots(&place).len() > 1, || place.log());
    let jobs = place.json(&["jobs"]);
    let job = jobs.as_array().unwrap().iter().find(|job| job["name"] == "past").unwrap();
    assert_eq!((&job["next_fire"], &job["enabled"]), (&Value::Null, &json!(true)));
    assert_eq!(place.json(&["slots", "past"]), json!([]));
    drop(daemon);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

// proves CRON-5
#[test]
fn a_job_that_still_runs_is_skipped_and_the_slot_says_so() {
    let jobs = "version: 1\njobs: [{name: tick, schedule: '* * * * * *', prompt: x, model: slow, tools: {write: [hang]}}]\n";
    let place = place(jobs, "7104.OWN");
    let daemon = place.serve();
    wait_until(
        || slots(&place).iter().filter(|(_, state)| state == "skipped").count() >= 2,
        || place.log(),
    );
    let states: Vec<String> = slots(&place).into_iter().map(|(_, state)| state).collect();
    assert_eq!(states.iter().filter(|state| *state == "running").count(), 1, "{states:?}");
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert_eq!(alive("sleep 7104.OWN"), [""; 0]);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

/// Returns the due time, the state and the run of each slot of the job `tick`.
fn slots_with_runs(place: &Place) -> Vec<(String, String, String)> {
    let rows = place.json(&["slots", "tick"]);
    let word = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| (word(row, "due_at"), word(row, "state"), word(row, "run_id"))).collect()
}

// proves CRON-1
#[test]
fn slots_that_wait_survive_kill_minus_nine_and_a_stop() {
    let jobs = "version: 1
jobs: [{name: tick, schedule: '* * * * * *', overlap: buffer_all, catchup: all, prompt: x, model: slow, tools: {write: [hang]}}]
";
    let place = place(jobs, "7108.OWN");
    let of = |state: &str| -> Vec<(String, String)> {
        let slots = slots_with_runs(&place).into_iter().filter(|slot| slot.1 == state);
        slots.map(|(due_at, _, run_id)| (due_at, run_id)).collect()
    };
    let daemon = place.serve();
    wait_until(|| of("queued").len() >= 3 && alive("sleep 7108.OWN").len() >= 2, || place.log());
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let waiting = of("queued");
    let daemon = place.serve();
    // The oldest slot that waited begins, under the id that it had.
    wait_until(|| of("running").first() == waiting.first(), || place.log());
    wait_until(|| alive("sleep 7108.OWN").len() >= 2, || place.log());
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let left = of("queued");
    assert!(waiting.iter().skip(1).all(|slot| left.contains(slot)), "{waiting:?} {left:?}");
    place.write("slow.yaml", SCRIPT);
    let daemon = place.serve();
    wait_until(|| left.iter().all(|slot| of("ran").contains(slot)), || place.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let slots = slots_with_runs(&place);
    let runs: std::collections::BTreeSet<_> = slots.iter().map(|(.., run_id)| run_id).collect();
    assert_eq!(runs.len(), slots.len(), "each slot has a run of its own: {slots:?}");
    assert_eq!(place.json(&["audit"])["ok"], true);
    assert_eq!(alive("sleep 7108.OWN"), [""; 0]);
}

/// Collects what the daemon tells systemd, until the daemon closes its socket or tells that it
/// stops.
fn notices(socket: std::os::unix::net::UnixDatagram) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut told = Vec::new();
        let mut bytes = [0; 1024];
        while !told.iter().any(|told: &String| told.starts_with("STOPPING=1")) {
            let length = socket.recv(&mut bytes).unwrap();
            told.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        told
    })
}

#[test]
fn systemd_is_told_what_the_daemon_does() {
    let place = place(EVERY_SECOND, "7112.OWN");
    let path = place.path().join("notify");
    let told = notices(std::os::unix::net::UnixDatagram::bind(&path).unwrap());
    let daemon = place.serve_notifying(&path);
    assert_eq!(place.dutyd(&["run", "--detach", "stuck"]).code, 0);
    wait_until(|| alive("sleep 7112.OWN").len() >= 2, || place.log());
    place.write("jobs.yaml", "broken");
    assert_eq!(place.dutyd(&["reload"]).code, 2);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0), "{}", place.log());
    let told = told.join().unwrap();
    let status: Vec<&str> =
        told.iter().filter_map(|told| told.trim_end().strip_prefix("STATUS=")).collect();
    assert!(status.iter().any(|line| line.starts_with("3 jobs (0 paused), ")), "{told:?}");
    assert!(status.iter().any(|line| line.contains(", 1 active and ")), "{told:?}");
    let degraded = "; degraded: the last reload failed";
    assert!(status.iter().any(|line| line.contains(degraded)), "{told:?}");
}

#[test]
fn a_storm_of_signals_is_one_orderly_stop() {
    // A run that the stop suspends has no outcome.
    let jobs = EVERY_SECOND.replace("prompt: x, double", "prompt: x, on_crash: fail, double");
    let place = place(&jobs, "7110.OWN");
    let path = place.path().join("notify");
    let told = notices(std::os::unix::net::UnixDatagram::bind(&path).unwrap());
    let daemon = place.serve_notifying(&path);
    assert_eq!(place.dutyd(&["run", "--detach", "stuck"]).code, 0);
    wait_until(|| alive("sleep 7110.OWN").len() >= 2, || place.log());
    for harmless in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGPIPE] {
        daemon.signal(harmless);
    }
    let loaded = || place.log().matches("configuration reloaded").count();
    daemon.signal(Signal::SIGHUP);
    wait_until(|| loaded() >= 1, || place.log());
    for _ in 0..50 {
        for signal in [
            Signal::SIGUSR1,
            Signal::SIGHUP,
            Signal::SIGPIPE,
            Signal::SIGTERM,
            Signal::SIGUSR2,
            Signal::SIGINT,
        ] {
            daemon.signal(signal);
        }
    }
    assert_eq!(daemon.wait(), Some(0), "{}", place.log());
    let mut told = told.join().unwrap();
    told.retain(|told| !told.starts_with("STATUS="));
    assert!(told[0].starts_with("READY=1"), "{told:?}");
    assert!(told[1].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{told:?}");
    assert!(told[2].starts_with("READY=1"), "{told:?}");
    assert_eq!(alive("sleep 7110.OWN"), [""; 0]);
    let runs = place.json(&["runs"]);
    assert!(runs.as_array().unwrap().iter().all(|run| run["outcome"] != Value::Null), "{runs}");
    assert_eq!(place.json(&["audit"])["ok"], true);
}

// proves CRON-5
#[test]
fn a_newer_slot_ends_the_run_before_it() {
    let jobs = "version: 1
jobs: [{name: tick, schedule: '*/4 * * * * *', overlap: cancel_other, prompt: x, model: slow, tools: {write: [hang]}}]
";
    let place = place(jobs, "7109.OWN");
    let daemon = place.serve();
    let ended = || -> Vec<Value> {
        let runs = place.json(&["runs", "--job", "tick"]);
        let runs = runs.as_array().unwrap().iter();
        runs.filter(|run| run["outcome"] == "cancelled").cloned().collect()
    };
    wait_until(|| !ended().is_empty(), || place.log());
    let states = || slots(&place).into_iter().map(|(_, state)| state).collect::<Vec<String>>();
    wait_until(|| states().last().is_some_and(|state| state == "running"), || place.log());
    let running = states().iter().filter(|state| *state == "running").count();
    assert!(running <= 1, "{:?}", states());
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert_eq!(alive("sleep 7109.OWN"), [""; 0]);
    assert_eq!(place.json(&["audit"])["ok"], true);
}

#[test]
fn a_newer_slot_kills_the_run_before_it_at_once() {
    let jobs = "version: 1
jobs: [{name: tick, schedule: '*/2 * * * * *', overlap: terminate_other, prompt: x, model: slow, tools: {write: [hang]}}]
";
    let place = place(jobs, "7111.OWN");
    let tools = std::fs::read_to_string(place.config().join("tools.yaml")).unwrap();
    let replaced = tools.replace("trap '' TERM;", "trap 'echo polite; exit' TERM;");
    assert_ne!(tools, replaced, "{tools}");
    place.write("tools.yaml", &replaced);
    let daemon = place.serve();
    let cancelled = || -> Vec<Value> {
        let runs = place.json(&["runs", "--job", "tick"]);
        let runs = runs.as_array().unwrap().iter();
        runs.filter(|run| run["outcome"] == "cancelled").cloned().collect()
    };
    let ends = |run: &Value| -> Vec<Value> {
        let shown = place.json(&["show", run["run_id"].as_str().unwrap()]);
        let events = shown["events"].as_array().unwrap().iter();
        events.filter(|event| event["type"] == "tool_call_end").cloned().collect()
    };
    let all_ends = || cancelled().iter().flat_map(ends).collect::<Vec<Value>>();
    wait_until(|| all_ends().len() >= 3, || place.log());
    for end in all_ends() {
        assert!(end["signal"] == 9 && end["output"] == "", "{end}");
    }
    let calls = place.json(&["show", cancelled()[0]["run_id"].as_str().unwrap()]);
    assert_eq!(calls["run"]["stop_reason"], "cancelled");
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert_eq!(alive("sleep 7111.OWN"), [""; 0]);
}

#[test]
fn a_log_that_nobody_reads_stops_no_slot() {
    let place = place(EVERY_SECOND, "7105.OWN");
    let (mut reader, mut full) = std::io::pipe().unwrap();
    let capacity = rustix::pipe::fcntl_getpipe_size(&full).unwrap();
    full.write_all(&vec![b'x'; capacity]).unwrap();
    let daemon = place.serve_onto(full);
    wait_until(
        || slots(&place).iter().filter(|(_, state)| state == "ran").count() >= 2,
        || format!("{:?}", slots(&place)),
    );
    assert_eq!(place.json(&["run", "hand"])["outcome"], "succeeded");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0), "shutdown must not wait for a reader either");
    let mut written = Vec::new();
    reader.read_to_end(&mut written).unwrap();
    assert_eq!(written, vec![b'x'; capacity]);
}

#[test]
fn a_reader_of_the_log_that_comes_late_gets_all_of_it() {
    let place = place(EVERY_SECOND, "7106.OWN");
    let (mut reader, mut full) = std::io::pipe().unwrap();
    let capacity = rustix::pipe::fcntl_getpipe_size(&full).unwrap();
    full.write_all(&vec![b'x'; capacity]).unwrap();
    let daemon = place.serve_onto(full);
    let late = std::thread::spawn(move || {
        let mut written = String::new();
        reader.read_to_string(&mut written).unwrap();
        written
    });
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let written = late.join().unwrap();
    let own: Vec<&str> = written.trim_start_matches('x').lines().collect();
    assert!(own.contains(&"ready"), "{own:?}");
    assert!(own.last().unwrap().contains("stopped"), "{own:?}");
}

/// A user can remove the lock file, but the daemon also locks the directory that contains it.
// proves STATE-2
#[test]
fn a_second_daemon_does_not_start_where_the_lock_file_was_removed() {
    let place = place("version: 1\njobs: [{name: hand, prompt: x}]\n", "1");
    let daemon = place.serve();
    std::fs::remove_file(place.state().join("lock")).unwrap();
    let second = place.dutyd(&["serve"]);
    assert!(second.code == 1 && second.stderr.contains("another daemon"), "{second:?}");
    assert_eq!(place.dutyd(&["status"]).code, 0, "the first daemon must still answer");
    // The daemon does not remove a socket that another process bound in the same place.
    let socket = place.state().join("control.sock");
    std::fs::remove_file(&socket).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert!(socket.exists());
    drop(other);
}

#[test]
fn signals_that_arrive_while_the_daemon_starts_wait_until_it_has() {
    use nix::sys::signal::Signal;
    // Reading the files takes a while.
    let jobs: String = (0..1000).map(|n| format!("  - {{name: j{n}, prompt: x}}\n")).collect();
    let place = Place::new(&[
        ("config.yaml", "models: {m: {provider: scripted, script: s.yaml}}\n"),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", &format!("version: 1\njobs:\n{jobs}")),
    ]);
    let daemon = place.serve_without_waiting();
    wait_until(|| place.state().exists(), || place.log());
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGPIPE, Signal::SIGHUP] {
        daemon.signal(signal);
    }
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0), "{}", place.log());
}
