//! Tests jobs whose tools run elsewhere: over a real OpenSSH server on loopback, and over fake
//! `docker` and `kubectl` clients.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Place, alive, wait_until};

/// Stops the server on drop.
struct Sshd {
    child: Child,
    port: u16,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(path: PathBuf, text: &str, mode: u32) {
    std::fs::write(&path, text).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Starts a server that accepts our key, and writes an `ssh` wrapper for it into `bin`.
fn sshd(place: &Place) -> Sshd {
    let home = place.path();
    for key in ["host_key", "user_key"] {
        let done = Command::new("/usr/bin/ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(home.join(key))
            .stdin(Stdio::null())
            .status();
        assert!(done.unwrap().success());
    }
    std::fs::create_dir_all(home.join("bin")).unwrap();
    // `SetEnv HOME` (below) keeps the remote shell from reading a person's startup files. At the
    // end of the connection, sshd would kill any process that these files start, perhaps in the
    // middle of its work.
    //
    // When root starts sshd, it needs this directory for privilege separation.
    let _ = std::fs::create_dir_all("/run/sshd");
    std::fs::copy(home.join("user_key.pub"), home.join("authorized_keys")).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let shown = home.display();
    write(
        home.join("sshd_config"),
        &format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {shown}/host_key\nAuthorizedKeysFile {shown}/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nSetEnv HOME={shown}\n"
        ),
        0o600,
    );
    write(
        home.join("ssh_config"),
        &format!(
            "Host web1\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {shown}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {shown}/known_hosts\n  StrictHostKeyChecking yes\n"
        ),
        0o600,
    );
    let key = std::fs::read_to_string(home.join("host_key.pub")).unwrap();
    write(home.join("known_hosts"), &format!("[127.0.0.1]:{port} {key}"), 0o600);
    // OpenSSH looks for its files in the home directory of the passwd entry, not in $HOME.
    let calls = format!("echo \"$@\" >> {shown}/calls");
    write(
        home.join("bin/ssh"),
        &format!("#!/bin/sh\n{calls}\nexec /usr/bin/ssh -F {shown}/ssh_config \"$@\"\n"),
        0o755,
    );
    let log = std::fs::File::create(home.join("sshd_log")).unwrap();
    let child = Command::new("/usr/sbin/sshd")
        .args(["-D", "-e", "-f"])
        .arg(home.join("sshd_config"))
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let server = Sshd { child, port };
    wait_until(
        || std::net::TcpStream::connect(("127.0.0.1", server.port)).is_ok(),
        || std::fs::read_to_string(home.join("sshd_log")).unwrap_or_default(),
    );
    server
}

/// Returns a duration for `sleep` that is unique to the test, so that it finds only its own
/// processes.
fn sleep_of(environment: &str) -> u32 {
    61_000 + u32::try_from(environment.len()).unwrap()
}

const TOOLS: &str = "version: 1
tools:
  - {name: show, description: Shows words, category: read, cmd: printf, args: ['%s|', '{{a}}', '{{b}}'], parameters: {a: {type: string, multiline: true}, b: {type: string}}, env: {API_TOKEN: very-secret-token}}
  - {name: token, description: Shows a variable, category: read, cmd: sh, args: [-c, 'echo \"$API_TOKEN\" | wc -c; pwd; cat'], stdin: '{{text}}', parameters: {text: {type: string}}, env: {API_TOKEN: very-secret-token}}
  - {name: stay, description: Takes long, category: read, cmd: sh, args: [-c, 'sleep SLEEP & sleep SLEEP'], timeout: 1s}
  - {name: absent, description: Is not there, category: write, cmd: no-such-program}
";

fn place(environment: &str, script: &str, tools: &str) -> Place {
    let tools_yaml = |sleep: u32| TOOLS.replace("SLEEP", &sleep.to_string());
    let place = Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: script.yaml}}\n"),
        (
            "script.yaml",
            &format!(
                "steps:\n{}  - say: done\n  - say: done\n",
                script.replace("LARGE", &format!("{}\\n", "x".repeat(74)).repeat(4_000))
            ),
        ),
        ("tools.yaml", &tools_yaml(sleep_of(environment))),
    ]);
    let work = place.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", work.join("link")).unwrap();
    std::fs::create_dir(place.path().join("outside")).unwrap();
    std::os::unix::fs::symlink(place.path().join("outside"), work.join("out")).unwrap();
    nix::unistd::mkfifo(&work.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    write(work.join(".gitignore"), "ignored.txt\n", 0o644);
    write(work.join("ignored.txt"), "one\n", 0o644);
    place.write(
        "jobs.yaml",
        &format!("version: 1\njobs:\n  - name: j\n    prompt: Work\n    environment: {environment}\n    sandbox: best_effort\n    working_dir: {}\n    tools: {tools}\n    limits: {{error_threshold: 9}}\n", work.display()),
    );
    let path = format!("{}/bin:/usr/bin:/bin", place.path().display());
    place.with_env("PATH", &path)
}

