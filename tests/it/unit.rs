//! Tests dutyd under restrictions that a unit may set. `scripts/try-unit` boots a real systemd.

use std::collections::BTreeMap;
use std::path::Path;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use serde_json::Value;

use crate::support::{Done, Place, skipped, wait_until};

/// The number of `openat2` on every architecture.
const OPENAT2: i64 = 437;

/// Runs a verb while `openat2` fails with `errno`, as under `RestrictSUIDSGID=`.
fn dutyd_without_openat2(place: &Place, errno: i32, args: &[&str]) -> Done {
    let filter = SeccompFilter::new(
        BTreeMap::from([(OPENAT2, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.cast_unsigned()),
        TargetArch::try_from(std::env::consts::ARCH).unwrap(),
    );
    let program = BpfProgram::try_from(filter.unwrap()).unwrap();
    // A process inherits the filter of the thread that starts it.
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            seccompiler::apply_filter(&program).unwrap();
            place.dutyd(args)
        });
        work.join().unwrap()
    })
}

// proves UNIT-4
#[test]
fn a_unit_that_blocks_openat2_takes_no_tool_away() {
    for errno in [38, 1] {
        let place = Place::new(&[
            (
                "config.yaml",
                "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}}\nretention: {keep_runs: 1}\n",
            ),
            (
                "jobs.yaml",
                "version: 1
jobs: [{name: j, prompt: x, working_dir: \"{dir}/work\", tools: {write: [write_file, edit_file, apply_patch, bash]}}]
",
            ),
            (
                "tools.yaml",
                "version: 1
tools: [{name: sleep, description: Sleeps, category: read, cmd: sleep, args: [\"2\"]}]
",
            ),
            (
                "s.yaml",
                "steps:
  - call: {tool: write_file, args: {file_path: new/a.txt, content: one}}
  - call: {tool: edit_file, args: {file_path: new/a.txt, old_string: one, new_string: two}}
  - call: {tool: read_file, args: {file_path: link}}
  - call: {tool: list_directory, args: {path: new}}
  - call: {tool: grep, args: {pattern: two}}
  - call: {tool: glob, args: {pattern: '**/*.txt'}}
  - call: {tool: bash, args: {command: 'mktemp --directory'}}
  - call: {tool: sleep}
  - say: done
",
            ),
        ]);
        let work = place.path().join("work");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::write(work.join("AGENTS.md"), "Use tabs.").unwrap();
        std::os::unix::fs::symlink("new/a.txt", work.join("link")).unwrap();
        let jobs = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap();
        place.write("jobs.yaml", &jobs.replace("{dir}", &place.path().display().to_string()));

        let done = dutyd_without_openat2(&place, errno, &["run", "j"]);
        assert_eq!(done.code, 0, "{done:?}");
        let shown = place.json(&["show", "last"]);
        let events = shown["events"].as_array().unwrap();
        let of =
            |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
        let ends = of("tool_call_end");
        assert_eq!(ends.len(), 8);
        assert!(ends.iter().all(|end| end["is_error"] == false), "{ends:?}");
        assert!(ends[2]["output"].as_str().unwrap().contains("two"), "{:?}", ends[2]);
        assert!(of("system_prompt")[0]["text"].as_str().unwrap().contains("Use tabs."));
        assert_eq!(of("warning"), Vec::<&Value>::new());
        let run_id = shown["run"]["run_id"].as_str().unwrap();
        let transcript = place.transcript(run_id);
        assert!(
            std::fs::read_dir(place.state().join("tmp")).unwrap().next().is_none(),
            "the temporary directory is gone"
        );

        assert_eq!(dutyd_without_openat2(&place, errno, &["run", "j"]).code, 0);
        let pruned = dutyd_without_openat2(&place, errno, &["prune", "-o", "json"]);
        let counts: Value = serde_json::from_str(&pruned.stdout).unwrap();
        assert_eq!((pruned.code, &counts["runs"]), (0, &Value::from(1)), "{pruned:?}");
        assert!(!transcript.exists());
    }
}

/// Returns the names of the ended children of a process that it has not reaped.
fn defunct_below(parent: u32) -> Vec<String> {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (name, rest) = stat.rsplit_once(')')?;
            let mut words = rest.split_whitespace();
            let is_defunct = words.next() == Some("Z");
            (is_defunct && words.next() == Some(&parent.to_string())).then(|| name.to_owned())
        })
        .collect()
}

// proves PROC-2
#[test]
fn a_daemon_that_is_process_1_of_a_container_reaps_every_child() {
    let fixture = |name: &str| {
        let path = format!("tests/fixtures/field/container-pid-1/{name}");
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    };
    let place = Place::new(&[
        (
            "config.yaml",
            "default_model: m\nmodels: {m: {provider: scripted, script: script.yaml}}\nsecurity: {sandbox: off}\n",
        ),
        ("jobs.yaml", &fixture("jobs.yaml")),
        ("tools.yaml", &fixture("tools.yaml")),
        ("script.yaml", &fixture("script.yaml")),
    ]);
    let serve = place.command(&["serve"]);
    let program = serve.get_program().to_owned();
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    unshare.arg(program).arg("serve").env_clear();
    unshare.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let log = std::fs::File::create(place.path().join("log")).unwrap();
    let mut unshare = unshare.stderr(log).stdin(std::process::Stdio::null()).spawn().unwrap();
    let log = || std::fs::read_to_string(place.path().join("log")).unwrap();
    let mut is_ready = false;
    while unshare.try_wait().unwrap().is_none() && !is_ready {
        std::thread::sleep(std::time::Duration::from_millis(20));
        is_ready = log().contains("ready");
    }
    if !is_ready {
        skipped("a daemon as process 1: this machine has no user namespaces");
        return;
    }
    let children = format!("/proc/{0}/task/{0}/children", unshare.id());
    let daemon = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    wait_until(|| log().matches("run ended").count() >= 15, log);
    wait_until(|| defunct_below(daemon).is_empty(), || format!("{:?}", defunct_below(daemon)));
    unshare.kill().unwrap();
    unshare.wait().unwrap();
}
