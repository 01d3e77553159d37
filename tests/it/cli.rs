//! Tests the verbs that do not need a daemon.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::support::Place;

const CONFIG: &str = "models: {offline: {provider: scripted, script: s.yaml}}\n";
const SCRIPT: &str = "steps:\n  - call: {tool: echo, args: {x: '{{ vars.word }}'}}\n  - say: 'done: {{ results[-1] }}'\n";
const TOOLS: &str = "version: 1
tools:
  - name: echo
    description: Prints its argument
    category: read
    cmd: printf
    args: ['<%s>', '{{x}}']
    parameters: {x: {type: string, multiline: true, maxLength: 64000}}
  - {name: env, description: Environment, category: read, cmd: env, env: {DECLARED: 'yes', A_TOKEN: declared-secret}}
  - {name: fails, description: Fails, category: read, cmd: 'false'}
  - {name: sleeps, description: Sleeps, category: read, cmd: sleep, args: ['30'], timeout: 300ms}
  - {name: change, description: Changes, category: write, cmd: touch, args: ['changed']}
  - {name: reboot, description: Admin, category: admin, cmd: touch, args: ['rebooted']}
  - {name: gone, description: Not installed, category: read, cmd: no-such-program}
";
const JOBS: &str = "version: 1
jobs:
  - {name: hand, prompt: 'Say {{word}}', vars: {word: hello}, double_confirmation: false}
  - {name: writer, prompt: Change it, tools: {write: [change]}, double_confirmation: false}
";

fn place() -> Place {
    Place::new(&[
        ("config.yaml", CONFIG),
        ("s.yaml", SCRIPT),
        ("tools.yaml", TOOLS),
        ("jobs.yaml", JOBS),
    ])
}

