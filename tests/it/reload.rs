//! Tests that the daemon reloads its configuration when the files change.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Place, alive, asked, wait_until};

const CONFIG: &str = "default_model: m
models: {m: {provider: scripted, script: s.yaml}, slow: {provider: scripted, script: slow.yaml}}
security: {sandbox: off}
shutdown_grace: 60s
";
const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: 'true'}
  - {name: wait, description: Waits for a file, category: read, cmd: sh, args: [-c, 'until test -e ROOT/go; do sleep 0.1; done']}
  - {name: change, description: Changes, category: write, cmd: 'true'}
";

fn place() -> Place {
    let place = Place::new(&[
        ("config.yaml", CONFIG),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("slow.yaml", "steps: [{call: {tool: wait}}, {say: done}]\n"),
        ("jobs.yaml", &jobs(1)),
    ]);
    place.write("tools.yaml", &TOOLS.replace("ROOT", &place.path().display().to_string()));
    place
}

/// Returns a jobs file with a description that tells the versions apart.
fn jobs(version: u32) -> String {
    format!(
        "version: 1\njobs: [{{name: j, description: version {version}, allow_no_calls: true, prompt: x}}]\n"
    )
}

fn config(place: &Place) -> Value {
    place.json(&["status"])["config"].clone()
}

/// Tells whether the daemon works with this version of the jobs file.
fn has(place: &Place, version: u32) -> bool {
    let state = config(place);
    let is_current = state["disk_digest"] == state["digest"] && state["valid"] == true;
    let text = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap_or_default();
    is_current && text == jobs(version)
}

fn private(path: &Path) {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_reload_names_the_secrets_that_changed() {
    let place = place();
    let key = place.path().join("key");
    let put = |text: &str| {
        std::fs::write(&key, text).unwrap();
        private(&key);
    };
    put("first-value-of-the-key\n");
    let remote = format!(
        "r: {{provider: openai_chat, model: x, base_url: 'http://127.0.0.1:9/v1', api_key: '${{file:{}}}'}}",
        key.display()
    );
    place.write("config.yaml", &CONFIG.replace("models: {", &format!("models: {{{remote}, ")));
    let _daemon = place.serve();
    let unchanged = place.dutyd(&["reload"]);
    assert!(unchanged.stdout.ends_with(" unchanged\n"), "{unchanged:?}");
    assert!(unchanged.stderr.contains("values of the daemon's start"), "{unchanged:?}");
    put("second-value-of-the-key\n");
    let answer = place.json(&["reload"]);
    assert_eq!((&answer["changed"], &answer["values"]), (&json!(false), &json!(["key"])));
    put("third-value-of-the-key\n");
    let told = place.dutyd(&["reload"]);
    assert!(
        told.stdout.contains("unchanged, with new values\n`key` has a new value\n"),
        "{told:?}"
    );
    assert!(!place.everything().contains("value-of-the-key"), "no secret reaches the state");
}

// proves CFG-1, CFG-2
#[test]
fn changed_files_are_loaded_and_broken_ones_are_not() {
    let place = place();
    let daemon = place.serve();
    let first = config(&place)["digest"].clone();

    place.write("jobs.yaml", &jobs(2));
    wait_until(|| has(&place, 2), || place.log());
    let second = config(&place)["digest"].clone();
    assert_ne!(first, second);

    let file = place.config().join("jobs.yaml");
    for broken in ["", "version: 1\njobs: [{name: j, descr", "version: 1\njobs: [{name: 7}]\n"] {
        place.write("jobs.yaml", broken);
        wait_until(|| config(&place)["valid"] == false, || format!("{broken:?} {}", place.log()));
        assert_eq!(config(&place)["digest"], second, "the old files stay in effect");
        place.write("jobs.yaml", &jobs(2));
        wait_until(|| has(&place, 2), || place.log());
    }
    std::fs::remove_file(&file).unwrap();
    wait_until(|| config(&place)["valid"] == false, || place.log());
    assert_eq!(config(&place)["digest"], second);

    // An editor writes another file and renames it.
    let other = place.config().join(".jobs.yaml.swp");
    std::fs::write(&other, jobs(3)).unwrap();
    private(&other);
    std::fs::rename(&other, &file).unwrap();
    wait_until(|| has(&place, 3), || place.log());
    drop(daemon);
}

// proves CFG-2
#[test]
fn a_file_is_loaded_only_after_its_writer_has_closed_it() {
    use std::io::Write as _;
    let place = place();
    let daemon = place.serve();
    let first = config(&place)["digest"].clone();
    let mut file = std::fs::File::create(place.config().join("jobs.yaml")).unwrap();
    // What is there so far is a valid file.
    file.write_all(b"version: 1\njobs:\n  - {name: j, prompt: x}\n").unwrap();
    wait_until(|| place.log().contains("has not closed it"), || place.log());
    assert_eq!(config(&place)["digest"], first);
    file.write_all(b"  - {name: k, prompt: x}\n").unwrap();
    drop(file);
    wait_until(|| place.json(&["status"])["jobs"]["total"] == 2, || place.log());
    drop(daemon);
}

/// A ConfigMap is a directory of links into another directory, which a rename replaces.
#[test]
fn replaced_directories_are_loaded() {
    let place = place();
    let (directory, aside) = (place.config(), place.path().join("aside"));
    let daemon = place.serve();
    std::fs::create_dir(&aside).unwrap();
    for entry in std::fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), aside.join(entry.file_name())).unwrap();
    }
    std::fs::write(aside.join("jobs.yaml"), jobs(2)).unwrap();
    private(&aside);
    std::fs::rename(&directory, place.path().join("old")).unwrap();
    std::fs::rename(&aside, &directory).unwrap();
    wait_until(|| has(&place, 2), || place.log());

    // The directory is the new one, so its files are watched.
    for version in 3..6 {
        let data = directory.join(format!("..{version}"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("jobs.yaml"), jobs(version)).unwrap();
        private(&data.join("jobs.yaml"));
        private(&data);
        let (link, next) = (directory.join("..data"), directory.join("..next"));
        std::os::unix::fs::symlink(&data, &next).unwrap();
        std::fs::rename(&next, &link).unwrap();
        if version == 3 {
            std::fs::remove_file(directory.join("jobs.yaml")).unwrap();
            std::os::unix::fs::symlink("..data/jobs.yaml", directory.join("jobs.yaml")).unwrap();
        }
        wait_until(|| has(&place, version), || place.log());
    }
    drop(daemon);
}

