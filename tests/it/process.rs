//! Tests real process trees that ignore SIGTERM, fork, `setsid`, hold pipes and flood their output.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dutyd::process::{Exit, ForkServer, ProcessSpec, SpawnFailure, Spawner};
use tokio_util::sync::CancellationToken;

use crate::support::{Place, alive, is_asleep, own};

fn spawner() -> Spawner {
    let server = ForkServer::new(PathBuf::from(env!("CARGO_BIN_EXE_dutyd")));
    Spawner::new(Arc::new(server), None, "test")
}

fn spec(program: &str, args: &[&str]) -> ProcessSpec {
    ProcessSpec {
        program: PathBuf::from(program),
        argv: std::iter::once(program).chain(args.iter().copied()).map(str::to_owned).collect(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        working_dir: PathBuf::from("/"),
        stdin: None,
        timeout: Duration::from_secs(30),
        sandbox: None,
    }
}

fn sh(script: &str) -> ProcessSpec {
    spec("/bin/sh", &["-c", &own(script)])
}

async fn run(spec: &ProcessSpec) -> (Result<Exit, SpawnFailure>, String) {
    let mut output = Vec::new();
    let exit = spawner()
        .run(spec, &CancellationToken::new(), &mut |chunk| {
            output.extend_from_slice(chunk);
            Ok(())
        })
        .await;
    (exit, String::from_utf8_lossy(&output).into_owned())
}

// conforms 003-3.3e
#[tokio::test]
async fn a_program_runs_with_exactly_what_it_is_given() {
    let (exit, output) = run(&spec("/usr/bin/printf", &["%s|", "a b", "$(id)", "-x", ""])).await;
    assert_eq!(
        (exit.unwrap(), output.as_str()),
        (Exit { code: Some(0), ..Exit::default() }, "a b|$(id)|-x||")
    );
    let (exit, output) =
        run(&ProcessSpec { stdin: Some("in\n".repeat(100_000)), ..spec("/usr/bin/wc", &["-c"]) })
            .await;
    assert_eq!((exit.unwrap().code, output.trim()), (Some(0), "300000"));
    let (exit, output) = run(&sh("echo out; echo err >&2; pwd; exit 3")).await;
    assert_eq!((exit.unwrap().code, output.as_str()), (Some(3), "out\nerr\n/\n"));
    let (exit, _) = run(&sh("kill -9 $$")).await;
    assert_eq!(exit.unwrap().signal, Some(9));
}

// proves ENV-1, ENV-6
// conforms 003-3.3e
#[tokio::test]
async fn nothing_is_inherited() {
    let (_, output) = run(&spec("/usr/bin/env", &[])).await;
    assert_eq!(output, "PATH=/usr/bin:/bin\n");
    let (_, output) = run(&sh("ls -l /proc/self/fd | awk '{print $9, $11}'; umask; cat /proc/self/status; ulimit -c; ps -o pid=,pgid=,sid=,tty= $$")).await;
    let fds: Vec<&str> =
        output.lines().filter(|line| line.starts_with(['0', '1', '2', '3', '4', '5'])).collect();
    assert!(fds[0].ends_with("/dev/null"), "{output}");
    assert!(output.contains("\n0077\n"), "{output}");
    let extra =
        fds.iter().filter(|line| line.contains("socket:") || line.starts_with("4 ")).count();
    assert_eq!(extra, 0, "{output}");
    let field = |name: &str| {
        output
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    assert_eq!(field("SigBlk:"), "0000000000000000");
    assert_eq!(field("SigIgn:"), "0000000000000000");
    assert_eq!(field("NoNewPrivs:"), "1");
    let ids: Vec<&str> = output.lines().last().unwrap().split_whitespace().collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2] && ids[3] == "?", "{ids:?}");
}

// proves PROC-1
// conforms 000-S6.4, 003-5.4, 003-9.4d
#[tokio::test]
async fn a_tool_that_ignores_sigterm_is_killed_after_two_seconds() {
    let started = Instant::now();
    let (exit, output) = run(&ProcessSpec {
        timeout: Duration::from_millis(300),
        ..sh("trap '' TERM; echo begun; while :; do sleep 7001.OWN; done")
    })
    .await;
    let took = started.elapsed();
    assert!(exit.as_ref().unwrap().timed_out && exit.as_ref().unwrap().survivors == 0, "{exit:?}");
    assert_eq!(output, "begun\n");
    assert!(took > Duration::from_secs(2) && took < Duration::from_millis(3300), "{took:?}");
    assert_eq!(alive("sleep 7001.OWN"), [""; 0]);
}

