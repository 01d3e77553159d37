//! Tests that a run continues after the daemon died or was stopped.

use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Daemon, Place, alive, is_asleep, wait_until};

const CONFIG: &str = "default_model: m
models: {m: {provider: scripted, script: s.yaml}}
shutdown_grace: 1s
security: {sandbox: off}
";
/// Each tool hangs when it runs first, and ends at once when it runs again.
const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: sh, args: [-c, 'echo look >> ROOT/made; if [ -e ROOT/again ]; then echo second; else echo first; exec sleep NUMBER; fi']}
  - name: change
    description: Changes
    category: write
    cmd: sh
    args: [-c, 'echo change >> ROOT/made; [ -e ROOT/again ] || exec sleep NUMBER']
    PROBE
";
const JOBS: &str = "version: 1
jobs:
  - name: NAME
    prompt: x
    double_confirmation: false
    tools: {write: [change]}
    KEYS: KEYS
";

const PROBE: &str = "probe:
      args: [-c, 'cat ROOT/says; [ -s ROOT/says ]']
      done_when: {matches: '^it is there'}
      not_done_when: {matches: '^it is missing', exit_code: 0}
";

/// A job with one call, which hangs. `number` tells its process from those of other tests.
fn place(tool: &str, number: &str, keys: &str) -> Place {
    place_with(tool, number, keys, "")
}

fn place_with(tool: &str, number: &str, keys: &str, probe: &str) -> Place {
    let place = Place::new(&[("config.yaml", CONFIG)]);
    let root = place.path().display().to_string();
    let tools = TOOLS.replace("PROBE", probe).replace("ROOT", &root).replace("NUMBER", number);
    place.write("tools.yaml", &tools);
    let script = format!(
        "steps: [{{call: {{tool: {tool}}}}}, {{say: 'the answer was {{{{ results[0] }}}}'}}]\n"
    );
    place.write("s.yaml", &script);
    place.write("jobs.yaml", &JOBS.replace("NAME", "j").replace("KEYS: KEYS", keys));
    place
}

/// Starts the run and waits until its call hangs.
fn hang(place: &Place, number: &str) -> (Daemon, String) {
    let daemon = place.serve();
    let run_id = place.dutyd(&["trigger", "j"]).stdout.trim().to_owned();
    wait_until(|| is_asleep(number), || place.log());
    (daemon, run_id)
}

fn end_of(place: &Place, run_id: &str) -> Value {
    let run = || place.json(&["show", run_id])["run"].clone();
    wait_until(|| !run()["outcome"].is_null(), || place.log());
    let verified = place.json(&["verify", run_id]);
    assert_eq!((&verified["ok"], &verified["head"]), (&json!(true), &json!("match")));
    run()
}

fn events(place: &Place, run_id: &str, kind: &str) -> Vec<Value> {
    let shown = place.json(&["show", run_id]);
    let events = shown["events"].as_array().unwrap().iter();
    events.filter(|event| event["type"] == kind).cloned().collect()
}

fn made(place: &Place) -> String {
    std::fs::read_to_string(place.path().join("made")).unwrap()
}

fn let_it_end(place: &Place) {
    std::fs::write(place.path().join("again"), "").unwrap();
}

/// Runs a write call with a probe, whose answer is `says`, over a crash; returns the run.
fn probed(number: &str, says: &str) -> (Place, String) {
    let place = place_with("change", number, "description: d", PROBE);
    std::fs::write(place.path().join("says"), says).unwrap();
    let (daemon, run_id) = hang(&place, number);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    end_of(&place, &run_id);
    drop(daemon);
    assert_eq!(made(&place), "change\n", "a probe is not the call");
    (place, run_id)
}

// proves STATE-1
#[test]
fn a_probe_tells_whether_the_call_took_effect() {
    let cases = [
        ("7311.OWN", "it is there\n", json!(true), "done: ", Value::Null),
        ("7312.OWN", "it is missing\n", json!(false), "not done: ", json!("interrupted")),
        ("7313.OWN", "what?\n", Value::Null, "dutyd stopped", json!("interrupted")),
        ("7314.OWN", "", Value::Null, "dutyd stopped", json!("interrupted")),
    ];
    for (number, says, done, begins, error_kind) in cases {
        let (place, run_id) = probed(number, says);
        let [probe] = events(&place, &run_id, "probe").try_into().unwrap();
        assert_eq!((&probe["done"], &probe["output"]), (&done, &json!(says)), "{says}");
        let [end] = events(&place, &run_id, "tool_call_end").try_into().unwrap();
        assert_eq!(end["error_kind"], error_kind, "{says}");
        let output = end["output"].as_str().unwrap();
        assert!(output.starts_with(begins), "{output}");
        assert!(output.contains(says.trim()), "{output}");
    }
}

