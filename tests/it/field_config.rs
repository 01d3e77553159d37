//! Tests what dutyd says to configurations from the field (`tests/fixtures/field`).

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::{Place, wait_until};

/// The files that a case does not bring.
const REST: &[(&str, &str)] = &[
    ("config.yaml", "version: 1\nmodels:\n  default: {provider: scripted, script: script.yaml}\n"),
    ("tools.yaml", "version: 1\ntools: []\n"),
    ("jobs.yaml", "version: 1\njobs: []\n"),
    ("script.yaml", "steps: [{say: done}]\n"),
];

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/field").join(name)
}

fn text(case_name: &str, file: &str) -> String {
    std::fs::read_to_string(case(case_name).join(file)).unwrap()
}

/// Returns a place with the named files of a case.
fn place(case_name: &str, files: &[&str]) -> Place {
    let place = Place::new(REST);
    for file in files {
        place.write_as_is(file, &text(case_name, file));
    }
    place
}

/// Returns the value of a variable in the file `env` of a case, with its quotes.
fn variable(case_name: &str, file: &str) -> (String, String) {
    let line = text(case_name, file);
    let (name, value) = line.trim_end().split_once('=').unwrap();
    (name.to_owned(), value.to_owned())
}

/// Runs `validate` and returns its output.
fn validated(place: &Place, code: i32) -> String {
    let done = place.dutyd(&["validate"]);
    assert_eq!(done.code, code, "{done:?}");
    format!("{}{}", done.stdout, done.stderr)
}

#[track_caller]
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text}\nlacks\n{part}");
    }
}

#[test]
fn the_local_zone_is_that_of_the_variable() {
    let (name, value) = variable("tz-variable", "env");
    let place = place("tz-variable", &["jobs.yaml"]).with_env(&name, &value);
    let said = validated(&place, 0);
    contains(&said, &["`timezone: local` means Asia/Shanghai (from the variable TZ)"]);
    let next = place.json(&["next"])[0]["local"].as_str().unwrap().to_owned();
    assert!(next.ends_with("T09:00:00+08:00"), "{next}");
}

#[test]
fn a_variable_that_is_no_zone_is_a_warning_with_the_zone_in_effect() {
    let (name, value) = variable("tz-variable", "env-not-a-zone");
    let place = place("tz-variable", &["jobs.yaml"]).with_env(&name, &value);
    let said = validated(&place, 0);
    contains(&said, &["warning: the variable TZ is `CST`", "`local` means ", " instead (from "]);
    assert!(!said.contains("config.yaml:1:1"), "{said}");
}

#[test]
fn a_star_without_quotes_is_answered_with_the_line() {
    let said = validated(&place("cron-unquoted-star", &["jobs.yaml"]), 2);
    contains(&said, &["needs quotes: write `schedule: \"*/5 * * * *\"`", "jobs.yaml:5:15"]);
}

#[test]
fn names_of_schedules_are_taken_or_answered() {
    let said = validated(&place("cron-nicknames", &["jobs.yaml"]), 2);
    let parts = [
        "write `every: 1h30m` instead of `schedule`",
        "`@reboot` is not a cron expression: there is no such schedule",
        "`0 0 31 2 *` never comes due: without `schedule`, a job is only started by hand",
        "write `schedule: \"@daily\"`",
        "no user and no command: write only the time, `\"0 9 * * *\"`",
        "5 error(s)",
    ];
    contains(&said, &parts);
    assert!(!said.contains("@midnight"), "{said}");
}

#[test]
fn shell_syntax_is_reported_at_each_argument() {
    let place = place("tools-shell-syntax", &["tools.yaml"]);
    let said = validated(&place, 0);
    let home = place.path().display();
    let parts = [
        "tools[0].args[3]",
        "`cmd: bash` and `args: [\"-c\", \"kubectl get pods -A | grep -v Running\"]`",
        &format!("write the whole path, such as `{home}/app.log`"),
        &format!("write the whole path, such as `{home}/other.log`"),
    ];
    contains(&said, &parts);
    place.write("tools.yaml", &text("tools-shell-syntax", "command-key.yaml"));
    let said = validated(&place, 2);
    contains(&said, &["write `cmd: docker` and `args: [\"logs\", \"{{container_id}}\"]`"]);
}

#[test]
fn a_file_with_the_ending_yml_is_refused_by_name() {
    let place = place("config-yml", &["jobs.yaml", "jobs.d/team.yml", "tools.yml"]);
    std::fs::remove_file(place.config().join("tools.yaml")).unwrap();
    let said = validated(&place, 2);
    contains(&said, &["jobs.d/team.yml", "tools.yml", "the ending `.yml` is not read"]);
    for (old, new) in [("jobs.d/team.yml", "jobs.d/team.yaml"), ("tools.yml", "tools.yaml")] {
        std::fs::rename(place.config().join(old), place.config().join(new)).unwrap();
    }
    contains(&validated(&place, 0), &["ok: 2 job(s), 1 tool(s)"]);
}