// conforms 003-5.4, 003-9.4d
#[tokio::test]
async fn a_tool_that_obeys_sigterm_ends_at_once() {
    let started = Instant::now();
    let (exit, output) = run(&ProcessSpec {
        timeout: Duration::from_millis(300),
        ..sh("trap 'echo bye; exit 0' TERM; sleep 7002.OWN & wait")
    })
    .await;
    assert!(exit.unwrap().timed_out);
    assert_eq!(output, "bye\n");
    assert!(started.elapsed() < Duration::from_millis(1500));
    assert_eq!(alive("sleep 7002.OWN"), [""; 0]);
}

// proves PROC-2, PROC-3
#[tokio::test]
async fn nothing_of_a_call_outlives_it() {
    let started = Instant::now();
    let script = "sleep 7003.OWN & setsid sleep 7003.OWN & (setsid sh -c 'trap \"\" TERM HUP; sleep 7003.OWN & sleep 7003.OWN' &) ; nohup sleep 7003.OWN >/dev/null 2>&1 & echo done";
    let (exit, output) = run(&sh(script)).await;
    assert_eq!(
        (exit.unwrap(), output.as_str()),
        (Exit { code: Some(0), ..Exit::default() }, "done\n")
    );
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(alive("sleep 7003.OWN"), [""; 0]);
}

/// `/proc` shows a process name that is not valid UTF-8 unchanged.
#[tokio::test]
async fn a_process_with_an_odd_name_does_not_get_away() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy("/bin/sleep", dir.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe) Z 1")))
        .unwrap();
    let script = format!(
        "cd {}; for f in *; do setsid \"./$f\" 7007.OWN & done; sleep 0.2; echo done",
        dir.path().display()
    );
    let (exit, output) = run(&sh(&script)).await;
    assert_eq!(
        (exit.unwrap(), output.as_str()),
        (Exit { code: Some(0), ..Exit::default() }, "done\n")
    );
    assert_eq!(alive(" 7007.OWN"), [""; 0]);
}

// proves PROC-4
#[tokio::test]
async fn a_closed_output_is_not_the_end() {
    let started = Instant::now();
    let (exit, _) = run(&sh("exec >&- 2>&-; sleep 0.6; exit 4")).await;
    assert_eq!(exit.unwrap().code, Some(4));
    assert!(started.elapsed() >= Duration::from_millis(600));
}

// proves PROC-5
#[tokio::test]
async fn endless_output_is_drained() {
    let mut bytes = 0_u64;
    let exit = spawner()
        .run(
            &ProcessSpec { timeout: Duration::from_millis(700), ..spec("/usr/bin/yes", &[]) },
            &CancellationToken::new(),
            &mut |chunk| {
                bytes += chunk.len() as u64;
                Ok(())
            },
        )
        .await;
    assert!(exit.unwrap().timed_out);
    assert!(bytes > 1_000_000, "{bytes}");
}

// proves PROC-7
#[tokio::test]
async fn what_cannot_be_executed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let failure = |spec: ProcessSpec| async move {
        match run(&spec).await.0 {
            Err(SpawnFailure::Refused { step, errno }) => format!("{step}: {errno:?}"),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(failure(spec("/no/such/program", &[])).await, "executing the program: ENOENT");
    assert_eq!(
        failure(spec(&file("plain", "x", 0o644), &[])).await,
        "executing the program: EACCES"
    );
    assert_eq!(
        failure(spec(&file("no_shebang", "echo pwned", 0o755), &[])).await,
        "executing the program: ENOEXEC",
        "no shell may run it instead"
    );
    assert_eq!(
        failure(spec("/bin/echo", &["x".repeat(3_000_000).as_str()])).await,
        "executing the program: E2BIG"
    );
    assert_eq!(
        failure(ProcessSpec { working_dir: PathBuf::from("/no/such"), ..spec("/bin/true", &[]) })
            .await,
        "entering the working directory: ENOENT"
    );
}

// conforms 001-U2, 003-9.11e, 003-B13
#[tokio::test]
async fn cancelling_ends_the_tree_within_three_seconds() {
    let cancel = CancellationToken::new();
    let canceller = cancel.clone();
    let task = tokio::spawn(async move {
        // Cancel once the tree is there: the shell's child and the one in a session of its own.
        wait_until(|| alive("sleep 7004.OWN").len() >= 2).await;
        let cancelled = Instant::now();
        canceller.cancel();
        cancelled
    });
    let directory = tempfile::tempdir().unwrap();
    let asked = directory.path().join("asked");
    let script = format!(
        "trap 'echo asked >{}' TERM; setsid sleep 7004.OWN & while :; do sleep 7004.OWN; done",
        asked.display()
    );
    let exit = spawner().run(&sh(&script), &cancel, &mut |_| Ok(())).await.unwrap();
    let ended = Instant::now();
    assert!(exit.cancelled && exit.survivors == 0, "{exit:?}");
    assert_eq!(alive("sleep 7004.OWN"), [""; 0]);
    assert_eq!(std::fs::read_to_string(asked).unwrap(), "asked\n");
    let took = ended.duration_since(task.await.unwrap());
    assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(3300), "{took:?}");
}

