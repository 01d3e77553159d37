//! Tests plan and apply: a planned change waits for a person and is applied exactly or not at all.

use serde_json::{Value, json};

use crate::support::Place;

/// A fake `kubectl` that keeps its state in a file and logs its arguments.
const KUBECTL: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case "$*" in
  *--dry-run=server*) echo "would: $*" ;;
  get*) cat "$here/world" ;;
  scale*) if [ -e "$here/hangs" ]; then exec sleep 60; fi ;;
esac
case "$*" in
  *--dry-run=server*) ;;
  scale*|apply*) echo "$*" >>"$here/world"; echo "done: $*" ;;
esac
"#;

const TOOLS: &str = "version: 1
tools:
  - {name: kubectl_get, description: Get, category: read, cmd: KUBECTL, args: [get, deployments]}
  - name: kubectl_scale
    description: Scale
    category: write
    cmd: KUBECTL
    args: [scale, '--replicas={{n}}', --, '{{name}}']
    parameters: {name: {type: string}, n: {type: integer, minimum: 0}}
    dry_run_args: [--dry-run=server]
    sandbox: {write: [HERE]}
  - name: kubectl_apply
    description: Apply
    category: write
    cmd: KUBECTL
    args: [apply, -f, '{{file}}']
    parameters: {file: {type: string, pattern: '[a-z.]+'}}
    sandbox: {write: [HERE]}
";

const SCRIPT: &str = "steps:
  - call: {tool: kubectl_get, args: {}}
  - call: [{tool: kubectl_scale, args: {name: web, n: 3}}, {tool: kubectl_apply, args: {file: web.yaml}}]
  - call: {tool: write_file, args: {file_path: note, content: scaled}}
  - say: planned
  - say: planned
";

struct World {
    place: Place,
    bin: std::path::PathBuf,
}

impl World {
    fn new(mode: &str) -> Self {
        let place = Place::new(&[
            ("config.yaml", "models: {main: {provider: scripted, script: script.yaml}}\n"),
            ("script.yaml", SCRIPT),
            (
                "jobs.yaml",
                &format!(
                    "version: 1\njobs:\n  - name: j\n    prompt: Scale\n    mode: {mode}\n    tools: {{write: [kubectl_scale, kubectl_apply, write_file]}}\n"
                ),
            ),
        ]);
        let bin = place.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let kubectl = bin.join("kubectl");
        std::fs::write(&kubectl, KUBECTL).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&kubectl, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(bin.join("world"), "web 1\n").unwrap();
        std::fs::write(bin.join("calls"), "").unwrap();
        let tools = TOOLS
            .replace("KUBECTL", &kubectl.display().to_string())
            .replace("HERE", &bin.display().to_string());
        place.write("tools.yaml", &tools);
        Self { place, bin }
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.bin.join(name)).unwrap()
    }

    fn plan(&self) -> Value {
        self.place.json(&["plan", "last"])
    }

    /// Returns the events of a type in the newest run.
    fn events(&self, kind: &str) -> Vec<Value> {
        let shown = self.place.json(&["show", "last"]);
        let events = shown["events"].as_array().unwrap().iter();
        events.filter(|event| event["type"] == kind).cloned().collect()
    }
}

// proves STATE-8
#[test]
fn an_older_ledger_does_not_apply_a_plan_again() {
    for has_guards in [true, false] {
        let world = World::new("plan");
        assert_eq!(world.place.dutyd(&["run", "j"]).code, 0);
        let plan_id = world.plan()["plan_id"].as_str().unwrap().to_owned();
        let ledger = || {
            let kept = world.place.kept().into_iter();
            kept.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("ledger.db"))
        };
        let backup: Vec<_> =
            ledger().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        let done = world.place.dutyd(&["apply", &plan_id]);
        assert_eq!(done.code, 0, "{done:?}");
        let applied = world.file("world");
        ledger().for_each(|path| std::fs::remove_file(path).unwrap());
        backup.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        if !has_guards {
            std::fs::remove_file(world.place.state().join("guards.json")).unwrap();
        }
        drop(world.place.serve());
        let again = world.place.dutyd(&["apply", &plan_id]);
        assert!(again.code != 0, "{again:?}");
        assert_eq!(world.plan()["state"], if has_guards { "applied" } else { "failed" });
        assert_eq!(world.file("world"), applied);
    }
}