#[test]
fn starter_files_are_valid_and_run() {
    let place = Place::new(&[]);
    let done = place.dutyd(&["init"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        place.config().join("schemas/jobs.json").exists(),
        "the first line of jobs.yaml refers to this schema"
    );
    let report = place.json(&["validate"]);
    assert_eq!((&report["ok"], &report["errors"]), (&json!(true), &json!([])));
    assert_eq!(place.dutyd(&["init"]).code, 2, "`init` must not overwrite files");
    assert_eq!(place.dutyd(&["run", "disk-watch"]).code, 0);
}

// conforms 003-2.4c, 003-2.9a, 003-9.10d, 004-1.8c
#[test]
fn a_run_is_shown_and_verified() {
    let place = place();
    let row = place.json(&["run", "hand", "--var", "word=a; rm -rf ~ $(id)"]);
    assert_eq!(row["outcome"], "succeeded", "{row}");
    assert_eq!(row["result"], "done: <a; rm -rf ~ $(id)>");
    let run_id = row["run_id"].as_str().unwrap();
    let shown = place.json(&["show", &run_id[..20]]);
    assert_eq!(shown["run"]["run_id"], run_id);
    let types: Vec<&str> = shown["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(types.first(), Some(&"session_start"));
    assert_eq!(types.last(), Some(&"session_end"));
    for event in shown["events"].as_array().unwrap() {
        let time = chrono::DateTime::parse_from_rfc3339(event["ts"].as_str().unwrap());
        assert!(time.is_ok(), "{event}");
    }
    let position = |word: &str| types.iter().position(|kind| *kind == word).unwrap();
    assert!(position("policy_decision") < position("tool_call_start"));
    let report = place.json(&["verify", "hand@last"]);
    assert_eq!(
        (&report["ok"], &report["live"], &report["torn"]),
        (&json!(true), &json!(false), &json!(false))
    );
    assert_eq!(place.json(&["runs"])[0]["run_id"], run_id);
    assert_eq!(place.dutyd(&["show", "zzz"]).code, 3);

    let path = place.dutyd(&["show", "last"]).stdout.lines().last().unwrap().to_owned();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("allowed", "alloved", 1)).unwrap();
    let done = place.dutyd(&["verify", "last"]);
    assert!(done.code == 1 && done.stdout.contains("broken at line"), "{done:?}");
}

// conforms 000-6.1b
#[test]
fn exit_codes_tell_the_outcome() {
    let place = place();
    let check = |args: &[&str], expected: i32| {
        let done = place.dutyd(args);
        assert_eq!(done.code, expected, "{args:?} {done:?}");
        done
    };
    check(&["call", "echo", "x=hi"], 0);
    check(&["call", "echo"], 2);
    check(&["call", "echo", "x=hi", "y=1"], 2);
    check(&["call", "nope"], 3);
    check(&["call", "fails"], 1);
    check(&["call", "gone"], 1);
    check(&["call", "sleeps"], 124);
    check(&["call", "change", "--job", "hand"], 5);
    check(&["call", "reboot", "--job", "writer"], 5);
    check(&["explain", "writer", "change"], 0);
    check(&["explain", "hand", "change"], 5);
    check(&["explain", "nope", "change"], 3);
    check(&["explain", "hand", "nope"], 3);
    check(&["explain", "hand", "echo", "{\"x\": 5}"], 2);
    check(&["run", "nope"], 3);
    check(&["run", "hand", "--var", "unknown=1"], 2);
    check(&["status"], 4);
    check(&["cancel", "last"], 4);
    check(&["nonsense"], 2);
    check(&["--version"], 0);
    // proves POL-1, POL-2
    assert!(
        !place.state().join("workspace/hand/changed").exists(),
        "a denied call must not start a process"
    );
    assert!(place.json(&["call", "gone"])["error_kind"] == "spawn_failed");
    assert!(place.json(&["call", "echo"])["error_kind"] == "invalid_arguments");
    let refused = place.json(&["call", "change", "--job", "hand"]);
    assert_eq!(
        (&refused["decision"], &refused["rule"], &refused["error_kind"]),
        (&json!("deny"), &json!("category"), &json!("denied"))
    );
}

// proves ARG-2, ENV-1
// conforms 000-6.3c, 000-6.4a, 000-S6.6, 000-S6.8, 000-S6.13, 003-9.4e
#[test]
fn hostile_arguments_arrive_unchanged_and_the_environment_is_clean() {
    let place = place()
        .with_env("OPENAI_API_KEY", "sk-never-to-be-seen")
        .with_env("LD_PRELOAD", "")
        .with_env("EVIL", "x")
        .with_env("USER", "u")
        .with_env("LANG", "C")
        .with_env("LC_ALL", "C")
        .with_env("TERM", "dumb")
        .with_env("SHELL", "/bin/sh")
        .with_env("TZ", "UTC");
    let sixty = "a".repeat(60_000);
    for value in [
        "; rm -rf ~",
        "$(id)",
        "`id`",
        "a'b\"c\\",
        "two\nlines\tand a tab",
        "*",
        "~",
        "{{x}}",
        "-n",
        sixty.as_str(),
    ] {
        let arguments = json!({ "x": value }).to_string();
        let file = place.config().join("arguments.json");
        std::fs::write(&file, arguments).unwrap();
        let done =
            place.dutyd(&["-o", "json", "call", "echo", "--json", &format!("@{}", file.display())]);
        if value == "-n" {
            assert_eq!(done.code, 2, "{done:?}");
            continue;
        }
        let result: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        if value.len() < 10_000 {
            assert_eq!(result["output"], format!("<{value}>"), "{done:?}");
        } else {
            assert_eq!(
                (&result["exit_code"], &result["truncated"]["characters"]),
                (&json!(0), &json!(30_002))
            );
        }
    }
    let shown = place.json(&["call", "env"])["output"].as_str().unwrap().to_owned();
    let names: Vec<&str> =
        shown.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    let own = ["A_TOKEN", "DECLARED"];
    let allowed = ["HOME", "LANG", "LC_ALL", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];
    assert_eq!(sorted, [&own[..], &allowed].concat(), "{shown}");
    assert!(shown.contains("A_TOKEN=[redacted:A_TOKEN]"), "{shown}");
}

// proves SEC-2
// conforms 000-6.4b
#[test]
fn no_secret_is_anywhere_under_the_state_directory() {
    let config = "models: {offline: {provider: scripted, script: s.yaml}, m: {provider: openai_chat, model: x, api_key: '${KEY}'}}\ndefault_model: offline\n";
    let script =
        "steps:\n  - call: [{tool: env}, {tool: leak}]\n  - say: 'seen {{ results | join }}'\n";
    let tools = "version: 1
tools:
  - {name: env, description: Environment, category: read, cmd: env, env: {B: '${KEY}'}}
  - {name: leak, description: Leaks, category: read, cmd: sh, args: [-c, 'printf %s \"$B\"; printf %s \"$B\" | base64; yes \"$B\" | head -c 200000'], env: {B: '${KEY}'}}
";
    let place = Place::new(&[
        ("config.yaml", config),
        ("s.yaml", script),
        ("tools.yaml", tools),
        ("jobs.yaml", "version: 1\njobs: [{name: j, prompt: x}]\n"),
    ])
    .with_env("KEY", "sk-hunter2hunter2");
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let all = format!("{}{}{}", place.everything(), done.stdout, done.stderr);
    assert!(!all.contains("hunter2") && all.contains("[redacted:KEY]"));
    assert!(!all.contains("aHVudGVyMmh1bnRlcjI"), "the secret is present in base64");
}

// proves CFG-6
#[test]
fn files_that_others_can_write_are_refused_with_the_command_that_mends_it() {
    let place = place();
    let path = place.config().join("tools.yaml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    for args in [&["run", "hand"][..], &["serve"], &["call", "echo", "x=1"]] {
        let done = place.dutyd(args);
        assert!(
            done.code == 2 && done.stderr.contains(&format!("chmod go-w {}", path.display())),
            "{done:?}"
        );
    }
    let done = place.dutyd(&["validate", &path.display().to_string()]);
    assert!(
        done.code == 0 && done.stdout.contains("warning"),
        "for a path given by name, this is only a warning: {done:?}"
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
}

#[test]
fn every_error_has_its_place_and_its_line() {
    let place = place();
    place.write(
        "jobs.yaml",
        "version: 1\njobs:\n  - name: hand\n    promt: x\n    schedule: '61 * * * *'\n",
    );
    let done = place.dutyd(&["validate"]);
    assert_eq!(done.code, 2);
    let expected = format!(
        "error: `prompt` is missing: set `prompt` or `prompt_file`
  --> {file}:3:5 (jobs[0])
  |
3 |   - name: hand
  |     ^
error: unknown key `promt`
  --> {file}:4:5 (jobs[0].promt)
  |
4 |     promt: x
  |     ^
  = help: did you mean `prompt`?
error: `61 * * * *` is not a cron expression",
        file = place.config().join("jobs.yaml").display()
    );
    assert!(done.stdout.starts_with(&expected), "{}", done.stdout);
    assert!(done.stdout.contains("3 error(s)"), "{}", done.stdout);
    let report = place.json(&["validate"]);
    assert_eq!(report["errors"][1]["hint"], "did you mean `prompt`?");
    assert_eq!(place.dutyd(&["run", "hand"]).code, 2);
}

#[test]
fn a_preflight_that_fails_ends_the_run_before_a_model_is_called() {
    let place = place();
    place.write(
        "jobs.yaml",
        "version: 1\njobs: [{name: j, prompt: x, tools: {write: [missing]}}]\n",
    );
    place.write("tools.yaml", "version: 1\ntools: [{name: missing, description: d, category: write, cmd: no-such-program}]\n");
    let row = place.json(&["run", "j"]);
    assert_eq!((&row["stop_reason"], &row["iterations"]), (&json!("preflight_failed"), &json!(0)));
    assert!(row["error"].as_str().unwrap().contains("no-such-program"), "{row}");

    place.write(
        "jobs.yaml",
        "version: 1\njobs: [{name: j, schedule: '0 3 * * *', timezone: UTC, prompt: x, tools: {write: [missing]}}]\n",
    );
    let daemon = place.serve();
    let period =
        ["backfill", "j", "--from", "2025-11-01T03:00:00Z", "--to", "2025-11-01T03:00:00Z"];
    assert_eq!(place.dutyd(&period).code, 0);
    let slot = || place.json(&["slots", "j", "--until", "2025-11-02"])[0].clone();
    crate::support::wait_until(|| slot()["state"] == "blocked", || slot().to_string());
    assert_eq!(slot()["reason"], "failed (preflight_failed)");
    drop(daemon);
}

// proves LOG-5
#[test]
fn the_index_is_made_again_from_the_transcripts() {
    let place = place();
    for _ in 0..3 {
        assert_eq!(place.dutyd(&["run", "hand"]).code, 0);
    }
    let before = place.json(&["runs"]);
    for name in ["index.db", "index.db-wal", "index.db-shm"] {
        let _ = std::fs::remove_file(place.state().join(name));
    }
    assert_eq!(place.dutyd(&["reindex"]).stdout, "3 runs\n");
    assert_eq!(place.json(&["runs"]), before);
}

/// Simulates a full disk with a limit on file sizes: the run ends with an error and makes no
/// further calls.
// proves LOG-6
#[test]
fn a_record_that_cannot_be_written_ends_the_run() {
    let place = Place::new(&[
        ("config.yaml", "models: {m: {provider: scripted, script: s.yaml}}\n"),
        ("s.yaml", "steps: [{call: {tool: flood, args: {}}}, {say: done}]\n"),
        (
            "tools.yaml",
            "version: 1\ntools: [{name: flood, description: d, category: read, cmd: head, args: ['-c', '20000', '/dev/zero']}]\n",
        ),
        ("jobs.yaml", "version: 1\njobs: [{name: j, prompt: x, double_confirmation: false}]\n"),
    ]);
    let script =
        format!("trap '' XFSZ; ulimit -f 16; exec {} -o json run j", env!("CARGO_BIN_EXE_dutyd"));
    let done = place.shell(&script);
    let row: serde_json::Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
    assert_eq!((done.code, &row["stop_reason"]), (1, &serde_json::json!("record_failed")), "{row}");
    assert_eq!(row["outcome"], "failed");
    assert!(done.stderr.contains("could not be written"), "{done:?}");
}

// proves UNIT-1, UNIT-2, UNIT-3
#[test]
#[expect(clippy::disallowed_methods, reason = "runs a script of the project")]
fn the_unit_is_closed_and_loosened_by_drop_ins_alone() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let unit = std::fs::read_to_string(root.join("systemd/dutyd.service")).unwrap();
    for line in [
        "User=dutyd",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "PrivateDevices=yes",
        "StateDirectoryMode=0700",
        "LogsDirectoryMode=0700",
        "ConfigurationDirectoryMode=0750",
        "KillMode=control-group",
        "Restart=on-failure",
        "WatchdogSec=60s",
        "OOMPolicy=continue",
        "Delegate=yes",
    ] {
        assert!(unit.lines().any(|own| own == line), "{line}");
    }
    for key in ["TimeoutStopSec=", "TasksMax=", "MemoryMax="] {
        assert!(unit.lines().any(|own| own.starts_with(key)), "{key}");
    }
    for entry in std::fs::read_dir(root.join("systemd/dutyd.service.d")).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        assert!(text.starts_with('#'), "{} does not start with a comment", entry.path().display());
    }
    let held = std::process::Command::new(root.join("scripts/check-unit"))
        .arg(env!("CARGO_BIN_EXE_dutyd"))
        .output()
        .unwrap();
    assert!(held.status.success(), "{held:?}");
}