#[test]
fn a_lock_link_of_an_editor_is_no_configuration() {
    let place = place("config-emacs-lock", &["jobs.d/team.yaml"]);
    let links = text("config-emacs-lock", "LINKS");
    let (link, target) = links.trim_end().split_once(" -> ").unwrap();
    std::os::unix::fs::symlink(target, place.config().join(link)).unwrap();
    contains(&validated(&place, 0), &["ok: 1 job(s)"]);
    let daemon = place.serve();
    let more = text("config-emacs-lock", "jobs.d/team.yaml").replace("name: b", "name: c");
    place.write("jobs.d/more.yaml", &more);
    wait_until(|| place.json(&["status"])["jobs"]["total"] == 2, || place.log());
    drop(daemon);
}

#[test]
fn a_go_template_is_a_literal_argument_if_its_braces_are_doubled() {
    let place = place("tools-go-template", &["tools.yaml"]);
    contains(&validated(&place, 2), &["write `{{{{` for a literal `{{`"]);
    let tools = text("tools-go-template", "tools.yaml").replace("{{", "{{{{");
    place.write("tools.yaml", &tools.replace("docker", "echo"));
    validated(&place, 0);
    let done = place.dutyd(&["call", "containers"]);
    assert_eq!(done.code, 0, "{done:?}");
    contains(&done.stdout, &["ps --all --format {{.Names}} {{.Status}}"]);
}

#[test]
fn a_script_that_cannot_start_is_reported_with_its_cause() {
    let place = place("tools-script-cannot-start", &["tools.yaml"]);
    let scripts = place.path().join("scripts");
    std::fs::create_dir(&scripts).unwrap();
    for name in ["crlf.sh", "plain.sh", "gone.py"] {
        let script = scripts.join(name);
        std::fs::copy(case("tools-script-cannot-start").join(name), &script).unwrap();
        std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let tools = text("tools-script-cannot-start", "tools.yaml");
    place.write("tools.yaml", &tools.replace("cmd: .", &format!("cmd: {}", scripts.display())));
    let causes = [
        "its lines end as in Windows (CR LF), so the kernel looks for `/bin/bash\\r`",
        "its first line does not name an interpreter",
        "its interpreter `/usr/bin/python9` does not exist",
    ];
    contains(&validated(&place, 0), &causes);
    for (tool, cause) in ["crlf", "plain", "gone"].into_iter().zip(causes) {
        let done = place.dutyd(&["call", tool]);
        assert_eq!(done.code, 1, "{done:?}");
        contains(&format!("{}{}", done.stdout, done.stderr), &[cause]);
    }
    contains(&place.dutyd(&["doctor"]).stdout, &causes);
}

/// `provider/` and `config/interpolate.rs` prove the rest.
#[test]
fn a_key_in_quotes_is_a_warning() {
    let (name, value) = variable("key-with-quotes", "env");
    let place = place("key-with-quotes", &["config.yaml"]).with_env(&name, &value);
    // `doctor` also fails, because nothing serves the model.
    for verb in ["validate", "doctor"] {
        let done = place.dutyd(&[verb]);
        contains(&done.stdout, &["`MODEL_KEY` begins and ends with a quote"]);
        assert!(!done.stdout.contains("sk-field"), "{done:?}");
    }
}

#[test]
fn a_paused_job_that_gets_another_name_is_not_in_effect_in_silence() {
    let place = Place::new(REST);
    let jobs = |file: &str| place.write("jobs.yaml", &text("job-renamed-while-paused", file));
    jobs("before.yaml");
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["pause", "backup"]).code, 0);
    jobs("after.yaml");
    let reloaded = place.dutyd(&["reload"]);
    let parts =
        ["`backup` is paused, but not in the configuration", "not paused: `nightly-backup`"];
    contains(&reloaded.stdout, &parts);
    contains(&place.dutyd(&["status"]).stdout, &parts);
    contains(&place.log(), &["paused jobs are not in the configuration"]);
    assert_eq!(place.dutyd(&["unpause", "backup"]).code, 0);
    assert!(!place.dutyd(&["status"]).stdout.contains("`backup`"));
    drop(daemon);
}

#[test]
fn a_damaged_index_is_reported_with_its_remedy() {
    let place = Place::new(REST);
    assert_eq!(place.dutyd(&["reindex"]).code, 0);
    for log in ["index.db-wal", "index.db-shm"] {
        let _ = std::fs::remove_file(place.state().join(log));
    }
    std::fs::write(place.state().join("index.db"), "x".repeat(9000)).unwrap();
    let done = place.dutyd(&["runs"]);
    assert_eq!(done.code, 1, "{done:?}");
    contains(&done.stderr, &["index.db is damaged", "dutyd reindex"]);
    assert_eq!(place.dutyd(&["reindex"]).code, 0);
    assert_eq!(place.dutyd(&["runs"]).code, 0);
}