#[tokio::test]
async fn a_dropped_call_ends_by_itself() {
    let call = tokio::spawn(async {
        spawner()
            .run(
                &sh("setsid sleep 7005.OWN & sleep 7005.OWN"),
                &CancellationToken::new(),
                &mut |_| Ok(()),
            )
            .await
    });
    wait_until(|| alive("sleep 7005.OWN").len() >= 2).await;
    call.abort();
    wait_until(|| alive("sleep 7005.OWN").is_empty()).await;
}

/// A tool of the same user can kill its shim; the daemon must then kill the orphans.
#[tokio::test]
async fn a_tool_that_kills_its_shim_does_not_get_away() {
    // nextest runs each test in its own process, so the search for orphans finds only processes of
    // this test.
    dutyd::process::prepare_daemon().unwrap();
    let exit = spawner()
        .run(
            &sh("setsid sleep 7006.OWN & kill -9 $PPID; sleep 7006.OWN"),
            &CancellationToken::new(),
            &mut |_| Ok(()),
        )
        .await;
    assert_eq!(exit, Err(SpawnFailure::ShimLost { survivors: 0 }));
    assert_eq!(alive("sleep 7006.OWN"), [""; 0]);
}

#[tokio::test]
async fn a_kill_at_once_leaves_no_grace_period() {
    let spawner = spawner();
    let spec = sh("trap 'echo polite; exit' TERM; echo begun; sleep 7124.OWN & wait");
    let mut output = String::new();
    let mut keep = |chunk: &[u8]| {
        output.push_str(&String::from_utf8_lossy(chunk));
        spawner.kill();
        Ok(())
    };
    let exit = spawner.run(&spec, &CancellationToken::new(), &mut keep).await.unwrap();
    assert_eq!((exit.signal, exit.cancelled, output.as_str()), (Some(9), true, "begun\n"));
    assert_eq!(alive("sleep 7124.OWN"), [""; 0]);
}

#[tokio::test]
async fn a_stopped_shim_does_not_hold_its_call() {
    dutyd::process::prepare_daemon().unwrap();
    let spec =
        ProcessSpec { timeout: Duration::from_secs(1), ..sh("kill -STOP $PPID; sleep 7125.OWN") };
    let (exit, _) = run(&spec).await;
    let exit = exit.unwrap();
    assert_eq!((exit.timed_out, exit.survivors), (true, 0));
    assert_eq!(alive("sleep 7125.OWN"), [""; 0]);
}

/// Killing the fork server stops nothing: running calls continue, and the next call starts a new
/// fork server.
#[tokio::test]
async fn a_killed_fork_server_is_replaced() {
    let spawner = spawner();
    let run = |script: &'static str| {
        let spawner = spawner.clone();
        async move {
            let mut output = Vec::new();
            let exit = spawner
                .run(&sh(script), &CancellationToken::new(), &mut |chunk| {
                    output.extend_from_slice(chunk);
                    Ok(())
                })
                .await;
            (exit.map(|exit| exit.code), String::from_utf8_lossy(&output).into_owned())
        }
    };
    // The fork server is the parent of the shim, which is the parent of the shell.
    let (exit, output) = run("kill -9 $(ps -o ppid= -p $PPID); sleep 0.2; echo done").await;
    assert_eq!((exit, output.as_str()), (Ok(Some(0)), "done\n"));
    let (exit, output) = run("echo again").await;
    assert_eq!((exit, output.as_str()), (Ok(Some(0)), "again\n"));
    // A stopped fork server still has a shim ready for one more call. The call after that one
    // starts a new fork server.
    let (exit, _) = run("kill -STOP $(ps -o ppid= -p $PPID)").await;
    assert_eq!(exit, Ok(Some(0)));
    assert_eq!(run("exit 3").await.0, Ok(Some(3)));
    let (exit, output) = run("ps -o ppid= -p $PPID").await;
    assert_eq!(exit, Ok(Some(0)));
    let last = format!("/proc/{}/cmdline", output.trim());
    assert!(std::fs::read_to_string(&last).unwrap().contains("__exec"));
    drop(spawner);
    // The fork server ends with its owner. A zombie that is not yet reaped has an empty command
    // line.
    wait_until(|| std::fs::read_to_string(&last).unwrap_or_default().is_empty()).await;
}