#[test]
fn a_job_in_plan_mode_changes_nothing_and_leaves_a_plan() {
    let world = World::new("plan");
    let done = world.place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains("dutyd plan "), "{done:?}");
    assert_eq!(world.file("world"), "web 1\n");
    let run = &world.place.json(&["runs"])[0];
    assert_eq!((&run["outcome"], &run["stop_reason"]), (&json!("planned"), &json!("planned")));
    let plan = &world.place.json(&["plans"])[0];
    assert_eq!((&plan["state"], &plan["job"]), (&json!("waiting"), &json!("j")));
    let steps = plan["steps"].as_array().unwrap();
    let names: Vec<&Value> = steps.iter().map(|step| &step["name"]).collect();
    assert_eq!(names, ["kubectl_scale", "kubectl_apply", "write_file"]);
    let argv: Vec<&Value> = steps[0]["argv"].as_array().unwrap().iter().skip(1).collect();
    assert_eq!(argv, ["scale", "--replicas=3", "--", "web"]);
    // The sandbox of the dry run is read-only: the kernel denied its write to the call log.
    assert_eq!(
        steps[0]["dry_run_output"].as_str().unwrap().lines().last().unwrap(),
        "would: scale --replicas=3 --dry-run=server -- web"
    );
    assert_eq!(steps[1]["dry_run_output"], Value::Null);
    assert_eq!(steps[0]["rests_on"].as_array().unwrap().len(), 1);
    let shown = world.place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((of("plan_step"), of("tool_call_start"), of("policy_decision")), (3, 2, 4));
    assert!(!world.place.state().join("workspace/j/note").exists());
}

#[test]
fn a_plan_is_applied_exactly_and_once() {
    let world = World::new("plan");
    world.place.dutyd(&["run", "j"]);
    std::fs::write(world.bin.join("calls"), "").unwrap();
    let done = world.place.dutyd(&["apply", "last"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        world.file("calls").lines().collect::<Vec<_>>(),
        ["scale --replicas=3 -- web", "apply -f web.yaml"]
    );
    assert_eq!(world.file("world"), "web 1\nscale --replicas=3 -- web\napply -f web.yaml\n");
    assert_eq!(
        std::fs::read_to_string(world.place.state().join("workspace/j/note")).unwrap(),
        "scaled"
    );
    assert_eq!(world.plan()["state"], "applied");
    let again = world.place.dutyd(&["apply", "last"]);
    assert_eq!((again.code, again.stderr.contains("already applied")), (1, true));
    assert_eq!(world.place.dutyd(&["verify", "last"]).code, 0);
    let run = &world.place.json(&["runs"])[0];
    assert_eq!((&run["outcome"], &run["tool_calls"]), (&json!("succeeded"), &json!(4)));
}

// proves WEB-6
#[test]
fn a_plan_whose_world_has_changed_is_refused() {
    let world = World::new("plan");
    world.place.dutyd(&["run", "j"]);
    let refused = |why: &str| {
        let done = world.place.dutyd(&["apply", "last"]);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("nothing was done") && done.stderr.contains(why), "{done:?}");
        assert_eq!(world.plan()["state"], "waiting");
    };
    std::fs::write(world.bin.join("world"), "web 2\n").unwrap();
    refused("answers differently now");
    std::fs::write(world.bin.join("world"), "web 1\n").unwrap();
    // A file that a step would change.
    let note = world.place.state().join("workspace/j/note");
    std::fs::write(&note, "mine").unwrap();
    refused("is not what was planned");
    std::fs::remove_file(&note).unwrap();
    // The arguments of the tool.
    let tools = std::fs::read_to_string(world.place.config().join("tools.yaml")).unwrap();
    world.place.write("tools.yaml", &tools.replace("--replicas={{n}}", "--replicas={{n}}0"));
    refused("is not what was planned");
    world.place.write("tools.yaml", &tools);
    // The program itself.
    std::fs::write(world.bin.join("kubectl"), format!("{KUBECTL}# changed\n")).unwrap();
    refused("is not what was planned");
    std::fs::write(world.bin.join("kubectl"), KUBECTL).unwrap();
    // The permissions of the job.
    let jobs = std::fs::read_to_string(world.place.config().join("jobs.yaml")).unwrap();
    world
        .place
        .write("jobs.yaml", &jobs.replace("mode: plan", "mode: plan\n    autonomy: read_only"));
    let done = world.place.dutyd(&["apply", "last"]);
    assert!(done.code == 1 && done.stderr.contains("autonomy"), "{done:?}");
    assert_eq!(world.file("world"), "web 1\n");
}

