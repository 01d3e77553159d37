//! Tests that a file system that gives no answer holds up no other run.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Place, serve_on_loopback, skipped, wait_until};

/// A mounted file system whose server never answers. Dropping it ends all that waits for it.
struct Dead {
    path: PathBuf,
    _server: std::fs::File,
}

impl Dead {
    fn new(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let server = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("dead"), path, Some("fuse"), flags, Some(options.as_str())).ok()?;
        Some(Self { path: path.to_path_buf(), _server: server })
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
    }
}

const TOOLS: &str = "version: 1
tools:
  - name: look
    description: Looks
    category: read
    cmd: ls
    args: ['{{path}}']
    parameters: {path: {type: string, format: path}}
  - {name: inside, description: Works there, category: read, cmd: 'true', working_dir: ROOT/dead/work, timeout: 1s}
";

fn place(root: &str) -> Place {
    let jobs = format!(
        "version: 1
jobs:
  - {{name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false}}
  - {{name: inside, prompt: x, working_dir: {root}/dead/work, double_confirmation: false}}
  - {{name: caller, prompt: x, model: calls, sandbox: 'off', double_confirmation: false}}
  - {{name: reader, prompt: x, model: reads, allowed_paths: [{root}/dead], double_confirmation: false}}
"
    );
    let reads = format!(
        "steps: [{{call: {{tool: look, args: {{path: {root}/dead/x}}}}}}, {{call: {{tool: list, args: {{path: {root}/dead}}}}}}, {{say: done}}]\n"
    );
    Place::new(&[
        (
            "config.yaml",
            "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}, reads: {provider: scripted, script: reads.yaml}, calls: {provider: scripted, script: calls.yaml}}\n",
        ),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("reads.yaml", &reads),
        ("calls.yaml", "steps: [{call: {tool: inside}}, {say: done}]\n"),
        ("tools.yaml", &TOOLS.replace("ROOT", root)),
        ("jobs.yaml", &jobs),
    ])
}

fn run(place: &Place, run_id: &str) -> Value {
    place.json(&["show", run_id])["run"].clone()
}

#[test]
fn a_dead_file_system_fails_its_own_runs_and_holds_up_no_other() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().display().to_string();
    let place = place(&root);
    let daemon = place.serve();
    let Some(dead) = Dead::new(&home.path().join("dead")) else {
        skipped("a dead file system: only root can mount one");
        return;
    };
    // Each worker of the runtime would be blocked by one of these.
    let start = |job: &str| place.dutyd(&["run", "--detach", job]).stdout.trim().to_owned();
    let inside: Vec<String> = (0..4).map(|_| start("inside")).collect();
    let reader = start("reader");
    let ended = |run_id: &String| run(&place, run_id)["outcome"] != Value::Null;
    let ran = || {
        let slots = place.json(&["slots", "tick"]).as_array().unwrap().clone();
        slots.iter().filter(|slot| slot["state"] == "ran").count()
    };
    let before = ran();
    wait_until(|| ran() > before + 3, || place.log());
    wait_until(|| ended(&inside[0]), || place.log());
    let first = run(&place, &inside[0]);
    assert_eq!(first["stop_reason"], "preflight_failed", "{first}");
    assert!(first["error"].as_str().unwrap().contains("gave no answer"), "{first}");
    wait_until(|| ended(&reader), || place.log());
    let shown = place.json(&["show", &reader]);
    assert!(shown.to_string().contains("gave no answer"), "{shown}");
    // The daemon stops although threads of it still wait.
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    drop(dead);
    let audit = place.json(&["audit"]);
    assert_eq!((&audit["holes"], &audit["extras"]), (&Value::Array(vec![]), &Value::Array(vec![])));
}