/// Kills a daemon, its fork server and all their shims, none of which can act in between.
fn kill_at_once(place: &Place, daemon: Daemon) {
    let (pid, server) = (daemon.pid(), fork_server_of(&daemon));
    let shims = format!("set -- {server} $(pgrep -P {server})");
    let script = format!("{shims} && kill -STOP $@ && kill -9 {pid} $@");
    let killed = place.shell(&script);
    assert_eq!(killed.code, 0, "{killed:?}");
    daemon.wait();
}

// proves PROC-11, STATE-1
#[test]
fn no_effect_follows_the_probe_when_the_daemon_and_its_shims_are_killed_at_once() {
    let place = place_with("change", "7341.OWN", "description: d", PROBE);
    std::fs::write(place.path().join("says"), "it is missing\n").unwrap();
    let root = place.path().display().to_string();
    let tools = std::fs::read_to_string(place.config().join("tools.yaml")).unwrap();
    // Only its mark tells of which run this process is: it leaves environment, session and parent.
    let hidden = format!(
        "env -i PATH=$PATH setsid sh -c \"sleep 7342.OWN; echo late >> {root}/made\" & echo change"
    );
    let tools = tools.replace("'echo change", &format!("'{hidden}"));
    place.write("tools.yaml", &tools);
    let (daemon, run_id) = hang(&place, "7341.OWN");
    wait_until(|| is_asleep("7342.OWN"), || place.log());
    kill_at_once(&place, daemon);
    let daemon = place.serve();
    assert!(alive("sleep 7342.OWN").is_empty(), "{}", place.log());
    assert!(alive("sleep 7341.OWN").is_empty(), "{}", place.log());
    assert!(place.log().contains("killed an orphaned process"), "{}", place.log());
    end_of(&place, &run_id);
    let [resumed] = events(&place, &run_id, "session_resumed").try_into().unwrap();
    assert!(resumed["killed"].as_u64().unwrap() >= 1, "{resumed}");
    assert_eq!(made(&place), "change\n");
    drop(daemon);
}

// proves STATE-1
#[test]
fn a_probe_that_cannot_tell_leaves_the_effect_unknown() {
    let cases = [("7331.OWN", "kill -9 $$", false), ("7332.OWN", "echo it is there", true)];
    for (number, body, is_gone) in cases {
        let probe = PROBE.replace("cat ROOT/says; [ -s ROOT/says ]", body);
        let place = place_with("change", number, "description: d", &probe);
        let program = place.path().join("program");
        std::fs::copy("/bin/sh", &program).unwrap();
        let tools = std::fs::read_to_string(place.config().join("tools.yaml")).unwrap();
        let at = program.display();
        let tools = tools.replace("write\n    cmd: sh", &format!("write\n    cmd: {at}"));
        place.write("tools.yaml", &tools);
        let (daemon, run_id) = hang(&place, number);
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        if is_gone {
            std::fs::remove_file(program).unwrap();
        }
        let daemon = place.serve();
        assert_eq!(end_of(&place, &run_id)["outcome"], "succeeded");
        let [probe] = events(&place, &run_id, "probe").try_into().unwrap();
        assert_eq!(probe["done"], Value::Null, "{body}");
        let [end] = events(&place, &run_id, "tool_call_end").try_into().unwrap();
        assert_eq!(end["error_kind"], "interrupted", "{body}");
        assert!(end["output"].as_str().unwrap().contains("its effect is unknown"), "{end}");
        assert_eq!(made(&place), "change\n", "{body}");
        drop(daemon);
    }
}