/// Returns a place whose job plans to write the file `note`, to deploy that file with a script, and
/// to print a variable of the host. The plan is made with LANG=one.
fn deployment() -> (Place, std::path::PathBuf) {
    let place = Place::new(&[
        (
            "config.yaml",
            "models: {main: {provider: scripted, script: s.yaml}}\nsecurity: {env_allowlist: [X_TOKEN]}\n",
        ),
        (
            "s.yaml",
            "steps:\n  - call: {tool: write_file, args: {file_path: note, content: one}}\n  - call: {tool: deploy, args: {target: note}}\n  - call: {tool: lang, args: {}}\n  - say: planned\n",
        ),
        (
            "jobs.yaml",
            "version: 1\njobs:\n  - {name: j, prompt: Deploy, mode: plan, double_confirmation: false, tools: {write: [write_file, deploy, lang]}}\n",
        ),
    ]);
    let script = place.path().join("deploy");
    write_program(&script, "#!/bin/sh\necho \"deployed $(cat \"$1\"): $(cat)\" >deployed\n");
    place.write(
        "tools.yaml",
        &format!(
            "version: 1\ntools:\n  - {{name: deploy, description: Deploy, category: write, cmd: {}, args: ['{{{{target}}}}'], stdin: 'kind: Role', env: {{STAGE: test}}, parameters: {{target: {{type: string, format: path}}}}}}\n  - {{name: lang, description: Lang, category: write, cmd: sh, args: [-c, 'echo $LANG >lang']}}\n",
            script.display()
        ),
    );
    let place = place.with_env("LANG", "one").with_env("X_TOKEN", "0123456789");
    let planned = place.dutyd(&["run", "j"]);
    assert_eq!(planned.code, 0, "{planned:?}");
    (place, script)
}

