//! Tests that a file system that gives no answer holds up no other run.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Place, skipped, wait_until};

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
";

fn place(root: &str) -> Place {
    let jobs = format!(
        "version: 1
jobs:
  - {{name: tick, schedule: '* * * * * *', prompt: x, double_confirmation: false}}
  - {{name: inside, prompt: x, working_dir: {root}/dead/work, double_confirmation: false}}
  - {{name: reader, prompt: x, model: reads, allowed_paths: [{root}/dead], double_confirmation: false}}
"
    );
    let reads = format!(
        "steps: [{{call: {{tool: look, args: {{path: {root}/dead/x}}}}}}, {{call: {{tool: list, args: {{path: {root}/dead}}}}}}, {{say: done}}]\n"
    );
    Place::new(&[
        (
            "config.yaml",
            "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}, reads: {provider: scripted, script: reads.yaml}}\n",
        ),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("reads.yaml", &reads),
        ("tools.yaml", TOOLS),
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