fn ends(place: &Place) -> Vec<Value> {
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap().iter();
    events.filter(|event| event["type"] == "tool_call_end").cloned().collect()
}

const SCRIPT: &str = r#"  - call: {tool: show, args: {a: "it's \"a\" $(id) `id`\n-e *", b: "; rm -rf x"}}
  - call: {tool: token, args: {text: "in it's"}}
  - call: {tool: bash, args: {command: "echo $0 > made; exit 3"}}
  - call: {tool: stay, args: {}}
  - call: {tool: write_file, args: {file_path: "notes/it's.txt", content: "one\ntwo\n"}}
  - call: {tool: edit_file, args: {file_path: "notes/it's.txt", old_string: two, new_string: "2"}}
  - call: {tool: read_file, args: {file_path: "notes/it's.txt", offset: 2}}
  - call: {tool: list_directory, args: {depth: 2}}
  - call: {tool: grep, args: {pattern: "^o\\w+$"}}
  - call: {tool: glob, args: {pattern: "*.txt"}}
  - call: {tool: apply_patch, args: {patch: "*** Begin Patch\n*** Add File: p/new.txt\n+added\n*** Delete File: notes/it's.txt\n*** End Patch"}}
  - call: {tool: read_file, args: {file_path: missing}}
  - call: {tool: read_file, args: {file_path: link}}
  - call: {tool: write_file, args: {file_path: link, content: x}}
  - call: {tool: read_file, args: {file_path: /etc/hostname}}
  - call: {tool: read_file, args: {file_path: pipe}}
  - call: {tool: write_file, args: {file_path: large.txt, content: "LARGE"}}
  - call: {tool: write_file, args: {file_path: out/new/f, content: x}}
"#;