fn write_program(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

// proves POL-10, WEB-6, WEB-7
#[test]
fn a_step_whose_file_an_earlier_step_writes_is_compared_with_the_plan() {
    let (place, script) = deployment();
    let shown = place.dutyd(&["plan", "last"]).stdout;
    for part in ["  stdin kind: Role\n", "  env STAGE = test\n", "  not bound: "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("0123456789"), "{shown}");
    let refused = |place: &Place, why: &str| {
        let done = place.dutyd(&["apply", "last"]);
        assert!(done.code == 1 && done.stderr.contains(why), "{why}: {done:?}");
        assert!(!place.state().join("workspace/j/note").exists());
    };
    let original = std::fs::read_to_string(&script).unwrap();
    write_program(&script, "#!/bin/sh\necho swapped >deployed\n");
    refused(&place, &format!("the file {} is not what was planned", script.display()));
    write_program(&script, &original);
    let tools = std::fs::read_to_string(place.config().join("tools.yaml")).unwrap();
    place.write("tools.yaml", &tools.replace("STAGE: test", "STAGE: live"));
    refused(&place, "the variable STAGE is not what was planned");
    place.write("tools.yaml", &tools);
    let place = place.with_env("X_TOKEN", "9876543210");
    refused(&place, "a secret in its environment is not what was planned");
    // A variable that the plan shows has its planned value, whatever the caller's is.
    let place = place.with_env("X_TOKEN", "0123456789").with_env("LANG", "two");
    let done = place.dutyd(&["apply", "last"]);
    assert_eq!(done.code, 0, "{done:?}");
    let made =
        |name: &str| std::fs::read_to_string(place.state().join("workspace/j").join(name)).unwrap();
    assert_eq!(
        (made("deployed"), made("lang")),
        ("deployed one: kind: Role\n".into(), "one\n".into())
    );
}

// proves POL-10, WEB-6, WEB-7
#[test]
fn a_step_may_use_a_file_that_an_earlier_program_creates() {
    let place = Place::new(&[
        ("config.yaml", "models: {main: {provider: scripted, script: s.yaml}}\n"),
        (
            "s.yaml",
            "steps:\n  - call: {tool: bash, args: {command: 'printf one >named'}}\n  - call: {tool: build, args: {}}\n  - call: {tool: deploy, args: {target: named}}\n  - call: {tool: deploy, args: {target: made}}\n  - say: planned\n",
        ),
        (
            "jobs.yaml",
            "version: 1\njobs:\n  - {name: j, prompt: Deploy, mode: plan, double_confirmation: false, tools: {write: [bash, build, deploy]}}\n",
        ),
    ]);
    let script = place.path().join("deploy");
    write_program(&script, "#!/bin/sh\ncat \"$1\" >>deployed\n");
    place.write(
        "tools.yaml",
        &format!(
            "version: 1\ntools:\n  - {{name: build, description: Build, category: write, cmd: sh, args: [-c, 'printf two >made']}}\n  - {{name: deploy, description: Deploy, category: write, cmd: {}, args: ['{{{{target}}}}'], parameters: {{target: {{type: string, format: path}}}}}}\n",
            script.display()
        ),
    );
    let planned = place.dutyd(&["run", "j"]);
    assert_eq!(planned.code, 0, "{planned:?}");
    let plan = place.json(&["plan", "last"]);
    for (at, is_told) in [(0, false), (1, false), (2, true), (3, true)] {
        let unbound = plan["steps"][at]["unbound"].to_string();
        assert_eq!(unbound.contains("does not exist yet"), is_told, "{unbound}");
    }
    // A file that appears before the first step is not one that a step creates.
    let work = place.state().join("workspace/j");
    std::fs::write(work.join("made"), "swapped").unwrap();
    let done = place.dutyd(&["apply", "last"]);
    assert!(done.code == 1 && done.stderr.contains("made is not what was planned"), "{done:?}");
    assert!(!work.join("named").exists());
    std::fs::remove_file(work.join("made")).unwrap();
    let done = place.dutyd(&["apply", "last"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(std::fs::read_to_string(work.join("deployed")).unwrap(), "onetwo");
}

#[test]
fn one_step_or_none_can_be_chosen() {
    let world = World::new("act");
    assert_eq!(world.place.dutyd(&["run", "j", "--plan"]).code, 0);
    assert_eq!(world.place.dutyd(&["apply", "last", "--only", "9"]).code, 3);
    let done = world.place.dutyd(&["apply", "last", "--only", "2"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(world.file("world"), "web 1\napply -f web.yaml\n");
    let states: Vec<Value> = world.plan()["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["state"].clone())
        .collect();
    assert_eq!(states, ["waiting", "applied", "waiting"]);
    assert_eq!(world.plan()["state"], "waiting");
    assert_eq!(world.place.dutyd(&["discard", "last"]).code, 0);
    assert_eq!(world.plan()["state"], "discarded");
    assert_eq!(world.place.dutyd(&["discard", "last"]).code, 1);
    assert_eq!(world.place.dutyd(&["plan", "nope"]).code, 3);
    // Without `--plan`, the same job acts.
    assert_eq!(world.place.dutyd(&["run", "j"]).code, 0);
    assert!(world.file("world").contains("scale"));
}

#[test]
fn what_the_job_may_not_do_any_more_is_refused_before_anything_is_done() {
    let world = World::new("plan");
    world.place.dutyd(&["run", "j"]);
    let jobs = std::fs::read_to_string(world.place.config().join("jobs.yaml")).unwrap();
    // Only the last step is no longer listed, but the first must not run either.
    world.place.write("jobs.yaml", &jobs.replace(", write_file]", "]"));
    let done = world.place.dutyd(&["apply", "last"]);
    assert!(done.code == 1 && done.stderr.contains("step 3"), "{done:?}");
    assert_eq!(
        (world.file("world").as_str(), &world.plan()["state"]),
        ("web 1\n", &json!("waiting"))
    );
    world.place.write("jobs.yaml", &jobs);
    // The environment of the program is part of the planned step.
    let tools = std::fs::read_to_string(world.place.config().join("tools.yaml")).unwrap();
    world.place.write(
        "tools.yaml",
        &tools.replace("    dry_run_args", "    env: {KUBECONFIG: /other}\n    dry_run_args"),
    );
    let done = world.place.dutyd(&["apply", "last"]);
    assert!(done.code == 1 && done.stderr.contains("is not what was planned"), "{done:?}");
    world.place.write("tools.yaml", &tools);
    // A read whose tool is no longer a read tool is not repeated.
    world.place.write("tools.yaml", &tools.replace("Get, category: read", "Get, category: write"));
    let done = world.place.dutyd(&["apply", "last"]);
    assert_eq!((done.code, world.file("world").as_str()), (1, "web 1\n"), "{done:?}");
}

// proves WEB-6
#[test]
fn two_who_apply_at_once_do_each_step_once() {
    let world = World::new("plan");
    world.place.dutyd(&["run", "j"]);
    std::fs::write(world.bin.join("calls"), "").unwrap();
    let appliers: Vec<_> =
        [&["apply", "last"][..], &["apply", "last", "--only", "1"], &["apply", "last"]]
            .iter()
            .map(|args| {
                world
                    .place
                    .command(args)
                    .stderr(std::process::Stdio::null())
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
    for mut applier in appliers {
        applier.wait().unwrap();
    }
    let calls = world.file("calls");
    let made = calls.lines().filter(|line| line.starts_with("scale")).count();
    assert_eq!(made, 1, "{calls}");
}

#[test]
fn a_call_that_apply_does_not_make_has_its_end() {
    let world = World::new("plan");
    world.place.dutyd(&["run", "j"]);
    let tools = std::fs::read_to_string(world.place.config().join("tools.yaml")).unwrap();
    world.place.write("tools.yaml", &tools.replace("name: kubectl_get", "name: kubectl_list"));
    let done = world.place.dutyd(&["apply", "last"]);
    assert!(done.code == 1 && done.stderr.contains("the tool no longer exists"), "{done:?}");
    let ends = world.events("tool_call_end");
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["error_kind"], "unknown_tool");
    assert_eq!(world.plan()["state"], "waiting");
}

#[test]
fn applying_ends_at_the_maximum_duration_of_the_job() {
    let world = World::new("plan");
    world.place.dutyd(&["run", "j"]);
    let jobs = std::fs::read_to_string(world.place.config().join("jobs.yaml")).unwrap();
    let limited = "mode: plan\n    limits: {max_duration: 2s}";
    world.place.write("jobs.yaml", &jobs.replace("mode: plan", limited));
    std::fs::write(world.bin.join("hangs"), "").unwrap();
    let done = world.place.dutyd(&["apply", "last"]);
    assert!(done.code == 1 && done.stderr.contains("took longer than 2 s"), "{done:?}");
    let run = &world.place.json(&["runs"])[0];
    assert_eq!((&run["outcome"], &run["stop_reason"]), (&json!("failed"), &json!("max_duration")));
    assert_eq!(world.events("turn_limit")[0]["limit"], "max_duration");
    let ends = world.events("tool_call_end");
    assert_eq!(ends.len(), 2, "expected the read and the first step: {ends:?}");
    let plan = world.plan();
    let states: Vec<&Value> =
        plan["steps"].as_array().unwrap().iter().map(|step| &step["state"]).collect();
    assert_eq!(states, ["failed", "waiting", "waiting"]);
    assert_eq!(world.file("world"), "web 1\n");
}
