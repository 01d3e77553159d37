//! Tools that try what they must not: the kernel refuses, and the transcript says so.

use std::net::{TcpListener, UdpSocket};

use serde_json::Value;

use crate::support::{Place, alive};

const SCRIPT: &str = "steps:\n  - call: {tool: attack, args: {}}\n  - say: done\n  - say: done\n";

struct Attacked {
    output: String,
    events: Vec<Value>,
}

/// Runs `tests/fixtures/sandbox/attack.py` as a tool of `category`, and looks from outside at what it could do.
fn attacked(category: &str, unprivileged: bool) -> Attacked {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("file"), "whole").unwrap();
    if unprivileged {
        // So that only the sandbox stands in the way.
        for path in [outside.path().to_path_buf(), outside.path().join("file")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
    }
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    let place = Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: script.yaml}}\n"),
        ("script.yaml", SCRIPT),
    ]);
    let script = place.path().join("attack.py");
    std::fs::write(&script, include_str!("../fixtures/sandbox/attack.py")).unwrap();
    let marker = format!("3600.{}{}", std::process::id(), udp.local_addr().unwrap().port());
    let (temp, script) = (outside.path().display(), script.display());
    let (state, config) = (place.state(), place.config());
    let (tcp_port, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    place.write(
        "tools.yaml",
        &format!(
            "version: 1\ntools:\n  - name: attack\n    description: Attacks\n    category: {category}\n    cmd: /usr/bin/python3\n    args: [{script}, {temp}, {}, {}, '{tcp_port}', '{udp_port}', '{marker}']\n    env: {{ATTACK: {category}}}\n    sandbox: {{network: false}}\n",
            state.display(),
            config.display(),
        ),
    );
    let listed = if category == "read" { "" } else { "    tools: {write: [attack]}\n" };
    place.write(
        "jobs.yaml",
        &format!("version: 1\njobs:\n  - name: j\n    prompt: Attack\n{listed}"),
    );
    let place = if unprivileged { place.given_to_nobody() } else { place };
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(alive(&marker), Vec::<String>::new());
    assert!(tcp.accept().is_err() && udp.recv(&mut [0; 8]).is_err(), "a packet came out");
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

fn check(category: &str, unprivileged: bool) {
    let attacked = attacked(category, unprivileged);
    let done: Vec<&str> = attacked.output.lines().filter(|line| line.contains("DONE")).collect();
    assert_eq!(done, Vec::<&str>::new(), "{category}, unprivileged: {unprivileged}");
    let refused = attacked.output.lines().filter(|line| line.contains(": refused")).count();
    assert!(refused >= 26, "{refused}: {}", attacked.output);
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
    check("read", false);
}

// proves PROC-2, FS-5
#[test]
fn a_write_tool_of_root_is_held() {
    check("write", false);
}

// proves PROC-2, FS-5
#[test]
fn tools_of_an_ordinary_user_are_held() {
    if !nix::unistd::geteuid().is_root() {
        // Then the tests above have shown it.
        return;
    }
    check("read", true);
    check("write", true);
}