fn check(place: &Place, environment: &str) {
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let ends = ends(place);
    let work = place.path().join("work");
    assert_eq!(ends[0]["output"], "it's \"a\" $(id) `id`\n-e *|; rm -rf x|", "{}", ends[0]);
    assert_eq!(ends[1]["output"], format!("18\n{}\nin it's", work.display()), "{}", ends[1]);
    assert_eq!(ends[2]["exit_code"], 3, "{}", ends[2]);
    assert_eq!(std::fs::read_to_string(work.join("made")).unwrap(), "bash\n");
    assert_eq!(ends[3]["error_kind"], "timeout", "{}", ends[3]);
    let output = |at: usize| {
        format!(
            "{} {}",
            ends[at]["error_kind"].as_str().unwrap_or("-"),
            ends[at]["output"].as_str().unwrap()
        )
    };
    let shown = work.display();
    assert_eq!(output(4), format!("- wrote 8 bytes to {shown}/notes/it's.txt"));
    assert!(output(5).contains("-two\n+2\n"), "{}", output(5));
    assert_eq!(output(6), "- 2 | 2");
    assert_eq!(
        output(7),
        "- .gitignore\nignored.txt\nlink\nmade\nnotes/\nnotes/it's.txt\nout\npipe\n"
    );
    assert_eq!(output(8), "- notes/it's.txt:1: one\n");
    assert_eq!(output(9), "- notes/it's.txt\n");
    assert!(
        output(10).starts_with("- added") && !work.join("notes/it's.txt").exists(),
        "{}",
        output(10)
    );
    assert_eq!(std::fs::read_to_string(work.join("p/new.txt")).unwrap(), "added\n");
    assert!(output(11).starts_with("not_found "), "{}", output(11));
    assert_eq!(std::fs::read_dir(place.path().join("outside")).unwrap().count(), 0);
    for at in [12, 13, 14, 15, 17] {
        assert!(output(at).starts_with("denied "), "{at}: {}", output(at));
    }
    assert!(output(16).starts_with("- wrote 300000 bytes"), "{}", output(16));
    assert_eq!(std::fs::read_to_string(work.join("large.txt")).unwrap().len(), 300_000);
    let started = Instant::now();
    let sleep = format!("sleep {}", sleep_of(environment));
    while !alive(&sleep).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(5), "still running: {:?}", alive(&sleep));
        std::thread::sleep(Duration::from_millis(50));
    }
    let shown = place.json(&["show", "last"]);
    let start = &shown["events"][0];
    assert_eq!(start["sandbox"]["landlock_abi"], Value::Null, "{start}");
    let checked = shown["events"].as_array().unwrap().iter().find(|it| it["type"] == "preflight");
    let checked = checked.unwrap().to_string();
    assert!(checked.contains("this host cannot sandbox processes on"), "{checked}");
    assert!(!place.everything().contains("very-secret-token"));
}

// proves SEC-1
// conforms 003-4.3
#[test]
fn tools_of_a_job_work_on_another_host() {
    let place = place("ssh:web1", SCRIPT, "{write: [bash, write_file, edit_file, apply_patch]}");
    let _server = sshd(&place);
    check(&place, "ssh:web1");
    let calls = std::fs::read_to_string(place.path().join("calls")).unwrap();
    assert!(!calls.contains("very-secret-token") && !calls.contains("rm -rf"), "{calls}");
    assert_eq!(
        calls.matches("ControlMaster=yes").count(),
        1,
        "all calls must share one connection: {calls}"
    );
    let log = std::fs::read_to_string(place.path().join("sshd_log")).unwrap();
    assert_eq!(log.matches("Accepted publickey").count(), 1, "{log}");
    let checked = place.json(&["check", "j"]);
    assert_eq!(checked["ok"], true, "{checked}");
}

#[test]
fn what_is_not_there_fails_before_a_token_is_spent() {
    let place = place("ssh:web1", SCRIPT, "{write: [absent]}");
    assert_eq!(place.dutyd(&["run", "j"]).code, 1, "no server is running yet");
    let reason = |place: &Place| place.json(&["show", "last"])["events"].to_string();
    assert!(reason(&place).contains("ssh:web1 cannot be reached"), "{}", reason(&place));
    let _server = sshd(&place);
    assert_eq!(place.dutyd(&["run", "j"]).code, 1);
    assert!(
        reason(&place).contains("`no-such-program` was not found on ssh:web1"),
        "{}",
        reason(&place)
    );
    for (wrong, message) in [
        ("environment: ssh:web1", "best_effort"),
        (
            "environment: 'ssh:-oProxyCommand=x', sandbox: best_effort, working_dir: /",
            "is not an environment",
        ),
        ("environment: ssh:web1, sandbox: best_effort", "`working_dir` is missing"),
    ] {
        place.write(
            "jobs.yaml",
            &format!("version: 1\njobs:\n  - {{name: j, prompt: x, {wrong}}}\n"),
        );
        let done = place.dutyd(&["validate"]);
        assert!(
            done.code == 2 && (done.stdout.clone() + &done.stderr).contains(message),
            "{done:?}"
        );
    }
}