async fn wait_until(mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "timed out");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// SIGCHLD arrives while the shell forks its next child. If the filter made `fork` wait for the
/// shim, as it does with `setsid`, the signal would make `fork` fail with EINTR.
#[test]
fn a_shell_whose_children_end_meanwhile_can_always_fork() {
    let place = Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: script.yaml}}\n"),
        (
            "tools.yaml",
            "version: 1\ntools:\n  - {name: fork, description: Starts processes, category: read, cmd: sh, args: [-c, 'trap : CHLD; i=0; while [ $i -lt 3000 ]; do (exit 0) & i=$((i+1)); done; wait; echo all']}\n",
        ),
        ("script.yaml", "steps:\n  - call: {tool: fork}\n  - say: done\n  - say: done\n"),
        ("jobs.yaml", "version: 1\njobs:\n  - {name: j, prompt: Work, tools: {read: [fork]}}\n"),
    ]);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap();
    let end = events.iter().find(|event| event["type"] == "tool_call_end").unwrap();
    assert_eq!((&end["exit_code"], end["output"].as_str()), (&0.into(), Some("all\n")), "{end}");
}

// proves PROC-9
#[test]
fn a_flood_of_processes_ends_at_its_limit_and_the_daemon_answers() {
    /// A user of its own, because the kernel counts processes per user.
    const USER: u32 = 64_113;
    let place = Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: script.yaml}}\n"),
        (
            "tools.yaml",
            "version: 1\ntools:\n  - {name: flood, description: Starts processes, category: write, cmd: sh, args: [flood.sh], working_dir: /, timeout: 20s}\n",
        ),
        (
            "script.yaml",
            "steps:\n  - call: {tool: flood, args: {}}\n  - say: done\n  - say: done\n",
        ),
        ("jobs.yaml", "version: 1\njobs:\n  - {name: j, prompt: Work, tools: {write: [flood]}}\n"),
    ]);
    // The script starts more processes than the limit allows. Without a limit, it ends by itself.
    let script = place.path().join("flood.sh");
    std::fs::write(
        &script,
        own("cat /proc/self/oom_score_adj\ni=0\nwhile [ $i -lt 6000 ]; do sleep 64113.OWN & i=$((i+1)); done\necho no limit\n"),
    )
    .unwrap();
    let tools = std::fs::read_to_string(place.config().join("tools.yaml")).unwrap();
    place.write("tools.yaml", &tools.replace("flood.sh", &script.display().to_string()));
    let place = place.given_to(USER);
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["run", "j", "--detach"]).code, 0);
    let mut most = 0;
    let ended = || place.json(&["runs"])[0]["ended_at"].is_string();
    let until = Instant::now() + Duration::from_secs(60);
    while !ended() {
        assert!(Instant::now() < until, "{}", place.log());
        let asked = Instant::now();
        assert_eq!(place.dutyd(&["status"]).code, 0, "{}", place.log());
        assert!(asked.elapsed() < Duration::from_secs(10), "the daemon must stay responsive");
        most = most.max(alive("sleep 64113.OWN").len());
    }
    assert!(most > 100, "only {most} processes ran at once");
    assert_eq!(alive("sleep 64113.OWN").len(), 0);
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap();
    let end = events.iter().find(|event| event["type"] == "tool_call_end").unwrap();
    let output = end["output"].as_str().unwrap();
    assert!(output.starts_with("500\n") && !output.contains("no limit"), "{end}");
    drop(daemon);
}

/// A control group as systemd delegates it to a service; removed on drop.
pub(crate) struct Group(PathBuf);