// proves PROV-8
#[test]
fn a_provider_that_hangs_holds_up_no_run_of_another_model() {
    let silent = axum::Router::new().fallback(std::future::pending::<String>);
    let served = serve_on_loopback(silent);
    let config = format!(
        "default_model: m
max_concurrent_runs: 2
models:
  m: {{provider: scripted, script: s.yaml}}
  dead: {{provider: openai_chat, model: x, base_url: 'http://{}/v1', idle_timeout: 60s, first_byte_timeout: 4s}}
",
        served.address
    );
    // In each second, the runs of the model that hangs come first in the queue.
    let jobs = "version: 1
jobs:
  - {name: a1, schedule: '* * * * * *', prompt: x, model: dead}
  - {name: a2, schedule: '* * * * * *', prompt: x, model: dead}
  - {name: a3, schedule: '* * * * * *', overlap: allow_all, prompt: x, model: dead}
  - {name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false}
";
    let place = Place::new(&[
        ("config.yaml", &config),
        ("jobs.yaml", jobs),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("s.yaml", "steps: [{say: done}]\n"),
    ]);
    let _daemon = place.serve();
    let ran = || {
        let slots = place.json(&["slots", "tick"]).as_array().unwrap().clone();
        slots.iter().filter(|slot| slot["state"] == "ran").count()
    };
    wait_until(|| ran() >= 4, || place.log());
    let status = || place.json(&["status"]);
    let waits = || status()["waits"][0].clone();
    wait_until(|| waits()["runs"].as_array().is_some_and(|runs| runs.len() == 2), || place.log());
    assert_eq!(waits()["model"], "dead");
    assert!(status()["runs"]["active"].as_u64().unwrap() <= 3, "two runs for each model at most");
    let degraded = || status()["degraded"].to_string();
    wait_until(|| degraded().contains("`dead` has given no answer"), || place.log());
    let requested = place.json(&["run", "a1", "--detach"]);
    assert!(requested["run_id"].is_string(), "{requested}");
    assert_eq!(place.dutyd(&["run", "tick"]).code, 0, "{}", place.log());
}

// proves PROC-1, PROC-2
#[test]
fn a_call_that_hangs_in_its_working_directory_times_out_and_leaves_no_process() {
    let home = tempfile::tempdir().unwrap();
    let place = place(&home.path().display().to_string());
    let daemon = place.serve();
    let Some(dead) = Dead::new(&home.path().join("dead")) else {
        skipped("a dead file system: only root can mount one");
        return;
    };
    let run_id = place.dutyd(&["trigger", "caller"]).stdout.trim().to_owned();
    wait_until(|| run(&place, &run_id)["outcome"] != Value::Null, || place.log());
    let shown = place.json(&["show", &run_id]);
    let events = shown["events"].as_array().unwrap();
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
    let (call, end) = (of("tool_call_end"), of("session_end"));
    assert_eq!(call["error_kind"], "timeout", "{call}");
    assert!(call["duration_ms"].as_u64().unwrap() < 4000, "3 s after the deadline of 1 s: {call}");
    assert_eq!(end["survivors"], 0);
    // Only the fork server and its waiting shim are left.
    let left = || {
        let of_daemon = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let (name, rest) = stat.rsplit_once(')').unwrap_or_default();
            let parent = rest.split_whitespace().nth(1).unwrap_or_default().to_owned();
            parent == daemon.pid().to_string() && !name.ends_with("dutyd:forks")
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter(|entry| of_daemon(&entry.file_name().to_string_lossy())).count()
    };
    wait_until(|| left() == 0, || place.log());
    drop((dead, daemon));
}

#[test]
fn verbs_that_touch_a_dead_file_system_do_not_delay_runs() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().display().to_string();
    let place = place(&root);
    let daemon = place.serve();
    let Some(dead) = Dead::new(&home.path().join("dead")) else {
        skipped("a dead file system: only root can mount one");
        return;
    };
    let path = format!("{{\"path\": \"{root}/dead/x\"}}");
    let asked = [
        vec!["check", "inside"],
        vec!["check", "inside"],
        vec!["tools", "--job", "inside"],
        vec!["explain", "reader", "look", &path],
    ];
    let mut asking: Vec<_> = asked
        .iter()
        .map(|args| {
            place
                .command(args)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let ran = || {
        let slots = place.json(&["slots", "tick"]).as_array().unwrap().clone();
        slots.iter().filter(|slot| slot["state"] == "ran").count()
    };
    let before = ran();
    wait_until(|| ran() > before + 3, || place.log());
    assert_eq!(place.dutyd(&["status"]).code, 0);
    for client in &mut asking {
        client.wait().unwrap();
    }
    // A cancelled run does not wait for the file system.
    let run_id = place.dutyd(&["run", "--detach", "inside"]).stdout.trim().to_owned();
    assert_eq!(place.dutyd(&["cancel", &run_id]).code, 0);
    wait_until(|| run(&place, &run_id)["outcome"] != Value::Null, || place.log());
    let shown = place.json(&["show", &run_id]);
    let end = shown["events"].as_array().unwrap().last().unwrap();
    assert_eq!(end["outcome"], "cancelled", "{end}");
    assert!(end["duration_ms"].as_u64().unwrap() < 9000, "not the 10 s of the file system: {end}");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    drop(dead);
}