/// Docker and Kubernetes are not installed here. Scripts replace their clients: each logs its
/// arguments and runs the command on this host.
// conforms 003-4.3, 003-9.1a
#[test]
fn containers_and_pods_are_reached_by_the_exec_of_their_clients() {
    for (environment, client, before) in [
        ("docker:db-1", "docker", "exec -i db-1 "),
        ("kubernetes:shop/web-0", "kubectl", "exec -i -n shop web-0 -- "),
    ] {
        let place =
            place(environment, SCRIPT, "{write: [bash, write_file, edit_file, apply_patch]}");
        let bin = place.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let count = before.split_whitespace().count();
        let calls = place.path().join("calls");
        write(
            bin.join(client),
            &format!("#!/bin/sh\necho \"$@\" >> {}\nshift {count}\nexec \"$@\"\n", calls.display()),
            0o755,
        );
        check(&place, environment);
        let calls = std::fs::read_to_string(calls).unwrap();
        assert!(calls.starts_with(&format!("{before}sh -c IFS= read -r n;")), "{calls}");
        let start = &place.json(&["show", "last"])["events"][0];
        assert_eq!(start["environment"], json!(environment));
    }
}

#[test]
fn a_program_that_a_container_lacks_is_missing_only_for_a_job_that_uses_it() {
    let place = place("docker:db-1", SCRIPT, "{read: [read_file]}");
    let (bin, container) = (place.path().join("bin"), place.path().join("container"));
    for directory in [&bin, &container] {
        std::fs::create_dir(directory).unwrap();
    }
    for program in ["sh", "cat", "dd", "head", "setsid", "sleep"] {
        std::os::unix::fs::symlink(Path::new("/usr/bin").join(program), container.join(program))
            .unwrap();
    }
    write(
        bin.join("docker"),
        &format!("#!/bin/sh\nshift 3\nPATH={} exec \"$@\"\n", container.display()),
        0o755,
    );
    let checked = place.dutyd(&["check", "j"]);
    assert!(checked.code == 0 && !checked.stdout.contains("bash"), "{checked:?}");
    let jobs = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap();
    place.write("jobs.yaml", &jobs.replace("{read: [read_file]}", "{write: [bash]}"));
    let checked = place.dutyd(&["check", "j"]);
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.stdout.contains("`bash` was not found on docker:db-1"), "{checked:?}");
}

/// The client's exit code says nothing about how the program ended. Only the remote
/// script tells this: it prints the exit code of the program last.
#[test]
fn an_end_of_the_connection_is_no_end_of_the_program() {
    let script = r#"  - call: {tool: bash, args: {command: "echo a; exit 255"}}
  - call: {tool: bash, args: {command: "echo b >&2; exit 7"}}
  - call: {tool: token, args: {text: x}}
"#;
    let place = place("docker:db", script, "{write: [bash]}");
    let bin = place.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let client = |text: &str| write(bin.join("docker"), &format!("#!/bin/sh\n{text}\n"), 0o755);
    let of = |ends: &[Value], at: usize| {
        let end = &ends[at];
        json!([end["error_kind"], end["exit_code"], end["output"]])
    };
    client("shift 3; \"$@\"; exit 1");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let found = ends(&place);
    assert_eq!(of(&found, 0), json!([null, 255, "a\n"]));
    assert_eq!(of(&found, 1), json!([null, 7, "b\n"]));
    assert_eq!(found[2]["is_error"], false, "{}", found[2]);
    // The connection breaks while the program runs.
    client(
        "read -r n; s=$(head -c $n; echo .); case $s in *API_TOKEN*) echo half; exit 0;; esac; eval \"${s%.}\"",
    );
    place.write(
        "script.yaml",
        "steps:\n  - call: {tool: token, args: {text: x}}\n  - say: done\n  - say: done\n",
    );
    place.dutyd(&["run", "j"]);
    let found = ends(&place);
    assert_eq!(
        of(&found, 0),
        json!(["interrupted", null, "half\n"]),
        "a broken connection must not count as success"
    );
}