// proves CFG-7
#[test]
fn a_storm_of_changes_ends_with_the_last_file_and_disturbs_no_run() {
    let place = place();
    let two = "version: 1\njobs: [{name: j, description: version 1, prompt: x}, {name: slow, prompt: x, model: slow, double_confirmation: false}]\n";
    place.write("jobs.yaml", two);
    let daemon = place.serve();
    let run_id = place.dutyd(&["trigger", "slow"]).stdout.trim().to_owned();
    for version in 0..300 {
        let text = jobs(version);
        let text = if version % 3 == 0 { &text[..text.len() / 2] } else { &text };
        place.write("jobs.yaml", text);
        if version % 50 == 0 {
            daemon.signal(Signal::SIGHUP);
        }
    }
    place.write("jobs.yaml", &jobs(1000));
    wait_until(|| has(&place, 1000), || place.log());
    assert_eq!(place.json(&["status"])["jobs"]["total"], 1);
    std::fs::write(place.path().join("go"), "").unwrap();
    let outcome = || place.json(&["show", &run_id])["run"]["outcome"].clone();
    wait_until(|| outcome() == "succeeded", || place.log());
    drop(daemon);
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
}

/// Returns the private memory of a process, in KiB.
fn private_memory(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

// proves CFG-7
#[test]
fn a_thousand_reloads_do_not_disturb_runs_or_grow_memory() {
    let place = place();
    let root = place.path().display();
    place.write(
        "config.yaml",
        &CONFIG.replace("shutdown_grace", "max_concurrent_runs: 50\nshutdown_grace"),
    );
    place.write(
        "tools.yaml",
        &format!("version: 1\ntools: [{{name: wait, description: Waits, category: read, cmd: cat, args: [{root}/gate]}}]\n"),
    );
    assert_eq!(place.shell(&format!("mkfifo {root}/gate")).code, 0);
    let jobs = |version: usize| {
        let job = |number| {
            format!(
                "  - {{name: j{number}, description: version {version}, prompt: x, model: slow, double_confirmation: false}}\n"
            )
        };
        format!("version: 1\njobs:\n{}", (0..50).map(job).collect::<String>())
    };
    place.write("jobs.yaml", &jobs(0));
    let daemon = place.serve();
    for number in 0..50 {
        assert_eq!(place.dutyd(&["trigger", &format!("j{number}")]).code, 0);
    }
    wait_until(|| alive(&format!("{root}/gate")).len() == 50, || place.log());

    let socket = place.state().join("control.sock");
    let key = std::fs::read_to_string(place.state().join("control.key")).unwrap();
    let reload = |version: usize| {
        let text = jobs(version);
        let is_broken = version.is_multiple_of(3);
        let text = if is_broken { &text[..text.len() / 2] } else { &text };
        place.write("jobs.yaml", text);
        let answer = asked(&socket, Some(key.trim()), "POST /api/v1/reload");
        let expected = if is_broken { "422" } else { "200" };
        assert!(answer.contains(expected), "{version}: {answer}");
    };
    (1..200).for_each(reload);
    let before = private_memory(daemon.pid());
    (200..=1000).for_each(reload);
    let after = private_memory(daemon.pid());
    assert!(after < before + 8 * 1024, "{before} KiB before, {after} KiB after");
    assert_eq!(alive(&format!("{root}/gate")).len(), 50);
    let current = config(&place);
    assert_eq!((&current["valid"], &current["digest"]), (&json!(true), &current["disk_digest"]));

    let succeeded = || {
        let runs = place.json(&["runs", "--outcome", "succeeded", "--limit", "100"]);
        runs.as_array().unwrap().len()
    };
    // The calls end when the last writer has closed the pipe.
    std::fs::File::options().write(true).open(place.path().join("gate")).unwrap();
    wait_until(|| succeeded() == 50, || place.log());
    drop(daemon);
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
}

#[test]
fn a_reload_says_which_jobs_gained_rights() {
    let place = place();
    let daemon = place.serve();
    let wider = jobs(1).replace("prompt: x", "prompt: x, tools: {write: [change]}");
    place.write("jobs.yaml", &wider);
    wait_until(|| config(&place)["widened"] == json!(["j"]), || place.log());
    assert!(place.log().contains("jobs gained rights"), "{}", place.log());
    assert!(place.dutyd(&["status"]).stdout.contains("`j` gained rights"));
    place.write("jobs.yaml", &jobs(1));
    wait_until(|| config(&place)["widened"] == json!([]), || place.log());
    drop(daemon);
}

// proves CFG-7
#[test]
fn a_file_that_is_restored_right_after_a_reload_is_loaded() {
    let place = place();
    let daemon = place.serve();
    for _ in 0..3 {
        place.write("jobs.yaml", &jobs(2));
        assert_eq!(place.dutyd(&["reload"]).code, 0);
        place.write("jobs.yaml", &jobs(1));
        wait_until(|| has(&place, 1), || place.log());
        place.write("jobs.yaml", "broken");
        assert_eq!(place.dutyd(&["reload"]).code, 2);
        place.write("jobs.yaml", &jobs(1));
        wait_until(|| has(&place, 1), || place.log());
    }
    drop(daemon);
}

// proves CFG-1, CFG-2
#[test]
fn a_missing_config_yaml_does_not_reset_settings() {
    let place = place();
    place.write("jobs.d/more.yaml", "version: 1\njobs: [{name: more, prompt: x}]\n");
    let daemon = place.serve();
    let first = config(&place)["digest"].clone();
    std::fs::remove_file(place.config().join("config.yaml")).unwrap();
    wait_until(|| config(&place)["valid"] == false, || place.log());
    let state = config(&place);
    assert_eq!(state["digest"], first);
    assert!(state["errors"][0].as_str().unwrap().contains("config.yaml is gone"), "{state}");
    place.write("config.yaml", CONFIG);
    wait_until(|| config(&place)["valid"] == true, || place.log());
    assert_eq!(config(&place)["digest"], first);
    // A file of `jobs.d` may go with its jobs; the log names them.
    std::fs::remove_file(place.config().join("jobs.d/more.yaml")).unwrap();
    wait_until(|| place.json(&["status"])["jobs"]["total"] == 1, || place.log());
    assert!(place.log().contains("jobs were removed from the configuration"), "{}", place.log());
    drop(daemon);
}

#[test]
fn an_unreadable_directory_does_not_hide_changes() {
    if !nix::unistd::geteuid().is_root() {
        crate::support::skipped("a directory of another user: only root can make one");
        return;
    }
    let place = place().given_to_nobody();
    let keys = place.config().join("keys");
    std::fs::create_dir(&keys).unwrap();
    private(&keys);
    let daemon = place.serve();
    std::fs::write(place.config().join("jobs.yaml"), jobs(2)).unwrap();
    wait_until(|| has(&place, 2), || place.log());
    assert_eq!(place.json(&["status"])["degraded"], json!([]));
    drop(daemon);
}

#[test]
fn a_link_above_the_configuration_directory_is_watched() {
    let place = place();
    let root = place.path().to_path_buf();
    for (release, version) in [("41", 1), ("42", 2)] {
        let directory = root.join("releases").join(release).join("dutyd");
        std::fs::create_dir_all(&directory).unwrap();
        private(&directory);
        for entry in std::fs::read_dir(place.config()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
        std::fs::write(directory.join("jobs.yaml"), jobs(version)).unwrap();
    }
    let current = root.join("current");
    std::os::unix::fs::symlink("releases/41", &current).unwrap();
    let daemon = place.serve_from(&current.join("dutyd"));
    let first = config(&place)["digest"].clone();
    std::os::unix::fs::symlink("releases/42", root.join("next")).unwrap();
    std::fs::rename(root.join("next"), &current).unwrap();
    wait_until(|| config(&place)["digest"] != first, || place.log());
    drop(daemon);
}