// proves STATE-1
#[test]
fn a_probe_that_a_stop_cuts_off_runs_again() {
    let body = "[ -e ROOT/again ] && echo it is there || exec sleep 7333.OWN";
    let probe = PROBE.replace("cat ROOT/says; [ -s ROOT/says ]", body);
    let place = place_with("change", "7334.OWN", "description: d", &probe);
    let (daemon, run_id) = hang(&place, "7334.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    wait_until(|| is_asleep("7333.OWN"), || place.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert!(alive("sleep 7333.OWN").is_empty(), "the probe ended with the daemon");
    assert!(events(&place, &run_id, "tool_call_end").is_empty(), "the call has no result yet");
    let_it_end(&place);
    let daemon = place.serve();
    assert_eq!(end_of(&place, &run_id)["outcome"], "succeeded");
    let [end] = events(&place, &run_id, "tool_call_end").try_into().unwrap();
    assert!(end["output"].as_str().unwrap().starts_with("done: "), "{end}");
    assert_eq!(made(&place), "change\n");
    drop(daemon);
}

// proves STATE-1
#[test]
fn a_write_call_that_was_cut_off_is_not_made_again() {
    let place = place("change", "7301.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7301.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let_it_end(&place);
    let daemon = place.serve();
    let run = end_of(&place, &run_id);
    assert_eq!((&run["outcome"], &run["trigger"]), (&json!("succeeded"), &json!("manual")));
    assert_eq!(made(&place), "change\n");
    let [end] = events(&place, &run_id, "tool_call_end").try_into().unwrap();
    assert_eq!((&end["error_kind"], &end["is_error"]), (&json!("interrupted"), &json!(true)));
    assert!(run["result"].as_str().unwrap().contains("its effect is unknown"), "{run}");
    let [resumed] = events(&place, &run_id, "session_resumed").try_into().unwrap();
    assert_eq!(resumed["count"], 1);
    assert_eq!(resumed["seq"], resumed["from_seq"]);
    assert!(alive("sleep 7301.OWN").is_empty());
    drop(daemon);
}

#[test]
fn a_read_call_that_was_cut_off_is_made_again() {
    let place = place("look", "7302.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7302.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let_it_end(&place);
    // The run keeps the configuration with which it began.
    place.write("s.yaml", "steps: [{say: 'another script'}]\n");
    let daemon = place.serve();
    let run = end_of(&place, &run_id);
    assert_eq!(run["result"], "the answer was second\n");
    assert_eq!(made(&place), "look\nlook\n");
    assert_eq!(events(&place, &run_id, "tool_call_start").len(), 2);
    let [end] = events(&place, &run_id, "tool_call_end").try_into().unwrap();
    assert_eq!(end["output"], "second\n");
    drop(daemon);
}

// conforms 003-B14
#[test]
fn a_stop_suspends_a_run_until_the_next_start() {
    let place = place("look", "7303.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7303.OWN");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    assert!(alive("sleep 7303.OWN").is_empty(), "the tool ended with the daemon");
    let shown = place.json(&["show", &run_id]);
    assert_eq!(shown["run"]["outcome"], Value::Null);
    let last = shown["events"].as_array().unwrap().last().unwrap();
    assert_eq!(last["type"], "session_suspended");
    assert!(events(&place, &run_id, "tool_call_end").is_empty(), "the cut call has no result");
    assert_eq!(place.json(&["verify", &run_id])["ok"], true);
    let_it_end(&place);
    let daemon = place.serve();
    assert_eq!(end_of(&place, &run_id)["result"], "the answer was second\n");
    let [resumed] = events(&place, &run_id, "session_resumed").try_into().unwrap();
    assert_eq!(resumed["from_seq"].as_u64().unwrap(), last["seq"].as_u64().unwrap() + 1);
    drop(daemon);
}

#[test]
fn a_run_that_may_not_continue_is_interrupted_and_says_why() {
    let cases = [
        ("7304.OWN", "on_crash: fail", "on_crash is `fail`"),
        ("7305.OWN", "catchup_window: 1s", "longer than `catchup_window` (1s)"),
    ];
    for (number, keys, why) in cases {
        let place = place("change", number, keys);
        let (daemon, run_id) = hang(&place, number);
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        // The downtime is longer than a second once the last line is older than that.
        let shown = place.json(&["show", &run_id]);
        let last = shown["events"].as_array().unwrap().last().unwrap()["ts"].as_str().unwrap();
        let last: chrono::DateTime<chrono::Utc> = last.parse().unwrap();
        let is_old = || chrono::Utc::now() - last > chrono::TimeDelta::milliseconds(1100);
        wait_until(is_old, || place.log());
        let daemon = place.serve();
        let run = end_of(&place, &run_id);
        assert_eq!(run["outcome"], "interrupted");
        assert!(run["error"].as_str().unwrap().contains(why), "{run}");
        assert_eq!(made(&place), "change\n");
        drop(daemon);
    }
}

#[test]
fn a_run_whose_configuration_is_gone_is_interrupted() {
    let place = place("change", "7306.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7306.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let configs = place.state().join("configs");
    for file in std::fs::read_dir(configs).unwrap() {
        std::fs::write(file.unwrap().path(), r#"{"directory":"/x","files":{}}"#).unwrap();
    }
    let daemon = place.serve();
    let run = end_of(&place, &run_id);
    assert_eq!(run["outcome"], "interrupted");
    let error = run["error"].as_str().unwrap();
    assert!(error.contains("its configuration cannot be loaded"), "{error}");
    drop(daemon);
}

#[test]
fn a_run_whose_secret_is_gone_is_interrupted() {
    let place = place("change", "7335.OWN", "description: d");
    let secret = place.path().join("secret");
    std::fs::write(&secret, "opaque-value-7335").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let tools = std::fs::read_to_string(place.config().join("tools.yaml")).unwrap();
    let with_secret = format!("{tools}    env: {{TOKEN: '${{file:{}}}'}}\n", secret.display());
    place.write("tools.yaml", &with_secret);
    let (daemon, run_id) = hang(&place, "7335.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    std::fs::remove_file(&secret).unwrap();
    // The daemon starts, because the configuration of today does not name the secret.
    place.write("tools.yaml", &tools);
    let daemon = place.serve();
    let run = end_of(&place, &run_id);
    assert_eq!(run["outcome"], "interrupted");
    let error = run["error"].as_str().unwrap();
    assert!(error.contains("its configuration cannot be loaded"), "{error}");
    assert!(error.contains(&secret.display().to_string()), "{error}");
    assert_eq!(made(&place), "change\n");
    drop(daemon);
}

#[test]
fn a_run_is_resumed_three_times_at_most() {
    let place = place("look", "7307.OWN", "description: d");
    let (mut daemon, run_id) = hang(&place, "7307.OWN");
    for count in 1..=3 {
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        daemon = place.serve();
        let is_back = || events(&place, &run_id, "tool_call_start").len() == count + 1;
        wait_until(is_back, || place.log());
    }
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    let run = end_of(&place, &run_id);
    assert_eq!(run["outcome"], "interrupted");
    assert!(run["error"].as_str().unwrap().contains("already resumed 3 times"), "{run}");
    drop(daemon);
}

#[test]
fn a_run_that_continues_can_be_cancelled() {
    let place = place("look", "7308.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7308.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    let is_back = || events(&place, &run_id, "tool_call_start").len() == 2;
    wait_until(is_back, || place.log());
    assert_eq!(place.dutyd(&["cancel", &run_id]).code, 0);
    assert_eq!(end_of(&place, &run_id)["outcome"], "cancelled");
    drop(daemon);
}

/// Leaves a hung run of `other`, then one of `j`, to a daemon that runs only one of them at a time.
fn daemon_with_a_run_that_waits_to_continue(place: &Place, number: &str) -> Daemon {
    let jobs = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap();
    place.write("jobs.yaml", &format!("{jobs}  - {{name: other, prompt: x}}\n"));
    let daemon = place.serve();
    let hung = || alive(&format!("sleep {number}")).len();
    assert_eq!(place.dutyd(&["trigger", "other"]).code, 0);
    wait_until(|| hung() == 1, || place.log());
    std::fs::write(place.path().join("first"), "").unwrap();
    assert_eq!(place.dutyd(&["trigger", "j"]).code, 0);
    wait_until(|| hung() == 2, || place.log());
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    place.write("config.yaml", &format!("{CONFIG}max_concurrent_runs: 1\n"));
    let daemon = place.serve();
    wait_until(|| hung() == 1, || place.log());
    daemon
}

/// Returns the id of the newest run of `j`.
fn last_of_j(place: &Place) -> String {
    let runs = place.json(&["runs", "--job", "j"]);
    runs[0]["run_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_that_waits_to_continue_can_be_cancelled() {
    let place = place("look", "7338.OWN", "description: d");
    let daemon = daemon_with_a_run_that_waits_to_continue(&place, "7338.OWN");
    let run_id = last_of_j(&place);
    assert_eq!(place.dutyd(&["cancel", &run_id]).code, 0);
    let run = end_of(&place, &run_id);
    assert_eq!((&run["outcome"], &run["error"]), (&json!("cancelled"), &Value::Null));
    let [end] = events(&place, &run_id, "session_end").try_into().unwrap();
    assert!(end["by"]["user"].is_string(), "{end}");
    assert_eq!(made(&place).lines().count(), 3, "the call of `other` is made again");
    drop(daemon);
}

// proves CRON-5
#[test]
fn a_newer_run_cancels_an_attempt_that_waits_to_continue() {
    let keys = "retry: {max_attempts: 2, backoff: 1s}\n    limits: {max_iterations: 1}";
    let place = place("look", "7339.OWN", keys);
    let root = place.path().display().to_string();
    // The first attempt of `j` removes the file and fails at its limit; the other calls hang. The
    // variable keeps the shell from looking like the `sleep` that it becomes.
    place.write(
        "tools.yaml",
        &format!("version: 1\ntools: [{{name: look, description: Looks, category: read, cmd: sh, args: [-c, 'n=7339.OWN; rm {root}/first || exec sleep $n']}}]\n"),
    );
    let jobs = JOBS.replace("NAME", "j").replace("    tools: {write: [change]}\n", "");
    place.write("jobs.yaml", &jobs.replace("KEYS: KEYS", keys));
    let daemon = daemon_with_a_run_that_waits_to_continue(&place, "7339.OWN");
    let run_id = last_of_j(&place);
    let run = || place.json(&["show", &run_id])["run"].clone();
    assert_eq!((&run()["attempt"], &run()["outcome"]), (&json!(2), &Value::Null));
    let keys = format!("{keys}\n    schedule: '* * * * * *'\n    overlap: cancel_other");
    place.write("jobs.yaml", &jobs.replace("KEYS: KEYS", &keys));
    wait_until(|| run()["outcome"] == "cancelled", || format!("{}\n{}", run(), place.log()));
    drop(daemon);
}

/// Returns the lines with the hashes that belong to them.
fn rehashed(lines: &[Value]) -> String {
    use sha2::{Digest as _, Sha256};
    let (mut prev, mut text) = ("0".repeat(64), String::new());
    for line in lines {
        let mut line = line.clone();
        line["prev"] = prev.into();
        let line = line.to_string();
        prev = hex::encode(Sha256::digest(&line));
        text += &format!("{line}\n");
    }
    text
}

// proves STATE-7
#[test]
fn a_planned_run_whose_mode_cannot_be_read_does_not_continue() {
    let modes = [("7341.OWN", None), ("7342.OWN", Some("rehearse"))];
    for (number, mode) in modes {
        let place = place("look", number, "description: d");
        let script =
            "steps: [{call: {tool: look}}, {call: {tool: change}}, {say: done}]\n".to_owned();
        place.write("s.yaml", &script);
        let daemon = place.serve();
        let started = place.json(&["run", "j", "--plan", "--detach"]);
        let run_id = started["run_id"].as_str().unwrap().to_owned();
        let has_looked =
            || std::fs::read(place.path().join("made")).is_ok_and(|made| made == b"look\n");
        wait_until(has_looked, || place.log());
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        let path = place.transcript(&run_id);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["mode"], "plan");
        match mode {
            Some(mode) => lines[0]["mode"] = mode.into(),
            None => drop(lines[0].as_object_mut().unwrap().remove("mode")),
        }
        std::fs::write(&path, rehashed(&lines)).unwrap();
        let_it_end(&place);
        let daemon = place.serve();
        let run = end_of(&place, &run_id);
        assert_eq!(run["outcome"], "interrupted", "{run}");
        let error = run["error"].as_str().unwrap();
        let expected = mode.unwrap_or("does not say whether it acts or plans");
        assert!(error.contains(expected), "{error}");
        assert_eq!(made(&place), "look\n", "nothing was changed");
        drop(daemon);
    }
}

// proves LOG-3
#[test]
fn a_broken_record_is_left_alone_and_its_run_is_interrupted() {
    let place = place("change", "7309.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7309.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let transcript = place.kept().into_iter().find(|path| path.ends_with("transcript.jsonl"));
    let transcript = transcript.unwrap();
    let text = std::fs::read_to_string(&transcript).unwrap();
    let altered = text.replacen("\"source\":\"job\"", "\"source\":\"person\"", 1);
    assert_ne!(altered, text);
    std::fs::write(&transcript, &altered).unwrap();
    let daemon = place.serve();
    let row = || place.json(&["runs", "--outcome", "interrupted"])[0].clone();
    assert_eq!(row()["run_id"], run_id.as_str());
    assert_eq!(std::fs::read_to_string(&transcript).unwrap(), altered);
    assert!(place.log().contains("the record of an open run is broken"), "{}", place.log());
    assert_eq!(made(&place), "change\n");
    drop(daemon);
    assert_eq!(place.dutyd(&["reindex"]).code, 0);
    assert_eq!(row()["run_id"], run_id.as_str());
    assert_eq!(place.dutyd(&["verify", &run_id]).code, 1);
}

// proves STATE-7
#[test]
fn a_run_whose_lock_file_or_directory_is_gone_does_not_vanish() {
    for (number, is_directory) in [("7343.OWN", false), ("7344.OWN", true)] {
        let place = place("look", number, "description: d");
        let (daemon, run_id) = hang(&place, number);
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        if is_directory {
            let directory = place.transcript(&run_id).parent().unwrap().to_path_buf();
            std::fs::remove_dir_all(directory).unwrap();
        } else {
            std::fs::remove_file(place.state().join("runs/open").join(&run_id)).unwrap();
        }
        std::fs::write(place.state().join("runs/open/NO-ID"), "").unwrap();
        let_it_end(&place);
        let daemon = place.serve();
        let row = || {
            let rows = place.json(&["runs", "--job", "j"]);
            let row = rows.as_array().unwrap().iter().find(|row| row["run_id"] == run_id.as_str());
            row.cloned().unwrap_or_default()
        };
        wait_until(|| row()["outcome"].is_string(), || format!("{}\n{}", row(), place.log()));
        let expected = if is_directory { "interrupted" } else { "succeeded" };
        assert_eq!(row()["outcome"], expected, "{}", place.log());
        let degraded = place.json(&["status"])["degraded"].to_string();
        assert!(degraded.contains("NO-ID") && place.log().contains("NO-ID"), "{degraded}");
        drop(daemon);
    }
}

#[test]
fn an_index_that_lacks_runs_is_repaired() {
    let place = place("look", "7310.OWN", "description: d");
    let_it_end(&place);
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    drop(daemon);
    let old = std::fs::read(place.state().join("index.db")).unwrap();
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    drop(daemon);
    // A backup of the index from before the second run.
    for file in ["index.db-wal", "index.db-shm"] {
        let _ = std::fs::remove_file(place.state().join(file));
    }
    std::fs::write(place.state().join("index.db"), old).unwrap();
    let daemon = place.serve();
    assert_eq!(place.json(&["runs"]).as_array().unwrap().len(), 2);
    assert!(place.log().contains("added runs that were missing in the index"));
    drop(daemon);
}

// proves LOG-3, STATE-1
#[test]
fn an_altered_last_line_does_not_count_as_torn() {
    let place = place("change", "7320.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7320.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let path = place.transcript(&run_id);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    bytes[last] = b'x';
    std::fs::write(&path, &bytes).unwrap();
    let_it_end(&place);
    let daemon = place.serve();
    let [row] = place.json(&["runs"]).as_array().unwrap().clone().try_into().unwrap();
    assert_eq!((&row["run_id"], &row["outcome"]), (&json!(run_id), &json!("interrupted")));
    assert_eq!((made(&place), std::fs::read(&path).unwrap()), ("change\n".to_owned(), bytes));
    assert!(place.log().contains("the record of an open run is broken"), "{}", place.log());
    assert!(!place.state().join("runs/open").join(&run_id).exists());
    drop(daemon);
}

// proves CRON-1, STATE-1
#[test]
fn a_slot_whose_record_is_gone_does_not_run_again() {
    type Damage = fn(&std::path::Path);
    let damages: [Damage; 3] = [
        |path| {
            let length = path.metadata().unwrap().len();
            std::fs::write(path, vec![0; usize::try_from(length).unwrap()]).unwrap();
        },
        |path| std::fs::write(path, "").unwrap(),
        |path| std::fs::remove_dir_all(path.parent().unwrap()).unwrap(),
    ];
    for (number, damage) in (7321..).zip(damages) {
        let number = format!("{number}.OWN");
        let place = place("change", &number, "schedule: '* * * * * *'");
        let root = place.path().display().to_string();
        let tools = format!(
            "version: 1\ntools: [{{name: change, description: Changes, category: write, cmd: sh, args: [-c, 'echo \"$${{TMPDIR##*/}}\" >> {root}/made; [ -e {root}/again ] || exec sleep {number}']}}]\n"
        );
        place.write("tools.yaml", &tools);
        let daemon = place.serve();
        wait_until(|| is_asleep(&number), || place.log());
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        let run_id = made(&place).trim().to_owned();
        damage(&place.transcript(&run_id));
        let_it_end(&place);
        let daemon = place.serve();
        wait_until(|| made(&place).lines().count() > 2, || place.log());
        assert_eq!(made(&place).matches(&run_id).count(), 1, "{}", place.log());
        let slots = place.json(&["slots", "j"]);
        let slot = slots.as_array().unwrap().iter().find(|slot| slot["run_id"] == run_id.as_str());
        let slot = slot.unwrap();
        assert_eq!(slot["state"], "ran", "{slot}");
        assert!(slot["reason"].as_str().unwrap().starts_with("interrupted"), "{slot}");
        daemon.signal(Signal::SIGTERM);
        daemon.wait();
        assert_eq!(place.json(&["audit"])["ok"], true);
    }
}

// proves STATE-1
#[test]
fn a_run_that_a_person_cancelled_does_not_continue_after_a_crash() {
    let place = place("change", "7325.OWN", "description: d");
    let root = place.path().display().to_string();
    // The tool uses its whole grace period.
    place.write(
        "tools.yaml",
        &format!("version: 1\ntools: [{{name: change, description: Changes, category: write, cmd: sh, args: [-c, 'trap \"\" TERM; echo change >> {root}/made; while :; do sleep 7325.OWN; done']}}]\n"),
    );
    let (daemon, run_id) = hang(&place, "7325.OWN");
    assert_eq!(place.dutyd(&["cancel", &run_id]).code, 0);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let daemon = place.serve();
    let run = end_of(&place, &run_id);
    assert_eq!((&run["outcome"], &run["stop_reason"]), (&json!("cancelled"), &json!("cancelled")));
    let [end] = events(&place, &run_id, "session_end").try_into().unwrap();
    assert_eq!(end["by"]["uid"], nix::unistd::geteuid().as_raw());
    let [warning] = events(&place, &run_id, "warning").try_into().unwrap();
    assert_eq!(warning["code"], "effect_unknown");
    assert_eq!(made(&place), "change\n");
    drop(daemon);
}

// proves CRON-1, STATE-1
#[test]
fn a_run_whose_slot_is_decided_does_not_continue() {
    let place = place("look", "7337.OWN", "schedule: '* * * * * *'\n    overlap: skip");
    let daemon = place.serve();
    wait_until(|| is_asleep("7337.OWN"), || place.log());
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    // On a full disk, the end of the slot may be written, but not the note that the run is over.
    let ledger = rusqlite::Connection::open(place.state().join("ledger.db")).unwrap();
    let run_id: String = ledger
        .query_row(
            "UPDATE slots SET state = 'missed', reason = 'r' WHERE state = 'running' RETURNING run_id",
            [],
            |row| row.get(0),
        )
        .unwrap();
    drop(ledger);
    let_it_end(&place);
    let daemon = place.serve();
    let run = end_of(&place, &run_id);
    assert_eq!(run["outcome"], "interrupted");
    assert!(run["error"].as_str().unwrap().contains("its slot was decided"), "{run}");
    let slots = place.json(&["slots", "j"]).as_array().unwrap().clone();
    let slot = slots.iter().find(|slot| slot["run_id"] == run_id.as_str()).unwrap();
    assert_eq!((&slot["state"], &slot["reason"]), (&json!("missed"), &json!("r")));
    drop(daemon);
}

#[test]
fn the_checklist_is_not_evaluated_again() {
    let place = place("look", "7326.OWN", "precheck: {tool: look, run_when: nonempty}");
    let root = place.path().display().to_string();
    let program = place.path().join("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let tools = std::fs::read_to_string(place.config().join("tools.yaml")).unwrap();
    let changed = tools.replacen(
        "category: write\n    cmd: sh",
        &format!("category: write\n    cmd: {root}/program"),
        1,
    );
    assert_ne!(changed, tools);
    place.write("tools.yaml", &changed);
    place.write("s.yaml", "steps: [{say: done}]\n");
    let (daemon, run_id) = hang(&place, "7326.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    std::fs::remove_file(program).unwrap();
    let_it_end(&place);
    let daemon = place.serve();
    assert_eq!(end_of(&place, &run_id)["outcome"], "succeeded");
    assert_eq!(events(&place, &run_id, "preflight").len(), 1);
    let [precheck] = events(&place, &run_id, "precheck").try_into().unwrap();
    assert_eq!(precheck["ok"], true);
    assert_eq!(made(&place), "look\nlook\n", "the precheck is made again");
    drop(daemon);
}

/// Returns the process of a daemon that forks its shims.
fn fork_server_of(daemon: &Daemon) -> nix::unistd::Pid {
    let path = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let of_task = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let all: String = tasks
        .map(|task| of_task(&task.unwrap().path().join("children").display().to_string()))
        .collect();
    let pids = all.split_whitespace().map(|pid| pid.parse().unwrap());
    let is_it = |pid: &i32| of_task(&format!("/proc/{pid}/comm")).trim() == "dutyd:forks";
    nix::unistd::Pid::from_raw(pids.clone().find(is_it).unwrap_or_else(|| panic!("{path}: {all}")))
}

#[test]
fn the_fork_server_of_a_dead_daemon_is_killed_even_if_it_is_stopped() {
    let place = place("look", "7327.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7327.OWN");
    let server = fork_server_of(&daemon);
    nix::sys::signal::kill(server, Signal::SIGSTOP).unwrap();
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let_it_end(&place);
    let daemon = place.serve();
    assert_eq!(end_of(&place, &run_id)["outcome"], "succeeded");
    // Init may not have reaped it yet.
    let is_gone = || {
        let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    wait_until(is_gone, || place.log());
    drop(daemon);
}

// proves STATE-4
#[test]
fn a_run_that_cannot_be_recorded_continues_once_it_can() {
    let place = place("look", "7328.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7328.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let_it_end(&place);
    let daemon = place.serve_with("DUTYD_FAULTS", "fail_line_once=session_resumed");
    let degraded = || place.json(&["status"])["degraded"].to_string();
    wait_until(|| degraded().contains("could neither continue nor end"), || place.log());
    assert_eq!(end_of(&place, &run_id)["outcome"], "succeeded");
    assert_eq!(degraded(), "[]");
    drop(daemon);
}

// proves STATE-4
#[test]
fn a_run_that_can_never_continue_does_not_stop_the_others() {
    let place = place("look", "7329.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7329.OWN");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let_it_end(&place);
    let tick = "  - {name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false}\n";
    let jobs = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap();
    place.write("jobs.yaml", &format!("{jobs}{tick}"));
    // `tmp` is cleared at the start, so make the place of its directory unusable after that.
    let daemon = place.serve_with("DUTYD_FAULTS", &format!("no_directory_for={run_id}"));
    let status = || place.json(&["status"])["degraded"].to_string();
    wait_until(|| status().contains("could neither continue nor end"), || place.log());
    let ran = || {
        let slots = place.json(&["slots", "tick"]).as_array().unwrap().clone();
        slots.iter().filter(|slot| slot["state"] == "ran").count()
    };
    let before = ran();
    wait_until(|| ran() > before + 3, || place.log());
    assert!(!status().contains("the disk cannot be written"), "{}", place.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let daemon = place.serve();
    assert_eq!(end_of(&place, &run_id)["outcome"], "succeeded");
    drop(daemon);
}

// proves CRON-5, STATE-1
#[test]
fn a_run_that_cannot_continue_yet_keeps_its_job_busy_and_can_be_cancelled() {
    let place = place("look", "7336.OWN", "schedule: '* * * * * *'\n    overlap: skip");
    let daemon = place.serve();
    wait_until(|| is_asleep("7336.OWN"), || place.log());
    let [row] = place.json(&["runs"]).as_array().unwrap().clone().try_into().unwrap();
    let run_id = row["run_id"].as_str().unwrap().to_owned();
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let_it_end(&place);
    let daemon = place.serve_with("DUTYD_FAULTS", &format!("no_directory_for={run_id}"));
    let status = || place.json(&["status"])["degraded"].to_string();
    wait_until(|| status().contains("could neither continue nor end"), || place.log());
    let slots = |state: &str| {
        let slots = place.json(&["slots", "j"]).as_array().unwrap().clone();
        slots.iter().filter(|slot| slot["state"] == state).count()
    };
    let before = slots("skipped");
    wait_until(|| slots("skipped") > before + 3, || place.log());
    assert_eq!(slots("ran"), 0, "another run of the job would work at the same time");
    assert_eq!(place.dutyd(&["cancel", &run_id]).code, 0);
    let run = end_of(&place, &run_id);
    assert_eq!(run["outcome"], "cancelled", "{run}");
    wait_until(|| slots("ran") > 1, || place.log());
    assert_eq!(status(), "[]");
    daemon.signal(Signal::SIGTERM);
    daemon.wait();
    assert_eq!(place.json(&["audit"])["ok"], true);
}

// proves PROC-10
#[test]
fn a_daemon_on_a_copy_of_the_state_leaves_the_tools_of_the_original_alone() {
    let place = place("change", "7347.OWN", "description: d");
    let (daemon, run_id) = hang(&place, "7347.OWN");
    let (config, state) = (place.config(), place.path().join("copy"));
    let copied = place.shell(&format!("cp -a {} {}", place.state().display(), state.display()));
    assert_eq!(copied.code, 0, "{copied:?}");
    for name in ["control.sock", "control.key", "lock"] {
        let _ = std::fs::remove_file(state.join(name));
    }
    let mut second = place.command(&["serve"]);
    second.env("DUTYD_STATE_DIR", &state).env("DUTYD_CONFIG_DIR", config);
    let log = std::fs::File::create(place.path().join("second")).unwrap();
    let mut second = second.stderr(log).spawn().unwrap();
    let told = || std::fs::read_to_string(place.path().join("second")).unwrap();
    wait_until(|| told().contains("ready"), told);
    assert!(!told().contains("killed an orphaned process"), "{}", told());
    assert!(is_asleep("7347.OWN"), "the tool of the original works");
    second.kill().unwrap();
    second.wait().unwrap();
    assert!(place.json(&["show", &run_id])["run"]["outcome"].is_null(), "{}", place.log());
    drop(daemon);
}