impl Group {
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }

    /// Returns `None` if this user cannot create one.
    pub(crate) fn new(owner: u32) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let path = fields.next()?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(path))
        })?;
        let path = mount.join(format!("dutyd-test-{}-{owner}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            std::os::unix::fs::chown(path.join(file), Some(owner), Some(owner)).unwrap();
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.delegate", b"1", flags).unwrap();
        Some(Self(path))
    }

    fn below(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let until = Instant::now() + Duration::from_secs(5);
        while self.0.exists() && Instant::now() < until {
            self.below().iter().for_each(|group| drop(std::fs::remove_dir(group)));
            let _ = std::fs::remove_dir(&self.0);
        }
    }
}

/// If the daemon, its fork server and every shim die at once, the next daemon finds the processes
/// of a run in the run's control group and kills them.
// proves PROC-2
#[test]
fn a_control_group_holds_what_a_run_starts() {
    for owner in [0, 65534] {
        let Some(group) = Group::new(owner) else {
            // We are an ordinary user, or in a container.
            crate::support::skipped("cannot create a control group here");
            return;
        };
        let place = Place::new(&[
            (
                "config.yaml",
                "models: {quick: {provider: scripted, script: quick.yaml}, slow: {provider: scripted, script: slow.yaml}}\ndefault_model: quick\n",
            ),
            (
                "tools.yaml",
                "version: 1\ntools:\n  - {name: groups, description: Shows, category: read, cmd: cat, args: [/proc/self/cgroup]}\n  - {name: hang, description: Hangs, category: write, cmd: sh, args: [-c, 'sleep 7313.OWN & wait']}\n",
            ),
            ("quick.yaml", "steps: [{call: {tool: groups}}, {say: done}, {say: done}]\n"),
            ("slow.yaml", "steps: [{call: {tool: hang}}, {say: done}]\n"),
            (
                "jobs.yaml",
                "version: 1\njobs:\n  - {name: quick, prompt: x}\n  - {name: slow, prompt: x, model: slow, tools: {write: [hang]}}\n",
            ),
        ]);
        let place = if owner == 0 { place } else { place.given_to(owner) };
        let daemon = place.serve_in(&group.0);
        let leaf = std::fs::read_to_string(group.0.join("daemon/cgroup.procs")).unwrap();
        assert!(leaf.lines().any(|pid| pid == daemon.pid().to_string()), "{leaf}");

        assert_eq!(place.dutyd(&["run", "quick"]).code, 0, "{}", place.log());
        let shown = place.json(&["show", "last"]);
        let events = shown["events"].as_array().unwrap();
        let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
        let name = of("session_start")["sandbox"]["cgroup"].as_str().unwrap();
        let seen = of("tool_call_end")["output"].as_str().unwrap();
        assert!(seen.contains(&format!("0::{name}\n")), "{name}: {seen}");
        assert_eq!(
            group.below(),
            [group.0.join("daemon")],
            "the group must be removed with its run"
        );

        assert_eq!(place.dutyd(&["run", "--detach", "slow"]).code, 0);
        wait_now(|| is_asleep("7313.OWN"));
        let controllers = std::fs::read_to_string(group.0.join("cgroup.controllers")).unwrap();
        if controllers.contains("pids") {
            let run = group.below().into_iter().find(|path| !path.ends_with("daemon")).unwrap();
            assert_eq!(std::fs::read_to_string(run.join("pids.max")).unwrap(), "4096\n");
        }
        // Stop all processes first, so that none can react to the death of another.
        let pids = std::fs::read_to_string(group.0.join("daemon/cgroup.procs")).unwrap();
        let all = || pids.lines().map(|pid| nix::unistd::Pid::from_raw(pid.parse().unwrap()));
        for signal in [nix::sys::signal::Signal::SIGSTOP, nix::sys::signal::Signal::SIGKILL] {
            all().for_each(|pid| nix::sys::signal::kill(pid, signal).unwrap());
        }
        drop(daemon);
        // The tool dies with its shim; what it started does not.
        wait_now(|| alive("sleep 7313.OWN").len() == 1);
        let daemon = place.serve_in(&group.0);
        assert_eq!(alive("sleep 7313.OWN").len(), 0, "{}", place.log());
        assert_eq!(group.below(), [group.0.join("daemon")]);
        drop(daemon);
    }
}

fn wait_now(done: impl FnMut() -> bool) {
    crate::support::wait_until(done, String::new);
}
