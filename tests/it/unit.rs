//! Tests dutyd under restrictions that a unit may set. `scripts/try-unit` boots a real systemd.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use serde_json::Value;

use crate::support::{Done, Place};

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
