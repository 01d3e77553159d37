//! Runs `tests/fixtures/attacks/runaway.c` as a tool. In each of its modes, it tries to outlive its
//! call and to use the control socket.
//!
//! `scripts/try-attacks` runs the same tests with a thousand calls per mode.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::Group;
use crate::support::{Place, alive};

const MODES: [&str; 12] = [
    "chain",
    "several",
    "setsid",
    "renamed",
    "hidden",
    "subreaper",
    "sibling",
    "exec",
    "threads",
    "stopped",
    "namespace",
    "pidns",
];

/// Returns the number of calls per mode; `scripts/try-attacks` sets it to a thousand.
fn calls() -> usize {
    std::env::var("DUTYD_ATTACK_CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(10)
}

/// Builds a program of `tests/fixtures/attacks/` into `directory`.
#[expect(clippy::disallowed_methods, reason = "runs the C compiler")]
pub(crate) fn build(name: &str, directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/attacks")
        .join(format!("{name}.c"));
    let program = directory.join(name);
    let built = std::process::Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

/// Runs every mode of `runaway` as a tool of a daemon, and checks from outside that nothing
/// survives.
fn runaways(user: u32, group: Option<&Group>, sandbox: &str) {
    let place = Place::new(&[]);
    let program = build("runaway", place.path());
    let socket = place.state().join("control.sock");
    let directory = place.path().display().to_string().replace('/', "_");
    let marker = |mode: &str| format!("runaway-{mode}-{directory}");
    let (mut models, mut tools, mut jobs) = (String::new(), String::new(), String::new());
    for mode in MODES {
        models.push_str(&format!("  {mode}: {{provider: scripted, script: {mode}.yaml}}\n"));
        tools.push_str(&format!(
            "  - {{name: {mode}, description: Runs away, category: read, cmd: {}, args: [{mode}, {}, {}, other]}}\n",
            program.display(),
            marker(mode),
            socket.display()
        ));
        let limits = "{max_iterations: 100, max_tool_calls: 2000, max_tool_calls_per_turn: 20}";
        jobs.push_str(&format!(
            "  - {{name: {mode}, prompt: x, model: {mode}, autonomy: read_only, sandbox: {sandbox}, double_confirmation: false, loop_detection: {{enabled: false}}, limits: {limits}}}\n"
        ));
        let turn = calls().min(20);
        let call = format!("{{tool: {mode}}}");
        let step = format!("  - call: [{}]\n", vec![call; turn].join(", "));
        let steps = step.repeat(calls().div_ceil(turn));
        place.write(&format!("{mode}.yaml"), &format!("steps:\n{steps}  - say: done\n"));
    }
    place.write("config.yaml", &format!("models:\n{models}default_model: chain\n"));
    place.write("tools.yaml", &format!("version: 1\ntools:\n{tools}"));
    place.write("jobs.yaml", &format!("version: 1\njobs:\n{jobs}  - {{name: other, prompt: x}}\n"));
    let place = if user == 0 { place } else { place.given_to(user) };
    let daemon = match group {
        Some(group) => place.serve_in(group.path()),
        None => place.serve(),
    };
    for mode in MODES {
        let run = place.dutyd(&["run", mode]);
        assert_eq!(run.code, 0, "{mode}: {run:?}\n{}", place.log());
        assert_eq!(alive(&marker(mode)), [""; 0], "{mode}, user {user}");
        let shown = place.json(&["show", "last"]);
        let events = shown["events"].as_array().unwrap();
        let of =
            |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
        let ends = of("tool_call_end");
        let begun = |end: &&&Value| end["output"].as_str().unwrap().contains("begun");
        assert_eq!(ends.iter().filter(begun).count(), ends.len(), "{mode}: {:?}", ends.first());
        assert!(ends.len() >= calls(), "{mode}: {}", ends.len());
        assert_eq!(of("session_end")[0]["survivors"], 0, "{mode}");
        assert_eq!(of("session_start")[0]["sandbox"]["cgroup"].is_string(), group.is_some());
    }
    let others = place.json(&["runs", "--job", "other"]);
    assert_eq!(others.as_array().unwrap().len(), 0, "a tool started a run: {others}");
    drop(daemon);
}

// proves PROC-2, PROC-8
#[test]
fn nothing_runs_away_from_a_call_of_root() {
    runaways(0, None, "enforce");
}

// proves PROC-2
#[test]
fn nothing_runs_away_from_a_call_of_an_ordinary_user() {
    runaways(65534, None, "enforce");
}

/// Even without Landlock and the sandbox's system call filter, no process leaves its process group
/// without the shim's consent, so killing the groups ends everything.
// proves PROC-2
#[test]
fn nothing_runs_away_without_a_sandbox() {
    runaways(0, None, "'off'");
}

// proves PROC-2
#[test]
fn nothing_runs_away_in_a_control_group() {
    for user in [0, 65534] {
        let Some(group) = Group::new(user) else {
            crate::support::skipped("cannot create a control group here");
            return;
        };
        runaways(user, Some(&group), "enforce");
    }
}
