//! Tests tools that attempt forbidden actions: the kernel denies them, and the transcript says so.

use std::net::{TcpListener, UdpSocket};

use serde_json::{Value, json};

use crate::support::{Place, alive};

#[derive(Clone, Copy, PartialEq, Debug)]
enum As {
    ReadTool,
    WriteTool,
    Bash,
}

struct Attacked {
    output: String,
    events: Vec<Value>,
}

/// Runs `tests/fixtures/sandbox/attack.py`, and checks from outside that it changed nothing.
fn attacked(attacker: As, unprivileged: bool) -> Attacked {
    let category = if attacker == As::ReadTool { "read" } else { "write" };
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("file"), "whole").unwrap();
    if unprivileged {
        // Give the files to the user as whom the attack runs, so that only the sandbox protects
        // them.
        for path in [outside.path().to_path_buf(), outside.path().join("file")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
    }
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    let place = Place::new(&[(
        "config.yaml",
        "models: {main: {provider: scripted, script: script.yaml}}\n",
    )]);
    let script = place.path().join("attack.py");
    std::fs::write(&script, include_str!("../fixtures/sandbox/attack.py")).unwrap();
    let marker = format!("3600.{}{}", std::process::id(), udp.local_addr().unwrap().port());
    let (temp, script) = (outside.path().display(), script.display());
    let (state, config) = (place.state(), place.config());
    let (tcp_port, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    let command = format!(
        "ATTACK={category} python3 {script} {temp} {} {} {tcp_port} {udp_port} {marker}",
        state.display(),
        config.display()
    );
    let call = match attacker {
        As::Bash => format!("{{tool: bash, args: {{command: '{command}'}}}}"),
        As::ReadTool | As::WriteTool => "{tool: attack, args: {}}".to_owned(),
    };
    place
        .write("script.yaml", &format!("steps:\n  - call: {call}\n  - say: done\n  - say: done\n"));
    place.write(
        "tools.yaml",
        &format!(
            "version: 1\ntools:\n  - name: attack\n    description: Attacks\n    category: {category}\n    cmd: /usr/bin/python3\n    args: [{script}, {temp}, {}, {}, '{tcp_port}', '{udp_port}', '{marker}']\n    env: {{ATTACK: {category}}}\n    sandbox: {{network: false}}\n",
            state.display(),
            config.display(),
        ),
    );
    let listed = match attacker {
        As::ReadTool => "",
        As::WriteTool => "    tools: {write: [attack]}\n",
        As::Bash => "    tools: {write: [bash]}\n    network: false\n",
    };
    place.write(
        "jobs.yaml",
        &format!("version: 1\njobs:\n  - name: j\n    prompt: Attack\n{listed}"),
    );
    let place = if unprivileged { place.given_to_nobody() } else { place };
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(alive(&marker), Vec::<String>::new());
    assert!(
        tcp.accept().is_err() && udp.recv(&mut [0; 8]).is_err(),
        "a connection or packet left the sandbox"
    );
    let names: Vec<_> = std::fs::read_dir(outside.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["file"]);
    assert_eq!(std::fs::read_to_string(outside.path().join("file")).unwrap(), "whole");
    assert!(!config.join("new.yaml").exists());
    assert_eq!(std::fs::read_dir(state.join("tmp")).unwrap().count(), 0);
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap().clone();
    let end = events.iter().find(|event| event["type"] == "tool_call_end").unwrap();
    Attacked { output: end["output"].as_str().unwrap().to_owned(), events: events.clone() }
}

fn check(attacker: As, unprivileged: bool) {
    let attacked = attacked(attacker, unprivileged);
    let done: Vec<&str> = attacked.output.lines().filter(|line| line.contains("DONE")).collect();
    assert_eq!(done, Vec::<&str>::new(), "{attacker:?}, unprivileged: {unprivileged}");
    let refused = attacked.output.lines().filter(|line| line.contains(": refused")).count();
    assert!(refused >= 27, "{refused}: {}", attacked.output);
    assert!(attacked.output.contains("allowed: mine /dev/null True"), "{}", attacked.output);
    let of = |kind: &str| attacked.events.iter().find(|event| event["type"] == kind).unwrap();
    assert_eq!(of("session_start")["sandbox"]["mode"], "enforce");
    assert!(of("session_start")["sandbox"]["landlock_abi"].as_u64().unwrap() >= 3);
    assert_eq!(of("tool_call_start")["sandboxed"], true);
    assert_eq!(of("session_end")["survivors"], 0);
}

// proves ENV-1, PROC-2, FS-5
#[test]
fn a_read_tool_of_root_is_held() {
    check(As::ReadTool, false);
}

// proves PROC-2, FS-5
#[test]
fn a_write_tool_of_root_is_held() {
    check(As::WriteTool, false);
    check(As::Bash, false);
}

// proves PROC-2, FS-5
#[test]
fn tools_of_an_ordinary_user_are_held() {
    if !nix::unistd::geteuid().is_root() {
        // The tests above have already run as an ordinary user.
        return;
    }
    for attacker in [As::ReadTool, As::WriteTool, As::Bash] {
        check(attacker, true);
    }
}

#[test]
fn a_run_that_fills_its_temporary_directory_is_ended() {
    let place = Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: script.yaml}}\n"),
        (
            "tools.yaml",
            "version: 1\ntools:\n  - {name: fill, description: Fills, category: read, cmd: sh, args: [-c, 'dd if=/dev/zero of=$TMPDIR/big bs=1M count=64 2>/dev/null; echo $TMPDIR; sleep 600']}\n",
        ),
        ("script.yaml", "steps:\n  - call: {tool: fill}\n  - say: done\n"),
        (
            "jobs.yaml",
            "version: 1\njobs:\n  - {name: j, prompt: x, tools: {read: [fill]}, double_confirmation: false, limits: {max_tmp_bytes: 8MiB}}\n",
        ),
    ]);
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 1, "{done:?}");
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap();
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
    let end = of("session_end");
    assert_eq!((&end["stop_reason"], &end["survivors"]), (&json!("budget_exceeded"), &json!(0)));
    assert_eq!(
        end["error"],
        "the temporary directory of the run took more than 8388608 bytes, or more than its share of the free space"
    );
    let limit = of("turn_limit");
    assert_eq!((&limit["limit"], &limit["value"]), (&json!("max_tmp_bytes"), &json!(8 << 20)));
    assert_eq!(of("tool_call_end")["error_kind"], "interrupted");
    let left = std::fs::read_dir(place.state().join("tmp")).unwrap().count();
    assert_eq!(left, 0, "the temporary directory must be removed with its run");
}
